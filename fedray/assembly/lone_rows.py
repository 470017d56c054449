"""Warns of clients with a batch of one row, on which batch normalization cannot train.

Example:
    >>> from fedray.core.method import Local
    >>> has_lone_row(np.array([1, 17, 16, 33]), Local(batch_size=16)).tolist()
    [True, True, False, True]
    >>> has_lone_row(np.array([1, 17]), Local(batch_size=16, epochs=None, steps=1)).tolist()  # it never comes to it
    [True, False]
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedray.core import rng
from fedray.core.errors import warn_user
from fedray.core.method import Local
from fedray.core.types import IntArray, Net
from fedray.simulation.study import Study
from fedray.training.block import count_steps

REFUSED = "Expected more than 1 value per channel when training"  # how torch's message begins
REMEDY = (
    "batch normalization cannot train on one row: choose another local.batch_size, layer or group normalization "
    "(model.norm), or clients with more rows (data.partition.min_rows)"
)


def warn_of_lone_rows(study: Study) -> None:
    """Warns where a network with batch normalization would train on a batch of one row.

    A client with `n mod B = 1` training rows has one. Torch refuses it where one value of each channel is left, so not
    in front of a convolution's maps of several pixels: the network is tried on one row.

    Args:
        study: What will run. The parts of a stack are not looked at.
    """
    phase, found = study.method.phase, set[int]()
    if study.parts or not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in study.net.module.modules()):
        return
    client = np.arange(study.clients.number)
    for world in range(study.worlds):
        size = study.shards.sizes(np.full_like(client, world), client)
        for local in (phase.local, *phase.personal):
            found |= set(client[has_lone_row(size, local)].tolist())
    if not found or not refuses_one_row(study.net, study.example):
        return
    has = f"client {min(found)} has" if len(found) == 1 else f"{len(found):,} clients (the first is {min(found)}) have"
    then = "they are left out when they train" if study.skip else "the run ends when one of them trains"
    text = f"model.name = {study.net.name}: {has} a batch of one row, and {then}: {REMEDY}"
    warn_user(text)


def has_lone_row(size: IntArray, local: Local) -> NDArray[np.bool_]:
    """Whether a batch of each client has a single row, `[N]`.

    Args:
        size: Training rows of each client, `[N]`.
        local: How the clients train.
    """
    width = np.maximum(size, 1) if local.batch_size is None else np.full_like(size, local.batch_size)
    batches = -(-size // width)  # of an epoch
    return np.asarray((size - (batches - 1) * width == 1) & (count_steps(size, local) >= batches) & (size > 0))


def refuses_one_row(net: Net, example: Tensor) -> bool:
    """Tries whether batch normalization refuses a batch of one row; False where something else is wrong.

    Args:
        net: The network; a copy of its module is tried.
        example: One network input.
    """
    try:
        module, tensors = copy.deepcopy(net.module).train(), net.layout.views(net.init(0))
        with torch.no_grad(), rng.torch_scope(0):
            functional_call(module, tensors, (example[None],))
    except Exception as error:  # what else is wrong with the network is found where it is tried to train
        return is_refused(error)
    return False


def is_refused(error: Exception) -> bool:
    """Whether an exception is torch's about batch normalization of a single row."""
    return isinstance(error, ValueError) and str(error).startswith(REFUSED)
