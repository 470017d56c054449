"""What models are asked most: their outputs on the rows of a split, and their losses on the rows of clients.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.runtime.inline import Inline
    >>> from fedray.scenario.loader import read_scenario
    >>> from fedray.simulation.rounds import begin_progress
    >>> keys = {"data": {"name": "cubic"}, "clients": {"number": 2}, "method": {"models": 3}}
    >>> study = build_study(read_scenario(keys))
    >>> state = begin_progress(study, study.method.phase).state
    >>> Inline(study).ask(losses_of(models=3), state)[0, 0].shape  # of 3 models on 2 clients
    torch.Size([3, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import EVALUATED_ROWS, IntArray, State
from fedray.models.net import per_sample
from fedray.simulation.study import Host, Pieces, Question

Score = Callable[[Tensor, Tensor], Tensor]  # (raw inputs `[n, ...]`, targets `[n, ...]`) -> scores `[q, n]`


def outputs_on(split: str, models: int, worlds: int | None = None) -> Question:
    """Asks for the raw outputs of all models on a split, `[K, n, C]` by (world, first row of the piece).

    Args:
        split: `test`, `hold_out` or `ood`.
        models: Models of each world, K.
        worlds: How many worlds are asked; None: all.
    """
    return Question(partial(compute_outputs, models=models), split, worlds)


def losses_of(models: int, worlds: int | None = None, clients: Sequence[IntArray] | None = None) -> Question:
    """Asks for the mean training loss of each model on each client's rows, `[K, c]` by (world, first place).

    Args:
        models: Models of each world, K.
        worlds: How many worlds are asked; None: all.
        clients: The clients of each world, `[n]` each; None: the known ones.
    """
    return Question(partial(mean_losses, models=models), worlds=worlds, clients=clients, numbers=models)


def join_pieces(pieces: Pieces, world: int) -> Tensor:
    """Returns the pieces of a world in order: `[K, n, ...]`.

    Example:
        >>> pieces = {(0, 500): torch.ones(1, 2, 3), (0, 0): torch.zeros(1, 500, 3), (1, 0): torch.zeros(1, 9, 3)}
        >>> join_pieces(pieces, world=0).shape  # K models, n samples, C classes
        torch.Size([1, 502, 3])
    """
    return torch.cat([pieces[key] for key in sorted(pieces) if key[0] == world], dim=1)


def compute_outputs(host: Host, state: State, world: int, x: Tensor, *, models: int) -> Tensor:
    """Computes the raw outputs of a world's models, `[K, n, C]`.

    Args:
        host: Computes.
        state: Holds the models.
        world: The world.
        x: Raw inputs, `[n, ...]`.
        models: Models of each world, K.
    """
    rows = slice(world * models, (world + 1) * models)
    return host.forward(state.models[rows], state.counters[rows], world, x)


def mean_losses(host: Host, state: State, world: int, client: IntArray, *, models: int) -> Tensor:
    """Returns the mean training loss of a world's models on some clients: l_i(w_k) of Fed-ensemble, equation 4.

    Args:
        host: Computes.
        state: Holds the models.
        world: The world.
        client: Ids of the clients, `[c]`.
        models: Models of each world, K.

    Returns:
        The losses, `[K, c]`, 0 for a client without rows.
    """

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        outputs = compute_outputs(host, state, world, x, models=models)
        return per_sample(host.study.net.objective, outputs, targets.expand(len(outputs), *targets.shape)).double()

    return mean_scores(host, world, client, loss, models)


def mean_scores(host: Host, world: int, client: IntArray, score: Score, number: int) -> Tensor:
    """Returns means of a score over the training rows of each client, `[number, c]`, 0 for a client without rows.

    Args:
        host: Computes.
        world: The world.
        client: Ids of the clients, `[c]`.
        score: The scores of each row.
        number: How many scores a row has.
    """
    study = host.study
    fetched = study.shards.fetch(np.full(len(client), world), client)
    size = torch.from_numpy(fetched.size)
    rows = fetched.rows[torch.arange(fetched.rows.shape[1]) < size[:, None]]  # client after client
    if not len(rows):
        return torch.zeros(number, len(client), dtype=torch.float64)
    pieces = []
    for part in torch.split(rows, EVALUATED_ROWS):
        targets = study.shards.targets(fetched.labels(part, 0)[None], torch.tensor([world]))
        pieces.append(score(fetched.x[part], host.to_device(targets)[0]).cpu())
    each = torch.cat(pieces, dim=1)
    owner = torch.repeat_interleave(torch.arange(len(client)), size)
    return torch.zeros(len(each), len(client), dtype=each.dtype).index_add_(1, owner, each) / size.clamp(min=1)
