"""Makes conformal sets of predictions, and measures their coverage and size.

A conformal set of a sample contains the labels or targets whose *conformal score* is at most a threshold. The threshold
follows from the scores of the true labels of withheld samples. With this threshold, a set contains the true label with
a given probability. A *world* is one combination of a seed and a fold of the data. A *study* is everything that a run
needs except a runtime.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedray.core.types import FloatArray, IntArray, State
from fedray.evaluation import answers
from fedray.evaluation.personal import ask_own
from fedray.metrics import conformal
from fedray.simulation.study import ClientScores, Runtime, Study

# ---------------------------------------------------------------------------------------------------------------------
# Conformal scores of samples, for predictions with the models' common weights or with a client's weights.


def measure_sets(
    study: Study,
    world: int,
    of: answers.MemberPredictions,
    rows: IntArray | None,
    weights: FloatArray | None,
    *,
    rule: conformal.ConformalRule,
    thresholds: FloatArray | None,
) -> FloatArray:
    """Returns the conformal score of each sample's true label, `[n]`.

    With `thresholds`, the result describes the samples' sets instead, `[2, n]`. The first row says whether the set
    contains the true label (1) or not (0). The second row is the size of the set.
    """
    said = answers.join_answers(study, of, rows, weights)
    threshold = None if thresholds is None else float(thresholds[world])
    if said.probs is None:
        if threshold is None:
            return np.asarray(np.abs(said.y - said.mean) / said.sd)
        return conformal.cover_targets(said.mean, said.sd, said.y, threshold)
    labels = conformal.score_labels(said.probs, lambda: of.draw() if rows is None else of.draw()[rows], rule)
    if threshold is None:
        return np.asarray(labels[np.arange(len(labels)), said.y])
    return conformal.cover_labels(labels, said.y, threshold)


# ---------------------------------------------------------------------------------------------------------------------
# Results of clients. Before thresholds are known, a client returns the scores of its true labels. With thresholds
# it returns coverage and size of its sets. The metrics `hold_out_...`, which sweeps use, compute the threshold from
# every second withheld sample of a client, and coverage and size from the other withheld samples. They are left out if
# that threshold needs more samples.


class ClientSets(NamedTuple):
    """Coverage and size of the conformal sets of each of N clients. A client without samples has NaN.

    Attributes:
        coverage: Share of a client's samples whose set contains the true label or target, `[N]`.
        size: Mean number of labels in a set, or mean width of an interval, `[N]`.
    """

    coverage: FloatArray
    size: FloatArray


def list_withheld(study: Study, world: int) -> list[IntArray]:
    """Returns for each client the indices of its samples among the withheld samples of all clients, `[n_k]` each."""
    find = answers.held_out_rows(study, world)
    return [find(client).rows for client in range(answers.count_known(study))]


def make_request(
    split: str, rule: conformal.ConformalRule, thresholds: FloatArray | None = None
) -> answers.ClientRequest:
    """Makes a request to clients to measure the conformal sets of their samples of a split.

    Args:
        split: The split, `test` or `hold_out`. With thresholds, only every second held-out sample of a client is used.
        rule: The rule that makes conformal sets.
        thresholds: The threshold of each world, `[worlds]`. None means that thresholds are not known yet. Clients then
            return the conformal scores from which thresholds are computed.
    """
    measure = partial(measure_sets, rule=rule, thresholds=thresholds)
    if thresholds is None:
        return answers.ClientRequest(split, measure)
    return answers.ClientRequest(split, measure, means=2, halved=split == "hold_out")


# ---------------------------------------------------------------------------------------------------------------------
# Thresholds. The threshold for new clients follows from the scores of the ensemble's prediction. Known clients with
# their own weights or models have a second threshold, which follows from the scores of their own predictions.


class Thresholds(NamedTuple):
    """Thresholds of the conformal score in one world.

    Attributes:
        ensemble: The threshold for the prediction of the ensemble.
        known_clients: The threshold for clients that predict with their own weights or models. If there are no such
            clients, it equals `ensemble`.
    """

    ensemble: conformal.Threshold
    known_clients: conformal.Threshold


class Calibration(NamedTuple):
    """Thresholds of the conformal score from the withheld samples of one world.

    Attributes:
        whole: The thresholds from all withheld samples.
        half: The thresholds from every second withheld sample of each client. The other withheld samples test these
            thresholds.
    """

    whole: Thresholds
    half: Thresholds


def measure_split(
    study: Study,
    world: int,
    measured: answers.Measured,
    split: str,
    rule: conformal.ConformalRule,
    *,
    found: Thresholds | None = None,
    own: answers.Own | None = None,
) -> tuple[FloatArray, list[FloatArray], Any]:
    """Returns conformal scores for the samples of a split. With `found`, returns coverage and size of the sets instead.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        measured: The results of the runtime for this evaluation.
        split: The split, `test` or `hold_out`.
        rule: The rule that makes conformal sets.
        found: The thresholds. None means that they are not known yet.
        own: The results of clients with their own models. None means that there are no such clients.

    Returns:
        Three values. The first is the result of `measure_sets` for all samples and the models' common weights. The
        second has for each client the scores of its true labels, `[n_k]`, or the coverage and mean size of its sets,
        `[2]`. The third has the true labels or targets, `[n]`.
    """
    of = answers.read_world(study, world, measured, split)
    ensemble, known = (None, None) if found is None else (np.full(study.worlds, one.value) for one in found)
    numbers = measure_sets(study, world, of, None, None, rule=rule, thresholds=ensemble)
    inquiry = make_request(split, rule, known)
    return numbers, answers.compute_client_values(study, world, measured, of, inquiry, own=own, common=numbers), of.y


def calibrate(
    study: Study, world: int, measured: answers.Measured, rule: conformal.ConformalRule, own: answers.Own | None = None
) -> Calibration:
    """Computes the thresholds of a world.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        measured: The results of the runtime for this evaluation.
        rule: The rule that makes conformal sets.
        own: Conformal scores of clients with their own models, for their withheld samples. None means that there are no
            such clients.
    """
    numbers, known, _ = measure_split(study, world, measured, "hold_out", rule, own=own)
    ensemble = [numbers[rows] for rows in list_withheld(study, world)]

    def pick(step: int) -> Thresholds:
        """Computes the thresholds from every `step`-th score of each client."""
        return Thresholds(
            *(conformal.find_threshold([one[::step] for one in each], rule) for each in (ensemble, known))
        )

    return Calibration(whole=pick(1), half=pick(2))


def measure_all_sets(
    study: Study, runtime: Runtime, state: State, measured: answers.Measured, worlds: int
) -> list[tuple[dict[str, Any], ClientSets | None]]:
    """Measures the conformal sets of each world on test and withheld samples, and the sets of each client of the run.

    Returns:
        For each world, the metrics by name, and the coverage and size of the clients' sets on their test samples.
        Coverage and size are None if test samples are not scored.
    """
    rule = study.evaluation.conformal
    assert rule is not None

    def ask(split: str, thresholds: Sequence[conformal.Threshold]) -> answers.Own:
        values = np.full(study.worlds, np.inf)  # worlds that are not measured keep infinite thresholds
        values[: len(thresholds)] = [one.value for one in thresholds]
        return ask_own(runtime, state, make_request(split, rule, values))

    personal, told = study.method.phase.is_personal, dict[str, answers.Own]()
    own = ask_own(runtime, state, make_request("hold_out", rule)) if personal else None
    found = [calibrate(study, w, measured, rule, own) for w in range(worlds)]
    if personal:
        told["hold_out"] = ask("hold_out", [one.half.known_clients for one in found])
    if personal and measured.test:
        told["test"] = ask("test", [one.whole.known_clients for one in found])
    return [_measure_world(study, w, measured, rule, found[w], own=told) for w in range(worlds)]


def _measure_world(
    study: Study,
    world: int,
    measured: answers.Measured,
    rule: conformal.ConformalRule,
    found: Calibration,
    *,
    own: Mapping[str, answers.Own],
) -> tuple[dict[str, Any], ClientSets | None]:
    """Measures the conformal sets of one world.

    `own` has for each split the results of clients with their own models.
    """
    withheld, scores = list_withheld(study, world), dict[str, Any]()
    tested, sizes = np.concatenate([rows[1::2] for rows in withheld]), [len(rows[::2]) for rows in withheld]
    if len(tested) and conformal.withholds_enough(sizes, rule):
        numbers, known, y = measure_split(
            study, world, measured, "hold_out", rule, found=found.half, own=own.get("hold_out")
        )
        more = _summarize(study, numbers[:, tested], known, y[tested], np.array(sizes))[0]
        scores = {f"hold_out_{name}": value for name, value in more.items() if isinstance(value, float)}
    if not measured.test:
        return scores, None
    numbers, known, y = measure_split(study, world, measured, "test", rule, found=found.whole, own=own.get("test"))
    more, clients = _summarize(study, numbers, known, y, np.array([len(rows) for rows in withheld]))
    sent = found.whole.ensemble.bytes
    weights, common = answers.find_weights(study, world, measured), measured.answer.weigh_present(world)
    if own or not (weights is None or np.allclose(weights, 1 / weights.shape[1] if common is None else common)):
        sent += found.whole.known_clients.bytes
    scores |= more | {"conformal_bytes": float(sent), "conformal_threshold": found.whole.ensemble.value}
    return scores, clients


def _summarize(
    study: Study, numbers: FloatArray, told: list[FloatArray], y: Any, sizes: IntArray
) -> tuple[dict[str, Any], ClientSets]:
    """Returns the metrics of conformal sets, and coverage and size of each client's sets.

    Args:
        study: The trained study (the objects of the run).
        numbers: Coverage and size of the ensemble's sets, `[2, n]`.
        told: Coverage and mean size of each client's sets, `[2]` each.
        y: True labels or targets of these n samples, `[n]`.
        sizes: Number of withheld samples of each client, `[N]`.
    """
    (covered, size), clients = numbers, ClientSets(*np.stack(told, axis=1))
    what, known = name_size(study), ~np.isnan(clients.coverage)
    found: dict[str, Any] = {"conformal_coverage": float(covered.mean()), f"conformal_{what}": float(size.mean())}
    if known.any() and len(known) > 1:  # the one client of pooled data is no worst client
        found["conformal_coverage_client_worst"] = float(clients.coverage[known].min())
    shares = np.where(known, conformal.weigh_clients(sizes), 0.0)
    if shares.sum() > 0:
        mixed = shares > 0
        weights = shares[mixed] / shares.sum()
        found["conformal_coverage_clients"] = float((weights * clients.coverage[mixed]).sum())
        found[f"conformal_{what}_clients"] = float((weights * clients.size[mixed]).sum())
    if study.classes:
        each = conformal.summarize_classes(covered, y, study.classes)
        found["conformal_coverage_class"] = each.tolist()
        found["conformal_coverage_class_worst"] = float(np.nanmin(each))
    return found, clients


def add_client_sets(study: Study, scores: ClientScores | None, sets: ClientSets | None) -> ClientScores | None:
    """Adds coverage and size of the clients' conformal sets to the recorded scores of clients, if both exist.

    Args:
        study: The trained study (the objects of the run).
        scores: Recorded scores of some clients, `[n]`. None means that no scores are recorded.
        sets: Coverage and size of the sets of all clients of the run, `[N]`. None means that there are no sets.
    """
    if scores is None or sets is None:
        return scores
    columns = {"conformal_coverage": sets.coverage, f"conformal_{name_size(study)}": sets.size}
    return scores._replace(scores=scores.scores | {name: each[scores.client] for name, each in columns.items()})


def name_size(study: Study) -> str:
    """Returns the name that the size of a set has in metrics. It is `size` for labels, or `width` for intervals."""
    return "size" if study.classes else "width"
