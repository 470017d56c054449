"""What a user's code reads beside its source: tensors, tables and numbers of its closure and its module, as digests."""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from numbers import Number
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.own_code.source_code import MOST_DEPTH, hash_code, is_own_module, list_called, read_closure

# ---------------------------------------------------------------------------------------------------------------------
# `fedray.own_code.source_code` sees the source, plain values of the closure and constants in capitals. Here is the
# rest: tensors and arrays by their bytes, lists, dicts and sets of plain values, every plain global that the code
# names, and all of these in the attributes of namespaces, of objects of the user's classes, and of networks; and the
# code of these classes. Not compared are names and attributes that the code, or code that it calls, sets anew (a
# counter), all tables, tensors and arrays where it fills or changes any in place (a log, a running mean), tables that
# were empty, and objects of other kinds. Of code without source (typed into an interpreter, two lambdas of a line)
# there is the bytecode.

MOST_VALUES = 10_000  # of a table
MOST_BYTES = 1 << 26  # of an array; of a larger one, evenly spread numbers count
_HASHED = bool | int | float | str  # what `hash_code` writes
_PLAIN = bool | Number | str | bytes | np.generic | torch.dtype | torch.device
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")  # what a network counts while it answers
_UNSET = object()  # of a slot
_MAKES = ("__init__", "__post_init__", "__new__", "__setattr__", "__setstate__")  # what gives attributes first values
_SHOWS = ("__repr__", "__str__", "__eq__", "__hash__")  # what dataclasses make; it computes nothing
_CHANGES = {"append", "extend", "insert", "update", "add", "setdefault", "pop", "popitem", "clear", "remove", "discard"}
_CHANGES |= {"at", "copyto", "fill", "put", "sort", "shuffle", "reverse", "subtract"}
_CHANGES |= {"appendleft", "extendleft", "popleft", "rotate", "heappush", "heappop", "heapreplace", "heappushpop"}


def hash_values(thing: Any) -> dict[str, str]:
    """SHA-256 of each value that a function or class reads, or one that it calls, by the name it has there.

    Args:
        thing: A function, a class, a partial, or an object that can be called.

    Returns:
        Empty text for a table that is empty: code may fill it.

    Example:
        >>> def make(weights):
        ...     return lambda outputs: outputs * weights["a"]
        >>> hash_values(make({"a": 1.0})) == hash_values(make({"a": 2.0})), list(hash_values(make({"a": 1.0})))
        (False, ['weights'])
    """
    found: dict[str, list[str]] = {}
    things = [thing, *list_called(thing)]
    for kind in _list_kinds(things):
        called = [one for one in (kind, *list_called(kind)) if one not in things]
        if called:
            found.setdefault(f"class {kind.__qualname__}", []).extend(hash_code(one) or "" for one in called)
        things += called
    functions = [f for one in things for f in _list_functions(one, 0) if f.__name__ not in _SHOWS]
    operations = [each for function in functions for each in _list_operations(function.__code__)]
    changed = {name for operation, name in operations if operation in ("STORE_GLOBAL", "STORE_DEREF")}
    acting = [function for function in functions if function.__name__ not in _MAKES]
    changed |= {name for f in acting for operation, name in _list_operations(f.__code__) if operation == "STORE_ATTR"}
    fills = any(o in ("STORE_SUBSCR", "DELETE_SUBSCR") or _fills(name) for o, name in operations)
    for one in things:
        seen = hash_code(one) is not None
        for name, value in _list_values(one, seen, changed, fills):
            found.setdefault(name, []).append(_write(value, 0, [MOST_VALUES]))
    return {name: "" if "" in texts else _hash("\n".join(texts)) for name, texts in sorted(found.items())}


def hash_bytecode(thing: Any) -> str:
    """The version of Python, and the SHA-256 of the bytecode of what a function or class consists of, and calls.

    Args:
        thing: A function, a class, a partial, or an object that can be called.

    Returns:
        Empty text where all of it has a source.
    """
    bare = [one for one in [thing, *list_called(thing)] if hash_code(one) is None]
    codes = [_write_code(function.__code__) for one in bare for function in _list_functions(one, 0)]
    return f"{sys.version_info.major}.{sys.version_info.minor} {_hash(chr(10).join(codes))}" if codes else ""


