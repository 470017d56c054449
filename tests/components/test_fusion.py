"""Ensemble distillation at the server: what the teacher says, and when the student stops."""

from __future__ import annotations

import math

import pytest
import torch

from fedray.components.distillation import Fusion, ServerRows, Student, ask_model, combine_teachers, fuse_models
from fedray.core import rng
from fedray.core.method import StudentEngine, Teaching, Train
from fedray.core.types import Net
from fedray.models.nets import build_net

KEY = rng.keys(0, "test")


def small_net(norm: str | None = None) -> Net:
    return build_net("mlp", (3,), 4, "cross_entropy", hidden=[8], norm=norm)


def inputs(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


def rows_of(net: Net, x: torch.Tensor, labels_of: torch.Tensor | None = None) -> ServerRows:
    """The server's inputs, and labelled rows on which a given model is always right."""
    if labels_of is None:
        return ServerRows(x, x[:0], torch.empty(0, dtype=torch.int64))
    return ServerRows(x, x, ask_model(net, labels_of, x).argmax(-1))


def combine(net: Net, kind: str, x: torch.Tensor, teachers: torch.Tensor) -> torch.Tensor:
    """What uploads of one architecture say together."""
    return combine_teachers(kind, x, [Student(net, teachers[0], teachers)])


def fuse(net: Net, how: Fusion, start: torch.Tensor, teachers: torch.Tensor, *, rows: ServerRows) -> torch.Tensor:
    """The student of the one architecture."""
    return fuse_models(how, [Student(net, start, teachers)], rows=rows, key=KEY)[0]


@pytest.mark.parametrize("kind", ["mean_logits", "confidence"])
def test_one_teacher_says_what_it_says_and_copies_change_nothing(kind: str) -> None:
    net, x = small_net(), inputs(20)
    teachers = torch.stack([net.init(k) for k in range(3)])
    alone = combine(net, kind, x, teachers[:1])
    torch.testing.assert_close(alone, ask_model(net, teachers[0], x).softmax(-1).float())
    both, twice = (combine(net, kind, x, t) for t in (teachers, torch.cat([teachers, teachers]).flip(0)))
    torch.testing.assert_close(both, twice)


def test_the_mean_is_of_logits_and_not_of_probabilities() -> None:
    """A constant that a teacher adds to all its logits changes nothing."""
    net, x = small_net(), inputs(20)
    teachers = torch.stack([net.init(k) for k in range(3)])
    said = torch.stack([ask_model(net, row, x) for row in teachers])
    torch.testing.assert_close(combine(net, "mean_logits", x, teachers), said.mean(0).softmax(-1).float())
    moved = teachers.clone()
    moved[1, -4:] += 5.0  # the biases of the last layer
    assert not torch.equal(teachers, moved)
    torch.testing.assert_close(combine(net, "mean_logits", x, moved), combine(net, "mean_logits", x, teachers))


def test_a_teacher_that_says_the_same_of_all_classes_has_no_weight_by_confidence() -> None:
    net, x = small_net(), inputs(20)
    sure, flat = net.init(0), torch.zeros(net.layout.d)
    alone = combine(net, "confidence", x, sure[None])
    both = torch.stack([sure, flat])
    torch.testing.assert_close(combine(net, "confidence", x, both), alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(combine(net, "mean_logits", x, both), alone, atol=1e-3)


def test_the_student_comes_near_the_teachers() -> None:
    net, x = small_net(), inputs(60, 2)
    teachers = torch.stack([net.init(k) for k in range(1, 5)])
    start = net.init(0)
    target = combine(net, "mean_logits", x, teachers)

    def distance(row: torch.Tensor) -> float:
        return float((target * (target.log() - ask_model(net, row, x).log_softmax(-1))).sum(-1).mean())

    student = fuse(net, Fusion(steps=150, lr=0.03, batch_size=16), start, teachers, rows=rows_of(net, x))
    assert distance(student) < 0.1 * distance(start)


def test_without_steps_the_student_is_the_start_bit_for_bit() -> None:
    net, x = small_net(), inputs(10)
    start, teachers = net.init(0), net.init(1)[None]
    for rows in (rows_of(net, x), rows_of(net, x, teachers[0])):
        assert torch.equal(fuse(net, Fusion(steps=0), start, teachers, rows=rows), start)


def test_the_best_student_on_the_rows_of_the_server_stays_and_nothing_worse_than_the_start() -> None:
    net, x = small_net(), inputs(60)
    start, teachers = net.init(0), net.init(1)[None]
    how = Fusion(steps=60, lr=0.05, batch_size=16, patience=20)
    assert torch.equal(fuse(net, how, start, teachers, rows=rows_of(net, x, start)), start)  # it is always right
    rows = rows_of(net, x, teachers[0])
    student = fuse(net, how, start, teachers, rows=rows)
    right = [float((ask_model(net, row, x).argmax(-1) == rows.y).double().mean()) for row in (start, student)]
    assert right[1] > right[0]


def test_it_stops_when_nothing_gets_better() -> None:
    net, x = small_net(), inputs(40)
    steps: list[float] = []
    start, teachers = net.init(0), net.init(1)[None]

    def begin(_net: Net, row: torch.Tensor, _teaching: Teaching) -> Train:
        return lambda _batches, rates: steps.extend(rates) or row  # type: ignore[func-returns-value]

    how, rows = Fusion(steps=500, patience=30, lr=0.5), rows_of(net, x, start)
    counting = StudentEngine(ask_model, begin)
    fuse_models(how, [Student(net, start, teachers)], rows=rows, key=KEY, engine_of=lambda _net: counting)
    assert len(steps) == 30
    assert steps == sorted(steps, reverse=True) and steps[0] == 0.5  # along a cosine
    steps.clear()
    whole = ServerRows(x, x[:0], torch.empty(0, dtype=torch.int64))
    fuse_models(how, [Student(net, start, teachers)], rows=whole, key=KEY, engine_of=lambda _net: counting)
    assert steps == pytest.approx([0.25 + 0.25 * math.cos(math.pi * s / 500) for s in range(500)])


def test_statistics_of_normalization_layers_stay_those_of_the_start() -> None:
    net, x = small_net("batch"), inputs(30)
    start, teachers = net.init(0), net.init(1)[None]
    student = fuse(net, Fusion(steps=5), start, teachers, rows=rows_of(net, x))
    p = net.layout.trainable
    assert p < net.layout.d
    assert torch.equal(student[p:], start[p:])
    assert not torch.equal(student[:p], start[:p])
