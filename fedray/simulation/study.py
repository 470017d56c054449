"""A study: everything a run needs, as plain objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.method import Answer, JobRows, Local, Method, Phase
from fedray.core.types import (
    EVALUATED_ROWS,
    AverageKind,
    Clients,
    FloatArray,
    IntArray,
    Lanes,
    Mode,
    Net,
    Plan,
    SizedPlan,
    Staleness,
    State,
    Stats,
)
from fedray.data.adaptation import name_clients
from fedray.data.shards import Shards, share_array
from fedray.features.stacking import Voter
from fedray.metrics.conformal import ConformalRule
from fedray.models.net import per_sample
from fedray.simulation.clock import CountingRule
from fedray.simulation.devices import Devices
from fedray.training.choice import Engine, choose_engine
from fedray.training.update import Site

# ---------------------------------------------------------------------------------------------------------------------
# When the server steps where clients do not wait for each other, and what a late upload weighs.


@dataclass(frozen=True)
class AsyncRule:
    """When the server steps, and how much a late upload weighs.

    Attributes:
        mode: `semi`: every `tick` seconds; `buffered`: when a model has `goal` uploads (FedBuff, Nguyen et al. 2022);
            `async`: at every arrival (FedAsync, Xie et al. 2019).
        concurrency: Clients that train at the same time.
        goal: Uploads of a model that make the server step.
        tick: Virtual seconds between two steps of the server.
        alpha: Of `async`: weight of an upload that is not late, in (0, 1].
        staleness: Which function of the staleness tau weighs an upload: 1, `(1 + tau) ** -a`, or 1 up to b and
            `1 / (a (tau - b) + 1)` above.
        a: Of `polynomial` and `hinge`.
        b: Of `hinge`.
        dropout: Probability that a client sends nothing; its place is free when it would have been done.
        deadline: Virtual seconds after which the server gives a client up; None: never.

    Example:
        >>> rule = AsyncRule("async", concurrency=8, alpha=0.6, staleness="hinge", a=10.0)
        >>> rule.weigh(np.array([0, 5])).round(3).tolist()
        [0.6, 0.055]
    """

    mode: Mode
    concurrency: int
    goal: int = 1
    tick: float = 1.0
    alpha: float = 1.0
    staleness: Staleness = "constant"
    a: float = 0.5
    b: float = 4.0
    dropout: float = 0.0
    deadline: float | None = None

    def weigh(self, tau: IntArray) -> FloatArray:
        """Returns s(tau), times alpha if arrivals are mixed in one by one, `[J]`.

        Example:
            >>> AsyncRule("buffered", 1, staleness="polynomial").weigh(np.array([0, 3])).tolist()
            [1.0, 0.5]
        """
        late = tau.astype(np.float64)
        if self.staleness == "polynomial":
            weight = (1.0 + late) ** -self.a
        elif self.staleness == "hinge":
            weight = np.where(late <= self.b, 1.0, 1.0 / (self.a * np.maximum(late - self.b, 0.0) + 1.0))
        else:
            weight = np.ones(len(tau))
        return (self.alpha if self.mode == "async" else 1.0) * weight


# ---------------------------------------------------------------------------------------------------------------------
# A study: everything a run needs, as plain objects.

# ---------------------------------------------------------------------------------------------------------------------
# `fedray.assembly.study.build_study` makes it from a scenario; the round loop, runtimes and evaluation only read it.

OOD = "ood"  # the split of out-of-distribution inputs


class Patience(NamedTuple):
    """When a run ends because it gets no better.

    Attributes:
        metric: Whose values are watched.
        rounds: How many rounds may pass without a better value, in every world.
        min_delta: By how much a value must be better to count.
    """

    metric: str
    rounds: int
    min_delta: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """What is measured, and when.

    Attributes:
        every: Rounds from one evaluation to the next.
        every_seconds: Virtual seconds from one evaluation to the next, in the first world; None: `every` counts.
        average: What an ensemble averages: "probabilities", "logits" or "outputs".
        gamma: Temperature of the weights that a known client gives to the members by their losses on its data; None:
            known clients are not evaluated with weights of their own.
        noise: Variance added to predicted targets: "none", "residual" (estimated from training data) or "fixed" (1).
        stop_at: (metric, value) that ends the run early when every world has reached it.
        target: (metric, value); the summary tells which round reached it first.
        patience: Ends the run when a metric gets no better; None: nothing does.
        best: The metric whose best round keeps its models; None: no round does.
        metrics: The user's own metrics by name.
        clients: How many known clients have their scores recorded one by one; there may be fewer.
        conformal: How the sets are made that hold the right answer with a given probability; None: there are none.
        dropout_at_test: Whether the dropout of the networks stays on in every answer (`fedray.models.net`).
        ood: Whether the uncertainty of out-of-distribution inputs is compared with that of the rows.
        by_tier: Whether known clients are scored by every score, tier by tier and together.
    """

    every: int = 1
    every_seconds: float | None = None
    average: AverageKind = "probabilities"
    gamma: float | None = None
    noise: str = "none"
    stop_at: tuple[str, float] | None = None
    target: tuple[str, float] | None = None
    patience: Patience | None = None
    best: str | None = None
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    clients: int = 0
    conformal: ConformalRule | None = None
    dropout_at_test: bool = False
    ood: bool = False
    by_tier: bool = False


class Part(NamedTuple):
    """One training of a stack: an ordinary study of `worlds * folds` worlds, and its place in the whole.

    Attributes:
        study: The study of the part alone.
        folds: F, how many sub models leave a part of the data out; 1 for the meta model.
        models: x, models of each fold.
        first: Number of its first model in the whole; fold f has the models from `first + f * x` on.
        begins: Its first round in the whole.
        ends: One past its last round.
        trainable: Where its trainable parameters lie in a row of the whole.
        buffers: Where its float buffers lie in a row of the whole.
        counters: Where its integer buffers lie in a row of counters of the whole.
        voter: What its clients fit instead of being trained (`fedray.runtime.stacking`); such a part has no rounds
            and no numbers. None: the part is trained.
        combine: Of a base whose model i is client i's own: how their answers make one where there is no meta model
            (`fedray.features.stacking`). None: its models are nobody's own.
        features: Of a base: what the meta model learns from (`fedray.features.stacking.Stack.features`).
        answers: Of a base: whether it has a part in the mean that answers where there is no meta model.
        trained_before: Of the meta model: a function round -> who has trained it before, as `world * N + client`.
    """

    study: Study
    folds: int
    models: int
    first: int
    begins: int
    ends: int
    trainable: slice
    buffers: slice
    counters: slice
    voter: Voter | None = None
    combine: str | None = None
    features: str = "out_of_fold"
    answers: bool = True
    trained_before: Callable[[int], IntArray] | None = None


@dataclass(frozen=True)
class Study:
    """Everything a run needs. A world is one replicate of one fold of the data.

    Attributes:
        name: Name of the method.
        method: What is trained, and which models answer.
        net: The network of the models.
        clients: The population.
        shards: The clients' data in every world.
        seeds: Seed of each world, `[worlds]`.
        folds: Fold of each world, `[worlds]`; the folds of a replicate lie side by side.
        rounds: Length of the run.
        input_shape: Shape of one network input.
        classes: C; 0 for regression.
        hold_out: Whether rows of the clients are held out of training.
        evaluation: What is measured, and when.
        devices: What the simulated devices are like.
        rule: Which uploads of a round the server will use (not late, dropped or failed).
        checkpoint_every: Rounds from one checkpoint to the next.
        checkpoint_keep: How many checkpoints stay on disk.
        scenario: The scenario in plain types, for what no other field says; empty for a study without one.
        dtype: Type of the models' numbers.
        lanes: Whether compiled kernels may train, must, or must not.
        skip: Whether a job that fails is left out; otherwise it ends the run.
        client_timeout: Wall seconds that one job may take; None: any time.
        starts: Seeds of the first models alone, `[worlds]`, where repetitions share everything else (`vary: init`);
            None: `seeds`.
        rates: Learning rate of each world, `[worlds]`, where worlds have their own (`local.lr_grid`); None: the one of
            `Local`.
        asynchronous: When the server steps, where clients do not wait for each other; None: in rounds.
        parts: Of a stack: its bases, then its meta model. A row of the state holds all of them for one world.
        callbacks: Names and functions of a user's own that are called after each round.
    """

    name: str
    method: Method
    net: Net
    clients: Clients
    shards: Shards
    seeds: IntArray
    folds: IntArray
    rounds: int
    input_shape: tuple[int, ...]
    classes: int
    hold_out: bool
    evaluation: Evaluation
    devices: Devices
    rule: CountingRule = field(default_factory=CountingRule)
    checkpoint_every: int = 10
    checkpoint_keep: int = 2
    scenario: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    lanes: Lanes = "torch"
    skip: bool = False
    client_timeout: float | None = None
    starts: IntArray | None = None
    rates: FloatArray | None = None
    asynchronous: AsyncRule | None = None
    parts: tuple[Part, ...] = ()
    callbacks: tuple[tuple[str, Callable[..., Any]], ...] = ()

    @property
    def example(self) -> Tensor:
        """One network input, `input_shape`, of the right type; all zeros."""
        tokens = self.shards.data.kind == "tokens"
        return torch.zeros(self.input_shape, dtype=torch.int64 if tokens else self.dtype)

    @property
    def worlds(self) -> int:
        """Number of worlds, R."""
        return len(self.seeds)

    @property
    def trained(self) -> list[Study]:
        """The studies whose clients train a network: those of the parts of a stack, or this one."""
        return [part.study for part in self.parts if part.voter is None] or [self]

    @property
    def last_phase(self) -> int:
        """The round after which the last phase of the method trains, before which its scores are not the method's."""
        begins = [*(part.begins for part in self.parts), *(piece.begins for piece in self.method.phase.pieces)]
        return max(begins, default=0)

    @property
    def init_seeds(self) -> IntArray:
        """The seed of each world's first models, `[worlds]`."""
        return self.seeds if self.starts is None else self.starts

    @property
    def replicates(self) -> int:
        """Number of replicates."""
        return self.worlds // self.per_replicate

    @property
    def per_replicate(self) -> int:
        """Worlds of one replicate: its folds."""
        return len(set(self.folds.tolist()))

    def place(self, world: int) -> tuple[int, int]:
        """Returns the replicate and the fold of a world."""
        return world // self.per_replicate, int(self.folds[world])

    @property
    def client_names(self) -> tuple[str, ...]:
        """What the clients are called, N names; empty where their data do not say it."""
        data = self.scenario.get("data")
        return name_clients(self.shards, data.get("group") if isinstance(data, dict) else None)

    @property
    def tests_other_rows(self) -> bool:
        """Whether known clients with answers of their own are scored on test rows of another kind than theirs."""
        own = self.method.phase.is_personal or self.method.one_model_per_client or self.evaluation.gamma is not None
        tested = [self.shards.client_test(0, 0), self.shards.cluster_test(0, 0)]
        return own and self.shards.clusters(0) is not None and all(rows is None for rows in tested)

    def local(self, local: Local, world: int) -> Local:
        """Returns how the clients of a world train: with the world's own learning rate, if it has one."""
        return local if self.rates is None else replace(local, lr=float(self.rates[world]))

    def rate_group(self, world: IntArray) -> IntArray:
        """Returns a number for each world of `[J]`, equal if the learning rates of the worlds are equal."""
        return np.zeros_like(world) if self.rates is None else np.unique(self.rates, return_inverse=True)[1][world]

    def answer(self, state: State) -> Answer:
        """Returns the models that answer for a state."""
        if self.method.answer is not None:
            return self.method.answer(state)
        return Answer(state, self.method.phase.models)

    def split(self, name: str, world: int) -> tuple[Tensor, Tensor]:
        """Returns raw x and y of a world's rows: `test`, `hold_out`, or `ood`, with labels 0 because it has none.

        Raises:
            BadInput: there are no such rows.
        """
        if name not in ("test", "hold_out", OOD):
            raise BadInput(f"split({name!r}): choose test, hold_out or ood; training rows are study.shards.data.train")
        if name == OOD:
            assert self.shards.data.ood is not None
            x = share_array(self.shards.data.ood)
            return x, torch.zeros(len(x), dtype=torch.int64)
        return self.shards.test(world) if name == "test" else self.shards.holdout(world)

    def pool_rows(self, world: int, clients: int | None = None) -> tuple[Tensor, Tensor]:
        """Returns the training rows of a world's (first) clients in order: network inputs and targets `[n, ...]`."""
        number = self.clients.number if clients is None else min(clients, self.clients.number)
        client, where = np.arange(number), torch.tensor([world])
        fetched = self.shards.fetch(np.full_like(client, world), client)
        real = np.arange(fetched.rows.shape[1]) < fetched.size[:, None]  # the rest is padding
        rows = fetched.rows[torch.from_numpy(real)]
        x = self.shards.normalize(fetched.x[rows][None], where)[0]
        return x, self.shards.targets(fetched.labels(rows, 0)[None], where)[0]

    def unscale(self, outputs: Tensor, world: int) -> Tensor:
        """Returns regression outputs `[..., q]` in the target's original units, float64."""
        data, fold = self.shards.data, int(self.folds[world])
        row = fold if len(data.y_scale) > 1 else 0
        return outputs.double() * torch.from_numpy(data.y_scale[row]) + torch.from_numpy(data.y_shift[row])

    def target_scale(self, world: int) -> float:
        """Returns the standard deviation that regression targets were divided by."""
        scale, fold = self.shards.data.y_scale, int(self.folds[world])
        return float(scale[fold if len(scale) > 1 else 0, 0])


