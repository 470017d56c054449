"""What every method is given: the pieces a scenario decides, already built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedray.compress import dense
from fedray.core import Clients, Compress, Layout, Local, Schedule, Server
from fedray.schedule import KINDS, Participation, schedule
from fedray.server import Rows, Weighting, by_tier, mean, paper_eq2


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
    compress: Compress | None = None  # None: dense
    participants: int = 1  # clients of a round, at most
    is_linear: bool = False  # the network is one linear layer
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state_rows(self) -> Rows:
        """Where the rows of the state are."""
        return Rows(len(self.seeds), self.models)

    def compressed(self) -> Compress:
        """The scenario's compression."""
        return dense(self.layout) if self.compress is None else self.compress

    def server(self) -> Server:
        """The scenario's way to merge uploads: `server.coefficients`."""
        rows, tiers = self.state_rows, self.clients.tiers
        if self.coefficients == "equal_groups":
            return by_tier(rows, len(tiers), self.weighting)
        if self.coefficients == "paper_eq2":
            return paper_eq2(rows, tiers)
        return mean(rows, self.weighting)

    def schedule(self) -> Schedule:
        """The scenario's schedule over this setting's models."""
        assign = KINDS[self.kind](self.models, self.rows)
        return schedule(self.clients, self.models, self.seeds, self.participation, assign)
