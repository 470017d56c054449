"""A method as data: its phase of training, the models that answer, and the rows that jobs leave.

Example:
    >>> import torch
    >>> state = State(torch.zeros(2, 3), torch.zeros(2, 0, dtype=torch.int64), {})
    >>> Answer(state, models=2).weights is None
    True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedray.core.types import Compress, FloatArray, IntArray, Local, Plan, Server, State, Walk

if TYPE_CHECKING:
    from torch import Tensor

LAYERS = "layers"  # name of the private vector that holds a client's own layers
PERSONAL_PREFIX = "personal/"  # the private vector `personal/p` holds the client's own model of pass p
Schedule = Callable[[int, State | None], Plan]  # (round, state) -> the jobs of the round
Pooled = Callable[[int], "tuple[Tensor, Tensor]"]  # world -> network inputs and targets of all its training rows
Sizes = Callable[[Plan], IntArray]  # plan -> training samples of each job `[J]`
Traffic = Callable[[int, Plan], tuple[IntArray, IntArray]]  # (round, plan) -> bytes up `[J]`, bytes down `[J]`
Remember = Callable[[State, Plan, FloatArray], State]  # (state after the round, its jobs, their losses `[J]`) -> state


@dataclass(frozen=True)
class Phase:
    """One federated training: K models of one architecture, a schedule, local training, compression, a server.

    Attributes:
        models: Number of models, K.
        schedule: Writes the plan of each round.
        local: How a client trains.
        server: How uploads become the next state.
        compress: What the uplink transmits.
        down_vectors: Vectors of d numbers that a client receives for each job.
        up_vectors: Dense vectors of d numbers that a client sends beside its compressed delta.
        private: Layers that stay with the client, who starts from its own ones (LG-FedAvg).
        personal: Passes that train a model of the client's own, pulled towards the received one (Ditto).
        walk: Which client holds which model, where there is no server; None with a server.
        sizes: Training samples of each job; None means those of its client.
        traffic: Bytes of each job; None means from the server to the client and back.
        remember: What the state keeps of the jobs that counted; None means nothing.
    """

    models: int
    schedule: Schedule
    local: Local
    server: Server
    compress: Compress
    down_vectors: int = 1
    up_vectors: int = 0
    private: tuple[str, ...] = ()
    personal: tuple[Local, ...] = ()
    walk: Walk | None = None
    sizes: Sizes | None = None
    traffic: Traffic | None = None
    remember: Remember | None = None

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the private vectors that clients keep between rounds."""
        correction = self.local.correction
        kept = ((correction.name,) if correction else ()) + ((LAYERS,) if self.private else ())
        return (*self.compress.own, *kept, *(f"{PERSONAL_PREFIX}{p}" for p in range(len(self.personal))))

    @property
    def is_personal(self) -> bool:
        """Whether known clients have models of their own that answer for them."""
        return bool(self.private or self.personal)


class Answer(NamedTuple):
    """The models that answer for a state, A in each world.

    Attributes:
        state: Holds the models that answer, `[R * A, d]`.
        models: Number of models of a world, A.
        weights: Weights of the models, `[R, A]`; None means equal ones.
        spread: Of a Gaussian over a linear model's parameters: variances `[R, d]` or covariances `[R, d, d]`; None
            without one.
        noise: Observation noise variance that the method knows, `[R]`, in standardised units; None if it knows none.
        owner: The client whose upload each model is, `[R, A]`, -1 for models that are nobody's; None if all are.
    """

    state: State
    models: int
    weights: FloatArray | None = None
    spread: Tensor | None = None
    noise: FloatArray | None = None
    owner: IntArray | None = None


@dataclass(frozen=True)
class Method:
    """A method of a paper: one federated training, and the models that answer.

    Attributes:
        name: As in the scenario.
        phase: The federated training.
        answer: The models that answer for a state; None means the trained models themselves.
        prepare: The first state from the data (closed forms); None means freshly drawn models.
        one_model_per_client: Whether known client i answers with model i.
        parts: Of a stack: the training of each base, then that of the meta model.
    """

    name: str
    phase: Phase
    answer: Callable[[State], Answer] | None = None
    prepare: Callable[[State, Pooled], State] | None = None
    one_model_per_client: bool = False
    parts: tuple[Phase, ...] = ()


class JobRows(NamedTuple):
    """What the trained jobs of a plan leave for the run's tables.

    Attributes:
        loss: Mean training loss of each job, `[J]`, in the order of the plan.
        errors: Traceback of each job that failed, by its place in the plan.
    """

    loss: FloatArray
    errors: Mapping[int, str] = {}
