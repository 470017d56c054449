"""Checks the arguments and results of users' functions, and computes digests of the values that these functions use."""

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
from fedray.own_code import user_code

# ---------------------------------------------------------------------------------------------------------------------
# Digests of the values that code uses. These are the arguments of a partial, the attributes of an object, and the
# values in the closure, in the module and in default arguments. The values that called functions use are included. The
# digest of a tensor or an array depends on its bytes. The digest of a table or of a user's own object depends on its
# content. The digest of any other object depends only on its type.

MOST_DEPTH = 4  # levels of tables and objects inside each other
MOST_VALUES = 10_000  # values of a table that are included
_PLAIN_VALUES = bool | int | float | complex | str | bytes | np.generic


def hash_values(*things: Any) -> dict[str, str]:
    """Returns a dict of SHA-256 digests, with one entry for each value that the given code uses.

    The keys are the names of the values in the code. Values in called functions are included. For an object of the
    user's own class, there is also a digest of the class's source, under a name such as "class Config of config". This
    digest is an empty text if there is no source.

    Example:
        >>> def make(weights):
        ...     return lambda outputs: outputs * weights["a"]
        >>> hash_values(make({"a": 1.0})) == hash_values(make({"a": 2.0})), list(hash_values(make({"a": 1.0})))
        (False, ['weights'])
    """
    found, classes = dict[str, list[str]](), dict[str, str]()
    parts = {
        id(part): part for thing in things for part in (*user_code.list_nested(thing), *user_code.list_code(thing))
    }
    for part in parts.values():
        for name, value in _list_read(part):
            found.setdefault(name, []).append(_write(value, 0))
            if user_code.is_own_module(type(value).__module__):
                source = user_code.hash_source(type(value))
                classes |= {f"class {called} of {name}": digest for called, digest in source.items()}
    texts = {name: "\n".join(each) for name, each in sorted(found.items())}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()} | classes


