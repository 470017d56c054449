"""Augmentations by name, and a user's own, as parts of local training.

Example:
    >>> read_augmentation(lambda x: x, "same", {}).form, read_augmentation(lambda x, y: (x, y), "pair", {}).form
    ('row', 'batch')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedray.assembly.registry import find_function, name_thing
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.local import Augmentation, AugmentationForm
from fedray.core.types import Net
from fedray.data.augmentation import AUGMENTATIONS, PADDED
from fedray.data.shards import Shards
from fedray.data.types import Dataset
from fedray.own_code.contract import contract
from fedray.own_code.source_code import list_nested
from fedray.own_code.user_code import describe_exception, name_type, takes_positional
from fedray.scenario import names
from fedray.training.block import Steps, change_batches

_TRIED = 16  # rows
_SHRUNK = 20.0  # ToTensor divides by 255, and with a Normalize behind it by 50 or more
_MIXES = "it makes mixed labels: write a loss that reads inputs and network instead (docs/how-to/training.md)"
_MISPLACED = {  # transforms of torchvision
    "Normalize": "leave it out, fedray standardizes what the function returns",
    "MixUp": _MIXES,
    "CutMix": _MIXES,
}
_TAKEN = {"rows": "inputs, numbers", "row": "input", "batch": "inputs, targets"}


def make_augmentations(wanted: Sequence[Any], options: Mapping[str, Any], data: Dataset) -> tuple[Augmentation, ...]:
    """What changes the rows of each batch, in this order.

    Args:
        wanted: names, and functions of the user's.
        options: of the section `local`.
        data: what clients train on.

    Raises:
        BadInput: one of fedray's own is for pictures, which the data are not; or one of the user's cannot be used.
    """
    made = []
    for one in wanted:
        if isinstance(one, str) and not names.is_own("augmentation", one):
            _refuse_idle(one, data)
            made.append(AUGMENTATIONS[one])
        elif isinstance(one, str):
            known = names.declared_options("augmentation", one) or {}
            own = {key: value for key, value in options.items() if key in known}
            made.append(read_augmentation(names.find_thing("augmentation", one), one, own))
        else:
            made.append(read_augmentation(one, name_thing(one), {}))
    return tuple(made)


def _refuse_idle(name: str, data: Dataset) -> None:
    """Refuses fedray's own for rows that it cannot change."""
    if data.kind != "images":
        raise BadInput(f"local.augment = {name}, but {data.name} has no images: give a function of your own")
    height, width = data.input_shape[1:]
    if name == "crop" and max(height, width) < PADDED:
        raise BadInput(
            f"local.augment = crop moves pictures by up to an eighth of their sides, but those of {data.name} have "
            f"{height} x {width} pixels: give a function of your own"
        )


def read_augmentation(thing: Any, name: str, options: Mapping[str, Any]) -> Augmentation:
    """A user's augmentation with its options.

    Args:
        thing: a function of one input, or of the inputs and targets of a batch; or a transform of torchvision.
        name: what messages call it.
        options: of the scenario.

    Raises:
        BadInput: it is, or holds, a transform that has no place in training.
    """
    for part in list_nested(thing):
        what = type(part).__name__
        if what in _MISPLACED and type(part).__module__.startswith("torchvision."):
            has = "" if part is thing else f" has {what}"
            raise BadInput(f"local.augment = {name}{has}: {_MISPLACED[what]}")
    of_one = takes_positional(find_function(thing), 1, options)
    return Augmentation(partial(thing, **options) if options else thing, "row" if of_one else "batch", name)


def try_augmentations(shards: Shards, rules: Sequence[Augmentation], net: Net) -> None:
    """Changes rows of the first client that has some, twice, so that what is wrong with a function is known at once.

    Args:
        shards: the clients' data.
        rules: the augmentations.
        net: what reads the rows.

    Raises:
        FedrayError: a function cannot be used; one line.
    """
    if all(rule.form == "rows" for rule in rules):
        return
    sizes = shards.sizes(np.zeros(shards.number, np.int64), np.arange(shards.number))
    if not sizes.any():
        return
    world, client = np.zeros(1, np.int64), np.flatnonzero(sizes)[:1]
    fetched = shards.fetch(world, client)
    rows = fetched.rows[:, : min(_TRIED, int(sizes[client[0]]))]
    x, y = fetched.x[rows][None], fetched.labels(rows, 0)[None]
    steps = Steps(rng.keys(0, "augmentation", client), 0, np.array([[rows.shape[1]]]), shards.data.classes)
    for rule in rules:
        found, again = (change_batches((rule,), x, y, steps) for _ in range(2))
        if rule.form != "rows":
            _refuse_other_draws(rule.name, found, again)
            if shards.data.kind == "images":
                _refuse_other_scale(rule.name, x.float(), found[0].float())
        x, y = found
    if shards.data.kind == "tokens":
        _refuse_unread(net, shards.normalize(x[:, 0], torch.zeros(1, dtype=torch.int64))[0], rules)


def _refuse_unread(net: Net, rows: Tensor, rules: Sequence[Augmentation]) -> None:
    """Refuses tokens that a network does not know."""
    module, training = net.module, net.module.training
    try:
        with torch.no_grad(), rng.torch_scope(0):
            module.eval()(rows)
    except Exception as error:
        wanted = ", ".join(rule.name for rule in rules)
        raise BadInput(
            f"local.augment = {wanted} made tokens from {int(rows.min())} to {int(rows.max())}, which the network "
            f"{net.name} does not take ({describe_exception(error)}): raise its vocabulary, or return others"
        ) from error
    finally:
        module.train(training)


def _refuse_other_draws(name: str, found: tuple[Tensor, Tensor], again: tuple[Tensor, Tensor]) -> None:
    """Refuses a function that makes other rows of the same rows and the same numbers."""
    if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, again, strict=True)):
        raise BadInput(
            f"local.augment = {name} has a generator of its own, or remembers its calls, so that no run could be "
            "repeated: draw from torch, numpy.random or random, or start the generator anew in each call, with "
            "int(torch.randint(2**31, ()))"
        )


def _refuse_other_scale(name: str, before: Tensor, after: Tensor) -> None:
    """Refuses pictures whose numbers have become much smaller, such as bytes that became numbers from 0 to 1."""
    if 0.0 < float(after.std()) < float(before.std()) / _SHRUNK:
        low, high, first, last = (float(part) for part in (after.min(), after.max(), before.min(), before.max()))
        raise BadInput(
            f"local.augment = {name} returned numbers from {low:.3g} to {high:.3g} for pictures from {first:g} to "
            f"{last:g}: leave ToTensor and scaling out, fedray standardizes what the function returns"
        )


def check_augmentations(where: str, rules: Any) -> None:
    """Refuses what a user's own method has as `local.augment`, if engines cannot read it.

    Args:
        where: what messages begin with.
        rules: of the method.

    Raises:
        BadInput: says what to give.
    """
    wanted = "give a tuple of fedray.methods.Augmentation"
    for one in rules:
        if not isinstance(one, Augmentation) or one.form not in get_args(AugmentationForm):
            raise BadInput(f"{where}: local.augment has {name_type(one)}: {wanted}, of form rows, row or batch")
        contract(f"{where}: local.augment", one.function, arguments=_TAKEN[one.form])
