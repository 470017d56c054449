"""Full batches of plain SGD: what a still lane computes without its inputs is what its steps compute with them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from blocks import FULL, full_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedray.core import native
from fedray.core.method import Local
from fedray.core.types import Net, Objective
from fedray.models.net import net_of
from fedray.training import compiled
from fedray.training.compiled import count_least_steps, find_still_steps, train_compiled_mlp
from fedray.training.layers import train_mlp

kernels = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")
INPUTS = 40
SIZES = [7, 3, 1, 12]  # their batches are 7, 3, 1 and 16 samples wide: a block each


def network(
    hidden: tuple[int, ...] = (6,),
    activation: type[nn.Module] = nn.ReLU,
    objective: Objective = "cross_entropy",
    *,
    bias: bool = True,
) -> Net:
    def make() -> nn.Module:
        widths = (INPUTS, *hidden, 4)
        layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b, bias=bias), activation())]
        return nn.Sequential(*layers[:-1])

    return net_of(make, "still", objective, 4)


NETS = {
    "relu": network(),
    "tanh": network(activation=nn.Tanh),
    "deep": network((9, 5)),
    "without bias": network(bias=False),
    "one layer": network(()),
    "regression": network(objective="half_mse"),
}


@kernels
@pytest.mark.parametrize("name", NETS)
def test_a_still_lane_trains_what_the_torch_engine_trains(name: str) -> None:
    """In double precision, to ten digits; in single precision, to rounding."""
    net = NETS[name]
    for size in SIZES:
        assert find_still_steps(full_batches(net, size, [0]), INPUTS, net.layout.shapes[0][0])
        for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
            block = full_batches(net, size, [2, 5, 0], dtype)
            right, found = train_mlp(net, block), train_compiled_mlp(net, block)
            moved = float((right.final - block.start).abs().max())
            assert moved > 1e-3 and float((found.final - right.final).abs().max()) < bound * moved
            torch.testing.assert_close(found.loss, right.loss, rtol=bound, atol=bound)


@kernels
def test_inputs_are_read_once_and_the_order_of_later_batches_changes_no_bit() -> None:
    net = NETS["deep"]
    block = full_batches(net, 12, [0, 1])
    source = block.source
    assert source is not None
    first = block._replace(source=source._replace(index=source.index[:1].expand_as(source.index).contiguous()))
    assert not torch.equal(first.source.index, source.index)  # type: ignore[union-attr]  # it has one
    swapped = block.weight[:1].expand_as(block.weight).contiguous()
    found = train_compiled_mlp(net, first._replace(weight=swapped))
    assert torch.equal(found.final, train_compiled_mlp(net, block).final)


@kernels
def test_a_still_lane_has_the_same_bits_beside_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, in any block, and in a block of calls that could be interrupted."""
    net = NETS["deep"]
    whole = train_compiled_mlp(net, full_batches(net, 12, [0, 1, 2, 3])).final
    for lanes in ([3], [2, 0]):
        assert torch.equal(train_compiled_mlp(net, full_batches(net, 12, lanes)).final, whole[lanes])
    monkeypatch.setattr(compiled, "MOST_OPERATIONS", 1)
    assert torch.equal(train_compiled_mlp(net, full_batches(net, 12, [0, 1, 2, 3])).final, whole)


@kernels
def test_lanes_whose_steps_differ_or_whose_gradient_is_changed_read_their_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = NETS["relu"]
    block = full_batches(net, 12, [0, 1])
    still = train_compiled_mlp(net, block).final
    changes: list[dict[str, Any]] = [
        {"momentum": 0.5},
        {"optimizer": "adam"},
        {"weight_decay": 0.1},
        {"pull": 0.1},
        {"batch_size": 16},
    ]
    for change in changes:
        other = block._replace(local=Local(**{**FULL.__dict__, **change}))
        assert find_still_steps(other, INPUTS, 6) == 0, change
    assert find_still_steps(block._replace(offset=block.start), INPUTS, 6) == 0
    assert find_still_steps(block._replace(steps=np.array([1, 1])), INPUTS, 6) == 0
    monkeypatch.setattr(compiled, "find_still_steps", lambda *_: 0)
    plain = train_compiled_mlp(net, block).final
    assert not torch.equal(plain, still)  # by rounding
    torch.testing.assert_close(plain, still, rtol=0, atol=1e-6)


@settings(max_examples=100)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_a_lane_is_still_where_that_halves_its_operations(rows: int, inputs: int, outputs: int) -> None:
    def halves(steps: int) -> bool:
        product = rows * inputs * outputs
        return 2 * (2 * product + rows**2 * inputs + steps * rows**2 * outputs) < 2 * steps * product

    least = count_least_steps(rows, inputs, outputs)
    assert not any(halves(steps) for steps in range(1, (least or 200)))
    assert not least or halves(least)
