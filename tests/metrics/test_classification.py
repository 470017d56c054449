"""Scores of classifications against scikit-learn and scipy."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk

from fedray.metrics import classification
from fedray.metrics.classification import probabilities

RNG = np.random.default_rng(3)
MEMBERS = probabilities(RNG.normal(size=(4, 200, 5)) * 2)
PROBS, Y = MEMBERS.mean(0), RNG.integers(5, size=200)
EDGES = np.linspace(0, 1, 16)  # of the bins of confidence


def test_classification_scores_are_scikit_learns() -> None:
    predicted, labels = PROBS.argmax(-1), list(range(5))
    assert classification.accuracy(PROBS, Y) == sk.accuracy_score(Y, predicted)
    assert classification.nll(PROBS, Y) == pytest.approx(sk.log_loss(Y, PROBS, labels=labels))
    assert classification.brier(PROBS, Y) == pytest.approx(((PROBS - np.eye(5)[Y]) ** 2).sum(1).mean())
    assert classification.confusion(PROBS, Y).tolist() == sk.confusion_matrix(Y, predicted, labels=labels).tolist()
    for probs, y in ((PROBS, Y), (np.eye(3)[[0, 1, 1]], [0, 1, 0])):  # the third class is never true nor given
        for average in ("weighted", "macro"):
            found = classification.f1_scores(probs, y)[f"f1_{average}"]
            assert found == pytest.approx(sk.f1_score(y, probs.argmax(-1), average=average))


def test_a_confident_mistake_costs_much_but_not_infinity() -> None:
    assert classification.nll([[1.0, 0.0]], [1]) == pytest.approx(-np.log(np.finfo(float).eps))


def test_calibration_table_adds_up() -> None:
    table = classification.calibration(PROBS, Y)
    assert table.samples.sum() == 200
    filled = table.samples > 0
    assert (table.samples * table.accuracy)[filled].sum() / 200 == pytest.approx(classification.accuracy(PROBS, Y))
    assert (table.samples * table.confidence)[filled].sum() / 200 == pytest.approx(PROBS.max(-1).mean())
    assert (table.confidence[filled] > EDGES[:-1][filled]).all()
    assert (table.confidence[filled] <= EDGES[1:][filled]).all()


def test_a_confidence_at_an_end_of_two_bins_is_in_the_lower_one() -> None:
    """Bins are `(lower, upper]`; the next larger number is in the bin above."""
    ends = EDGES[(EDGES > 0.5) & (EDGES < 1)]
    at, above = (np.stack([p, 1 - p], 1) for p in (ends, np.nextafter(ends, 1)))
    labels = np.zeros(len(ends), int)
    assert np.array_equal(EDGES[1:][classification.calibration(at, labels).samples > 0], ends)
    assert np.array_equal(EDGES[:-1][classification.calibration(above, labels).samples > 0], ends)


def test_ece_with_one_bin_is_the_gap_and_is_zero_when_calibrated() -> None:
    gap = abs(classification.accuracy(PROBS, Y) - PROBS.max(-1).mean())
    assert classification.ece(PROBS, Y) >= gap - 1e-12
    p, labels = np.linspace(0.61, 0.66, 50), np.arange(50) % 3 > 0  # all of them in the bin from 0.6 on
    assert classification.ece(np.stack([p, 1 - p], 1), labels) == pytest.approx(p.mean() - (labels == 0).mean())
    assert classification.ece(np.tile([0.75, 0.25], (4, 1)), [0, 0, 0, 1]) == pytest.approx(0)
    assert classification.ece([[1.0, 0.0], [0.0, 1.0]], [0, 1]) == 0  # the edge: confidence 1 lies in the last bin


def test_disagreement_is_the_mean_over_pairs() -> None:
    votes = MEMBERS.argmax(-1)
    pairs = [(votes[i] != votes[j]).mean() for i in range(4) for j in range(i)]
    assert classification.disagreement(MEMBERS) == pytest.approx(np.mean(pairs))
    assert classification.disagreement(MEMBERS[:1]) == 0
    assert classification.disagreement(np.stack([MEMBERS[0]] * 3)) == 0


def test_classification_in_one_call() -> None:
    scores = classification.classification_scores(torch.from_numpy(MEMBERS), torch.from_numpy(Y))
    alone = [classification.accuracy(member, Y) for member in MEMBERS]
    assert scores["accuracy"] == classification.accuracy(PROBS, Y)
    assert (scores["accuracy_min"], scores["accuracy_max"]) == (min(alone), max(alone))
    assert scores["accuracy_min"] <= scores["accuracy_mean"] <= scores["accuracy_max"]
    assert scores["entropy"] == pytest.approx(stats.entropy(PROBS, axis=-1).mean())
    assert classification.entropies([1.0, 0.0]) == 0  # 0 log 0
    assert set(scores) == {
        *("accuracy", "f1_weighted", "f1_macro", "nll", "brier", "ece", "entropy", "disagreement"),
        *("accuracy_min", "accuracy_mean", "accuracy_max"),
    }
    assert classification.classification_scores(MEMBERS, Y, answer=MEMBERS[2])["accuracy"] == alone[2]
    assert all(type(value) is float for value in scores.values())


def test_an_ensemble_is_no_worse_than_its_members_on_average() -> None:
    scores = classification.classification_scores(MEMBERS, Y)
    assert scores["nll"] <= np.mean([classification.nll(member, Y) for member in MEMBERS])  # Jensen
    assert scores["brier"] <= np.mean([classification.brier(member, Y) for member in MEMBERS])


def test_answers_that_are_nan_are_not_calibrated_and_do_not_agree() -> None:
    some = np.where(np.arange(200)[:, None] == 7, np.nan, PROBS)
    for probs in (np.full_like(PROBS, np.nan), some):
        assert np.isnan(classification.ece(probs, Y)) and np.isnan(classification.disagreement([probs, probs]))
        assert np.isnan(classification.disagreement([probs]))
