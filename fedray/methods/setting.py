"""What every method is given: the pieces a scenario decides, already built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedray.components import robust as centres
from fedray.components.aggregation import Rows, Weighting, by_tier, mean, paper_eq2
from fedray.components.compression import dense
from fedray.components.schedule import KINDS, Participation, schedule
from fedray.components.server_optimizer import Kind, with_optimizer
from fedray.core.method import Schedule
from fedray.core.rng import Keys
from fedray.core.types import Clients, Compress, Layout, Local, Server, Walk
from fedray.models.stacking import Stack


@dataclass(frozen=True)
class Robust:
    """kind: median, trimmed_mean, krum, multi_krum or none; trim: b of the trimmed mean; byzantine: f of Krum."""

    kind: str = "none"
    trim: int = 1
    byzantine: int = 1


@dataclass(frozen=True)
class Optimizer:
    """kind: none, momentum, adam or yogi; lr; momentum: beta, or beta_1."""

    kind: str = "none"
    lr: float = 1.0
    momentum: float = 0.9


@dataclass(frozen=True)
class Setting:
    """models: K; seeds: one a world; kind, rows: of the schedule; options: the method's own."""

    models: int
    layout: Layout
    clients: Clients
    seeds: tuple[int, ...]
    participation: Participation
    kind: str
    rows: str
    local: Local
    weighting: Weighting = "uniform"
    coefficients: str = "fedavg"
    robust: Robust = Robust()
    optimizer: Optimizer = Optimizer()
    hold_out: bool = False  # clients withhold rows for validation
    compressor: Callable[[Layout], Compress] = dense
    participants: int = 1  # clients of a round, at most
    features: Callable[[Tensor], Tensor] | None = None  # `[n, p]`, where a closed form exists
    distil: Callable[[int, Tensor, Keys], Tensor] | None = None  # (world, teachers `[S, d]`, address) -> student `[d]`
    walk: Walk | None = None  # where the models are, if there is no server
    stack: Stack | None = None  # of stacking: the base networks and the meta model
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state_rows(self) -> Rows:
        """Where the rows of the state are."""
        return Rows(len(self.seeds), self.models)

    def compressed(self) -> Compress:
        """The scenario's compression."""
        return self.compressor(self.layout)

    def server(self) -> Server:
        """The scenario's way to merge uploads, and its server optimiser."""
        base, keys = self.merging(), self.optimizer
        if keys.kind == "none":
            return base
        kind: Kind = keys.kind  # type: ignore[assignment]
        return with_optimizer(base, self.state_rows, self.layout.trainable, kind, keys.lr, keys.momentum)

    def merging(self) -> Server:
        """The scenario's way to merge uploads: `server.robust`, else `server.coefficients`."""
        rows, tiers = self.state_rows, self.clients.tiers
        if self.robust.kind != "none":
            return centres.robust_server(rows, self._centre())
        if self.coefficients == "equal_groups":
            return by_tier(rows, len(tiers), self.weighting)
        if self.coefficients == "paper_eq2":
            return paper_eq2(rows, tiers)
        return mean(rows, self.weighting)

    def _centre(self) -> centres.Centre:
        keys, p = self.robust, self.layout.trainable
        known = {
            "median": centres.median,
            "trimmed_mean": centres.trimmed_mean(keys.trim),
            "krum": centres.krum(keys.byzantine, p),
            "multi_krum": centres.krum(keys.byzantine, p, multi=True),
        }
        return known[keys.kind]

    def schedule(self) -> Schedule:
        """The scenario's schedule over this setting's models."""
        assign = KINDS[self.kind](self.models, self.rows)
        return schedule(self.clients, self.models, self.seeds, self.participation, assign)
