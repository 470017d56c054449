"""Any number of each row, and its mean over the rows of each known client, whatever answers there.

That is the ensemble, the client's own weights over its models, or the client's own models in the process where they
live. Conformal sets and the scores of known clients are written over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.method import Answer
from fedray.core.types import EVALUATED_ROWS, FloatArray, IntArray, State
from fedray.evaluation.answers import (
    Measured,
    RowsOfClient,
    WeightedRows,
    alike,
    count_known,
    pick_own_models,
    rows_of_clients,
    value_each,
    weigh_equally,
)
from fedray.evaluation.regression import Members, drop_absent, read_members, weigh_present
from fedray.metrics import ensemble
from fedray.simulation.questions import join_pieces
from fedray.simulation.study import Host, Question, Runtime, Study

Own = dict[tuple[int, int], Tensor]  # what clients with models of their own say, by (world, client)


class RowAnswers(NamedTuple):
    """What the models that answer say about some rows.

    Attributes:
        votes: of each model, which their average sums up, `[K, n, C]`; None for a regression.
        members: means and variances of each model; None for classes.
        y: labels `[n]`, or targets `[n]` in their own unit.
        u: a uniform number of each row, `[n]`, for scores that draw.
        weights: everybody's over the models, `[K]`; None: equal ones.
    """

    votes: FloatArray | None
    members: Members | None
    y: Any
    u: FloatArray
    weights: FloatArray | None = None


class Joined(NamedTuple):
    """Returns what the models say together about some rows.

    Attributes:
        y: labels or targets, `[n]`.
        probs: of each class, `[n, C]`; None for a regression.
        mean: of each target, `[n]`; None for classes, as `sd`.
        sd: standard deviation of the answer, `[n]`.
    """

    y: Any
    probs: Any = None
    mean: Any = None
    sd: Any = None


# (study, world, what models say, rows or all, weights or everybody's) -> numbers of each row, `[..., n]`; a function of
# a module or a `partial` of one
Measure = Callable[[Study, int, RowAnswers, IntArray | None, FloatArray | None], FloatArray]


class Inquiry(NamedTuple):
    """What is asked about the answers to the rows of a split.

    Attributes:
        split: `test` or `hold_out`.
        measure: numbers of each row, `[n]`, or `[means, n]`.
        means: how many means over its rows a client says; 0: it says the numbers of its rows themselves.
        halved: whether every second row of a client is asked about, and the others not.
    """

    split: str
    measure: Measure
    means: int = 0
    halved: bool = False

    def rows(self, study: Study, world: int) -> RowsOfClient:
        """Returns a function: client -> the rows that it is asked about."""
        find = rows_of_clients(study, world, self.split)
        return (lambda client: weigh_equally(find(client).rows[1::2])) if self.halved else find

    def say(self, each: Iterator[tuple[WeightedRows, FloatArray]]) -> Iterator[FloatArray]:
        """Returns what each client says of the numbers of its rows; means of no rows are NaN."""
        for own, values in each:
            yield np.full(self.means, own.mean(values)) if self.means else values


def draw_uniform(study: Study, world: int, split: str, rows: IntArray) -> FloatArray:
    """Draws a uniform number for each of some rows of a split, `[n]`: a row has the same in every round."""
    return rng.uniform(rng.keys(int(study.seeds[world]), f"conformal {split}", rows), 1)[..., 0]


def read_answers(
    study: Study,
    world: int,
    outputs: Tensor,
    split: str,
    answer: Answer,
    *,
    rows: IntArray | None = None,
    residual: float | None = None,
) -> RowAnswers:
    """Returns what models say about the rows of a split.

    Args:
        study: what was trained.
        world: number of the world.
        outputs: raw outputs of the models that answer on these rows, `[K, n, C]`.
        split: `test` or `hold_out`.
        answer: the models that answer.
        rows: places in the split, `[n]`; None: all of them.
        residual: mean training residual variance in standardized units, if known.
    """
    y = study.split(split, world)[1].numpy()
    rows = np.arange(len(y)) if rows is None else rows
    u = draw_uniform(study, world, split, rows)
    if study.classes:
        if answer.combine is not None:  # one voter, who says what the rule says
            votes = answer.combine(world, ensemble.probabilities(outputs.numpy()))[None]
            return RowAnswers(votes, None, y[rows], u)
        votes = ensemble.member_votes(outputs.numpy(), study.evaluation.average)
        return RowAnswers(votes, None, y[rows], u, weigh_present(answer, world))
    members = read_members(study, world, outputs, split, answer, rows=rows, residual=residual)
    return RowAnswers(None, members, members.y, u, members.weights)


def read_world(study: Study, world: int, measured: Measured, split: str) -> RowAnswers:
    """Returns what the models that answer say about all rows of a split.

    Args:
        study: what was trained.
        world: number of the world.
        measured: what the runtime computed.
        split: `test` or `hold_out`.
    """
    outputs = join_pieces(measured.test if split == "test" else measured.held_out, world)
    outputs = drop_absent(outputs, measured.answer, world)
    return read_answers(study, world, outputs, split, measured.answer, residual=measured.residual.get(world))


def join_answers(
    study: Study, of: RowAnswers, rows: IntArray | None = None, weights: FloatArray | None = None
) -> Joined:
    """What the models say together about some rows.

    Args:
        study: what was trained.
        of: what each of them says.
        rows: places in `of`, `[n]`; None: all of them.
        weights: over the models, `[K]`; None: those of everybody.
    """
    weights = of.weights if weights is None else weights
    chosen: Any = slice(None) if rows is None else rows
    models: Any = slice(None) if weights is None else weights > 0
    w = None if weights is None else weights[models]
    if of.votes is not None:
        mean = ensemble.average(of.votes[models][:, chosen], "outputs", w)
        return Joined(of.y[chosen], ensemble.probabilities(mean) if study.evaluation.average == "logits" else mean)
    assert of.members is not None
    own = None if of.members.variances is None else of.members.variances[models][:, chosen]
    moments = ensemble.mixture_moments(of.members.means[models][:, chosen], w, own)
    sd = np.sqrt(np.maximum(moments.variance + of.members.noise, of.members.floor))
    return Joined(of.y[chosen], mean=moments.mean, sd=sd)


def find_weights(study: Study, world: int, measured: Measured) -> FloatArray | None:
    """Returns the known clients' weights, `[N, K]`; None: all get everybody's answer, as of a stack."""
    return None if study.parts else measured.weights.get(world)


def tell_known(
    study: Study,
    world: int,
    measured: Measured,
    of: RowAnswers,
    inquiry: Inquiry,
    *,
    own: Own | None,
    everybody: FloatArray | None = None,
) -> list[FloatArray]:
    """Returns what each known client says about the answers that it gets, `[means]` or `[n_k]` each.

    Args:
        study: what was trained.
        world: number of the world.
        measured: what the runtime computed.
        of: what the models say about all rows of the inquiry's split.
        inquiry: what is asked.
        own: what clients with models of their own say (`ask_own`); None: there are none.
        everybody: the numbers of all rows by everybody's answer, where they are known.
    """
    clients, weights = np.arange(count_known(study)), find_weights(study, world, measured)
    if own is not None:
        return [own[world, client].numpy() for client in clients.tolist()]

    def value(client: int, rows: IntArray | None) -> FloatArray:
        if weights is not None:
            return inquiry.measure(study, world, of, rows, weights[client])
        return inquiry.measure(study, world, of, None, None) if everybody is None else everybody

    return list(inquiry.say(value_each(clients, inquiry.rows(study, world), value, alike(weights))))


def tell_own(host: Host, state: State, world: int, client: IntArray, *, inquiry: Inquiry) -> Iterator[Tensor]:
    """Returns what known clients say that answer with models of their own, where they live; see `ask_own`.

    Args:
        host: where the clients live.
        state: the broadcast models.
        world: number of the world.
        client: ids of the clients, `[c]`.
        inquiry: what is asked.
    """
    study, models = host.study, host.study.method.phase.models
    shared, x = state.counters[world * models : (world + 1) * models], study.split(inquiry.split, world)[0]

    def value(client: int, rows: IntArray | None) -> FloatArray:
        own = pick_own_models(host, state, world, client)
        parts = torch.split(torch.from_numpy(rows), EVALUATED_ROWS)
        outputs = torch.cat([host.forward(own, shared, world, x[part]).cpu() for part in parts], dim=1)
        answer = Answer(State(own, shared, {}), models)
        said = read_answers(study, world, outputs, inquiry.split, answer, rows=rows)
        return inquiry.measure(study, world, said, None, None)

    return map(torch.tensor, inquiry.say(value_each(client, inquiry.rows(study, world), value)))


def ask_own(runtime: Runtime, state: State, inquiry: Inquiry) -> Own:
    """Asks known clients with models of their own about their answers.

    Args:
        runtime: where the clients live.
        state: the broadcast models.
        inquiry: what is asked.

    Returns:
        By (world, client) what the client says, `[means]` or `[n_k]`.
    """
    return runtime.ask(Question(partial(tell_own, inquiry=inquiry), at_home=True), state)
