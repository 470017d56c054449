"""Conformal sets of one world: scores of withheld rows, the clients' threshold, and how the sets of other rows do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedray.core.types import FloatArray, IntArray, State
from fedray.evaluation.answers import (
    Inquiry,
    Measured,
    Own,
    RowAnswers,
    ask_own,
    count_known,
    find_weights,
    held_out_rows,
    join_answers,
    read_world,
    tell_known,
)
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
from fedray.simulation.study import ClientScores, Runtime, Study

# ---------------------------------------------------------------------------------------------------------------------
# Conformal scores of rows: from the raw outputs of the models that answer, with everybody's weights or a client's
# own.


def measure_sets(
    study: Study,
    world: int,
    of: RowAnswers,
    rows: IntArray | None,
    weights: FloatArray | None,
    *,
    rule: ConformalRule,
    thresholds: FloatArray | None,
) -> FloatArray:
    """A `Measure`: the scores of right answers `[n]`, or with thresholds `[worlds]` coverage and size `[2, n]`."""
    said = join_answers(study, of, rows, weights)
    threshold = None if thresholds is None else float(thresholds[world])
    if said.probs is None:
        if threshold is None:
            return np.asarray(np.abs(said.y - said.mean) / said.sd)
        return np.stack(cover_targets(said.mean, said.sd, said.y, threshold))
    labels = score_labels(said.probs, of.u if rows is None else of.u[rows], rule)
    if threshold is None:
        return np.asarray(labels[np.arange(len(labels)), said.y])
    return np.stack(cover_labels(labels, said.y, threshold))


# ---------------------------------------------------------------------------------------------------------------------
# What each known client says of its rows: scores of its right answers, from which a threshold follows; and with one,
# how its sets do. Held-out metrics, which sweeps read, calibrate on every other withheld row of a client and score the
# rest.


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


def inquire(split: str, rule: ConformalRule, thresholds: FloatArray | None = None) -> Inquiry:
    """Returns what is asked for conformal sets of the rows of a split.

    Args:
        split: `test`, or `hold_out`, of which with thresholds every second row of a client.
        rule: how sets are made.
        thresholds: the largest score inside of a set, `[worlds]`; None: it is not known yet.
    """
    measure = partial(measure_sets, rule=rule, thresholds=thresholds)
    if thresholds is None:
        return Inquiry(split, measure)
    return Inquiry(split, measure, means=2, halved=split == "hold_out")


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


def tell(
    study: Study,
    world: int,
    measured: Measured,
    split: str,
    rule: ConformalRule,
    *,
    found: Thresholds | None = None,
    own: Own | None = None,
) -> tuple[FloatArray, list[FloatArray], Any]:
    """Returns what the common answer, and the known clients' answers, say about the rows of a split.

    That is the numbers of all rows by everybody's answer (`measure_sets`); of each known client the scores of its right
    answers `[n_k]`, or with thresholds coverage and mean size of its sets, `[2]`; and the labels or targets, `[n]`.

    Args:
        study: what was trained.
        world: number of the world.
        measured: what the runtime computed.
        split: `test` or `hold_out`.
        rule: how sets are made.
        found: the largest scores inside of a set; None: they are not known yet.
        own: what clients with models of their own say; None: there are none.
    """
    of = read_world(study, world, measured, split)
    everybody, known = (None, None) if found is None else (np.full(study.worlds, one.value) for one in found)
    numbers = measure_sets(study, world, of, None, None, rule=rule, thresholds=everybody)
    inquiry = inquire(split, rule, known)
    return numbers, tell_known(study, world, measured, of, inquiry, own=own, everybody=numbers), of.y


def calibrate(study: Study, world: int, measured: Measured, rule: ConformalRule, own: Own | None = None) -> Calibration:
    """Computes the thresholds of a world.

    Args:
        study: what was trained.
        world: number of the world.
        measured: what the runtime computed.
        rule: how sets are made.
        own: scores of the withheld rows of clients with models of their own; None: there are none.
    """
    numbers, known, _ = tell(study, world, measured, "hold_out", rule, own=own)
    everybody = [numbers[rows] for rows in list_withheld(study, world)]

    def pick(step: int) -> Thresholds:
        return Thresholds(*(find_threshold([one[::step] for one in each], rule) for each in (everybody, known)))

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
        return [
            _measure_world(study, w, measured, rule, calibrate(study, w, measured, rule), own={}) for w in range(worlds)
        ]

    def ask(split: str, thresholds: Sequence[Threshold]) -> Own:
        values = np.full(study.worlds, np.inf)  # of which those of the first worlds are known
        values[: len(thresholds)] = [one.value for one in thresholds]
        return ask_own(runtime, state, inquire(split, rule, values))

    own = ask_own(runtime, state, inquire("hold_out", rule))
    found = [calibrate(study, w, measured, rule, own) for w in range(worlds)]
    told = {"hold_out": ask("hold_out", [one.half.known for one in found])}
    if measured.test:
        told["test"] = ask("test", [one.whole.known for one in found])
    return [_measure_world(study, w, measured, rule, found[w], own=told) for w in range(worlds)]


def _measure_world(
    study: Study, world: int, measured: Measured, rule: ConformalRule, found: Calibration, *, own: Mapping[str, Own]
) -> tuple[dict[str, Any], ClientSets | None]:
    """Measures the same of one world; `own` is what clients with own models say by split, if there are any."""
    withheld, scores = list_withheld(study, world), dict[str, Any]()
    tested = np.concatenate([rows[1::2] for rows in withheld])
    if len(tested):
        numbers, known, y = tell(study, world, measured, "hold_out", rule, found=found.half, own=own.get("hold_out"))
        sizes = np.array([len(rows[::2]) for rows in withheld])
        more = _summarize(study, Sets(*numbers[:, tested]), known, y[tested], sizes)[0]
        scores = {f"hold_out_{name}": value for name, value in more.items() if isinstance(value, float)}
    if not measured.test:
        return scores, None
    numbers, known, y = tell(study, world, measured, "test", rule, found=found.whole, own=own.get("test"))
    more, clients = _summarize(study, Sets(*numbers), known, y, np.array([len(rows) for rows in withheld]))
    sent = found.whole.everybody.bytes + (
        found.whole.known.bytes if own or find_weights(study, world, measured) is not None else 0
    )
    scores |= more | {"conformal_bytes": float(sent), "conformal_threshold": found.whole.everybody.value}
    return scores, clients


def _summarize(
    study: Study, sets: Sets, told: list[FloatArray], y: Any, sizes: IntArray
) -> tuple[dict[str, Any], ClientSets]:
    """Metrics of the sets of some rows and of clients, of whom each withheld so many rows, `[N]`; and their sets."""
    clients = ClientSets(*np.stack(told, axis=1))
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
