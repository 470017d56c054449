"""Ensemble distillation: the server's model learns from all uploads at once, on inputs that no client has.

Source: Lin, Kong, Stich, Jaggi, *Ensemble Distillation for Robust Model Fusion in Federated Learning*, NeurIPS 2020,
section 3. The student starts at what an inner server made of the uploads. The teacher is `softmax(mean_k z_k(x))`, an
average of logits, or `softmax(sum_k w_k(x) z_k(x))` with weights in proportion to the variance of a client's logits
over the classes (Cho et al. 2022). Adam at a cosine rate follows it; the student stays where the score on the server's
own rows was best.

Example:
    >>> from torch import nn
    >>> from fedray.models.net import net_of
    >>> net = net_of(lambda: nn.Linear(1, 2), "own", "cross_entropy", 2)
    >>> teachers = torch.stack([net.init(0), net.init(1)])
    >>> combine_teachers(net, "mean_logits", torch.ones(3, 1), teachers).sum(1)
    tensor([1., 1., 1.])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from fedray.components.aggregation import Rows, keep_uploads
from fedray.components.distillation import ask_model, loss_to_teachers
from fedray.core import rng
from fedray.core.method import Server
from fedray.core.types import Net, State, Stats, Uploads
from fedray.models.loss import per_sample

CHECKED_STEPS = 100  # from one look at the server's rows to the next, as in the authors' code
TEACHERS = ("mean_logits", "confidence")


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


def combine_teachers(net: Net, kind: str, x: Tensor, teachers: Tensor) -> Tensor:
    """What the student aims at, `[n, C]`: the teachers' joint probabilities, or their mean outputs in a regression.

    Args:
        net: the network.
        kind: `mean_logits` or `confidence`, which is for classes.
        x: inputs `[n, ...]`.
        teachers: `[S, d]`.
    """
    total, weights = torch.zeros(len(x), net.outputs, dtype=torch.float64), torch.zeros(len(x), 1, dtype=torch.float64)
    for row in teachers:
        out = ask_model(net, row, x)
        weight = out.var(-1, correction=0, keepdim=True) + 1e-12 if kind == "confidence" else torch.ones_like(weights)
        total += weight * out
        weights += weight
    mean = total / weights
    return (mean.softmax(-1) if net.objective == "cross_entropy" else mean).to(teachers.dtype)


def fuse_models(net: Net, how: Fusion, start: Tensor, teachers: Tensor, *, rows: ServerRows, key: rng.Keys) -> Tensor:
    """The distilled row `[d]`; buffers of normalization layers stay the start's, and dropout is off.

    Args:
        net: the network of student and teachers.
        how: how the student learns.
        start: where it starts, `[d]`.
        teachers: `[S, d]`.
        rows: of the server.
        key: the address of the order of the inputs.
    """
    net.module.eval()
    target = combine_teachers(net, how.teacher, rows.inputs, teachers)
    tensors = [view.clone() for view in net.layout.views(start).values()]
    params = [t.requires_grad_() for t in tensors[: _count_trainable(net)]]
    optimizer = torch.optim.Adam(params, how.lr)
    course = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, how.steps))
    best, best_step, best_score = start, 0, _score(net, start, rows)
    order, each = torch.empty(0, dtype=torch.int64), min(CHECKED_STEPS, how.patience)
    for step in range(1, how.steps + 1):
        if not len(order):
            order = torch.from_numpy(rng.permutations(rng.fresh(key, step), len(target)))
        batch, order = order[: how.batch_size], order[how.batch_size :]
        out = functional_call(net.module, dict(zip(net.layout.names, tensors, strict=True)), (rows.inputs[batch],))
        grads = torch.autograd.grad(loss_to_teachers(net, out, target[batch]), params)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
        course.step()
        if step == how.steps or (len(rows.y) and step % each == 0):
            student = torch.cat([t.detach().reshape(-1) for t in tensors])
            score = _score(net, student, rows)
            if score > best_score or not len(rows.y):
                best, best_step, best_score = student, step, score
            if step - best_step >= how.patience:
                break
    return best


def _count_trainable(net: Net) -> int:
    """How many tensors of a row are trained: they come first."""
    numbers, count = 0, 0
    for size in net.layout.sizes:
        numbers += size
        count += numbers <= net.layout.trainable
    return count


def _score(net: Net, row: Tensor, rows: ServerRows) -> float:
    """Accuracy of a model on the server's labelled rows, or its loss below 0 in a regression; 0 without such rows."""
    if not len(rows.y):
        return 0.0
    out = ask_model(net, row, rows.x)
    if net.objective == "cross_entropy":
        return float((out.argmax(-1) == rows.y).double().mean())
    return -float(per_sample(net.objective, out, rows.y).mean())


Fuse = Callable[[int, int, int, Tensor, Tensor], Tensor]  # (world, model, round, start [d], teachers [S, d]) -> [d]


def distilling_server(base: Server, rows: Rows, fuse: Fuse) -> Server:
    """An inner server whose new models go on to learn from the uploads that made them.

    Args:
        base: the inner server.
        rows: the rows of the state.
        fuse: makes the next model of the inner server's and of the uploads, in the order of their clients.
    """

    def reduce(uploads: Uploads) -> Stats:
        return {**base.reduce(uploads), "uploads": keep_uploads(uploads, uploads.delta)}

    def step(state: State, stats: Stats, t: int) -> State:
        after, kept = base.step(state, stats, t), stats["uploads"].rows
        models, teachers = after.models.clone(), defaultdict(list)
        for key in sorted(kept):
            row = key[0] * rows.models + key[1]
            teachers[row].append(state.models[row] + kept[key])
        for row, known in teachers.items():
            world, k = divmod(row, rows.models)
            models[row] = fuse(world, k, t, after.models[row], torch.stack(known))
        return after._replace(models=models)

    return Server(base.init, reduce, step, keeps=True)
