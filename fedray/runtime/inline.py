"""The runtime without Ray: the same code in this process, the same bits. For tests, debugging and small studies."""

from __future__ import annotations

from torch import Tensor

from fedray.core.method import JobRows, Phase
from fedray.core.types import SizedPlan, State, Stats
from fedray.evaluation.clients import known_clients
from fedray.runtime.stacking import make_worker
from fedray.simulation.study import Study


class Inline:
    """One host, called directly."""

    def __init__(self, study: Study, device: str = "cpu", threads: int = 1) -> None:
        self.host = make_worker(study, device, threads)

    def train(self, t: int, jobs: SizedPlan, state: State, phase: Phase) -> tuple[Stats, JobRows]:
        return self.host.train(t, jobs, state, phase)

    def outputs(
        self, state: State, split: str, models: int, worlds: int | None = None
    ) -> dict[tuple[int, int], Tensor]:
        """Raw outputs `[K, n, C]` by piece: (world, first row). worlds: of the first ones alone, as below."""
        return {
            (world, first): self.host.evaluate(state, split, world, first, models)
            for world, first in self.host.pieces(state, split, worlds)
        }

    def losses(self, state: State, models: int, worlds: int | None = None) -> dict[tuple[int, int], Tensor]:
        """Mean training loss `[K, n]` by piece: (world, first client)."""
        return {key: self.host.losses(state, *key, models) for key in self.host.client_pieces(worlds)}

    def uncertainty(self, state: State, models: int, worlds: int | None = None) -> dict[tuple[int, int], Tensor]:
        """Mean knowledge uncertainty of the ensemble on each client's data, `[1, n]` by piece."""
        return {key: self.host.uncertainty(state, *key, models) for key in self.host.client_pieces(worlds)}

    def known(self, state: State) -> dict[tuple[int, int], Tensor]:
        """Accuracy of known clients with models of their own, by (world, client)."""
        return self.host.known(state, known_clients(self.host.study))

    def gather(self, state: State) -> State:
        """Every model is here already."""
        return state

    def private(self) -> dict[str, Tensor]:
        """Private client state, for the checkpoint."""
        return self.host.store.state()

    def restore(self, private: dict[str, Tensor]) -> None:
        """Takes private client state from a checkpoint."""
        self.host.store.restore(private)

    def close(self) -> None:
        """Nothing to release."""
