"""How a network is written does not matter, but what its forward computes; what is not known is not taken."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from blocks import LOCALS, make_block
from modules import TwoLayers
from torch import Tensor, nn

from fedray.core.types import Net
from fedray.models.net import net_of
from fedray.training import loop
from fedray.training.chain import recognize
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


def patch(layer: nn.Linear) -> None:
    vars(layer)["forward"] = lambda x: 2.0 * nn.Linear.forward(layer, x)


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
    "patched": (lambda: Changed(patch), "replaced on an object"),
    "branching": (between("Branching", lambda _, h: 2.0 * h if h.sum() > 0 else h.relu()), "calls sum"),
    "dropping": (between("Dropping", lambda net, h: F.dropout(h.relu(), 0.2, net.training)), "dropout as a function"),
    "modal": (between("Modal", lambda net, h: h.relu() if net.training else h.tanh()), "gives other numbers"),
    "throwing": (between("Throwing", lambda _, h: h.relu() if random.random() < 0.999 else h.tanh()), "draws random"),
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


def test_reading_a_module_leaves_it_and_the_generators_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    class Loud(TwoLayers):
        def between(self, h: Tensor) -> Tensor:
            print("computing", h)
            return torch.relu(h)

    for module in (Loud, Counting):
        net = net_of(module, "own", "cross_entropy", 4)
        net.module.eval()
        before = {k: v.clone() for k, v in net.module.state_dict().items()}
        drawn = torch.get_rng_state()
        recognize(net, ROW, torch.float32)
        assert torch.equal(drawn, torch.get_rng_state())
        assert all(torch.equal(v, before[k]) for k, v in net.module.state_dict().items())
        assert all(
            v.device.type == "cpu" and not part.training for part in net.module.modules() for v in part.parameters()
        )
        assert vars(net.module).get("calls", 0) == 0
    assert capsys.readouterr().out == ""


def test_the_loop_trains_modules_that_flatten_by_view() -> None:
    by_view, by_reshape = (choose(module, IMAGE)[0] for module in (Images, OtherForms))
    assert not loop.reads_channels_last(by_view, IMAGE, torch.float32)
    assert loop.reads_channels_last(by_reshape, IMAGE, torch.float32)
