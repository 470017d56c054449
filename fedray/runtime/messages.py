"""Messages between the coordinator and the client actors: NumPy arrays in plain tuples, no pickled code, no tensors.

Example:
    >>> rows = [JobRows(np.array([0.1, 0.2])), JobRows(np.array([0.3]), {0: "ValueError: bad row"})]
    >>> in_order([np.array([0, 2]), np.array([1])], rows)
    JobRows(loss=array([0.1, 0.3, 0.2]), errors={1: 'ValueError: bad row'})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedray.core.exact_sum import map_arrays
from fedray.core.method import JobRows
from fedray.core.types import IntArray, SizedPlan, State, Stats

Piece = tuple[int, int]  # a piece of an evaluation: a world, and the first row or client of the piece


class Round(NamedTuple):
    """The broadcast of a round.

    Attributes:
        t: The round, from 0.
        jobs: The jobs of each actor.
        models: Rows of the state, `[M, d]`.
        counters: Counters of the state, `[M, c]`.
        extra: Further arrays of the state that are broadcast, by name.
    """

    t: int
    jobs: tuple[SizedPlan, ...]
    models: Any
    counters: Any
    extra: dict[str, Any]


class Reply(NamedTuple):
    """The answer of an actor.

    Attributes:
        stats: Reduced statistics of its uploads; they hold NumPy arrays.
        rows: One row for each of its jobs.
    """

    stats: Stats
    rows: JobRows


def to_round(t: int, jobs: list[SizedPlan], state: State) -> Round:
    """Packs a broadcast without copying.

    Args:
        t: The round, from 0.
        jobs: The jobs of each actor.
        state: The server's state; of its extra tensors only those called `broadcast/...` are sent.
    """
    extra = {name: value.numpy() for name, value in state.extra.items() if name.startswith("broadcast/")}
    return Round(t, tuple(jobs), state.models.numpy(), state.counters.numpy(), extra)


def to_state(message: Round) -> State:
    """Unpacks the state. Its tensors share the read-only memory of the message and must not be written."""
    tensors = {name: _tensor(value) for name, value in message.extra.items()}
    return State(_tensor(message.models), _tensor(message.counters), tensors)


def to_reply(stats: Stats, rows: JobRows) -> Reply:
    """Packs an answer."""
    return Reply(map_arrays(stats, lambda tensor: tensor.numpy()), rows)


def from_reply(reply: Reply) -> tuple[Stats, JobRows]:
    """Unpacks an answer into new memory, because the channel that brought it is used again."""
    stats = map_arrays(reply.stats, lambda array: torch.from_numpy(np.array(array)))
    return stats, reply.rows._replace(loss=reply.rows.loss.copy())


def in_order(parts: Sequence[IntArray], rows: Sequence[JobRows]) -> JobRows:
    """Joins the rows of all actors in the order of the plan; `parts` are the places of each actor's jobs in it."""
    order = np.argsort(np.concatenate(parts), kind="stable")
    loss = np.concatenate([each.loss for each in rows])[order]
    errors = {int(part[j]): text for part, each in zip(parts, rows, strict=True) for j, text in each.errors.items()}
    return JobRows(loss, errors)


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