# ---------------------------------------------------------------------------------------------------------------------
# The engine that trains and evaluates the clients of a study.


def choose_study_engine(study: Study, device: str = "cpu") -> Engine:
    """Returns the engine of a study's network, with what its scenario says of training and of answers.

    Args:
        study: The study.
        device: Kind of the device, "cpu" or "cuda".

    Raises:
        BadInput: Compiled kernels must train, and cannot.
    """
    phase, drops = study.method.phase, study.evaluation.dropout_at_test
    choose = partial(choose_engine, study.net, device, study.example, lanes=study.lanes, local=phase.local, drops=drops)
    return choose(models=phase.models, couples=phase.couples)


# ---------------------------------------------------------------------------------------------------------------------
# What the round loop needs from outside: a runtime, a recorder, and where a run stands.

Pieces = dict[tuple[int, int], Tensor]  # answers by piece: (world, place of its first row or first client) -> tensor


class Question(NamedTuple):
    """What a runtime asks of models: of clients, where their rows are, or on the rows of a split.

    It is cut into pieces of a fixed size, so that neither the number of processes nor their order shows in an answer.

    Attributes:
        compute: A function of a module, or a `partial` of one, which travels by its name: (host, state, world, x) ->
            the answer to raw inputs `[n, ...]`; or (host, state, world, client) -> that of clients with ids `[c]`,
            `[numbers, c]`, or with `at_home` one tensor a client.
        split: Whose rows are answered: `test`, `hold_out` or `ood`; None: clients are asked.
        worlds: How many worlds are asked; None: all.
        clients: Those of each world, `[n]` each, whose places are counted; None: the known ones.
        numbers: How many numbers a client answers; one that fails and is left out answers NaN.
        at_home: Whether each client is asked in the process where it lives, because it has private vectors there.
    """

    compute: Callable[..., Any]
    split: str | None = None
    worlds: int | None = None
    clients: Sequence[IntArray] | None = None
    numbers: int = 1
    at_home: bool = False


