"""Predicts with the models of a run, weighs the models for each client, and scores single clients.

A *new client* has never taken part in the run. A *world* is one combination of a seed and a fold of the data. A *study*
is everything that a run needs except a runtime. In a *personal pass* a client trains models that stay at the client and
predict for it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray, State
from fedray.evaluation.regression import Members, find_noise, predict_means, read_members
from fedray.features.mixture import MIXTURE, fit_weights, sample_losses
from fedray.metrics import classification
from fedray.own_code.user_code import describe_exception
from fedray.simulation.study import Host, Pieces, Question, Runtime, Study, join_pieces

# ---------------------------------------------------------------------------------------------------------------------
# The results of a runtime for one evaluation.


class Residual(NamedTuple):
    """The variance of the residuals on a world's training samples, in squared units of the standardized target.

    Attributes:
        mean: The variance, averaged over clients.
        own: The variance at each client whose model nobody else trains (`Method.one_model_per_client`), `[N]`. It is
            NaN if it is unknown, as for a client without samples. None means that clients share models.
    """

    mean: float
    own: FloatArray | None = None

    def of(self, client: int) -> float | None:
        """Returns the variance at a client with a model of its own, or None."""
        return None if self.own is None or np.isnan(self.own[client]) else float(self.own[client])


class Measured(NamedTuple):
    """The results of a runtime for one evaluation. A field that the evaluation does not need is empty.

    Attributes:
        answer: The models that predict, with their weights.
        test: Raw outputs of all models of `answer` on the test samples.
        held_out: Raw outputs of all models of `answer` on the held-out samples.
        weights: For each world, the clients' weights over the models that predict, `[N, K]`. The dict is empty if all
            clients predict in the same way.
        own: For each (world, client), the accuracies or RMSEs of its P personal passes (trainings of its own models),
            `[2, P]`. The first row is for test samples, and the second row for held-out samples.
        residual: For each world, the variance of the residuals on training samples. The dict is empty for
            classification.
        ood: Raw outputs of all models of `answer` for the out-of-distribution inputs.
        train: Raw outputs of all models of `answer` on the training samples.
    """

    answer: Answer
    test: Pieces
    held_out: Pieces
    weights: dict[int, FloatArray]
    own: dict[tuple[int, int], Tensor]
    residual: dict[int, Residual]
    ood: Pieces
    train: Pieces


# ---------------------------------------------------------------------------------------------------------------------
# The clients' weights over the models that predict.


def weigh_models(study: Study, answer: Answer, world: int, losses: Tensor, client: IntArray) -> FloatArray:
    """Returns each client's weights over the models that predict (Fed-ensemble eqs. 3-4).

    The weights depend on the temperature gamma (`predict.gamma`). If gamma is finite, the weights follow from the
    losses at the client. Models to which the client's tier gives no weight are then left out. If gamma is infinite or
    None, a client has the weights of its tier. If tiers have no weights, it has the common weights of all clients.

    Args:
        study: The trained study (the objects of the run).
        answer: The models that predict, with their weights.
        world: Index of the world (a seed and a fold).
        losses: Loss of each of the A models at each client, `[A, n]`. Models that do not predict are included.
        client: Ids of the clients, `[n]`.

    Returns:
        The weights over the K models that predict, `[n, K]`.
    """
    if answer.tiers is not None:
        return _weigh_in_tiers(study, answer, world, losses, client)
    gamma = np.inf if study.evaluation.gamma is None else study.evaluation.gamma
    common = answer.weigh_present(world)
    if common is not None and gamma == np.inf:
        return np.tile(common, (len(client), 1))
    return classification.personal_weights(answer.drop_absent(losses, world).double().numpy().T, gamma)


def _weigh_in_tiers(study: Study, answer: Answer, world: int, losses: Tensor, client: IntArray) -> FloatArray:
    """Returns the result of `weigh_models` if tiers have weights of their own."""
    assert answer.tiers is not None
    tier, weights = study.clients.tier_of(client), np.zeros((len(client), answer.models))
    for t in np.unique(tier).tolist():
        mine, heard = np.flatnonzero(tier == t), np.flatnonzero(answer.tiers[world, t] > 0)
        of_tier = answer._replace(weights=answer.tiers[:, t], tiers=None)
        found = weigh_models(study, of_tier, world, losses[:, torch.from_numpy(mine)], client[mine])
        weights[np.ix_(mine, heard)] = found
    return weights if answer.weights is None else weights[:, answer.weights[world] > 0]


# ---------------------------------------------------------------------------------------------------------------------
# Scores of single clients of the run.


class WeightedRows(NamedTuple):
    """The samples of a split on which one client is scored.

    Attributes:
        rows: Indices of the samples in the split, `[n]`. It is empty if the client has no samples.
        weight: Weight of each sample, `[n]`. The sum of the weights is 1.
    """

    rows: IntArray
    weight: FloatArray

    def mean(self, values: ArrayLike) -> FloatArray:
        """Returns the weighted mean `[...]` of values `[..., n]` of these samples. The mean of no samples is NaN.

        Equal weights give the plain mean, so that the mean of ones is exactly 1.

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


