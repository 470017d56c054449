"""Checks that users' functions keep to their arguments and results, and digests the values that they read."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import islice
from numbers import Number
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core.errors import BadInput, quote_value, suggest_nearest
from fedray.own_code.user_code import (
    blame_user_code,
    explain_uncallable,
    hash_source,
    is_own_module,
    list_code,
    list_names,
    list_nested,
    read_closure,
)

# ---------------------------------------------------------------------------------------------------------------------
# What code reads beside its source: arguments of a partial, attributes of an object, and values of the closure, of
# the module and of default arguments, also those that functions read which it calls. Tensors and arrays count by
# their bytes, tables and the user's own objects by what they hold, objects of other kinds by their kind alone.

MOST_DEPTH = 4  # of tables and objects in one another
MOST_VALUES = 10_000  # of a table
_PLAIN_VALUES = bool | int | float | complex | str | bytes | np.generic


def hash_values(*things: Any) -> dict[str, str]:
    """SHA-256 of each value that functions, classes and objects read, or functions that they call, by its name there.

    Args:
        things: functions, classes, partials, or objects that can be called.

    Returns:
        Of an object of the user's own class also the source of this, as "class Config of config"; empty without any.

    Example:
        >>> def make(weights):
        ...     return lambda outputs: outputs * weights["a"]
        >>> hash_values(make({"a": 1.0})) == hash_values(make({"a": 2.0})), list(hash_values(make({"a": 1.0})))
        (False, ['weights'])
    """
    found, classes = dict[str, list[str]](), dict[str, str]()
    parts = {id(part): part for thing in things for part in (*list_nested(thing), *list_code(thing))}
    for part in parts.values():
        for name, value in _list_read(part):
            found.setdefault(name, []).append(_write(value, 0))
            if is_own_module(type(value).__module__):
                source = hash_source(type(value))
                classes |= {f"class {called} of {name}": digest for called, digest in source.items()}
    texts = {name: "\n".join(each) for name, each in sorted(found.items())}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()} | classes


def _list_read(thing: Any) -> list[tuple[str, Any]]:
    """Names and values that a thing by itself reads; without functions, classes and modules, which count by source."""
    if isinstance(thing, partial):
        read = [*((f"argument {place}", one) for place, one in enumerate(thing.args)), *thing.keywords.items()]
    elif isinstance(thing, MethodType):
        read = _list_read(thing.__self__)
    elif isinstance(thing, FunctionType):
        known, defaults = thing.__globals__, (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        named = [(name, known[name]) for name in sorted(set(list_names(thing.__code__))) if name in known]
        read = [*read_closure(thing).items(), *named, *(("default", value) for value in defaults)]
    elif inspect.isclass(thing):
        read = [(name, one) for name, one in vars(thing).items() if name[0] != "_" and isinstance(one, _PLAIN_VALUES)]
    else:
        read = [("network", thing)] if isinstance(thing, nn.Module) else list(getattr(thing, "__dict__", {}).items())
    return [(name, value) for name, value in read if not isinstance(value, FunctionType | ModuleType | type)]


def _write(value: Any, depth: int) -> str:
    """Returns a value as text; the name of its kind for what cannot be compared."""
    if isinstance(value, Tensor | np.ndarray):
        return _write_array(value)
    if value is None or isinstance(value, _PLAIN_VALUES | Number | torch.dtype | torch.device):
        return repr(value)
    if depth < MOST_DEPTH:
        if isinstance(value, partial):
            return _write([*value.args, value.keywords], depth)
        if isinstance(value, MethodType):
            return _write(value.__self__, depth + 1)
        if isinstance(value, nn.Module):
            return f"{write_object(value)} {_write(value.state_dict(), depth + 1)}"
        if isinstance(value, Mapping):
            pairs = [
                (_write(key, depth + 1), _write(one, depth + 1)) for key, one in islice(value.items(), MOST_VALUES)
            ]
            return f"{{{', '.join(f'{key}: {one}' for key, one in sorted(pairs))}}} {len(value)}"
        if isinstance(value, list | tuple | set | frozenset):
            each = [_write(one, depth + 1) for one in islice(value, MOST_VALUES)]
            return f"[{', '.join(sorted(each) if isinstance(value, set | frozenset) else each)}] {len(value)}"
        if isinstance(value, SimpleNamespace | Namespace) or is_own_module(type(value).__module__):
            return f"{type(value).__qualname__} {_write(getattr(value, '__dict__', {}), depth + 1)}"
    return type(value).__name__


def write_object(thing: Any) -> str:
    """Returns what an object says of itself, without its place in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def _write_array(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Kind, shape and a digest of the numbers of a tensor or an array."""
    kind = f"{value.dtype} {list(value.shape)}"
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantized
        return kind
    return kind if value.dtype.hasobject else f"{kind} {hashlib.sha256(value.tobytes()).hexdigest()}"


# ---------------------------------------------------------------------------------------------------------------------
# What code can reach and change: variables of closures, tensors, arrays and tables.

_TABLES = (Tensor, np.ndarray, dict, list, set)
_MOST_COMPARED = 100_000  # values of an array, evenly spread, of which a change is noticed


def find_changeable(thing: Any, skipped: type | tuple[type, ...] = ()) -> dict[int, tuple[str, Any]]:
    """Returns the variables of closures, tensors, arrays and tables that code can reach, with their names, by identity.

    Args:
        thing: Functions, or what holds them.
        skipped: Kinds of objects that are not looked into.

    Example:
        >>> def make(table):
        ...     return lambda x: table[x]
        >>> found = find_changeable(make({"a": 1}))
        >>> [(name, type(one).__name__) for name, one in found.values()]
        [('table', 'cell'), ('table', 'dict')]
    """
    found: dict[int, tuple[str, Any]] = {}
    for name, one in _walk(thing, skipped):
        if isinstance(one, FunctionType):
            cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
            found.update((id(cell), (free, cell)) for free, cell in cells)
        elif isinstance(one, _TABLES):
            found[id(one)] = (name, one)
    return found


def mark(thing: Any) -> Any:
    """Returns what tells later whether one of `find_changeable` was changed: see `is_changed`."""
    if isinstance(thing, CellType):
        try:
            return thing.cell_contents
        except ValueError:  # not set yet
            return None
    if isinstance(thing, Tensor):
        return thing._version
    if isinstance(thing, np.ndarray):
        return None if thing.dtype == object else thing.ravel()[:: 1 + thing.size // _MOST_COMPARED].tobytes()
    return dict(thing) if isinstance(thing, dict) else list(thing) if isinstance(thing, list) else None


def is_changed(thing: Any, before: Any) -> bool:
    """Whether a thing holds other values than when it was marked; a table to which something was added does not.

    Args:
        thing: One of `find_changeable`.
        before: What `mark` has returned.
    """
    now = mark(thing)
    if isinstance(thing, dict):
        return any(key not in now or now[key] is not value for key, value in before.items())
    if isinstance(thing, list):
        return len(now) < len(before) or any(one is not other for one, other in zip(now, before, strict=False))
    return before is not now if isinstance(thing, CellType) else before != now


def _walk(thing: Any, skipped: type | tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Everything that can be reached, by the names that it has there; other things than plain values once."""
    seen: dict[int, Any] = {}  # which also keeps what is made here, so that no identity is given twice
    waiting: list[tuple[str, Any]] = [("", thing)]
    while waiting:
        name, one = waiting.pop()
        plain = one is None or isinstance(one, _PLAIN_VALUES)
        if not plain and id(one) in seen:
            continue
        yield name, one
        if not plain:
            seen[id(one)] = one
            waiting += [] if isinstance(one, skipped) else [(n or name, value) for n, value in _look_into(one) or []]


def _look_into(thing: Any) -> list[tuple[str, Any]] | None:
    """Returns what a thing holds, by names; None where it is a thing by itself."""
    if isinstance(thing, FunctionType):
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        known = thing.__globals__ if is_own_module(thing.__module__) else {}
        tables = [(name, known[name]) for name in thing.__code__.co_names if isinstance(known.get(name), _TABLES)]
        return [*read_closure(thing).items(), *tables, *(("default", value) for value in defaults)]
    if isinstance(thing, partial):
        return [("", thing.func), *((str(i), value) for i, value in enumerate(thing.args)), *thing.keywords.items()]
    if isinstance(thing, MethodType):
        return [("", thing.__func__), ("self", thing.__self__)]
    if isinstance(thing, Mapping):
        return [(repr(key), value) for key, value in thing.items()]
    if isinstance(thing, tuple | list):
        return [(str(i), value) for i, value in enumerate(thing)]
    if is_dataclass(thing) and not isinstance(thing, type):
        return [(field.name, getattr(thing, field.name)) for field in fields(thing)]
    wrapped = getattr(thing, "__wrapped__", None)  # of functools.cache
    return None if wrapped is None else [("", wrapped)]


# ---------------------------------------------------------------------------------------------------------------------
# What every function of a user's own is held to: its arguments, its results, and the same ones when it is asked
# again.

Returns = Callable[..., str | None]  # (what a function returned, its arguments) -> what is wrong with it, or None
_CLOSE = 1e-6  # of the largest number: libraries may round otherwise where the same numbers lie elsewhere
_FROM_ONE = ("models", "lr_decay_every", "batch_size", "epochs", "steps", "numbers", "rows")  # fields that are never 0


def contract(
    where: str,
    function: Callable[..., Any],
    returns: Returns | None = None,
    *,
    arguments: str | None = None,
    again: bool = False,
    remedy: str = "",
) -> Callable[..., Any]:
    """Wraps a user's function: its exceptions and wrong results are one line, and equal calls must return the same.

    A function that decides results has to be one of its arguments alone: each of the machines of a run asks it, and so
    does a run that goes on. So the first call in each process is made twice, with copies of the arguments.

    Args:
        where: what messages begin with.
        function: the user's.
        returns: says what is wrong with a result.
        arguments: what it is called with, such as "state, stats, t"; None: that was looked at before.
        again: whether the result has to depend on the arguments alone.
        remedy: what follows in the message where their code took None for something else.

    Raises:
        BadInput: it cannot be called with these arguments; and later, where it breaks the contract.
        FedrayError: later, where it raises.

    Example:
        >>> seen = []
        >>> def count(number):
        ...     seen.append(number)
        ...     return len(seen)
        >>> contract("method mine: sizes", count, again=True)(3)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: sizes, asked again, returns something else, so that no run could ...
        >>> def returns(found, number):
        ...     return None if found > number else f"{found}: return more than {number}"
        >>> contract("method mine: grow", lambda number: number + 1, returns, arguments="number")(3)
        4
        >>> contract("method mine: grow", lambda number: number - 1, returns, arguments="number")(3)
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: grow returned 2: return more than 3
    """
    if arguments is not None and (wrong := explain_uncallable(function, arguments)) is not None:
        raise BadInput(f"{where} {wrong}: give a function ({arguments})")
    asked: list[bool] = []

    def ask(given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        with blame_user_code(where, remedy):
            found = function(*given, **named)
        if returns is not None and (wrong := returns(found, *given)) is not None:
            raise BadInput(f"{where} returned {wrong}")
        return found

    def call(*given: Any, **named: Any) -> Any:
        copied = copy.deepcopy((given, named)) if again and not asked else None
        found = ask(given, named)
        if copied is not None:
            asked.append(True)
            if not is_alike(found, ask(*copied)):
                raise BadInput(
                    f"{where}, asked again, returns something else, so that no run could be repeated: draw from its "
                    "generator, or from (seed, t), alone, and keep nothing outside the state"
                )
        return found

    return call


def is_alike(one: Any, other: Any) -> bool:
    """Whether two results are the same, but for the rounding of numbers; functions among them count as the same.

    Example:
        >>> is_alike({"a": np.ones(2)}, {"a": np.ones(2)}), is_alike((1, [2.0]), (1, [2.5]))
        (True, False)
    """
    if isinstance(one, Tensor | np.ndarray | np.generic | float):
        return type(one) is type(other) and _are_close(_to_array(one), _to_array(other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(is_alike, one, other))
    if is_dataclass(one) and not isinstance(one, type):
        return all(is_alike(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return not isinstance(one, int | str | bytes | range | set | frozenset | None) or bool(one == other)


def _to_array(value: Any) -> np.ndarray[Any, Any]:
    """Returns the numbers of a tensor, an array or a number."""
    if isinstance(value, Tensor):
        value = (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    return np.asarray(value)


def _are_close(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have one shape and nearly the same numbers."""
    if one.dtype.kind != "f" or one.shape != other.shape or one.dtype != other.dtype:
        return one.dtype == other.dtype and np.array_equal(one, other)
    largest = float(np.abs(one).max(initial=0, where=np.isfinite(one)))
    return bool(np.allclose(one, other, rtol=0, atol=_CLOSE * largest, equal_nan=True))


def check_fields(where: str, thing: Any, path: str = "") -> None:
    """Refuses a field of a dataclass or a named tuple that is no number or word of those that its type hint says.

    Numbers are finite and at least 0, and at least 1 where nothing is done without them.

    Args:
        where: what messages begin with.
        thing: the dataclass or named tuple; its functions are held to `contract`.
        path: where it stands, with a dot at its end; empty: it is what `where` names.

    Raises:
        BadInput: one line.
    """
    for name, hint in _read_hints(thing.__class__).items():
        value, kinds = getattr(thing, name), get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if (value is None and type(None) in kinds) or any(get_origin(kind) is Callable for kind in kinds):
            continue
        kinds, words = tuple(kind for kind in kinds if kind is not type(None)), get_args(hint)
        if get_origin(hint) is Literal:
            if value not in words:
                raise BadInput(f"{where}: {path}{name} = {value!r}: choose {', '.join(words[:-1])} or {words[-1]}")
        elif kinds[0] in (int, float):
            _check_number(where, f"{path}{name}", value, kinds[0], int(name in _FROM_ONE))


def _check_number(where: str, path: str, value: Any, kind: type, least: int) -> None:
    """Refuses what is no finite number of a kind, or a smaller one."""
    fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or value < least:
        what = "whole number" if kind is int else "number"
        raise BadInput(f"{where}: {path} = {value!r}: give a {what} of at least {least}")


@cache
def _read_hints(kind: Any) -> dict[str, Any]:
    """Returns the type hints of the fields of a dataclass or a named tuple."""
    hints = get_type_hints(kind, localns={"Tensor": Tensor, "Sequence": Sequence})
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


# ---------------------------------------------------------------------------------------------------------------------
# Options that record which of them are read, so that an option that nothing reads can be refused.


class RecordedOptions(Mapping[str, Any]):
    """A mapping that records which keys are asked for; whoever walks over it has read all.

    Example:
        >>> options = RecordedOptions({"sigma": 0.1, "tau": 2})
        >>> options["sigma"], options.get("rho", 1)
        (0.1, 1)
        >>> options.unread(), sorted(options.asked)
        (['tau'], ['rho', 'sigma'])
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Records reads of `options`."""
        self.options = dict(options)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return self.options[key]

    def __iter__(self) -> Iterator[str]:
        self.asked.update(self.options)
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    def unread(self) -> list[str]:
        """Returns the keys that nobody asked for."""
        return [key for key in self.options if key not in self.asked]


def refuse_unread(section: str, name: str, options: RecordedOptions) -> None:
    """Refuses options that a user's function did not read when it was called.

    Args:
        section: Where the options stand, such as `method`.
        name: Of the function.
        options: What it was called with.

    Raises:
        BadInput: Names the first option that it did not read.
    """
    for key in options.unread():
        otherwise = "leave it out, or declare it in fedray.register"
        remedy = suggest_nearest(key, tuple(options.asked), otherwise, prefix=f"{section}.")
        raise BadInput(f"{section}.{key} = {quote_value(options.options[key])}, but {name} does not read it: {remedy}")
