"""Networks and blocks of lanes, small enough to train in every way."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.method import Local
from fedray.core.types import LastBatch, Net, Objective
from fedray.models.net import net_of
from fedray.training import block, compiled, layers, loop


def perceptron(activation: type[nn.Module] = nn.ReLU, objective: Objective = "cross_entropy", out: int = 4) -> Net:
    return net_of(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(6, 9), activation(), nn.Linear(9, 5), activation(), nn.Linear(5, out)
        ),
        "mlp", objective, out,
    )  # fmt: skip


def convolution(*parts: nn.Module, outputs: int = 4) -> Net:
    """Returns a convolutional network of these parts. Without parts it is a small one on `[2, 6, 6]`."""
    made = parts or (
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.Tanh(),
        nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4),
    )  # fmt: skip

    def draw() -> nn.Module:
        for part in made:
            if isinstance(part, nn.Conv2d | nn.Linear):
                part.reset_parameters()  # by the seed of `Net.init`: what is drawn at import differs in every process
        return nn.Sequential(*made)

    return net_of(draw, "cnn", "cross_entropy", outputs)


def _classic(*between: nn.Module, width: int, bias: bool = True) -> Net:
    return convolution(
        nn.Conv2d(1, 6, 3), *between, nn.Conv2d(6, 9, 3, bias=bias), nn.ReLU(), nn.Flatten(), nn.Linear(9 * width, 7),
        nn.ReLU(), nn.Linear(7, 4), outputs=4,
    )  # fmt: skip


class Case(NamedTuple):
    """An engine with a network that it trains."""

    train: Callable[[Net, block.Block], block.Trained]
    net: Net
    shape: tuple[int, ...]  # of its inputs
    epochs: int = 3  # as many as leave a test short


_ROWS, _IMAGES = perceptron(), convolution()
TORCH = {
    "mlp": Case(layers.train_mlp, _ROWS, (6,)),
    "conv": Case(layers.train_conv, _IMAGES, (2, 6, 6)),
    "vmap": Case(loop.train_vmap, _ROWS, (6,)),
}
COMPILED = {
    "mlp-c": Case(compiled.train_compiled, _ROWS, (6,)),
    "conv-c": Case(compiled.train_compiled, _IMAGES, (2, 6, 6)),
    "conv-c max": Case(compiled.train_compiled, _classic(nn.ReLU(), nn.MaxPool2d(2), width=9), (1, 12, 12), 2),
    "conv-c average": Case(compiled.train_compiled, _classic(nn.Tanh(), nn.AvgPool2d(2), width=9), (1, 12, 12), 2),
    "conv-c none": Case(compiled.train_compiled, _classic(nn.ReLU(), width=64, bias=False), (1, 12, 12), 1),
    "conv-c odd": Case(  # padding, windows that leave rows over, several channels, a linear convolution
        compiled.train_compiled,
        convolution(
            nn.Conv2d(3, 5, (3, 2), padding=(1, 2)), nn.MaxPool2d(2), nn.Tanh(), nn.Conv2d(5, 33, 2, padding=1),
            nn.Conv2d(33, 3, 2), nn.ReLU(), nn.AvgPool2d((2, 3)), nn.Flatten(), nn.Linear(6, 4, bias=False), outputs=4,
        ),
        (3, 7, 9), 2,
    ),
    "conv-c large": Case(  # its kernel and its linear layer take the ways of large ones
        compiled.train_compiled,
        convolution(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(48 * 25, 64), nn.ReLU(), nn.Linear(64, 4), outputs=4,
        ),
        (1, 14, 14), 1,
    ),
}  # fmt: skip
CASES = {**TORCH, **COMPILED}
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
    epochs: int = 5, batch: int = 4, lanes: list[int] | None = None, anchor: bool = False, last: LastBatch = "keep",
) -> block.Block:  # fmt: skip
    """Lanes with data and starts by address; `lanes` picks some of the population; offset and anchor: of the pull."""
    who = np.arange(len(sizes)) if lanes is None else np.array(lanes)
    n, size = max(sizes), np.array(sizes)
    regression = net.objective != "cross_entropy"
    numbers = net.outputs // (2 if net.objective == "gaussian_nll" else 1)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(len(sizes) * n, *shape, generator=g, dtype=torch.float64).to(dtype)
    y = torch.randint(net.outputs, (len(sizes) * n,), generator=g)
    targets = torch.randn(len(sizes) * n, numbers, generator=g, dtype=torch.float64).to(dtype) if regression else y
    start = torch.stack([net.init(int(rng.keys(0, "init", i % 3))) for i in range(len(sizes))]).to(dtype)
    shift, goal = (torch.randn(start.shape, generator=g, dtype=torch.float64).to(dtype) * 0.1 for _ in range(2))
    local = Local(**{**local.__dict__, "epochs": epochs, "batch_size": batch, "last_batch": last})
    steps = block.count_steps(size, local)
    who = who[np.argsort(-steps[who], kind="stable")]
    rows = (who[:, None] * n + np.arange(n)).astype(np.int64)
    width = max(batch, int(block.choose_batch_width(size, local).max()))
    index, weight = block.deal_batches(rows, size[who], steps[who], width, rng.keys(0, "batches", 0, who), local=local)

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        return x[index[lo:hi]], targets[index[lo:hi]]

    lr = 0.005 if local.optimizer == "adam" else 0.05  # Adam divides by the gradient's size: it amplifies rounding
    return block.Block(
        start[who], torch.zeros(len(who), 0, dtype=torch.int64), read, weight.to(dtype), steps[who], local, lr,
        rng.keys(0, "drop", who), int(np.prod(shape)), goal[who] if anchor else None, shift[who] if offset else None,
    )  # fmt: skip


def full_batches(net: Net, size: int, lanes: list[int], dtype: torch.dtype = torch.float32) -> block.Block:
    """Returns twelve full-batch steps of clients with `size` samples each. The samples have unequal weights."""
    who, steps, inputs = np.array(lanes), np.full(len(lanes), FULL.steps), net.layout.shapes[0][1]
    draw = torch.Generator().manual_seed(size)
    x, y = torch.randn(8 * size, inputs, generator=draw), torch.randint(net.outputs, (8 * size,), generator=draw)
    targets = y if net.objective == "cross_entropy" else torch.randn(8 * size, net.outputs, generator=draw)
    rows, key = who[:, None] * size + np.arange(size), rng.keys(0, "batches", 0, who)
    width = int(block.choose_batch_width(np.array([size]), FULL)[0])
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


SIZES = [17, 20, 9, 3]  # ragged: lanes end after different numbers of steps, and last batches are padded
FEW = ("sgd", "momentum+prox", "adam")


def block_of(case: Case, kind: str, dtype: torch.dtype, **more: object) -> block.Block:
    """Lanes at a rate at which nothing diverges."""
    given = {"epochs": case.epochs, **more}
    made = make_block(case.net, case.shape, LOCALS[kind], SIZES, dtype, **given)  # type: ignore[arg-type]
    return made._replace(lr=made.lr / 5) if len(case.shape) > 1 else made


def variants(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """Models that a compiled engine trains in many ways."""
    kinds = LOCALS if len(case.shape) == 1 else FEW
    found = [case.train(case.net, block_of(case, kind, dtype, offset=kind != "sgd")).final for kind in kinds]
    if len(case.shape) == 1 and case.net.objective != "gaussian_nll":
        found.append(case.train(case.net, full_batches(case.net, 3, [0, 1, 2], dtype)).final)
    return found
