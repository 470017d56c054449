"""How many training rows of each class a client holds, by the labels that it trains on.

`Shards.label_counts` counts the true labels, of which a server knows nothing where clients have wrong ones.

Example:
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.data.deal import build_shards
    >>> shards = build_shards(load_data("digits"), "iid", {}, clients=4, seeds=[0])
    >>> bool((count_held_labels(shards, 0) == shards.label_counts(0)).all())
    True
"""

from __future__ import annotations

import numpy as np
import torch

from fedray.core.errors import BadInput
from fedray.core.types import EVALUATED_CLIENTS, IntArray
from fedray.data.shards import Shards


def count_held_labels(shards: Shards, world: int) -> IntArray:
    """Training rows of each class, `[N, C]`, of the first `EVALUATED_CLIENTS` clients.

    Args:
        shards: the clients' rows.
        world: number of the world.

    Raises:
        BadInput: there are no classes.
    """
    classes = shards.data.classes
    if not classes:
        raise BadInput(f"{shards.data.name} has real targets, of which no classes can be counted: choose other data")
    client = np.arange(min(shards.number, EVALUATED_CLIENTS))
    fetched = shards.fetch(np.full_like(client, world), client)
    real = np.arange(fetched.rows.shape[1]) < fetched.size[:, None]  # the rest is padding
    owner = np.nonzero(real)[0]
    y = fetched.labels(fetched.rows[torch.from_numpy(real)], torch.from_numpy(owner)).cpu().numpy()
    counts = np.bincount(owner * classes + y, minlength=len(client) * classes)
    return counts.reshape(len(client), classes).astype(np.int64)
