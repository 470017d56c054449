"""Dropout whose masks have addresses: in training, and in answers of networks whose dropout stays on.

In training the mask of a row is a function of the client's round, the step, the row's place in the batch and the layer,
so that every engine drops the same. Answers with dropout are a reading of the public code of Fed-ensemble, which never
calls `eval()`. What they drop for a row is a function of the seed, the place of the model, the layer and the row's own
content. So neither the cut of the rows into pieces nor their order nor the runtime shows in an answer, and the same row
gets the same answer from the same model, in every round.

Example:
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)).eval()
    >>> x = torch.ones(4, 2)
    >>> with dropping(net, key_rows(rng.keys(0, "example"), torch.arange(4)[:, None])):
    ...     one = net(x)
    >>> bool(((one == 0) | (one == 2 * net(x))).all()), bool((one[0] == one[1]).all())
    (True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core import rng

_TRAINING = -2  # the part of an address that masks in training have and permutations have not
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # they drop whole channels


def find_dropout(module: nn.Module) -> list[nn.Module]:
    """Returns the layers of a module that drop units or channels with a probability above 0, in its own order.

    Example:
        >>> len(find_dropout(nn.Sequential(nn.Dropout(0.0), nn.Dropout2d(0.5))))
        1
    """
    return [part for part in module.modules() if isinstance(part, (nn.Dropout, *CHANNELS)) and part.p > 0]


def key_batch(key: rng.Keys, step: int, rows: int) -> rng.Keys:
    """Returns an address for each row of a batch in training, `[rows]`.

    Args:
        key: Address of a client's local training.
        step: Number of the step, from 0.
        rows: Rows of the batch.
    """
    return rng.fresh(rng.fresh(rng.fresh(key, _TRAINING), step), np.arange(rows))


def key_rows(key: rng.Keys, x: Tensor) -> rng.Keys:
    """Returns an address for each row, from its content, `[n]`.

    Args:
        key: Address of all rows together.
        x: Raw inputs, `[n, ...]`.
    """
    flat = np.ascontiguousarray(x.cpu().numpy()).reshape(len(x), -1).view(np.uint8)
    words = np.zeros((len(flat), -(-flat.shape[1] // 8) * 8), np.uint8)
    words[:, : flat.shape[1]] = flat
    keys = np.full(len(flat), key)
    for column in words.view(np.int64).T:
        keys = rng.fresh(keys, column)
    return keys


@contextmanager
def dropping(module: nn.Module, keys: rng.Keys) -> Iterator[None]:
    """Returns a context in which the dropout layers of a module drop by these masks, and by no others.

    Args:
        module: In training or in evaluation mode.
        keys: Address of each row of its inputs, `[n]`.
    """
    parts = find_dropout(module)
    modes = [part.training for part in parts]
    with ExitStack() as stack:
        for i, part in enumerate(parts):
            handle = part.eval().register_forward_hook(_make_hook(part, rng.fresh(keys, i)))
            stack.callback(handle.remove)
        try:
            yield
        finally:
            for part, mode in zip(parts, modes, strict=True):
                part.training = mode


def _make_hook(part: Any, keys: rng.Keys) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        shape = output.shape[1:]
        number = shape[0] if isinstance(part, CHANNELS) else shape.numel()
        kept = torch.from_numpy(rng.uniform(keys, number) >= part.p).to(output) / (1.0 - part.p)
        shaped: Tensor = kept.view(
            len(keys), *(shape if number == shape.numel() else (number, *[1] * (len(shape) - 1)))
        )
        dropped: Tensor = output * shaped
        return dropped

    return hook


def answer_with_dropout(module: nn.Module, keys: rng.Keys, models: int, answer: Callable[[int], Tensor]) -> Tensor:
    """Raw outputs `[M, n, C]` of models that keep dropping; each has masks of its own.

    Args:
        module: The network.
        keys: Address of each input, `[n]`.
        models: M.
        answer: Computes the outputs of model m, `[1, n, C]`.
    """
    out = []
    for m in range(models):
        with dropping(module, rng.fresh(keys, m)):
            out.append(answer(m))
    return torch.cat(out)
