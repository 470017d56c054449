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

from fedray.core.local import SENT
from fedray.core.method import JobRows
from fedray.core.types import IntArray, SizedPlan, State, Stats
from fedray.data.stored import share_array

EVERY_ROW = slice(None)
Piece = tuple[int, int]  # a piece of an evaluation: a world, and the first row or client of the piece


class Page(NamedTuple):
    """Rows of a state that travel together.

    Attributes:
        models: Their numbers, `[m, d]`.
        counters: Their counters, `[m, c]`.
        extra: Further arrays of the state that are broadcast, by name, `[m, ...]`.
    """

    models: Any
    counters: Any
    extra: dict[str, Any]


class Order(NamedTuple):
    """What a client actor is asked to train.

    Attributes:
        exchange: Number of the exchange to which it belongs.
        t: The round, from 0.
        jobs: Its jobs; None: only its sums are wanted.
        held: Which rows of the state it gets, ascending; None: all of them.
        kept: Chunks of this exchange whose sums it has.
        sends: Whether it sends its sums.
    """

    exchange: int
    t: int
    jobs: SizedPlan | None
    held: IntArray | None
    kept: int
    sends: bool


class Reply(NamedTuple):
    """The answer of an actor.

    Attributes:
        stats: Sums of its uploads as `thin` makes them; None where it keeps them.
        rows: One row for each of its jobs; None without jobs.
        stored: Where the sums are that stay on its node; None where there are none.
    """

    stats: Stats | None
    rows: JobRows | None
    stored: Any = None


def to_page(state: State, rows: slice = EVERY_ROW) -> Page:
    """Packs rows of a state without copying; of its extra tensors only those called `broadcast/...` are sent."""
    extra = {name: value[rows].numpy() for name, value in state.extra.items() if name.startswith(SENT)}
    return Page(state.models[rows].numpy(), state.counters[rows].numpy(), extra)


def to_state(*pages: Page) -> State:
    """Unpacks rows. The tensors of one page share its read-only memory and must not be written; others are joined."""
    if len(pages) == 1:
        models, counters, extra = pages[0]
    else:
        models, counters = (np.concatenate(parts) for parts in list(zip(*pages, strict=True))[:2])
        extra = {name: np.concatenate([page.extra[name] for page in pages]) for name in pages[0].extra}
    return State(share_array(models), share_array(counters), {name: share_array(one) for name, one in extra.items()})


def page_bytes(page: Page) -> int:
    """Bytes of the arrays of a page.

    Example:
        >>> page_bytes(Page(np.zeros((3, 100), np.float32), np.zeros((3, 0)), {}))
        1200
    """
    return int(page.models.nbytes + page.counters.nbytes + sum(value.nbytes for value in page.extra.values()))


def in_order(parts: Sequence[IntArray], rows: Sequence[JobRows]) -> JobRows:
    """Joins the rows of all actors in the order of the plan; `parts` are the places of each actor's jobs in it."""
    if not parts:
        return JobRows(np.zeros(0))
    order = np.argsort(np.concatenate(parts), kind="stable")
    loss = np.concatenate([each.loss for each in rows])[order]
    errors = {int(part[j]): text for part, each in zip(parts, rows, strict=True) for j, text in each.errors.items()}
    return JobRows(loss, errors)
