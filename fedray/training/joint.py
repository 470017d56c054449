"""Runs of one process whose blocks train side by side: trials of a sweep share lanes as the clients of one run do.

Every run keeps its own study, state, directory and clock, and trains as if it were alone. Runs are threads of which one
works at a time. A run pauses when it has a block to train; when all runs have paused, blocks of one form are joined,
trained as one block, and cut again. The numbers of a lane do not depend on the other lanes, so every run gets the bits
that it would get alone.

Example:
    Two tasks that train nothing run one after another.

    >>> JointTraining().run([lambda: "first", lambda: "second"])
    ['first', 'second']
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import FloatArray, IntArray, Net
from fedray.training.block import Block, Rates, Trained
from fedray.training.choice import Engine, can_mix_rates

_Result = TypeVar("_Result")


class WaitingBlock(NamedTuple):
    """A block that waits until the other runs have one too.

    Attributes:
        engine: What trains it.
        net: The network of its lanes.
        block: The block.
        kind: A text that is equal for runs with equal networks; only their blocks are joined.
    """

    engine: Engine
    net: Net
    block: Block
    kind: str


@dataclass
class JointTraining:
    """Runs that take turns: one works until it has a block to train, then the next; when all wait, their blocks train.

    Attributes:
        running: Numbers of the runs that have not ended.
        current: Number of the run that works; -1: none.
        waiting: The block that each paused run waits for, by run.
        trained: What became of the blocks, by run; an exception where training failed.
        broken: Whether a run was interrupted, so that all end.
        gate: Held by the run that works.
    """

    running: list[int] = field(default_factory=list)
    current: int = 0
    waiting: dict[int, WaitingBlock] = field(default_factory=dict)
    trained: dict[int, Trained | Exception] = field(default_factory=dict)
    broken: bool = False
    gate: threading.Condition = field(default_factory=threading.Condition)

    def run(self, tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """Runs tasks, each in a thread of its own and one at a time; returns what they return, in their order."""
        results: dict[int, _Result] = {}
        errors: list[BaseException] = []

        def work(number: int) -> None:
            with self.gate:
                try:
                    self._await_turn(number)
                    results[number] = tasks[number]()
                except BaseException as error:
                    errors.append(error)
                    self.broken = True
                self.running.remove(number)
                self._pass_on()

        self.running, self.current = list(range(len(tasks))), 0
        threads = [threading.Thread(target=work, args=(number,)) for number in self.running]
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
        if errors:
            raise errors[0]
        return [results[number] for number in range(len(tasks))]

    def wrap_engine(self, engine: Engine, kind: str) -> Engine:
        """An engine that trains its blocks together with those of the other runs, where that is faster.

        Args:
            engine: What trains the blocks of a run that is alone.
            kind: A text that is equal for runs with equal networks.
        """

        def train(net: Net, block: Block) -> Trained:
            return self._train(WaitingBlock(engine, net, block, kind))

        return engine if engine.width == 1 or engine.min_lanes == 1 else replace(engine, train=train)

    def _train(self, block: WaitingBlock) -> Trained:
        """Pauses the run that works until its block is trained."""
        number = self.current
        self.waiting[number] = block
        self._pass_on()
        self._await_turn(number)
        trained = self.trained.pop(number)
        if isinstance(trained, Exception):
            raise trained
        return trained

    def _pass_on(self) -> None:
        """Lets the next run work; where all of them wait, trains their blocks first."""
        if self.running and len(self.waiting) == len(self.running) and not self.broken:
            self.trained.update(train_side_by_side(self.waiting))
            self.waiting.clear()
        ready = [number for number in self.running if number not in self.waiting]
        self.current = ready[0] if ready else -1
        self.gate.notify_all()

    def _await_turn(self, number: int) -> None:
        """Waits until a run may work; raises KeyboardInterrupt where all runs end."""
        self.gate.wait_for(lambda: self.broken or self.current == number)
        if self.broken:
            raise KeyboardInterrupt


def train_side_by_side(waiting: dict[int, WaitingBlock]) -> dict[int, Trained | Exception]:
    """Trains blocks, those of one form together as long as they fit the engine's width.

    Args:
        waiting: The block of each run, by run.

    Returns:
        What became of each block, by run; an exception where training failed.
    """
    groups: dict[Any, list[list[int]]] = {}
    for run, one in waiting.items():
        same_form = groups.setdefault(describe_form(one), [[]])
        if sum(len(waiting[other].block.start) for other in same_form[-1]) + len(one.block.start) > one.engine.width:
            same_form.append([])
        same_form[-1].append(run)
    done: dict[int, Trained | Exception] = {}
    for group in (group for same_form in groups.values() for group in same_form if group):
        first = waiting[group[0]]
        try:
            done.update(zip(group, train_together(first, [waiting[run].block for run in group]), strict=True))
        except Exception as error:  # each run gets the error that it would have got alone
            done.update(dict.fromkeys(group, error))
    return done


def describe_form(waiting: WaitingBlock) -> Any:
    """What blocks must have in common to be joined: equal networks and the same arithmetic for every lane."""
    block, local, rates = waiting.block, waiting.block.local, waiting.block.rates
    width = block.weight.shape[2]
    tensors = (block.anchor is None, block.offset is None, block.start.dtype, block.start.device.type)
    kinds = (bool(np.any(rates.pull)), bool(np.any(rates.decay + rates.pull)), bool(np.any(rates.lr)))
    same: Any = kinds if can_mix_rates(waiting.engine, local) else (rates.lr, rates.decay, rates.pull)
    network = (waiting.kind, waiting.net.layout, waiting.engine.name)
    alone = id(block) if local.has_code else None  # code that has state of its own may be another function
    return *network, alone, local.optimizer, local.momentum, width, block.sample, tensors, same


def train_together(first: WaitingBlock, blocks: Sequence[Block]) -> list[Trained]:
    """Trains blocks of one form as one block.

    Args:
        first: The first of them, with its engine and network.
        blocks: All of them.
    """
    if len(blocks) == 1:
        return [first.engine.train(first.net, blocks[0])]
    owner = np.repeat(np.arange(len(blocks)), [len(block.start) for block in blocks])
    steps = np.concatenate([block.steps for block in blocks])
    order = np.argsort(-steps, kind="stable")
    trained = first.engine.train(first.net, join_blocks(blocks, order))
    places = [torch.from_numpy(np.flatnonzero(owner[order] == number)) for number in range(len(blocks))]
    return [Trained(*(column[place.to(column.device)] for column in trained)) for place in places]


def join_blocks(blocks: Sequence[Block], order: IntArray) -> Block:
    """One block of the lanes of several blocks of one form.

    Args:
        blocks: The blocks.
        order: Order of all their lanes by falling steps, `[W]`.
    """
    first, take = blocks[0], torch.from_numpy(order)
    moved = bool((np.diff(order) != 1).any())

    def all_lanes(parts: list[Tensor], dim: int = 0) -> Tensor:
        whole = torch.cat(parts, dim)
        return whole.index_select(dim, take.to(whole.device)) if moved else whole

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        ends = [len(block.weight) for block in blocks]
        parts = [block.read(min(lo, end), min(hi, end)) for block, end in zip(blocks, ends, strict=True)]
        x, y = (all_lanes([_pad_steps(part, hi - lo) for part in column], 1) for column in zip(*parts, strict=True))
        return x, y

    def optional(rows: list[Tensor | None]) -> Tensor | None:
        return all_lanes([row for row in rows if row is not None]) if rows[0] is not None else None

    total = max(len(block.weight) for block in blocks)
    rates = [np.concatenate(column)[order] for column in zip(*map(_rates_of_lanes, blocks), strict=True)]
    same = all((column == column[0]).all() for column in rates)
    return first._replace(
        start=all_lanes([block.start for block in blocks]),
        counters=all_lanes([block.counters for block in blocks]),
        read=read,
        weight=all_lanes([_pad_steps(block.weight, total) for block in blocks], 1),
        steps=np.concatenate([block.steps for block in blocks])[order],
        keys=np.concatenate([block.keys for block in blocks])[order],
        anchor=optional([block.anchor for block in blocks]),
        offset=optional([block.offset for block in blocks]),
        lane_rates=None if same else Rates(*rates),
    )


def _pad_steps(part: Tensor, steps: int) -> Tensor:
    """`[s, ...]` -> `[steps, ...]` with zeros at the end, where none of its lanes trains."""
    return part if len(part) == steps else torch.cat([part, part.new_zeros(steps - len(part), *part.shape[1:])])


def _rates_of_lanes(block: Block) -> tuple[FloatArray, ...]:
    """A block's rates, `[W]` each."""
    return tuple(np.broadcast_to(np.asarray(rate, dtype=np.float64), len(block.start)) for rate in block.rates)
