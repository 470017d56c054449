"""Every engine computes what the plain loop computes, and a lane cannot see its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.types import Local, Net
from fedray.models.net import net_of
from fedray.training import block as blocks
from fedray.training import conv, loop, mlp, vmap

ENGINES = {"mlp": mlp, "conv": conv, "vmap": vmap}


def perceptron(activation: type[nn.Module] = nn.ReLU, objective: str = "cross_entropy", out: int = 4) -> Net:
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
    net: Net, shape: tuple[int, ...], local: Local, sizes: list[int], dtype: torch.dtype, offset: bool = False,
    epochs: int = 5, batch: int = 4, lanes: list[int] | None = None, anchor: bool = False,
) -> blocks.Block:  # fmt: skip
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
    steps = blocks.steps_of(size, local)
    who = who[np.argsort(-steps[who], kind="stable")]
    rows = (who[:, None] * n + np.arange(n)).astype(np.int64)
    index, weight = blocks.batches(rows, size[who], steps[who], batch, rng.keys(0, "batches", 0, who))

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        return x[index[lo:hi]], targets[index[lo:hi]]

    lr = 0.005 if local.optimizer == "adam" else 0.05  # Adam divides by the gradient's size: it amplifies rounding
    return blocks.Block(
        start[who], torch.zeros(len(who), 0, dtype=torch.int64), read, weight.to(dtype), steps[who], local, lr,
        rng.keys(0, "drop", who), int(np.prod(shape)), goal[who] if anchor else None, shift[who] if offset else None,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", LOCALS)
@pytest.mark.parametrize(("offset", "anchor"), [(False, False), (True, False), (False, True), (True, True)])
def test_every_engine_equals_the_loop_in_float64_after_50_steps(
    engine: str, kind: str, offset: bool, anchor: bool
) -> None:
    """Every optimiser under every pull: to where it started or to an anchor, with and without a constant."""
    net, sizes = NETS[engine](), [17, 20, 9, 20]
    block = make_block(net, SHAPES[engine], LOCALS[kind], sizes, torch.float64, offset, epochs=10, anchor=anchor)
    assert block.steps.max() == 50
    reference, trained = loop.train(net, block), ENGINES[engine].train(net, block)
    moved = (reference.final - block.start).abs().max()
    assert moved > 1e-2
    assert (trained.final - reference.final).abs().max() < 1e-10
    assert (trained.loss - reference.loss).abs().max() < 1e-9


@pytest.mark.parametrize("objective", ["half_mse", "mse", "gaussian_nll"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_regression_objectives_equal_the_loop(objective: str, activation: type[nn.Module], kind: str) -> None:
    out = 2 if objective == "gaussian_nll" else 3
    net = perceptron(activation, objective, out)
    block = make_block(net, (6,), LOCALS[kind], [12, 7, 12], torch.float64, epochs=4)
    if objective == "gaussian_nll":
        whole = block.read
        block = block._replace(read=lambda a, b: (whole(a, b)[0], whole(a, b)[1][..., :1]))
    assert (mlp.train(net, block).final - loop.train(net, block).final).abs().max() < 1e-10


@pytest.mark.parametrize("engine", ENGINES)
def test_float32_stays_within_rounding_of_the_loop(engine: str) -> None:
    net = NETS[engine]()
    block = make_block(net, SHAPES[engine], LOCALS["momentum"], [20, 12, 20], torch.float32)
    reference = loop.train(net, block).final
    assert (ENGINES[engine].train(net, block).final - reference).abs().max() < 1e-4


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_lane_has_the_same_bits_in_every_company(engine: str, data: st.DataObject) -> None:
    """Any mixture of sizes, batch sizes, lanes and packing."""
    net, shape = NETS[engine](), SHAPES[engine]
    sizes = data.draw(st.lists(st.integers(4, 23), min_size=4, max_size=12))
    batch = data.draw(st.sampled_from([1, 3, 4]))
    kind = data.draw(st.sampled_from(sorted(LOCALS)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    everyone = make_block(net, shape, LOCALS[kind], sizes, dtype, epochs=2, batch=batch)
    order = np.argsort(-blocks.steps_of(np.array(sizes), everyone.local), kind="stable")
    whole = dict(zip(order.tolist(), ENGINES[engine].train(net, everyone).final, strict=True))
    some = data.draw(st.lists(st.sampled_from(range(len(sizes))), min_size=2, max_size=6, unique=True))
    part = make_block(net, shape, LOCALS[kind], sizes, dtype, epochs=2, batch=batch, lanes=some)
    mine = np.array(some)[np.argsort(-blocks.steps_of(np.array(sizes)[some], everyone.local), kind="stable")]
    for lane, final in zip(mine.tolist(), ENGINES[engine].train(net, part).final, strict=True):
        assert torch.equal(final, whole[lane])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 8), st.integers(1, 3))
def test_batches_deal_every_row_once_an_epoch(sizes: list[int], width: int, epochs: int) -> None:
    local = Local(batch_size=width, epochs=epochs)
    size = np.sort(np.array(sizes))[::-1].copy()
    steps = blocks.steps_of(size, local)
    rows = np.arange(len(size))[:, None] * 100 + np.arange(size.max())
    index, weight = blocks.batches(rows, size, steps, width, rng.keys(3, "batches", 0, np.arange(len(size))))
    for lane, n in enumerate(size):
        mine = index[:, lane][weight[:, lane] > 0].numpy()
        assert sorted(mine.tolist()) == sorted(list(range(lane * 100, lane * 100 + n)) * epochs)
        assert torch.allclose(weight[: steps[lane], lane].sum(-1), torch.ones(int(steps[lane])))
        assert weight[steps[lane] :, lane].sum() == 0
