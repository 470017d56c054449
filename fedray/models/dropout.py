"""Applies dropout with reproducible masks: in training, and in predictions of networks whose dropout stays on.

In training the mask of a sample is a function of the client's round, the step, the sample's position in the batch and
the layer. So every engine drops the same numbers. Predictions with dropout follow the public code of Fed-ensemble,
which never calls `eval()`. In these predictions, the mask of a sample is a function of the seed, the index of the
model, the layer and the sample's inputs. So a prediction depends neither on the other samples, nor on their order, nor
on the runtime. The same model predicts the same for a sample in every round.

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

_TRAINING = -2  # an extra part of the address, for masks in training; it keeps them independent of permutations
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # they drop whole channels


def find_dropout(module: nn.Module) -> list[nn.Module]:
    """Returns the layers of a module that drop units or channels with a probability above 0, in the module's order.

    Example:
        >>> len(find_dropout(nn.Sequential(nn.Dropout(0.0), nn.Dropout2d(0.5))))
        1
    """
    return [part for part in module.modules() if isinstance(part, (nn.Dropout, *CHANNELS)) and part.p > 0]


def key_batch(key: rng.Keys, step: int, rows: int) -> rng.Keys:
    """Returns a random key for each sample of a batch in training, `[rows]`.

    Args:
        key: Random key of a client's local training.
        step: Number of the step, from 0.
        rows: Number of samples in the batch.
    """
    return rng.fresh(rng.fresh(rng.fresh(key, _TRAINING), step), np.arange(rows))


def key_rows(key: rng.Keys, x: Tensor) -> rng.Keys:
    """Returns a random key for each sample, computed from the sample's inputs, `[n]`.

    Args:
        key: Random key that all samples have in common.
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
    """Returns a context in which the masks of a module's dropout layers are computed from these keys alone.

    Args:
        module: The module, in training or in evaluation mode.
        keys: Random key of each sample in the inputs of the module, `[n]`.
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
    """Returns raw outputs `[M, n, C]` of models whose dropout stays on; each model has masks of its own.

    Args:
        module: The network.
        keys: Random key of each input, `[n]`.
        models: Number of models, M.
        answer: A function: m -> the outputs of model m, `[1, n, C]`.
    """
    out = []
    for m in range(models):
        with dropping(module, rng.fresh(keys, m)):
            out.append(answer(m))
    return torch.cat(out)
