"""Defines `Study`, which is everything that a run needs except a runtime.

A *world* is one combination of a seed and a fold of the data. All worlds of a study run in the same rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core import types
from fedray.core.errors import BadInput, format_bytes
from fedray.core.method import Answer, JobRows, Local, Method
from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray, Net, Plan, SizedPlan, Staleness, State, Stats
from fedray.data.adaptation import find_client, name_clients
from fedray.data.shards import Shards, StoredShards, read_clients, share_array
from fedray.data.types import add_back
from fedray.features.stacking import Voter
from fedray.metrics.conformal import ConformalRule
from fedray.models.net import measure_losses
from fedray.simulation.devices import CountingRule, Devices, ServerDevice
from fedray.training.choice import Engine, choose_engine
from fedray.training.update import Site

# ---------------------------------------------------------------------------------------------------------------------
# Asynchronous training.


@dataclass(frozen=True)
class AsyncRule:
    """The rule of asynchronous training. It says when the server makes a step, and how much a late upload weighs.

    Attributes:
        mode: Rule for the times of the server's steps. `semi` makes a step every `tick` seconds. `buffered` makes a
            step when `goal` uploads of a model have arrived (FedBuff, Nguyen et al. 2022). `async` makes a step at
            every arrival (FedAsync, Xie et al. 2019).
        concurrency: Number of clients that train at the same time.
        goal: Number of uploads of one model that a step uses, in mode `buffered`.
        tick: Virtual seconds between two steps of the server, in mode `semi`.
        alpha: Weight of an upload whose staleness is 0, in (0, 1], in mode `async`.
        staleness: Name of the function s that weighs an upload by its staleness tau. The staleness is the number of
            server steps that changed the model while the client trained it. `constant` gives the weight 1. `polynomial`
            gives `(1 + tau) ** -a`. `hinge` gives 1 up to `tau = b`, and `1 / (a (tau - b) + 1)` above.
        staleness_a: The a in the formulas of `polynomial` and `hinge`. With a larger a the weight falls faster.
        staleness_b: The b in the formula of `hinge`.
        dropout: Probability that a client sends nothing. Such a client counts toward `concurrency` until its upload
            would have arrived.
        deadline: Virtual seconds for which the server waits for a client that has started. None means no deadline.
        max_staleness: Largest staleness of an upload that the server uses. None means no limit.

    Example:
        >>> rule = AsyncRule("async", concurrency=8, alpha=0.6, staleness="hinge", staleness_a=10.0)
        >>> rule.weigh(np.array([0, 5])).round(3).tolist()
        [0.6, 0.055]
    """

    mode: types.Mode
    concurrency: int
    goal: int = 1
    tick: float = 1.0
    alpha: float = 1.0
    staleness: Staleness = "constant"
    staleness_a: float = 0.5
    staleness_b: float = 4.0
    dropout: float = 0.0
    deadline: float | None = None
    max_staleness: int | None = None

    def weigh(self, tau: IntArray) -> FloatArray:
        """Returns the weight of each upload, `[J]`.

        The function that `staleness` names gives the weight. In mode `async`, the weight is also multiplied by `alpha`.

        Args:
            tau: Staleness of each upload, `[J]`.

        Example:
            >>> AsyncRule("buffered", 1, staleness="polynomial").weigh(np.array([0, 3])).tolist()
            [1.0, 0.5]
        """
        late, a, b = tau.astype(np.float64), self.staleness_a, self.staleness_b
        if self.staleness == "polynomial":
            weight = (1.0 + late) ** -a
        elif self.staleness == "hinge":
            weight = np.where(late <= b, 1.0, 1.0 / (a * np.maximum(late - b, 0.0) + 1.0))
        else:
            weight = np.ones(len(tau))
        return (self.alpha if self.mode == "async" else 1.0) * weight


# ---------------------------------------------------------------------------------------------------------------------
# The study and its parts. `fedray.assembly.study.build_study` makes a study from a scenario. Nothing changes a study
# later.

OOD = "ood"  # the split of out-of-distribution inputs


class Patience(NamedTuple):
    """The rule that ends a run early when a metric no longer becomes better.

    Attributes:
        metric: Name of the metric.
        rounds: The run ends after this number of rounds without a better value in any world.
        min_delta: A new value counts as better only if it is better by more than this difference.
    """

    metric: str
    rounds: int
    min_delta: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """The settings of evaluation.

    Attributes:
        every: Number of rounds between two evaluations.
        every_seconds: Virtual seconds between two evaluations, in the first world. None means that the evaluations
            follow `every`.
        average: Quantity that an ensemble of classifiers averages: "probabilities" or "logits".
        gamma: Temperature of the weights that a client computes from the models' losses on its samples. None means no
            such weights.
        noise: Variance that is added to predicted targets. It is "none", "residual" (estimated from training data) or
            "fixed" (1).
        stop_at: (metric, value). The run ends early when the metric has reached the value in every world. None means no
            such rule.
        target: (metric, value). The summary has the first round in which the metric reached the value. None means no
            target.
        patience: The rule of early stopping. None means no such rule.
        best: Name of the metric that chooses the best round, whose models are kept. None means that no round is chosen.
        metrics: The user's metric functions by name.
        clients: Largest number of clients whose individual scores are recorded.
        conformal: The rule for conformal sets. Such a set contains the true value with a chosen probability. None means
            no sets.
        dropout_at_test: Whether networks predict with dropout (`fedray.models.net`).
        ood: Whether the uncertainty of predictions is compared between out-of-distribution inputs and test samples.
        train: Whether every score is also computed on the clients' training samples.
        by_tier: Whether scores of the run's clients are also averaged over the clients of each tier, and over all
            clients.
        personal: Whether the run's clients are also scored on their own samples, each with its own models or weights.
    """

    every: int = 1
    every_seconds: float | None = None
    average: types.AverageKind = "probabilities"
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
    train: bool = False
    by_tier: bool = False
    personal: bool = False


class Part(NamedTuple):
    """One part of a stack: an ordinary study of `worlds * folds` worlds, and its position in the stack.

    A stack is an ensemble of networks whose predictions are combined by a further model, the *meta model*, or by a
    rule. The networks of one architecture are a part, which is called a *base*. The meta model is the last part.

    Attributes:
        study: The study of this part alone.
        folds: F, the number of folds. The models of a fold are trained without the samples of the fold. The meta model
            has one fold.
        models: x, the number of models per fold.
        first: Index of this part's first model in the whole stack. The models of fold f begin at `first + f * x`.
        begins: First round of this part, counted in the whole stack.
        ends: Last round of this part, plus 1.
        trainable: Columns of this part's trainable parameters in a row of the whole stack's state.
        buffers: Columns of this part's float buffers in a row of the whole stack's state.
        counters: Columns of this part's integer buffers in a row of the whole stack's counters.
        voter: The classifier that each client fits instead of a network (`fedray.runtime.stacking`). A part with
            classifiers has no rounds, and no parameters in the state. None means that the part trains networks.
        combine: If each client has a network of its own, the rule that combines these networks' predictions without a
            meta model (`fedray.features.stacking.combine_outputs`). Otherwise it is None.
        features: Name of the features on which the meta model is trained (`fedray.features.stacking.Stack.features`).
            Only bases use it.
        answers: Whether this base's predictions count in the mean that a stack without a meta model predicts.
        last_round: A function that takes a round and returns the last earlier round in which each client trained the
            meta model, `[worlds * N]` (`fedray.components.schedule.last_round`). A base has None instead.
    """

    study: "Study"
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
    last_round: Callable[[int], IntArray] | None = None


@dataclass(frozen=True)
class Study:
    """Everything that a run needs except a runtime.

    A world is one combination of a replicate (seed) and a fold of the data.

    Attributes:
        name: Name of the method.
        method: The method. It says what is trained, and which models predict.
        net: The network of the models.
        clients: All clients, in tiers.
        shards: The clients' data in every world.
        seeds: Seed of each world, `[worlds]`.
        folds: Fold of each world, `[worlds]`. The worlds of a replicate are consecutive.
        rounds: Number of rounds of the run.
        input_shape: Shape of one network input.
        classes: C, the number of classes. It is 0 for regression.
        hold_out: Whether some of the clients' samples are held out of training.
        evaluation: The settings of evaluation.
        devices: The simulated devices of the clients.
        server: The speed of the server.
        rule: The rule by which the server chooses the uploads of a round.
        checkpoint_every: Number of rounds between two checkpoints.
        checkpoint_keep: Number of checkpoints that stay on disk.
        scenario: The scenario as a dictionary. It is read for settings that are no field of the study. It is empty if
            the study was not made from a scenario.
        dtype: Data type of the parameters.
        lanes: The code that may train: compiled kernels where possible ("auto"), compiled kernels only ("compiled"), or
            torch only ("torch").
        skip: Whether a job that fails is left out. Otherwise it ends the run.
        client_timeout: Wall seconds that a job may take. None means no limit.
        starts: Seeds of the initial models, `[worlds]`, if replicates differ only in their initial models (`vary:
            init`). None means `seeds`.
        rates: Learning rate of each world, `[worlds]` (`local.lr_grid`). None means the learning rate in `Local`.
        asynchronous: The rule of asynchronous training. None means that training is synchronous.
        parts: The parts of a stack, first its bases and then its meta model. One row of the state holds all parts.
            Other methods have no parts.
        callbacks: Name and function of each of the user's callbacks, which are called after each round.
    """

    name: str
    method: Method
    net: Net
    clients: types.Clients
    shards: Shards
    seeds: IntArray
    folds: IntArray
    rounds: int
    input_shape: tuple[int, ...]
    classes: int
    hold_out: bool
    evaluation: Evaluation
    devices: Devices
    server: ServerDevice = field(default_factory=ServerDevice)
    rule: CountingRule = field(default_factory=CountingRule)
    checkpoint_every: int = 10
    checkpoint_keep: int = 2
    scenario: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    lanes: types.Lanes = "torch"
    skip: bool = False
    client_timeout: float | None = None
    starts: IntArray | None = None
    rates: FloatArray | None = None
    asynchronous: AsyncRule | None = None
    parts: tuple[Part, ...] = ()
    callbacks: tuple[tuple[str, Callable[..., Any]], ...] = ()

    @property
    def example(self) -> Tensor:
        """A network input of zeros with the shape and data type of the network's inputs."""
        tokens = self.shards.data.kind == "tokens"
        return torch.zeros(self.input_shape, dtype=torch.int64 if tokens else self.dtype)

    @property
    def worlds(self) -> int:
        """Number of worlds, R."""
        return len(self.seeds)

    @property
    def trained(self) -> list["Study"]:
        """The studies whose clients train a network: parts of a stack, or only this study."""
        return [part.study for part in self.parts if part.voter is None] or [self]

    @property
    def last_phase_start(self) -> int:
        """The number of rounds that the method trains before its last phase.

        Scores of these rounds are not scores of the complete method. For example, a stack trains its bases first, and
        then its meta model.
        """
        begins = [*(part.begins for part in self.parts), *(piece.begins for piece in self.method.phase.pieces)]
        return max(begins, default=0)

    def is_complete(self, round: int) -> bool:
        """Returns whether the scores after `round` rounds are scores of the complete method (`last_phase_start`)."""
        return round > self.last_phase_start or self.last_phase_start == 0

    @property
    def init_seeds(self) -> IntArray:
        """The seed of each world's initial models, `[worlds]`."""
        return self.seeds if self.starts is None else self.starts

    @property
    def replicates(self) -> int:
        """Number of replicates."""
        return self.worlds // self.per_replicate

    @property
    def per_replicate(self) -> int:
        """Number of worlds of a replicate. It is the number of folds."""
        return len(set(self.folds.tolist()))

    def place(self, world: int) -> tuple[int, int]:
        """Returns the replicate and the fold of a world."""
        return world // self.per_replicate, int(self.folds[world])

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the N clients. The tuple is empty if the data do not name clients."""
        keys = self.scenario.get("data", {})
        return name_clients(self.shards, keys.get("partition", {}).get("column") or keys.get("group"))

    def client_ids(self, world: int | IntArray, client: IntArray) -> IntArray:
        """Returns the ids that clients have in the whole population, `[n]`.

        The population includes clients that never train.

        Args:
            world: The world of all clients, or the world of each client, `[n]`.
            client: Ids among the clients that train, `[n]`.
        """
        ids = self.shards.dealt.ids if isinstance(self.shards, StoredShards) else []
        return np.stack(ids)[world, client] if ids else client

    def find_client(self, client: int | str, world: int) -> int:
        """Returns the id of a client among the clients that train in a world.

        Args:
            client: The client's name, or its id in the whole population.
            world: Index of the world (a seed and a fold).

        Raises:
            BadInput: There is no such client, or the client never trains.
        """
        ids, shards = self.client_ids(world, np.arange(self.clients.number)), self.shards
        number = shards.dealt.owned[0].clients if isinstance(shards, StoredShards) else shards.number
        place = np.flatnonzero(ids == find_client(client, self.client_names, number))
        if not len(place):
            raise BadInput(f"client = {client!r} never trains (data.test_clients): leave it out, as for new clients")
        return int(place[0])

    @property
    def tests_other_rows(self) -> bool:
        """Whether clients with their own models or weights are also tested on samples of other groups of clients."""
        own = self.method.phase.is_personal or self.method.one_model_per_client or self.evaluation.gamma is not None
        tested = [self.shards.client_test(0, 0), self.shards.cluster_test(0, 0)]
        return own and self.shards.clusters(0) is not None and all(rows is None for rows in tested)

    def local(self, local: Local, world: int) -> Local:
        """Returns the settings of local training with the learning rate of a world."""
        return local if self.rates is None else replace(local, lr=float(self.rates[world]))

    def answer(self, state: State) -> Answer:
        """Returns which models of a state predict, and the weights of these models."""
        if self.method.answer is not None:
            return self.method.answer(state)
        return Answer(state, self.method.phase.models)

    def split(self, name: str, world: int) -> tuple[Tensor, Tensor]:
        """Returns raw inputs and targets of a world's split `test`, `hold_out`, `train` or `ood`.

        `Run.predict` takes such inputs. The split `train` has the training samples of the first 10,000 clients
        (`EVALUATED_CLIENTS`). Out-of-distribution inputs (`ood`) have no labels. Zeros are returned as their targets.

        Raises:
            BadInput: There is no split of this name.
        """
        (x, y), origin = self.stored_split(name, world), self.shards.data.origin
        return x if origin is None else torch.from_numpy(add_back(x.numpy(), origin)), y

    def stored_split(self, name: str, world: int) -> tuple[Tensor, Tensor]:
        """Returns the same as `split`, but inputs as they are stored: raw inputs minus `Dataset.origin`, if any."""
        if name not in ("test", "hold_out", "train", OOD):
            raise BadInput(f"split({name!r}): choose test, hold_out, train or ood")
        if name == "train":
            return read_clients(self.shards, world, np.arange(min(EVALUATED_CLIENTS, self.clients.number)))
        if name == OOD:
            assert self.shards.data.ood is not None
            x = share_array(self.shards.data.ood)
            return x, torch.zeros(len(x), dtype=torch.int64)
        return self.shards.test(world) if name == "test" else self.shards.holdout(world)

    def pool_rows(self, world: int, clients: int | None = None) -> tuple[Tensor, Tensor]:
        """Returns the network inputs and the targets of a world's training samples, `[n, ...]`, client after client.

        Args:
            world: Index of the world (a seed and a fold).
            clients: Number of clients, from client 0 on, whose samples are returned. None means all clients.
        """
        client = np.arange(self.clients.number if clients is None else min(clients, self.clients.number))
        (x, y), where = read_clients(self.shards, world, client), torch.tensor([world])
        return self.shards.scaling.normalize(x[None], where)[0], self.shards.scaling.targets(y[None], where)[0]

    def unscale(self, outputs: Tensor, world: int) -> Tensor:
        """Converts a world's regression outputs `[..., q]` to the original units of the targets, as float64."""
        data, fold = self.shards.data, self.shards.data_folds[world]
        row = fold if len(data.y_scale) > 1 else 0
        return outputs.double() * torch.from_numpy(data.y_scale[row]) + torch.from_numpy(data.y_shift[row])

    def target_scale(self, world: int) -> float:
        """Returns the standard deviation by which the regression targets of a world were divided."""
        scale, fold = self.shards.data.y_scale, self.shards.data_folds[world]
        return float(scale[fold if len(scale) > 1 else 0, 0])


