"""Conformal sets of one world: scores of withheld rows, the clients' threshold, and how the sets of other rows do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    held_out_rows,
    pick_own_models,
    rows_of_clients,
    value_each,
)
from fedray.evaluation.regression import Members, drop_absent, read_members, weigh_present
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
from fedray.simulation.questions import join_pieces
from fedray.simulation.study import ClientScores, Host, Question, Runtime, Study

# ---------------------------------------------------------------------------------------------------------------------
# Conformal scores of rows: from the raw outputs of the models that answer, with everybody's weights or a client's
# own.


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
        >>> measure_rows(found, None).tolist(), measure_rows(found, 0.8).tolist()
        ([0.3, 0.9], [[1.0, 0.0], [2.0, 1.0]])
    """

    labels: FloatArray | None
    moments: tuple[FloatArray, FloatArray] | None
    y: Any


def draw_uniform(study: Study, world: int, split: str, rows: IntArray) -> FloatArray:
    """Draws the uniform numbers of the scores of some rows, `[n]`: a row has the same in every round."""
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
    """Scores some rows.

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
    """Returns the rule of a study that has one."""
    assert study.evaluation.conformal is not None
    return study.evaluation.conformal


def measure_rows(found: RowScores, threshold: float | None) -> FloatArray:
    """Returns numbers of each row: the score of its right answer, `[n]`, or what its set holds, `[2, n]` (`Sets`).

    Args:
        found: the scores.
        threshold: the largest score inside of a set; None: it is not known yet.
    """
    if found.labels is not None:
        if threshold is None:
            return np.asarray(found.labels[np.arange(len(found.y)), found.y])
        return np.stack(cover_labels(found.labels, found.y, threshold))
    assert found.moments is not None
    mean, sd = found.moments
    if threshold is None:
        return np.asarray(np.abs(found.y - mean) / sd)
    return np.stack(cover_targets(mean, sd, found.y, threshold))


# ---------------------------------------------------------------------------------------------------------------------
# What each known client says of its rows: scores of its right answers, from which a threshold follows; and with one,
# how its sets do. Held-out metrics, which sweeps read, calibrate on every other withheld row of a client and score the
# rest.

Own = dict[tuple[int, int], Tensor]  # what clients with models of their own say, by (world, client)


class ClientSets(NamedTuple):
    """How the sets of the known clients do, NaN for a client without rows.

    Attributes:
        coverage: share of the client's rows whose answer is inside, `[N]`.
        size: mean labels in a set, or width of an interval, `[N]`.
    """

    coverage: FloatArray
    size: FloatArray


def list_withheld(study: Study, world: int) -> list[IntArray]:
    """Returns the places of each known client's rows among the withheld ones, `[n_k]` each."""
    find = held_out_rows(study, world)
    return [find(client).rows for client in range(count_known(study))]


def find_asked_rows(study: Study, world: int, split: str, threshold: float | None) -> RowsOfClient:
    """Returns a function: client -> its rows of a split; with a threshold every second of the withheld ones."""
    find = rows_of_clients(study, world, split)
    if split == "test" or threshold is None:
        return find

    def find_half(client: int) -> WeightedRows:
        rows = find(client).rows[1::2]
        return WeightedRows(rows, np.full(len(rows), 1.0 / max(1, len(rows))))

    return find_half


def tell_each(each: Iterator[tuple[WeightedRows, FloatArray]], threshold: float | None) -> Iterator[FloatArray]:
    """Returns what each client says of its rows: the scores as they are, or the means of coverage and size.

    Args:
        each: the rows of a client, and what `measure_rows` finds there.
        threshold: the largest score inside of a set; None: it is not known yet.
    """
    for own, values in each:
        yield values if threshold is None else np.full(2, own.mean(values))  # NaN without rows


