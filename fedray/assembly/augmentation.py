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

from fedray.assembly.own_fields import require, require_function
from fedray.assembly.own_training import find_code, find_function, name_thing
from fedray.core import rng
from fedray.core.augmentation import Augmentation, AugmentationForm
from fedray.core.errors import BadInput
from fedray.data.augmentation import AUGMENTATIONS
from fedray.data.shards import Shards
from fedray.data.types import Dataset
from fedray.own_code.user_code import name_type, takes_positional
from fedray.scenario import names
from fedray.training.augmentation import Steps, change_batches

_TAKEN = {"rows": "inputs, numbers", "row": "input", "batch": "inputs, targets"}


def make_augmentations(wanted: Sequence[Any], options: Mapping[str, Any], data: Dataset) -> tuple[Augmentation, ...]:
    """What changes the rows of each batch, in this order.

    Args:
        wanted: names, and functions of the user's.
        options: of the section `local`.
        data: what clients train on.

    Raises:
        BadInput: one of fedray's own is for pictures, which the data are not.
    """
    made = []
    for one in wanted:
        if isinstance(one, str) and not names.is_own("augmentation", one):
            if data.kind != "images":
                raise BadInput(f"local.augment = {one}, but {data.name} has no images: give a function of your own")
            made.append(AUGMENTATIONS[one])
        elif isinstance(one, str):
            known = names.declared_options("augmentation", one) or {}
            own = {key: value for key, value in options.items() if key in known}
            made.append(read_augmentation(find_code("augmentation", one), one, own))
        else:
            made.append(read_augmentation(one, name_thing(one), {}))
    return tuple(made)


def read_augmentation(thing: Any, name: str, options: Mapping[str, Any]) -> Augmentation:
    """A user's augmentation with its options.

    Args:
        thing: a function of one input, or of the inputs and targets of a batch; or a transform of torchvision.
        name: what messages call it.
        options: of the scenario.
    """
    of_one = takes_positional(find_function(thing), 1, options)
    return Augmentation(partial(thing, **options) if options else thing, "row" if of_one else "batch", name)


def try_augmentations(shards: Shards, rules: Sequence[Augmentation]) -> None:
    """Changes two rows of the first client that has some, so that what is wrong with a function is known at once.

    Args:
        shards: the clients' data.
        rules: the augmentations.

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
    rows = fetched.rows[:, : min(2, int(sizes[client[0]]))]
    x, y = fetched.x[rows][None], fetched.labels(rows, 0)[None]
    change_batches(rules, x, y, Steps(rng.keys(0, "augmentation", client), 0, np.array([[rows.shape[1]]])))


def check_augmentations(where: str, rules: Any) -> None:
    """Refuses what a user's own method has as `local.augment`, if engines cannot read it.

    Args:
        where: what messages begin with.
        rules: of the method.

    Raises:
        BadInput: says what to give.
    """
    wanted = "give a tuple of fedray.methods.Augmentation"
    require(where, "local.augment", rules, tuple)
    for one in rules:
        if not isinstance(one, Augmentation) or one.form not in get_args(AugmentationForm):
            raise BadInput(f"{where}: local.augment has {name_type(one)}: {wanted}, of form rows, row or batch")
        require_function(where, "local.augment", one.function, _TAKEN[one.form])
