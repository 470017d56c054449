"""The columns of the tables of a run directory.

Example:
    >>> JOB_IDS["client"].needed, "loss" in JOB_NUMBERS
    (True, True)
"""

from __future__ import annotations

from typing import NamedTuple

MOST_MODELS, MOST_CLIENTS = 10**6, 10**9  # ids are below them
_COUNT = 2**53


class IdColumn(NamedTuple):
    """A column of whole numbers.

    Attributes:
        most: its values are 0 to `most`.
        needed: whether it must be there, without empty cells.
    """

    most: int
    needed: bool = True


WORLD_IDS = {"replicate": IdColumn(10**6), "fold": IdColumn(10**6), "round": IdColumn(10**8)}
JOB_IDS = {
    **WORLD_IDS,
    "client": IdColumn(MOST_CLIENTS - 1),
    "model": IdColumn(MOST_MODELS - 1),
    "up_bytes": IdColumn(_COUNT),
    "down_bytes": IdColumn(_COUNT),
    "samples": IdColumn(_COUNT, needed=False),
    "steps": IdColumn(_COUNT, needed=False),
}
JOB_NUMBERS, JOB_TEXTS = ("sim_seconds", "loss"), ("tier", "status", "error")
JOB_COLUMNS = (*JOB_IDS, *JOB_NUMBERS, *JOB_TEXTS)
ROUND_IDS = {
    **WORLD_IDS,
    "up_bytes": IdColumn(2**62, needed=False),
    "down_bytes": IdColumn(2**62, needed=False),
}
CLIENT_SCORE_IDS = {**WORLD_IDS, "client": JOB_IDS["client"], "samples": IdColumn(_COUNT)}
MEMBER_COLUMNS = ("member_accuracy", "member_rmse")
DRIFT_IDS = {**{key: WORLD_IDS[key] for key in ("replicate", "fold")}, "client": JOB_IDS["client"]}
