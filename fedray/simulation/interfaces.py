"""What the round loop needs from outside: a runtime, a recorder, and where a run stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedray.core.method import JobRows, Phase
from fedray.core.types import FloatArray, IntArray, Plan, SizedPlan, State, Stats

Pieces = dict[tuple[int, int], Tensor]  # results by piece of work: (world, first row or first client) -> tensor


class Runtime(Protocol):
    """Where jobs run and models are evaluated. All runtimes give the same bits.

    Evaluation is cut into pieces that do not depend on how clients were packed into processes. `worlds` restricts it to
    the first worlds; None means all of them.
    """

    def train(self, t: int, jobs: SizedPlan, state: State, phase: Phase) -> tuple[Stats, JobRows]:
        """Trains the jobs of one round.

        Args:
            t: The round, from 0.
            jobs: Clients, models and worlds of the jobs, their samples and their steps, `[J]` each.
            state: The state of the server before the round.
            phase: The training that the jobs belong to.

        Returns:
            The statistics of all uploads, added up, and one row a job in the order of `jobs`.
        """

    def outputs(self, state: State, split: str, models: int, worlds: int | None = None) -> Pieces:
        """Evaluates all models on test or held-out rows.

        Args:
            state: The models, `[worlds * K, d]`.
            split: "test" or "hold_out".
            models: K, models of each world.
            worlds: How many worlds are evaluated; None: all.

        Returns:
            Raw network outputs `[K, n, C]` by (world, first row of the piece).
        """

    def losses(
        self, state: State, models: int, worlds: int | None = None, clients: Sequence[IntArray] | None = None
    ) -> Pieces:
        """Evaluates all models on the training data of known clients.

        Args:
            state: The models, `[worlds * K, d]`.
            models: K, models of each world.
            worlds: How many worlds are evaluated; None: all.
            clients: The clients of each world, `[n]` each, instead of the known ones.

        Returns:
            Mean training loss `[K, n]` of each model on each client's data, by (world, first client of the piece, or
            its place in `clients`).
        """

    def mixtures(self, state: State, models: int, clients: Sequence[IntArray]) -> Pieces:
        """Fits the weights over the models of clients whose weights nobody knows (FedEM).

        Args:
            state: The models, `[worlds * K, d]`, which stay as they are.
            models: K, models of each world.
            clients: The clients of each world, `[n]` each.

        Returns:
            The weights `[K, n]`, by (world, first place in `clients` of the piece).
        """

    def uncertainty(self, state: State, models: int) -> Pieces:
        """Measures how far the models of an ensemble disagree on the training data of known clients.

        Args:
            state: The models, `[worlds * K, d]`.
            models: K, models of each world.

        Returns:
            Mean total and knowledge uncertainty `[2, n]` in nats on each client's data
            (`fedray.evaluation.drift.sample_uncertainty`), by (world, first client of the piece).
        """

    def score_known_clients(self, state: State) -> Pieces:
        """Evaluates known clients that answer with models of their own.

        Returns:
            By (world, client), the accuracies or RMSEs `[2, P]` of the client's P personal passes: on its test rows and
            on its held-out rows; NaN where it has no such rows.
        """

    def score_own_sets(self, state: State, thresholds: FloatArray | None, split: str = "test") -> Pieces:
        """Evaluates the conformal sets of known clients that answer with models of their own.

        Args:
            state: The broadcast models.
            thresholds: The largest score inside of a set, `[worlds]`; None: it is not known yet.
            split: With thresholds: `test`, or `hold_out` for every second withheld row.

        Returns:
            By (world, client): scores of the client's withheld rows `[n_k]`; with thresholds coverage and mean size
            of the sets of its rows of the split, `[2]`.
        """

    def gather(self, state: State) -> State:
        """The state with every model in it, also with those that client processes hold (random walk)."""

    def private(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """The private vectors of all clients, for a checkpoint; the same for every packing.

        Args:
            names: Only the vectors of these names; None: all.
        """

    def restore(self, private: dict[str, Tensor]) -> None:
        """Replaces the private vectors of all clients by those of a checkpoint."""

    def close(self) -> None:
        """Releases the processes of the runtime; it is not called again."""


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        round: Completed rounds.
        state: What the server knows after them.
        up_bytes: Bytes that clients have sent so far, `[worlds]`.
        down_bytes: Bytes that clients have received so far, `[worlds]`.
        sim_seconds: Virtual seconds since the start, `[worlds]`.
        wall_seconds: Real seconds since the start, those of earlier processes of a resumed run included.
        metrics: The newest row of metrics of each world; empty before the first evaluation.
        failed: Jobs that were left out because they failed.
        courses: The best values of metrics that a rule watches, and their rounds (`fedray.simulation.stopping`).
        stopped: Why the run ended before its last round; empty where it did not.
        flight: Older versions of models from which jobs in flight started, for a checkpoint (asynchronous training,
            `fedray.simulation.flights.Versions`).
    """

    round: int
    state: State
    up_bytes: IntArray
    down_bytes: IntArray
    sim_seconds: FloatArray
    wall_seconds: float = 0.0
    metrics: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    courses: dict[str, list[list[float]]] = field(default_factory=dict)
    stopped: str = ""
    flight: Callable[[], dict[str, Tensor]] = dict


