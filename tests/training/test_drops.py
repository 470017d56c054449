"""Dropout in compiled lanes: the masks have addresses, so that every engine drops the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from blocks import LOCALS, make_block
from modules import TwoLayers
from torch import Tensor, nn

from fedray.core import sums as native
from fedray.core.method import Local
from fedray.core.types import Net
from fedray.models.net import net_of
from fedray.models.nets import build_net
from fedray.training import compiled
from fedray.training.block import Block, Trained
from fedray.training.chain import Unread, recognize, split_drops
from fedray.training.choice import choose_engine

needs_kernels = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")
IMAGE, ROW = (1, 12, 12), (6,)
SIZES = [11, 3, 16, 5]


class Images(nn.Module):
    """Channels are dropped before the pooling, as in PyTorch's first example; the layers are held in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.conv = nn.Linear(7, 4), nn.Linear(100, 7), nn.Conv2d(1, 4, 3)
        self.channels, self.units = nn.Dropout2d(0.3), nn.Dropout(0.6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(F.max_pool2d(self.channels(self.conv(x)), 2)).flatten(1)
        out: Tensor = self.last(self.units(F.relu(self.middle(h))))
        return out


def inputs_and_units() -> nn.Module:
    return nn.Sequential(
        nn.Dropout(0.2), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 4)
    )


def flat_features() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.Tanh(), nn.Conv2d(5, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.4), nn.Flatten(),
        nn.Linear(48, 4),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Net, tuple[int, ...]]] = {
    "channels": (net_of(Images, "own", "cross_entropy", 4), IMAGE),
    "features": (net_of(flat_features, "own", "cross_entropy", 4), IMAGE),
    "inputs": (net_of(inputs_and_units, "own", "cross_entropy", 4), ROW),
}


def train(net: Net, shape: tuple[int, ...], block: Block, lanes: Any = "auto") -> Trained:
    engine = choose_engine(net, example=torch.zeros(shape), lanes=lanes)
    assert engine.name == ("loop" if lanes == "torch" else "mlp-c" if shape == ROW else "conv-c")
    return engine.train(net, block)


@needs_kernels
@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("name", NETWORKS)
def test_compiled_lanes_drop_what_the_loop_drops(name: str, local: str) -> None:
    net, shape = NETWORKS[name]
    block = make_block(net, shape, LOCALS[local], SIZES, torch.float64, offset=True, anchor=True)
    ours, want = train(net, shape, block), train(net, shape, block, "torch")
    assert (ours.final - want.final).abs().max() < 1e-12
    assert torch.allclose(ours.loss, want.loss, rtol=1e-12)
    other = train(net, shape, block._replace(keys=block.keys + np.uint64(1)))
    assert (ours.final - other.final).abs().max() > 1e-3  # the masks are those of the address


@needs_kernels
@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_lane_drops_depends_neither_on_its_neighbors_nor_on_the_cut_of_the_steps(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, shape = NETWORKS[name]
    whole = make_block(net, shape, Local(), SIZES, torch.float32)
    together = train(net, shape, whole).final
    each = [make_block(net, shape, Local(), SIZES, torch.float32, lanes=[i]) for i in range(4)]
    alone = [train(net, shape, block).final for block in each]
    order = np.argsort(-np.array([-(-size // 4) for size in SIZES]), kind="stable")
    assert torch.equal(together, torch.cat([alone[i] for i in order]))
    monkeypatch.setattr(compiled, "MOST_OPERATIONS", 1)
    assert torch.equal(together, train(net, shape, whole).final)
    monkeypatch.setattr("fedray.training.block.PIECE_NUMBERS", 1)  # a step at a time
    assert torch.equal(together, train(net, shape, whole).final)


@needs_kernels
def test_a_full_batch_drops_anew_in_every_step() -> None:
    """Lanes whose batches are always the same are trained in another way, which knows no dropout."""
    net, shape = NETWORKS["inputs"]
    block = make_block(net, shape, Local(), [8, 8], torch.float64, batch=8, epochs=12)
    block = block._replace(local=Local(batch_size=None, epochs=None, steps=12))
    assert (train(net, shape, block).final - train(net, shape, block, "torch").final).abs().max() < 1e-12


def test_evaluation_of_a_network_with_dropout_is_that_of_its_layers() -> None:
    net = build_net("cnn", IMAGE, 4, "cross_entropy", dropout=0.5)
    rows, x = torch.stack([net.init(0), net.init(1)]), torch.randn(2, 5, *IMAGE)
    engine = choose_engine(net, example=x[0, 0], lanes="auto")
    loop = choose_engine(net, example=x[0, 0], lanes="torch")
    counters = torch.zeros(2, 0)
    assert torch.allclose(engine.outputs(net, rows, counters, x), loop.outputs(net, rows, counters, x), atol=1e-6)


class Other(TwoLayers):
    """It calls a dropout layer twice, or calls two in another order than it holds them."""

    def __init__(self, twice: bool) -> None:
        TwoLayers.__init__(self)
        self.drop, self.other = nn.Dropout(0.5), nn.Dropout(0.2)
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        first = self.drop if self.twice else self.other
        out: Tensor = self.b(self.drop(self.a(first(x)).relu()))
        return out


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (lambda: Other(twice=True), "calls its dropout layers in another order"),
        (lambda: Other(twice=False), "calls its dropout layers in another order"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)), "drops what no linear layer reads"),
        (lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.5), nn.Linear(9, 4)), "than ReLU"),
        (lambda: nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Tanh(), nn.Linear(9, 4)), "than ReLU"),
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.2), nn.Linear(6, 4)), "than ReLU"),
        (lambda: nn.Sequential(nn.Linear(6, 9), nn.Dropout(1.0), nn.Linear(9, 4)), "in another form"),
    ],
)
def test_other_dropout_is_left_to_the_module_and_the_reason_is_given(module: Callable[[], nn.Module], why: str) -> None:
    net = net_of(module, "own", "cross_entropy", 4)
    found = recognize(net, ROW, torch.float32)
    assert isinstance(found, str)
    assert why in found
    engine = choose_engine(net, example=torch.zeros(ROW), lanes="auto")
    assert engine.name == "loop"
    block = make_block(net, ROW, Local(), [5, 4], torch.float32)
    assert torch.equal(engine.train(net, block).final, engine.train(net, block).final)


def test_a_dropped_channel_does_not_pass_a_convolution() -> None:
    with pytest.raises(Unread, match="no linear layer reads"):
        split_drops([nn.Conv2d(1, 2, 3), nn.Dropout2d(0.5), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 2)])
