"""Private vectors of clients: one row per (name, world, client, model), living where the client lives.

A row that was never written is zero. The whole store can be saved and restored; its form does not depend on how
clients were packed, so a run can resume on another cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core.types import IntArray, Plan

Key = tuple[int, int, int]


class Private:
    """The private rows of the clients of one host."""

    def __init__(self, d: int, dtype: torch.dtype) -> None:
        self._zero = torch.zeros(d, dtype=dtype)
        self._rows: dict[str, dict[Key, Tensor]] = {}

    def read(self, name: str, plan: Plan) -> Tensor:
        """Rows of a plan's jobs, `[J, d]`."""
        rows = self._rows.get(name, {})
        return torch.stack([rows.get(key, self._zero) for key in _keys(plan)])

    def write(self, name: str, plan: Plan, values: Tensor) -> None:
        """Replaces the rows of a plan's jobs."""
        rows = self._rows.setdefault(name, {})
        for key, value in zip(_keys(plan), values, strict=True):
            rows[key] = value.clone()

    def has(self, name: str, plan: Plan) -> list[bool]:
        """Which jobs' rows were written before."""
        rows = self._rows.get(name, {})
        return [key in rows for key in _keys(plan)]

    def state(self) -> dict[str, Tensor]:
        """Everything: `NAME/keys` `[n, 3]` int64 and `NAME/rows` `[n, d]`."""
        out = {}
        for name, rows in self._rows.items():
            if rows:
                out[f"{name}/keys"] = torch.tensor(sorted(rows), dtype=torch.int64)
                out[f"{name}/rows"] = torch.stack([rows[key] for key in sorted(rows)])
        return out

    def restore(self, state: dict[str, Tensor]) -> None:
        """Forgets everything and takes what `state` holds."""
        self._rows = {}
        for name in {key.rsplit("/", 1)[0] for key in state}:
            keys = [tuple(key) for key in state[f"{name}/keys"].tolist()]
            self._rows[name] = dict(zip(keys, state[f"{name}/rows"].clone(), strict=True))  # type: ignore[arg-type]


def _keys(plan: Plan) -> list[Key]:
    return list(zip(plan.world.tolist(), plan.client.tolist(), plan.model.tolist(), strict=True))


def merge_private(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The states of several hosts as one, sorted by key: the same for every packing."""
    out = {}
    for name in sorted({key.rsplit("/", 1)[0] for part in parts for key in part}):
        mine = [part for part in parts if f"{name}/keys" in part]
        keys = torch.cat([part[f"{name}/keys"] for part in mine]).numpy()
        order = torch.from_numpy(np.lexsort(keys.T[::-1]))
        out[f"{name}/keys"] = torch.from_numpy(keys)[order]
        out[f"{name}/rows"] = torch.cat([part[f"{name}/rows"] for part in mine])[order]
    return out


def deal_private(
    state: dict[str, Tensor], home: Callable[[IntArray], IntArray], hosts: int
) -> list[dict[str, NDArray[Any]]]:
    """The inverse of `merge_private`: what each host gets, as NumPy arrays; `home(clients [n])` are their hosts `[n]`."""
    out: list[dict[str, NDArray[Any]]] = [{} for _ in range(hosts)]
    for name in sorted({key.rsplit("/", 1)[0] for key in state}):
        at = torch.from_numpy(home(state[f"{name}/keys"][:, 1].numpy()))
        for host, mine in enumerate(out):
            for part in (f"{name}/keys", f"{name}/rows"):
                mine[part] = state[part][at == host].numpy()
    return out
