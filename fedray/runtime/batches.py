"""The batches of a block: which rows of the clients' data each lane reads in which step.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.core import rng
    >>> from fedray.scenario.loader import read_scenario
    >>> study = build_study(read_scenario({"data": {"name": "cubic"}, "clients": {"number": 2}}))
    >>> one = Plan(*np.array([[1], [0], [0]]))
    >>> size, key = study.shards.sizes(one.world, one.client), rng.keys(0, "example", one.client)
    >>> dealt = deal_data(study, one, size, np.array([3]), key=key, local=Local(batch_size=4), move=lambda x: x)
    >>> inputs, targets = dealt.read(0, 3)
    >>> dealt.weight.shape, inputs.shape
    (torch.Size([3, 1, 4]), torch.Size([3, 1, 4, 1]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.method import Local
from fedray.core.types import IntArray, Plan
from fedray.runtime.mixture import Shares
from fedray.runtime.resident import Resident
from fedray.simulation.study import Study
from fedray.training import block as lanes
from fedray.training.augmentation import Steps, change_batches


class DealtData(NamedTuple):
    """The batches of a block; the fields are those of `Block`.

    Attributes:
        read: A function (first step, one past the last) -> inputs and targets of these steps.
        weight: Weight of each row in its batch's loss, `[S, W, B]`.
        source: Where `read` takes them from; None where they are changed on the way.
    """

    read: Callable[[int, int], tuple[Tensor, Tensor]]
    weight: Tensor
    source: lanes.BatchSource | None


def deal_data(
    study: Study,
    plan: Plan,
    size: IntArray,
    steps: IntArray,
    *,
    key: rng.Keys,
    local: Local,
    move: Callable[[Tensor], Tensor],
    resident: Resident | None = None,
    shares: Shares | None = None,
) -> DealtData:
    """Deals the rows of each lane's client into batches.

    Args:
        study: What is trained.
        plan: Client, model and world of each lane, `[W]`.
        size: Training samples of each lane, `[W]`.
        steps: Optimizer steps of each lane, `[W]`, falling.
        key: Address of each lane, `[W]`.
        local: How the clients train.
        move: Moves a tensor to where it is used, in the type of the study's networks.
        resident: Where the rows lie from which batches are gathered; None: in main memory.
        shares: How the clients weigh their samples; None: all of a batch weigh the same.
    """
    shards = study.shards
    fetched = shards.fetch(plan.world, plan.client)
    width = int(lanes.choose_batch_width(size[:1], local.batch_size)[0])
    index, weight = lanes.deal_batches(fetched.rows.numpy(), size, steps, width, key)
    dealt = weight
    if shares is not None:
        place = np.broadcast_to(np.arange(fetched.rows.shape[1]), fetched.rows.shape)
        weight = weight * shares.of_places(plan, lanes.deal_batches(place, size, steps, width, key).index)
    world = torch.from_numpy(plan.world)
    x_rows, y_rows = fetched.x, fetched.y
    if resident is not None and all(rule.form == "rows" for rule in local.augment):  # users' functions read main memory
        x_rows, y_rows = resident.place(fetched.x, fetched.y)
    placed = fetched._replace(x=x_rows, y=y_rows)

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        at = index[lo:hi]
        x = x_rows.index_select(0, at.flatten().to(x_rows.device)).view(*at.shape, *x_rows.shape[1:])
        y = placed.labels(at, torch.arange(at.shape[1])[:, None])
        if local.augment:
            real = (dealt[lo:hi] > 0).sum(-1).numpy()
            x, y = change_batches(local.augment, x, y, Steps(key, lo, real, shards.data.classes))
        x = shards.normalize(x.transpose(0, 1), world).transpose(0, 1)
        y = shards.targets(y.transpose(0, 1), world).transpose(0, 1)
        return move(x), move(y)

    source = lanes.BatchSource(fetched.x, fetched.y, index, fetched.first, *shards.standardization(plan.world))
    return DealtData(read, move(weight), None if local.augment else source)
