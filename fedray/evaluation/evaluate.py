"""Computes metrics of a run's ensemble and of each of its models (its *members*).

A *new client* has never taken part in the run. A *world* is one combination of a seed and a fold of the data. A *study*
is everything that a run needs except a runtime.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, AverageKind, BoolArray, FloatArray, IntArray, State, Tier
from fedray.evaluation import answers, personal
from fedray.evaluation.conformal import ClientSets, add_client_sets, measure_all_sets, name_size
from fedray.evaluation.regression import SQUARED_ERROR, Members, decompose_squared_error, read_members, score_regression
from fedray.metrics import classification, regression
from fedray.metrics.scorers import SampleMetric
from fedray.metrics.scores import Scored, check_number
from fedray.own_code.contract import contract
from fedray.simulation import study as studies
from fedray.simulation.stacking import score_bases, score_stack
from fedray.simulation.study import ClientScores, Pieces, Progress, Runtime, Study, join_pieces

# ---------------------------------------------------------------------------------------------------------------------
# Mean scores of all clients of the run (`evaluate.personal`) and of the clients of each tier (`evaluate.by_tier`).
#
# A client is scored on its own samples. It predicts with its own models, or with the common models and common weights,
# weights of its tier, or its own weights. In the mean score of several clients, all clients count equally.


def measure_answers(
    study: Study, _world: int, of: answers.MemberPredictions, rows: IntArray | None, weights: FloatArray | None
) -> FloatArray:
    """Returns m values for each sample, `[m, n]`. A client's scores follow from the means of these values.

    In a regression, the prediction of a single model may have no variance. The variance of the residuals on training
    samples then takes its place. If this variance is unknown, too, the values that need a variance are NaN.
    """
    said, members = answers.join_answers(study, of, rows, weights), of.members
    if members is None:
        return classification.row_scores(said.probs, said.y)
    weights = of.weights if weights is None else weights
    voters, variance = len(members.means) if weights is None else np.count_nonzero(weights), said.sd**2
    alone = voters == 1 and members.variances is None and not members.noise
    if alone and members.residual is not None:
        variance = np.full_like(variance, members.residual)
    found = regression.row_scores(said.mean, variance, said.y)
    if alone and members.residual is None:
        found[1:] = np.nan
    return found


def make_request(study: Study, split: str) -> answers.ClientRequest:
    """Makes a request to clients for the means of `measure_answers` over their samples of a split."""
    return answers.ClientRequest(split, measure_answers, means=3 + classification.BINS if study.classes else 4)


def list_scored_tiers(study: Study) -> Sequence[Tier]:
    """Returns the tiers that get scores.

    These are all tiers if `evaluate.by_tier` is set and there are several tiers. Otherwise there are none.
    """
    tiers = study.clients.tiers
    return tiers if study.evaluation.by_tier and len(tiers) > 1 else ()


def score_tiers(
    study: Study, world: int, measured: answers.Measured, own: dict[str, answers.Own], sets: ClientSets | None
) -> dict[str, float]:
    """Returns the mean scores of a world's clients, and if `by_tier` is set, also the mean scores of each tier.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        measured: The results of the runtime for this evaluation.
        own: For each split, the results of clients with their own models (`personal.ask_own_splits`).
        sets: The coverage and size of each client's conformal sets on its test samples. None means that there are no
            sets.

    Returns:
        The scores of all clients (`personal_NAME`) and of each tier (`tier_TIER_NAME`). The first tier is also compared
        with every later tier, by the difference of their scores (`tier_FIRST_minus_OTHER_NAME`). The names of scores on
        held-out samples begin with `hold_out_`.

    Example:
        >>> import fedray
        >>> tiers = {"strong": {"number": 2, "models_per_round": 3}, "weak": {"number": 4}}
        >>> keys = {"method": "shefl", "rounds": 3, "clients": {"tiers": tiers}, "evaluate": {"by_tier": True}}
        >>> found = fedray.run(keys, runtime="inline", report=False).metrics
        >>> sorted(name for name in found if name.startswith("tier_weak"))
        ['tier_weak_accuracy', 'tier_weak_brier', 'tier_weak_ece', 'tier_weak_nll']
        >>> mean = (2 * found["tier_strong_nll"] + 4 * found["tier_weak_nll"]) / 6
        >>> abs(found["personal_nll"] - mean) < 1e-9
        True
    """
    client, tiers = np.arange(answers.count_known(study)), list_scored_tiers(study)
    tier = study.clients.tier_of(client)
    groups = {"personal_": client >= 0}
    groups |= {f"tier_{one.name}_": tier == t for t, one in enumerate(tiers)}
    found: dict[str, float] = {}
    for split, prefix, pieces in (("test", "", measured.test), ("hold_out", "hold_out_", measured.held_out)):
        if not pieces:
            continue
        of = answers.read_world(study, world, measured, split)
        told = np.stack(
            answers.compute_client_values(study, world, measured, of, make_request(study, split), own=own.get(split))
        )  # [N, m]
        for group, members in groups.items():
            asked = members & ~np.isnan(told[:, 0])
            if not asked.any():
                continue
            if study.classes:
                scores = classification.scores_of_means(told[asked].mean(axis=0))
            else:  # the RMSE of several clients is the mean of their RMSEs
                means = np.concatenate([np.sqrt(told[asked, :1]), told[asked, 1:]], axis=1).mean(axis=0)
                each = zip(("rmse", "nll", "coverage_95", "width_95"), means.tolist(), strict=True)
                scores = {name: mean for name, mean in each if not math.isnan(mean)}
            if sets is not None and split == "test" and group != "personal_":
                covered, size = (each[asked].mean() for each in sets)
                scores |= {"conformal_coverage": float(covered), f"conformal_{name_size(study)}": float(size)}
            if measured.ood and not own and group != "personal_":
                scores |= score_ood_of_clients(study, world, measured, join_pieces(pieces, world), asked)
            found |= {prefix + group + name: value for name, value in scores.items()}
        for one in tiers[1:]:
            first, other = (f"{prefix}tier_{name}_" for name in (tiers[0].name, one.name))
            shared = [name.removeprefix(other) for name in found if name.startswith(other)]
            gap = f"{prefix}tier_{tiers[0].name}_minus_{one.name}_"
            found |= {gap + name: found[first + name] - found[other + name] for name in shared if first + name in found}
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The outputs, weights and residuals for one evaluation.


def measure_models(study: Study, runtime: Runtime, state: State, test: bool) -> answers.Measured:
    """Computes the models' outputs, weights and residuals for one evaluation.

    Test samples are predicted only if `test` is True.

    Raises:
        BadInput: The scenario does not allow the method's own rule for combining predictions (`Answer.combine`).
    """
    answer = study.answer(state)
    asks = not study.classes or study.evaluation.gamma is not None or study.evaluation.average == "logits"
    if answer.combine is not None and asks:
        raise BadInput(
            f"method {study.method.name}: its Answer has combine, which gives everybody the same probabilities of "
            "classes: leave it out, or real targets, predict.gamma, evaluate.personal and predict.average = logits"
        )
    own = personal.ask_own_scores(runtime, state) if study.method.phase.is_personal else {}
    weights: dict[int, FloatArray] = {}
    if has_client_weights(study, answer):
        known = [np.arange(answers.count_known(study))] * study.worlds
        weights = find_client_weights(study, runtime, answer, known)
    return answers.Measured(
        answer,
        test=studies.ask_outputs(runtime, answer, "test") if test else {},
        held_out=studies.ask_outputs(runtime, answer, "hold_out") if study.hold_out else {},
        weights=weights,
        own=own,
        residual={} if study.classes else measure_residual_variance(study, runtime, state, answer, weights),
        ood=studies.ask_outputs(runtime, answer, studies.OOD) if study.evaluation.ood else {},
        train=studies.ask_outputs(runtime, answer, "train") if study.evaluation.train else {},
    )


def has_client_weights(study: Study, answer: Answer) -> bool:
    """Returns whether clients may differ in their weights over the models.

    They do if each client owns a model, by FedEM, by `predict.gamma`, or by tiers.
    """
    phase, asked = study.method.phase, study.evaluation.gamma is not None or study.method.one_model_per_client
    return not phase.is_personal and (phase.weighs or asked or answer.tiers is not None)


def find_client_weights(
    study: Study, runtime: Runtime, answer: Answer, clients: Sequence[IntArray]
) -> dict[int, FloatArray]:
    """Returns for each world the weights of n clients over the K models that predict, `[n, K]`.

    The clients store the weights (FedEM), or they have the weights of their tiers, or the weights follow from the
    losses on the clients' samples. If each client owns one model, the own model has all of the client's weight. If the
    own model does not predict, the client has the common weights. `clients` has the ids of each world's clients, `[n]`
    each. A world without clients is left out.
    """
    if study.method.phase.weighs:
        return answers.measure_weights(study, runtime, answer.state, clients)
    asked = {world: some for world, some in enumerate(clients) if len(some)}
    if study.method.one_model_per_client:
        return {world: personal.weigh_own_models(answer, world, some) for world, some in asked.items()}
    losses = {world: torch.zeros(answer.models, len(some)) for world, some in asked.items()}
    if study.parts or (answer.models > 1 and study.evaluation.gamma not in (None, np.inf)):  # others need no losses
        pieces = runtime.ask(studies.losses_of(answer.models, clients), answer.state)
        losses = {world: join_pieces(pieces, world) for world in asked}
    return {world: answers.weigh_models(study, answer, world, losses[world], some) for world, some in asked.items()}


def measure_residual_variance(
    study: Study, runtime: Runtime, state: State, answer: Answer, weights: Mapping[int, FloatArray]
) -> dict[int, answers.Residual]:
    """Returns for each world the variance of the residuals on training samples.

    If clients own models, the residuals are the errors of each client's own model on its samples. Otherwise they are
    the errors of the models that the server sends to all clients, and the variance is also averaged over these models.
    `weights` has the clients' weights of the models in this average, `[N, K]` for each world. In a world without
    weights, all models count equally.

    Returns:
        The variance for each world. The dict is empty if the loss is not the squared error.
    """
    if study.net.objective not in SQUARED_ERROR:
        return {}
    factor, models, client = SQUARED_ERROR[study.net.objective], answer.models, np.arange(answer.models)
    alone = study.method.one_model_per_client
    if alone:
        size = [study.shards.sizes(np.full_like(client, world), client) for world in range(study.worlds)]
        there = np.stack(size) > 0 if answer.weights is None else (np.stack(size) > 0) & (answer.weights > 0)
        owner = np.where(there, client, -1)
    else:
        owner = np.full((study.worlds, models), -1) if answer.owner is None else answer.owner
    owned = _find_losses_of_owners(study, runtime, answer, owner)
    losses = {world: each[~each.isnan()] for world, each in owned.items()}
    if rest := [world for world in range(study.worlds) if world not in losses]:
        pieces = runtime.ask(studies.losses_of(study.method.phase.models), state)
        for world in rest:
            of_world = join_pieces(pieces, world)
            of_world = answer.drop_absent(of_world, world) if study.parts else of_world  # sub models come too
            own = torch.from_numpy(weights[world].T) if world in weights and not study.parts else None
            if own is not None and models == study.method.phase.models:
                of_world = (own * answer.drop_absent(of_world, world)).sum(dim=0, keepdim=True)
            client = np.arange(of_world.shape[1])
            filled = study.shards.sizes(np.full_like(client, world), client) > 0
            of_world = of_world if filled.all() else of_world[:, torch.from_numpy(filled)]
            # a client whose scoring failed has no loss of any model; a model that diverged is NaN at every client
            unknown = of_world.isnan().all(dim=0)
            losses[world] = of_world if unknown.all() else of_world[:, ~unknown]
    return {
        world: answers.Residual(
            factor * float(losses[world].mean()), factor * owned[world].numpy() if alone and world in owned else None
        )
        for world in range(study.worlds)
    }


def _find_losses_of_owners(study: Study, runtime: Runtime, answer: Answer, owner: IntArray) -> dict[int, Tensor]:
    """Returns the loss of each model at the client that owns it, `[A]`. Worlds without such models are left out.

    The loss is NaN if nobody owns the model, or if its scoring failed. `owner` has the client that owns each model,
    `[R, A]`. -1 means that no client owns the model.
    """
    worlds = np.flatnonzero((owner >= 0).any(axis=1)).tolist()
    if not worlds:
        return {}
    if study.clients.number <= EVALUATED_CLIENTS:
        asked = [np.arange(study.clients.number)] * study.worlds
    else:  # only clients that own models compute losses
        asked = [np.unique(some[some >= 0])[:EVALUATED_CLIENTS] for some in owner]
    pieces = runtime.ask(studies.losses_of(answer.models, asked), answer.state)
    losses: dict[int, Tensor] = {}
    for world in worlds:
        model = np.flatnonzero(np.isin(owner[world], asked[world]))
        losses[world] = torch.full((answer.models,), torch.nan, dtype=torch.float64)
        found = join_pieces(pieces, world)[model, np.searchsorted(asked[world], owner[world, model])]
        losses[world][torch.from_numpy(model)] = found
    return losses


def answer_world(outputs: Tensor, kind: AverageKind, answer: Answer, world: int) -> classification.ClassAnswer:
    """Returns the predictions of a world's models, and their joint prediction.

    The joint prediction is the mean of the models' predictions, or the result of `Answer.combine`.

    Args:
        outputs: Logits of all models of the world, `[A, n, C]`.
        kind: Name of the averaged quantity, as in the key `predict.average`.
        answer: The models that predict, with their weights.
        world: Index of the world (a seed and a fold).
    """
    present = answer.drop_absent(outputs, world).numpy()
    found = classification.answer_classes(present, kind, answer.weigh_present(world))
    return found if answer.combine is None else found._replace(mean=answer.combine(world, found.members))


class Predicted(NamedTuple):
    """The predictions of a world's models for a split.

    Attributes:
        members: The predictions of each model: probabilities `[K, n, C]`, or targets `[K, n]`.
        mean: Their joint prediction, `[n, C]` or `[n]`.
        of: The Gaussian predictions of a regression. None for a classification.
    """

    members: FloatArray
    mean: FloatArray
    of: Members | None


def predict_split(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer, *, residual: float | None
) -> Predicted:
    """Returns the predictions of a world's models for a split.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        outputs: Raw outputs of all models on the whole split, `[A, n, C]`.
        split: The split, `test`, `hold_out` or `train`.
        answer: The models that predict, with their weights.
        residual: Variance of the standardized target's residuals on training samples. None means that it is unknown.
            Only regressions use it.
    """
    if study.classes and study.parts:
        probs = classification.probabilities(outputs.numpy())
        return Predicted(probs[1:], probs[0], None)
    if study.classes:
        return Predicted(*answer_world(outputs, study.evaluation.average, answer, world), None)
    of = read_members(study, world, answer.drop_absent(outputs, world), split, answer, residual=residual)
    members = answers.cast_votes(study, world, outputs[1:])[..., 0] if study.parts else of.means
    return Predicted(members, of.moments.mean, of)


# ---------------------------------------------------------------------------------------------------------------------
# Detection of out-of-distribution inputs by the uncertainty of predictions.

DRAWN_BINS = 20  # number of bins of the entropy in the report's picture


def score_ood(study: Study, world: int, known: Tensor, unknown: Tensor, answer: Answer) -> dict[str, float]:
    """Scores how well a world's models detect out-of-distribution inputs by the uncertainty of their predictions.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        known: Raw outputs of all models on the samples of a split, `[K, n, C]`.
        unknown: Raw outputs of all models on the out-of-distribution inputs, `[K, m, C]`.
        answer: The models that predict, with their weights.

    Example:
        >>> import fedray
        >>> keys = {"rounds": 5, "clients": 10, "evaluate": {"every": 5, "ood": "noise"}}
        >>> fedray.run(keys, runtime="inline", report=False).metrics["ood_auroc"] > 0.5
        True
    """
    (inside, inside_knowledge), (outside, outside_knowledge) = (
        _measure_uncertainty(study, world, outputs, answer) for outputs in (known, unknown)
    )
    scores = {
        "ood_auroc": classification.auroc(outside, inside),
        "ood_fpr95": classification.fpr95(outside, inside),
        "ood_entropy": float(outside.mean()),
    }
    if inside_knowledge is not None and outside_knowledge is not None:
        scores["ood_auroc_knowledge"] = classification.auroc(outside_knowledge, inside_knowledge)
    return scores


def score_ood_of_clients(
    study: Study, world: int, measured: answers.Measured, known: Tensor, asked: BoolArray
) -> dict[str, float]:
    """Averages the scores of `score_ood` over clients, each with its own weights over the models.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        measured: The results of the runtime for this evaluation.
        known: Raw outputs of all models on the samples of a split, `[K, n, C]`. Every client is scored on all of these
            samples.
        asked: Whether each of N clients counts in the mean, `[N]`.
    """
    weights, answer = answers.find_weights(study, world, measured), measured.answer
    both = known, join_pieces(measured.ood, world)
    if weights is None:
        return score_ood(study, world, *both, answer)
    known, unknown = (answer.drop_absent(outputs, world) for outputs in both)
    rows, count = np.unique(weights[asked], axis=0, return_counts=True)
    of_row = (answer._replace(weights=np.tile(row, (study.worlds, 1))) for row in rows)
    each = [score_ood(study, world, known, unknown, of) for of in of_row]
    names = set.intersection(*map(set, each))
    return {name: float(np.average([one[name] for one in each], weights=count)) for name in sorted(names)}


def collect_ood_report(study: Study, known: Tensor, unknown: Tensor, answer: Answer) -> dict[str, Any]:
    """Returns the arrays for the report's picture of out-of-distribution inputs in the first world.

    Args:
        study: The trained study (the objects of the run).
        known: Raw outputs of all models on the test samples, `[K, n, C]`.
        unknown: Raw outputs of all models on the out-of-distribution inputs, `[K, m, C]`.
        answer: The models that predict, with their weights.

    Returns:
        Two arrays. `ood_entropies`, `[bins, 3]`, is a histogram of the predictions' entropy. Its columns are the lower
        end of the bin, the share of the test samples, and the share of the out-of-distribution inputs. `ood_auroc`
        has one value, `[1]`.
    """
    both = [_measure_uncertainty(study, 0, outputs, answer)[0] for outputs in (known, unknown)]
    edges = np.linspace(0.0, math.log(study.classes), DRAWN_BINS + 1)
    shares = [np.histogram(np.minimum(each, edges[-1]), edges)[0] / len(each) for each in both]
    return {
        "ood_entropies": np.stack([edges[:-1], *shares], axis=1),
        "ood_auroc": np.array([classification.auroc(both[1], both[0])]),
    }


def _measure_uncertainty(
    study: Study, world: int, outputs: Tensor, answer: Answer
) -> tuple[FloatArray, FloatArray | None]:
    """Returns the uncertainty of the predictions for some samples.

    Returns:
        The entropy of each prediction, `[n]`, and the part of the entropy that comes from disagreement of the models,
        `[n]`. This part is None for a single model, or if the ensemble does not average its models' predictions.
    """
    members, mean = answer_world(outputs, study.evaluation.average, answer, world)
    if len(members) == 1 or answer.combine is not None:  # only the entropy of a mean can be split
        return classification.entropies(mean), None
    return classification.uncertainty(members, mean, answer.weigh_present(world))


# ---------------------------------------------------------------------------------------------------------------------
# A user's metrics, which return a value for each world and split.


def score_user_metrics(study: Study, world: int, split: str, found: Predicted) -> dict[str, float]:
    """Computes the user's own metrics, and returns their values by name.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        split: The split, `test`, `hold_out` or `train`.
        found: The predictions for the whole split.

    Example:
        >>> import fedray
        >>> def hard(scored):
        ...     return (scored.prediction.max(axis=1) < 0.5).mean()
        >>> keys = {"rounds": 1, "clients": {"number": 4}, "runtime": "inline", "report": False}
        >>> run = fedray.run(keys, metrics={"hard": hard})
        >>> [0 <= value <= 1 for value in run.rounds["hard"].to_pylist()]
        [True, True]
    """
    metrics, (members, prediction, of) = study.evaluation.metrics, found
    if not metrics:
        return {}
    x, y = study.split(split, world)
    variance = None if of is None else of.moments.variance
    targets = y.numpy() if study.classes else y.double().numpy().reshape(len(y), -1)[:, 0]
    scored = Scored(prediction, targets, members, x.numpy(), split, *study.place(world), variance)
    scores: dict[str, Any] = {}
    for name, metric in metrics.items():
        if not isinstance(metric, SampleMetric):
            scores[name] = float(contract(f"metric {name}", metric, check_number)(scored))
            continue
        scores[name] = metric.score(targets, prediction)
        if len(members) > 1:
            each = [metric.score(targets, member) for member in members]
            least, mean, most = float(np.min(each)), float(np.mean(each)), float(np.max(each))
            scores |= {f"{name}_min": least, f"{name}_mean": mean, f"{name}_max": most, f"member_{name}": each}
    return scores


# ---------------------------------------------------------------------------------------------------------------------
# The user's metrics for each client. Only a `SampleMetric` can be computed from the samples of one client.


def list_sample_metrics(study: Study) -> list[SampleMetric]:
    """Lists the user's metrics that can score a single client."""
    metrics: Iterable[Any] = study.evaluation.metrics.values()
    return [metric for metric in metrics if isinstance(metric, SampleMetric)]


