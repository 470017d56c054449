"""Every engine computes what the plain loop computes, and a lane cannot see its neighbours: one matrix of engines."""

import itertools
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from blocks import CASES, COMPILED, FEW, LOCALS, SIZES, TORCH, Case, block_of, make_block, perceptron, variants
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedray.core import rng
from fedray.core import sums as native
from fedray.core.method import Local
from fedray.core.types import LastBatch, Net, Objective
from fedray.training import block as blocks
from fedray.training import loop
from fedray.training.block import make_optimizer
from fedray.training.choice import choose_engine

needs_kernels = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def of(names: object) -> list[object]:
    """Parameters for engines, of which the compiled ones may not have been built."""
    return [pytest.param(one, marks=needs_kernels) if one in COMPILED else one for one in list(names)]  # type: ignore[call-overload]


PAIRS = [
    pytest.param(name, kind, marks=needs_kernels if name in COMPILED else ())
    for name in CASES
    for kind in LOCALS
    if kind in FEW or name not in list(COMPILED)[2:]
]
ALL = pytest.mark.parametrize("engine", of(CASES))
REFERENCES: dict[object, tuple[Net, blocks.Trained]] = {}  # what the loop trains; engines of one network share it


def compare(case: Case, block: blocks.Block, *address: object) -> None:
    key = (id(case.net), *address)
    if key not in REFERENCES:
        REFERENCES[key] = case.net, loop.train_loop(case.net, block)  # the network is held: its id is not given again
    (_, reference), found = REFERENCES[key], case.train(case.net, block)
    assert (reference.final - block.start).abs().max() > 1e-4 and reference.final.isfinite().all()
    assert (found.final - reference.final).abs().max() < 1e-10
    assert (found.loss - reference.loss).abs().max() < 1e-9


@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_every_engine_equals_the_loop_in_float64(engine: str, kind: str) -> None:
    """Every optimizer under every pull, to where it started or to an anchor, with and without a constant."""
    case = CASES[engine]
    for offset, anchor, batch in ((False, False, 4), (True, False, 16), (False, True, 16), (True, True, 5)):
        block = block_of(case, kind, torch.float64, offset=offset, anchor=anchor, batch=batch)
        compare(case, block, kind, offset, anchor)


@pytest.mark.parametrize("last", ["drop", "merge"])
@pytest.mark.parametrize("engine", of(["mlp", "mlp-c", "conv", "conv-c", "vmap"]))
def test_every_engine_trains_on_the_batches_without_a_short_last_one(engine: str, last: LastBatch) -> None:
    case = CASES[engine]
    block = block_of(case, "sgd", torch.float64, batch=6, last=last)
    assert (block.weight > 0).sum(-1).max() == (6 if last == "drop" else 11)  # of 17 rows, say
    compare(case, block, last)


@pytest.mark.parametrize("objective", ["half_mse", "mse", "gaussian_nll"])
@pytest.mark.parametrize("engine", of(["mlp", "mlp-c", "conv", "conv-c max"]))
def test_regression_objectives_equal_the_loop(engine: str, objective: Objective) -> None:
    case = CASES[engine]
    for activation, kind in itertools.product((nn.ReLU, nn.Tanh), ("sgd", "adam")):
        flat = len(case.shape) == 1
        case = case._replace(net=perceptron(activation, objective) if flat else replace(case.net, objective=objective))
        block = block_of(case, kind, torch.float64)
        compare(case, block._replace(lr=block.lr / 5), activation, kind, objective)


@ALL
@pytest.mark.parametrize("kind", ["sgd", "decay", "momentum", "prox"])
def test_the_losses_of_a_rate_that_has_fallen_to_0_were_no_numbers(engine: str, kind: str) -> None:
    """A cosine ends there. The models stay where they are."""
    case = CASES[engine]
    block = block_of(case, kind, torch.float64, epochs=1)._replace(lr=0.0)
    reference, trained = loop.train_loop(case.net, block), case.train(case.net, block)
    assert torch.equal(trained.final, block.start)
    torch.testing.assert_close(trained.loss, reference.loss, rtol=0, atol=1e-9)


