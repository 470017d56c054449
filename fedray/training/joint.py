"""Runs of one process whose blocks train side by side: trials of a sweep share lanes as the clients of one run do.

Every run keeps its own study, state, directory and clock, and trains as if it were alone; only the call that trains a
block waits until each of the others has come to such a call. Blocks of one form are then joined, trained as one, and
cut again. A lane cannot see its neighbours, so no run can tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import FloatArray, Net
from fedray.training.block import Block, Rates, Trained
from fedray.training.choice import Engine, can_mix_rates

_Result = TypeVar("_Result")


class WaitingBlock(NamedTuple):
    """A block that waits for company. kind: what the blocks of one network have in common."""

    engine: Engine
    net: Net
    block: Block
    kind: str


@dataclass
class JointTraining:
    """Runs that take turns: one works until it has a block to train, then the next; when all wait, their blocks train.

    here: runs that go on; turn: whose it is; asked, trained: by run; broken: one was interrupted, so all end.
    """

    here: list[int] = field(default_factory=list)
    turn: int = 0
    asked: dict[int, WaitingBlock] = field(default_factory=dict)
    trained: dict[int, Trained | Exception] = field(default_factory=dict)
    broken: bool = False
    gate: threading.Condition = field(default_factory=threading.Condition)

    def run(self, tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """What the tasks return, each in a thread of its own and one at a time, in their order."""
        found: dict[int, _Result] = {}
        fatal: list[BaseException] = []

        def work(me: int) -> None:
            with self.gate:
                try:
                    self._await(me)
                    found[me] = tasks[me]()
                except BaseException as error:
                    fatal.append(error)
                    self.broken = True
                self.here.remove(me)
                self._next()

        self.here, self.turn = list(range(len(tasks))), 0
        threads = [threading.Thread(target=work, args=(me,)) for me in self.here]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: it reaches the main thread alone
            self.broken = True
            for thread in threads:
                thread.join()
            raise
        if fatal:
            raise fatal[0]
        return [found[me] for me in range(len(tasks))]

    def joins(self, engine: Engine, kind: str) -> Engine:
        """The engine of a run, its blocks trained in company with those of the same kind."""

        def train(net: Net, block: Block) -> Trained:
            return self._train(WaitingBlock(engine, net, block, kind))

        return engine if engine.width == 1 else Engine(engine.name, engine.width, engine.why, train, engine.outputs)

    def _train(self, asked: WaitingBlock) -> Trained:
        me = self.turn
        self.asked[me] = asked
        self._next()
        self._await(me)
        trained = self.trained.pop(me)
        if isinstance(trained, Exception):
            raise trained
        return trained

    def _next(self) -> None:
        """Passes the turn on; trains what waits where nobody else can go on."""
        if self.here and len(self.asked) == len(self.here) and not self.broken:
            self.trained.update(train_side_by_side(self.asked))
            self.asked.clear()
        ready = [me for me in self.here if me not in self.asked]
        self.turn = ready[0] if ready else -1
        self.gate.notify_all()

    def _await(self, me: int) -> None:
        self.gate.wait_for(lambda: self.broken or self.turn == me)
        if self.broken:
            raise KeyboardInterrupt


def train_side_by_side(asked: dict[int, WaitingBlock]) -> dict[int, Trained | Exception]:
    """Trains blocks, those of one form together as long as they fit the engine's width."""
    forms: dict[Any, list[list[int]]] = {}
    for me, one in asked.items():
        fits = forms.setdefault(describe_form(one), [[]])
        if sum(len(asked[other].block.start) for other in fits[-1]) + len(one.block.start) > one.engine.width:
            fits.append([])
        fits[-1].append(me)
    done: dict[int, Trained | Exception] = {}
    for group in (group for groups in forms.values() for group in groups if group):
        first = asked[group[0]]
        try:
            done.update(zip(group, train_together(first, [asked[me].block for me in group]), strict=True))
        except Exception as error:  # each run meets it where it would have met it alone
            done.update(dict.fromkeys(group, error))
    return done


def describe_form(one: WaitingBlock) -> Any:
    """What blocks must have in common to be one: equal networks and the same arithmetic for every lane."""
    block, local, rates = one.block, one.block.local, one.block.rates
    width = block.weight.shape[2]
    has = (block.anchor is None, block.offset is None, block.start.dtype, block.start.device.type)
    pulled = (bool(np.any(rates.pull)), bool(np.any(rates.decay + rates.pull)))
    same: Any = pulled if can_mix_rates(one.engine, local) else (rates.lr, rates.decay, rates.pull)
    return one.kind, one.net.layout, one.engine.name, local.optimizer, local.momentum, width, block.sample, has, same


def train_together(first: WaitingBlock, blocks: Sequence[Block]) -> list[Trained]:
    """Trains blocks as one."""
    if len(blocks) == 1:
        return [first.engine.train(first.net, blocks[0])]
    owner = np.repeat(np.arange(len(blocks)), [len(block.start) for block in blocks])
    steps = np.concatenate([block.steps for block in blocks])
    order = np.argsort(-steps, kind="stable")
    trained = first.engine.train(first.net, join_blocks(blocks, order))
    places = [torch.from_numpy(np.flatnonzero(owner[order] == part)) for part in range(len(blocks))]
    return [Trained(*(column[place.to(column.device)] for column in trained)) for place in places]


def join_blocks(blocks: Sequence[Block], order: Any) -> Block:
    """One block of the lanes of several, in an order of falling steps."""
    first, take = blocks[0], torch.from_numpy(order)
    moved = bool((np.diff(order) != 1).any())

    def all_lanes(parts: list[Tensor], dim: int = 0) -> Tensor:
        whole = torch.cat(parts, dim)
        return whole.index_select(dim, take.to(whole.device)) if moved else whole

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        ends = [len(block.weight) for block in blocks]
        parts = [block.read(min(lo, end), min(hi, end)) for block, end in zip(blocks, ends, strict=True)]
        x, y = (all_lanes([_long(part, hi - lo) for part in column], 1) for column in zip(*parts, strict=True))
        return x, y

    def optional(rows: list[Tensor | None]) -> Tensor | None:
        return all_lanes([row for row in rows if row is not None]) if rows[0] is not None else None

    total = max(len(block.weight) for block in blocks)
    rates = [np.concatenate(column)[order] for column in zip(*map(_each, blocks), strict=True)]
    same = all((column == column[0]).all() for column in rates)
    return first._replace(
        start=all_lanes([block.start for block in blocks]),
        counters=all_lanes([block.counters for block in blocks]),
        read=read,
        weight=all_lanes([_long(block.weight, total) for block in blocks], 1),
        steps=np.concatenate([block.steps for block in blocks])[order],
        keys=np.concatenate([block.keys for block in blocks])[order],
        anchor=optional([block.anchor for block in blocks]),
        offset=optional([block.offset for block in blocks]),
        own=None if same else Rates(*rates),
    )


def _long(part: Tensor, steps: int) -> Tensor:
    """`[s, ...]` with zeros behind, `[steps, ...]`: no lane is at work there."""
    return part if len(part) == steps else torch.cat([part, part.new_zeros(steps - len(part), *part.shape[1:])])


def _each(block: Block) -> tuple[FloatArray, ...]:
    """A block's rates, `[W]` each."""
    return tuple(np.broadcast_to(np.asarray(rate, dtype=np.float64), len(block.start)) for rate in block.rates)
