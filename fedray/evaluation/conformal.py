"""Conformal sets of one world: scores of withheld rows, the clients' threshold, and how the sets of other rows do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, FloatArray, IntArray, State
from fedray.evaluation.answers import (
    RowsOfClient,
    WeightedRows,
    held_out_rows,
    own_test_rows,
    pick_own_models,
    rows_of_clients,
)
from fedray.evaluation.regression import Members, read_members, weigh_present
from fedray.metrics import ensemble
from fedray.metrics.conformal import (
    ConformalRule,
    Sets,
    Threshold,
    cover_labels,
    cover_targets,
    find_threshold,
    score_labels,
    summarize_classes,
    weigh_clients,
)
from fedray.simulation.study import ClientScores, Host, Question, Runtime, Study

# ---------------------------------------------------------------------------------------------------------------------
# Conformal scores of rows: from the raw outputs of the models that answer, with everybody's weights or a client's
# own.


Own = dict[tuple[int, int], Tensor]  # what clients with models of their own say, by (world, client)


class RowAnswers(NamedTuple):
    """What the models that answer say about some rows.

    Attributes:
        votes: of each model, which their average sums up, `[K, n, C]`; None for a regression.
        members: means and variances of each model; None for classes.
        y: labels `[n]`, or targets `[n]` in their own unit.
        u: uniform numbers for the scores, `[n]`.
        weights: everybody's over the models, `[K]`; None: equal ones.
    """

    votes: FloatArray | None
    members: Members | None
    y: Any
    u: FloatArray
    weights: FloatArray | None = None


class RowScores(NamedTuple):
    """The scores of rows before a threshold is known.

    Attributes:
        labels: of each label, `[n, C]`; None for a regression.
        moments: mean and standard deviation of the answer, `[n]` each; None for classes.
        y: labels or targets, `[n]`.

    Example:
        >>> found = RowScores(np.array([[0.3, 0.8], [0.9, 0.2]]), None, np.array([0, 0]))
        >>> find_true_scores(found).tolist(), cover_rows(found, 0.8).covered.tolist()
        ([0.3, 0.9], [1.0, 0.0])
    """

    labels: FloatArray | None
    moments: tuple[FloatArray, FloatArray] | None
    y: Any


def draw_uniform(study: Study, world: int, split: str, rows: IntArray) -> FloatArray:
    """The uniform numbers of the scores of some rows of a split, `[n]`: a row has the same in every round."""
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
    """What models say about the rows of a split.

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
            return RowAnswers(answer.combine(world, ensemble.probabilities(outputs.numpy()))[None], None, y[rows], u)
        votes = ensemble.member_votes(outputs.numpy(), study.evaluation.average)
        if study.parts:  # a stack answers by its first row
            return RowAnswers(votes[:1], None, y[rows], u)
        return RowAnswers(votes, None, y[rows], u, weigh_present(answer, world))
    members = read_members(study, world, outputs, split, answer, rows=rows, residual=residual)
    return RowAnswers(None, members, members.y, u, members.weights)


def score_rows(
    study: Study, of: RowAnswers, rows: IntArray | None = None, weights: FloatArray | None = None
) -> RowScores:
    """The scores of some rows.

    Args:
        study: what was trained; it has a rule.
        of: what the models say.
        rows: places in `of`, `[n]`; None: all of them.
        weights: over the models, `[K]`; None: those of everybody.
    """
    weights = of.weights if weights is None else weights
    chosen: Any = slice(None) if rows is None else rows
    models: Any = slice(None) if weights is None else weights > 0
    w = None if weights is None else weights[models]
    if of.votes is not None:
        mean = ensemble.average(of.votes[models][:, chosen], "outputs", w)
        probs = ensemble.probabilities(mean) if study.evaluation.average == "logits" else mean
        return RowScores(score_labels(probs, of.u[chosen], get_rule(study)), None, of.y[chosen])
    assert of.members is not None
    own = None if of.members.variances is None else of.members.variances[models][:, chosen]
    moments = ensemble.mixture_moments(of.members.means[models][:, chosen], w, own)
    sd = np.sqrt(np.maximum(moments.variance + of.members.noise, of.members.floor))
    return RowScores(None, (moments.mean, sd), of.y[chosen])


