"""The work that every simulator is given, the plain PyTorch loop beside it, and how processor time is counted.

This file runs in the environment of each simulator. It needs torch, numpy and psutil only.
"""

import functools
import itertools
import json
import resource
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import Tensor, nn

LR, BATCH, CLASSES = 0.1, 10, 10


def perceptron() -> nn.Module:
    """Returns a network with 64 inputs, 64 hidden units and 10 classes."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def small_cnn() -> nn.Module:
    """Convolutions of 10 and 20 channels, 50 hidden units."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, CLASSES),
    )  # fmt: skip


def wide_cnn() -> nn.Module:
    """Convolutions of 32 and 64 channels, 128 hidden units: 1.2 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One row of the comparison: FedAvg, one local epoch, batches of ten, learning rate 0.1.

    Attributes:
        module: Makes the network.
        shape: Shape of one input.
        clients: Clients in all.
        samples: Training samples of each.
        chosen: Clients of a round.
        rounds: Rounds that are timed.
    """

    module: type
    shape: tuple
    clients: int
    samples: int
    chosen: int
    rounds: int

    @functools.cache  # noqa: B019
    def data(self, client: int) -> tuple[Tensor, Tensor]:
        """Inputs `[n, *shape]` and labels `[n]` of a client: every class has a centre, and noise around it."""
        centre = np.random.default_rng(0).normal(size=(CLASSES, *self.shape)).astype(np.float32)
        rng = np.random.default_rng([1, client])
        y = rng.integers(0, CLASSES, self.samples)
        x = centre[y] + rng.normal(size=(self.samples, *self.shape)).astype(np.float32)
        return torch.from_numpy(x), torch.from_numpy(y)


WORKS = {
    "thousand": Work(perceptron, (64,), 1_000, 20, 100, 20),
    "ten_thousand": Work(perceptron, (64,), 10_000, 20, 1_000, 5),
    "cnn": Work(small_cnn, (1, 28, 28), 100, 100, 10, 10),
    "wide_cnn": Work(wide_cnn, (1, 28, 28), 100, 100, 10, 5),
}


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Trains for one epoch of plain SGD. Batches are taken by index."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for index in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()


def plain_round(model: nn.Module, clients: list, chosen: list) -> None:
    """Runs a round of FedAvg: every chosen client trains the model, and the mean becomes the next model."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for client in chosen:
        model.load_state_dict(start)
        train(model, *clients[client])
        for name, value in model.state_dict().items():
            total[name] += value
    model.load_state_dict({name: value / len(chosen) for name, value in total.items()})


def tree_seconds() -> float:
    """Returns the CPU seconds of this process and of all processes below it, running or ended."""
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + reaped.ru_utime + reaped.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return total


class Laps:
    """Processor seconds between calls of `lap`, which a simulator makes at the end of each round."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def lap(self) -> None:
        """Marks the end of a round."""
        self.marks.append(tree_seconds())

    def median(self) -> float:
        """Returns the median seconds of a round. The first two rounds are left out."""
        steady = self.marks[2:]
        return statistics.median(b - a for a, b in itertools.pairwise(steady))


def time_plain(work: Work, clients: list, rounds: int) -> tuple[float, nn.Module]:
    """Returns the median CPU seconds of a round of the plain loop, and the model that it trained."""
    torch.manual_seed(0)
    model, laps, rng = work.module(), [], np.random.default_rng(0)
    for _ in range(rounds + 1):
        before = time.process_time()
        plain_round(model, clients, rng.choice(work.clients, work.chosen, replace=False).tolist())
        laps.append(time.process_time() - before)
    return statistics.median(laps[1:]), model


def accuracy(model: nn.Module, clients: list) -> float:
    """Returns the share of the first twenty clients' training samples that the model gets right."""
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean() for x, y in clients[:20]]
    return float(torch.stack(right).mean())


def compare(name: str, version: str, run) -> None:
    """Runs a simulator between two timings of the plain loop, and prints one line of JSON.

    Args:
        name: The simulator.
        version: Its version.
        run: A function (work, rounds, clients, laps) -> the trained module; calls `laps.lap()` after each round.
    """
    torch.set_num_threads(1)
    work = WORKS[sys.argv[1]]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else work.rounds
    clients = [work.data(client) for client in range(work.clients)]
    before, _ = time_plain(work, clients, max(3, rounds // 2))
    laps = Laps()
    model = run(work, rounds + 3, clients, laps)
    after, plain = time_plain(work, clients, max(3, rounds // 2))
    print(
        json.dumps(
            {
                "simulator": name,
                "version": version,
                "torch": torch.__version__,
                "work": sys.argv[1],
                "plain_seconds": round((before + after) / 2, 5),
                "seconds": round(laps.median(), 5),
                "ratio": round(laps.median() / ((before + after) / 2), 3),
                "accuracy": round(accuracy(model, clients), 4),
                "plain_accuracy": round(accuracy(plain, clients), 4),
            }
        )
    )