@ALL
@pytest.mark.parametrize("kind", ["sgd", "momentum"])
def test_in_single_precision_an_engine_is_as_exact_as_the_loop(engine: str, kind: str) -> None:
    case = CASES[engine]
    block, exact = (block_of(case, kind, dtype) for dtype in (torch.float32, torch.float64))
    wanted = loop.train_loop(case.net, exact).final
    ours, plain = (
        float((train(case.net, block).final - wanted).abs().max()) for train in (case.train, loop.train_loop)
    )
    assert ours < 2 * plain + 1e-6


@ALL
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_the_bits_of_a_lane_do_not_depend_on_other_lanes(engine: str, data: st.DataObject) -> None:
    """Any mixture of sizes, batch sizes, lanes and packing."""
    case = CASES[engine]
    small = case.epochs < 3
    sizes = data.draw(st.lists(st.integers(4, 9 if small else 23), min_size=4, max_size=5 if small else 12))
    batch = data.draw(st.sampled_from([1, 3, 4]))
    local = LOCALS[data.draw(st.sampled_from(sorted(LOCALS)))]
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    offset = data.draw(st.booleans())
    some = data.draw(st.lists(st.sampled_from(range(len(sizes))), min_size=1, max_size=6, unique=True))
    if len(some) == 1 and engine not in COMPILED:
        some = [*some, (some[0] + 1) % len(sizes)]  # torch's kernels for one lane round otherwise

    def train(lanes: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
        more = {"epochs": case.epochs // 2 or 1, "batch": batch, "offset": offset}
        block = make_block(case.net, case.shape, local, sizes, dtype, lanes=lanes, **more)  # type: ignore[arg-type]
        done, steps = case.train(case.net, block), blocks.count_steps(np.array(sizes), block.local)
        order = np.array(lanes)[np.argsort(-steps[lanes], kind="stable")]
        return dict(zip(order.tolist(), zip(done.final, done.loss, strict=True), strict=True))

    whole = train(list(range(len(sizes))))
    for lane, (final, loss) in train(some).items():
        assert torch.equal(final, whole[lane][0])
        assert engine not in COMPILED or torch.equal(loss, whole[lane][1])


OPTIMIZERS = {  # of a scenario -> torch's
    Local(momentum=0.9, nesterov=True, weight_decay=0.1): (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    Local(optimizer="adam", weight_decay=0.1): (torch.optim.Adam, {}),
    Local(optimizer="adamw", weight_decay=0.1): (torch.optim.AdamW, {}),
    Local(optimizer="rmsprop", weight_decay=0.1): (torch.optim.RMSprop, {}),
}


@pytest.mark.parametrize("local", OPTIMIZERS, ids=lambda local: local.optimizer)
def test_one_client_moves_as_the_optimizers_of_torch_do(local: Local) -> None:
    """Every engine that may train with it: the two lanes of a block, and torch's optimizer on each of them."""
    make, more = OPTIMIZERS[local]
    for case in (CASES["mlp"], CASES["conv"], CASES["vmap"]):
        block = make_block(case.net, case.shape, local, [9, 9], torch.float64, epochs=2)._replace(lr=0.01)
        name = choose_engine(case.net, example=torch.zeros(case.shape), lanes="auto", local=local).name
        assert (name in ("mlp-c", "conv-c")) == (local.optimizer == "adam" and native.is_available())
        found, (x, y) = case.train(case.net, block).final, block.read(0, len(block.weight))
        for lane, row in enumerate(block.start):
            module = case.net.module.double()
            torch.nn.utils.vector_to_parameters(row.clone(), module.parameters())
            theirs = make(module.parameters(), lr=0.01, weight_decay=0.1, **more)
            for s, weight in enumerate(block.weight[:, lane]):
                theirs.zero_grad()
                losses = nn.functional.cross_entropy(module(x[s, lane]), y[s, lane], reduction="none")
                torch.autograd.backward((losses * weight).sum())
                theirs.step()
            expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
            assert (found[lane] - expected).abs().max() < 1e-12
            module.float()


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", COMPILED)
def test_avx2_and_avx512_give_the_same_bits(engine: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    library = native.load_library()
    if not isinstance(library, native.Library) or library.instructions != "avx512":
        pytest.skip("one instruction set only")
    cases = [CASES[engine]]
    if engine == "mlp-c":
        cases += [cases[0]._replace(net=perceptron(objective=one)) for one in ("half_mse", "mse", "gaussian_nll")]
        cases.append(cases[0]._replace(net=perceptron(nn.Tanh)))
    wide = [variants(case, dtype) for case in cases]
    monkeypatch.setattr(native, "load_library", lambda: library._replace(instructions="avx2"))
    for case, expected in zip(cases, wide, strict=True):
        for a, b in zip(variants(case, dtype), expected, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("pull", [0.01, 0.3])
def test_a_weight_without_a_gradient_stays_under_adam_and_a_pull_to_where_it_began(pull: float) -> None:
    """The pull there is 0; Adam divides a rounding error in its place by itself, and the weight moves by the rate."""
    start = torch.randn(1, 200, generator=torch.Generator().manual_seed(0))
    params = [start.clone()]
    step = make_optimizer(Local(optimizer="adam", lr=0.1, pull=pull), 0.1, [start], [])
    for _ in range(20):
        step(params, [torch.zeros(1, 200)], None)
    assert torch.equal(params[0], start)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=9),
    st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from(get_args(LastBatch)),
)
def test_batches_deal_every_row_once_an_epoch(sizes: list[int], batch: int, epochs: int, last: LastBatch) -> None:
    """With `drop` every row but those of a short last batch; no batch is short then, nor with `merge`.

    The clock counts the samples that they hold, however few steps are made.
    """
    local = Local(batch_size=batch, epochs=epochs, last_batch=last)
    size = np.sort(np.array(sizes))[::-1].copy()
    steps = blocks.count_steps(size, local)
    rows = np.arange(len(size))[:, None] * 100 + np.arange(size.max())
    width, key = int(blocks.choose_batch_width(size, local).max()), rng.keys(3, "batches", 0, np.arange(len(size)))
    index, weight = blocks.deal_batches(rows, size, steps, width, key, local=local)
    for most in (0, 1, int(steps.max())):
        read = [int((weight[: min(most, n), lane] > 0).sum()) for lane, n in enumerate(steps)]
        assert read == blocks.samples_seen(size, np.minimum(steps, most), local).tolist()
    for lane, n in enumerate(size):
        mine = index[:, lane][weight[:, lane] > 0].numpy()
        full, rest = divmod(int(n), batch)
        if last == "drop" and full and rest:
            for epoch in np.split(mine, epochs):
                assert len(set(epoch.tolist())) == len(epoch) == full * batch
                assert set(epoch.tolist()) <= set(range(lane * 100, lane * 100 + n))
        else:
            assert sorted(mine.tolist()) == sorted(list(range(lane * 100, lane * 100 + n)) * epochs)
        if last != "keep":
            assert int((weight[: steps[lane], lane] > 0).sum(-1).min()) >= min(n, batch)
        assert torch.allclose(weight[: steps[lane], lane].sum(-1), torch.ones(int(steps[lane])))
        assert weight[steps[lane] :, lane].sum() == 0


@needs_gpu
@pytest.mark.parametrize("engine", TORCH)
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "prox"])
def test_an_engine_on_cuda_equals_itself_on_the_cpu(engine: str, kind: str) -> None:
    case = CASES[engine]
    block = make_block(case.net, case.shape, LOCALS[kind], SIZES, torch.float32, epochs=3)
    reference = case.train(case.net, block).final

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        x, y = block.read(lo, hi)
        return x.cuda(), y.cuda()

    case.net.module.cuda()
    start, counters, weight = block.start.cuda(), block.counters.cuda(), block.weight.cuda()
    final = case.train(case.net, block._replace(start=start, counters=counters, read=read, weight=weight)).final.cpu()
    case.net.module.cpu()
    assert (final - reference).abs().max() < 1e-4
