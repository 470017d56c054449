"""Averages the models of a local training over windows of steps, and computes the upload from these means (FedPA).

A window is a number of consecutive steps of local training. The training engine is called once for each step, and this
module keeps the velocity of SGD. A *lane* is one job (a client trains a model) of a block of W jobs that are trained
together.

Example:
    The first client makes ten steps. Two of them come before the first window, and the other eight lie in three
    windows. The second client makes only two steps.

    >>> assign_windows(np.array([10, 2]), Windows(torch.sub, number=3, mixing=0.2)).T.tolist()
    [[-1, -1, 0, 0, 0, 1, 1, 1, 2, 2], [0, 1, -1, -1, -1, -1, -1, -1, -1, -1]]
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import Phase, Piece
from fedray.core.types import IntArray, Net
from fedray.features.correction import Correction
from fedray.training.block import Block, Trained
from fedray.training.choice import Engine
from fedray.training.update import Update

_STEP = -4  # makes the random keys of single steps differ from other keys


@dataclass(frozen=True)
class Windows(Piece):
    """Computes the upload from means of the models of a local training, instead of the last model (FedPA).

    The first steps of a local training belong to no window. The other steps are cut into windows of equal length. The
    models after each step of a window are averaged. Clients must train with SGD, without Nesterov's momentum. They may
    have a user's loss, but no transformation or correction of the gradient.

    Attributes:
        combine: A function that takes the p parameters at the start, `[p]` float64, and the means of the windows, `[l,
            p]` float64. It returns the change that the client sends, `[p]`.
        number: Number of windows, l. If fewer than l steps are left for windows, each of these steps is a window.
        mixing: Fraction of the steps of a local training that come before the first window, in [0, 1).
        burn_in: Number of rounds, at the beginning of the run, that have no windows.
    """

    combine: Callable[[Tensor, Tensor], Tensor]
    number: int = 1
    mixing: float = 0.0
    burn_in: int = 0

    @property
    def begins(self) -> int:
        return self.burn_in

    def check(self, phase: Phase, method: str) -> None:
        if phase.local.optimizer_name != "sgd":
            name = phase.local.optimizer_name
            raise BadInput(f"local.optimizer = {name}, but {method} samples the iterates of SGD: set it to sgd")
        if phase.local.nesterov:
            raise BadInput(f"local.nesterov = true, but {method} samples the iterates of SGD: set it to false")
        others = {"gradient": phase.local.gradient, "correction": phase.find(Correction), "finish": phase.find(Finish)}
        if parts := [name for name, one in others.items() if one is not None]:
            raise BadInput(f"{method}: it has windows, but a {parts[0]} too, which they do not call: leave it out")

    def group(self, t: int) -> bool:
        return t >= self.burn_in

    def begin(self, update: Update) -> Update:
        if update.t < self.burn_in:
            return update
        engine = replace(update.engine, train=partial(self._train, update.engine))
        return update._replace(engine=engine, gives_change=True)

    def describe(self) -> tuple[str, str]:
        return "training", f"sampled in {self.number:,} windows"

    def _train(self, engine: Engine, net: Net, block: Block) -> Trained:
        """Trains every client of a block, and computes its result from the means of its windows."""
        means, trained = _sample(engine, net, block, self)
        p = net.layout.trainable
        change = trained.final - block.start  # the float buffers, which are the columns from p on, keep this change
        for lane, each in enumerate(means):
            change[lane, :p] = self.combine(block.start[lane, :p].double(), each).to(change)
        return trained._replace(final=change if block.wants_change else block.start + change)


@dataclass(frozen=True)
class Finish(Piece):
    """Replaces the model that a client has trained. The client then sends and keeps the new model.

    Attributes:
        finish: A function that takes the models before and after training, `[W, d]` each. It returns models that
            replace the trained models. If a client has made no step, its model is not replaced.
    """

    takes: ClassVar[tuple[str, ...]] = ("finish",)
    reads_final = True

    finish: Callable[[Tensor, Tensor], Tensor]

    def begin(self, update: Update) -> Update:
        return update._replace(engine=replace(update.engine, train=partial(self._train, update.engine)))

    def _train(self, engine: Engine, net: Net, block: Block) -> Trained:
        trained = engine.train(net, block)
        made_steps = torch.from_numpy(block.steps > 0).to(trained.final.device)[:, None]
        return trained._replace(final=torch.where(made_steps, self.finish(block.start, trained.final), trained.final))


def assign_windows(steps: IntArray, windows: Windows) -> IntArray:
    """Returns the window of each of S steps of W clients, `[S, W]`. Steps outside of the windows have -1.

    `steps` is the number of optimizer steps of each lane, `[W]`, at least 1.
    """
    step = np.arange(int(steps.max()))[:, None]  # [S, 1]
    first = np.maximum(np.minimum((windows.mixing * steps + 1e-9).astype(np.int64), steps - 1), 0)
    inside = steps - first  # at least the last step
    number = np.minimum(windows.number, inside)
    window = (step - first) * number // inside
    return np.where((step >= first) & (step < steps), window, -1)


def _sample(engine: Engine, net: Net, block: Block, windows: Windows) -> tuple[list[Tensor], Trained]:
    """Trains the clients of a block.

    Returns the means of each client's windows, `[l, p]` float64, and the trained models.
    """
    p, w, place = net.layout.trainable, len(block.start), assign_windows(block.steps, windows)
    momentum = block.local.momentum
    sums = block.start.new_zeros(int(place.max()) + 1, w, p, dtype=torch.float64)
    rows, counters, loss = block.start.clone(), block.counters.clone(), block.start.new_zeros(w)
    velocity = block.start.new_zeros(w, p if momentum else 0)  # the change of the p parameters in the last step
    for step, one in enumerate(_cut_steps(block)):
        real = int((block.steps > step).sum())  # only the first `real` clients make this step
        trained = engine.train(net, one._replace(start=rows, counters=counters))
        before, after = rows[:real], trained.final[:real]
        if momentum:
            velocity[:real].mul_(momentum).add_(after[:, :p] - before[:, :p])
            after = torch.cat([before[:, :p] + velocity[:real], after[:, p:]], dim=1)
        before.copy_(after)
        counters[:real] = trained.counters[:real]
        loss[:real] += trained.loss[:real]
        for window in np.unique(place[step, :real]):
            if window >= 0:
                lanes = torch.from_numpy(np.flatnonzero(place[step, :real] == window)).to(sums.device)
                sums[window].index_add_(0, lanes, rows[lanes, :p].double())
    length = [np.bincount(column[column >= 0]) for column in place.T]
    means = [sums[: len(n), lane] / torch.from_numpy(n).to(sums)[:, None] for lane, n in enumerate(length)]
    return means, Trained(rows, counters, loss)


def _cut_steps(block: Block) -> Iterator[Block]:
    """Cuts a block into blocks with a single step of plain SGD. `_sample` replaces their initial models."""
    plain, source = replace(block.local, momentum=0.0), block.source
    anchor = block.start if block.anchor is None else block.anchor
    steps = np.arange(int(block.steps.max()))
    keys = rng.fresh(rng.fresh(block.keys, _STEP), steps[:, None])  # [S, W]
    block = block._replace(steps=np.ones_like(block.steps), local=plain, anchor=anchor, wants_change=False)

    def read_one(step: int, _low: int, _high: int) -> tuple[Tensor, Tensor]:
        return block.read(step, step + 1)

    for s in steps:
        yield block._replace(
            read=partial(read_one, int(s)),
            weight=block.weight[s : s + 1],
            keys=keys[s],
            source=None if source is None else source._replace(index=source.index[s : s + 1]),
        )