def _list_functions(thing: Any, depth: int) -> list[FunctionType]:
    """The functions that a thing consists of, also those in its closure."""
    if depth > MOST_DEPTH:
        return []
    if isinstance(thing, partial):
        inner = [thing.func, *thing.args, *thing.keywords.values()]
        return [function for one in inner for function in _list_functions(one, depth + 1)]
    if isinstance(thing, MethodType):
        return _list_functions(thing.__func__, depth + 1)
    if isinstance(thing, FunctionType):
        inner = [*read_closure(thing).values(), *(value for _, value in _read_defaults(thing))]
        called = [one for one in inner if isinstance(one, FunctionType | partial | MethodType)]
        return [thing, *(function for one in called for function in _list_functions(one, depth + 1))]
    kind = thing if inspect.isclass(thing) else type(thing)
    return [value for _, value in sorted(vars(kind).items()) if isinstance(value, FunctionType)]


def _fills(name: str) -> bool:
    """Whether a method of this name changes what it belongs to; those of tensors end with one `_`."""
    return name in _CHANGES or (name.endswith("_") and not name.endswith("__"))


class _Read(NamedTuple):
    """A value that code reads.

    Attributes:
        name: Where it is read.
        value: What is there now.
        hashed: Whether `hash_code` has it if it is plain and the code has a source.
        argument: Whether it is an argument of a partial, which its code cannot set.
    """

    name: str
    value: Any
    hashed: bool
    argument: bool = False


def _list_read(thing: Any, depth: int) -> Iterator[_Read]:
    """What a thing reads: arguments of a partial, attributes, closures, default values and globals."""
    if isinstance(thing, partial):
        held = [(f"argument {place}", value) for place, value in enumerate(thing.args)]
        yield from (_Read(*pair, True, argument=True) for pair in (*held, *sorted(thing.keywords.items())))
    owner = thing.__self__ if isinstance(thing, MethodType) else thing
    if not isinstance(owner, FunctionType | partial) and not inspect.isclass(owner):
        slots = {name for name, _ in _list_slots(owner)}  # which no source has
        yield from (_Read(name, value, name not in slots) for name, value in _list_attributes(owner))
    if inspect.isclass(owner):
        public = sorted(pair for pair in vars(owner).items() if not pair[0].startswith("_"))
        yield from (_Read(name, value, False) for name, value in public if isinstance(value, _PLAIN))
    for function in _list_functions(thing, depth):
        operations, known = list(_list_operations(function.__code__)), function.__globals__
        names = sorted({name for operation, name in operations if operation in ("LOAD_GLOBAL", "LOAD_NAME")})
        yield from (_Read(*pair, True) for pair in (*read_closure(function).items(), *_read_defaults(function)))
        yield from (_Read(name, known[name], name.isupper()) for name in names if name in known)


def _list_values(thing: Any, seen: bool, changed: set[str], fills: bool) -> Iterator[tuple[str, Any]]:
    """Names and values that a thing reads; without those that its code changes, and those that are `seen` elsewhere."""
    for read in _list_read(thing, 0):
        if read.argument or read.name not in changed:
            yield from _keep(
                [(read.name, read.value)], changed, seen=seen and read.hashed, fills=fills and not read.argument
            )


