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
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedray.own_code.source_code import read_closure

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
    seen: dict[int, Any] = {}  # which also keeps what is made here, so that no identity is given twice
    waiting: list[tuple[str, Any]] = [("", thing)]
    while waiting:
        name, one = waiting.pop()
        if one is None or isinstance(one, _PLAIN):
            things.add((name, repr(one)))
        elif isinstance(one, skipped):
            things.add((name, type(one)))
        elif id(one) not in seen:
            seen[id(one)] = one
            inner = _look_into(one)
            if isinstance(one, FunctionType):
                things.add(one.__code__)
                named.update(_list_names(one.__code__))
            elif inner is None:
                things.add((name, _identify(one)))
            waiting += inner or []
    return Reached(frozenset(things), frozenset(named))


def _look_into(thing: Any) -> list[tuple[str, Any]] | None:
    """What a thing holds, by names; None where it is a thing by itself."""
    if isinstance(thing, FunctionType):
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return [*read_closure(thing).items(), *(("default", value) for value in defaults)]
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
        return thing.shape, str(thing.dtype), hashlib.sha256(np.ascontiguousarray(thing)).digest()
    return id(thing)


def _list_names(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function's code, also in functions inside it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _list_names(value)
