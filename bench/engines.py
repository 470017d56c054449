"""Which engine trains the networks that people write, why, and at what cost: `python bench/engines.py`.

Every network trains ten clients a round, in fedray and in the plain loop by turns; the table has the ratio of the CPU
seconds of their fastest rounds, so that it can be taken on a busy machine. `--quick` measures fewer rounds,
`--only NAME` one network.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from fedray.assembly.registry import UserObjects
from fedray.bench.rows import pin_to_one_core, take_turns
from fedray.bench.works import BenchWork, fedavg_scenario, images, make_plain_laps, noise, simulate, small_cnn
from fedray.core import rng
from fedray.data.types import Split, classification
from fedray.runtime.environment import WORKER, prepare_process, use_one_thread
from fedray.scenario.loader import read_scenario
from fedray.training.choice import choose_engine

CLIENTS, SAMPLES, WORDS, LENGTH = 100, 100, 50, 20


class LeNet(nn.Module):
    """LeNet-5 with tanh and average pooling, as a class."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.f1, self.f2, self.f3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, 10]` of images `[B, 1, 28, 28]`."""
        x = F.avg_pool2d(self.c1(x).tanh(), 2)
        x = F.avg_pool2d(self.c2(x).tanh(), 2)
        x = self.f1(x.view(x.size(0), -1)).tanh()
        outputs: Tensor = self.f3(self.f2(x).tanh())
        return outputs


class Perceptron(nn.Module):
    """64 inputs, 64 hidden units, 10 classes; `between` applies the second layer, or what is tried in its place."""

    def __init__(self, between: Callable[[Perceptron, Tensor], Tensor] | None = None) -> None:
        nn.Module.__init__(self)
        self.between = between
        self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, 10]` of rows `[B, 64]`."""
        h = F.relu(self.a(x))
        outputs: Tensor = self.c(F.relu(self.b(h)) if self.between is None else self.between(self, h))
        return outputs


def residual_perceptron() -> nn.Module:
    """Returns a perceptron in which the second layer's output is added to its input."""
    return Perceptron(lambda net, h: h + F.relu(net.b(h)))


def dropping_perceptron() -> nn.Module:
    """Returns a perceptron with dropout after the second layer."""
    return Perceptron(lambda net, h: F.dropout(F.relu(net.b(h)), 0.2, net.training))


def tied_perceptron() -> nn.Module:
    """Returns a perceptron in which both layers share one weight."""
    net = Perceptron()
    net.b.weight = net.a.weight
    return net


def branching_perceptron() -> nn.Module:
    """Returns a perceptron with a branch that depends on the data."""
    return Perceptron(lambda net, h: F.relu(net.b(h)) if h.mean() > 0 else net.b(h).tanh())


class GroupNormCNN(nn.Module):
    """Two convolutions with normalization behind each; `norm` makes it from the number of channels."""

    def __init__(self, norm: Callable[[int], nn.Module] = lambda channels: nn.GroupNorm(2, channels)) -> None:
        nn.Module.__init__(self)
        self.c1, self.c2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.n1, self.n2, self.head = norm(8), norm(16), nn.Linear(400, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, 10]` of images `[B, 1, 28, 28]`."""
        x = F.max_pool2d(F.relu(self.n1(self.c1(x))), 2)
        x = F.max_pool2d(F.relu(self.n2(self.c2(x))), 2)
        outputs: Tensor = self.head(x.flatten(1))
        return outputs


class Transformer(nn.Module):
    """One block of a transformer on tokens."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.embedding = nn.Embedding(WORDS, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, 10]` of tokens `[B, 20]`."""
        h = self.embedding(x)
        h = self.n1(h + self.attention(h, h, h, need_weights=False)[0])
        h = self.n2(h + self.down(F.relu(self.up(h))))
        outputs: Tensor = self.head(h.mean(1))
        return outputs


class Recurrent(nn.Module):
    """An LSTM on tokens."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.embedding, self.lstm = nn.Embedding(WORDS, 16), nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, 10]` of tokens `[B, 20]`."""
        outputs: Tensor = self.head(self.lstm(self.embedding(x))[0][:, -1])
        return outputs


class Bag(nn.Module):
    """A classifier on the mean of embedded tokens."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.embedding, self.a, self.b = nn.Embedding(WORDS, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, 10]` of tokens `[B, 20]`."""
        outputs: Tensor = self.b(F.relu(self.a(self.embedding(x).mean(1))))
        return outputs