def tell_own(
    host: Host,
    state: State,
    world: int,
    client: IntArray,
    *,
    rule: ConformalRule,
    thresholds: FloatArray | None,
    split: str,
) -> Iterator[Tensor]:
    """Returns what known clients with own models say, computed where these models are; see `ask_own_sets`.

    Args:
        host: where the clients live.
        state: the broadcast models.
        world: number of the world.
        client: ids of the clients, `[c]`.
        rule: how sets are made.
        thresholds: the largest score inside of a set, `[worlds]`; None: it is not known yet.
        split: `test` or `hold_out`.
    """
    study = replace(host.study, evaluation=replace(host.study.evaluation, conformal=rule))
    models, threshold = study.method.phase.models, None if thresholds is None else float(thresholds[world])
    shared, x = state.counters[world * models : (world + 1) * models], study.split(split, world)[0]

    def value(client: int, rows: IntArray | None) -> FloatArray:
        own = pick_own_models(host, state, world, client)
        parts = torch.split(torch.from_numpy(rows), EVALUATED_ROWS)
        outputs = torch.cat([host.forward(own, shared, world, x[part]).cpu() for part in parts], dim=1)
        said = read_answers(study, world, outputs, split, Answer(State(own, shared, {}), models), rows=rows)
        return measure_rows(score_rows(study, said), threshold)

    each = value_each(client, find_asked_rows(study, world, split, threshold), value)
    return map(torch.tensor, tell_each(each, threshold))


def ask_own_sets(
    runtime: Runtime, state: State, rule: ConformalRule, thresholds: FloatArray | None = None, split: str = "hold_out"
) -> Own:
    """Asks known clients with models of their own how their conformal sets do.

    Args:
        runtime: where the clients live.
        state: the broadcast models.
        rule: how sets are made.
        thresholds: the largest score inside of a set, `[worlds]`; None: it is not known yet.
        split: `test`, or `hold_out`, of which with thresholds every second row of a client.

    Returns:
        By (world, client): scores of the right answers of the client's withheld rows, `[n_k]`; with thresholds coverage
        and mean size of the sets of its rows, `[2]`, NaN where it has none.
    """
    compute = partial(tell_own, rule=rule, thresholds=thresholds, split=split)
    return runtime.ask(Question(compute, at_home=True), state)


# ---------------------------------------------------------------------------------------------------------------------
# New clients get the answer of the ensemble, and the threshold comes from that answer's scores. Known clients with
# weights or models of their own are scored, calibrated and tested with these.


class Thresholds(NamedTuple):
    """The thresholds of one world.

    Attributes:
        everybody: for the answer of the ensemble.
        known: for known clients with weights or models of their own; else that of everybody.
    """

    everybody: Threshold
    known: Threshold


class Calibration(NamedTuple):
    """What the withheld rows of one world say.

    Attributes:
        whole: the thresholds of all withheld rows.
        half: those of every second row of each client, by which the others are scored.
    """

    whole: Thresholds
    half: Thresholds


class Told(NamedTuple):
    """What is said about the rows of a split.

    Attributes:
        everybody: numbers of all rows by everybody's answer, see `measure_rows`.
        known: of each known client the scores of its right answers `[n_k]`; with thresholds coverage and mean size of
            its sets, `[2]`.
        y: labels or targets, `[n]`.
    """

    everybody: FloatArray
    known: list[FloatArray]
    y: Any


def find_weights(study: Study, world: int, measured: Measured) -> FloatArray | None:
    """Returns the known clients' weights, `[N, K]`; None if all get the same answer, as of a stack."""
    return None if study.parts else measured.weights.get(world)


def tell(
    study: Study,
    world: int,
    measured: Measured,
    split: str,
    found: Thresholds | None = None,
    *,
    own: Own | None = None,
) -> Told:
    """Returns what the common answer, and the known clients' answers, say about the rows of a split.

    Args:
        study: what was trained; it has a rule.
        world: number of the world.
        measured: what the runtime computed.
        split: `test` or `hold_out`.
        found: the largest scores inside of a set; None: they are not known yet.
        own: what clients with models of their own say; None: there are none.
    """
    outputs = join_pieces(measured.test if split == "test" else measured.held_out, world)
    outputs = outputs if study.parts else drop_absent(outputs, measured.answer, world)
    weights = find_weights(study, world, measured)
    of = read_answers(study, world, outputs, split, measured.answer, residual=measured.residual.get(world))
    everybody = measure_rows(score_rows(study, of), None if found is None else found.everybody.value)
    clients = np.arange(count_known(study))
    if own is not None:
        return Told(everybody, [own[world, client].numpy() for client in clients.tolist()], of.y)
    threshold = None if found is None else found.known.value

    def value(client: int, rows: IntArray | None) -> FloatArray:
        if weights is None:
            return everybody
        return measure_rows(score_rows(study, of, rows, weights[client]), threshold)

    each = value_each(clients, find_asked_rows(study, world, split, threshold), value, alike(weights))
    return Told(everybody, list(tell_each(each, threshold)), of.y)


