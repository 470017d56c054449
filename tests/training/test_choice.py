"""Which engine trains a network: one is taken only where it computes what the loop does, whoever shares a block."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from blocks import LOCALS, make_block
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import Apply, TwoLayers, dropping, normed
from small import scenario
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.errors import FedrayWarning
from fedray.core.method import Local
from fedray.core.types import Net
from fedray.data.types import Dataset, Split, classification
from fedray.models.net import net_of
from fedray.models.nets import build_net
from fedray.runtime.worker import Worker
from fedray.scenario.loader import read_scenario
from fedray.training import layers, loop
from fedray.training.block import Block, Trained
from fedray.training.choice import choose_engine
from fedray.training.client_code import make_trial
from fedray.training.layers import invariant_convolutions


def stack(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(*parts, nn.ReLU(), nn.Linear(8, 4))


class Two(TwoLayers):
    """A gelu between the layers."""

    def between(self, h: Tensor) -> Tensor:
        return F.gelu(h)


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


def shared() -> nn.Module:
    same = nn.Linear(8, 8)
    return stack(nn.Linear(6, 8), nn.ReLU(), same, nn.Tanh(), same)


def hooked_backwards() -> nn.Module:
    net = stack(nn.Linear(6, 8))

    def triple(_module: nn.Module, gradients: Any) -> Any:
        return tuple(3.0 * one for one in gradients)

    net[0].register_full_backward_pre_hook(triple)
    return net


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


def write(h: Tensor) -> Tensor:
    out = torch.zeros(h.shape, dtype=h.dtype)
    out[:] = h.relu()
    return out


OWN: dict[str, tuple[Callable[[], nn.Module], str, str]] = {  # module, engine, part of why
    "writes in place": (lambda: stack(nn.Linear(6, 8), Apply(write)), "loop", "cannot be mapped over lanes"),
    "fused attention": (Attending, "vmap", "a functional module"),
    "drops nothing": (DroppingNothing, "vmap", "a functional module"),
    "leaves torch": (Peeking, "loop", "cannot be mapped over lanes"),
    "hooked in the backward pass": (hooked_backwards, "loop", "cannot be mapped over lanes"),
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


def test_a_layer_that_is_used_twice_leaves_the_template_as_it_was() -> None:
    run = fedray.run({"rounds": 1, "clients": {"number": 5}, "runtime": "inline"}, data=three_classes(), model=shared)
    assert all(type(p) is nn.Parameter and p.is_leaf for p in run.study.net.module.parameters())
    assert run.predict(three_classes().test.x).mean.shape == (50, 4)


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

    def drawing() -> nn.Module:
        return nn.Sequential(nn.Flatten(), Apply(lambda x: F.dropout(x, 0.5)), nn.Linear(64, 10))

    keys = {"rounds": 2, "method": {"name": "ifca", "models": 2}, "clients": {"number": 3}, "data": {"limit": 90}}
    found = []
    for _ in range(2):
        with pytest.warns(FedrayWarning):
            found.append(fedray.run({**keys, "runtime": "inline", "report": False}, model=drawing))
    assert torch.equal(*(run.progress.state.models for run in found))
    assert found[0].summary["metrics"] == found[1].summary["metrics"]


def test_lanes_that_depend_on_other_lanes_are_detected_and_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test trains the same lanes in different company; here their number leaks into the weights."""
    honest = layers.train_mlp

    def leaking(net: Net, block: Block) -> Trained:
        done = honest(net, block)
        return done._replace(final=done.final + 1e-6 * len(block.start))

    keys = scenario({"rounds": 1, "lanes": "torch"})
    fedray.run(keys, out=tmp_path / "fine")  # warnings are errors here
    monkeypatch.setattr(layers, "train_mlp", leaking)
    with pytest.warns(UserWarning, match="results repeat for the same packing only"):
        fedray.run(keys, out=tmp_path / "leaking")
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("fine", "leaking")]
    assert [one["lanes_independent"] for one in manifests] == [True, False]


def test_wide_networks_with_large_weights_pass(tmp_path: Path) -> None:
    """Weights of standard deviation 1 diverged at the self-test's former rate, and NaN is not equal to itself."""
    keys = {"method": {"name": "fedag"}, "data": {"name": "cubic"}, "model": {"hidden": [100], "weight_sd": 1.0}}
    run = fedray.run(scenario(keys, {"data": {"limit": None, "partition": None}, "rounds": 1}), out=tmp_path / "run")
    assert json.loads((run.path / "manifest.json").read_text())["lanes_independent"]


