"""Networks of one's own need not know about lanes: the rule takes an engine only where it computes the same thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from blocks import LOCALS, make_block
from modules import TwoLayers
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import fedray
from fedray.data.types import Dataset, Split, classification
from fedray.models.net import net_of
from fedray.models.nets import build_net
from fedray.training import layers, loop
from fedray.training.choice import choose_engine


class Two(TwoLayers):
    """A gelu between the layers."""

    def between(self, h: Tensor) -> Tensor:
        return F.gelu(h)


class Dropping(Two):
    def between(self, h: Tensor) -> Tensor:
        return F.dropout(F.relu(h), 0.2, self.training)


class Branching(Two):
    def between(self, h: Tensor) -> Tensor:
        return 2.0 * h if h.sum() > 0 else h.relu()


class Filling(Two):
    def between(self, h: Tensor) -> Tensor:
        out = torch.zeros(h.shape, dtype=h.dtype)
        out[:] = h.relu()
        return out


class Peeking(Two):
    def between(self, h: Tensor) -> Tensor:
        return h / float(np.abs(h.detach().numpy()).max())


class Shifting(Two):
    """It writes into its inputs."""

    def __init__(self) -> None:
        Two.__init__(self)
        self.shift = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        x += self.shift
        return Two.forward(self, x)


class Remembering(Two):
    scale: Tensor

    def __init__(self) -> None:
        Two.__init__(self)
        self.register_buffer("scale", torch.full((8,), 1.5))

    def between(self, h: Tensor) -> Tensor:
        return (h * self.scale).relu()


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * nn.Linear.forward(self, x)


class Centring(nn.Module):
    """Its outputs depend on the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def stack(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(*parts, nn.ReLU(), nn.Linear(8, 4))


def frozen() -> nn.Module:
    first = nn.Linear(6, 8)
    first.weight.requires_grad_(False)
    return stack(first)


def shared() -> nn.Module:
    same = nn.Linear(8, 8)
    return stack(nn.Linear(6, 8), nn.ReLU(), same, nn.Tanh(), same)


def hooked() -> nn.Module:
    net = stack(nn.Linear(6, 8))
    net[0].register_forward_hook(lambda _module, _inputs, output: 3.0 * output)
    return net


def hooked_backwards() -> nn.Module:
    net = stack(nn.Linear(6, 8))

    def triple(_module: nn.Module, gradients: Any) -> Any:
        return tuple(3.0 * one for one in gradients)

    net[0].register_full_backward_pre_hook(triple)
    return net


def patched() -> nn.Module:
    first = nn.Linear(6, 8)
    vars(first)["forward"] = lambda x: 3.0 * nn.Linear.forward(first, x)
    return stack(first)


class Attending(Two):
    """Fused attention of each row over eight numbers, which torch maps over lanes by one call for each."""

    def forward(self, x: Tensor) -> Tensor:
        q = torch.relu(self.a(x))[..., None]
        attended = F.scaled_dot_product_attention(q, q, q)
        outputs: Tensor = self.b(attended[..., 0])
        return outputs


class DroppingNothing(Two):
    """A dropout of probability 0, as transformers often have it: it draws nothing."""

    def __init__(self) -> None:
        Two.__init__(self)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.b(F.relu(self.a(x)))
        return torch.add(outputs, self.drop(outputs))


OWN: dict[str, tuple[Callable[[], nn.Module], str, str]] = {  # module, engine, part of why
    "functional": (Two, "vmap", "a functional module"),
    "dropout as a function": (Dropping, "loop", "cannot be mapped over lanes (RuntimeError: vmap: called random"),
    "a branch on the data": (Branching, "loop", "cannot be mapped over lanes"),
    "writes in place": (Filling, "loop", "cannot be mapped over lanes"),
    "fused attention": (Attending, "vmap", "a functional module"),
    "drops nothing": (DroppingNothing, "vmap", "a functional module"),
    "leaves torch": (Peeking, "loop", "cannot be mapped over lanes"),
    "a buffer": (Remembering, "loop", "it keeps the buffer "),
    "plain layers": (lambda: stack(nn.Linear(6, 8)), "mlp", "linear layers only"),
    "a layer of one's own": (lambda: stack(Doubling(6, 8)), "vmap", "a functional module"),
    "mixes the batch": (lambda: stack(Centring(), nn.Linear(6, 8)), "loop", "the rows of a batch see each other"),
    "frozen": (frozen, "vmap", "a functional module"),
    "shared": (shared, "vmap", "a functional module"),
    "hooked": (hooked, "vmap", "a functional module"),
    "hooked in the backward pass": (hooked_backwards, "loop", "cannot be mapped over lanes"),
    "a layer's forward replaced": (patched, "vmap", "a functional module"),
    "reparametrised": (lambda: stack(weight_norm(nn.Linear(6, 8))), "vmap", "a functional module"),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_module_of_ones_own_trains_as_the_loop_would(kind: str) -> None:
    module, engine, why = OWN[kind]
    net = net_of(module, "own", "cross_entropy", 4)
    net.module.double()  # what is not in the row, too
    chosen = choose_engine(net, "cpu", torch.zeros(6, dtype=torch.float64))
    assert chosen.name == engine
    assert why in chosen.why
    if kind == "leaves torch":
        return  # a number that left torch has no gradient to compare
    block = make_block(net, (6,), LOCALS["momentum"], [16, 8, 12], torch.float64, epochs=3)
    torch.testing.assert_close(chosen.train(net, block).final, loop.train_loop(net, block).final, rtol=0, atol=1e-10)


def test_a_module_may_write_into_its_inputs_in_the_loop() -> None:
    """Every batch is a tensor of its own: what is written there reaches no other batch, and no other client."""

    class Adding(Shifting):
        def forward(self, x: Tensor) -> Tensor:
            return Two.forward(self, x + self.shift)

    into, beside = (net_of(module, "own", "cross_entropy", 4) for module in (Shifting, Adding))
    block = make_block(beside, (6,), LOCALS["momentum"], [16, 8, 12], torch.float32, epochs=3)
    want, found = loop.train_loop(beside, block), loop.train_loop(into, block)
    assert torch.equal(found.final, want.final)
    assert torch.equal(found.loss, want.loss)


def three_classes() -> Dataset:
    x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    return classification("mine", Split(x[:150], y[:150]), Split(x[150:], y[150:]), ("a", "b", "c", "d"))


@pytest.mark.parametrize(("module", "engine"), [(Two, "vmap"), (Branching, "loop")])
def test_the_manifest_says_which_engine_ran_how_wide_and_why(module: type, engine: str, tmp_path: Path) -> None:
    scenario = {"rounds": 1, "clients": {"number": 5}, "runtime": "inline"}
    fedray.run(scenario, data=three_classes(), model=module, out=tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["engine"]["name"] == engine
    assert manifest["engine"]["width"] == (1 if engine == "loop" else 256)
    assert manifest["engine"]["why"]
    assert manifest["lanes_independent"] is True


def test_a_layer_that_is_used_twice_leaves_the_template_as_it_was() -> None:
    run = fedray.run({"rounds": 1, "clients": {"number": 5}, "runtime": "inline"}, data=three_classes(), model=shared)
    assert all(type(p) is nn.Parameter and p.is_leaf for p in run.study.net.module.parameters())
    assert run.predict(three_classes().test.x).mean.shape == (50, 4)


def words(n: int = 60) -> Dataset:
    x = np.random.default_rng(0).integers(0, 9, (n, 5))
    half = n // 2
    return classification("words", Split(x[:half], x[:half, 0] % 2), Split(x[half:], x[half:, 0] % 2), ("a", "b"))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_constant_is_in_the_way_of_lanes_only_where_it_is_sent(persistent: bool) -> None:
    class Scaled(Two):
        def __init__(self) -> None:
            Two.__init__(self)
            self.register_buffer("scale", torch.full((), 0.5), persistent=persistent)

        def between(self, h: Tensor) -> Tensor:
            return self.scale * F.gelu(h)  # type: ignore[operator]

    net = net_of(Scaled, "mine", "cross_entropy", 3)
    engine = choose_engine(net, "cpu", torch.zeros(6))
    assert net.layout.d - net.layout.trainable == persistent
    assert engine.name == ("loop" if persistent else "vmap")
    assert ("the buffer scale; a constant of persistent=False is not sent" in engine.why) == persistent


def test_a_network_on_tokens_of_ones_own_is_mapped_over_lanes() -> None:
    def bag() -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2))

    run = fedray.run({"rounds": 1, "clients": {"number": 3}, "runtime": "inline"}, data=words(), model=bag)
    assert run.summary["rounds"] == 1


def test_models_evaluated_together_give_the_outputs_of_models_evaluated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_net("cnn", (1, 12, 12), 3, "cross_entropy", channels=[4, 6], hidden=[8])
    rows = torch.stack([net.init(k) for k in range(5)]).double()
    x, none = torch.randn(5, 20, 1, 12, 12, dtype=torch.float64), torch.zeros(5, 0, dtype=torch.int64)
    want = loop.loop_outputs(net, rows, none, x)
    for side_by_side, most in ((12, 1 << 22), (2, 1 << 22), (2, 2 * 6 * 12 * 12 * 7), (1, 1)):  # 7 rows at a time, one
        monkeypatch.setattr(layers, "CONV_LANES", {"cpu": side_by_side})
        monkeypatch.setattr(layers, "_EVALUATED_NUMBERS", {"cpu": most})
        torch.testing.assert_close(layers.conv_outputs(net, rows, none, x), want, rtol=0, atol=1e-12)
    assert choose_engine(net).outputs is layers.conv_outputs


def test_a_network_that_draws_in_evaluation_answers_alike_in_every_run() -> None:
    """`F.dropout` draws unless it is told not to: scores, and what methods make of losses, differed from run to run."""

    class Drawing(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.layer = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(torch.nn.functional.dropout(x.flatten(1), 0.5))
            return found

    keys = {"rounds": 2, "method": {"name": "ifca", "models": 2}, "clients": {"number": 3}, "data": {"limit": 90}}
    found = []
    for _ in range(2):
        with pytest.warns(UserWarning, match="depends on the rows beside it"):
            found.append(fedray.run({**keys, "runtime": "inline", "report": False}, model=Drawing))
    assert torch.equal(*(run.progress.state.models for run in found))
    assert found[0].summary["metrics"] == found[1].summary["metrics"]
