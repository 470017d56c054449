"""Checks of the curvature that a user's own method asks its clients for, before anything trains.

Example:
    >>> from types import SimpleNamespace
    >>> asked = SimpleNamespace(curvature=Curvature(), local=SimpleNamespace(correction=None), walk=None, up_vectors=0)
    >>> check_curvature(asked, "method mine")
    Traceback (most recent call last):
    fedray.core.errors.BadInput: method mine: curvature is sent, but up_vectors = 0: set it to 1, so that it is counted
"""

from __future__ import annotations

from fedray.core.errors import BadInput
from fedray.core.local import Curvature
from fedray.core.method import Phase
from fedray.own_code.user_code import name_type


def check_curvature(phase: Phase, where: str) -> None:
    """Refuses what clients could not measure, or would send uncounted or unread; None is nothing.

    Args:
        phase: Of the user's own method.
        where: How messages call the method.

    Raises:
        BadInput: One line.
    """
    how = phase.curvature
    if how is None:
        return
    if not isinstance(how, Curvature):
        raise BadInput(f"{where}: curvature is {name_type(how)}: give a Curvature")
    if how.kind not in ("model", "empirical"):
        raise BadInput(f"{where}: curvature.kind = {how.kind!r}: choose model or empirical")
    if how.rows is not None and (not isinstance(how.rows, int) or isinstance(how.rows, bool) or how.rows < 1):
        raise BadInput(f"{where}: curvature.rows = {how.rows!r}: give a whole number of at least 1, or None")
    if phase.local.correction is not None:
        raise BadInput(f"{where}: curvature and local.correction are both sent beside the delta: leave one of them out")
    if phase.walk is not None:
        raise BadInput(f"{where}: curvature has no server that reads it, because models walk: leave it out")
    if phase.up_vectors < 1:
        raise BadInput(
            f"{where}: curvature is sent, but up_vectors = {phase.up_vectors}: set it to 1, so that it is counted"
        )
