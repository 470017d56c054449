"""Ensemble distillation: the server's model learns from all uploads at once, on inputs that no client has.

Source: Lin, Kong, Stich, Jaggi, *Ensemble Distillation for Robust Model Fusion in Federated Learning*, NeurIPS 2020,
section 3. The student starts at what an inner server made of the uploads. The teacher is `softmax(mean_k z_k(x))`, an
average of logits, or `softmax(sum_k w_k(x) z_k(x))` with weights in proportion to the variance of a client's logits
over the classes (Cho et al. 2022). Adam at a cosine rate follows it; the student stays where the score on the server's
own rows was best. The uploads may be of several architectures, which then have a student each and the same teacher.

Example:
    >>> from torch import nn
    >>> from fedray.models.net import net_of
    >>> nets = [net_of(lambda bias=bias: nn.Linear(1, 2, bias), "own", "cross_entropy", 2) for bias in (True, False)]
    >>> students = [Student(net, net.init(0), torch.stack([net.init(1), net.init(2)])) for net in nets]
    >>> combine_teachers("mean_logits", torch.ones(3, 1), students).sum(1)
    tensor([1., 1., 1.])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.components.aggregation import Rows, group_uploads, keep_uploads
from fedray.components.student import ask_model, use_torch
from fedray.core import rng
from fedray.core.method import Server
from fedray.core.parts import Join, PartStep
from fedray.core.student import Ask, EngineOf, StudentEngine, Teaching
from fedray.core.types import Net, State, Stats, Uploads
from fedray.models.loss import per_sample

CHECKED_STEPS = 100  # from one look at the server's rows to the next, as in the authors' code


@dataclass(frozen=True)
class Fusion:
    """How the student learns.

    Attributes:
        steps: batches at most; 0: it stays where it starts.
        lr: learning rate of Adam at the start, above 0; it falls to 0 along a cosine.
        batch_size: inputs of a step.
        patience: steps without a better score after which it stops.
        teacher: `mean_logits` or `confidence`.
    """

    steps: int = 10_000
    lr: float = 1e-3
    batch_size: int = 128
    patience: int = 1000
    teacher: str = "mean_logits"


class ServerRows(NamedTuple):
    """What the server has of its own, as a network gets it.

    Attributes:
        inputs: without labels, `[n, ...]`; the student learns on them.
        x: inputs with labels, `[v, ...]`; they say when it stops. There may be none.
        y: their labels or targets, `[v, ...]`.
    """

    inputs: Tensor
    x: Tensor
    y: Tensor


class Student(NamedTuple):
    """A student, and those of its teachers that have its architecture.

    Attributes:
        net: The network of both.
        start: Where the student starts, `[d]`.
        uploads: What clients have sent, `[S, d]`; there may be none.
    """

    net: Net
    start: Tensor
    uploads: Tensor


def combine_teachers(kind: str, x: Tensor, students: Sequence[Student], *, engine_of: EngineOf = use_torch) -> Tensor:
    """What students aim at, `[n, C]`: the uploads' joint probabilities, or their mean outputs in a regression.

    Args:
        kind: `mean_logits` or `confidence`, which is for classes.
        x: inputs `[n, ...]`.
        students: with the uploads of each architecture; at least one upload in all.
        engine_of: what computes the models of a network.
    """
    net, dtype = students[0].net, students[0].start.dtype
    total, weights = torch.zeros(len(x), net.outputs, dtype=torch.float64), torch.zeros(len(x), 1, dtype=torch.float64)
    for student in students:
        ask = engine_of(student.net).ask
        for row in student.uploads:
            out = ask(student.net, row, x)
            sure = out.var(-1, correction=0, keepdim=True) + 1e-12 if kind == "confidence" else torch.ones_like(weights)
            total += sure * out
            weights += sure
    mean = total / weights
    return (mean.softmax(-1) if net.objective == "cross_entropy" else mean).to(dtype)


def fuse_models(
    how: Fusion, students: Sequence[Student], *, rows: ServerRows, key: rng.Keys, engine_of: EngineOf = use_torch
) -> list[Tensor]:
    """The distilled row `[d]` of each student, who learn one after another.

    Args:
        how: how a student learns.
        students: with their teachers; all learn the answer of the ensemble of all of these.
        rows: of the server.
        key: the address of the order of the inputs, which is the same for all students.
        engine_of: what computes the models of a network.
    """
    target = combine_teachers(how.teacher, rows.inputs, students, engine_of=engine_of)
    return [
        follow_teacher(one.net, how, one.start, target, rows=rows, key=key, engine=engine_of(one.net))
        for one in students
    ]


def follow_teacher(
    net: Net, how: Fusion, start: Tensor, target: Tensor, *, rows: ServerRows, key: rng.Keys, engine: StudentEngine
) -> Tensor:
    """A student's row `[d]` behind its training; buffers of normalization layers stay the start's, and dropout is off.

    Args:
        net: its network.
        how: how it learns.
        start: where it starts, `[d]`.
        target: what it aims at on the inputs of the server, `[n, C]`.
        rows: of the server.
        key: the address of the order of the inputs.
        engine: computes it.
    """
    train = engine.begin(net, start, Teaching(rows.inputs, target, how.batch_size, "adam"))
    batches, has_labels = _deal_batches(how, len(target), key), len(rows.y) > 0
    best, best_step, best_score = start, 0, score_model(net, start, rows.x, rows.y, ask=engine.ask)
    each = min(CHECKED_STEPS, how.patience) if has_labels else max(1, how.steps)
    for first in range(0, how.steps, each):
        step = min(first + each, how.steps)
        rates = [how.lr * (1 + math.cos(math.pi * s / how.steps)) / 2 for s in range(first, step)]
        student = train(list(islice(batches, len(rates))), rates)
        score = score_model(net, student, rows.x, rows.y, ask=engine.ask)
        if score > best_score or not has_labels:
            best, best_step, best_score = student, step, score
        if step - best_step >= how.patience:
            break
    return best


def _deal_batches(how: Fusion, inputs: int, key: rng.Keys) -> Iterator[Tensor]:
    """Batches of one order of all inputs after another."""
    order = torch.empty(0, dtype=torch.int64)
    for step in range(1, how.steps + 1):
        if not len(order):
            order = torch.from_numpy(rng.permutations(rng.fresh(key, step), inputs))
        yield order[: how.batch_size]
        order = order[how.batch_size :]


def score_model(net: Net, row: Tensor, x: Tensor, y: Tensor, *, ask: Ask = ask_model) -> float:
    """Accuracy of a model on labelled rows, or its loss below 0 in a regression; 0 without rows.

    Args:
        net: its network.
        row: the model, `[d]`.
        x: network inputs, `[v, ...]`.
        y: labels or targets, `[v, ...]`.
        ask: computes its outputs.
    """
    if not len(y):
        return 0.0
    out = ask(net, row, x)
    if net.objective == "cross_entropy":
        return float((out.argmax(-1) == y).double().mean())
    return -float(per_sample(net.objective, out, y).mean())


Fuse = Callable[[int, int, int, Tensor, Tensor], Tensor]  # (world, model, round, start [d], teachers [S, d]) -> [d]


def distilling_server(base: Server, rows: Rows, fuse: Fuse) -> Server:
    """An inner server whose new models go on to learn from the uploads that made them.

    Args:
        base: the inner server.
        rows: the rows of the state.
        fuse: makes the next model of the inner server's and of the uploads, in the order of their clients.
    """
    kept = keeping_server(base)

    def step(state: State, stats: Stats, t: int) -> State:
        after = base.step(state, stats, t)
        models = after.models.clone()
        for row, teachers in _find_uploads(rows, state, stats).items():
            world, k = divmod(row, rows.models)
            models[row] = fuse(world, k, t, after.models[row], teachers)
        return after._replace(models=models)

    return kept._replace(step=step)


def keeping_server(base: Server) -> Server:
    """A server whose statistics hold the uploads too."""

    def reduce(uploads: Uploads) -> Stats:
        return {**base.reduce(uploads), "uploads": keep_uploads(uploads, uploads.delta)}

    return Server(base.init, reduce, base.step, keeps=True)


FuseAll = Callable[[int, int, int, list[Student]], list[Tensor]]  # (world, model, round, students) -> `[d]` of each


def join_architectures(nets: Sequence[Net], rows: Rows, fuse: FuseAll) -> Join:
    """What the networks of a stack learn from all uploads together, each of them with a student of its own.

    Args:
        nets: one for each part; their servers are `keeping_server`s.
        rows: the rows of a part's state, the same of all parts.
        fuse: makes the next models of those behind the servers' steps, and of all uploads.
    """

    def join(t: int, steps: Sequence[PartStep]) -> list[Tensor]:
        models = [one.after.models.clone() for one in steps]
        known = [_find_uploads(rows, one.before, one.stats) if one.stats else {} for one in steps]
        for row in sorted({row for each in known for row in each}):
            world, k = divmod(row, rows.models)
            students = [
                Student(net, one.after.models[row], each.get(row, one.after.models[:0]))
                for net, one, each in zip(nets, steps, known, strict=True)
            ]
            for part, taught in zip(models, fuse(world, k, t, students), strict=True):
                part[row] = taught
        return models

    return join


def _find_uploads(rows: Rows, before: State, stats: Stats) -> dict[int, Tensor]:
    """The uploaded models of each row of the state, `[S, d]`, in the order of their clients."""
    found = group_uploads(rows, stats["uploads"])
    return {row: torch.stack([before.models[row] + delta for _, delta in each]) for row, each in found.items()}