class Recorder(Protocol):
    """Where finished jobs, evaluated rounds and checkpoints go."""

    def jobs(self, round: int | IntArray, plan: Plan, table: JobTable) -> None:
        """Keeps the jobs of a round, or of several.

        Args:
            round: The round, from 1, or that of each job, `[J]`.
            plan: All planned jobs, `[J]`, also those that did not count.
            table: What is known of them, in the same order.
        """

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None:
        """Keeps the metrics of a round, one row a world."""

    def checkpoint(self, progress: Progress) -> None:
        """Keeps all that is needed to resume the run from here."""

    def keep_best(self, progress: Progress) -> None:
        """Keeps the models of the best round so far."""


class ClientScores(NamedTuple):
    """Scores of some known clients of one world, one by one.

    Attributes:
        client: their ids, rising, `[n]`.
        samples: training samples of each, `[n]`.
        scores: column -> `[n]`: `accuracy`, or `rmse`, and the same on held-out rows (`hold_out_`); NaN where a client
            has no rows to be scored on.
    """

    client: IntArray
    samples: IntArray
    scores: dict[str, FloatArray]


class FlightTable(NamedTuple):
    """What `clients.parquet` also keeps of the jobs of asynchronous training, `[J]` each.

    Attributes:
        start_seconds: Virtual seconds at which the job started.
        arrival_seconds: Virtual seconds at which its upload arrived, or would have.
        version: How many steps its model had taken when it started.
        staleness: How many steps it took from then to the step that used the upload; -1 where none did.
    """

    start_seconds: FloatArray
    arrival_seconds: FloatArray
    version: IntArray
    staleness: IntArray


class JobTable(NamedTuple):
    """What `clients.parquet` keeps of the jobs of a round, `[J]` each, in the order of the plan.

    Attributes:
        samples: Training samples of the job.
        steps: Optimizer steps; 0 where the job did not count.
        loss: Mean loss over the steps; NaN where nothing was trained.
        up_bytes: Bytes sent and used; 0 where the job did not count, also where the upload came too late: the server
            does not wait for it and tells the client to stop.
        down_bytes: Bytes received; 0 where the client was never reached. Late clients and jobs that failed in training
            have received their models. In a random walk it is what the next client receives of this one: `up_bytes`.
        sim_seconds: Virtual seconds that the job takes.
        status: Whether the upload was used, and if not, why: an index into `fedray.simulation.clock.STATUS`.
        error: Traceback of a job that failed, else None.
        flight: Of asynchronous training: when the jobs started and arrived; None in rounds.
    """

    samples: IntArray
    steps: IntArray
    loss: FloatArray
    up_bytes: IntArray
    down_bytes: IntArray
    sim_seconds: FloatArray
    status: IntArray
    error: NDArray[np.object_]
    flight: FlightTable | None = None