BLOCK_NUMBERS = 1 << 22  # so many numbers are in memory at once, for the predictions of a block of clients
RowsOfClient = Callable[[int], WeightedRows]  # from a client to the samples on which it is scored


def count_known(study: Study) -> int:
    """Returns the number of clients that are scored individually. These clients are the first of the run."""
    return min(study.clients.number, EVALUATED_CLIENTS)


def pick_recorded_clients(study: Study) -> IntArray:
    """Returns the ids of the clients of the run whose scores are recorded, `[n]`.

    The key `evaluate.clients` sets the number of these clients. If it is below the number of all clients, the ids are
    evenly spaced.
    """
    known = count_known(study)
    wanted = min(study.evaluation.clients, known)
    return np.arange(wanted) * known // max(1, wanted)


def weigh_equally(rows: IntArray) -> WeightedRows:
    """Gives the same weight to each of the samples `rows`."""
    return WeightedRows(rows, np.full(len(rows), 1.0 / max(1, len(rows))))


def share_labels(study: Study, world: int) -> FloatArray:
    """Returns the shares of the C classes among the training samples of each of the N clients, `[N, C]`."""
    counts = study.shards.label_counts(world)[:EVALUATED_CLIENTS].astype(np.float64)
    return np.asarray(counts / np.maximum(counts.sum(1, keepdims=True), 1.0))


def own_test_rows(study: Study, world: int) -> RowsOfClient:
    """Returns a function that takes a client and returns the test samples on which the client is scored.

    If test samples belong to clients, a client is scored on its own test samples. Otherwise it is scored on the common
    test samples, or on its group's copy of them, if groups of clients have copies. In a regression all these samples
    have equal weights. In a classification only samples of the client's classes are used. They are weighted, so that
    each class has the same share as in the client's training samples.
    """
    labels, shares = study.split("test", world)[1].numpy(), share_labels(study, world)

    def find(client: int) -> WeightedRows:
        own = study.shards.client_test(world, client)
        if own is not None:
            return weigh_equally(own)
        alike = study.shards.cluster_test(world, client)
        rows = np.arange(len(labels)) if alike is None else alike
        if not study.classes:
            return weigh_equally(rows)
        number = np.bincount(labels[rows], minlength=study.classes)
        each = shares[client] / np.maximum(number, 1)
        rows = rows[each[labels[rows]] > 0]
        weight = each[labels[rows]]
        return WeightedRows(rows, weight / max(float(weight.sum()), 1e-300))

    return find


def held_out_rows(study: Study, world: int) -> RowsOfClient:
    """Returns a function that takes a client and returns its held-out samples, with equal weights."""
    return lambda client: weigh_equally(study.shards.client_holdout(world, client))


def cast_votes(study: Study, world: int, outputs: Tensor) -> FloatArray:
    """Returns the predictions of each model in the form that an ensemble averages.

    Returns:
        For classification these are the votes `[K, n, C]`, which are probabilities or raw outputs (`predict.average`).
        The ensemble predicts the class whose mean vote is the largest.
        For regression these are predicted targets in their original unit, `[K, n, q]`.
    """
    if study.classes:
        logits = outputs.numpy()
        return classification.probabilities(logits) if study.evaluation.average == "probabilities" else logits
    return predict_means(study, world, outputs)


def score_rows(study: Study, answers: NDArray[np.floating[Any]], y: Tensor) -> FloatArray:
    """Returns for each sample whether the predicted class is right (1) or wrong (0), `[..., n]`.

    In a regression, returns the squared error of each sample, averaged over the sample's targets.

    Args:
        study: The trained study (the objects of the run).
        answers: Weighted votes `[..., n, C]`, or predicted targets `[..., n, q]`.
        y: True classes `[n]`, or true targets `[n, q]`.
    """
    if study.classes:
        return np.asarray(answers.argmax(-1) == y.numpy(), dtype=np.float64)
    return np.asarray(((answers - y.double().numpy().reshape(answers.shape[-2:])) ** 2).mean(-1))


