"""What code can reach: the functions, plain values and objects that lie in closures, as something to compare.

Two compositions of a method whose parts reach the same things compute the same. So a piece that was changed between
the two, and is not seen in what they reach, is not read.

Example:
    >>> def make(rate, number):
    ...     return lambda x: rate * x
    >>> one, same, other = (reach(make(*each)).things for each in ((0.1, 1), (0.1, 2), (0.2, 1)))
    >>> one == same, one == other
    (True, False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedray.own_code.called_code import is_own_module
from fedray.own_code.source_code import read_closure

_TABLES = (Tensor, np.ndarray, dict, list, set)
_MOST_COMPARED = 100_000  # values of an array, evenly spread, of which a change is noticed
_PLAIN = bool | int | float | complex | str | bytes | np.generic


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
    """
    things: set[Any] = set()
    named: set[str] = set()
    for name, one in _walk(thing, skipped):
        if one is None or isinstance(one, _PLAIN):
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
        plain = one is None or isinstance(one, _PLAIN)
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
