"""What a user's code reads beside its source, as digests, and what it can reach and change."""

from __future__ import annotations

import hashlib
import inspect
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import islice
from numbers import Number
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.own_code.source_code import (
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


def _identify(thing: Any) -> Any:
    """Returns what makes a thing the same as another one: the bytes of an array, the identity of all others."""
    if isinstance(thing, Tensor):
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return thing.shape, str(thing.dtype), hashlib.sha256(thing.tobytes()).digest()
    return id(thing)
