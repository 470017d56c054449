"""How a network is written does not matter, but what its forward computes; what is not known is not taken."""

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from blocks import FEW, LOCALS, make_block
from modules import TwoLayers
from torch import Tensor, nn

import fedray
from fedray.core import sums as native
from fedray.core.method import Local
from fedray.core.types import Net
from fedray.models.net import net_of
from fedray.models.nets import build_net
from fedray.simulation.study import choose_study_engine
from fedray.training import compiled, loop
from fedray.training.block import Block, Trained
from fedray.training.chain import Unread, recognize, split_drops
from fedray.training.choice import Engine, choose_engine

IMAGE, ROW = (1, 12, 12), (6,)


class Images(nn.Module):
    """A small convolution network as tutorials write it."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3)
        self.fc1, self.fc2 = nn.Linear(54, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        outputs: Tensor = self.fc2(F.relu(self.fc1(x)))
        return outputs


class OtherForms(Images):
    """The same network in other words."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(x.contiguous())
        h = torch.relu(F.max_pool2d(h, kernel_size=2, stride=2))
        h = F.dropout(F.relu(self.conv2(h), inplace=True), 0.0, self.training)
        h = h.reshape(h.shape[0], h.shape[1] * h.size(2) * h.size(-1))
        outputs: Tensor = F.linear(self.fc1(h).relu_(), self.fc2.weight, bias=self.fc2.bias)
        return outputs


class Reordered(Images):
    """The layers are made in another order than they are applied in, in lists and sequences."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.head = nn.ModuleList([nn.Linear(8, 4), nn.Linear(54, 8)])
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False), nn.Sequential(nn.ReLU(), nn.Identity()), nn.AvgPool2d(2),
            nn.Conv2d(4, 6, 3), nn.Dropout(0.0), nn.Tanh(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        h = torch.flatten(self.body(x), 1)
        for layer in reversed(self.head):
            h = layer(h)
            h = torch.tanh(h) if layer is self.head[1] else h
        return h


class LogSoftmax(Images):
    """As PyTorch's first example ends."""

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(Images.forward(self, x), dim=1)


class Swapped(TwoLayers):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.b, self.a = nn.Linear(8, 4), nn.Linear(6, 8)