def give_predictions(
    study: Study, _world: int, of: answers.MemberPredictions, rows: IntArray | None, weights: FloatArray | None
) -> FloatArray:
    """Returns the prediction for each sample, and the true label or target of each sample.

    In a classification, the result is `[C + 1, n]`. The first C rows are the probabilities of the classes, and the last
    row is the label. In a regression, the result is `[2, n]`, with the predicted mean and the target.
    """
    said = answers.join_answers(study, of, rows, weights)
    told = said.mean[None] if said.probs is None else said.probs.T
    return np.concatenate([told, np.asarray(said.y, dtype=np.float64)[None]])


def score_samples(study: Study, own: answers.WeightedRows, values: FloatArray) -> FloatArray:
    """Computes the user's M metrics for a client from the predictions for its samples, `[M]`.

    Undefined metrics are NaN.
    """
    metrics = list_sample_metrics(study)
    if not len(own.rows):
        return np.full(len(metrics), np.nan)
    y = values[-1].astype(np.int64) if study.classes else values[-1]
    prediction = values[:-1].T if study.classes else values[0]
    weight = None if (own.weight == own.weight[0]).all() else own.weight
    return np.array([metric.score(y, prediction, weight) for metric in metrics])


def ask_sample_metrics(split: str) -> answers.ClientRequest:
    """Makes a request to clients for the user's metrics on their samples of a split."""
    return answers.ClientRequest(split, give_predictions, score=score_samples)


