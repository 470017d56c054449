"""How an ensemble answers: limits of gamma, K = 1, and invariance to the order of the models."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special

from fedray.core.types import AverageKind, FloatArray
from fedray.metrics.classification import (
    answer_classes,
    average,
    mixture_moments,
    personal_weights,
    probabilities,
    uncertainty,
)

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 12, 4)) * 3
LOSSES = RNG.uniform(0, 3, size=(7, 5))
KINDS = get_args(AverageKind)
finite_losses = hnp.arrays(np.float64, (3, 4), elements=st.floats(0, 1e6))


def joint(outputs: Any, kind: AverageKind = "probabilities", weights: Any = None) -> FloatArray:
    """The prediction of an ensemble."""
    return answer_classes(outputs, kind, weights).mean


def test_probabilities_are_scipys_softmax_and_read_tensors() -> None:
    np.testing.assert_allclose(probabilities(LOGITS), special.softmax(LOGITS, axis=-1), rtol=1e-12)
    tensor = torch.from_numpy(LOGITS).float()
    np.testing.assert_allclose(joint(tensor), joint(LOGITS), rtol=1e-5)


def test_average_of_probabilities_and_of_logits() -> None:
    np.testing.assert_allclose(joint(LOGITS), special.softmax(LOGITS, axis=-1).mean(0))
    np.testing.assert_allclose(joint(LOGITS, "logits"), special.softmax(LOGITS.mean(0), axis=-1))
    np.testing.assert_allclose(average(LOGITS), LOGITS.mean(0))


@pytest.mark.parametrize("kind", KINDS)
def test_one_model_answers_for_itself(kind: AverageKind) -> None:
    alone = probabilities(LOGITS[0])
    np.testing.assert_allclose(joint(LOGITS[:1], kind), alone)
    np.testing.assert_allclose(joint(LOGITS[:1], kind, [1.0]), alone)
    assert (personal_weights(LOSSES[:, :1], 0.1) == 1).all()
    assert (uncertainty(probabilities(LOGITS[:1])).knowledge == 0).all()
    assert (mixture_moments(LOGITS[:1]).variance == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_models_does_not_matter(kind: AverageKind) -> None:
    order = RNG.permutation(5)
    weights = personal_weights(LOSSES, 0.5)
    np.testing.assert_allclose(joint(LOGITS[order], kind), joint(LOGITS, kind), rtol=1e-12)
    of_two = personal_weights(np.stack([LOSSES, LOSSES[:, order]]), 0.5)  # replicates
    np.testing.assert_allclose(of_two, [weights, weights[:, order]], rtol=1e-12)
    for row in weights:
        np.testing.assert_allclose(joint(LOGITS[order], kind, row[order]), joint(LOGITS, kind, row), rtol=1e-12)


@given(finite_losses, st.one_of(st.just(0.0), st.just(np.inf), st.floats(1e-300, 1e300)))
@settings(deadline=None, max_examples=60)
def test_weights_sum_to_one_and_favour_the_lower_loss(losses: FloatArray, gamma: float) -> None:
    weights = personal_weights(losses, gamma)
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-12)
    assert (weights >= 0).all()
    ranked = np.take_along_axis(weights, losses.argsort(-1, kind="stable"), -1)
    assert (np.diff(ranked) <= 1e-15).all()


def test_gamma_zero_is_the_best_model_and_infinity_the_plain_average() -> None:
    best = np.eye(5)[LOSSES.argmin(-1)]
    assert np.array_equal(personal_weights(LOSSES, 0), best)
    np.testing.assert_allclose(personal_weights(LOSSES, 1e-9), best)
    assert np.array_equal(personal_weights(LOSSES, np.inf), np.full((7, 5), 0.2))
    np.testing.assert_allclose(personal_weights(LOSSES, 1e12), 0.2)
    np.testing.assert_allclose(personal_weights(LOSSES, 0.7), special.softmax(-LOSSES / 0.7, axis=-1))
    assert personal_weights([[1.0, 3.0, 1.0, 1.0]], 0)[0] == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    np.testing.assert_allclose(joint(LOGITS, weights=personal_weights(LOSSES, np.inf)[0]), joint(LOGITS))


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_diverged_models_get_nothing_and_clients_without_data_answer_uniformly(gamma: float) -> None:
    losses = np.array([[1.0, np.inf, np.nan], [np.nan, np.nan, np.nan], [np.inf, np.inf, np.inf]])
    weights = personal_weights(losses, gamma)
    assert weights.tolist() == [[1, 0, 0], [1 / 3] * 3, [1 / 3] * 3]
    outputs = np.stack([LOGITS[0], np.full((12, 4), np.nan), np.full((12, 4), np.inf)])
    np.testing.assert_allclose(joint(outputs, weights=weights[0]), probabilities(LOGITS[0]))


def test_each_sample_can_have_the_weights_of_its_own_client() -> None:
    weights, client = personal_weights(LOSSES, 0.3), RNG.integers(7, size=12)
    everyone = np.stack([joint(LOGITS, weights=row) for row in weights])  # [N, n, C]
    chosen = joint(LOGITS, weights=weights[client].T)
    np.testing.assert_allclose(chosen, everyone[client, np.arange(12)])
    np.testing.assert_allclose(chosen.sum(-1), 1.0)


def test_moments_are_the_population_ones_and_the_mixtures() -> None:
    outputs, variances = LOGITS[..., 0], np.exp(LOGITS[..., 1])
    mean, variance = mixture_moments(outputs)
    np.testing.assert_allclose(mean, outputs.mean(0))
    np.testing.assert_allclose(variance, outputs.var(0))
    mixture = mixture_moments(outputs, variances=variances)
    np.testing.assert_allclose(mixture.variance, (variances + outputs**2).mean(0) - outputs.mean(0) ** 2)
    weights = personal_weights(LOSSES, 0.5)[0]
    weighted = mixture_moments(outputs, weights)
    np.testing.assert_allclose(weighted.mean, weights @ outputs)
    np.testing.assert_allclose(weighted.variance, weights @ outputs**2 - (weights @ outputs) ** 2)


@given(hnp.arrays(np.float64, (4, 3, 5), elements=st.floats(-50, 50)))
@settings(deadline=None, max_examples=40)
def test_knowledge_is_between_zero_and_the_total(logits: FloatArray) -> None:
    total, knowledge = uncertainty(probabilities(logits))
    assert (knowledge >= 0).all()
    assert (knowledge <= total + 1e-12).all()
    assert (total <= np.log(5) + 1e-12).all()


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
def test_the_class_of_an_answer_is_the_largest_entry_of_the_mean_vote(kind: AverageKind) -> None:
    weights = personal_weights(LOSSES, 0.5)[0]
    members, mean = answer_classes(LOGITS, kind, weights)
    assert np.array_equal(members, probabilities(LOGITS))
    votes = np.tensordot(weights, members if kind == "probabilities" else LOGITS, axes=1)
    assert np.array_equal(votes.argmax(-1), mean.argmax(-1))