def rows_of_clients(study: Study, world: int, split: str) -> RowsOfClient:
    """Returns a function that takes a client and returns the samples of a split on which the client is scored."""
    return own_test_rows(study, world) if split == "test" else held_out_rows(study, world)


Value = Callable[[int, IntArray | None], FloatArray]  # (client, its samples or None for all) -> values `[..., n]`
Group = Callable[[int], int | None]  # client -> key of its group, whose clients get the same predictions, or None


def value_each(
    clients: IntArray, find: RowsOfClient, value: Value, group: Group = lambda _client: None, *, skip: bool = False
) -> Iterator[tuple[WeightedRows, FloatArray]]:
    """Yields for each client its samples, and the values of these samples, `[..., n]`.

    The values are computed from the client's predictions. Only some clients' predictions are in memory at a time.

    Args:
        clients: Ids of the clients, `[N]`.
        find: A function that takes a client and returns its samples.
        value: A function that takes a client and the indices of samples, and returns the values of these samples. None
            instead of indices stands for all samples of the split.
        group: A function that takes a client and returns its group. Clients of a group predict alike, so the values
            are computed only once for a group. None means that the client is in no group.
        skip: Whether a client in no group counts as a client without samples if its predictions fail. If False, the
            first failure raises an error.

    Raises:
        FedrayError: The predictions of a client failed. The message names the client.
    """
    known: dict[int, FloatArray] = {}
    for client in clients.tolist():
        own, key = find(client), group(client)
        if not len(own.rows):
            yield own, np.empty(0)
        elif key is None:
            try:
                found = own, value(client, own.rows)
            except Exception as error:
                if not skip:
                    told = f"the scoring of client {client} failed: {describe_exception(error)}"
                    raise FedrayError(f"{told}: correct it, or set on_client_error: skip") from error
                found = weigh_equally(own.rows[:0]), np.empty(0)
            yield found
        else:
            if key not in known:
                known[key] = value(client, None)
            yield own, known[key].take(own.rows, axis=-1)