def score_clients_by_metrics(
    study: Study, world: int, measured: answers.Measured, own: dict[str, answers.Own], prefix: str
) -> dict[str, FloatArray]:
    """Returns the values of each of the user's metrics for a world's N clients on a split, `[N]`, by metric name.

    Args:
        study: The trained study (the objects of the run).
        world: Index of the world (a seed and a fold).
        measured: The results of the runtime for this evaluation.
        own: For each split, the metrics of clients with their own models.
        prefix: The beginning of the names. It is empty for test samples, and `hold_out_` for withheld samples.
    """
    split = "hold_out" if prefix else "test"
    of = answers.read_world(study, world, measured, split)
    told = answers.compute_client_values(study, world, measured, of, ask_sample_metrics(split), own=own.get(split))
    names = [metric.name for metric in list_sample_metrics(study)]
    return {prefix + name: column for name, column in zip(names, np.stack(told, axis=1), strict=True)}


def summarize_metrics(study: Study, each: dict[str, FloatArray], prefix: str) -> dict[str, float]:
    """Averages the user's metrics over all clients and over each tier, and counts the clients with a defined metric.

    A metric may be undefined for a client. An example is the area under the curve if all samples have the same class.

    `each` has the clients' values by the metric's name. The names begin with `prefix`.
    """
    tiers = list_scored_tiers(study)
    tier = study.clients.tier_of(np.arange(answers.count_known(study)))
    found: dict[str, float] = {}
    for name, values in each.items():
        inner, known = name.removeprefix(prefix), ~np.isnan(values)
        if known.any():
            found[f"{prefix}personal_{inner}_clients"] = float(known.sum())
            found[f"{prefix}personal_{inner}"] = float(values[known].mean())
        for t, one in enumerate(tiers):
            if (of_tier := known & (tier == t)).any():
                found[f"{prefix}tier_{one.name}_{inner}"] = float(values[of_tier].mean())
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The evaluation of one round.