def calibrate(study: Study, world: int, measured: Measured, own: Own | None = None) -> Calibration:
    """Computes the thresholds of a world.

    Args:
        study: what was trained; it has a rule.
        world: number of the world.
        measured: what the runtime computed.
        own: scores of the withheld rows of clients with models of their own; None: there are none.
    """
    told, rule = tell(study, world, measured, "hold_out", own=own), get_rule(study)
    everybody = [told.everybody[rows] for rows in list_withheld(study, world)]

    def pick(step: int) -> Thresholds:
        return Thresholds(*(find_threshold([one[::step] for one in each], rule) for each in (everybody, told.known)))

    return Calibration(whole=pick(1), half=pick(2))


def measure_all_sets(
    study: Study, runtime: Runtime, state: State, measured: Measured, worlds: int
) -> list[tuple[dict[str, Any], ClientSets | None]]:
    """Measures the sets of each world on test and withheld rows, and for each known client.

    Args:
        study: what was trained.
        runtime: where clients with models of their own answer.
        state: the broadcast models.
        measured: what the runtime computed.
        worlds: how many worlds are measured.

    Returns:
        For each world numbers by name, and what the known clients get on their test rows; None where these are left
        alone. Nothing where the scenario asks for no sets.
    """
    rule = study.evaluation.conformal
    if rule is None:
        return []
    if not study.method.phase.is_personal:
        return [_measure_world(study, w, measured, calibrate(study, w, measured), {}) for w in range(worlds)]

    def ask(split: str, thresholds: Sequence[Threshold]) -> Own:
        values = np.full(study.worlds, np.inf)  # of which those of the first worlds are known
        values[: len(thresholds)] = [one.value for one in thresholds]
        return ask_own_sets(runtime, state, rule, values, split)

    own = ask_own_sets(runtime, state, rule)
    found = [calibrate(study, w, measured, own) for w in range(worlds)]
    told = {"hold_out": ask("hold_out", [one.half.known for one in found])}
    if measured.test:
        told["test"] = ask("test", [one.whole.known for one in found])
    return [_measure_world(study, w, measured, found[w], told) for w in range(worlds)]


def _measure_world(
    study: Study, world: int, measured: Measured, found: Calibration, own: Mapping[str, Own]
) -> tuple[dict[str, Any], ClientSets | None]:
    """Measures the same of one world; `own` is what clients with own models say by split, if there are any."""
    withheld, scores = list_withheld(study, world), dict[str, Any]()
    tested = np.concatenate([rows[1::2] for rows in withheld])
    if len(tested):
        told = tell(study, world, measured, "hold_out", found.half, own=own.get("hold_out"))
        half = told._replace(everybody=told.everybody[:, tested], y=told.y[tested])
        more = _summarize(study, half, np.array([len(rows[::2]) for rows in withheld]))[0]
        scores = {f"hold_out_{name}": value for name, value in more.items() if isinstance(value, float)}
    if not measured.test:
        return scores, None
    told = tell(study, world, measured, "test", found.whole, own=own.get("test"))
    more, clients = _summarize(study, told, np.array([len(rows) for rows in withheld]))
    sent = found.whole.everybody.bytes + (
        found.whole.known.bytes if own or find_weights(study, world, measured) is not None else 0
    )
    scores |= more | {"conformal_bytes": float(sent), "conformal_threshold": found.whole.everybody.value}
    return scores, clients


def _summarize(study: Study, told: Told, sizes: IntArray) -> tuple[dict[str, Any], ClientSets]:
    """Summarizes the sets of some rows and of clients with so many withheld rows, `[N]`, as metrics."""
    sets, clients = Sets(*told.everybody), ClientSets(*np.stack(told.known, axis=1))
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
        each = summarize_classes(sets.covered, told.y, study.classes)
        found["conformal_coverage_class"] = each.tolist()
        found["conformal_coverage_class_worst"] = float(np.nanmin(each))
    return found, clients


def add_client_sets(study: Study, scores: ClientScores | None, sets: ClientSets | None) -> ClientScores | None:
    """Adds the scores of clients' sets to their recorded scores, if there are both.

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
    """Names the size of a set in metrics: the number of labels, or the width of an interval."""
    return "size" if study.classes else "width"
