"""How one worker answers questions; and the runtime without Ray: one worker in this process, with the same bits.

Example:
    >>> cut_pieces([1200, 400], size=500)  # of two worlds with so many rows
    [(0, 0), (0, 500), (0, 1000), (1, 0)]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import groupby

import numpy as np
from torch import Tensor

from fedray.core.client_state import keep_vectors
from fedray.core.method import JobRows, Phase
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, IntArray, SizedPlan, State, Stats
from fedray.runtime import failures
from fedray.runtime.exchange import Piece
from fedray.runtime.stacking import make_worker
from fedray.runtime.worker import Worker
from fedray.simulation.study import Pieces, Question, Study

# ---------------------------------------------------------------------------------------------------------------------
# A question is cut into pieces of a fixed size, so that neither the number of workers nor their order shows in an
# answer. On the rows of a split a piece is (world, first row); of clients it is (world, place of the first one).

CLIENTS_A_PIECE = 32


def list_clients(study: Study, question: Question) -> Sequence[IntArray]:
    """Lists the ids of the clients of each world that a question asks; by default the known ones."""
    if question.clients is not None:
        return question.clients
    known = np.arange(min(study.clients.number, EVALUATED_CLIENTS))
    return [known] * (study.worlds if question.worlds is None else question.worlds)


def list_pieces(study: Study, question: Question) -> list[Piece]:
    """Lists the pieces of a question; clients that are asked at home are a piece each."""
    if question.split is None:
        numbers = [len(some) for some in list_clients(study, question)]
        return cut_pieces(numbers, 1 if question.at_home else CLIENTS_A_PIECE)
    count = study.worlds if question.worlds is None else question.worlds
    return cut_pieces([len(study.split(question.split, world)[1]) for world in range(count)], EVALUATED_ROWS)


def cut_pieces(numbers: list[int], size: int) -> list[Piece]:
    """Cuts the rows or clients of each world, of which there are `numbers`, into pieces of at most `size`."""
    return [(world, first) for world, number in enumerate(numbers) for first in range(0, number, size)]


def answer_pieces(worker: Worker, state: State, question: Question, pieces: Sequence[Piece]) -> Pieces:
    """Answers some pieces of a question.

    Args:
        worker: Computes.
        state: Holds the models.
        question: What is asked.
        pieces: Those that are answered here; of clients at home, those that live here.
    """
    study, found = worker.study, Pieces()
    if (split := question.split) is not None:
        read = lru_cache(maxsize=1)(partial(study.split, split))  # once for all pieces of a world: it may be a copy
        for world, first in pieces:
            x = read(world)[0][first : first + EVALUATED_ROWS]
            found[world, first] = question.compute(worker, state, world, x).cpu()
        return found
    clients = list_clients(study, question)
    if question.at_home:
        for world, of_world in groupby(pieces, key=lambda piece: piece[0]):
            keys = list(of_world)
            each = question.compute(worker, state, world, clients[world][[place for _, place in keys]])
            found |= zip(keys, each, strict=True)
        return found
    for world, first in pieces:
        compute, some = partial(question.compute, worker, state, world), clients[world][first : first + CLIENTS_A_PIECE]
        given = question.numbers, study.skip, study.client_timeout
        found[world, first] = failures.score_clients(compute, some, *given)
    return found


class Inline:
    """A runtime of one worker that is called directly; its methods are those of `simulation.study.Runtime`."""

    def __init__(self, study: Study, device: str = "cpu", threads: int = 1) -> None:
        self.worker = make_worker(study, device, threads)

    def train(self, t: int, jobs: SizedPlan, state: State, phase: Phase) -> tuple[Stats, JobRows]:
        """Trains the jobs of round t; see `Worker.train`."""
        return self.worker.train(t, jobs, state, phase)

    def ask(self, question: Question, state: State) -> Pieces:
        """Answers a question, piece after piece."""
        return answer_pieces(self.worker, state, question, list_pieces(self.worker.study, question))

    def private(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Private vectors of the clients, for a checkpoint; all, or those of some names."""
        return keep_vectors(self.worker.store.state(), names)

    def restore(self, private: dict[str, Tensor]) -> None:
        """Replaces the private vectors of the clients by those of a checkpoint."""
        self.worker.store.restore(private)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""
