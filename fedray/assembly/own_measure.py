"""Checks of what a user's own method has its clients measure, before anything trains.

Example:
    >>> from types import SimpleNamespace
    >>> alone = {"local": SimpleNamespace(correction=None), "walk": None, "slices": None}
    >>> check_measure(SimpleNamespace(measure=Curvature(), up_vectors=0, **alone), "method mine")
    Traceback (most recent call last):
    fedray.core.errors.BadInput: method mine: curvature is sent, but up_vectors = 0: set it to 1, so that it is counted
"""

from __future__ import annotations

from fedray.assembly.own_fields import require_function, require_number
from fedray.core.errors import BadInput
from fedray.core.measured import ClientSums, Curvature
from fedray.core.method import Phase
from fedray.own_code.user_code import name_type


def check_measure(phase: Phase, where: str) -> None:
    """Refuses what clients could not measure, or would send uncounted or unread; None is nothing.

    Args:
        phase: Of the user's own method.
        where: How messages call the method.

    Raises:
        BadInput: One line.
    """
    how = phase.measure
    if how is None:
        return
    if isinstance(how, Curvature):
        _check_curvature(phase, how, where)
    elif isinstance(how, ClientSums):
        require_function(where, "measure.function", how.function, "seen")
        require_number(where, "measure.numbers", how.numbers, least=1, whole=True)
    else:
        raise BadInput(f"{where}: measure is {name_type(how)}: give a Curvature or ClientSums")
    if phase.local.correction is not None:
        raise BadInput(f"{where}: measure and local.correction are both sent beside the delta: leave one of them out")
    if phase.walk is not None:
        raise BadInput(f"{where}: measure has no server that reads it, because models walk: leave it out")
    if phase.slices is not None:
        raise BadInput(f"{where}: measure reads whole networks, but tiers train slices: leave it out")


def _check_curvature(phase: Phase, how: Curvature, where: str) -> None:
    if how.kind not in ("model", "empirical"):
        raise BadInput(f"{where}: measure.kind = {how.kind!r}: choose model or empirical")
    if how.rows is not None and (not isinstance(how.rows, int) or isinstance(how.rows, bool) or how.rows < 1):
        raise BadInput(f"{where}: measure.rows = {how.rows!r}: give a whole number of at least 1, or None")
    if phase.up_vectors < 1:
        raise BadInput(
            f"{where}: curvature is sent, but up_vectors = {phase.up_vectors}: set it to 1, so that it is counted"
        )
