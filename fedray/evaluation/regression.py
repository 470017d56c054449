"""Turns raw outputs of regression models into Gaussian predictions in the target's original unit, and scores them.

The models of an ensemble are its *members*. A *world* is one combination of a seed and a fold of the data. A *study* is
everything that a run needs except a runtime.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import VARIANCE_FLOOR, FloatArray, IntArray
from fedray.metrics import classification, regression
from fedray.models.net import last_layer_inputs, split_gaussian
from fedray.simulation.study import Study

# ---------------------------------------------------------------------------------------------------------------------
# Gaussian predictions in the target's original unit, and their scores.

# Scores of each member.
MEMBER_TARGET_SCORES = ("rmse", "nll", "crps", "coverage_95", "width_95", "sharpness", "sharpness_geometric")

SQUARED_ERROR = {"half_mse": 2.0, "mse": 1.0}  # losses of targets without a variance -> squared errors in a loss of 1


class Members(NamedTuple):
    """The predictions of K models for n targets, in the target's original unit.

    Attributes:
        means: Predicted mean of each model, `[K, n]`.
        variances: Predicted variance of each model, `[K, n]`. None means that the models predict no variance.
        y: True targets, `[n]`.
        noise: Variance of the observation noise that is added to predictions (`predict.noise`).
        residual: Variance of the training samples' residuals, in squared units of the target. None means that it is
            unknown.
        floor: Smallest variance of a prediction.
        weights: Weight of each model in the ensemble, `[K]`. None means equal weights.

    Example:
        >>> members = Members(means=np.array([[1.0], [3.0]]), variances=None, y=np.array([2.0]), noise=0.5)
        >>> members.moments
        Moments(mean=array([2.]), variance=array([1.5]))
    """

    means: FloatArray
    variances: FloatArray | None
    y: FloatArray
    noise: float = 0.0
    residual: float | None = None
    floor: float = 0.0
    weights: FloatArray | None = None

    @property
    def moments(self) -> classification.Moments:
        """Returns the mean and the variance of the ensemble's prediction, `[n]` each."""
        mean, variance = classification.mixture_moments(self.means, self.weights, self.variances)
        return classification.Moments(mean, np.maximum(variance + self.noise, self.floor))


def read_members(
    study: Study,
    world: int,
    outputs: Tensor,
    split: str,
    answer: Answer,
    *,
    rows: IntArray | None = None,
    residual: float | None = None,
) -> Members:
    """Returns the predictions of a world's models for all or for some samples of a split.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        outputs: Raw outputs of the models that predict, `[K, n, outputs]`.
        split: The split, `test`, `hold_out` or `train`.
        answer: The models that predict, with their weights.
        rows: Indices of the samples in the split, `[n]`. None means all samples.
        residual: Variance of the standardized target's residuals on training samples. None means that it is unknown.
    """
    scale, (x, targets) = study.target_scale(world) ** 2, study.stored_split(split, world)
    if rows is not None:
        x, targets = x[torch.from_numpy(rows)], targets[torch.from_numpy(rows)]
    y = targets.double().numpy()
    means, variances = predict_targets(study, world, outputs, x, answer)
    alone = len(means) == 1 and variances is None
    noise = find_noise(study, world, answer, alone=alone, residual=residual)
    return Members(
        means[..., 0],
        None if variances is None else variances[..., 0],
        y.reshape(len(y), -1)[:, 0],
        noise=noise * scale,
        residual=None if residual is None else residual * scale,
        floor=VARIANCE_FLOOR * scale,
        weights=answer.weigh_present(world),
    )


def find_noise(study: Study, world: int, answer: Answer, *, alone: bool, residual: float | None) -> float:
    """Returns the variance of the noise that is added to predictions, in squared units of the standardized target.

    Args:
        study: The trained study (the objects of the run). Its setting `predict.noise` says which noise is added.
        world: Index of the world (a seed and a fold).
        answer: The models that predict, with their weights.
        alone: Whether there is only one model, and it predicts no variance.
        residual: Variance of the standardized target's residuals on training samples. None means that it is unknown.
    """
    if answer.noise is not None:
        return float(answer.noise[world])
    noise = {"none": 0.0, "residual": residual or 0.0, "fixed": 1.0}[str(study.evaluation.noise)]
    if alone and answer.owner is None:  # without noise, the variance of a single model's prediction would be 0
        noise = noise or residual or 0.0
    return noise


