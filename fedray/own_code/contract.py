"""Holds every function of a user's own to its arguments and results, and to the same ones when it is asked again."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput, quote_value, suggest_nearest
from fedray.own_code.user_code import blame_user_code, explain_uncallable, name_type

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
    """Refuses a field of a dataclass or a named tuple that is no part, number or word of those its type hint says.

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
        elif get_args(hint)[:1] == (int,) and isinstance(value, tuple | list):
            for one in value:
                _check_number(where, f"{path}{name}", one, int, 0)
        else:
            parts = tuple(get_origin(kind) or kind for kind in kinds)
            if not any(part in (bool, str, Any) for part in parts) and not isinstance(value, parts):
                wanted = " or ".join(part.__name__ for part in parts)
                raise BadInput(f"{where}: {path}{name} is {name_type(value)}: give a {wanted}")


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


class RecordedOptions:
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

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return key in self.options

    def __iter__(self) -> Iterator[str]:
        self.asked.update(self.options)
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or a default."""
        self.asked.add(key)
        return self.options.get(key, default)

    def keys(self) -> Any:
        """All keys, which are then read."""
        return dict.fromkeys(self).keys()

    def values(self) -> Any:
        """All values, which are then read."""
        return [self.options[key] for key in self]

    def items(self) -> Any:
        """All pairs, which are then read."""
        return [(key, self.options[key]) for key in self]

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