def get_rule(study: Study) -> ConformalRule:
    """The rule of a study that has one."""
    assert study.evaluation.conformal is not None
    return study.evaluation.conformal


def find_true_scores(found: RowScores) -> FloatArray:
    """The scores of the right answers, `[n]`."""
    if found.labels is not None:
        return np.asarray(found.labels[np.arange(len(found.y)), found.y])
    assert found.moments is not None
    mean, sd = found.moments
    return np.asarray(np.abs(found.y - mean) / sd)


def cover_rows(found: RowScores, threshold: float) -> Sets:
    """What the sets of rows hold."""
    if found.labels is not None:
        return cover_labels(found.labels, found.y, threshold)
    assert found.moments is not None
    return cover_targets(*found.moments, found.y, threshold)


# ---------------------------------------------------------------------------------------------------------------------
# How conformal sets do for each known client: which of its rows count, and coverage and size over them.


class ClientSets(NamedTuple):
    """How the sets of the known clients do, NaN for a client without rows.

    Attributes:
        coverage: share of the client's rows whose answer is inside, `[N]`.
        size: mean labels in a set, or width of an interval, `[N]`.
    """

    coverage: FloatArray
    size: FloatArray


def list_withheld(study: Study, world: int) -> list[IntArray]:
    """The places of each known client's rows among the withheld ones, `[n_k]` each."""
    find = held_out_rows(study, world)
    return [find(client).rows for client in range(min(study.clients.number, EVALUATED_CLIENTS))]


def keep_scored(own: WeightedRows) -> WeightedRows:
    """Every second of a client's withheld rows, which held-out metrics score; they calibrate on the others.

    Args:
        own: all of its withheld rows.
    """
    rows = own.rows[1::2]
    return WeightedRows(rows, np.full(len(rows), 1.0 / max(1, len(rows))))


def cover_alike(sets: Sets, find: RowsOfClient, clients: int) -> ClientSets:
    """How the sets that everybody shares do on the rows of each client.

    Args:
        sets: of all rows of a split.
        find: the rows of a client.
        clients: N.

    Example:
        >>> sets = Sets(covered=np.array([1.0, 0.0, 1.0]), size=np.array([2.0, 1.0, 3.0]))
        >>> rows = [WeightedRows(np.array([0, 1]), np.array([0.5, 0.5])), WeightedRows(np.array([2]), np.ones(1))]
        >>> cover_alike(sets, lambda client: rows[client], clients=2)
        ClientSets(coverage=array([0.5, 1. ]), size=array([1.5, 3. ]))
    """
    return _join(weigh_sets(sets, find(client)) for client in range(clients))


def cover_weighted(
    study: Study, of: RowAnswers, find: RowsOfClient, weights: FloatArray, threshold: Threshold
) -> ClientSets:
    """How the sets of clients with weights of their own do on their rows.

    Args:
        study: what was trained.
        of: what the models say of a split.
        find: the rows of a client.
        weights: of the clients over the models, `[N, K]`.
        threshold: the largest score inside of a set.
    """

    def cover(client: int) -> tuple[float, float]:
        own = find(client)
        sets = cover_rows(score_rows(study, of, own.rows, weights[client]), threshold.value)
        return weigh_sets(sets, own._replace(rows=np.arange(len(own.rows))))

    return _join(cover(client) for client in range(len(weights)))


def weigh_sets(sets: Sets, own: WeightedRows) -> tuple[float, float]:
    """Coverage and mean size over a client's rows; NaN without any.

    Args:
        sets: of rows, among which the client's are.
        own: their places, and the weight of each.
    """
    if not len(own.rows):
        return np.nan, np.nan
    return float(own.mean(sets.covered[own.rows])), float(own.mean(sets.size[own.rows]))