def choose(module: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[Net, Engine]:
    net = net_of(module, "own", "cross_entropy", 4)
    return net, choose_engine(net, "cpu", torch.zeros(shape))


@pytest.mark.parametrize("module", [Images, OtherForms, Reordered, LogSoftmax, TwoLayers, Swapped])
@pytest.mark.parametrize("local", ["sgd", "momentum", "adam+prox"])
def test_what_is_recognized_trains_and_answers_as_the_module_does(module: Callable[[], nn.Module], local: str) -> None:
    shape = ROW if issubclass(module, TwoLayers) else IMAGE  # type: ignore[arg-type]  # a class
    net, engine = choose(module, shape)
    assert engine.name.startswith("mlp" if shape == ROW else "conv")
    block = make_block(net, shape, LOCALS[local], [8, 11, 6], torch.float64, offset=True, anchor=True, epochs=2)
    want, found = loop.train_loop(net, block), engine.train(net, block)
    torch.testing.assert_close(found.final, want.final, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.loss, want.loss, rtol=0, atol=1e-10)
    x, none = torch.randn(3, 7, *shape, dtype=torch.float64), torch.zeros(3, 0)
    answers = [outputs(net, want.final, none, x) for outputs in (engine.outputs, loop.loop_outputs)]
    torch.testing.assert_close(*answers, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lanes", ["auto", "torch"])
def test_a_class_trains_to_the_bits_of_its_sequence_by_the_same_engine(lanes: str) -> None:
    def sequence() -> nn.Module:
        conv = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU()
        return nn.Sequential(*conv, nn.Flatten(), nn.Linear(54, 8), nn.ReLU(), nn.Linear(8, 4))

    data = np.random.default_rng(0).normal(size=(60, *IMAGE)).astype(np.float32), np.arange(60) % 4
    keys = {"rounds": 1, "clients": 4, "runtime": "inline", "report": False, "lanes": lanes}
    want, *others = [fedray.run(keys, data=data, model=one) for one in (sequence, Images, OtherForms)]
    for found in others:
        assert torch.equal(found.progress.state.models, want.progress.state.models)
        assert choose_study_engine(found.study).why == choose_study_engine(want.study).why


def between(name: str, function: Callable[[Any, Tensor], Tensor], **layers: Callable[[], nn.Module]) -> type[nn.Module]:
    """A class of two layers, with this between them; and with further layers."""

    def make(self: Any) -> None:
        TwoLayers.__init__(self)
        for key, layer in layers.items():
            setattr(self, key, layer())

    return type(name, (TwoLayers,), {"between": function, "__init__": make, "calls": 0})


def count(self: Any, h: Tensor) -> Tensor:
    self.calls += 1
    return torch.relu(h) if self.calls < 1000 else torch.tanh(h)


def keep(self: Any, h: Tensor) -> Tensor:
    self.__dict__.setdefault("kept", []).append(h)
    return torch.relu(h)


def clamp(self: Any, h: Tensor) -> Tensor:
    self.b.weight.data.clamp_(-0.1, 0.1)
    return torch.relu(h)


def eight() -> nn.Module:
    return nn.Linear(8, 8)


Gelu = between("Gelu", lambda _, h: F.gelu(h))
Counting = between("Counting", count)


class Tied(TwoLayers):
    def __init__(self) -> None:
        TwoLayers.__init__(self)
        self.c, self.d = nn.Linear(8, 8), nn.Linear(8, 8)
        self.d.weight = self.c.weight

    def between(self, h: Tensor) -> Tensor:
        outputs: Tensor = torch.relu(self.d(torch.relu(self.c(torch.relu(h)))))
        return outputs


class Changed(TwoLayers):
    """Its first layer is another thing than it seems."""

    def __init__(self, change: Callable[[nn.Linear], Any]) -> None:
        TwoLayers.__init__(self)
        change(self.a)


class Mixed(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return TwoLayers.forward(self, x)


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * nn.Linear.forward(self, x)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "gelu": (Gelu, "calls gelu"),
    "a layer twice": (
        between("Twice", lambda net, h: net.c(net.c(h.relu()).relu()).relu(), c=eight),
        "uses a layer twice",
    ),
    "tied": (Tied, "uses a layer twice"),
    "unused": (between("Unused", lambda _, h: h.relu(), c=eight), "once: c.bias"),
    "frozen": (lambda: Changed(lambda layer: layer.weight.requires_grad_(False)), "once: a.weight"),
    "hooked": (lambda: Changed(lambda layer: layer.register_forward_hook(lambda *given: 3.0 * given[2])), "has hooks"),
    "patched": (lambda: Changed(lambda layer: vars(layer).update(forward=lambda x: 2.0 * x)), "replaced on an object"),
    "branching": (between("Branching", lambda _, h: 2.0 * h if h.sum() > 0 else h.relu()), "calls sum"),
    "dropping": (between("Dropping", lambda net, h: F.dropout(h.relu(), 0.2, net.training)), "dropout as a function"),
    "modal": (between("Modal", lambda net, h: h.relu() if net.training else h.tanh()), "gives other numbers"),
    "throwing": (between("Throwing", lambda _, h: h.relu() if random.random() < 2.0 else h.tanh()), "draws random"),
    "counting": (Counting, "changes the module"),
    "keeping": (between("Keeping", keep), "changes the module"),
    "stopped": (between("Stopped", lambda _, h: h.relu().detach()), ""),
    "clamping": (between("Clamping", clamp), ""),
    "mixing": (between("Mixing", lambda _, h: h.view(8, -1).view(-1, 8).relu()), "fixed number of samples"),
    "by batch": (between("ByBatch", lambda _, h: h.relu() if len(h) == 5 else h.tanh()), ""),
    "subclassed": (lambda: nn.Sequential(Scaled(6, 8), nn.ReLU(), nn.Linear(8, 4)), "calls mul"),
    "mixed precision": (Mixed, "changes the type of its numbers"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_a_chain_of_plain_layers_is_not_taken_for_one(kind: str) -> None:
    module, why = REFUSED[kind]
    net = net_of(module, "own", "cross_entropy", 4)
    found = recognize(net, ROW, torch.float32)
    assert isinstance(found, str)
    assert why in found
    engine = choose_engine(net, "cpu", torch.zeros(ROW))
    hint = "" if kind == "subclassed" else ": about 10 times slower than Linear with ReLU or Tanh"
    assert f"; its forward {found}{hint}" in engine.why
    if engine.name == "vmap" and kind != "mixed precision":
        net.module.double()
        block = make_block(net, ROW, LOCALS["momentum"], [16, 8, 12], torch.float64, epochs=2)
        want = loop.train_loop(net, block).final
        torch.testing.assert_close(engine.train(net, block).final, want, rtol=0, atol=1e-10)
    else:
        assert engine.name in ("vmap", "loop")


def test_reading_a_module_leaves_it_and_the_generators_and_stdout_as_they_were() -> None:
    stdout, seen = sys.stdout, set[object]()

    class Loud(TwoLayers):
        def between(self, h: Tensor) -> Tensor:
            seen.add(sys.stdout)  # a replaced stdout can be lost when two runs are read in two threads
            return torch.relu(h)

    for module in (Loud, Counting):
        net = net_of(module, "own", "cross_entropy", 4)
        net.module.eval()
        drawn, before = torch.get_rng_state(), {k: v.clone() for k, v in net.module.state_dict().items()}
        recognize(net, ROW, torch.float32)
        assert torch.equal(drawn, torch.get_rng_state())
        assert all(torch.equal(v, before[k]) for k, v in net.module.state_dict().items())
        assert {v.device.type for v in net.module.parameters()} == {"cpu"}
        assert not any(part.training for part in net.module.modules()) and "calls" not in vars(net.module)
    assert seen == {stdout}


def test_the_loop_trains_modules_that_flatten_by_view() -> None:
    by_view, by_reshape = (choose(module, IMAGE)[0] for module in (Images, OtherForms))
    assert not loop.reads_channels_last(by_view, IMAGE, torch.float32)
    assert loop.reads_channels_last(by_reshape, IMAGE, torch.float32)


# Dropout in compiled lanes: the masks have addresses, so that every engine drops the same


needs_kernels = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")
SIZES = [11, 3, 16, 5]


class DroppedImages(nn.Module):
    """Channels are dropped before the pooling, as in PyTorch's first example; the layers are held in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.conv = nn.Linear(7, 4), nn.Linear(100, 7), nn.Conv2d(1, 4, 3)
        self.channels, self.units = nn.Dropout2d(0.3), nn.Dropout(0.6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(F.max_pool2d(self.channels(self.conv(x)), 2)).flatten(1)
        out: Tensor = self.last(self.units(F.relu(self.middle(h))))
        return out


NETWORKS: dict[str, tuple[Net, tuple[int, ...]]] = {
    "channels": (net_of(DroppedImages, "own", "cross_entropy", 4), IMAGE),
    "features": (net_of(lambda: nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.Tanh(), nn.Conv2d(5, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.4), nn.Flatten(),
        nn.Linear(48, 4),
    ), "own", "cross_entropy", 4), IMAGE),
    "inputs": (net_of(lambda: nn.Sequential(
        nn.Dropout(0.2), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 4)
    ), "own", "cross_entropy", 4), ROW),
}  # fmt: skip


def train_with(net: Net, shape: tuple[int, ...], block: Block, lanes: Any = "auto") -> Trained:
    engine = choose_engine(net, example=torch.zeros(shape), lanes=lanes)
    assert engine.name == ("loop" if lanes == "torch" else "mlp-c" if shape == ROW else "conv-c")
    return engine.train(net, block)


@needs_kernels
@pytest.mark.parametrize("local", FEW)
@pytest.mark.parametrize("name", NETWORKS)
def test_compiled_lanes_drop_what_the_loop_drops(name: str, local: str) -> None:
    net, shape = NETWORKS[name]
    block = make_block(net, shape, LOCALS[local], SIZES, torch.float64, offset=True, anchor=True)
    ours, want = train_with(net, shape, block), train_with(net, shape, block, "torch")
    assert (ours.final - want.final).abs().max() < 1e-12
    assert torch.allclose(ours.loss, want.loss, rtol=1e-12)
    other = train_with(net, shape, block._replace(keys=block.keys + np.uint64(1)))
    assert (ours.final - other.final).abs().max() > 1e-3  # the masks are those of the address


@needs_kernels
@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_lane_drops_depends_neither_on_its_neighbors_nor_on_the_cut_of_the_steps(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, shape = NETWORKS[name]
    whole = make_block(net, shape, Local(), SIZES, torch.float32)
    together = train_with(net, shape, whole).final
    each = [make_block(net, shape, Local(), SIZES, torch.float32, lanes=[i]) for i in range(4)]
    alone = [train_with(net, shape, block).final for block in each]
    order = np.argsort(-np.array([-(-size // 4) for size in SIZES]), kind="stable")
    assert torch.equal(together, torch.cat([alone[i] for i in order]))
    monkeypatch.setattr(compiled, "MOST_OPERATIONS", 1)
    assert torch.equal(together, train_with(net, shape, whole).final)
    monkeypatch.setattr("fedray.training.block.PIECE_NUMBERS", 1)  # a step at a time
    assert torch.equal(together, train_with(net, shape, whole).final)


@needs_kernels
def test_a_full_batch_drops_anew_in_every_step() -> None:
    """Lanes whose batches are always the same are trained in another way, which knows no dropout."""
    net, shape = NETWORKS["inputs"]
    block = make_block(net, shape, Local(), [8, 8], torch.float64, batch=8, epochs=12)
    block = block._replace(local=Local(batch_size=None, epochs=None, steps=12))
    assert (train_with(net, shape, block).final - train_with(net, shape, block, "torch").final).abs().max() < 1e-12


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
