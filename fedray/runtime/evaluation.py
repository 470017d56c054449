"""Evaluation of models on one worker: outputs on test rows, scores over clients' rows, models of the clients' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, FloatArray, IntArray, Plan, State
from fedray.evaluation.answers import (
    WeightedRows,
    cast_votes,
    count_errors,
    find_best_pass,
    held_out_rows,
    own_test_rows,
)
from fedray.evaluation.conformal import (
    RowScores,
    cover_rows,
    find_true_scores,
    keep_scored,
    read_answers,
    score_rows,
    weigh_sets,
)
from fedray.evaluation.drift import sample_uncertainty
from fedray.features.mixture import fit_weights, sample_losses
from fedray.models.net import per_sample
from fedray.runtime import failures
from fedray.runtime.exchange import Piece
from fedray.runtime.worker import Worker
from fedray.simulation.study import Study

# ---------------------------------------------------------------------------------------------------------------------
# The work is cut into pieces of a fixed size, so that neither the number of workers nor their order shows in a
# result. On the rows of a split a piece is (world, first row); on clients it is (world, first client).

CLIENTS_A_PIECE = 32
LOSSES, UNCERTAINTY, MIXTURES = "losses", "uncertainty", "mixtures"  # on clients; other kinds are names of splits
Score = Callable[[Tensor, Tensor], Tensor]  # (raw inputs `[n, ...]`, targets `[n, ...]`) -> scores `[q, n]`


def list_pieces(study: Study, kind: str, worlds: int | None, clients: Sequence[IntArray] | None) -> list[Piece]:
    """Lists the pieces of an evaluation.

    Args:
        study: What is evaluated.
        kind: `losses`, `uncertainty` or `mixtures` on the known clients, or the name of a split: `test` or `hold_out`.
        worlds: Only the first worlds; None means all.
        clients: Those of each world, instead of the known ones; a piece begins at a place among them.
    """
    if clients is not None:
        return cut_pieces([len(some) for some in clients], CLIENTS_A_PIECE)
    count = study.worlds if worlds is None else worlds
    if kind in (LOSSES, UNCERTAINTY, MIXTURES):
        return cut_pieces([min(study.clients.number, EVALUATED_CLIENTS)] * count, CLIENTS_A_PIECE)
    return cut_pieces([len(study.split(kind, world)[1]) for world in range(count)], EVALUATED_ROWS)


def cut_pieces(numbers: list[int], size: int) -> list[Piece]:
    """Cuts the rows or clients of each world, of which there are `numbers`, into pieces of at most `size`.

    Example:
        >>> cut_pieces([1200, 400], size=500)
        [(0, 0), (0, 500), (0, 1000), (1, 0)]
    """
    return [(world, first) for world, number in enumerate(numbers) for first in range(0, number, size)]


def evaluate_pieces(
    worker: Worker,
    state: State,
    kind: str,
    pieces: Sequence[Piece],
    models: int,
    *,
    clients: Sequence[IntArray] | None = None,
) -> dict[Piece, Tensor]:
    """Evaluates the models of worlds on some pieces.

    Args:
        worker: Computes.
        state: Holds the models.
        kind: As in `list_pieces`.
        pieces: The world, and the first row or client, of each.
        models: Models of each world, K.
        clients: As in `list_pieces`.

    Returns:
        By piece, raw outputs `[K, n, C]` on a split, losses `[K, c]`, uncertainties `[2, c]`, or weights `[K, c]`.
    """
    if kind in (LOSSES, UNCERTAINTY, MIXTURES):
        return {piece: _evaluate_clients(worker, state, kind, piece, models, clients) for piece in pieces}
    read = lru_cache(maxsize=1)(worker.study.split)  # once for all pieces of a world: its rows may be copies
    found = {}
    for world, first in pieces:
        x = read(kind, world)[0][first : first + EVALUATED_ROWS]
        with failures.explain_no_client(kind, worker.study.skip):
            found[world, first] = compute_outputs(worker, state, world, models, x).cpu()
    return found


def _evaluate_clients(  # noqa: PLR0917
    worker: Worker, state: State, kind: str, piece: Piece, models: int, clients: Sequence[IntArray] | None
) -> Tensor:
    """What `evaluate_pieces` returns for one piece of clients."""
    world, first = piece
    known = np.arange(min(worker.study.clients.number, EVALUATED_CLIENTS)) if clients is None else clients[world]
    client = known[first : first + CLIENTS_A_PIECE]
    compute = {LOSSES: mean_losses, UNCERTAINTY: mean_uncertainty, MIXTURES: fit_mixtures}[kind]
    return compute(worker, state, world, client, models)


def compute_outputs(worker: Worker, state: State, world: int, models: int, x: Tensor) -> Tensor:
    """Computes the raw outputs of a world's models.

    Args:
        worker: Computes.
        state: Holds the models.
        world: The world.
        models: Models of each world, K.
        x: Raw inputs, `[n, ...]`.

    Returns:
        Raw outputs, `[K, n, C]`.
    """
    rows = slice(world * models, (world + 1) * models)
    return worker.forward(state.models[rows], state.counters[rows], world, x)


def mean_losses(worker: Worker, state: State, world: int, client: IntArray, models: int) -> Tensor:
    """Mean training loss of a world's models on some clients: l_i(w_k) of Fed-ensemble, equation 4.

    Args:
        worker: Computes.
        state: Holds the models.
        world: The world.
        client: Ids of the clients, `[c]`.
        models: Models of each world, K.

    Returns:
        The losses, `[K, c]`, 0 for a client without rows.
    """

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        outputs = compute_outputs(worker, state, world, models, x)
        return per_sample(worker.study.net.objective, outputs, targets.expand(len(outputs), *targets.shape)).double()

    return _mean_scores(worker, world, client, loss, models)


def fit_mixtures(worker: Worker, state: State, world: int, client: IntArray, models: int) -> Tensor:
    """Weights of a world's models at some clients whose weights nobody knows: E steps on models that stay (FedEM).

    Args:
        worker: Computes.
        state: Holds the models.
        world: The world.
        client: Ids of the clients, `[c]`.
        models: Models of each world, K.

    Returns:
        The weights, `[K, c]` float64; they sum to 1.
    """
    study = worker.study

    def fit(client: IntArray) -> Tensor:
        each = [sample_losses(worker, state, models, world, i).numpy() for i in client.tolist()]
        return torch.from_numpy(np.stack([fit_weights(losses) for losses in each], axis=1))

    return failures.score_clients(fit, client, models, study.skip, study.client_timeout)


def mean_uncertainty(worker: Worker, state: State, world: int, client: IntArray, models: int) -> Tensor:
    """Mean total and knowledge uncertainty of a world's ensemble on the training rows of some clients.

    Args:
        worker: Computes.
        state: Holds the models.
        world: The world.
        client: Ids of the clients, `[c]`.
        models: Models of each world, K.

    Returns:
        The uncertainties as in `sample_uncertainty`, `[2, c]`, NaN for a client without rows.
    """

    def uncertainty(x: Tensor, _targets: Tensor) -> Tensor:
        outputs = compute_outputs(worker, state, world, models, x)
        return sample_uncertainty(worker.study.net.objective, outputs)

    means = _mean_scores(worker, world, client, uncertainty, 2)
    size = worker.study.shards.sizes(np.full(len(client), world), client)
    return means.masked_fill_(torch.from_numpy(size == 0), torch.nan)


def _mean_scores(worker: Worker, world: int, client: IntArray, score: Score, number: int) -> Tensor:
    """Means of a score with `number` rows over the clients' training rows, `[number, c]`.

    A client on which the score fails gets NaN, where failures are skipped.
    """
    study = worker.study

    def means(client: IntArray) -> Tensor:
        fetched = study.shards.fetch(np.full(len(client), world), client)
        size = torch.from_numpy(fetched.size)
        rows = fetched.rows[torch.arange(fetched.rows.shape[1]) < size[:, None]]  # client after client
        if not len(rows):
            return torch.zeros(number, len(client), dtype=torch.float64)
        pieces = []
        for part in torch.split(rows, EVALUATED_ROWS):
            targets = study.shards.targets(fetched.labels(part, 0)[None], torch.tensor([world]))
            pieces.append(score(fetched.x[part], worker.to_device(targets)[0]).cpu())
        each = torch.cat(pieces, dim=1)
        owner = torch.repeat_interleave(torch.arange(len(client)), size)
        return torch.zeros(len(each), len(client), dtype=each.dtype).index_add_(1, owner, each) / size.clamp(min=1)

    return failures.score_clients(means, client, number, study.skip, study.client_timeout)


def score_known_clients(worker: Worker, state: State, keys: list[tuple[int, int]]) -> dict[tuple[int, int], Tensor]:
    """Scores known clients that answer with models of their own (Ditto, LG-FedAvg).

    Args:
        worker: The worker on which the clients live.
        state: The broadcast models.
        keys: World and client of each.

    Returns:
        By key, the accuracies or RMSEs `[2, P]` of the client's P personal passes: on its test rows and on its held-out
        rows. A client answers with the average over its K models of a pass; NaN where it has no such rows.
    """
    study, out = worker.study, {}
    for world in sorted({world for world, _ in keys}):
        questions = {"test": own_test_rows(study, world), "hold_out": held_out_rows(study, world)}
        count = _make_counter(worker, state, world)
        for client in (client for key_world, client in keys if key_world == world):
            each = [_mean_error(study, ask(client), partial(count, client, name)) for name, ask in questions.items()]
            out[world, client] = torch.stack(each)
    return out


def own_models(worker: Worker, state: State, world: int, client: int) -> Tensor:
    """The models with which a known client answers, `[P * K, d]`, as the last piece says that lets clients answer.

    Args:
        worker: The worker on which the client lives.
        state: The broadcast models.
        world: The world.
        client: The client's id.
    """
    phase = worker.study.method.phase
    k = phase.models
    plan = Plan(np.full(k, client), np.arange(k), np.full(k, world))
    tier = worker.study.clients.tier_of(np.array([client]))
    own = [piece for piece in phase.pieces if piece.answers][-1]
    return own.own_models(worker, plan, state.models[world * k : (world + 1) * k], int(tier[0]))


def pick_own_models(worker: Worker, state: State, world: int, client: int) -> Tensor:
    """A known client's own models `[K, d]`: of several personal passes those that are best on its held-out rows.

    Args:
        worker: The worker on which the client lives.
        state: The broadcast models.
        world: The world.
        client: The client's id.
    """
    study, phase = worker.study, worker.study.method.phase
    rows = own_models(worker, state, world, client)
    passes = rows.view(-1, phase.models, rows.shape[1])
    if len(passes) == 1:
        return passes[0]
    held_out = score_known_clients(worker, state, [(world, client)])[world, client][1]
    return passes[int(find_best_pass(held_out.numpy()[None], lowest=not study.classes)[0])]


def _make_counter(worker: Worker, state: State, world: int) -> Callable[[int, str, IntArray], FloatArray]:
    """A function: (client, split, rows of it) -> whether its personal passes err there, or their squares, `[P, n]`.

    What the slice of a tier answers is computed once for all of its clients.
    """
    study, phase = worker.study, worker.study.method.phase
    shared = state.counters[world * phase.models : (world + 1) * phase.models]
    splits = {name: study.split(name, world) for name in ("test", "hold_out")}  # once: their rows may be copies
    of_tier: dict[tuple[int, str], FloatArray] = {}

    def compute(client: int, name: str, rows: IntArray) -> FloatArray:
        own, (x, y), errors = own_models(worker, state, world, client), splits[name], []
        counters = shared.repeat(len(own) // phase.models, 1)
        for part in torch.split(torch.from_numpy(rows), EVALUATED_ROWS):
            votes = cast_votes(study, world, worker.forward(own, counters, world, x[part]).cpu())  # [P * K, n, C]
            answers = votes.reshape(-1, phase.models, *votes.shape[1:]).mean(axis=1)  # [P, n, C]
            errors.append(count_errors(study, answers, y[part]))
        return np.concatenate(errors, axis=1)

    def count(client: int, name: str, rows: IntArray) -> FloatArray:
        if not phase.nets:
            return compute(client, name, rows)
        key = int(study.clients.tier_of(np.array([client]))[0]), name
        if key not in of_tier:
            of_tier[key] = compute(client, name, np.arange(len(splits[name][1])))
        return of_tier[key][:, rows]

    return count


def _mean_error(study: Study, question: WeightedRows, count: Callable[[IntArray], FloatArray]) -> Tensor:
    """Weighted accuracy, or RMSE, of each personal pass on some rows, `[P]` float64; NaN without rows."""
    if not len(question.rows):
        return torch.full((max(1, study.method.phase.passes - 1),), torch.nan, dtype=torch.float64)
    means = question.mean(count(question.rows))
    return torch.from_numpy(means if study.classes else np.sqrt(means))


# ---------------------------------------------------------------------------------------------------------------------
# Conformal scores and sets of known clients that answer with models of their own, where these clients live.


def score_own_sets(
    worker: Worker, state: State, keys: list[tuple[int, int]], thresholds: FloatArray | None, split: str = "test"
) -> dict[tuple[int, int], Tensor]:
    """What known clients say of their own answers: scores to calibrate by, or how their sets do.

    Args:
        worker: The worker on which the clients live.
        state: The broadcast models.
        keys: World and client of each.
        thresholds: The largest score inside of a set, `[worlds]`; None: it is not known yet.
        split: Where the sets are asked for: `test`, or `hold_out` for the withheld rows that are scored.

    Returns:
        By key: scores of the right answers of the client's withheld rows, `[n_k]`; with thresholds coverage and mean
        size of the sets of its rows, `[2]`, NaN where it has none.
    """
    study, out = worker.study, {}
    split = "hold_out" if thresholds is None else split
    for world in sorted({world for world, _ in keys}):
        find = (own_test_rows if split == "test" else held_out_rows)(study, world)
        for client in (client for key_world, client in keys if key_world == world):
            own = find(client)
            if thresholds is not None and split == "hold_out":
                own = keep_scored(own)
            found = _score_own_rows(worker, state, (world, client), split, own.rows) if len(own.rows) else None
            if thresholds is None:
                out[world, client] = torch.from_numpy(np.empty(0) if found is None else find_true_scores(found))
            else:
                out[world, client] = _cover_own_rows(found, own, float(thresholds[world]))
    return out


def _cover_own_rows(found: RowScores | None, own: WeightedRows, threshold: float) -> Tensor:
    """Coverage and mean size of the sets of a client's rows, `[2]`; NaN where it has no rows."""
    if found is None:
        return torch.full((2,), torch.nan, dtype=torch.float64)
    in_order = own._replace(rows=np.arange(len(own.rows)))
    return torch.tensor(weigh_sets(cover_rows(found, threshold), in_order), dtype=torch.float64)


def _score_own_rows(worker: Worker, state: State, key: tuple[int, int], split: str, rows: IntArray) -> RowScores:
    """The scores of some rows of a split under the models of a client, key: (world, client)."""
    (world, client), study, models = key, worker.study, worker.study.method.phase.models
    own = pick_own_models(worker, state, world, client)
    shared = state.counters[world * models : (world + 1) * models]
    x = study.split(split, world)[0][torch.from_numpy(rows)]
    outputs = torch.cat([worker.forward(own, shared, world, part).cpu() for part in torch.split(x, EVALUATED_ROWS)], 1)
    answer = Answer(State(own, shared, {}), models)
    return score_rows(study, read_answers(study, world, outputs, split, answer, rows=rows))
