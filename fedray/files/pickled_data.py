r"""Reads a pickle of plain data without unpickling it, so that nothing in it can run.

The instructions of the file are listed by `pickletools`, and only those that make numbers, text, lists, tuples and
dicts are followed; any other one, such as a class, is refused.

Example:
    >>> read_pickled_data(b"\x80\x03}q\x00K\x01X\x01\x00\x00\x00aq\x01s.")
    {1: 'a'}
    >>> read_pickled_data(b"cos\nsystem\n(S'ls'\ntR.")
    Traceback (most recent call last):
    ValueError: it holds GLOBAL 'os system', which is no plain data
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

MOST_STEPS = 200_000_000
_VALUES = {  # instructions that carry their value
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING",
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Any] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_GATHER: dict[str, Callable[[list[Any]], Any]] = {  # instructions that make one object of all that is above a mark
    "DICT": lambda values: dict(zip(values[::2], values[1::2])),
    "LIST": list,
    "TUPLE": tuple,
}


def read_pickled_data(content: bytes) -> Any:
    """The plain data of a pickle.

    Raises:
        ValueError: It holds anything else, or is damaged.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for step, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        name = instruction.name
        if step > MOST_STEPS:
            raise ValueError("it is too long")
        if name == "STOP":
            break
        try:
            _follow(name, argument, stack, marks, memo)
        except (IndexError, KeyError, TypeError, AttributeError):
            raise ValueError(f"it is damaged at {name}") from None
    if len(stack) != 1:
        raise ValueError("it is no single object")
    return stack[0]


def _follow(name: str, argument: Any, stack: list[Any], marks: list[int], memo: dict[int, Any]) -> None:
    """Follows one instruction."""
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name == "MARK":
        marks.append(len(stack))
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in _PUT:
        memo[int(argument)] = stack[-1]
    elif name in _GET:
        stack.append(memo[int(argument)])
    elif name in _TUPLES:
        stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
    elif name in ("SETITEM", "APPEND"):
        _fill(stack, len(stack) - (2 if name == "SETITEM" else 1))
    elif name in ("SETITEMS", "APPENDS"):
        _fill(stack, marks.pop())
    elif name in _GATHER:
        start = marks.pop()
        stack[start:] = [_GATHER[name](stack[start:])]
    elif name not in ("PROTO", "FRAME"):
        raise ValueError(f"it holds {name}{'' if argument is None else f' {argument!r}'}, which is no plain data")


def _fill(stack: list[Any], start: int) -> None:
    """Puts the values behind a place of the stack into the dict or the list below them."""
    values, below = stack[start:], stack[start - 1]
    del stack[start:]
    if isinstance(below, dict):
        below.update(zip(values[::2], values[1::2], strict=True))
    elif isinstance(below, list):
        below.extend(values)
    else:
        raise TypeError
