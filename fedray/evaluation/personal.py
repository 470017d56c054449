"""Scores clients that predict with models of their own, and asks them for values of their predictions.

In a *personal pass* a client trains K models that stay at the client, as in Ditto. A client may have several passes,
and predicts with the best of them. Its models are in the process that trains the client, so they predict there.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import EVALUATED_ROWS, FloatArray, IntArray, State
from fedray.evaluation.answers import (
    ClientRequest,
    Own,
    WeightedRows,
    cast_votes,
    read_answers,
    rows_of_clients,
    score_rows,
    value_each,
)
from fedray.evaluation.regression import SQUARED_ERROR
from fedray.simulation.study import Host, Pieces, Question, Runtime, Study, mean_losses_of


def weigh_own_models(answer: Answer, world: int, client: IntArray) -> FloatArray:
    """Returns the weights with which n clients average models, if model i belongs to client i.

    A client's own model has all the weight. If this model has the weight 0 in `Answer.weights`, it does not predict,
    and the client averages the other models with the weights in `Answer.weights`.

    Returns:
        The weights, `[n, K]`, with a column for each of the K models whose weight in `Answer.weights` is not 0.

    Example:
        >>> from fedray.core.types import State
        >>> state = State(torch.zeros(3, 2), torch.zeros(3, 0, dtype=torch.int64), {})
        >>> weigh_own_models(Answer(state, 3, weights=np.array([[3.0, 0.0, 1.0]])), 0, np.array([2, 1])).tolist()
        [[0.0, 1.0], [0.75, 0.25]]
    """
    models = answer.drop_absent(torch.arange(answer.models), world).numpy()
    weights: FloatArray = (client[:, None] == models).astype(np.float64)
    common = answer.weigh_present(world)
    weights[weights.sum(axis=1) == 0] = 1.0 / len(models) if common is None else common
    return weights


def score_own_models(host: Host, state: State, world: int, client: IntArray) -> Iterator[Tensor]:
    """Yields the scores of clients of the run that predict with their own models (Ditto, LG-FedAvg).

    `ask_own_scores` describes the scores. If clients predict with slices, all clients of a tier have the same
    models, and their predictions are computed only once.

    Args:
        host: The process with the private data of the clients.
        state: The models that the server sends to clients.
        world: Index of the world (a seed and a fold).
        client: Ids of the clients, `[c]`.
    """
    study, phase = host.study, host.study.method.phase
    shared = state.counters[world * phase.models : (world + 1) * phase.models]

    def ask(split: str) -> Iterator[tuple[WeightedRows, FloatArray]]:
        inputs, y = study.stored_split(split, world)

        def count(client: int, rows: IntArray | None) -> FloatArray:
            """Returns `score_rows` for each of a client's P personal passes, on samples of the split, `[P, n]`."""
            own, errors = host.own_models(state, world, client), []
            counters = shared.repeat(len(own) // phase.models, 1)
            places = torch.arange(len(y)) if rows is None else torch.from_numpy(rows)
            for part in torch.split(places, EVALUATED_ROWS):
                outputs = host.forward(own, counters, world, inputs[part]).cpu()
                votes = cast_votes(study, world, outputs)  # [P * K, n, C]
                answers = votes.reshape(-1, phase.models, *votes.shape[1:]).mean(axis=1)  # [P, n, C]
                errors.append(score_rows(study, answers, y[part]))
            return np.concatenate(errors, axis=1)

        return value_each(client, rows_of_clients(study, world, split), count, find_tier, skip=study.skip)

    def find_tier(client: int) -> int | None:
        sliced = [piece for piece in phase.pieces if piece.answers][-1].nets
        return None if not sliced else int(study.clients.tier_of(np.array([client]))[0])

    for both in zip(ask("test"), ask("hold_out"), strict=True):
        found = torch.empty(2, max(1, len(phase.locals) - 1), dtype=torch.float64)
        for split, (own, errors) in enumerate(both):
            means = own.mean(errors)
            found[split] = torch.as_tensor(means if study.classes else np.sqrt(means))
        yield found


def ask_own_scores(runtime: Runtime, state: State) -> Pieces:
    """Returns the scores of clients of the run that predict with their own models.

    In a personal pass a client trains K models that stay at the client. The predictions of these models are averaged.
    A client's scores are computed in the process that trains the client, because its private models are there.

    Returns:
        For each (world, client), the accuracies or RMSEs of its P personal passes, `[2, P]`. The first row is for the
        client's test samples, and the second row for its held-out samples. Without samples, a score is NaN.
    """
    return runtime.ask(Question(score_own_models, at_home=True), state)


def pick_own_models(host: Host, state: State, world: int, client: int) -> Tensor:
    """Returns a client's own models `[K, d]`.

    A client may train its models in several passes with different settings. The returned models are of the pass with
    the best score on held-out samples.
    """
    rows = host.own_models(state, world, client)
    passes = rows.view(-1, host.study.method.phase.models, rows.shape[1])
    if len(passes) == 1:
        return passes[0]
    held_out = next(score_own_models(host, state, world, np.array([client])))[1]
    return passes[int(find_best_pass(held_out.numpy()[None], lowest=not host.study.classes)[0])]


def pick_own_scores(own: dict[tuple[int, int], Tensor], world: int, split: str = "test", *, lowest: bool) -> FloatArray:
    """Returns each client's score on a split with the best of the client's own models, `[N]`.

    A client may train several models of its own, each in a personal pass (one per `lambda` of Ditto). The best model is
    the model with the best score on the client's held-out samples.

    Args:
        own: For each (world, client), the scores of P personal passes, `[2, P]`. The first row is for test samples, and
            the second row for held-out samples.
        world: Index of the world (a seed and a fold).
        split: The split, `test` or `hold_out`.
        lowest: Whether the lowest score is the best, as for RMSEs.
    """
    tested, held_out = torch.stack([own[key] for key in sorted(own) if key[0] == world], dim=1).numpy()
    best, each = find_best_pass(held_out, lowest), tested if split == "test" else held_out
    return np.take_along_axis(each, best[:, None], axis=1)[:, 0]


def find_best_pass(held_out: FloatArray, lowest: bool) -> IntArray:
    """Returns for each client the index of its best personal pass, `[N]`, from scores on held-out samples `[N, P]`.

    In a personal pass a client trains its own models. `lowest` says whether the lowest score is the best. Of equally
    good passes, the first is the best. NaN is the worst score.
    """
    return np.asarray(np.nan_to_num(-held_out if lowest else held_out, nan=-np.inf, neginf=-np.inf).argmax(axis=1))


def compute_own_values(
    host: Host, state: State, world: int, client: IntArray, *, inquiry: ClientRequest
) -> Iterator[Tensor]:
    """Computes the requested values of clients that predict with their own models, for `ask_own`.

    Args:
        host: The process with the private data of the clients.
        state: The models that the server sends to clients.
        world: Index of the world (a seed and a fold).
        client: Ids of the clients, `[c]`.
        inquiry: The request for values of predictions on a split.
    """
    study, models = host.study, host.study.method.phase.models
    shared, x = state.counters[world * models : (world + 1) * models], study.stored_split(inquiry.split, world)[0]

    def value(client: int, rows: IntArray | None) -> FloatArray:
        own = pick_own_models(host, state, world, client)
        parts = torch.split(torch.from_numpy(rows), EVALUATED_ROWS)
        outputs = torch.cat([host.forward(own, shared, world, x[part]).cpu() for part in parts], dim=1)
        answer = Answer(State(own, shared, {}), models)
        residual = measure_own_residual(host, own, shared, world, client)
        said = read_answers(study, world, outputs, inquiry.split, answer, rows=rows, residual=residual)
        return inquiry.measure(study, world, said, None, None)

    each = value_each(client, inquiry.rows(study, world), value, skip=study.skip)
    return map(torch.tensor, inquiry.summarize(study, each))


def measure_own_residual(host: Host, own: Tensor, counters: Tensor, world: int, client: int) -> float | None:
    """Returns the variance of the residuals of a client's own models on its training samples, averaged over the models.

    The variance is for the standardized target. It is None if no prediction uses it, if the loss is not the squared
    error, and for a client without samples.

    Args:
        host: The process with the data of the client.
        own: The client's own models, `[K, d]`.
        counters: The integers of the models, such as counted batches, `[K, ...]`.
        world: Index of the world (a seed and a fold).
        client: The id of the client.
    """
    study, place = host.study, np.array([client])
    is_used = len(own) == 1 or study.evaluation.noise == "residual"
    objective = study.net.objective
    if not is_used or objective not in SQUARED_ERROR or not study.shards.sizes(np.array([world]), place)[0]:
        return None
    return SQUARED_ERROR[objective] * float(mean_losses_of(host, own, counters, world, place).mean())


def ask_own(runtime: Runtime, state: State, inquiry: ClientRequest) -> Own:
    """Asks clients that predict with their own models for values of their predictions.

    Returns:
        For each (world, client), means `[means]`, scores, or the values of the client's n_k samples, `[n_k]`.
    """
    return runtime.ask(Question(partial(compute_own_values, inquiry=inquiry), at_home=True), state)


def ask_own_splits(
    study: Study, runtime: Runtime, state: State, test: bool, make_request: Callable[[str], ClientRequest]
) -> dict[str, Own]:
    """Returns for each split the results of clients with their own models.

    The dict is empty if clients have no own models. `make_request` is a function that takes a split and returns the
    request to the clients. The test split is used only if `test` is True.
    """
    if not study.method.phase.is_personal:
        return {}
    splits = [split for split, asked in (("test", test), ("hold_out", study.hold_out)) if asked]
    return {split: ask_own(runtime, state, make_request(split)) for split in splits}
