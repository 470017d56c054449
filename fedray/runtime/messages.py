"""What travels between coordinator and client actors: NumPy arrays in plain tuples, no pickled code, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedray.core.exact_sum import map_arrays
from fedray.core.method import JobRows
from fedray.core.types import IntArray, SizedPlan, State, Stats

Piece = tuple[int, int]  # evaluation work: a world, and its first row or client


class Round(NamedTuple):
    """A round's broadcast. jobs: those of each actor; models `[M, d]`, counters `[M, c]`, extra arrays."""

    t: int
    jobs: tuple[SizedPlan, ...]
    models: Any
    counters: Any
    extra: dict[str, Any]


class Reply(NamedTuple):
    """An actor's answer: reduced statistics (NumPy inside) and one row a job."""

    stats: Stats
    rows: JobRows


def to_round(t: int, jobs: list[SizedPlan], state: State) -> Round:
    """Packs a broadcast, without copying."""
    extra = {name: value.numpy() for name, value in state.extra.items() if name.startswith("broadcast/")}
    return Round(t, tuple(jobs), state.models.numpy(), state.counters.numpy(), extra)


def to_state(message: Round) -> State:
    """Unpacks the state; tensors share the message's (read-only) memory and must not be written."""
    tensors = {name: _tensor(value) for name, value in message.extra.items()}
    return State(_tensor(message.models), _tensor(message.counters), tensors)


def to_reply(stats: Stats, rows: JobRows) -> Reply:
    """Packs an answer."""
    return Reply(map_arrays(stats, lambda tensor: tensor.numpy()), rows)


def from_reply(reply: Reply) -> tuple[Stats, JobRows]:
    """Unpacks an answer into memory of its own: the channel that brought it may be written again."""
    stats = map_arrays(reply.stats, lambda array: torch.from_numpy(np.array(array)))
    return stats, reply.rows._replace(loss=reply.rows.loss.copy())


def in_order(parts: Sequence[IntArray], rows: Sequence[JobRows]) -> JobRows:
    """The rows of all actors in the order of the plan; `parts` are the places of their jobs in it."""
    order = np.argsort(np.concatenate(parts), kind="stable")
    loss = np.concatenate([one.loss for one in rows])[order]
    failed = zip(parts, rows, strict=True)
    return JobRows(loss, {int(part[j]): text for part, one in failed for j, text in one.errors.items()})


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