def _join(pairs: Any) -> ClientSets:
    table = np.array(list(pairs), dtype=np.float64).reshape(-1, 2)
    return ClientSets(table[:, 0], table[:, 1])


def score_own_sets(
    host: Host, state: State, world: int, client: IntArray, *, thresholds: FloatArray | None, split: str
) -> Iterator[Tensor]:
    """What known clients say of their own answers: scores to calibrate by, or how their sets do; see `ask_own_sets`.

    Args:
        host: where the clients live.
        state: the broadcast models.
        world: number of the world.
        client: ids of the clients, `[c]`.
        thresholds: the largest score inside of a set, `[worlds]`; None: it is not known yet.
        split: `test`, or `hold_out` for the withheld rows that are scored.
    """
    study, models = host.study, host.study.method.phase.models
    shared, find = state.counters[world * models : (world + 1) * models], rows_of_clients(study, world, split)
    inputs = study.split(split, world)[0]
    for i in client.tolist():
        own = find(i)
        if thresholds is not None and split == "hold_out":
            own = keep_scored(own)
        if not len(own.rows):
            yield torch.full((0 if thresholds is None else 2,), torch.nan, dtype=torch.float64)
            continue
        rows, parts = pick_own_models(host, state, world, i), torch.split(torch.from_numpy(own.rows), EVALUATED_ROWS)
        outputs = torch.cat([host.forward(rows, shared, world, inputs[part]).cpu() for part in parts], dim=1)
        answer = Answer(State(rows, shared, {}), models)
        found = score_rows(study, read_answers(study, world, outputs, split, answer, rows=own.rows))
        if thresholds is None:
            yield torch.from_numpy(find_true_scores(found))
        else:
            in_order = own._replace(rows=np.arange(len(own.rows)))
            yield torch.tensor(weigh_sets(cover_rows(found, float(thresholds[world])), in_order), dtype=torch.float64)


def ask_own_sets(runtime: Runtime, state: State, thresholds: FloatArray | None = None, split: str = "hold_out") -> Own:
    """Asks known clients with models of their own how their conformal sets do.

    Args:
        runtime: where the clients live.
        state: the broadcast models.
        thresholds: the largest score inside of a set, `[worlds]`; None: it is not known yet.
        split: `test`, or `hold_out` for every second withheld row.

    Returns:
        By (world, client): scores of the right answers of the client's withheld rows, `[n_k]`; with thresholds coverage
        and mean size of the sets of its rows, `[2]`, NaN where it has none.
    """
    compute = partial(score_own_sets, thresholds=thresholds, split=split)
    return runtime.ask(Question(compute, at_home=True), state)


# ---------------------------------------------------------------------------------------------------------------------
# New clients get the answer of the ensemble, and the threshold comes from that answer's scores. Known clients with
# weights or models of their own are scored, calibrated and tested with these. Held-out metrics, which sweeps read,
# calibrate on every other withheld row of a client and score the rest.


class WorldOutputs(NamedTuple):
    """What the runtime computed for the sets of one world.

    Attributes:
        answer: the models that answer.
        held_out: raw outputs of those that have a weight on the withheld rows, `[K, n, C]`.
        test: the same on the test rows; None: they are left alone.
        weights: of the known clients over the models, `[N, K]`; None: everybody has the same answer.
        residual: mean training residual variance (regression), in standardized units; None: unknown.
    """

    answer: Answer
    held_out: Tensor
    test: Tensor | None
    weights: FloatArray | None = None
    residual: float | None = None


class Thresholds(NamedTuple):
    """The thresholds of one world.

    Attributes:
        everybody: for the answer of the ensemble.
        known: for known clients with weights or models of their own; else that of everybody.
    """

    everybody: Threshold
    known: Threshold


class OwnSets(NamedTuple):
    """Coverage and mean size of the sets of clients with models of their own, `[2]` by (world, client).

    Attributes:
        test: of their test rows; None: these are left alone.
        held_out: of the withheld rows that are scored.
    """

    test: Own | None
    held_out: Own