# ---------------------------------------------------------------------------------------------------------------------
# The engine that trains and evaluates the clients of a study.


def choose_study_engine(study: Study, device: str = "cpu") -> Engine:
    """Returns the engine that trains and evaluates a study's network.

    Raises:
        BadInput: The study requires compiled kernels, but they cannot train this network.
    """
    phase, drops = study.method.phase, study.evaluation.dropout_at_test
    choose = partial(choose_engine, study.net, device, study.example, lanes=study.lanes, local=phase.local, drops=drops)
    return choose(models=phase.models, couples=phase.couples)


class AnswerCost(NamedTuple):
    """The cost of predictions with one world's ensemble, on a device that has no models yet.

    Attributes:
        models: Number of models that predict.
        bytes: Bytes of these models, which the device downloads once.
        passes: Forward passes for each sample. It is 0 if the models are no networks.
    """

    models: int
    bytes: int
    passes: int

    def describe(self) -> str:
        """Describes the cost in words."""
        plural = "" if self.models == 1 else "s"
        passes = f", {self.passes:,} forward pass{'' if self.passes == 1 else 'es'} a sample" if self.passes else ""
        return f"{self.models:,} model{plural}, {format_bytes(self.bytes)} to hand over once{passes}"


def cost_answer(study: Study, state: State | None = None) -> AnswerCost:
    """Returns what prediction costs in the world whose ensemble has the most models.

    Args:
        study: The study.
        state: The state whose models predict. Models with the weight 0 do not count. None means a state before
            training. Then all models that may predict count.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> cost_answer(build_study(read_scenario({"clients": 10, "method": {"models": 3}}))).describe()
        '3 models, 45.1 kB to hand over once, 3 forward passes a sample'
    """
    phase, layout = study.method.phase, study.net.layout
    empty = state is None
    if state is None:
        models = torch.zeros(study.worlds * phase.models, layout.d, dtype=study.dtype)
        counters = torch.zeros(len(models), len(layout.counters), dtype=torch.int64)
        state = State(models, counters, phase.server.init(models))
    each = 4 * layout.d + 8 * len(layout.counters)
    if study.parts:  # one row of the state holds all models of the stack
        for part in (part for part in study.parts if not part.answers):
            floats = sum(columns.stop - columns.start for columns in (part.trainable, part.buffers))
            each -= 4 * floats + 8 * (part.counters.stop - part.counters.start)
        number = sum(part.folds * part.models for part in study.parts if part.answers)
        return AnswerCost(number, each, number)
    answer = study.answer(state)
    counts = answer.models if answer.weights is None or empty else int((answer.weights > 0).sum(axis=1).max())
    number = answer.networks or counts or answer.models
    return AnswerCost(number, number * each, 0 if phase.work is not None else number)


