"""Trains models at the server by distillation. A model (the student) learns from the predictions of others (teachers).

A *world* is one combination of a seed and a fold of the data.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from fedray.components.servers import Rows, group_uploads, keep_uploads
from fedray.core import rng
from fedray.core.method import MOMENTUM, Ask, EngineOf, Join, PartStep, Server, StudentEngine, Teaching, Train
from fedray.core.types import EVALUATED_ROWS, Net, State, Stats, Uploads
from fedray.models.net import per_sample

# ---------------------------------------------------------------------------------------------------------------------
# Students and teachers computed by torch, for every network.


def ask_model(net: Net, row: Tensor, x: Tensor) -> Tensor:
    """Returns the raw outputs `[n, C]` (float64) of one model `[d]` for the inputs `[n, ...]`. Dropout is off."""
    net.module.eval()
    views = net.layout.views(row)
    with torch.no_grad():
        parts = [functional_call(net.module, views, (part,)) for part in torch.split(x, EVALUATED_ROWS)]
    return torch.cat(parts).double()


def begin_student(net: Net, start: Tensor, teaching: Teaching) -> Train:
    """Returns a function that trains a student with torch. The student starts as the model `start`, `[d]`.

    `StudentEngine` describes the returned function.

    Example:
        >>> from torch import nn
        >>> from fedray.models.net import net_of
        >>> net = net_of(lambda: nn.Linear(1, 2), "own", "cross_entropy", 2)
        >>> x, start = torch.ones(3, 1), net.init(0)
        >>> train = begin_student(net, start, Teaching(x, torch.tensor([[0.0, 1.0]]).expand(3, 2), 3, "momentum"))
        >>> student = train([torch.arange(3)] * 50, [0.5] * 50)
        >>> bool(ask_model(net, student, x).softmax(-1)[0, 1] > 0.9)
        True
    """
    net.module.eval()
    tensors = [view.clone() for view in net.layout.views(start).values()]
    params = [t.requires_grad_() for t in tensors[: net.layout.trainable_tensors]]
    classes = net.objective == "cross_entropy"
    names, velocity, adam = net.layout.names, [torch.zeros_like(p) for p in params], torch.optim.Adam(params)

    def train(batches: Sequence[Tensor], rates: Sequence[float]) -> Tensor:
        for batch, rate in zip(batches, rates, strict=True):
            out = functional_call(net.module, dict(zip(names, tensors, strict=True)), (teaching.x[batch],))
            target = teaching.target[batch]
            each = -(target * out.log_softmax(-1)).sum(-1) if classes else per_sample("half_mse", out, target)
            grads = torch.autograd.grad(each.mean(), params)
            if teaching.optimizer == "momentum":
                with torch.no_grad():
                    torch._foreach_mul_(velocity, MOMENTUM)
                    torch._foreach_add_(velocity, list(grads))
                    torch._foreach_add_(params, velocity, alpha=-rate)
                continue
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            adam.param_groups[0]["lr"] = rate
            adam.step()
        return torch.cat([t.detach().reshape(-1) for t in tensors])

    return train


TORCH = StudentEngine(ask_model, begin_student)


def use_torch(_net: Net) -> StudentEngine:
    """Returns the engine that trains students with torch. It can train every network."""
    return TORCH


# ---------------------------------------------------------------------------------------------------------------------
# Distillation at the server: a student learns from teachers on inputs without labels.
#
# The student starts from the first teacher, the mean model, and learns the teachers' average prediction by SGD with
# momentum. The result is the mean of the student's weights at the ends of the epochs in the second half of training
# (SWA: Izmailov et al. 2018). In a classification the loss is the cross entropy against the averaged probabilities p,
# sharpened to `p^(1/T) / sum p^(1/T)` (FedBE section 4.2). In a regression the loss is the squared error against the
# averaged outputs. Normalization layers keep the statistics of the first teacher, and dropout is off.


@dataclass(frozen=True)
class Distil:
    """The settings of distillation: how a model (the student) learns from the predictions of others (teachers).

    Attributes:
        epochs: Number of passes over the server's inputs.
        lr: Learning rate, above 0.
        batch_size: Number of inputs per step.
        temperature: Temperature of the teachers' probabilities, above 0. If it is below 1, probabilities are sharpened.
    """

    epochs: int = 20
    lr: float = 0.01
    batch_size: int = 32
    temperature: float = 0.5


def train_student(
    net: Net, how: Distil, x: Tensor, teachers: Tensor, key: rng.Keys, *, engine: StudentEngine = TORCH
) -> Tensor:
    """Trains a model (the student) on the mean prediction of others (teachers). Returns the student, `[d]`.

    The student starts as the first of the S teachers, `[S, d]`. It learns on the inputs `x`, `[n, ...]`, in an order
    that is drawn from `key`. The result is the mean of the student's weights after each epoch in the second half
    of training.
    """
    target = average_teachers(net, how, x, teachers, ask=engine.ask)
    train = engine.begin(net, teachers[0], Teaching(x, target, how.batch_size, "momentum"))
    total, kept = torch.zeros_like(teachers[0], dtype=torch.float64), 0
    for epoch in range(how.epochs):
        order = torch.from_numpy(rng.permutations(rng.fresh(key, epoch), len(x)))
        batches = torch.split(order, how.batch_size)
        student = train(batches, [how.lr] * len(batches))
        if epoch >= how.epochs // 2:
            total += student.double()
            kept += 1
    return (total / kept).to(teachers.dtype) if kept else teachers[0]


def average_teachers(net: Net, how: Distil, x: Tensor, teachers: Tensor, *, ask: Ask = ask_model) -> Tensor:
    """Returns the mean prediction of teachers for n inputs, `[n, C]`.

    The teachers are S models of `net`, `[S, d]`. In a classification, the result holds probabilities, sharpened by the
    temperature in `how`. In a regression, it holds outputs. The other settings in `how` are not used.

    Example:
        >>> from torch import nn
        >>> from fedray.models.net import net_of
        >>> net = net_of(lambda: nn.Linear(1, 2), "own", "cross_entropy", 2)
        >>> teachers = torch.stack([net.init(0), net.init(1)])
        >>> average_teachers(net, Distil(temperature=1.0), torch.ones(3, 1), teachers).sum(1)
        tensor([1., 1., 1.])
    """
    total = torch.zeros(len(x), net.outputs, dtype=torch.float64)
    for row in teachers:
        out = ask(net, row, x)
        total += out.softmax(-1) if net.objective == "cross_entropy" else out
    mean = total / len(teachers)
    if net.objective == "cross_entropy":
        mean = mean.pow(1.0 / how.temperature)
        mean /= mean.sum(-1, keepdim=True)
    return mean.to(teachers.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Ensemble distillation. The server's model learns from all uploads of a round, on inputs that no client has.
#
# Source: Lin, Kong, Stich, Jaggi, *Ensemble Distillation for Robust Model Fusion in Federated Learning*, NeurIPS 2020,
# section 3. The student starts from the model that an inner server computes, such as the mean of the uploads. The
# student is scored during its training on the server's own samples, and the version with the best score is kept. If the
# uploads have several architectures, each architecture has its own student, and all students have the same target.

CHECKED_STEPS = 100  # steps between two scores on the server's samples, as in the authors' code


@dataclass(frozen=True)
class Fusion:
    """The settings by which the server's model (the student) learns from the predictions of all uploads of a round.

    Attributes:
        steps: Largest number of steps. With 0, the student stays as it is at the start.
        lr: Learning rate of Adam at the start, above 0. The rate falls to 0 along a cosine.
        batch_size: Number of inputs per step.
        patience: Number of steps without a better score after which the training stops.
        teacher: Rule by which the uploads are combined: `mean_logits` or `confidence`.
    """

    steps: int = 10_000
    lr: float = 1e-3
    batch_size: int = 128
    patience: int = 1000
    teacher: str = "mean_logits"


class ServerRows(NamedTuple):
    """The server's own samples, in the form in which a network receives them.

    Attributes:
        inputs: Inputs without labels on which students learn, `[n, ...]`.
        x: Inputs of labeled samples, `[v, ...]`. A student's score on these samples decides when the student's training
            stops. v may be 0.
        y: The labels or targets of `x`, `[v, ...]`.
    """

    inputs: Tensor
    x: Tensor
    y: Tensor


class Student(NamedTuple):
    """A student (a model that learns from others), and the teachers with the same architecture.

    Attributes:
        net: The network of the student and the teachers.
        start: The model from which the student starts, `[d]`.
        uploads: The S uploads with this network, which are teachers, `[S, d]`. S may be 0.

    Example:
        >>> from torch import nn
        >>> from fedray.models.net import net_of
        >>> nets = [net_of(lambda b=b: nn.Linear(1, 2, b), "own", "cross_entropy", 2) for b in (True, False)]
        >>> students = [Student(net, net.init(0), torch.stack([net.init(1), net.init(2)])) for net in nets]
        >>> combine_teachers("mean_logits", torch.ones(3, 1), students).sum(1)
        tensor([1., 1., 1.])
    """

    net: Net
    start: Tensor
    uploads: Tensor


def combine_teachers(kind: str, x: Tensor, students: Sequence[Student], *, engine_of: EngineOf = use_torch) -> Tensor:
    """Combines the predictions of all students' uploads. Returns the target from which all students learn, `[n, C]`.

    The target for each of n inputs is `softmax` of the weighted mean of the uploads' logits. In a regression, it is the
    mean of the outputs. With the kind `mean_logits`, all uploads have equal weights. With the kind `confidence`, the
    weight of an upload for an input is the variance of its logits over the classes (Cho et al. 2022). This kind is for
    classifications only. At least one student must have an upload.
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
    """Trains students one after another, and returns the trained model `[d]` of each.

    Every student learns from the uploads of all students. All students get the inputs in the same order, which is drawn
    from `key`.
    """
    target = combine_teachers(how.teacher, rows.inputs, students, engine_of=engine_of)
    return [
        follow_teacher(one.net, how, one.start, target, rows=rows, key=key, engine=engine_of(one.net))
        for one in students
    ]


