"""A piece of a client's job: what some methods do before and behind its training, and what the rooms must know of it.

The usual job has no pieces: it starts from the broadcast model, trains, and sends the difference. Each piece of
`Phase.pieces` changes the local updates of a block before they are trained (`begin`) and behind it (`end`), in the
order of the tuple. Everything else that a piece needs is a fact that schedules, clocks, engines and runtimes ask of
all pieces alike, so that none of them knows a feature by its name.

Example:
    >>> from fedray.features.vectors import Vectors
    >>> piece = Vectors(down=1)  # the server sends a vector beside each model
    >>> piece.down_vectors, piece.up_vectors, piece.keeps
    (1, 0, ())
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fedray.core.types import FloatArray, IntArray, Net, Plan, SizedPlan, State, Stats

if TYPE_CHECKING:
    from fedray.core.method import Local


class Piece:
    """What all pieces have: a piece overrides what is true of it.

    Attributes:
        takes: The arguments of the functions that a piece of this kind is made of, by their names.
    """

    takes: ClassVar[Mapping[str, str]] = {}

    def begin(self, update: Any) -> Any:
        """Changes the local updates of a block (`training.update.Update`) before they are trained."""
        return update

    def end(self, update: Any) -> Any:
        """Changes what they have become, what the clients keep of it, and what they send."""
        return update

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the private vectors that clients keep between rounds."""
        return ()

    @property
    def kept_numbers(self) -> int | None:
        """Numbers of each of these vectors; None: as many as a model has."""
        return None

    @property
    def stays(self) -> tuple[str, ...]:
        """Layers of the network that never leave the client."""
        return ()

    @property
    def up_vectors(self) -> int:
        """Vectors of a model's length that a client sends beside its delta."""
        return 0

    @property
    def down_vectors(self) -> int:
        """Vectors of a model's length that a client receives beside the model."""
        return 0

    @property
    def up_numbers(self) -> int:
        """Further numbers that a job sends."""
        return 0

    @property
    def passes(self) -> int:
        """Further trainings of a job, of as many steps."""
        return 0

    @property
    def locals(self) -> tuple[Local, ...]:
        """How clients train in these."""
        return ()

    def with_locals(self, change: Callable[[Local], Local]) -> Piece:
        """Returns the piece with other ways to train in its trainings."""
        return self

    @property
    def couples(self) -> bool:
        """Whether the models of a client read each other in every step, so that its K jobs must share a block."""
        return False

    @property
    def reads_models(self) -> bool:
        """Whether a job reads all models of its world, not its own alone."""
        return False

    @property
    def reads_final(self) -> bool:
        """Whether it reads the trained models themselves, and not only what training has changed."""
        return False

    @property
    def calls_module(self) -> bool:
        """Whether it runs the network's module, which then trains one block at a time."""
        return False

    @property
    def begins(self) -> int:
        """The first round whose scores are the method's."""
        return 0

    def group(self, t: int) -> Hashable:
        """Returns what jobs from models of different rounds must have in common to share a block."""
        return None

    @property
    def nets(self) -> Sequence[Net]:
        """The network that each tier trains; empty: all train the whole one."""
        return ()

    def columns(self, t: int, tier: int) -> Tensor:
        """Returns where the numbers of a tier's network lie in the row of the whole one, `[s]`, rising."""
        raise NotImplementedError

    def work(self, tier: IntArray) -> FloatArray | None:
        """Arithmetic of a step as a share of the whole network's, `[J]`; None: all of it."""
        return None

    @property
    def answers(self) -> bool:
        """Whether known clients answer with models of their own."""
        return False

    def own_models(self, site: Any, plan: Plan, broadcast: Tensor, tier: int) -> Tensor:
        """Returns the models with which a known client answers.

        Args:
            site: The worker on which the client lives (`training.update.Site`).
            plan: The client's K jobs.
            broadcast: The models of the server, `[K, d]`.
            tier: The client's.

        Returns:
            K models, or K of each further training, `[P * K, d]`.
        """
        raise NotImplementedError

    @property
    def weighs(self) -> bool:
        """Whether known clients weigh the answers of all models by weights of their own."""
        return False

    def describe(self) -> tuple[str, str] | None:
        """What `fedray check` says of it, and in which line; None: nothing."""
        return None


class KeepModel(Piece):
    """A client keeps the model that it has trained, which a loss reads the next time (MOON)."""

    NAME = "previous"

    @property
    def keeps(self) -> tuple[str, ...]:
        return (self.NAME,)

    @property
    def reads_final(self) -> bool:
        return True

    def end(self, update: Any) -> Any:
        return update.keep(**{self.NAME: update.final})


class Work:
    """What clients do in place of descending, one job at a time, on a processor.

    `kept` is what a process remembers between rounds: nothing that it could not compute again.
    """

    def begin(self, site: Any, kept: dict[Any, Any], t: int, state: State) -> None:
        """Prepares a process for the jobs of round t.

        Args:
            site: The worker (`training.update.Site`).
            kept: What the process remembers.
            t: The round, from 0.
            state: What the server knows.
        """

    def do(self, site: Any, kept: dict[Any, Any], t: int, job: SizedPlan, state: State) -> tuple[Stats, Tensor]:
        """Does one job: the statistics for the server's step, and the job's loss, `[1]`."""
        raise NotImplementedError

    def kept_numbers(self, d: int) -> int:
        """Numbers of each upload that the statistics of a round hold by themselves, for models of d numbers."""
        return d

    def describe(self) -> tuple[str, str]:
        """What does it, and what it does, in the place of an engine's name and reason."""
        return type(self).__name__, "its work is code"