# ---------------------------------------------------------------------------------------------------------------------
# The runtime, the recorder and the progress of a run, which the round loop gets from its caller.

Pieces = dict[tuple[int, int], Tensor]  # (world, index of the piece's first sample or client) -> answer


class Question(NamedTuple):
    """A request to a runtime to compute a function of the models, for the samples of a split or for clients.

    The runtime divides the samples or clients into pieces of a fixed size. So the result (the *answer*) does not depend
    on the number or the order of processes.

    Attributes:
        compute: A function at the top level of a module, or a `partial` of such a function. It is sent to other
            processes by name. For a split its arguments are (host, state, world, raw inputs `[n, ...]`). For clients
            its arguments are (host, state, world, client ids `[c]`), and its result is `[numbers, c]`. If `at_home` is
            set, the result is one tensor for each client.
        split: The split `test`, `hold_out` or `ood`. None means that the function is computed for clients.
        worlds: Number of worlds to use, from world 0 on. None means all worlds.
        clients: Ids of the clients of each world, `[n]` each. None means the first 10,000 clients of the run
            (`EVALUATED_CLIENTS`).
        numbers: Number of values that the function returns for a client. They are NaN for a client that fails and is
            left out.
        at_home: Whether the function runs in the process that holds the data that the client keeps between rounds.
    """

    compute: Callable[..., Any]
    split: str | None = None
    worlds: int | None = None
    clients: Sequence[IntArray] | None = None
    numbers: int = 1
    at_home: bool = False


