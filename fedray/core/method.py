"""A method as data: its phases, what answers, and the rows that jobs leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor
from fedray.core.types import Compress, FloatArray, IntArray, Local, Plan, Server, State, Walk

LAYERS, PERSONAL_PREFIX = "layers", "personal/"  # private vectors: kept layers; the model of pass p is `personal/p`
Schedule = Callable[[int, State | None], Plan]
Pooled = Callable[[int], "tuple[Tensor, Tensor]"]  # world -> all its training rows as the networks see them


@dataclass(frozen=True)
class Phase:
    """One federated training: K models of one architecture, a schedule, local training, compression, a server."""

    models: int
    schedule: Schedule
    local: Local
    server: Server
    compress: Compress
    down_vectors: int = 1  # vectors of d numbers a client receives for each job
    up_vectors: int = 0  # dense vectors sent beside the compressed delta
    private: tuple[str, ...] = ()  # layers that stay with the client, who starts from its own (LG-FedAvg)
    personal: tuple[Local, ...] = ()  # passes on a model of the client's own, pulled to the broadcast one (Ditto)
    walk: Walk | None = None  # no server: where the models are

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the private vectors that clients keep between rounds."""
        correction = self.local.correction
        kept = ((correction.name,) if correction else ()) + ((LAYERS,) if self.private else ())
        return (*self.compress.own, *kept, *(f"{PERSONAL_PREFIX}{p}" for p in range(len(self.personal))))

    @property
    def is_personal(self) -> bool:
        """Whether known clients answer with models of their own."""
        return bool(self.private or self.personal)


class Answer(NamedTuple):
    """The models that answer for a state: rows `[R * A, d]`, A a world, and their weights `[R, A]` (None: equal)."""

    state: State
    models: int
    weights: FloatArray | None = None
    spread: Tensor | None = None  # of a Gaussian over a linear model's weights: variances `[R, d]` or covariances
    noise: FloatArray | None = None  # observation noise variances `[R]` the method knows, in standardised units
    owner: IntArray | None = None  # whose upload each model is, `[R, A]`, -1: nobody's


@dataclass(frozen=True)
class Method:
    """A paper: one federated training, and which models answer."""

    name: str
    phase: Phase
    answer: Callable[[State], Answer] | None = None  # None: the trained models themselves
    prepare: Callable[[State, Pooled], State] | None = None  # the first state from the data (closed forms)
    one_model_per_client: bool = False  # known client i answers with model i
    parts: tuple[Phase, ...] = ()  # of a stack: the training of each base, then the meta model's


class JobRows(NamedTuple):
    """One row a trained job, `[J]`, in the order of the plan; errors: place in the plan -> traceback of what failed."""

    loss: FloatArray
    errors: Mapping[int, str] = {}
