"""Stores the private vectors of clients, one row for each (vector name, world, client, model), on the client's worker.

SCAFFOLD's control variates, FedDyn's corrections, the residuals of error feedback, and the models of personal methods
are private vectors: they never leave the client. A row that was never written is zero. All rows can be saved and
restored. The saved form does not depend on how clients were assigned to processes; a run can therefore resume on
another cluster.

Example:
    >>> import numpy as np, torch
    >>> from fedray.core.types import Plan
    >>> jobs = Plan(client=np.array([4, 7]), model=np.array([0, 0]), world=np.array([0, 0]))
    >>> private = Private(d=2, dtype=torch.float32)
    >>> private.write("residual", jobs.take(slice(1, 2)), torch.ones(1, 2))
    >>> private.read("residual", jobs).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core.types import IntArray, Plan

RowKey = tuple[int, int, int]  # (world, client, model)


class Private:
    """The private vectors of the clients of one worker, one row for each client and model."""

    def __init__(self, d: int, dtype: torch.dtype) -> None:
        self._zero = torch.zeros(d, dtype=dtype)
        self._rows: dict[str, dict[RowKey, Tensor]] = {}

    def read(self, name: str, plan: Plan) -> Tensor:
        """Returns the rows of a plan's jobs, `[J, d]`."""
        rows = self._rows.get(name, {})
        return torch.stack([rows.get(key, self._zero) for key in _row_keys(plan)])

    def write(self, name: str, plan: Plan, values: Tensor) -> None:
        """Replaces the rows of a plan's jobs by `values` `[J, d]`."""
        rows = self._rows.setdefault(name, {})
        for key, value in zip(_row_keys(plan), values, strict=True):
            rows[key] = value.clone()

    def rows_or(self, name: str, plan: Plan, default: Tensor) -> Tensor:
        """Returns the rows of a plan's jobs `[J, d]`; a row that was never written is taken from `default`."""
        has = torch.tensor(self.has(name, plan), device=default.device)[:, None]
        return torch.where(has, self.read(name, plan).to(default), default)

    def has(self, name: str, plan: Plan) -> list[bool]:
        """Returns for each job whether its row was written before, `[J]`."""
        rows = self._rows.get(name, {})
        return [key in rows for key in _row_keys(plan)]

    def state(self) -> dict[str, Tensor]:
        """Returns all rows: for each name, `NAME/keys` `[n, 3]` int64 and `NAME/rows` `[n, d]`, sorted by key."""
        out = {}
        for name, rows in self._rows.items():
            if rows:
                out[f"{name}/keys"] = torch.tensor(sorted(rows), dtype=torch.int64)
                out[f"{name}/rows"] = torch.stack([rows[key] for key in sorted(rows)])
        return out

    def restore(self, state: dict[str, Tensor]) -> None:
        """Replaces all rows by the rows of a saved state."""
        self._rows = {}
        for name in _vector_names(state):
            keys = [(world, client, model) for world, client, model in state[f"{name}/keys"].tolist()]
            self._rows[name] = dict(zip(keys, state[f"{name}/rows"].clone(), strict=True))


def _row_keys(plan: Plan) -> list[RowKey]:
    return list(zip(plan.world.tolist(), plan.client.tolist(), plan.model.tolist(), strict=True))


def _vector_names(*states: dict[str, Tensor]) -> list[str]:
    """Returns names of the vectors in some saved states, sorted."""
    return sorted({key.rsplit("/", 1)[0] for state in states for key in state})


def keep_vectors(state: dict[str, Tensor], names: Sequence[str] | None) -> dict[str, Tensor]:
    """Returns the vectors of a saved state whose name is one of `names`; None: all vectors."""
    return state if names is None else {key: rows for key, rows in state.items() if key.rsplit("/", 1)[0] in names}


def merge_private(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Joins the saved states of several workers, sorted by key. Which worker had a client makes no difference."""
    out = {}
    for name in _vector_names(*parts):
        with_name = [part for part in parts if f"{name}/keys" in part]
        keys = torch.cat([part[f"{name}/keys"] for part in with_name]).numpy()
        order = torch.from_numpy(np.lexsort(keys.T[::-1]))
        out[f"{name}/keys"] = torch.from_numpy(keys)[order]
        out[f"{name}/rows"] = torch.cat([part[f"{name}/rows"] for part in with_name])[order]
    return out


def deal_private(
    state: dict[str, Tensor], worker_of: Callable[[IntArray], IntArray], workers: int
) -> list[dict[str, NDArray[Any]]]:
    """Splits a saved state by worker: the inverse of `merge_private`.

    Args:
        state: A saved state: `NAME/keys` `[n, 3]` and `NAME/rows` `[n, d]` for each name.
        worker_of: A function: clients `[n]` -> the workers `[n]` on which these clients live.
        workers: Number of workers.

    Returns:
        The part of each worker, as NumPy arrays.
    """
    out: list[dict[str, NDArray[Any]]] = [{} for _ in range(workers)]
    for name in _vector_names(state):
        worker = torch.from_numpy(worker_of(state[f"{name}/keys"][:, 1].numpy()))
        for w, part in enumerate(out):
            for key in (f"{name}/keys", f"{name}/rows"):
                part[key] = state[key][worker == w].numpy()
    return out
