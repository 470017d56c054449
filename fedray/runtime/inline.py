"""The runtime without Ray: one worker in this process, with the same bits. For tests, debugging and small studies.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> from fedray.simulation.rounds import begin_progress
    >>> keys = {"data": {"name": "cubic"}, "clients": {"number": 2}, "method": {"models": 3}}
    >>> study = build_study(read_scenario(keys))
    >>> state = begin_progress(study, study.method.phase).state
    >>> Inline(study).losses(state, models=3)[0, 0].shape  # of 3 models on 2 clients
    torch.Size([3, 2])
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedray.core.client_state import keep_vectors
from fedray.core.method import JobRows, Phase
from fedray.core.types import FloatArray, IntArray, SizedPlan, State, Stats
from fedray.evaluation.answers import known_clients
from fedray.runtime import evaluation
from fedray.runtime.evaluation import score_own_sets
from fedray.runtime.stacking import make_worker
from fedray.simulation.study import Pieces, Study


class Inline:
    """A runtime of one worker that is called directly; its methods are those of `simulation.interfaces.Runtime`."""

    def __init__(self, study: Study, device: str = "cpu", threads: int = 1) -> None:
        self.worker = make_worker(study, device, threads)

    def train(self, t: int, jobs: SizedPlan, state: State, phase: Phase) -> tuple[Stats, JobRows]:
        """Trains the jobs of round t; see `Worker.train`."""
        return self.worker.train(t, jobs, state, phase)

    def outputs(self, state: State, split: str, models: int, worlds: int | None = None) -> Pieces:
        """Raw outputs `[K, n, C]` on a split by piece: (world, first row); of the first worlds only, or of all."""
        return self._evaluate(state, split, models, worlds)

    def losses(
        self, state: State, models: int, worlds: int | None = None, clients: Sequence[IntArray] | None = None
    ) -> Pieces:
        """Mean training loss `[K, c]` of known clients, or of some, by piece: (world, first client)."""
        return self._evaluate(state, evaluation.LOSSES, models, worlds, clients)

    def mixtures(self, state: State, models: int, clients: Sequence[IntArray]) -> Pieces:
        """Weights `[K, c]` over the models of some clients, fitted to their rows, by piece."""
        return self._evaluate(state, evaluation.MIXTURES, models, None, clients)

    def uncertainty(self, state: State, models: int) -> Pieces:
        """Mean total and knowledge uncertainty of the ensemble on the rows of known clients, `[2, c]`, by piece."""
        return self._evaluate(state, evaluation.UNCERTAINTY, models, None)

    def _evaluate(
        self, state: State, kind: str, models: int, worlds: int | None, clients: Sequence[IntArray] | None = None
    ) -> Pieces:
        pieces = evaluation.list_pieces(self.worker.study, kind, worlds, clients)
        return evaluation.evaluate_pieces(self.worker, state, kind, pieces, models, clients=clients)

    def score_known_clients(self, state: State) -> Pieces:
        """Accuracies or RMSEs `[2, P]` of known clients with models of their own, by (world, client)."""
        return evaluation.score_known_clients(self.worker, state, known_clients(self.worker.study))

    def score_own_sets(self, state: State, thresholds: FloatArray | None, split: str = "test") -> Pieces:
        """Conformal scores, or sets, of known clients with models of their own, by (world, client)."""
        return score_own_sets(self.worker, state, known_clients(self.worker.study), thresholds, split)

    def gather(self, state: State) -> State:
        """Returns the state as it is: all models are in this process."""
        return state

    def private(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Private vectors of the clients, for a checkpoint; all, or those of some names."""
        return keep_vectors(self.worker.store.state(), names)

    def restore(self, private: dict[str, Tensor]) -> None:
        """Replaces the private vectors of the clients by those of a checkpoint."""
        self.worker.store.restore(private)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""