class Host(Site, Protocol):
    """A process that answers questions: it has the data, and the private vectors of the clients that live there."""

    study: Study

    def own_models(self, state: State, world: int, client: int) -> Tensor:
        """Returns the models with which a client of this process answers, `[P * K, d]`: K for each personal pass."""


class Runtime(Protocol):
    """Where jobs run and questions are answered. All runtimes give the same bits."""

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

    def ask(self, question: Question, state: State) -> Pieces:
        """Answers a question about models.

        Args:
            question: What is asked, and of whom.
            state: The models, `[worlds * K, d]`, and what is broadcast with them.

        Returns:
            The answers by (world, first row or place of the first client); with `at_home` by (world, place).
        """

    def private(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Returns the private vectors of all clients, for a checkpoint; the same for every packing.

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
        courses: The best values of metrics that a rule watches, and their rounds (`fedray.simulation.rounds`).
        stopped: Why the run ended before its last round; empty where it did not.
        flight: Older versions of models from which jobs in flight started, for a checkpoint (asynchronous training,
            `fedray.simulation.asynchronous.Versions`).
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


# ---------------------------------------------------------------------------------------------------------------------
# What models are asked most: their outputs on the rows of a split, and their losses on the rows of clients.

Score = Callable[[Tensor, Tensor], Tensor]  # (raw inputs `[n, ...]`, targets `[n, ...]`) -> scores `[q, n]`


def outputs_on(split: str, models: int, worlds: int | None = None) -> Question:
    """Asks for the raw outputs of all models on a split, `[K, n, C]` by (world, first row of the piece).

    Args:
        split: `test`, `hold_out` or `ood`.
        models: Models of each world, K.
        worlds: How many worlds are asked; None: all.
    """
    return Question(partial(compute_outputs, models=models), split, worlds)


def losses_of(models: int, worlds: int | None = None, clients: Sequence[IntArray] | None = None) -> Question:
    """Asks for the mean training loss of each model on each client's rows, `[K, c]` by (world, first place).

    Args:
        models: Models of each world, K.
        worlds: How many worlds are asked; None: all.
        clients: The clients of each world, `[n]` each; None: the known ones.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.runtime.inline import Inline
        >>> from fedray.scenario.loader import read_scenario
        >>> from fedray.simulation.rounds import begin_progress
        >>> keys = {"data": {"name": "cubic"}, "clients": {"number": 2}, "method": {"models": 3}}
        >>> study = build_study(read_scenario(keys))
        >>> state = begin_progress(study, study.method.phase).state
        >>> Inline(study).ask(losses_of(models=3), state)[0, 0].shape  # of 3 models on 2 clients
        torch.Size([3, 2])
    """
    return Question(partial(mean_losses, models=models), worlds=worlds, clients=clients, numbers=models)


def join_pieces(pieces: Pieces, world: int) -> Tensor:
    """Returns the pieces of a world in order: `[K, n, ...]`.

    Example:
        >>> pieces = {(0, 500): torch.ones(1, 2, 3), (0, 0): torch.zeros(1, 500, 3), (1, 0): torch.zeros(1, 9, 3)}
        >>> join_pieces(pieces, world=0).shape  # K models, n samples, C classes
        torch.Size([1, 502, 3])
    """
    return torch.cat([pieces[key] for key in sorted(pieces) if key[0] == world], dim=1)


def compute_outputs(host: Host, state: State, world: int, x: Tensor, *, models: int) -> Tensor:
    """Computes the raw outputs of a world's models, `[K, n, C]`.

    Args:
        host: Computes.
        state: Holds the models.
        world: The world.
        x: Raw inputs, `[n, ...]`.
        models: Models of each world, K.
    """
    rows = slice(world * models, (world + 1) * models)
    return host.forward(state.models[rows], state.counters[rows], world, x)


def mean_losses(host: Host, state: State, world: int, client: IntArray, *, models: int) -> Tensor:
    """Returns the mean training loss of a world's models on some clients: l_i(w_k) of Fed-ensemble, equation 4.

    Args:
        host: Computes.
        state: Holds the models.
        world: The world.
        client: Ids of the clients, `[c]`.
        models: Models of each world, K.

    Returns:
        The losses, `[K, c]`, 0 for a client without rows.
    """

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        outputs = compute_outputs(host, state, world, x, models=models)
        return per_sample(host.study.net.objective, outputs, targets.expand(len(outputs), *targets.shape)).double()

    return mean_scores(host, world, client, loss, models)


def mean_scores(host: Host, world: int, client: IntArray, score: Score, number: int) -> Tensor:
    """Returns means of a score over the training rows of each client, `[number, c]`, 0 for a client without rows.

    Args:
        host: Computes.
        world: The world.
        client: Ids of the clients, `[c]`.
        score: The scores of each row.
        number: How many scores a row has.
    """
    study = host.study
    fetched = study.shards.fetch(np.full(len(client), world), client)
    size = torch.from_numpy(fetched.size)
    rows = fetched.rows[torch.arange(fetched.rows.shape[1]) < size[:, None]]  # client after client
    if not len(rows):
        return torch.zeros(number, len(client), dtype=torch.float64)
    pieces = []
    for part in torch.split(rows, EVALUATED_ROWS):
        targets = study.shards.targets(fetched.labels(part, 0)[None], torch.tensor([world]))
        pieces.append(score(fetched.x[part], host.to_device(targets)[0]).cpu())
    each = torch.cat(pieces, dim=1)
    owner = torch.repeat_interleave(torch.arange(len(client)), size)
    return torch.zeros(len(each), len(client), dtype=each.dtype).index_add_(1, owner, each) / size.clamp(min=1)