KeepClients = Callable[[int, int, ClientScores], None]  # (round, world, scores of the world's clients)


def make_evaluator(
    study: Study, runtime: Runtime, test: bool = True, keep_clients: KeepClients | None = None
) -> Callable[[Progress], list[dict[str, Any]]]:
    """Returns a function that takes the progress of a run and returns a row of metrics for each world.

    Args:
        study: The objects of the run.
        runtime: The runtime that evaluates the models.
        test: Whether test samples are scored. Sweeps must not score test samples.
        keep_clients: A function that takes (round, world, scores of the world's clients) and stores the scores. It is
            called only if `evaluate.clients` is above 0.
    """

    def evaluate(progress: Progress) -> list[dict[str, Any]]:
        measured = measure_models(study, runtime, progress.state, test)
        sets = []
        if study.evaluation.conformal is not None:
            sets = measure_all_sets(study, runtime, progress.state, measured, study.worlds)
        ask = partial(personal.ask_own_splits, study, runtime, progress.state, test)
        own = ask(partial(make_request, study)) if study.evaluation.by_tier or study.evaluation.personal else {}
        metrics = ask(ask_sample_metrics) if list_sample_metrics(study) else {}
        rows = []
        for world in range(study.worlds):
            row, clients = _score_world(study, world, measured, test, metrics)
            if sets:
                row |= sets[world][0]
                clients = add_client_sets(study, clients, sets[world][1])
            if study.evaluation.by_tier or (study.evaluation.personal and (measured.weights or measured.own)):
                row = score_tiers(study, world, measured, own, sets[world][1] if sets else None) | row
            rows.append(row)
            if keep_clients is not None and clients is not None:
                keep_clients(progress.round, world, clients)
        grid = study.shards.data.noise is not None and not study.scenario["data"].get("test_clients")
        if test and study.replicates > 1 and grid:  # all worlds have the same noiseless test samples
            parts = decompose_error(study, measured.test, measured.answer)
            rows = [row | more for row, more in zip(rows, parts, strict=True)]
        return rows

    return evaluate


