"""What clients send, and what a server makes of it, without any training."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Server
from fedray.core.sums import add_stats
from fedray.core.types import State, Stats, Uploads


def send(delta: Tensor, **columns: Any) -> Uploads:
    """Returns uploads. Row j is client j's change of model 0 of world 0, with tier 0 and one sample by default."""
    jobs = np.arange(len(delta))
    usual = {"client": jobs, "model": 0 * jobs, "world": 0 * jobs, "tier": 0 * jobs}
    usual |= {"size": 0 * jobs + 1, "steps": 0 * jobs + 1}
    given = {name: np.array(one) if isinstance(one, list) else one for name, one in columns.items()}
    return Uploads(delta, **usual | given)


def merge_stats(parts: list[Stats]) -> Stats:
    """Returns the sum of the statistics of several processes. The parts stay as they are."""
    total: Stats = {}
    for part in copy.deepcopy(parts):
        add_stats(total, part)
    return total


def take(uploads: Uploads, rows: Any) -> Uploads:
    """Returns some of the uploads."""
    columns = uploads._asdict().items()
    return uploads._replace(**{name: one[rows] for name, one in columns if one is not None and name != "own"})


def begin(server: Server, models: Tensor) -> State:
    """Returns the state of a server that begins with these models `[M, d]`."""
    return State(models, torch.zeros(len(models), 0, dtype=torch.int64), server.init(models))


def step(server: Server, uploads: Uploads, models: Tensor | None = None) -> Tensor:
    """Returns the models after a first round, `[M, d]`. They begin at `models`, or with one model of zeros."""
    start = torch.zeros(1, uploads.delta.shape[1]) if models is None else models
    return server.step(begin(server, start), server.reduce(uploads), 0).models
