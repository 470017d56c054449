"""Every engine computes what the plain loop computes, and a lane cannot see its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from blocks import ENGINES, LOCALS, NETS, SHAPES, make_block, perceptron
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedray.core import rng
from fedray.core.method import Local
from fedray.core.types import Objective
from fedray.training import block as blocks
from fedray.training import layers, loop
from fedray.training.block import make_optimizer


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", LOCALS)
@pytest.mark.parametrize(("offset", "anchor"), [(False, False), (True, False), (False, True), (True, True)])
def test_every_engine_equals_the_loop_in_float64_after_20_steps(
    engine: str, kind: str, offset: bool, anchor: bool
) -> None:
    """Every optimiser under every pull: to where it started or to an anchor, with and without a constant."""
    net, sizes = NETS[engine](), [17, 20, 9, 20]
    block = make_block(net, SHAPES[engine], LOCALS[kind], sizes, torch.float64, offset=offset, epochs=4, anchor=anchor)
    assert block.steps.max() == 20
    reference, trained = loop.train_loop(net, block), ENGINES[engine](net, block)
    moved = (reference.final - block.start).abs().max()
    assert moved > 1e-2
    assert (trained.final - reference.final).abs().max() < 1e-10
    assert (trained.loss - reference.loss).abs().max() < 1e-9


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["sgd", "decay", "momentum", "prox"])
def test_the_losses_of_a_rate_that_has_fallen_to_0_were_no_numbers(engine: str, kind: str) -> None:
    """A cosine ends there. The models stay where they are."""
    net = NETS[engine]()
    block = make_block(net, SHAPES[engine], LOCALS[kind], [17, 20, 9, 20], torch.float64, epochs=2)._replace(lr=0.0)
    reference, trained = loop.train_loop(net, block), ENGINES[engine](net, block)
    assert torch.equal(trained.final, block.start)
    torch.testing.assert_close(trained.loss, reference.loss, rtol=0, atol=1e-9)


@pytest.mark.parametrize("pull", [0.01, 0.3])
def test_a_weight_without_a_gradient_stays_under_adam_and_a_pull_to_where_it_began(pull: float) -> None:
    """The pull there is 0; Adam divides a rounding error in its place by itself, and the weight moves by the rate."""
    start = torch.randn(1, 200, generator=torch.Generator().manual_seed(0))
    params = [start.clone()]
    step = make_optimizer(Local(optimizer="adam", lr=0.1, pull=pull), 0.1, [start], [])
    for _ in range(20):
        step(params, [torch.zeros(1, 200)], None)
    assert torch.equal(params[0], start)


@pytest.mark.parametrize("objective", ["half_mse", "mse", "gaussian_nll"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_regression_objectives_equal_the_loop(objective: Objective, activation: type[nn.Module], kind: str) -> None:
    out = 2 if objective == "gaussian_nll" else 3
    net = perceptron(activation, objective, out)
    block = make_block(net, (6,), LOCALS[kind], [12, 7, 12], torch.float64, epochs=4)
    if objective == "gaussian_nll":
        whole = block.read
        block = block._replace(read=lambda a, b: (whole(a, b)[0], whole(a, b)[1][..., :1]))
    assert (layers.train_mlp(net, block).final - loop.train_loop(net, block).final).abs().max() < 1e-10


@pytest.mark.parametrize("engine", ENGINES)
def test_float32_stays_within_rounding_of_the_loop(engine: str) -> None:
    net = NETS[engine]()
    block = make_block(net, SHAPES[engine], LOCALS["momentum"], [20, 12, 20], torch.float32)
    reference = loop.train_loop(net, block).final
    assert (ENGINES[engine](net, block).final - reference).abs().max() < 1e-4


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_bits_of_a_lane_do_not_depend_on_other_lanes(engine: str, data: st.DataObject) -> None:
    """Any mixture of sizes, batch sizes, lanes and packing."""
    net, shape = NETS[engine](), SHAPES[engine]
    sizes = data.draw(st.lists(st.integers(4, 23), min_size=4, max_size=12))
    batch = data.draw(st.sampled_from([1, 3, 4]))
    kind = data.draw(st.sampled_from(sorted(LOCALS)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    everyone = make_block(net, shape, LOCALS[kind], sizes, dtype, epochs=2, batch=batch)
    order = np.argsort(-blocks.count_steps(np.array(sizes), everyone.local), kind="stable")
    whole = dict(zip(order.tolist(), ENGINES[engine](net, everyone).final, strict=True))
    some = data.draw(st.lists(st.sampled_from(range(len(sizes))), min_size=2, max_size=6, unique=True))
    part = make_block(net, shape, LOCALS[kind], sizes, dtype, epochs=2, batch=batch, lanes=some)
    mine = np.array(some)[np.argsort(-blocks.count_steps(np.array(sizes)[some], everyone.local), kind="stable")]
    for lane, final in zip(mine.tolist(), ENGINES[engine](net, part).final, strict=True):
        assert torch.equal(final, whole[lane])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 8), st.integers(1, 3))
def test_batches_deal_every_row_once_an_epoch(sizes: list[int], width: int, epochs: int) -> None:
    local = Local(batch_size=width, epochs=epochs)
    size = np.sort(np.array(sizes))[::-1].copy()
    steps = blocks.count_steps(size, local)
    rows = np.arange(len(size))[:, None] * 100 + np.arange(size.max())
    index, weight = blocks.deal_batches(rows, size, steps, width, rng.keys(3, "batches", 0, np.arange(len(size))))
    for lane, n in enumerate(size):
        mine = index[:, lane][weight[:, lane] > 0].numpy()
        assert sorted(mine.tolist()) == sorted(list(range(lane * 100, lane * 100 + n)) * epochs)
        assert torch.allclose(weight[: steps[lane], lane].sum(-1), torch.ones(int(steps[lane])))
        assert weight[steps[lane] :, lane].sum() == 0