def _score_world(
    study: Study, world: int, measured: answers.Measured, test: bool, metrics: dict[str, answers.Own]
) -> tuple[dict[str, Any], ClientScores | None]:
    """Returns a world's row of metrics, and the scores of single clients.

    The scores of single clients are None if they are not recorded.
    """
    answer, known = measured.answer, measured.residual.get(world)
    residual = known and known.mean
    splits = [("test", "", measured.test)] if test else []
    splits += [("hold_out", "hold_out_", measured.held_out)] if study.hold_out else []
    scored = [*splits, ("train", "train_", measured.train)] if study.evaluation.train else splits
    row: dict[str, Any] = {}
    outputs = {split: join_pieces(pieces, world) for split, _, pieces in scored}
    for split, prefix, _ in scored:
        found = predict_split(study, world, outputs[split], split, answer, residual=residual)
        scores = score_answer(study, study.split(split, world)[1], found)
        further = score_user_metrics(study, world, split, found)
        scores |= {name: value for name, value in further.items() if name not in scores}
        if measured.ood:
            scores |= score_ood(study, world, outputs[split], join_pieces(measured.ood, world), answer)
        row |= scores if split == "test" else {prefix + k: v for k, v in scores.items() if isinstance(v, float)}
    own = bool(measured.weights or measured.own)
    each = {}
    if own or study.evaluation.clients:
        each = {prefix: _score_clients(study, world, measured, outputs, split) for split, prefix, _ in splits}
    for prefix, values in each.items() if own else ():
        row |= answers.summarize_clients(values, prefix, classes=bool(study.classes))
    by_metric: dict[str, FloatArray] = {}
    if list_sample_metrics(study) and (own or study.evaluation.clients or study.evaluation.by_tier):
        for _, prefix, _ in splits:
            told_by = score_clients_by_metrics(study, world, measured, metrics, prefix)
            row |= summarize_metrics(study, told_by, prefix)
            by_metric |= told_by
    true, several = study.shards.clusters(world), answer.models > 1 and not study.method.one_model_per_client
    # without a finite gamma, all clients have equal weights, or the weights of their tiers
    differ = study.method.phase.weighs or study.evaluation.gamma not in (None, np.inf)
    if true is not None and measured.weights and several and differ:
        row["cluster_ari"] = classification.compare_clusters(true, measured.weights[world])
    if not study.evaluation.clients:
        return row, None
    chosen, name = answers.pick_recorded_clients(study), "accuracy" if study.classes else "rmse"
    scores = {prefix + name: values[chosen] if own else values for prefix, values in each.items()}
    scores |= {name: values[chosen] for name, values in by_metric.items()}
    return row, ClientScores(chosen, study.shards.sizes(np.full_like(chosen, world), chosen), scores)


