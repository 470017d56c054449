"""Jobs of asynchronous training: a row each when they start, columns when they have ended.

Example:
    >>> rows = [StartedJob(client=3, model=0, turn=1, version=2, born=2, start=0.5, arrival=1.5, status=0)]
    >>> to_columns(rows)["arrival"].tolist()
    [1.5]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from fedray.core.types import FloatArray, IntArray


class StartedJob(NamedTuple):
    """What is known of a job when it starts; `FlownJobs` says what the words mean."""

    client: int
    model: int
    turn: int
    version: int
    born: int
    start: float
    arrival: float
    status: int


class FlownJobs(NamedTuple):
    """Jobs that ended, `[J]` each: step by step, model by model, in the order of their arrival.

    Attributes:
        client: Their clients.
        model: Their models.
        turn: How many turns the client had before: in the address of the job it stands for the round.
        version: How many steps its model had taken when it started.
        born: After how many server steps that version existed.
        start: Virtual seconds at which it started.
        arrival: Virtual seconds at which it arrived, or would have.
        status: How it ended: an index into `clock.STATUS`.
        step: The server step that uses it; of a job without an upload, the first one after its end.
        staleness: How many steps its model took between its start and that step; -1 without an upload.
        copy: How many uploads of its client that step has of the same model before it.
    """

    client: IntArray
    model: IntArray
    turn: IntArray
    version: IntArray
    born: IntArray
    start: FloatArray
    arrival: FloatArray
    status: IntArray
    step: IntArray
    staleness: IntArray
    copy: IntArray


def to_columns(started: Sequence[StartedJob]) -> dict[str, Any]:
    """Returns the columns of jobs, `[J]` each, by name."""
    names = StartedJob._fields
    rows = np.fromiter(chain.from_iterable(started), np.float64, len(started) * len(names)).reshape(-1, len(names))
    return {name: rows[:, i].astype(float if name in ("start", "arrival") else int) for i, name in enumerate(names)}


def count_earlier(who: IntArray) -> IntArray:
    """Counts for each entry the equal entries before it, `[J]`.

    Example:
        >>> count_earlier(np.array([4, 7, 4, 4])).tolist()
        [0, 0, 1, 2]
    """
    order = np.argsort(who, kind="stable")
    first = np.r_[True, who[order][1:] != who[order][:-1]][: len(who)]
    began = np.maximum.accumulate(np.where(first, np.arange(len(who)), 0))
    rank = np.empty_like(who)
    rank[order] = np.arange(len(who)) - began
    return rank