class SmallCNN(nn.Module):
    """The network of the benchmark's row `cnn`, as a class."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, 10]` of images `[B, 1, 28, 28]`."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        outputs: Tensor = self.fc2(F.relu(self.fc1(flatten_by_view(x))))
        return outputs


def flatten_by_view(x: Tensor) -> Tensor:
    """Flattens `[B, ...]` to `[B, p]`, as many tutorials write it."""
    return x.view(-1, x.shape[1] * x.shape[2] * x.shape[3])


def batch_norm_cnn() -> nn.Module:
    """Returns the convolutional network with BatchNorm."""
    return GroupNormCNN(nn.BatchNorm2d)


def _keys() -> dict[str, Any]:
    """Returns the scenario: 100 clients, 10 a round, batches of 10, and compiled kernels if they cover the network."""
    return fedavg_scenario(CLIENTS, 10, batch_size=10) | {"lanes": "auto"}


def pictures(module: Callable[[], nn.Module]) -> BenchWork:
    """Returns data of 100 clients with 100 images of 28 x 28 each, in batches of 10."""
    return images(module, lanes="auto")


def tokens(module: Callable[[], nn.Module]) -> BenchWork:
    """Returns data of 100 clients with sequences of 20 tokens, in batches of 10."""
    random, n = rng.stream(0, "bench tokens"), CLIENTS * SAMPLES
    x, y = random.integers(0, WORDS, (n, LENGTH)), random.integers(0, 10, n)
    data = classification("noise", Split(x, y), Split(x[:100], y[:100]), tuple("0123456789"))
    return BenchWork(read_scenario(_keys()), UserObjects(data, module), module)


def rows(module: Callable[[], nn.Module]) -> BenchWork:
    """Returns data of 100 clients with samples of 64 features, in batches of 10."""
    data = noise(CLIENTS * SAMPLES, (64,))
    return BenchWork(read_scenario(_keys()), UserObjects(data, module), module)


NETWORKS: dict[str, tuple[Callable[[Callable[[], nn.Module]], BenchWork], Callable[[], nn.Module]]] = {
    "LeNet": (pictures, LeNet),
    "residual perceptron": (rows, residual_perceptron),
    "dropout": (rows, dropping_perceptron),
    "tied weights": (rows, tied_perceptron),
    "GroupNorm CNN": (pictures, GroupNormCNN),
    "transformer block": (tokens, Transformer),
    "LSTM": (tokens, Recurrent),
    "BatchNorm CNN": (pictures, batch_norm_cnn),
    "embedding classifier": (tokens, Bag),
    "branch on the data": (rows, branching_perceptron),
    "perceptron as a class": (rows, Perceptron),
    "small CNN as a class": (pictures, SmallCNN),
    "small CNN as nn.Sequential": (pictures, small_cnn),
}


class EngineRow(NamedTuple):
    """What is measured of a network.

    Attributes:
        network: Its name.
        engine: What trains it, and with how many lanes.
        ratio: Median CPU seconds of a round over those of the plain loop's.
        why: Why this engine.
    """

    network: str
    engine: str
    ratio: float
    why: str


def measure_network(name: str, quick: bool) -> EngineRow:
    """Measures one network, fedray and the plain loop by turns."""
    make, module = NETWORKS[name]
    work = make(module)
    study = work.study()
    engine = choose_engine(study.net, example=study.example, lanes=study.lanes)
    plain, (fedray, _) = make_plain_laps(study, work), simulate(study)
    plain_cost, fedray_cost = take_turns([(plain, 1), (fedray, 1)], 5 if quick else 40)
    return EngineRow(name, f"{engine.name} ({engine.width})", fedray_cost.cpu / plain_cost.cpu, engine.why)


def main(arguments: Sequence[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python bench/engines.py")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", choices=list(NETWORKS))
    chosen = parser.parse_args(arguments)
    prepare_process()
    use_one_thread()
    pin_to_one_core()
    print("| network | engine (lanes) | time over the plain loop | why |\n| --- | --- | --- | --- |", flush=True)
    for name in chosen.only or NETWORKS:
        row = measure_network(name, chosen.quick)
        print(f"| {row.network} | {row.engine} | {row.ratio:.2f} | {row.why} |", flush=True)


if __name__ == "__main__":
    if all(os.environ.get(name) == value for name, value in WORKER.items()):
        main(sys.argv[1:])
    else:  # these are read when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **WORKER})
