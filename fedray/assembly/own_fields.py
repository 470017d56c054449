"""Fields of a user's own method: what is no number, no function or no part of the kind that is needed is one line.

Example:
    >>> require_function("method mine", "sizes", lambda: 3, "plan")
    Traceback (most recent call last):
    fedray.core.errors.BadInput: method mine: sizes does not take (plan): give a function (plan)
"""

from __future__ import annotations

from typing import Any, get_args

import torch

from fedray.core.errors import BadInput
from fedray.core.local import RateKind, RateSchedule
from fedray.own_code.user_code import explain_uncallable, name_type


def require(where: str, part: str, value: Any, kind: type) -> None:
    """Refuses a field of another type."""
    if not isinstance(value, kind):
        raise BadInput(f"{where}: {part} is {name_type(value)}: give a {kind.__name__}")


def require_function(where: str, part: str, value: Any, arguments: str) -> None:
    """Refuses a field that cannot be called with some arguments, such as "state, stats, t"."""
    wrong = explain_uncallable(value, arguments)
    if wrong is not None:
        raise BadInput(f"{where}: {part} {wrong}: give a function ({arguments})")


def require_number(where: str, part: str, value: Any, *, least: float = 0, whole: bool = False) -> None:
    """Refuses a field that is no finite number of at least `least`."""
    kinds = int if whole else int | float
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not fits or not bool(torch.isfinite(torch.tensor(float(value)))) or value < least:
        raise BadInput(f"{where}: {part} = {value!r}: give a {'whole ' if whole else ''}number of at least {least:g}")


def check_course(where: str, rule: Any) -> None:
    """A course of the learning rate that is known, has its length, and turns no step around."""
    require(where, "local.schedule", rule, RateSchedule)
    kinds = get_args(RateKind)
    if rule.kind not in kinds:
        raise BadInput(f"{where}: local.schedule.kind = {rule.kind!r}: choose {', '.join(kinds)}")
    if rule.kind in ("cosine", "linear"):
        require_number(where, "local.schedule.rounds", rule.rounds, least=1, whole=True)
    for name in ("floor", "gamma"):
        require_number(where, f"local.schedule.{name}", getattr(rule, name))
    require_number(where, "local.schedule.warmup", rule.warmup, whole=True)
    if not isinstance(rule.at, tuple | list):
        raise BadInput(f"{where}: local.schedule.at is {name_type(rule.at)}: give a tuple of rounds")
    for number in rule.at:
        require_number(where, "local.schedule.at", number, whole=True)