def calibrate(study: Study, world: int, given: WorldOutputs, own: Own | None = None) -> Thresholds:
    """The thresholds of a world.

    Args:
        study: what was trained; it has a rule.
        world: number of the world.
        given: raw outputs on the withheld rows.
        own: scores of the withheld rows of clients with models of their own, `[n_k]` each; None: there are none.
    """
    rule, rows_of = get_rule(study), list_withheld(study, world)
    of = read_answers(study, world, given.held_out, "hold_out", given.answer, residual=given.residual)
    true = find_true_scores(score_rows(study, of))
    everybody = find_threshold([true[rows] for rows in rows_of], rule)
    if own is not None:
        each = [own[world, client].numpy() for client in range(len(rows_of))]
        return Thresholds(everybody, find_threshold(each, rule))
    if given.weights is None:
        return Thresholds(everybody, everybody)
    pairs = zip(rows_of, given.weights, strict=True)
    each = [find_true_scores(score_rows(study, of, rows, weights)) for rows, weights in pairs]
    return Thresholds(everybody, find_threshold(each, rule))


def measure_all_sets(
    study: Study, runtime: Runtime, state: State, given: Sequence[WorldOutputs]
) -> list[tuple[dict[str, Any], ClientSets | None]]:
    """Metrics of the sets of each world, and how they do for each known client, as `measure_sets`.

    Args:
        study: what was trained; it has a rule.
        runtime: where clients with models of their own answer.
        state: the broadcast models.
        given: raw outputs of the first worlds, or of all.
    """
    if not study.method.phase.is_personal:
        return [measure_sets(study, w, one, calibrate(study, w, one)) for w, one in enumerate(given)]
    own = ask_own_sets(runtime, state)
    found = [calibrate(study, w, one, own) for w, one in enumerate(given)]
    clients = range(min(study.clients.number, EVALUATED_CLIENTS))
    halves = [
        find_threshold([own[w, client].numpy()[::2] for client in clients], get_rule(study)) for w in range(len(given))
    ]
    held_out = ask_own_sets(runtime, state, _fill_worlds(study, halves))
    tested = any(one.test is not None for one in given)
    known = _fill_worlds(study, [one.known for one in found])
    covered = ask_own_sets(runtime, state, known, "test") if tested else None
    return [measure_sets(study, w, one, found[w], OwnSets(covered, held_out)) for w, one in enumerate(given)]


def _fill_worlds(study: Study, thresholds: Sequence[Threshold]) -> FloatArray:
    """The thresholds of all worlds, `[worlds]`, of which the first ones are known."""
    values = np.full(study.worlds, np.inf)
    values[: len(thresholds)] = [one.value for one in thresholds]
    return values


def measure_sets(
    study: Study, world: int, given: WorldOutputs, thresholds: Thresholds, own: OwnSets | None = None
) -> tuple[dict[str, Any], ClientSets | None]:
    """Metrics of a world's sets on test rows and on withheld ones, and how they do for each known client.

    Args:
        study: what was trained; it has a rule.
        world: number of the world.
        given: raw outputs.
        thresholds: of this world.
        own: sets of clients with models of their own; None: there are none.

    Returns:
        Numbers by name, and what the known clients get on their test rows; None where these are left alone.
    """
    scores = _score_held_out(study, world, given, None if own is None else own.held_out)
    if given.test is None:
        return scores, None
    of = read_answers(study, world, given.test, "test", given.answer, residual=given.residual)
    sets = cover_rows(score_rows(study, of), thresholds.everybody.value)
    find, sizes = own_test_rows(study, world), np.array([len(rows) for rows in list_withheld(study, world)])
    sent = thresholds.everybody.bytes
    if own is not None and own.test is not None:
        clients, sent = _read_own(own.test, world, len(sizes)), sent + thresholds.known.bytes
    elif given.weights is not None:
        clients, sent = cover_weighted(study, of, find, given.weights, thresholds.known), sent + thresholds.known.bytes
    else:
        clients = cover_alike(sets, find, len(sizes))
    scores |= _summarize(study, sets, of.y, clients, sizes)
    return scores | {"conformal_bytes": float(sent), "conformal_threshold": thresholds.everybody.value}, clients