def _list_read(thing: Any) -> list[tuple[str, Any]]:
    """Lists the values that one function, class or object uses, with their names.

    Values that are functions, classes or modules are left out.
    """
    if isinstance(thing, partial):
        read = [*((f"argument {place}", one) for place, one in enumerate(thing.args)), *thing.keywords.items()]
    elif isinstance(thing, MethodType):
        read = _list_read(thing.__self__)
    elif isinstance(thing, FunctionType):
        known, defaults = thing.__globals__, (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        named = [(name, known[name]) for name in sorted(set(user_code.list_names(thing.__code__))) if name in known]
        read = [*user_code.read_closure(thing).items(), *named, *(("default", value) for value in defaults)]
    elif inspect.isclass(thing):
        read = [(name, one) for name, one in vars(thing).items() if name[0] != "_" and isinstance(one, _PLAIN_VALUES)]
    else:
        read = [("network", thing)] if isinstance(thing, nn.Module) else list(getattr(thing, "__dict__", {}).items())
    return [(name, value) for name, value in read if not isinstance(value, FunctionType | ModuleType | type)]


def _write(value: Any, depth: int) -> str:
    """Returns a value as text. For a value that cannot be compared, the text is the name of its type.

    Example:
        >>> _write({"rate": [0.1, None], 2: len}, 0)
        "{'rate': [0.1, None] 2, 2: builtin_function_or_method} 2"
    """
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
        if isinstance(value, SimpleNamespace | Namespace) or user_code.is_own_module(type(value).__module__):
            return f"{type(value).__qualname__} {_write(getattr(value, '__dict__', {}), depth + 1)}"
    return type(value).__name__


def write_object(thing: Any) -> str:
    """Returns the `repr` of an object. Addresses in memory are left out."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def _write_array(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Returns the dtype and the shape of a tensor or an array, and a digest of its numbers, as text."""
    kind = f"{value.dtype} {list(value.shape)}"
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantized
        return kind
    return kind if value.dtype.hasobject else f"{kind} {hashlib.sha256(value.tobytes()).hexdigest()}"


# ---------------------------------------------------------------------------------------------------------------------
# The objects that code can reach and change, which are variables of closures, tensors, arrays and tables.

_TABLES = (Tensor, np.ndarray, dict, list, set)
_MOST_COMPARED = 100_000  # evenly spread values of an array that are compared


def find_changeable(thing: Any, skipped: type | tuple[type, ...] = ()) -> dict[int, tuple[str, Any]]:
    """Returns the changeable objects that code can reach: closure variables, tensors, arrays and tables.

    The result maps the `id` of each object to a pair: the name of the object and the object itself.

    Args:
        thing: A function, or an object that contains functions.
        skipped: Types of objects that are not searched.

    Example:
        A class is not searched, but a table is.

        >>> from dataclasses import make_dataclass
        >>> def make(kind, table):
        ...     return lambda x: kind(table[x])
        >>> found = find_changeable(make(make_dataclass("Point", ["x"]), {"a": 1}))
        >>> [(name, type(one).__name__) for name, one in found.values()]
        [('kind', 'cell'), ('table', 'cell'), ('table', 'dict')]
    """
    found: dict[int, tuple[str, Any]] = {}
    for name, one in _find_reached(thing, skipped).values():
        if isinstance(one, FunctionType):
            cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
            found.update((id(cell), (free, cell)) for free, cell in cells)
        elif isinstance(one, _TABLES):
            found[id(one)] = (name, one)
    return found


def uses(thing: Any, other: Any) -> bool:
    """Returns whether code can reach all functions of other code, as a function does that wraps another.

    Code that holds an object of a user's class may reach any function.

    Example:
        >>> def half(function):
        ...     return lambda x: 0.5 * function(x)
        >>> wrapped = half(len)
        >>> uses(half(wrapped), wrapped), uses(half(len), wrapped)
        (True, False)
    """
    reached = _find_reached(thing)
    if any(user_code.is_own_module(type(one).__module__) for _, one in reached.values()):
        return True
    return all(key in reached for key, (_, one) in _find_reached(other).items() if isinstance(one, FunctionType))


def _find_reached(thing: Any, skipped: type | tuple[type, ...] = ()) -> dict[int, tuple[str, Any]]:
    """Returns the objects that code can reach, in the form of `find_changeable`. Plain values are left out."""
    seen: dict[int, tuple[str, Any]] = {}  # keeps temporary objects alive: Python could use their `id` again
    waiting: list[tuple[str, Any]] = [("", thing)]
    while waiting:
        name, one = waiting.pop()
        if one is None or isinstance(one, _PLAIN_VALUES) or id(one) in seen:
            continue
        seen[id(one)] = (name, one)
        waiting += [] if isinstance(one, skipped) else [(inner or name, value) for inner, value in _look_into(one)]
    return seen


def mark(thing: Any) -> Any:
    """Returns a record of the present values of an object, from which `is_changed` later finds changes."""
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
    """Returns whether an object has changed since `mark` recorded it. New entries of a dict or list are ignored."""
    now = mark(thing)
    if isinstance(thing, dict):
        return any(key not in now or now[key] is not value for key, value in before.items())
    if isinstance(thing, list):
        return len(now) < len(before) or any(one is not other for one, other in zip(now, before, strict=False))
    return before is not now if isinstance(thing, CellType) else before != now


def _look_into(thing: Any) -> list[tuple[str, Any]]:
    """Returns the names and objects that an object contains. The list is empty for an object that is not searched."""
    if isinstance(thing, FunctionType):
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        known = thing.__globals__ if user_code.is_own_module(thing.__module__) else {}
        tables = [(name, known[name]) for name in thing.__code__.co_names if isinstance(known.get(name), _TABLES)]
        return [*user_code.read_closure(thing).items(), *tables, *(("default", value) for value in defaults)]
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
    return [] if wrapped is None else [("", wrapped)]


# ---------------------------------------------------------------------------------------------------------------------
# Checks of a user's function, with its arguments, its results, and a second call with the same arguments, which must
# return the same result.

Returns = Callable[..., str | None]  # (result of a function, its arguments) -> the error in words, or None
_CLOSE = 1e-6  # tolerance relative to the largest number: rounding may depend on where numbers lie in memory
_FROM_ONE = ("models", "lr_decay_every", "batch_size", "epochs", "steps", "rows")  # fields that are never 0


def contract(
    where: str, function: Callable[..., Any], returns: Returns | None = None, *, again: bool = False, remedy: str = ""
) -> Callable[..., Any]:
    """Returns a user's function with checks, so that exceptions and wrong results become one-line errors.

    With `again`, the result of the function must depend only on its arguments. Every machine of a run calls the
    function, a resumed run calls it again, and all calls must return the same result. To check this, the first call in
    each process is made twice, the second time with copies of the arguments.

    Args:
        where: The beginning of messages.
        function: The user's function.
        returns: A function that takes the result and the arguments. It returns in words what is wrong with the result,
            or None if nothing is wrong.
        again: Whether the result has to depend only on the arguments.
        remedy: The end of the message if the user's code used None where a value is required.

    Raises:
        BadInput: Raised by the returned function if the result is wrong, or if two equal calls have different results.
        FedrayError: Raised by the returned function if the user's function raises an exception.

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
        >>> contract("method mine: grow", lambda number: number + 1, returns)(3)
        4
        >>> contract("method mine: grow", lambda number: number - 1, returns)(3)
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method mine: grow returned 2: return more than 3
    """
    asked: list[bool] = []

    def ask(given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        with user_code.blame_user_code(where, remedy):
            found = function(*given, **named)
            wrong = None if returns is None else returns(found, *given)
        if wrong is not None:
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
    """Returns whether two results are equal up to rounding. Functions inside the results are not compared.

    Example:
        >>> is_alike({"a": np.ones(2)}, {"a": np.ones(2)}), is_alike((1, [2.0]), (1, [2.5]))
        (True, False)
    """
    if isinstance(one, Tensor | np.ndarray | np.generic | float):
        return type(one) is type(other) and _are_close(_to_array(one), _to_array(other))
    if isinstance(one, Mapping):
        same = isinstance(other, Mapping) and one.keys() == other.keys()
        return same and all(is_alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return isinstance(other, tuple | list) and len(one) == len(other) and all(map(is_alike, one, other))
    if is_dataclass(one) and not isinstance(one, type):
        same = type(one) is type(other)
        return same and all(is_alike(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return not isinstance(one, int | str | bytes | range | set | frozenset | None) or bool(one == other)


def _to_array(value: Any) -> np.ndarray[Any, Any]:
    """Converts a tensor, an array or a number to an array."""
    if isinstance(value, Tensor):
        value = (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    return np.asarray(value)


def _are_close(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Returns whether two arrays have the same shape and dtype, and nearly the same numbers."""
    if one.dtype.kind != "f" or one.shape != other.shape or one.dtype != other.dtype:
        return one.dtype == other.dtype and np.array_equal(one, other)
    largest = float(np.abs(one).max(initial=0, where=np.isfinite(one)))
    return bool(np.allclose(one, other, rtol=0, atol=_CLOSE * largest, equal_nan=True))


def check_fields(where: str, thing: Any, path: str = "") -> None:
    """Checks whether the numbers and named choices in a dataclass or a named tuple fit the type hints of its fields.

    A number must be finite and at least 0. Some counts, such as the number of models, must be at least 1. Fields that
    hold functions are not checked here. Messages begin with `where`, which names an object. If `thing` is a part of
    this object, `path` has the names of the fields that lead to the part, such as `local.`. Otherwise `path` is empty.

    Raises:
        BadInput: A field has a wrong value.
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
            least, kind = int(name in _FROM_ONE), kinds[0]
            fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            if not fits or not math.isfinite(value) or value < least:
                what = "whole number" if kind is int else "number"
                raise BadInput(f"{where}: {path}{name} = {value!r}: give a {what} of at least {least}")


@cache
def _read_hints(kind: Any) -> dict[str, Any]:
    """Returns the type hints of the fields of a dataclass or a named tuple."""
    hints = get_type_hints(kind, localns={"Tensor": Tensor, "Sequence": Sequence})
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


# ---------------------------------------------------------------------------------------------------------------------
# A mapping of options that records which options are used. So an option that is never used can be refused.


class RecordedOptions(Mapping[str, Any]):
    """A mapping that records which keys are used. An iteration over the mapping counts as a use of all keys.

    Example:
        >>> options = RecordedOptions({"sigma": 0.1, "tau": 2})
        >>> options["sigma"], options.get("rho", 1)
        (0.1, 1)
        >>> sorted(options.asked)
        ['rho', 'sigma']
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Copies the options. No option counts as used yet."""
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


def refuse_unread(section: str, name: str, options: RecordedOptions) -> None:
    """Refuses options that a user's function did not use when it was called.

    `section` is the section of the scenario that holds the options.

    Raises:
        BadInput: The function did not use an option.
    """
    for key, value in options.options.items():
        if key not in options.asked:
            otherwise = "leave it out, or declare it in fedray.register"
            remedy = suggest_nearest(key, tuple(options.asked), otherwise, prefix=f"{section}.")
            raise BadInput(f"{section}.{key} = {quote_value(value)}, but {name} does not read it: {remedy}")