def follow_teacher(
    net: Net, how: Fusion, start: Tensor, target: Tensor, *, rows: ServerRows, key: rng.Keys, engine: StudentEngine
) -> Tensor:
    """Trains a student on the server's n inputs and their targets, `[n, C]`, and returns the student, `[d]`.

    The student starts as the model `start`, `[d]`. Its version with the best score on the labeled samples is returned,
    or the last version if there are no labeled samples. Buffers of normalization layers do not change, and dropout is
    off. The order of the inputs is drawn from `key`.
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
    """Yields batches of indices of inputs. Every pass over the inputs has a new random order."""
    order = torch.empty(0, dtype=torch.int64)
    for step in range(1, how.steps + 1):
        if not len(order):
            order = torch.from_numpy(rng.permutations(rng.fresh(key, step), inputs))
        yield order[: how.batch_size]
        order = order[how.batch_size :]


def score_model(net: Net, row: Tensor, x: Tensor, y: Tensor, *, ask: Ask = ask_model) -> float:
    """Returns the accuracy of a model `[d]` on labeled samples. In a regression, it returns minus the mean loss.

    If there are no samples, it returns 0.
    """
    if not len(y):
        return 0.0
    out = ask(net, row, x)
    if net.objective == "cross_entropy":
        return float((out.argmax(-1) == y).double().mean())
    return -float(per_sample(net.objective, out, y).mean())


Fuse = Callable[[int, int, int, Tensor, Tensor], Tensor]  # (world, model, round, start [d], teachers [S, d]) -> [d]


def distilling_server(base: Server, rows: Rows, fuse: Fuse) -> Server:
    """Returns a server that makes the step of the server `base`, and then trains each model by distillation.

    The teachers of a model are the round's uploads of this model, in the order of client ids. `fuse` takes the
    world, the index of the model, the round, the model after the step of `base`, and the S teachers, `[S, d]`. It
    returns the next model.
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
    """Returns a server that works like `base`, but whose statistics also hold every upload."""

    def reduce(uploads: Uploads) -> Stats:
        return {**base.reduce(uploads), "uploads": keep_uploads(uploads, uploads.delta)}

    return Server(base.init, reduce, base.step, keeps=True)


FuseAll = Callable[[int, int, int, list[Student]], list[Tensor]]  # (world, model, round, students) -> `[d]` of each


def join_architectures(nets: Sequence[Net], rows: Rows, fuse: FuseAll) -> Join:
    """Returns a function for `Method.join` that trains each of several networks from the uploads of all networks.

    Each network has its own federated training, whose server was made by `keeping_server`. `rows` is the order of the
    models in the states of all these trainings. `fuse` takes the world, the index of the model, the round, and a
    `Student` for each network. The student starts as the network's model after the server's step. `fuse` returns each
    network's next model.
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
    """Returns for each model of each world its S uploads, `[S, d]`, in the order of client ids."""
    found = group_uploads(rows, stats["uploads"])
    return {row: torch.stack([before.models[row] + delta for _, delta in each]) for row, each in found.items()}