def _read_own(own: Own, world: int, clients: int) -> ClientSets:
    """What clients with models of their own found out about their sets."""
    each = np.stack([own[world, client].numpy() for client in range(clients)])
    return ClientSets(each[:, 0], each[:, 1])


def _score_held_out(study: Study, world: int, given: WorldOutputs, own: Own | None) -> dict[str, Any]:
    """Metrics on every second withheld row of each client, calibrated on the others; without rows there are none."""
    of = read_answers(study, world, given.held_out, "hold_out", given.answer, residual=given.residual)
    found, rows_of, withheld = score_rows(study, of), list_withheld(study, world), held_out_rows(study, world)
    true = find_true_scores(found)
    threshold = find_threshold([true[rows[::2]] for rows in rows_of], get_rule(study))
    tested = np.concatenate([rows[1::2] for rows in rows_of])
    if not len(tested):
        return {}
    sets, sizes = cover_rows(found, threshold.value), np.array([len(rows[::2]) for rows in rows_of])

    def find(client: int) -> WeightedRows:
        return keep_scored(withheld(client))

    if own is not None:
        clients = _read_own(own, world, len(rows_of))
    elif given.weights is not None:
        pairs = zip(rows_of, given.weights, strict=True)
        each = [find_true_scores(score_rows(study, of, rows[::2], weights)) for rows, weights in pairs]
        clients = cover_weighted(study, of, find, given.weights, find_threshold(each, get_rule(study)))
    else:
        clients = cover_alike(sets, find, len(rows_of))
    chosen = Sets(sets.covered[tested], sets.size[tested])
    scores = _summarize(study, chosen, of.y[tested], clients, sizes)
    return {f"hold_out_{name}": value for name, value in scores.items() if isinstance(value, float)}


def _summarize(study: Study, sets: Sets, y: Any, clients: ClientSets, sizes: IntArray) -> dict[str, Any]:
    """Metrics of sets `[n]` and of clients `[N]`, of whom each withheld so many rows, `[N]`."""
    what, known = name_size(study), ~np.isnan(clients.coverage)
    found: dict[str, Any] = {
        "conformal_coverage": float(sets.covered.mean()),
        f"conformal_{what}": float(sets.size.mean()),
    }
    if known.any():
        found["conformal_coverage_client_worst"] = float(clients.coverage[known].min())
    shares = np.where(known, weigh_clients(sizes), 0.0)
    if shares.sum() > 0:
        mixed = shares > 0
        weights = shares[mixed] / shares.sum()
        found["conformal_coverage_clients"] = float((weights * clients.coverage[mixed]).sum())
        found[f"conformal_{what}_clients"] = float((weights * clients.size[mixed]).sum())
    if study.classes:
        each = summarize_classes(sets.covered, y, study.classes)
        found["conformal_coverage_class"] = each.tolist()
        found["conformal_coverage_class_worst"] = float(np.nanmin(each))
    return found


def add_client_sets(study: Study, scores: ClientScores | None, sets: ClientSets | None) -> ClientScores | None:
    """The recorded scores of clients with those of their sets, where both are there.

    Args:
        study: what was trained.
        scores: of some clients, `[n]`; None: none are recorded.
        sets: of all known clients, `[N]`; None: there are none.
    """
    if scores is None or sets is None:
        return scores
    columns = {"conformal_coverage": sets.coverage, f"conformal_{name_size(study)}": sets.size}
    return scores._replace(scores=scores.scores | {name: each[scores.client] for name, each in columns.items()})


def name_size(study: Study) -> str:
    """What the size of a set is called in metrics: that of labels, or the width of an interval."""
    return "size" if study.classes else "width"
