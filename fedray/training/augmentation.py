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
_GENERATORS = threading.Lock()  # those from which functions draw are one for all threads
_MIXED = "for mixed labels write a loss (local.loss), which can ask the network about mixed inputs"
_INFINITE = "numbers that are NaN or infinite: look for a division, a logarithm or a root"
_PICTURES = 6  # axes of the pictures of some steps and lanes, `[s, W, B, C, H, W]`


class Steps(NamedTuple):
    """Whose batches are changed, and which.

    Attributes:
        key: Address of each lane, `[W]`.
        first: Number of the first step.
        real: Rows of each batch that are no padding, `[s, W]`; they come first.
        classes: Number of classes; 0: targets are those of a regression.
    """

    key: rng.Keys
    first: int
    real: IntArray
    classes: int = 0


def change_batches(rules: Sequence[Augmentation], x: Tensor, y: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """Inputs and targets of some steps after all augmentations, one after another.

    Args:
        rules: The augmentations.
        x: Raw inputs, `[s, W, B, ...]`; in main memory where a function of the user's changes them.
        y: Raw targets, `[s, W, B]` or `[s, W, B, q]`.
        steps: Says which these are.

    Raises:
        BadInput: A function of the user's returned something else than finite rows of the same form.
        FedrayError: It raised an exception.
    """
    numbers = steps.first + np.arange(len(x))[:, None]
    for place, rule in enumerate(rules):
        keys = rng.fresh(rng.fresh(rng.fresh(steps.key, _AUGMENTED), place), numbers)  # [s, W]
        if rule.form == "rows":
            each = rng.fresh(keys[..., None], np.arange(x.shape[2])).reshape(-1)
            x = rule.function(x.flatten(0, 2), rng.uniform(each, rule.numbers)).view(x.shape)
        else:
            x, y = _call_own(rule, x, y, keys, steps)
    return x, y


def _call_own(rule: Augmentation, x: Tensor, y: Tensor, keys: rng.Keys, steps: Steps) -> tuple[Tensor, Tensor]:
    """Inputs and targets after a function of the user's, which sees no padding."""
    changed, targets, where = x.clone(), y.clone(), f"local.augment = {rule.name}"
    with blame_user_code(where), torch.no_grad(), _GENERATORS, rng.generators_scope() as start:
        for s, w in np.ndindex(*steps.real.shape):
            n, lane = int(steps.real[s, w]), (s, w)
            if n and rule.form == "batch":
                start(int(keys[lane]))
                found = rule.function(x[lane][:n].clone(), y[lane][:n].clone())
                inputs, targets[lane][:n] = _read_batch(where, found, x[lane][:n], y[lane][:n], steps.classes)
                changed = _put(changed, (*lane, slice(n)), inputs)
                continue
            for b, key in enumerate(rng.fresh(keys[lane], np.arange(n)).tolist()):
                start(key)
                row = _check_inputs(where, rule.function(x[s, w, b].clone()), x[s, w, b], x.dim() == _PICTURES)
                changed = _put(changed, (s, w, b), row)
    _refuse_infinite(where, changed, x)
    return changed, targets


def _put(rows: Tensor, place: Any, found: Tensor) -> Tensor:
    """Rows with some of them replaced; bytes become numbers where these are no bytes any more."""
    rows = rows if found.dtype == rows.dtype else rows.float()
    rows[place] = found
    return rows


def _read_batch(where: str, found: Any, x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets from what a function of a batch returned."""
    pictures = x.dim() == _PICTURES - 2
    if not isinstance(found, tuple):
        return _check_inputs(where, found, x, pictures), y
    if len(found) != 2 or not isinstance(found[1], Tensor):
        raise BadInput(f"{where} returned a tuple that is not (inputs, targets): return one target for each row")
    _check_targets(where, found[1], y, classes)
    return _check_inputs(where, found[0], x, pictures), found[1]


def _check_targets(where: str, found: Tensor, y: Tensor, classes: int) -> None:
    """Refuses targets that are not one class, or the numbers of one row of a regression, for each row."""
    mixed = not y.is_floating_point() and found.is_floating_point()
    if found.shape != y.shape:
        raise BadInput(
            f"{where} returned targets of shape {list(found.shape)} for {list(y.shape)}: "
            f"{_MIXED if mixed else 'return one target for each row'}"
        )
    if mixed:
        raise BadInput(f"{where} returned targets of {found.dtype} for the numbers of classes: {_MIXED}")
    if classes and bool(wrong := found[(found < 0) | (found >= classes)].tolist()):
        raise BadInput(f"{where} returned class {wrong[0]}: return classes from 0 to {classes - 1}")
    if not bool(torch.isfinite(found).all()):
        raise BadInput(f"{where} returned targets with {_INFINITE}")


def _check_inputs(where: str, found: Any, x: Tensor, pictures: bool) -> Tensor:
    """Inputs that a function returned, in the type of `x` or, of pictures, as numbers; refused if the form is another.

    Args:
        where: What messages begin with.
        found: What it returned.
        x: What it was given.
        pictures: Whether these are pictures, whose bytes may become numbers.
    """
    if not isinstance(found, Tensor):
        raise BadInput(f"{where} returned {name_type(found)}: return a tensor of the same shape")
    if found.shape != x.shape:
        raise BadInput(f"{where} returned shape {list(found.shape)} for {list(x.shape)}: return the same shape")
    if found.is_floating_point() and x.dtype == torch.uint8 and pictures:
        return found.float()
    if found.dtype != x.dtype and not (found.is_floating_point() and x.is_floating_point()):
        _refuse_other_type(where, found, x, pictures)
    return found.to(x.dtype)


def _refuse_other_type(where: str, found: Tensor, x: Tensor, pictures: bool) -> None:
    """Refuses inputs of another type, unless they are tokens that the type of the data can hold."""
    whole = not found.is_floating_point() and not found.is_complex() and found.dtype != torch.bool
    if whole and not x.is_floating_point() and not pictures:
        most = torch.iinfo(x.dtype)
        if not found.numel() or (most.min <= int(found.min()) and int(found.max()) <= most.max):
            return
    raise BadInput(f"{where} returned {found.dtype} for {x.dtype}: return the same type")


def _refuse_infinite(where: str, found: Tensor, x: Tensor) -> None:
    """Refuses inputs that became NaN or infinite."""
    if found.is_floating_point() and not bool((torch.isfinite(found) | ~torch.isfinite(x)).all()):
        raise BadInput(f"{where} returned {_INFINITE}")
