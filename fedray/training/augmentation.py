"""Batches whose rows are changed anew in every step (`local.augment`).

What is drawn for a row is a function of the client's local training, the step, the row's place in the batch and the
place of the augmentation among others. So it depends neither on the other lanes of a block nor on the runtime.

Example:
    >>> from fedray.data.augmentation import AUGMENTATIONS
    >>> x, y = torch.arange(6.0).view(1, 1, 2, 1, 1, 3), torch.zeros(1, 1, 2)
    >>> steps = Steps(rng.keys(0, "example", np.arange(1)), 0, np.array([[2]]))
    >>> change_batches((AUGMENTATIONS["flip"],), x, y, steps)[0].flatten(2).tolist()
    [[[0.0, 1.0, 2.0, 5.0, 4.0, 3.0]]]
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.augmentation import Augmentation
from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.own_code.user_code import blame_user_code, name_type

_AUGMENTED = -5  # the part of an address that augmentations have and permutations have not
_GENERATOR = threading.Lock()  # torch's generator, from which functions draw, is one for all threads


class Steps(NamedTuple):
    """Whose batches are changed, and which.

    Attributes:
        key: Address of each lane, `[W]`.
        first: Number of the first step.
        real: Rows of each batch that are no padding, `[s, W]`; they come first.
    """

    key: rng.Keys
    first: int
    real: IntArray


def change_batches(rules: Sequence[Augmentation], x: Tensor, y: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """Inputs and targets of some steps after all augmentations, one after another.

    Args:
        rules: The augmentations.
        x: Raw inputs, `[s, W, B, ...]`.
        y: Raw targets, `[s, W, B]` or `[s, W, B, q]`.
        steps: Says which these are.

    Raises:
        BadInput: A function of the user's returned something else than rows of the same form.
        FedrayError: It raised an exception.
    """
    numbers = steps.first + np.arange(len(x))[:, None]
    for place, rule in enumerate(rules):
        keys = rng.fresh(rng.fresh(rng.fresh(steps.key, _AUGMENTED), place), numbers)  # [s, W]
        if rule.form == "rows":
            each = rng.fresh(keys[..., None], np.arange(x.shape[2])).reshape(-1)
            x = rule.function(x.flatten(0, 2), rng.uniform(each, rule.numbers)).view(x.shape)
        else:
            x, y = _call_own(rule, x, y, keys, steps.real)
    return x, y


def _call_own(rule: Augmentation, x: Tensor, y: Tensor, keys: rng.Keys, real: IntArray) -> tuple[Tensor, Tensor]:
    """Inputs and targets after a function of the user's, which sees no padding."""
    changed, targets = [], y.clone() if rule.form == "batch" else y
    where = f"local.augment = {rule.name}"
    with blame_user_code(where), torch.no_grad(), _GENERATOR:
        for s, w in np.ndindex(*real.shape):
            n, rows = int(real[s, w]), x[s, w, :0]
            if n and rule.form == "batch":
                with rng.torch_scope(int(keys[s, w]), x.device):
                    found = rule.function(x[s, w, :n].clone(), y[s, w, :n].clone())
                rows, targets[s, w, :n] = _read_batch(where, found, x[s, w, :n], y[s, w, :n])
            elif n:
                rows = torch.cat([_change_row(rule, where, x[s, w, b], keys[s, w], b)[None] for b in range(n)])
            changed.append(torch.cat([rows, x[s, w, n:]]))
    return torch.cat(changed).view(x.shape), targets  # numbers that are no bytes any more make all of them such


def _change_row(rule: Augmentation, where: str, x: Tensor, key: Any, place: int) -> Tensor:
    """One input after a function of one input."""
    with rng.torch_scope(int(rng.fresh(key, place)), x.device):
        return _check_inputs(where, rule.function(x.clone()), x)


def _read_batch(where: str, found: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets from what a function of a batch returned."""
    if not isinstance(found, tuple):
        return _check_inputs(where, found, x), y
    if len(found) != 2 or not isinstance(found[1], Tensor) or found[1].shape != y.shape:
        raise BadInput(f"{where} returned a tuple that is not (inputs, targets): return one target for each row")
    return _check_inputs(where, found[0], x), found[1]


def _check_inputs(where: str, found: Any, x: Tensor) -> Tensor:
    """Refuses what a function returned, if these are no inputs of the same form."""
    if not isinstance(found, Tensor):
        raise BadInput(f"{where} returned {name_type(found)}: return a tensor of the same shape")
    if found.shape != x.shape:
        raise BadInput(f"{where} returned shape {list(found.shape)} for {list(x.shape)}: return the same shape")
    if found.dtype != x.dtype and not (found.is_floating_point() and x.dtype in (torch.uint8, torch.float32)):
        raise BadInput(f"{where} returned {found.dtype} for {x.dtype}: return the same type")
    if x.dtype == torch.uint8 and found.is_floating_point():
        _refuse_unit_scale(where, found, x)
        return found.float()
    return found.to(x.dtype)


def _refuse_unit_scale(where: str, found: Tensor, x: Tensor) -> None:
    """Refuses pictures whose bytes 0 to 255 have become numbers from 0 to 1."""
    if x.numel() and int(x.max()) > 1 and float(found.abs().max()) <= 1.0:
        raise BadInput(
            f"{where} returned numbers from 0 to 1 for bytes from 0 to 255: leave ToTensor and scaling out, fedray "
            "standardizes what the function returns"
        )
