"""A small stack: four clients, three blobs, two bases."""

from typing import Any

import numpy as np
import pytest
import torch
from small import scenario, train_rounds

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.types import State
from fedray.data.types import Dataset, Split, classification
from fedray.features.stacking import LeaveOutShards
from fedray.runtime.session import Inline
from fedray.runtime.stacking import StackWorkers
from fedray.scenario.loader import read_scenario
from fedray.simulation.stacking import read_part, split_plan
from fedray.simulation.study import Part, Study

CLIENTS, CLASSES, EACH = 4, 3, 20
BASES = [{"name": "mlp", "hidden": [6]}, {"name": "mlp", "hidden": [4], "models": 2}]
STACK: dict[str, Any] = {
    "rounds": 3,
    "method": {"name": "stacking", "bases": BASES, "meta_lr": 0.1},
    "data": {"limit": None, "partition": {"name": "natural", "alpha": None}},
    "model": {"name": None, "hidden": None},
    "clients": {"number": None},
    "local": {"lr": 0.02, "batch_size": 8},
}
WITHIN: dict[str, Any] = {"method": {"folds": "within", "fold_number": 3}}
BOTH = pytest.mark.parametrize("folds", [{}, WITHIN], ids=["client", "within"])


def table(owner: np.ndarray | None = None, change: np.ndarray | None = None) -> Dataset:
    """Returns three blobs over four natural clients. Samples in `change` are moved and get wrong labels."""
    numbers, n = np.random.default_rng(0), CLIENTS * EACH
    y = np.arange(n) % CLASSES
    x = (numbers.normal(size=(n, 5)) + 2.0 * np.eye(5)[y]).astype(np.float32)
    test = Split(x[:30] + 0.1, y[:30], np.arange(30) % CLIENTS)
    if change is not None:
        x[change], y[change] = 7.0 - 3.0 * x[change], (y[change] + 1) % CLASSES
    group = np.repeat(np.arange(CLIENTS), EACH) if owner is None else owner
    made = classification("blobs", Split(x, y, group.astype(np.int64)), test, ("a", "b", "c"))
    return made._replace(shift=np.zeros((1, 5), np.float32), scale=np.ones((1, 5), np.float32))


def study(*changes: dict[str, Any], data: Dataset | None = None) -> Study:
    return build_study(read_scenario(scenario(STACK, *changes)), UserObjects(data=table() if data is None else data))


def bases_after(made: Study, rounds: int = 3) -> list[torch.Tensor]:
    """Returns the sub models of each base, `[F, x, d]`."""
    state, _ = train_rounds(made, rounds)
    return [read_part(state, part).models.view(part.folds, part.models, -1) for part in made.parts[:-1]]


def features(made: Study, state: State) -> np.ndarray:
    """Returns the features of every client of the first world, `[N * EACH, n * C]`."""
    parts = Inline(made).worker.parts
    assert isinstance(parts, StackWorkers)
    parts._use_state(state)
    return torch.cat([parts.features(0, client) for client in range(made.clients.number)]).numpy()


def rows_in(part: Part, fold: int) -> np.ndarray:
    """Returns the samples of a fold of the first world, in the order of the clients."""
    shards = part.study.shards
    assert isinstance(shards, LeaveOutShards)
    return np.concatenate([c * EACH + np.flatnonzero(shards.fold_of(0, c, EACH) == fold) for c in range(CLIENTS)])


def seen_rows(part: Part, made: Study, fold: int) -> set[int]:
    """Returns the samples that any job of a sub model of this fold reads in its training."""
    plan = made.method.phase.schedule(0, None)
    for one, _, own in ((s.part, s.jobs, s.plan) for s in split_plan(made.parts, plan)):
        if one is part:
            mine = own.take(own.world % part.folds == fold)
            fetched = part.study.shards.fetch(mine.world, mine.client)
            return {int(r) for row, n in zip(fetched.rows, fetched.size, strict=True) for r in row[:n]}
    return set()
