"""Who answers with which weights: the models of a world, known clients, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedray.core import rng
from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, FloatArray, IntArray, State
from fedray.evaluation.regression import Members, drop_absent, predict_means, read_members, weigh_present
from fedray.metrics import ensemble
from fedray.simulation.study import Host, Pieces, Question, Runtime, Study, join_pieces

# ---------------------------------------------------------------------------------------------------------------------
# Who answers with which weights: the models of a world, known clients, and what is asked of them.

# ---------------------------------------------------------------------------------------------------------------------
# The outputs, weights and residuals of the models that answer, which one evaluation asks the runtime for.


class Measured(NamedTuple):
    """What the runtime computed for one evaluation; what is not needed stays empty.

    Attributes:
        answer: the models that answer.
        test: raw outputs on the test rows.
        held_out: raw outputs on the held-out rows.
        weights: of the known clients over these, `[N, K]` by world; empty: everybody has the same answer.
        own: accuracies or RMSEs of known clients with models of their own: (world, client) -> `[2, P]`.
        residual: mean training residual variance of each world (regression), in standardised units.
        ood: raw outputs on the out-of-distribution inputs.
    """

    answer: Answer
    test: Pieces
    held_out: Pieces
    weights: dict[int, FloatArray]
    own: dict[tuple[int, int], Tensor]
    residual: dict[int, float]
    ood: Pieces


# ---------------------------------------------------------------------------------------------------------------------
# The weights of known clients over the models that answer: by their losses, by their tiers, or those of everybody.


def has_client_weights(study: Study, answer: Answer) -> bool:
    """Whether known clients are scored with weights of their own: the scenario asks for it, or the method has tiers."""
    return not study.method.phase.is_personal and (study.evaluation.gamma is not None or answer.tiers is not None)


def needs_losses(study: Study, answer: Answer) -> bool:
    """Whether the losses of the models at the clients decide these weights, and not the tiers alone."""
    return answer.tiers is None or study.evaluation.gamma not in (None, np.inf)


def weigh_models(study: Study, answer: Answer, world: int, losses: Tensor, client: IntArray) -> FloatArray:
    """Returns each client's weights over the models that answer (FE eqs. 3-4).

    Where gamma is infinite or not given, a client takes over the weights of its tier, or those of everybody. A finite
    gamma weighs the models that its tier has, or all. Where each client has a model of its own, that one answers; if it
    has no weight, the client gets everybody's answer.

    Args:
        study: what was trained.
        answer: the models that answer.
        world: number of the world.
        losses: of each model at each client, `[A, n]`, also of those that do not answer.
        client: ids of the clients, `[n]`.

    Returns:
        The weights over the K models that answer, `[n, K]`.
    """
    if answer.tiers is not None:
        return _weigh_in_tiers(study, answer, world, losses, client)
    gamma = 0.0 if study.method.one_model_per_client else study.evaluation.gamma
    gamma = np.inf if gamma is None else gamma
    everybody = weigh_present(answer, world)
    if everybody is not None and gamma == np.inf:
        return np.tile(everybody, (len(client), 1))
    present = drop_absent(losses, answer, world).double().numpy()
    weights = ensemble.personal_weights(present.T, gamma)
    if everybody is not None and study.method.one_model_per_client:
        weights[(present > 0).all(axis=0)] = everybody
    return weights


def _weigh_in_tiers(study: Study, answer: Answer, world: int, losses: Tensor, client: IntArray) -> FloatArray:
    """Returns the same if tiers have weights: those of a tier act on its clients as `weights` on everybody."""
    assert answer.tiers is not None
    tier, weights = study.clients.tier_of(client), np.zeros((len(client), answer.models))
    for t in np.unique(tier).tolist():
        mine, heard = np.flatnonzero(tier == t), np.flatnonzero(answer.tiers[world, t] > 0)
        of_tier = answer._replace(weights=answer.tiers[:, t], tiers=None)
        found = weigh_models(study, of_tier, world, losses[:, torch.from_numpy(mine)], client[mine])
        weights[np.ix_(mine, heard)] = found
    return weights if answer.weights is None else weights[:, answer.weights[world] > 0]


def rank_own_models(models: int, client: IntArray) -> Tensor:
    """Returns losses by which client i chooses model i, `[K, n]`: 0 for that model, 1 for every other.

    Args:
        models: K.
        client: ids of the clients, `[n]`.

    Example:
        >>> rank_own_models(3, np.array([2, 0])).T.tolist()
        [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    """
    return torch.from_numpy((np.arange(models)[:, None] != client).astype(np.float32))


# ---------------------------------------------------------------------------------------------------------------------
# Known clients, one by one: the rows each is scored on, and the scores over clients.


class WeightedRows(NamedTuple):
    """The rows of a split that one client is scored on.

    Attributes:
        rows: places in the split, `[n]`; n = 0 where the client has none.
        weight: the weight of each row, `[n]`; they sum to 1.
    """

    rows: IntArray
    weight: FloatArray

    def mean(self, values: ArrayLike) -> FloatArray:
        """Returns the weighted mean of values `[..., n]` of these rows, `[...]`; NaN without rows.

        Values that are all 1 have the mean 1.0, and where the rows weigh the same, whole numbers are counted without
        rounding: with 13 weights of 1 / 13 the mean of 13 hits would be a little less than 1.

        Example:
            >>> float(WeightedRows(np.arange(13), np.full(13, 1 / 13)).mean(np.ones(13)))
            1.0
        """
        given = np.asarray(values, dtype=np.float64)
        if not len(self.rows):
            return np.asarray(np.nan)
        if (self.weight == self.weight[0]).all():
            return np.asarray(given.mean(axis=-1))
        return np.asarray((given * self.weight).sum(axis=-1) / self.weight.sum())


RowsOfClient = Callable[[int], WeightedRows]


def count_known(study: Study) -> int:
    """Counts the clients that are evaluated one by one: the first so many ids."""
    return min(study.clients.number, EVALUATED_CLIENTS)


def pick_recorded_clients(study: Study) -> IntArray:
    """Picks the known clients whose scores are recorded, `[n]`: all, or some, evenly spread over the ids."""
    known = count_known(study)
    wanted = min(study.evaluation.clients, known)
    return np.arange(wanted) * known // max(1, wanted)


def weigh_equally(rows: IntArray) -> WeightedRows:
    """Returns some rows, which all weigh the same."""
    return WeightedRows(rows, np.full(len(rows), 1.0 / max(1, len(rows))))


def own_test_rows(study: Study, world: int) -> RowsOfClient:
    """Returns a function: client -> the test rows that it is scored on.

    A client with test rows of its own is tested on them; otherwise on the test rows of the classes it holds, reweighted
    to its label shares, which is the expectation over test samples that follow its distribution. Where there are no
    classes it is tested on all test rows. Of copies (`fedray.data.deal`) these are the rows of its group's copy.
    """
    labels = study.split("test", world)[1].numpy()
    if study.classes:
        counts = study.shards.label_counts(world)[:EVALUATED_CLIENTS].astype(np.float64)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1.0)  # of each class, `[N, C]`

    def find(client: int) -> WeightedRows:
        own = study.shards.client_test(world, client)
        if own is not None:
            return weigh_equally(own)
        alike = study.shards.cluster_test(world, client)
        rows = np.arange(len(labels)) if alike is None else alike
        if not study.classes:
            return weigh_equally(rows)
        number = np.bincount(labels[rows], minlength=study.classes)
        each = np.where(number > 0, shares[client], 0.0) / np.maximum(number, 1)
        rows = rows[each[labels[rows]] > 0]
        weight = each[labels[rows]]
        return WeightedRows(rows, weight / max(float(weight.sum()), 1e-300))

    return find


def held_out_rows(study: Study, world: int) -> RowsOfClient:
    """Returns a function: client -> its held-out rows, which all weigh the same."""
    nothing = np.empty(0, np.int64)
    return lambda client: weigh_equally(study.shards.client_holdout(world, client) if study.hold_out else nothing)


def cast_votes(study: Study, world: int, outputs: Tensor) -> FloatArray:
    """Returns what each model adds to a client's answer: its vote for each class, or its targets in original units.

    Args:
        study: what was trained.
        world: number of the world.
        outputs: raw outputs of the models, `[K, n, outputs]`.

    Returns:
        `[K, n, C]`, or `[K, n, q]` for a regression.
    """
    if study.classes:
        return ensemble.member_votes(outputs.numpy(), study.evaluation.average)
    return predict_means(study, world, outputs)


def count_errors(study: Study, answers: NDArray[np.floating[Any]], y: Tensor) -> FloatArray:
    """Returns for each row 1 if the answer is right and else 0, or the squared error, the mean over targets.

    Args:
        study: what was trained.
        answers: weighted votes, `[..., n, C]` or `[..., n, q]`.
        y: classes `[n]`, or targets `[n, q]`.

    Returns:
        `[..., n]`.
    """
    if study.classes:
        hits: FloatArray = (answers.argmax(-1) == y.numpy()).astype(np.float64)
        return hits
    squares: FloatArray = ((answers - y.double().numpy().reshape(answers.shape[-2:])) ** 2).mean(-1)
    return squares


def rows_of_clients(study: Study, world: int, split: str) -> RowsOfClient:
    """Returns a function: client -> the rows of a split that it is scored on."""
    return own_test_rows(study, world) if split == "test" else held_out_rows(study, world)


Value = Callable[[int, IntArray | None], FloatArray]  # (client, rows of a split or all) -> numbers of each, `[..., n]`
Group = Callable[
    [int], int | None
]  # client -> what it has in common with those who get the same answers; None: nothing


def alike(weights: FloatArray | None) -> Group:
    """Groups all clients, where they have no weights of their own."""
    return lambda _client: 0 if weights is None else None


def value_each(
    clients: IntArray, find: RowsOfClient, value: Value, group: Group = lambda _client: None
) -> Iterator[tuple[WeightedRows, FloatArray]]:
    """Returns the rows of each client, and numbers of its answers there, `[..., n]`, client after client.

    So nobody holds the answers of all clients at once: thousands may have models of their own.

    Args:
        clients: their ids, `[N]`.
        find: the rows of a client.
        value: the numbers of a client's rows.
        group: the answers of a group are computed once, on all rows.
    """
    known: dict[int, FloatArray] = {}
    for client in clients.tolist():
        own, key = find(client), group(client)
        if not len(own.rows):
            yield own, np.empty(0)
        elif key is None:
            yield own, value(client, own.rows)
        else:
            if key not in known:
                known[key] = value(client, None)
            yield own, known[key].take(own.rows, axis=-1)


def measure_clients(
    study: Study,
    world: int,
    outputs: Tensor,
    weights: FloatArray | None,
    split: str = "test",
    *,
    clients: IntArray | None = None,
    everybody: FloatArray | None = None,
) -> FloatArray:
    """Returns accuracy, or RMSE, of the answers that clients get on their own rows of a split.

    Args:
        study: what was trained.
        world: number of the world.
        outputs: raw outputs of the models that answer on the whole split, `[K, n, C]`.
        weights: of clients over the models, `[N, K]`; rows sum to 1. None: all get everybody's answer.
        split: `test` or `hold_out`.
        clients: ids of those that are measured; None: those with weights.
        everybody: everybody's weights over the models, `[K]`; None: equal ones.

    Returns:
        `[N]`, accuracies from 0 to 1 or RMSEs in the target's units; NaN for a client without such rows.
    """
    y, votes = study.split(split, world)[1], cast_votes(study, world, outputs)
    votes = votes.astype(np.float32) if study.classes else votes  # of classes only the largest counts
    finite = bool(np.isfinite(votes).all())

    def count(client: int, rows: IntArray | None) -> FloatArray:
        if weights is not None and rows is not None:
            answers = ensemble.weigh_votes(weights[client], votes, rows, finite=finite)
            return count_errors(study, answers, y[torch.from_numpy(rows)])
        mean = votes.mean(axis=0) if everybody is None else np.tensordot(everybody.astype(votes.dtype), votes, axes=1)
        return count_errors(study, mean, y)

    clients = np.arange(0 if weights is None else len(weights)) if clients is None else clients
    each = value_each(clients, rows_of_clients(study, world, split), count, alike(weights))
    found = np.array([float(own.mean(errors)) for own, errors in each])
    return found if study.classes else np.sqrt(found)


def score_own_models(host: Host, state: State, world: int, client: IntArray) -> Iterator[Tensor]:
    """Scores known clients that answer with models of their own (Ditto, LG-FedAvg); see `ask_own_scores`.

    What the slice of a tier answers is computed once for all of its clients.

    Args:
        host: where the clients live.
        state: the broadcast models.
        world: number of the world.
        client: ids of the clients, `[c]`.
    """
    study, phase = host.study, host.study.method.phase
    shared = state.counters[world * phase.models : (world + 1) * phase.models]

    def ask(split: str) -> Iterator[tuple[WeightedRows, FloatArray]]:
        inputs, y = study.split(split, world)

        def count(client: int, rows: IntArray | None) -> FloatArray:
            """Whether the personal passes of a client err on rows of the split, or their squares, `[P, n]`."""
            own, errors = host.own_models(state, world, client), []
            counters = shared.repeat(len(own) // phase.models, 1)
            places = torch.arange(len(y)) if rows is None else torch.from_numpy(rows)
            for part in torch.split(places, EVALUATED_ROWS):
                votes = cast_votes(
                    study, world, host.forward(own, counters, world, inputs[part]).cpu()
                )  # [P * K, n, C]
                answers = votes.reshape(-1, phase.models, *votes.shape[1:]).mean(axis=1)  # [P, n, C]
                errors.append(count_errors(study, answers, y[part]))
            return np.concatenate(errors, axis=1)

        return value_each(client, rows_of_clients(study, world, split), count, find_tier)

    def find_tier(client: int) -> int | None:
        return None if not phase.nets else int(study.clients.tier_of(np.array([client]))[0])

    for both in zip(ask("test"), ask("hold_out"), strict=True):
        found = torch.empty(2, max(1, phase.passes - 1), dtype=torch.float64)
        for split, (own, errors) in enumerate(both):
            means = own.mean(errors)
            found[split] = torch.as_tensor(means if study.classes else np.sqrt(means))
        yield found


def ask_own_scores(runtime: Runtime, state: State) -> Pieces:
    """Asks known clients with models of their own for their scores.

    Args:
        runtime: where the clients live.
        state: the broadcast models.

    Returns:
        By (world, client), the accuracies or RMSEs `[2, P]` of the client's P personal passes: on its test rows and on
        its held-out rows. A client answers with the average over its K models of a pass; NaN where it has no such rows.
    """
    return runtime.ask(Question(score_own_models, at_home=True), state)


def pick_own_models(host: Host, state: State, world: int, client: int) -> Tensor:
    """Picks a known client's own models `[K, d]`: of several personal passes those best on its held-out rows.

    Args:
        host: where the client lives.
        state: the broadcast models.
        world: number of the world.
        client: the client's id.
    """
    rows = host.own_models(state, world, client)
    passes = rows.view(-1, host.study.method.phase.models, rows.shape[1])
    if len(passes) == 1:
        return passes[0]
    held_out = next(score_own_models(host, state, world, np.array([client])))[1]
    return passes[int(find_best_pass(held_out.numpy()[None], lowest=not host.study.classes)[0])]


def split_own_scores(own: dict[tuple[int, int], Tensor], world: int) -> tuple[FloatArray, FloatArray]:
    """Splits the scores of clients with own models into those on test and held-out rows: `[N, P]` each.

    Args:
        own: (world, client) -> `[2, P]`, one column for each personal pass.
        world: number of the world.
    """
    both = torch.stack([own[key] for key in sorted(own) if key[0] == world], dim=1).numpy()
    return both[0], both[1]


def pick_best_pass(test: FloatArray, held_out: FloatArray, lowest: bool = False) -> FloatArray:
    """Picks each client's score with the pass that did best on its held-out rows, `[N]`; the first in a tie.

    Args:
        test: score of each client with each pass, `[N, P]`.
        held_out: the same on its held-out rows, `[N, P]`; NaN where nothing was held out.
        lowest: whether the lowest score is the best, as of RMSEs.
    """
    best = find_best_pass(held_out, lowest)
    result: FloatArray = np.take_along_axis(test, best[:, None], axis=1)[:, 0]
    return result


def find_best_pass(held_out: FloatArray, lowest: bool) -> IntArray:
    """Returns the number of each client's best pass, `[N]`, from scores `[N, P]`; NaN is the worst."""
    best: IntArray = np.nan_to_num(-held_out if lowest else held_out, nan=-np.inf, neginf=-np.inf).argmax(axis=1)
    return best


def summarize_clients(scores: FloatArray, prefix: str = "", *, classes: bool = True) -> dict[str, float]:
    """Returns mean, worse tenth and worst of the clients' scores `[N]`, without clients that have none (NaN).

    Args:
        scores: accuracies, or RMSEs.
        prefix: of the names.
        classes: whether they are accuracies.

    Example:
        >>> summarize_clients(np.array([0.5, 1.0, np.nan]))
        {'personal_accuracy': 0.75, 'personal_p10': 0.55, 'personal_worst': 0.5}
        >>> summarize_clients(np.array([1.0, 2.0]), classes=False)
        {'personal_rmse': 1.5, 'personal_rmse_p90': 1.9, 'personal_rmse_worst': 2.0}
    """
    known = scores[~np.isnan(scores)]
    if not len(known):
        return {}
    if classes:
        found = {"accuracy": known.mean(), "p10": np.quantile(known, 0.1), "worst": known.min()}
    else:
        found = {"rmse": known.mean(), "rmse_p90": np.quantile(known, 0.9), "rmse_worst": known.max()}
    return {f"{prefix}personal_{name}": float(value) for name, value in found.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Any number of each row, and its mean over the rows of each known client, whatever answers there.
#
# That is the ensemble, the client's own weights over its models, or the client's own models in the process where they
# live. Conformal sets and the scores of known clients are written over it.

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
