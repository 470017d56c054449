"""What a worker does for a stack: one host a part, and the out-of-fold features, which never leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedray.core.exact_sum import merge_stats
from fedray.core.method import JobRows
from fedray.core.types import EVALUATED_ROWS, IntArray, SizedPlan, State, Stats
from fedray.data.stacking import Features, LeaveOut
from fedray.metrics import ensemble
from fedray.runtime.classifiers import FittedVotes
from fedray.runtime.messages import in_order
from fedray.runtime.worker import Worker
from fedray.simulation.parts import is_trained, read_part, split_plan
from fedray.simulation.study import Part, Study
from fedray.training.choice import Engine, shareable

TINY = np.finfo(np.float64).tiny  # in a logarithm for 0


def make_worker(study: Study, device: str = "cpu", threads: int = 1) -> Worker:
    """The host of a study; that of a stack asks the hosts of its parts."""
    return Worker(study, device, threads, StackWorkers(study, device, threads) if study.parts else None)


class StackWorkers:
    """The hosts of a stack's parts, and the features of the clients that were met here."""

    def __init__(self, study: Study, device: str, threads: int) -> None:
        self.study = study
        self.bases = [part for part in study.parts if isinstance(part.study.shards, LeaveOut)]
        self._host = {
            i: Worker(_fed(part, self.features), device, threads)
            for i, part in enumerate(study.parts)
            if part.voter is None
        }
        self.hosts = list(self._host.values())
        if not all(shareable(host.engine) for host in self.hosts):  # the threads of one ask the networks of the others
            for host in self.hosts:
                host.threads = 1
        self._votes = FittedVotes(self.bases)
        self._state: State | None = None  # of the newest training
        self._kept: dict[tuple[int, int], Tensor] = {}

    @property
    def engine(self) -> Engine:
        """That of the first base."""
        return self.hosts[0].engine

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Trains jobs part by part; the statistics of part i are called `i/...`."""
        self._meet(state)
        parts = list(split_plan(self.study, jobs.plan))
        if not parts:
            return {}, JobRows(np.empty(0))
        stats: list[Stats] = []
        rows: list[JobRows] = []
        for i, part, places, plan in parts:
            own, phase = jobs.take(places)._replace(plan=plan), part.study.method.phase
            done, here = self._host[i].train(t - part.begins, own, read_part(state, part), phase)
            stats.append({f"{i}/{name}": value for name, value in done.items()})
            rows.append(here)
        return merge_stats(stats), in_order([places for _, _, places, _ in parts], rows)

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Raw outputs on raw inputs `[n, ...]` of a world, `[1 + P, n, C]`: the stack's, then its sub models'."""
        whole = State(rows[:1].cpu(), counters[:1].cpu(), {})
        outputs = [self._base(whole, i, world, x) for i in range(len(self.bases))]
        each = [ensemble.probabilities(one.numpy()).mean(axis=0) for one in outputs]
        answer = torch.from_numpy(np.log(np.maximum(np.mean(each, axis=0), TINY)))
        if len(self.bases) < len(self.study.parts) and is_trained(whole.counters[0]):
            meta = read_part(whole, self.study.parts[-1])
            side = torch.from_numpy(np.concatenate(each, axis=1).astype(np.float32))
            answer = self.hosts[-1].forward(meta.models, meta.counters, world, side)[0].cpu()
        return torch.cat([answer[None].double(), *(one.double() for one in outputs)])

    def state(self) -> dict[str, Tensor]:
        """The private vectors of all parts; those of part i are called `i/...`."""
        return {f"{i}/{name}": v for i, host in self._host.items() for name, v in host.private.state().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Forgets the private vectors and takes these."""
        for i, host in self._host.items():
            own = f"{i}/"
            host.private.restore({name.removeprefix(own): v for name, v in state.items() if name.startswith(own)})

    def features(self, world: int, client: int) -> Tensor:
        """A client's training rows as the sub models answer that have not seen them, `[n, bases * C]` float32."""
        if (world, client) not in self._kept:
            self._kept[world, client] = self._features(world, client)
        return self._kept[world, client]

    def _features(self, world: int, client: int) -> Tensor:
        assert self._state is not None
        fetched = self.study.shards.fetch(np.array([world]), np.array([client]))
        x = fetched.x[fetched.rows[0, : int(fetched.size[0])]]
        out = np.zeros((len(x), len(self.bases), self.study.classes), np.float32)
        here = slice(world, world + 1)
        whole = State(self._state.models[here], self._state.counters[here], {})
        for fold, rows in _folds(self.bases[0].study.shards, world, client, len(x)):
            for i in range(len(self.bases)):
                said = self._base(whole, i, world, x[torch.from_numpy(rows)], fold)
                out[rows, i] = ensemble.probabilities(said.numpy()).mean(axis=0)
        return torch.from_numpy(out.reshape(len(x), -1))

    def _base(self, whole: State, i: int, world: int, x: Tensor, fold: int | None = None) -> Tensor:
        """Raw outputs `[F * x, n, C]` of a base's sub models, or of one fold's, from the row of one world."""
        part = self.bases[i]
        if part.voter is not None:
            folds = range(part.folds) if fold is None else [fold]
            votes = [self._votes.shares(i, world, folds, one) for one in x.split(EVALUATED_ROWS)]
            return torch.from_numpy(np.log(np.maximum(np.concatenate(votes, axis=1), TINY)))
        host, own, k = self._host[i], read_part(whole, part), part.models
        here = slice(None) if fold is None else slice(fold * k, (fold + 1) * k)
        where = world * part.folds
        pieces = [host.forward(own.models[here], own.counters[here], where, one) for one in x.split(EVALUATED_ROWS)]
        return torch.cat(pieces, dim=1).cpu()

    def _meet(self, state: State) -> None:
        """Forgets the features of other sub models."""
        if self._state is not None and self._kept:
            same = all(
                torch.equal(a, b)
                for part in self.bases
                for a, b in zip(read_part(state, part)[:2], read_part(self._state, part)[:2], strict=True)
            )
            if not same:
                self._kept = {}
        self._state = state


def _folds(shards: object, world: int, client: int, size: int) -> Iterator[tuple[int, IntArray]]:
    """Which of a client's rows belong to each fold, where there are any."""
    assert isinstance(shards, LeaveOut)
    fold = shards.fold_of(world, client, size)
    for f in np.unique(fold).tolist():
        yield f, np.flatnonzero(fold == f)


def _fed(part: Part, compute: Callable[[int, int], Tensor]) -> Study:
    """A part's study; the meta model's reads features that are computed here."""
    shards = part.study.shards
    if not isinstance(shards, Features):
        return part.study
    return replace(part.study, shards=Features(shards.whole, shards.width, compute))
