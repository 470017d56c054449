"""Compiled students are those of torch, in calls of any length; where teachers are certain, they are clients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from blocks import convolution, make_block, perceptron
from torch import Tensor, nn

from fedray.components.distillation import ask_model, begin_student
from fedray.core import native
from fedray.core.method import Local, Teaching
from fedray.core.types import Net
from fedray.models.net import net_of
from fedray.training.compiled import (
    ask_compiled,
    begin_compiled,
    find_student_kernel,
    train_compiled_conv,
    train_compiled_mlp,
)

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")
RATES = [0.3, 0.1, 0.2, 0.05, 0.15]
NETS = {
    "mlp": (perceptron(nn.Tanh), (6,)),
    "conv": (convolution(), (2, 6, 6)),
    "regression": (perceptron(objective="half_mse", out=2), (6,)),
    "gaussian": (perceptron(objective="gaussian_nll", out=4), (6,)),
}


def teaching_of(net: Net, shape: tuple[int, ...], optimizer: str, dtype: torch.dtype = torch.float64) -> Teaching:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(10, *shape, generator=draw, dtype=torch.float64)
    target = torch.randn(10, net.outputs, generator=draw, dtype=torch.float64)
    if net.objective == "cross_entropy":
        target = (2 * target).softmax(-1)
    return Teaching(x.to(dtype), target.to(dtype), 4, optimizer)  # type: ignore[arg-type]


def batches_of(n: int = 10, size: int = 4) -> list[Tensor]:
    """Five batches from two orders of all inputs; the last ones of an order are smaller."""
    orders = [torch.randperm(n, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    return list(itertools.chain(*(torch.split(order, size) for order in orders)))[:5]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize(("net", "shape"), NETS.values(), ids=NETS)
def test_a_student_is_the_one_that_torch_trains(net: Net, shape: tuple[int, ...], optimizer: str) -> None:
    teaching, start = teaching_of(net, shape, optimizer), net.init(0).double()
    net.module.double()
    right = begin_student(net, start, teaching)(batches_of(), RATES)
    assert float((right - start).abs().max()) > 0.1
    torch.testing.assert_close(begin_compiled(net, start, teaching)(batches_of(), RATES), right, rtol=0, atol=1e-10)
    net.module.float()


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize(("net", "shape"), [NETS["mlp"], NETS["conv"]], ids=["mlp", "conv"])
def test_calls_of_any_length_give_the_same_bits(net: Net, shape: tuple[int, ...], optimizer: str) -> None:
    """Also where another student trains between two calls, and where a call of the kernel has one step."""
    teaching, start, steps = teaching_of(net, shape, optimizer, torch.float32), net.init(0), batches_of()
    whole = begin_compiled(net, start, teaching)(steps, RATES)
    train, other = begin_compiled(net, start, teaching), begin_compiled(net, net.init(1), teaching)
    assert torch.equal(train([], []), start)
    for a, b in ((0, 2), (2, 3), (3, 5)):
        part = train(steps[a:b], RATES[a:b])
        other(steps[a:b], RATES[a:b])
    assert torch.equal(part, whole)
    with pytest.MonkeyPatch.context() as short:
        short.setattr("fedray.training.compiled.MOST_OPERATIONS", 1)
        assert torch.equal(begin_compiled(net, start, teaching)(steps, RATES), whole)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_certain_teachers_are_labels(kind: str) -> None:
    """Where every target is one class, a student is a client that trains on these labels, to the same bits."""
    net, shape = NETS[kind]
    block = make_block(net, shape, Local(optimizer="adam"), [12], torch.float32, epochs=2)
    train = train_compiled_mlp if kind == "mlp" else train_compiled_conv
    client = train(net, block).final[0]
    x, y = (part[:, 0].flatten(0, 1) for part in block.read(0, int(block.steps[0])))
    size = block.weight.shape[2]
    teaching = Teaching(x, nn.functional.one_hot(y, net.outputs).float(), size, "adam")
    batches = [s * size + torch.arange(int((block.weight[s, 0] > 0).sum())) for s in range(int(block.steps[0]))]
    student = begin_compiled(net, block.start[0], teaching)(batches, [block.lr] * len(batches))
    assert torch.equal(student, client)


def test_who_agrees_with_the_teachers_stays() -> None:
    net = NETS["conv"][0]
    start, teaching = net.init(0), teaching_of(*NETS["conv"], "momentum", torch.float32)
    own = teaching._replace(target=ask_model(net, start, teaching.x).softmax(-1).float())
    torch.testing.assert_close(begin_compiled(net, start, own)(batches_of(), RATES), start, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        ask_compiled(net, start, teaching.x), ask_model(net, start, teaching.x), rtol=0, atol=1e-6
    )


def test_other_networks_have_no_kernel() -> None:
    for kind in (nn.Dropout, partial(nn.BatchNorm1d, 6), nn.Sigmoid):
        net = net_of(partial(_put_before_layer, kind), "own", "cross_entropy", 3)
        assert find_student_kernel(net) is None


def _put_before_layer(kind: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(kind(), nn.Linear(6, 3))


def test_a_row_outside_the_inputs_is_refused() -> None:
    train = begin_compiled(NETS["mlp"][0], NETS["mlp"][0].init(0), teaching_of(*NETS["mlp"], "adam", torch.float32))
    with pytest.raises(IndexError, match="outside the inputs"):
        train([torch.tensor([10])], [0.1])