class Host(Site, Protocol):
    """A process that computes the functions of questions. It has the data, and what its clients keep between rounds."""

    study: Study

    def own_models(self, state: State, world: int, client: int) -> Tensor:
        """Returns a client's own models, `[P * K, d]`. The client belongs to this process.

        A client trains P sets of K models for itself. The result has one set after the other.
        """


class Runtime(Protocol):
    """Runs jobs and answers questions about models. All runtimes give the same bits."""

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Trains the jobs of one round.

        Returns:
            The sums of the uploads' statistics, and the losses and errors of the jobs, in the order of `jobs`.
        """

    def ask(self, question: Question, state: State) -> Pieces:
        """Answers a question about models.

        Args:
            question: The question.
            state: The models, `[worlds * K, d]`, and the tensors that are broadcast with them.

        Returns:
            The answer for each piece. A piece is a range of samples or clients, or a single client if `at_home` is set.
            Its key is (world, index of its first sample or client).
        """

    def private(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Returns what all clients keep between rounds (their private vectors), for a checkpoint.

        The result does not depend on the number of processes.

        Args:
            names: Names of the vectors to return. None means all vectors.
        """

    def restore(self, private: dict[str, Tensor]) -> None:
        """Replaces what all clients keep between rounds with the content of a checkpoint."""

    def close(self) -> None:
        """Ends the processes of the runtime. The runtime must not be used afterwards."""


