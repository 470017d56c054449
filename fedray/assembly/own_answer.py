"""The rule by which a user's own method joins what its models say, with a check of what it returns.

Example:
    >>> check_joined_answer(np.array([[0.5, 0.6]]), np.zeros((3, 1, 2)))
    'probabilities that sum to 1.1 in a row: divide them by their sum over the classes'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.method import Answer, Combine
from fedray.core.types import FloatArray, State
from fedray.own_code.user_code import blame_user_code, name_type


def guard_combine(answer: Callable[[State], Answer], where: str) -> Callable[[State], Answer]:
    """An `answer` whose rule says in one line that it raised, or returned what is no answer.

    Args:
        answer: Of the method; it is checked already.
        where: How messages call the method.
    """

    def call(*arguments: State) -> Answer:
        found = answer(*arguments)
        return found if found.combine is None else found._replace(combine=_guard(found.combine, where))

    return call


def check_joined_answer(found: Any, members: FloatArray) -> str | None:
    """What is wrong with what a rule has made of the members' probabilities `[A, n, C]`; None: nothing."""
    if not isinstance(found, np.ndarray) or found.shape != members.shape[1:]:
        kind = f"shape {list(found.shape)}" if isinstance(found, np.ndarray) else name_type(found)
        return f"{kind}: return an array of probabilities, {list(members.shape[1:])}"
    if not np.isfinite(found).all() or (found < 0).any():
        return "probabilities that are negative, NaN or infinite: look for a row that no model answers"
    total = found.sum(axis=1)
    if len(total) and np.abs(total - 1).max() > 1e-5:
        worst = total[np.abs(total - 1).argmax()]
        return f"probabilities that sum to {worst:.4g} in a row: divide them by their sum over the classes"
    return None


def _guard(combine: Combine, where: str) -> Combine:
    def call(world: int, members: FloatArray) -> FloatArray:
        with blame_user_code(f"{where}: combine"):
            found = combine(world, members)
        if np.isnan(members).any():  # of a diverged model
            return found
        wrong = check_joined_answer(found, members)
        if wrong is not None:
            raise BadInput(f"{where}: combine returned {wrong}")
        return found

    return call
