"""Padding never enters a result: where the rows of a batch see each other, no batch is padded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from blocks import LOCALS, make_block
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedray
from fedray.data.types import Split, classification
from fedray.models.net import net_of
from fedray.training import loop
from fedray.training.choice import choose_engine

WIDTH = 6


class Centering(nn.Module):
    """Subtracts the batch's mean."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Sharing(nn.Module):
    """A sum over the batch that has no value, only a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum(0)
        return x + total - total.detach()


class Counting(nn.Module):
    """Only the number of rows enters."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.shape[0]


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
    "centering": Centering,
    "sharing": Sharing,
    "counting": Counting,
    "closed": Closed,
}


@settings(max_examples=40, deadline=None)
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
    tokens = net_of(lambda: nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), MIXING[kind]()), "own", "mse", 6)
    assert "the rows of a batch see each other" in choose_engine(tokens, "cpu", torch.zeros(3, dtype=torch.int64)).why


def test_a_module_that_only_takes_single_precision_is_still_tried() -> None:
    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.ones(WIDTH, WIDTH)

    rowwise = net_of(lambda: nn.Sequential(nn.Linear(4, WIDTH), Single(), nn.Linear(WIDTH, 3)), "own", "mse", 3)
    assert choose_engine(rowwise, "cpu", torch.zeros(4)).name == "vmap"
    mixing = net_of(lambda: nn.Sequential(nn.Linear(4, WIDTH), Single(), Centering()), "own", "mse", WIDTH)
    assert choose_engine(mixing, "cpu", torch.zeros(4)).name == "loop"


def test_the_manifest_says_that_rows_see_each_other(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    data = classification("mine", Split(x[:60], y[:60]), Split(x[60:], y[60:]), ("no", "yes"))

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.Linear(WIDTH, 2))

    keys = {"rounds": 1, "clients": {"number": 4}, "runtime": "inline", "method": {"name": "fedavg"}}
    fedray.run(keys, data=data, model=build, out=tmp_path / "run")
    engine = json.loads((tmp_path / "run" / "manifest.json").read_text())["engine"]
    assert engine["name"] == "loop"
    assert "the rows of a batch see each other" in engine["why"]