@dataclass
class Progress:
    """The state of a run between two rounds.

    Attributes:
        round: Number of completed rounds.
        state: The state of the server after these rounds.
        up_bytes: Bytes that clients have sent so far, `[worlds]`.
        down_bytes: Bytes that clients have received so far, `[worlds]`.
        sim_seconds: Virtual seconds since the start, `[worlds]`.
        wall_seconds: Real seconds since the start, including earlier processes of a resumed run.
        metrics: The newest metrics of each world by name. The list is empty before the first evaluation.
        failed: Number of jobs that were left out because they failed.
        courses: The best values so far and their rounds, for early stopping and for the choice of the best round
            (`fedray.simulation.rounds`).
        stopped: The reason why the run ended early. It is empty if the run did not end early.
        flight: In asynchronous training, a function that returns the older model versions that unfinished jobs started
            from (`fedray.simulation.asynchronous.Versions`). Checkpoints store them.
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
    """Stores finished jobs, metrics and checkpoints."""

    def jobs(self, round: int | IntArray, plan: Plan, table: "JobTable") -> None:
        """Stores the jobs of a round, or of several rounds.

        Args:
            round: The round, from 1, or the round of each job, `[J]`.
            plan: The jobs, `[J]`, including those whose uploads were not used.
            table: The record of these jobs, in the same order.
        """

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None:
        """Stores the metrics of a round. `rows` has one dictionary for each world."""

    def checkpoint(self, progress: Progress) -> None:
        """Saves everything that is needed to resume the run from this round."""

    def keep_best(self, progress: Progress) -> None:
        """Saves the models of the best round so far."""


class ClientScores(NamedTuple):
    """Scores of single clients of one world.

    Attributes:
        client: Ids of the clients in ascending order, `[n]`.
        samples: Number of training samples of each client, `[n]`.
        scores: Arrays `[n]` by column name: `accuracy` or `rmse`, and the same score on held-out samples
            (`hold_out_...`). A client without such samples has NaN.
    """

    client: IntArray
    samples: IntArray
    scores: dict[str, FloatArray]


class FlightTable(NamedTuple):
    """Further columns of `clients.parquet` in asynchronous training, `[J]` each.

    Attributes:
        start_seconds: Virtual seconds at which the job started.
        arrival_seconds: Virtual seconds at which the upload arrived, or was due if it did not arrive.
        version: Number of server steps that changed the job's model before the job started.
        staleness: Number of server steps that changed the model between the job's start and the use of the upload. It
            is -1 if the upload was not used.
    """

    start_seconds: FloatArray
    arrival_seconds: FloatArray
    version: IntArray
    staleness: IntArray


class JobTable(NamedTuple):
    """The columns of `clients.parquet` for the jobs of a round, `[J]` each, in the order of the plan.

    Attributes:
        samples: Number of training samples of the job.
        steps: Number of optimizer steps. It is 0 if the upload was not used.
        loss: Mean loss over the steps. It is NaN if the job was not trained.
        up_bytes: Sent bytes that count (`fedray.simulation.rounds.count_bytes`).
        down_bytes: Received bytes that count. In a random walk they equal `up_bytes`, because the next client receives
            what this client sends.
        sim_seconds: Virtual seconds that the job takes.
        status: Index into `fedray.simulation.devices.STATUS`. It says whether the upload was used, or why not.
        error: Traceback if the job failed. Otherwise it is None.
        flight: Starts and arrivals of jobs in asynchronous training. None means that training is synchronous.
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
# The two most frequent questions: outputs of models on a split, and losses on the data of clients.

