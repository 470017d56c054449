"""Slices of a network: how many channels they keep, where their numbers lie, and what they cost."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from fedray.core.types import Net
from fedray.features.slices import (
    Scaler,
    find_columns,
    keep_channels,
    make_tier_nets,
    read_layers,
    scale_hidden,
    slice_net,
)
from fedray.models.net import net_of
from fedray.models.nets import build_net

NETS: dict[str, Net] = {
    "mlp": build_net("mlp", (5,), 3, "cross_entropy", hidden=[7, 4]),
    "cnn": build_net("cnn", (2, 9, 9), 3, "cross_entropy", channels=[4, 6], hidden=[5]),
    "linear": build_net("linear", (5,), 3, "cross_entropy"),
    "pooled": net_of(
        lambda: nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                              nn.Linear(6, 3)), "own", "cross_entropy", 3,
    ),
}  # fmt: skip
SHAPES = {"mlp": (5,), "cnn": (2, 9, 9), "linear": (5,), "pooled": (2, 9, 9)}


def ask(net: Net, row: Tensor, x: Tensor) -> Tensor:
    answer: Tensor = functional_call(net.module.eval(), net.layout.views(row), (x,))
    return answer


@pytest.mark.parametrize("name", NETS)
@given(width=st.floats(0.01, 1.0), first=st.integers(0, 50))
def test_a_slice_is_the_whole_network_whose_other_channels_are_zero(name: str, width: float, first: int) -> None:
    """ReLU(0) = tanh(0) = 0: channels without weights say nothing. Behind a flattening, too."""
    net, x = NETS[name], torch.from_numpy(np.random.default_rng(0).normal(size=(4, *SHAPES[name]))).float()
    layers, row = read_layers(net, "it"), net.init(3)
    columns = find_columns(layers, width, lambda c: first % c)
    for scaler in (False, True):  # which the whole network has in its numbers
        small, factor = slice_net(net, width, scaler=scaler), scale_hidden(layers, width) if scaler else 1.0
        assert (columns.diff() > 0).all() and len(columns) == small.layout.d
        whole = ask(net, torch.zeros_like(row).index_copy(0, columns, (row * factor)[columns]), x)
        torch.testing.assert_close(ask(small, row[columns], x), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
def test_a_narrow_slice_is_a_part_of_every_wider_one(name: str) -> None:
    """HeteroFL's slices are nested, and that of width 1 is everything."""
    layers = read_layers(NETS[name], "it")
    each = [set(find_columns(layers, width, lambda _c: 0).tolist()) for width in (0.1, 0.3, 0.5, 1.0)]
    assert all(one <= other for one, other in pairwise(each))
    assert each[-1] == set(range(NETS[name].layout.d))


@pytest.mark.parametrize("width", [0.125, 0.3, 0.5])
def test_a_slice_of_a_perceptron_is_the_perceptron_of_fewer_units(width: float) -> None:
    hidden = [math.ceil(width * c) for c in (7, 4)]
    assert slice_net(NETS["mlp"], width, scaler=False).layout.shapes == (
        build_net("mlp", (5,), 3, "cross_entropy", hidden=hidden).layout.shapes
    )


@given(st.integers(1, 600), st.integers(1, 64))
def test_the_kept_channels_are_the_ceiling_in_whole_numbers(channels: int, part: int) -> None:
    """Of r = part / 64, which is exact; and r = 1 / 10 of 30 channels is 3, though 0.1 * 30 > 3 in floating point."""
    assert keep_channels(part / 64, channels) == -(-part * channels // 64)
    assert keep_channels(0.1, 10 * channels) == channels


def test_the_scaler_divided_in_training_alone() -> None:
    scaler, x = Scaler(0.25), torch.tensor([1.0, -2.0])
    assert torch.equal(scaler.train()(x), 4 * x)
    assert torch.equal(scaler.eval()(x), 4 * x)
    kinds = [type(part).__name__ for part in slice_net(NETS["mlp"], 0.5, scaler=True).module.children()]
    assert kinds == ["Flatten", "Linear", "Scaler", "ReLU", "Linear", "Scaler", "ReLU", "Linear"]  # not behind the last


def test_work_is_the_share_of_the_arithmetic_and_width_one_is_the_network_itself() -> None:
    """Of a perceptron that is the share of its numbers; convolutions of 3 x 3 on 9 x 9 and 4 x 4 count every place."""
    for name, wanted in (
        ("mlp", (5 * 4 + 4 + 4 * 2 + 2 + 2 * 3 + 3) / (5 * 7 + 7 + 7 * 4 + 4 + 4 * 3 + 3)),
        ("cnn", (81 * 18 * 2 + 16 * 18 * 3 + 12 * 3 + 3 * 3) / (81 * 18 * 4 + 16 * 36 * 6 + 24 * 5 + 5 * 3)),
    ):
        whole, half = make_tier_nets(NETS[name], [1.0, 0.5], torch.zeros(1, *SHAPES[name]), scaler=True, who="it")
        assert whole.net is NETS[name] and whole.work == 1
        assert half.work == pytest.approx(wanted)
