"""A small federation as a plain loop of torch sees it: unequal clients, one of them without rows, half of them a round.

A loop takes from fedray the first models, the participants, the order of the rows and the drawn numbers, and nothing
else. Models are float64, so that a loop and fedray agree but for weights of rows, which are float32.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from small import list_states
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core import rng
from fedray.core.errors import FedrayWarning
from fedray.core.types import IntArray, State
from fedray.data.types import Dataset, Split, classification
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import merge_keys
from fedray.simulation.study import Study

SIZES = (9, 41, 13, 0, 25)
INPUTS, HIDDEN, CLASSES = 4, 6, 3
P = HIDDEN * (INPUTS + 1) + CLASSES * (HIDDEN + 1)
HEAD = torch.arange(P) >= HIDDEN * (INPUTS + 1)  # the numbers of the last layer
LR, BATCH, EPOCHS = 0.1, 8, 2
SOME: dict[str, Any] = {
    "rounds": 3, "runtime": "inline", "report": False, "replicates": 2, "evaluate": {"every": 100},
    "model": {"name": "mlp", "hidden": [HIDDEN]}, "clients": {"number": len(SIZES)}, "participation": {"per_round": 3},
    "local": {"lr": LR, "batch_size": BATCH, "epochs": EPOCHS},
}  # fmt: skip


def deal_unevenly(labels: IntArray, _clients: int, draw: np.random.Generator, _options: Any) -> list[IntArray]:
    """Deals samples at random. Each client gets the number that `SIZES` gives."""
    return [np.sort(one) for one in np.split(draw.permutation(len(labels)), np.cumsum(SIZES)[:-1])]


def make_blobs() -> Dataset:
    """Returns three overlapping classes. Each input has its own mean and deviation."""
    draw, n = np.random.default_rng(3), sum(SIZES)
    y = draw.integers(CLASSES, size=n + 30)
    x = (draw.normal(size=(n + 30, INPUTS)) + 1.5 * np.eye(INPUTS)[y] + np.arange(INPUTS)).astype(np.float32)
    return classification("blobs", Split(x[:n], y[:n]), Split(x[n:], y[n:]), tuple("abc"))


class Training(NamedTuple):
    """Rounds that fedray has trained, in float64."""

    study: Study
    states: list[State]  # before each round, and behind the last
    private: dict[str, Tensor]  # what clients keep at the end

    def models(self, world: int) -> Tensor:
        """Returns the last models of a world, `[K, d]`."""
        return self.states[-1].models.view(self.study.worlds, -1, self.study.net.layout.d)[world]

    def kept(self, name: str, world: int) -> dict[tuple[int, int], Tensor]:
        """Returns the private vectors of a world, by client and model."""
        keys = self.private[f"{name}/keys"].tolist()
        return {(i, m): row for (w, i, m), row in zip(keys, self.private[f"{name}/rows"], strict=True) if w == world}


def train(method: Mapping[str, Any], *changes: Mapping[str, Any]) -> Training:
    """Trains the small federation."""
    keys: dict[str, Any] = {**SOME, "method": dict(method)}
    for change in changes:
        keys = merge_keys(keys, change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedrayWarning)
        own = UserObjects(data=make_blobs(), partition=deal_unevenly)
        study = replace(build_study(read_scenario(keys), own), dtype=torch.float64)
        states, runtime = list_states(study, study.rounds)
    return Training(study, states, runtime.private())


class Client(NamedTuple):
    """A participant in a round, as a loop sees it."""

    number: int  # its id
    model: int  # which one it trains
    x: Tensor  # its inputs, [n, 4] float64
    y: Tensor  # their classes, [n]
    batches: list[IntArray]  # the rows of each step
    key: rng.Keys  # address of what it draws

    @property
    def size(self) -> int:
        """Returns n, the number of training samples."""
        return len(self.y)

    def draw(self, step: int) -> Tensor:
        """Draws the standard normal numbers of a step, `[p]`."""
        return torch.from_numpy(rng.normal(rng.fresh(rng.fresh(self.key, -1), step), P))


def rows_of(study: Study, world: int, client: int) -> tuple[Tensor, Tensor]:
    """Returns the training samples of a client: inputs `[n, 4]` float64 and classes `[n]`."""
    fetched, where = study.shards.fetch(np.array([world]), np.array([client])), torch.tensor([world])
    rows = fetched.rows[0, : fetched.size[0]]
    return study.shards.scaling.normalize(fetched.x[rows][None], where)[0].double(), fetched.labels(rows, 0)


def participants(done: Training, world: int, t: int) -> list[Client]:
    """Returns which client trains which model in a round. Clients without samples are left out."""
    plan = done.study.method.phase.schedule(t, done.states[t])
    here = [(int(i), int(m)) for i, m, w in zip(*plan, strict=True) if w == world]
    found = []
    for i, m in here:
        x, y = rows_of(done.study, world, i)
        key = rng.keys(int(done.study.seeds[world]), "batches", t, i, m)
        if len(y):
            tier = int(done.study.clients.tier_of(np.array([i]))[0])
            epochs = done.study.clients.tiers[tier].epochs or EPOCHS
            found.append(Client(i, m, x, y, deal(key, len(y), epochs), key))
    return found


def deal(key: rng.Keys, n: int, epochs: int = EPOCHS) -> list[IntArray]:
    """Returns the batches of a local training. Each epoch has its own order."""
    orders = [np.argsort(rng.bits(rng.fresh(key, epoch), n), kind="stable") for epoch in range(epochs)]
    return [order[a : a + BATCH] for order in orders for a in range(0, n, BATCH)]


def ask(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the network's logits with the weights `[p]`, and the inputs of its last layer."""
    first, bias, last, other = w.split_with_sizes([HIDDEN * INPUTS, HIDDEN, CLASSES * HIDDEN, CLASSES])
    hidden = (x.flatten(1) @ first.view(HIDDEN, INPUTS).T + bias).relu()
    return hidden @ last.view(CLASSES, HIDDEN).T + other, hidden


def lose(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Returns the mean cross entropy."""
    return cross_entropy(ask(w, x)[0], y)


def slope(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Returns the gradient of a function of the weights."""
    here = at.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(here), here)[0]


def mean_by_size(clients: Sequence[Client], each: Sequence[Tensor]) -> Tensor:
    """Returns the mean of the clients' uploads, weighted by numbers of samples."""
    total = sum(one.size for one in clients)
    return torch.stack([one.size / total * sent for one, sent in zip(clients, each, strict=True)]).sum(0)