ENGINES: dict[str, tuple[dict[str, Any], Any]] = {  # what runs, the scenario's model, a module of one's own
    "mlp": ({"model": {"name": "mlp", "hidden": [6]}}, None),
    "conv": ({"model": {"name": "cnn", "channels": [2, 3], "hidden": [5], "kernel": 3, "padding": 1}}, None),
    "vmap": ({}, normed),
    "loop": ({}, dropping),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_never_share_a_network_that_an_engine_writes_into(engine: str) -> None:
    """`loop` and `vmap` put weights into the module: one thread at a time."""
    change, module = ENGINES[engine]
    study = build_study(read_scenario(scenario(change)), UserObjects(model=module))
    assert Worker(study, threads=3).threads == (3 if engine in ("mlp", "conv") else 1)


def test_a_lane_has_the_same_bits_in_blocks_of_any_width() -> None:
    """Without AVX-512 blocks of three lanes differed from blocks of two in the last bit of some kernels."""
    net = build_net("cnn", (1, 12, 12), 3, "cross_entropy", channels=[10, 20], hidden=[8], kernel=5, padding=2)
    engine, example = choose_engine(net, lanes="torch"), torch.zeros(1, 12, 12)
    assert engine.name == "conv"

    def train(lanes: list[int]) -> torch.Tensor:
        return engine.train(net, make_trial(net, example, Local(lr=0.01), lanes)).final

    pairs = [train([k, k])[0] for k in range(5)]
    for width in range(2, 6):
        assert all(torch.equal(one, pairs[k]) for k, one in enumerate(train(list(range(width))))), width


def test_the_switch_stays_until_the_last_user_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")  # with AVX-512 nothing is switched
    before, first, last = torch.backends.mkldnn.enabled, ExitStack(), ExitStack()
    first.enter_context(invariant_convolutions(torch.device("cpu")))
    assert not bool(torch.backends.mkldnn.enabled)
    last.enter_context(invariant_convolutions(torch.device("cpu")))
    first.close()
    assert not bool(torch.backends.mkldnn.enabled)
    last.close()
    assert torch.backends.mkldnn.enabled == before


WIDTH = 6


class Closed(nn.Module):
    """Normalization behind a gate that is closed at first: the first outputs show nothing of it."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.gate, self.norm = nn.Parameter(torch.zeros(1)), nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.gate * self.norm(x)
        return out


ROWWISE: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}
MIXING: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
    "centering": lambda: Apply(lambda x: x - x.mean(0)),
    "sharing": lambda: Apply(lambda x: x + x.sum(0) - x.sum(0).detach()),  # a sum that has no value, only a gradient
    "counting": lambda: Apply(lambda x: x / x.shape[0]),  # only the number of rows enters
    "closed": Closed,
}


@settings(max_examples=20, deadline=None)
@given(
    parts=st.lists(st.sampled_from([*ROWWISE, *MIXING]), min_size=1, max_size=5),
    sizes=st.lists(st.integers(4, 23).filter(lambda n: n % 4 != 1), min_size=2, max_size=5),
    kind=st.sampled_from(["sgd", "momentum"]),
)
def test_padding_enters_no_batch_statistics(parts: list[str], sizes: list[int], kind: str) -> None:
    """Random networks on ragged clients: the engine that is chosen computes what unpadded batches give."""
    made = {**ROWWISE, **MIXING}

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, WIDTH), *(made[part]() for part in parts), nn.Linear(WIDTH, 3))

    net = net_of(build, "own", "cross_entropy", 3)
    engine = choose_engine(net, "cpu", torch.zeros(4, dtype=torch.float64))
    assert (engine.name == "loop") == any(part in MIXING for part in parts)
    block = make_block(net, (4,), LOCALS[kind], sizes, torch.float64, epochs=3)
    torch.testing.assert_close(engine.train(net, block).final, loop.train_loop(net, block).final, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", MIXING)
def test_rows_that_see_each_other_are_noticed_and_the_reason_is_said(kind: str) -> None:
    """In single precision, too, and for tokens."""
    net = net_of(lambda: nn.Sequential(nn.Linear(4, WIDTH), MIXING[kind](), nn.Linear(WIDTH, 3)), "own", "mse", 3)
    assert "the rows of a batch see each other" in choose_engine(net, "cpu", torch.zeros(4)).why
    single = Apply(lambda x: x @ torch.ones(WIDTH, WIDTH))  # takes no double precision
    net = net_of(lambda: nn.Sequential(nn.Linear(4, WIDTH), single, MIXING[kind]()), "own", "mse", WIDTH)
    assert "the rows of a batch see each other" in choose_engine(net, "cpu", torch.zeros(4)).why
    tokens = net_of(lambda: nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), MIXING[kind]()), "own", "mse", 6)
    assert "the rows of a batch see each other" in choose_engine(tokens, "cpu", torch.zeros(3, dtype=torch.int64)).why
