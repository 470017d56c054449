"""A study: everything a run needs, as plain objects. `build.py` makes it from a scenario, the engine only reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer, Method
from fedray.core.types import Clients, FloatArray, IntArray, Local, Net, State
from fedray.data.shards import Shards
from fedray.models.stacking import Voter
from fedray.simulation.clock import CountingRule
from fedray.simulation.devices import Devices


@dataclass(frozen=True)
class Evaluation:
    """What is measured, and when. `every` rounds; stop_at: (metric, value) that ends the run early; target: whose first
    reaching the summary tells."""

    every: int = 1
    average: str = "probabilities"
    gamma: float | None = None
    noise: str | float = "none"
    stop_at: tuple[str, float] | None = None
    target: tuple[str, float] | None = None


class Part(NamedTuple):
    """One training of a stack: an ordinary study of `worlds * folds` worlds, and its place in the whole.

    first: number of its first model; fold f has the models `first + f * models ..`. begins, ends: its rounds.
    trainable, buffers, counters: where its numbers lie in a row of the whole.
    voter: what its clients fit instead of being trained (`runtime.votes`); then it has no rounds and no numbers.
    met: of the meta model: round -> who has trained it before, as `world * N + client`.
    """

    study: Study
    folds: int
    models: int
    first: int
    begins: int
    ends: int
    trainable: slice
    buffers: slice
    counters: slice
    voter: Voter | None = None
    met: Callable[[int], IntArray] | None = None


@dataclass(frozen=True)
class Study:
    """seeds `[worlds]`: the seed of each world; folds `[worlds]`: its fold; replicate of a world = world // folds.

    starts `[worlds]`: seeds of the first models alone, where repetitions share everything else (`vary: init`).
    rates `[worlds]`: learning rates, where worlds have their own (`local.lr_grid`).
    skip: leave out jobs that fail, else they end the run; client_timeout: wall seconds that one job may take.
    """

    name: str
    method: Method
    net: Net
    clients: Clients
    shards: Shards
    seeds: IntArray
    folds: IntArray
    rounds: int
    input_shape: tuple[int, ...]
    classes: int
    hold_out: bool
    evaluation: Evaluation
    devices: Devices
    rule: CountingRule = CountingRule()  # noqa: RUF009 (frozen)
    checkpoint_every: int = 10
    checkpoint_keep: int = 2
    scenario: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    skip: bool = False
    client_timeout: float | None = None
    starts: IntArray | None = None
    rates: FloatArray | None = None
    parts: tuple[Part, ...] = ()  # of a stack: bases, then the meta model; the whole is one row a world

    @property
    def example(self) -> Tensor:
        """One network input, `input_shape`, of the right type; all zeros."""
        tokens = self.shards.data.kind == "tokens"
        return torch.zeros(self.input_shape, dtype=torch.int64 if tokens else self.dtype)

    @property
    def worlds(self) -> int:
        return len(self.seeds)

    @property
    def init_seeds(self) -> IntArray:
        """The seed of each world's first models, `[worlds]`."""
        return self.seeds if self.starts is None else self.starts

    @property
    def replicates(self) -> int:
        return self.worlds // self.per_replicate

    @property
    def per_replicate(self) -> int:
        """Worlds of one replicate: its folds."""
        return len(set(self.folds.tolist()))

    def local(self, local: Local, world: int) -> Local:
        """How the clients of a world train: with the world's own learning rate, if it has one."""
        return local if self.rates is None else replace(local, lr=float(self.rates[world]))

    def alike(self, world: IntArray) -> IntArray:
        """A number `[J]` for each job's world: equal where the learning rates are."""
        return np.zeros_like(world) if self.rates is None else np.unique(self.rates, return_inverse=True)[1][world]

    def answer(self, state: State) -> Answer:
        """The models that answer for a state."""
        if self.method.answer is not None:
            return self.method.answer(state)
        return Answer(state, self.method.phase.models)

    def split(self, name: str, world: int) -> tuple[Tensor, Tensor]:
        """Raw x and y of a world's test or held-out rows."""
        return self.shards.test(world) if name == "test" else self.shards.holdout(world)

    def pooled(self, world: int, clients: int | None = None) -> tuple[Tensor, Tensor]:
        """Training rows of a world's (first) clients, one after another: network inputs and targets `[n, ...]`."""
        number = self.clients.number if clients is None else min(clients, self.clients.number)
        everyone, where = np.arange(number), torch.tensor([world])
        fetched = self.shards.fetch(np.full_like(everyone, world), everyone)
        there = np.arange(fetched.rows.shape[1]) < fetched.size[:, None]
        rows = fetched.rows[torch.from_numpy(there)]
        x = self.shards.normalise(fetched.x[rows][None], where)[0]
        return x, self.shards.targets(fetched.labels(rows, 0)[None], where)[0]

    def unscaled(self, outputs: Tensor, world: int) -> Tensor:
        """Regression outputs `[..., q]` in the target's original units, float64."""
        data, fold = self.shards.data, int(self.folds[world])
        row = fold if len(data.y_scale) > 1 else 0
        return outputs.double() * torch.from_numpy(data.y_scale[row]) + torch.from_numpy(data.y_shift[row])

    def target_scale(self, world: int) -> float:
        """Standard deviation that regression targets were divided by."""
        scale, fold = self.shards.data.y_scale, int(self.folds[world])
        return float(scale[fold if len(scale) > 1 else 0, 0])