Score = Callable[[Tensor, Tensor], Tensor]  # (raw inputs `[n, ...]`, targets `[n, ...]`) -> scores `[q, n]`


def ask_outputs(runtime: Runtime, answer: Answer, split: str, worlds: int | None = None) -> Pieces:
    """Returns the raw outputs of all models of `answer` on a split, `[A, n, C]` for a piece of n samples.

    Args:
        runtime: The runtime that computes.
        answer: The models that predict.
        split: Name of the split: `test`, `hold_out`, `train` or `ood`.
        worlds: Number of worlds to use, from world 0 on. None means all worlds.
    """
    return runtime.ask(Question(partial(compute_outputs, models=answer.models), split, worlds), answer.state)


def losses_of(models: int, clients: Sequence[IntArray] | None = None) -> Question:
    """Makes the request for the mean loss of each model on each client's training samples.

    The answer for c clients is `[K, c]`.

    Args:
        models: Number of models of each world, K.
        clients: Ids of the clients of each world, `[n]` each. None means the first 10,000 clients of the run
            (`EVALUATED_CLIENTS`).

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.runtime.session import Inline
        >>> from fedray.scenario.loader import read_scenario
        >>> from fedray.simulation.rounds import begin_progress
        >>> keys = {"data": {"name": "cubic"}, "clients": {"number": 2}, "method": {"models": 3}}
        >>> study = build_study(read_scenario(keys))
        >>> state = begin_progress(study).state
        >>> Inline(study).ask(losses_of(models=3), state)[0, 0].shape  # of 3 models on 2 clients
        torch.Size([3, 2])
    """
    return Question(partial(mean_losses, models=models), clients=clients, numbers=models)