def score_regression(of: Members) -> dict[str, Any]:
    """Returns all scores of the ensemble, and the scores of each of its K models as `member_...`, `[K]` each.

    If a model predicts no variance and no noise is added, the variance of its predictions is the variance of the
    residuals on training samples.
    """
    score = partial(regression.regression_scores, y=of.y, floor=of.floor)
    found: dict[str, Any] = score(
        of.means, weights=of.weights, variances=of.variances, noise=of.noise, residual=of.residual
    )
    if of.residual is not None:
        found["residual_sd"] = float(np.sqrt(of.residual))
    noise = of.noise if of.variances is not None or of.noise else of.residual or 0.0
    each = [
        score(mean[None], variances=None if of.variances is None else of.variances[k : k + 1], noise=noise)
        for k, mean in enumerate(of.means)
    ]
    return found | {f"member_{name}": [one[name] for one in each] for name in MEMBER_TARGET_SCORES}


def predict_means(study: Study, world: int, outputs: Tensor) -> FloatArray:
    """Converts raw outputs `[K, n, outputs]` to predicted means in the target's original unit, `[K, n, q]`."""
    head = split_gaussian(outputs).mean if study.net.objective == "gaussian_nll" else outputs
    return study.unscale(head, world).numpy()


def predict_targets(
    study: Study, world: int, outputs: Tensor, x: Tensor, answer: Answer
) -> tuple[FloatArray, FloatArray | None]:
    """Returns the mean and variance that each of K models predicts, in original units, `[K, n, q]` each.

    The variance is None if the models predict no variance.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        outputs: Raw outputs of the models that predict, `[K, n, outputs]`.
        x: The raw inputs, `[n, ...]`.
        answer: The models that predict, with their weights. `Answer.spread` is the variance of their parameters, if it
            is known.
    """
    scale = study.target_scale(world) ** 2
    means = predict_means(study, world, outputs)
    if study.net.objective == "gaussian_nll":
        return means, split_gaussian(outputs).variance.double().numpy() * scale
    if answer.spread is None:
        return means, None
    inputs = study.shards.scaling.normalize(x[None], torch.tensor([world]))[0]
    variance = propagate_variance(last_layer_inputs(study.net.module, inputs).double(), answer.spread[world].double())
    return means, (variance.numpy() * scale)[None, :, None]


def propagate_variance(x: Tensor, spread: Tensor) -> Tensor:
    """Returns the variance of a linear layer's output, `[n]`, from the covariance of its parameters (FedAG eq. 6).

    The variance is `x diag(spread) x^T`, or `x spread x^T` if `spread` is a full covariance matrix. The parameters are
    the weights, followed by the bias if there is one. The input of the bias is 1.

    Args:
        x: Inputs of the layer, `[n, p]`.
        spread: Variances `[p]` or covariance `[p, p]` of the parameters.
    """
    if x.shape[1] < len(spread):
        x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    return x.square() @ spread if spread.dim() == 1 else ((x @ spread) * x).sum(1)


def decompose_squared_error(answers: list[FloatArray], truth: FloatArray) -> list[dict[str, float]]:
    """Decomposes `E|y - h|^2 = noise + bias^2 + variance` over the replicates (Fed-ensemble eq. 10).

    Args:
        answers: Predicted mean of each replicate, `[n]`.
        truth: E[y|x], `[n]`.

    Returns:
        One dict for each of the R replicates. `variance` is the mean squared difference between the prediction of the
        replicate and the mean prediction, times R / (R - 1). The variance of the decomposition is the mean of
        `variance` over the replicates. `bias2` is the same for all replicates. It is the squared error of the mean
        prediction, minus the variance of the decomposition divided by R. This subtraction makes `bias2` unbiased.

    Example:
        >>> decompose_squared_error([np.array([1.0]), np.array([3.0])], np.array([0.0]))
        [{'bias2': 3.0, 'variance': 2.0}, {'bias2': 3.0, 'variance': 2.0}]
    """
    rows = np.stack(answers)
    number = len(rows)
    middle = rows.mean(axis=0)
    each = ((rows - middle) ** 2).mean(axis=1) * number / max(1, number - 1)
    bias = float(((middle - truth) ** 2).mean() - each.mean() / number)
    return [{"bias2": bias, "variance": float(value)} for value in each]