def _score_clients(
    study: Study, world: int, measured: answers.Measured, outputs: dict[str, Tensor], split: str
) -> FloatArray:
    """Returns the score of each client of the run on its samples of a split, `[N]`.

    If all clients predict in the same way, the result has only the n clients whose scores are recorded, `[n]`.
    """
    if measured.own:
        return personal.pick_own_scores(measured.own, world, split, lowest=not study.classes)
    answer, weights = measured.answer, measured.weights.get(world)
    if answer.combine is None:
        voters = answer.drop_absent(outputs[split], world)
    else:  # the softmax of these logits is the joint prediction
        joined = answer.combine(world, classification.probabilities(outputs[split].numpy()))
        voters = torch.from_numpy(joined).log()[None]
    clients = answers.pick_recorded_clients(study) if weights is None else None
    common = measured.answer.weigh_present(world)
    return answers.measure_clients(study, world, voters, weights, split, clients=clients, common=common)


def score_answer(study: Study, y: Tensor, found: Predicted) -> dict[str, Any]:
    """Returns all scores of a world's ensemble on a split, and the scores of each member.

    Args:
        study: The trained study (the objects of the run).
        y: True labels or targets of the split, `[n]`.
        found: The predictions for the whole split.
    """
    members, mean, of = found
    if of is None:
        score = partial(score_stack, study) if study.parts else classification.classification_scores
        scores = score(members, y.numpy(), mean)
        each = classification.member_scores(members, y.numpy())
        return {**scores, **{f"member_{name}": values for name, values in each.items()}}
    values: dict[str, Any] = score_regression(of)
    if study.parts:
        rmse = partial(regression.rmse, y=of.y)
        errors = [rmse(one) for one in members]
        values = {name: value for name, value in values.items() if not name.startswith("member_")}
        values |= classification.score_range("rmse", errors) | {"member_rmse": errors}
        values |= score_bases(study, members, "rmse", rmse)
    return values


def decompose_error(study: Study, pieces: Pieces, answer: Answer) -> list[dict[str, float]]:
    """Returns bias, variance and noise of each world's predictions on a toy data set with known E[y|x]."""
    of = [
        read_members(study, world, answer.drop_absent(join_pieces(pieces, world), world), "test", answer)
        for world in range(study.worlds)
    ]
    noise = {"noise": float(study.shards.data.noise or 0.0)}
    return [row | noise for row in decompose_squared_error([one.moments.mean for one in of], of[0].y)]