def join_pieces(pieces: Pieces, world: int) -> Tensor:
    """Joins a world's answers for pieces of a split into one tensor `[K, n, ...]`, in the order of the samples.

    Example:
        >>> pieces = {(0, 500): torch.ones(1, 2, 3), (0, 0): torch.zeros(1, 500, 3), (1, 0): torch.zeros(1, 9, 3)}
        >>> join_pieces(pieces, world=0).shape  # K models, n samples, C classes
        torch.Size([1, 502, 3])
    """
    return torch.cat([pieces[key] for key in sorted(pieces) if key[0] == world], dim=1)


def compute_outputs(host: Host, state: State, world: int, x: Tensor, *, models: int) -> Tensor:
    """Computes the raw outputs of a world's models, `[K, n, C]`."""
    rows = slice(world * models, (world + 1) * models)
    return host.forward(state.models[rows], state.counters[rows], world, x)


def mean_losses(host: Host, state: State, world: int, client: IntArray, *, models: int) -> Tensor:
    """Computes the mean loss of each model of a world on each client's training samples, `[K, c]`.

    This is l_i(w_k) in Fed-ensemble's equation 4. A client without samples has 0.
    """
    rows = slice(world * models, (world + 1) * models)
    return mean_losses_of(host, state.models[rows], state.counters[rows], world, client)


def mean_losses_of(host: Host, models: Tensor, counters: Tensor, world: int, client: IntArray) -> Tensor:
    """Computes the mean loss of the given models `[K, d]` on each client's training samples, `[K, c]`."""

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        outputs = host.forward(models, counters, world, x)
        return measure_losses(host.study.net.objective, outputs, targets.expand(len(outputs), *targets.shape)).double()

    return mean_scores(host, world, client, loss, len(models))


def mean_scores(host: Host, world: int, client: IntArray, score: Score, number: int) -> Tensor:
    """Averages scores over each client's training samples, `[number, c]`. A client without samples has 0.

    Args:
        host: The process that computes.
        world: Index of the world (a seed and a fold).
        client: Ids of the clients, `[c]`.
        score: A function that takes raw inputs and targets of n samples. It returns the scores, `[number, n]`.
        number: Number of scores of a sample.
    """
    study = host.study
    fetched = study.shards.fetch(np.full(len(client), world), client)
    size = torch.from_numpy(fetched.size)
    rows = fetched.rows[torch.arange(fetched.rows.shape[1]) < size[:, None]]  # client after client
    if not len(rows):
        return torch.zeros(number, len(client), dtype=torch.float64)
    pieces = []
    for part in torch.split(rows, types.EVALUATED_ROWS):
        targets = study.shards.scaling.targets(fetched.labels(part, 0)[None], torch.tensor([world]))
        pieces.append(score(fetched.x[part], host.to_device(targets)[0]).cpu())
    each = torch.cat(pieces, dim=1)
    owner = torch.repeat_interleave(torch.arange(len(client)), size)
    return torch.zeros(len(each), len(client), dtype=each.dtype).index_add_(1, owner, each) / size.clamp(min=1)