def measure_by_class(
    shares: FloatArray, labels: IntArray, votes: NDArray[np.floating[Any]], weights: FloatArray
) -> FloatArray:
    """Returns the accuracies of N clients that are scored on the samples of their classes (`own_test_rows`), `[N]`.

    Each class is scored once, for all clients together.

    Args:
        shares: Share of each class among a client's samples, `[N, C]`.
        labels: True class of each sample, `[n]`.
        votes: Votes of each model, `[K, n, C]`.
        weights: Each client's weights over the models, `[N, K]`.

    Example:
        >>> votes, labels = np.array([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]), np.array([0, 1, 1])
        >>> shares = np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])  # there is no sample of class 2
        >>> measure_by_class(shares, labels, votes, np.ones((2, 1))).round(3).tolist()
        [0.833, nan]
    """
    right, present = np.zeros(shares.shape), np.unique(labels)
    for c in present.tolist():
        of_class, held = votes[:, labels == c], np.flatnonzero(shares[:, c] > 0)
        for some in np.array_split(held, 1 + len(held) * of_class[0].size // BLOCK_NUMBERS):
            mean = np.tensordot(weights[some].astype(votes.dtype), of_class, axes=1)
            right[some, c] = (mean.argmax(-1) == c).mean(axis=1)
    scored = shares[:, present]
    with np.errstate(invalid="ignore"):  # a client without such samples has 0 / 0
        return np.asarray((scored * right[:, present]).sum(1) / scored.sum(1))


def measure_clients(
    study: Study,
    world: int,
    outputs: Tensor,
    weights: FloatArray | None,
    split: str = "test",
    *,
    clients: IntArray | None = None,
    common: FloatArray | None = None,
) -> FloatArray:
    """Returns the accuracy, or RMSE, of each client's predictions on its own samples of a split.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        outputs: Raw outputs of the models that predict, for the whole split, `[K, n, C]`.
        weights: Each client's weights over the models, `[N, K]`. Their sum over K is 1. None means that all clients
            have the common weights.
        split: The split, `test` or `hold_out`.
        clients: Ids of the clients to score. None means the N clients of `weights`.
        common: Common weights over the models, `[K]`. None means equal weights.

    Returns:
        Accuracies from 0 to 1, or RMSEs in the target's unit, `[N]`. A client without samples in the split has NaN.
    """
    y, votes = study.split(split, world)[1], cast_votes(study, world, outputs)
    votes = votes.astype(np.float32) if study.classes else votes  # half the memory; votes that are closer may tie
    together = study.shards.client_test(world, 0) is None and study.shards.cluster_test(world, 0) is None
    if study.classes and split == "test" and weights is not None and clients is None and together:
        return measure_by_class(share_labels(study, world), y.numpy(), votes, weights)
    finite = bool(np.isfinite(votes).all())

    def count(client: int, rows: IntArray | None) -> FloatArray:
        if weights is not None and rows is not None:
            answers = classification.weigh_votes(weights[client], votes, rows, finite=finite)
            return score_rows(study, answers, y[torch.from_numpy(rows)])
        mean = votes.mean(axis=0) if common is None else np.tensordot(common.astype(votes.dtype), votes, axes=1)
        return score_rows(study, mean, y)

    clients = np.arange(0 if weights is None else len(weights)) if clients is None else clients
    alike = 0 if weights is None else None
    each = value_each(clients, rows_of_clients(study, world, split), count, lambda _client: alike)
    found = np.array([float(own.mean(errors)) for own, errors in each])
    return found if study.classes else np.sqrt(found)


def summarize_clients(scores: FloatArray, prefix: str = "", *, classes: bool = True) -> dict[str, float]:
    """Returns the mean, the worst, and a quantile near the worst of the clients' scores.

    The quantile is at 10 % for accuracies, and at 90 % for RMSEs. Clients without a score (NaN) are left out.

    The names of the results begin with `prefix`. `classes` says whether the scores are accuracies.

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
# Values of each sample, such as its log likelihood, and their means over the samples of each client. A client may
# predict with the ensemble, with its own weights over the models, or with its own models. Its own models predict in the
# process that has the client's private vectors. Conformal sets and the scores of clients use these functions.

Own = dict[tuple[int, int], Tensor]  # (world, client) -> results of a client with its own models


class MemberPredictions(NamedTuple):
    """The models' predictions for some samples.

    Attributes:
        votes: Probabilities or raw outputs of each model, which an ensemble averages, `[K, n, C]`. They are None in a
            regression.
        members: Means and variances of each model. They are None in a classification.
        y: True labels `[n]`, or true targets `[n]` in their original unit.
        draw: A function that returns a uniform random number for each sample, `[n]`. The conformal scores `aps` and
            `raps` need these numbers.
        weights: Common weights over the models, `[K]`. None means equal weights.
    """

    votes: FloatArray | None
    members: Members | None
    y: Any
    draw: Callable[[], FloatArray]
    weights: FloatArray | None = None


class EnsemblePrediction(NamedTuple):
    """The joint prediction of the models for some samples.

    Attributes:
        y: True labels or targets, `[n]`.
        probs: Probability of each class, `[n, C]`. It is None in a regression.
        mean: Predicted mean of each target, `[n]`. It is None in a classification.
        sd: Predicted standard deviation of each target, `[n]`. It is None in a classification.
    """

    y: Any
    probs: Any = None
    mean: Any = None
    sd: Any = None


# (study, world, predictions of the models, samples or None for all, weights over the models or None for the common
# weights) -> values of each sample, `[..., n]`. It must be a function of a module, or a `partial` of it, because it is
# sent to other processes by name.
MeasureRows = Callable[[Study, int, MemberPredictions, IntArray | None, FloatArray | None], FloatArray]


class ClientRequest(NamedTuple):
    """A request to the clients of the run for values of their predictions on a split.

    An example of such a value is the log likelihood of a sample.

    Attributes:
        split: The split, `test` or `hold_out`.
        measure: A function that takes (study, world, models' predictions, indices of samples, weights of the models)
            and returns the values of these samples, `[n]` or `[means, n]`. If the indices are None, all samples are
            used. If the weights are None, the common weights are used.
        means: Number of values that a client averages over its samples. 0 means that the client returns the values of
            each sample.
        halved: Whether only every second sample of each client is used.
        score: A function that takes (study, the client's samples, their values) and returns the client's scores. None
            means that the client returns means or values.
    """

    split: str
    measure: MeasureRows
    means: int = 0
    halved: bool = False
    score: Callable[[Study, WeightedRows, FloatArray], FloatArray] | None = None

    def rows(self, study: Study, world: int) -> RowsOfClient:
        """Returns a function that takes a client and returns its samples for this request."""
        find = rows_of_clients(study, world, self.split)
        return (lambda client: weigh_equally(find(client).rows[1::2])) if self.halved else find

    def summarize(self, study: Study, each: Iterator[tuple[WeightedRows, FloatArray]]) -> Iterator[FloatArray]:
        """Yields for each client the values of its samples, their means, or its scores.

        The means of a client without samples are NaN.
        """
        for own, values in each:
            if self.score is not None:
                yield self.score(study, own, values)
            else:
                yield np.full(self.means, own.mean(values)) if self.means else values


def draw_uniform(study: Study, world: int, x: Tensor) -> FloatArray:
    """Draws a uniform random number for each input, `[n]`.

    A number depends only on the input and the seed. So a sample has the same number in every round. The number also
    does not depend on the other samples of `x`.
    """
    bytes_of = (row.astype("<f4").tobytes() for row in x.cpu().numpy())  # equal for all types in which a row is given
    digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in bytes_of)
    return rng.uniform(rng.keys(int(study.seeds[world]), "conformal", np.frombuffer(digests, "<i8")), 1)[..., 0]


def read_answers(
    study: Study,
    world: int,
    outputs: Tensor,
    split: str,
    answer: Answer,
    *,
    rows: IntArray | None = None,
    residual: float | None = None,
) -> MemberPredictions:
    """Returns the predictions of the models for samples of a split.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        outputs: Raw outputs of the models that predict, for these samples, `[K, n, C]`.
        split: The split, `test` or `hold_out`.
        answer: The models that predict, with their weights.
        rows: Indices of the samples in the split, `[n]`. None means all samples.
        residual: Variance of the standardized target's residuals on training samples. None means that it is unknown.
    """
    x, y = study.stored_split(split, world)[0], study.split(split, world)[1].numpy()
    if rows is not None:
        x, y = x[torch.from_numpy(rows)], y[rows]
    draw = cache(partial(draw_uniform, study, world, x))
    if study.classes:
        if answer.combine is not None:  # the result of the rule counts as one model
            votes = answer.combine(world, classification.probabilities(outputs.numpy()))[None]
            return MemberPredictions(votes, None, y, draw)
        return MemberPredictions(cast_votes(study, world, outputs), None, y, draw, answer.weigh_present(world))
    members = read_members(study, world, outputs, split, answer, rows=rows, residual=residual)
    return MemberPredictions(None, members, members.y, draw, members.weights)


def read_world(study: Study, world: int, measured: Measured, split: str) -> MemberPredictions:
    """Returns the predictions of a world's models for all samples of a split."""
    outputs = join_pieces(measured.test if split == "test" else measured.held_out, world)
    outputs, residual = measured.answer.drop_absent(outputs, world), measured.residual.get(world)
    return read_answers(study, world, outputs, split, measured.answer, residual=residual and residual.mean)


def join_answers(
    study: Study, of: MemberPredictions, rows: IntArray | None = None, weights: FloatArray | None = None
) -> EnsemblePrediction:
    """Returns the joint prediction of the models for some samples.

    Args:
        study: The trained study (the objects of the run).
        of: The predictions of each model.
        rows: Indices of the samples in `of`, `[n]`. None means all samples.
        weights: Weights of the models, `[K]`. None means the common weights.
    """
    weights = of.weights if weights is None else weights
    chosen: Any = slice(None) if rows is None else rows
    models: Any = slice(None) if weights is None else weights > 0
    w = None if weights is None else weights[models]
    if of.votes is not None:
        mean = classification.average(of.votes[models][:, chosen], w)
        return EnsemblePrediction(
            of.y[chosen], classification.probabilities(mean) if study.evaluation.average == "logits" else mean
        )
    assert of.members is not None
    own = None if of.members.variances is None else of.members.variances[models][:, chosen]
    some = of.members._replace(means=of.members.means[models][:, chosen], variances=own, weights=w)
    mean, variance = some.moments
    return EnsemblePrediction(of.y[chosen], mean=mean, sd=np.sqrt(variance))


def find_weights(study: Study, world: int, measured: Measured) -> FloatArray | None:
    """Returns each client's weights over the K models, `[N, K]`, or None if all clients predict alike.

    The clients of a stack predict alike, because the stack itself combines the predictions of its parts.
    """
    return None if study.parts else measured.weights.get(world)


def compute_client_values(
    study: Study,
    world: int,
    measured: Measured,
    of: MemberPredictions,
    inquiry: ClientRequest,
    *,
    own: Own | None,
    common: FloatArray | None = None,
) -> list[FloatArray]:
    """Returns the values that `inquiry` requests from each client of the run.

    For each client, the array has means `[means]`, scores, or the values of the client's n_k samples, `[n_k]`.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        measured: The results of the runtime for this evaluation.
        of: The predictions of the models for all samples of the split.
        inquiry: The request, with the split and the requested values.
        own: The results of clients with their own models (`ask_own`). None means that there are no such clients.
        common: The values of all samples for the common weights of the models. None means that these values are not
            computed yet.
    """
    clients, weights = np.arange(count_known(study)), find_weights(study, world, measured)
    residual, scale = measured.residual.get(world), study.target_scale(world) ** 2
    if own is not None:
        return [own[world, client].numpy() for client in clients.tolist()]

    def value(client: int, rows: IntArray | None) -> FloatArray:
        if weights is not None:
            variance, said = None if residual is None else residual.of(client), of
            if variance is not None and of.members is not None:
                alone = of.members.variances is None
                noise = find_noise(study, world, measured.answer, alone=alone, residual=variance)
                said = of._replace(members=of.members._replace(noise=noise * scale, residual=variance * scale))
            return inquiry.measure(study, world, said, rows, weights[client])
        return inquiry.measure(study, world, of, None, None) if common is None else common

    alike = 0 if weights is None else None
    each = value_each(clients, inquiry.rows(study, world), value, lambda _client: alike)
    return list(inquiry.summarize(study, each))


# ---------------------------------------------------------------------------------------------------------------------
# The clients' private weights over the models (FedEM).


def read_weights(private: Mapping[str, Tensor], world: int, clients: int, models: int) -> FloatArray:
    """Reads the stored weights of a world's first clients over the K models, `[clients, K]`.

    A client that stores no weights has NaN.

    Args:
        private: The tensors that clients keep between rounds, as in a checkpoint.
        world: Index of the world (a seed and a fold).
        clients: Number of clients.
        models: K, the number of models.

    Example:
        >>> keys, rows = torch.tensor([[0, 1, 0], [0, 1, 1]]), torch.tensor([[0.2], [0.6]])
        >>> read_weights({"mixture/keys": keys, "mixture/rows": rows}, world=0, clients=2, models=2).round(2).tolist()
        [[nan, nan], [0.25, 0.75]]
    """
    weights = np.full((clients, models), np.nan)
    keys, rows = (private.get(f"{MIXTURE}/{part}", torch.zeros(0, 3)).numpy() for part in ("keys", "rows"))
    own = (keys[:, 0] == world) & (keys[:, 1] < clients)
    weights[keys[own, 1].astype(np.int64), keys[own, 2].astype(np.int64)] = rows[own, 0]
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))  # a job that failed leaves its old weight


def measure_weights(study: Study, runtime: Runtime, state: State, clients: Sequence[IntArray]) -> dict[int, FloatArray]:
    """Returns for each world the weights of n clients over the K models, `[n, K]`.

    A client that stores no weights fits weights to its samples. `clients` has the ids of each world's clients, `[n]`
    each. A world without clients is left out.
    """
    models, private = study.method.phase.models, runtime.private((MIXTURE,))
    weights = {
        world: read_weights(private, world, some.max() + 1, models)[some]
        for world, some in enumerate(clients)
        if len(some)
    }
    new = [
        some[np.isnan(weights[world]).any(axis=1)] if world in weights else some for world, some in enumerate(clients)
    ]
    for (world, first), fitted in runtime.ask(Question(fit_mixtures, clients=new, numbers=models), state).items():
        client = np.searchsorted(clients[world], new[world][first : first + fitted.shape[1]])
        weights[world][client] = np.nan_to_num(fitted.numpy().T, nan=1.0 / models)
    return weights


def fit_mixtures(host: Host, state: State, world: int, client: IntArray) -> Tensor:
    """Fits clients' weights over a world's models by E steps of FedEM. The models do not change.

    Returns:
        The weights, `[K, c]` float64, whose sum over K is 1.
    """
    models = host.study.method.phase.models
    each = [sample_losses(host, state, models, world, i).numpy() for i in client.tolist()]
    return torch.from_numpy(np.stack([fit_weights(losses) for losses in each], axis=1))
