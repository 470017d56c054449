"""What every method is given: the pieces a scenario decides, already built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedray.core import Clients, Layout, Local, Schedule
from fedray.schedule import KINDS, Participation, schedule
from fedray.server import Rows, Weighting


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
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state_rows(self) -> Rows:
        """Where the rows of the state are."""
        return Rows(len(self.seeds), self.models)

    def schedule(self) -> Schedule:
        """The scenario's schedule over this setting's models."""
        assign = KINDS[self.kind](self.models, self.rows)
        return schedule(self.clients, self.models, self.seeds, self.participation, assign)
