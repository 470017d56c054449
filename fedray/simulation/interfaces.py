"""What the round loop needs from outside: a runtime, a recorder, and where a run stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedray.core.method import JobRows, Phase
from fedray.core.types import FloatArray, IntArray, Plan, SizedPlan, State, Stats


class Runtime(Protocol):
    """Where jobs run. Both runtimes give the same bits."""

    def train(self, t: int, jobs: SizedPlan, state: State, phase: Phase) -> tuple[Stats, JobRows]: ...

    def outputs(
        self, state: State, split: str, models: int, worlds: int | None = None
    ) -> dict[tuple[int, int], Tensor]: ...

    def losses(self, state: State, models: int, worlds: int | None = None) -> dict[tuple[int, int], Tensor]: ...

    def uncertainty(self, state: State, models: int, worlds: int | None = None) -> dict[tuple[int, int], Tensor]: ...

    def known(self, state: State) -> dict[tuple[int, int], Tensor]: ...

    def gather(self, state: State) -> State: ...

    def private(self) -> dict[str, Tensor]: ...

    def restore(self, private: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...


@dataclass
class Progress:
    """Where a run stands after `round` completed rounds: the server's state and the running totals per world."""

    round: int
    state: State
    up_bytes: IntArray
    down_bytes: IntArray
    sim_seconds: FloatArray
    wall_seconds: float = 0.0
    metrics: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0  # jobs that were left out because they failed


class Recorder(Protocol):
    """Where finished jobs and evaluated rounds go."""

    def jobs(self, round: int, plan: Plan, table: JobTable) -> None: ...

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None: ...

    def checkpoint(self, progress: Progress) -> None: ...


class JobTable(NamedTuple):
    """What `clients.parquet` keeps of a round, `[J]` each, in the order of the plan."""

    samples: IntArray
    steps: IntArray
    loss: FloatArray
    up_bytes: IntArray
    down_bytes: IntArray
    sim_seconds: FloatArray
    status: IntArray
    error: Any  # [J] traceback of a job that failed, or None