def _keep(
    pairs: list[tuple[str, Any]], changed: set[str], *, seen: bool, fills: bool, depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """The values that can be compared: plain ones unless they are seen, tables unless code fills them, arrays.

    Of the objects that have attributes, a table of those that can be compared, and that no code changes.
    """
    for name, given in pairs:
        value = dict(given) if isinstance(given, MappingProxyType) else given
        plain = isinstance(value, _PLAIN) and not (seen and isinstance(value, _HASHED))
        table = isinstance(value, list | dict | set | Tensor | np.ndarray) and not fills
        if plain or table or isinstance(value, tuple | frozenset):
            yield name, value
        elif depth < MOST_DEPTH and _is_record(value):
            own = [(key, one) for key, one in _list_attributes(value) if key not in changed]
            yield name, dict(_keep(own, changed, seen=False, fills=fills, depth=depth + 1))


def _list_kinds(things: list[Any]) -> list[type]:
    """The user's classes of the objects that things hold: in closures, globals, arguments and attributes."""
    found: dict[type, None] = {}
    waiting = [(read.value, 0) for thing in things for read in _list_read(thing, 0) if _is_record(read.value)]
    while waiting:
        value, depth = waiting.pop()
        parts = [part for _, part in value.named_modules()] if isinstance(value, nn.Module) else [value]
        found |= {type(part): None for part in parts if is_own_module(type(part).__module__)}
        if depth < MOST_DEPTH:
            waiting += [(one, depth + 1) for _, one in _list_attributes(value) if _is_record(one)]
    return sorted(found, key=lambda kind: kind.__qualname__)


def _is_record(value: Any) -> bool:
    """Whether the attributes of an object say what it does: of the user's class, a namespace or a network."""
    if isinstance(value, type | FunctionType | MethodType | partial):
        return False
    return isinstance(value, SimpleNamespace | Namespace | nn.Module) or is_own_module(type(value).__module__)


def _list_attributes(thing: Any) -> list[tuple[str, Any]]:
    """Names and values of an object's attributes, also of slots; of a network, its tensors and its parts' too."""
    if not isinstance(thing, nn.Module):
        return sorted({**getattr(thing, "__dict__", {}), **dict(_list_slots(thing))}.items())
    found: dict[str, Any] = dict(thing.named_parameters())
    found |= {name: one for name, one in thing.named_buffers() if name.rpartition(".")[2] not in _RUNNING}
    for place, part in thing.named_modules():
        found |= {f"{place} {name}": one for name, one in vars(part).items() if name[0] != "_" and name != "training"}
        found[f"{place} class"] = type(part).__qualname__
    return sorted(found.items())


def _list_slots(thing: Any) -> list[tuple[str, Any]]:
    """Names and values of an object's slots that are set."""
    found = []
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            own = f"_{kind.__name__.lstrip('_')}{name}" if private else name
            found.append((name, getattr(thing, own, _UNSET)))
    return [(name, value) for name, value in found if value is not _UNSET and name not in ("__dict__", "__weakref__")]


def _read_defaults(function: FunctionType) -> list[tuple[str, Any]]:
    """Names and default values of arguments."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = function.__defaults__ or ()
    last = names[len(names) - len(values) :]
    return [*zip(last, values, strict=True), *sorted((function.__kwdefaults__ or {}).items())]


def _list_operations(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Names of the operations of a code and of the functions inside it, and what each acts on."""
    yield from ((one.opname, one.argval if isinstance(one.argval, str) else "") for one in dis.get_instructions(code))
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _list_operations(value)


def _write(value: Any, depth: int, left: list[int]) -> str:
    """A value as text; empty for a table without entries, the name of its kind for what cannot be compared."""
    left[0] -= 1
    if isinstance(value, Tensor | np.ndarray):
        return _write_array(value)
    if isinstance(value, list | dict | set) and not value:
        return ""
    if depth < MOST_DEPTH and left[0] > 0:
        if isinstance(value, dict):
            pairs = (
                (_write(key, depth + 1, left), _write(one, depth + 1, left))
                for key, one in list(value.items())[:MOST_VALUES]
            )
            return f"{{{', '.join(f'{key}: {one}' for key, one in sorted(pairs))}}} {len(value)}"
        if isinstance(value, list | tuple | set | frozenset):
            items = [_write(one, depth + 1, left) for one in list(value)[:MOST_VALUES]]
            return f"[{', '.join(sorted(items) if isinstance(value, set | frozenset) else items)}] {len(value)}"
    value = value.item() if isinstance(value, np.generic) else value
    return repr(value) if value is None or isinstance(value, _PLAIN) else type(value).__name__


def _write_array(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Kind, shape and a digest of the numbers of a tensor or an array."""
    kind = f"{value.dtype} {list(value.shape)}"
    try:
        if isinstance(value, Tensor):
            flat = value.detach().cpu().reshape(-1)
            step = 1 + flat.numel() * flat.element_size() // MOST_BYTES
            numbers = flat[::step].contiguous().view(torch.uint8).numpy()
        elif value.dtype.hasobject:
            return kind
        else:
            numbers = np.ascontiguousarray(value.reshape(-1)[:: 1 + value.nbytes // MOST_BYTES])
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantized, without numbers
        return kind
    return f"{kind} {hashlib.sha256(numbers.tobytes()).hexdigest()}"


def _write_code(code: CodeType) -> str:
    """What a code does, without names of files and numbers of lines."""
    consts = [
        _write_code(one) if isinstance(one, CodeType) else _write(one, 0, [MOST_VALUES]) for one in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {consts}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# What code can reach: the functions, plain values and objects that lie in closures, as something to compare.
#
# Two compositions of a method whose parts reach the same things compute the same. So a piece that was changed between
# the two, and is not seen in what they reach, is not read.

_TABLES = (Tensor, np.ndarray, dict, list, set)
_MOST_COMPARED = 100_000  # values of an array, evenly spread, of which a change is noticed
_PLAIN_VALUES = bool | int | float | complex | str | bytes | np.generic


class Reached(NamedTuple):
    """What code can reach.

    Attributes:
        things: Code, plain values with the names that they have there, arrays by their bytes, and other objects by
            their identities.
        named: The names of attributes and globals in all of the code.
    """

    things: frozenset[Any]
    named: frozenset[str]


def reach(thing: Any, skipped: type | tuple[type, ...] = ()) -> Reached:
    """What a function, or an object that holds functions, can reach through closures, partials, tables and dataclasses.

    Args:
        thing: Where to begin.
        skipped: Kinds of objects that are not looked into, and are the same as any other of their kind.

    Example:
        >>> def make(rate, number):
        ...     return lambda x: rate * x
        >>> one, same, other = (reach(make(*each)).things for each in ((0.1, 1), (0.1, 2), (0.2, 1)))
        >>> one == same, one == other
        (True, False)
    """
    things: set[Any] = set()
    named: set[str] = set()
    for name, one in _walk(thing, skipped):
        if one is None or isinstance(one, _PLAIN_VALUES):
            things.add((name, repr(one)))
        elif isinstance(one, skipped):
            things.add((name, type(one)))
        elif isinstance(one, FunctionType):
            things.add(one.__code__)
            named.update(_list_names(one.__code__))
        elif _look_into(one) is None:
            things.add((name, _identify(one)))
    return Reached(frozenset(things), frozenset(named))


def find_changeable(thing: Any, skipped: type | tuple[type, ...] = ()) -> dict[int, tuple[str, Any]]:
    """The variables of closures, tensors, arrays and tables that code can reach, with their names, by identity.

    Args:
        thing: As in `reach`.
        skipped: As in `reach`.

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
    """What tells later whether one of `find_changeable` was changed: see `is_changed`."""
    if isinstance(thing, CellType):
        try:
            return thing.cell_contents
        except ValueError:  # not set yet
            return None
    if isinstance(thing, Tensor):
        return thing._version
    if isinstance(thing, np.ndarray):
        return _identify(thing.ravel()[:: 1 + thing.size // _MOST_COMPARED]) if thing.dtype != object else None
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
    """What a thing holds, by names; None where it is a thing by itself."""
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


def _identify(thing: Any) -> Any:
    """What makes a thing the same as another one: the bytes of an array, the identity of all others."""
    if isinstance(thing, Tensor):
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return thing.shape, str(thing.dtype), hashlib.sha256(thing.tobytes()).digest()
    return id(thing)


def _list_names(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function's code, also in functions inside it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _list_names(value)
