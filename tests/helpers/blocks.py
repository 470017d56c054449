"""Networks and blocks of lanes, small enough to train in every way."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.method import Local
from fedray.core.types import Net, Objective
from fedray.models.net import net_of
from fedray.training import block, layers, loop

ENGINES = {"mlp": layers.train_mlp, "conv": layers.train_conv, "vmap": loop.train_vmap}


def perceptron(activation: type[nn.Module] = nn.ReLU, objective: Objective = "cross_entropy", out: int = 4) -> Net:
    return net_of(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(6, 9), activation(), nn.Linear(9, 5), activation(), nn.Linear(5, out)
        ),
        "mlp", objective, out,
    )  # fmt: skip


def convolution() -> Net:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.Tanh(),
            nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3),
        )  # fmt: skip

    return net_of(build, "cnn", "cross_entropy", 3)


NETS = {"mlp": perceptron, "conv": convolution, "vmap": perceptron}
SHAPES = {"mlp": (6,), "conv": (2, 6, 6), "vmap": (6,)}
FULL = Local(batch_size=None, epochs=None, steps=12)
LOCALS = {
    "sgd": Local(),
    "decay": Local(weight_decay=0.01),
    "momentum": Local(momentum=0.9, weight_decay=0.01),
    "adam": Local(optimizer="adam", weight_decay=0.01),
    "prox": Local(pull=0.3),
    "momentum+prox": Local(momentum=0.9, weight_decay=0.01, pull=0.3),
    "adam+prox": Local(optimizer="adam", pull=0.3),
}


def make_block(
    net: Net, shape: tuple[int, ...], local: Local, sizes: list[int], dtype: torch.dtype, *, offset: bool = False,
    epochs: int = 5, batch: int = 4, lanes: list[int] | None = None, anchor: bool = False,
) -> block.Block:  # fmt: skip
    """Lanes with data and starts by address; `lanes` picks some of the population; offset and anchor: of the pull."""
    who = np.arange(len(sizes)) if lanes is None else np.array(lanes)
    n, size = max(sizes), np.array(sizes)
    regression = net.objective != "cross_entropy"
    g = torch.Generator().manual_seed(1)
    x = torch.randn(len(sizes) * n, *shape, generator=g, dtype=torch.float64).to(dtype)
    y = torch.randint(net.outputs, (len(sizes) * n,), generator=g)
    targets = torch.randn(len(sizes) * n, net.outputs, generator=g, dtype=torch.float64).to(dtype) if regression else y
    start = torch.stack([net.init(int(rng.keys(0, "init", i % 3))) for i in range(len(sizes))]).to(dtype)
    shift, goal = (torch.randn(start.shape, generator=g, dtype=torch.float64).to(dtype) * 0.1 for _ in range(2))
    local = Local(**{**local.__dict__, "epochs": epochs, "batch_size": batch})
    steps = block.count_steps(size, local)
    who = who[np.argsort(-steps[who], kind="stable")]
    rows = (who[:, None] * n + np.arange(n)).astype(np.int64)
    index, weight = block.deal_batches(rows, size[who], steps[who], batch, rng.keys(0, "batches", 0, who))

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        return x[index[lo:hi]], targets[index[lo:hi]]

    lr = 0.005 if local.optimizer == "adam" else 0.05  # Adam divides by the gradient's size: it amplifies rounding
    return block.Block(
        start[who], torch.zeros(len(who), 0, dtype=torch.int64), read, weight.to(dtype), steps[who], local, lr,
        rng.keys(0, "drop", who), int(np.prod(shape)), goal[who] if anchor else None, shift[who] if offset else None,
    )  # fmt: skip


def full_batches(net: Net, size: int, lanes: list[int], dtype: torch.dtype = torch.float32) -> block.Block:
    """Twelve steps of clients with `size` rows each, which the kernel reads; samples that weigh unequally."""
    who, steps, inputs = np.array(lanes), np.full(len(lanes), FULL.steps), net.layout.shapes[0][1]
    draw = torch.Generator().manual_seed(size)
    x, y = torch.randn(8 * size, inputs, generator=draw), torch.randint(net.outputs, (8 * size,), generator=draw)
    targets = y if net.objective == "cross_entropy" else torch.randn(8 * size, net.outputs, generator=draw)
    rows, key = who[:, None] * size + np.arange(size), rng.keys(0, "batches", 0, who)
    width = int(block.choose_batch_width(np.array([size]), None)[0])
    index, weight = block.deal_batches(rows, np.full(len(who), size), steps, width, key)
    share = (torch.rand(8 * size, generator=draw) + 0.5)[index]

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        made = targets[index[lo:hi]]
        return x[index[lo:hi]].to(dtype), made.to(dtype) if made.is_floating_point() else made

    start = torch.stack([net.init(lane) for lane in lanes]).to(dtype)
    none = torch.zeros(len(who), 0, dtype=torch.int64)
    source = block.BatchSource(x, targets, index, None, np.zeros(len(who), np.int64))
    more = (steps, FULL, 0.05, key, inputs)
    return block.Block(start, none, read, (weight * share).to(dtype), *more, source=source)
