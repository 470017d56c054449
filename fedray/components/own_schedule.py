"""A user's own kind of schedule, with a check of each round's assignments: a wrong one is one line.

Example:
    >>> def first_model(models, rows):
    ...     return lambda now, drawn, m, state: (np.arange(len(drawn.client)), np.zeros(len(drawn.client), int))
    >>> assign = guard_schedule(first_model)(3, "client")
    >>> assign(WorldRound(0, 0, 0), Drawn(np.arange(2), np.arange(2)), np.ones(2, int), None)[1].tolist()
    [0, 0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedray.components.schedule import Assignment, Drawn, WorldRound
from fedray.core.errors import BadInput, warn_user
from fedray.core.types import IntArray, State
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import blame_user_code, name_type


def guard_schedule(function: Callable[[int, str], Any], where: str = "") -> Callable[[int, str], Assignment]:
    """A kind of schedule of the user's, (K, what a row is) -> assignment, that says in one line what is wrong.

    Args:
        function: The user's.
        where: What messages call it; empty: the kind of schedule that a scenario names.
    """
    told: list[bool] = []
    where = where or f"schedule.kind = {name_callable(function)}"

    def make(models: int, rows: str) -> Assignment:
        with blame_user_code(where):
            assign = function(models, rows)
        if not callable(assign):
            raise BadInput(f"{where}: it returned {name_type(assign)}: return a function of (round, drawn, m, state)")

        def checked(now: WorldRound, drawn: Drawn, m: IntArray, state: State | None) -> tuple[IntArray, IntArray]:
            with blame_user_code(where):
                found = assign(now, drawn, m, state)
            wrong = _find_wrong(found, len(drawn.client), models)
            if wrong:
                raise BadInput(f"{where}: its assignment returned {wrong}")
            who, model = (np.asarray(part, dtype=np.int64) for part in found)
            over = np.flatnonzero(np.bincount(who, minlength=len(m)) > m)
            if len(over) and not told:
                told.append(True)
                warn_user(_explain_excess(where, int(drawn.client[over[0]]), int((who == over[0]).sum()), m[over[0]]))
            return who, model

        return checked

    return make


def _explain_excess(where: str, client: int, trained: int, most: int) -> str:
    """That a client trains more models than its tier says that its devices do."""
    return (
        f"{where}: client {client} trains {trained} models in a round, but models_per_round of its tier is {most}: "
        "raise clients.tiers.*.models_per_round, or give a participant no more models than m says"
    )


def _find_wrong(found: Any, participants: int, models: int) -> str | None:
    """What is wrong with an assignment."""
    if not isinstance(found, tuple) or len(found) != 2:
        return f"{name_type(found)}: return a pair, the participant [J] and the model [J] of each job"
    for part, most, what in zip(found, (participants, models), ("participant", "model"), strict=True):
        array = np.asarray(part)
        if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            return f"{what}s of type {array.dtype} and shape {list(array.shape)}: give whole numbers, [J]"
        if len(array) and (array.min() < 0 or array.max() >= most):
            return f"{what} {array.min() if array.min() < 0 else array.max()}: there are {what}s 0 to {most - 1}"
    if len(found[0]) != len(found[1]):
        return f"{len(found[0])} participants, but {len(found[1])} models: give one of each for a job"
    if len(np.unique(np.stack(found), axis=1).T) < len(found[0]):
        return "a job twice: a participant trains a model once in a round"
    return None
