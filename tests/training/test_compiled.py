"""The compiled kernel of perceptrons computes what the torch engine computes, and its lanes never see each other."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from blocks import LOCALS, full_batches, make_block, perceptron
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedray
from fedray.core import native, rng
from fedray.core.errors import BadInput
from fedray.core.kernels import build
from fedray.core.method import Local
from fedray.core.types import Net, Objective
from fedray.models.net import net_of
from fedray.training import block as blocks
from fedray.training.choice import choose_engine
from fedray.training.compiled import train_compiled_mlp
from fedray.training.layers import train_mlp

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")

SIZES = [11, 3, 16, 5]  # ragged: lanes end after different numbers of steps, and last batches are padded
RunCode = Callable[[str, str], None]  # of the fixture `run_checked`
OBJECTIVES: list[Objective] = ["cross_entropy", "half_mse", "mse", "gaussian_nll"]


def library() -> native.Library:
    found = native.load_library()
    assert isinstance(found, native.Library)
    return found


def block_of(
    net: Net, local: Local, dtype: torch.dtype, *, offset: bool = False, anchor: bool = False, batch: int = 4,
    epochs: int = 5, lanes: list[int] | None = None,
) -> blocks.Block:  # fmt: skip
    """A block at a rate at which no optimizer diverges, and targets as the objective wants them."""
    block = make_block(
        net, (6,), local, SIZES, dtype, offset=offset, anchor=anchor, batch=batch, epochs=epochs, lanes=lanes
    )
    block = block._replace(lr=block.lr / (5 if net.objective != "cross_entropy" else 1))
    if net.objective != "gaussian_nll":
        return block

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        x, y = block.read(lo, hi)
        return x, y[..., : net.outputs // 2]

    return block._replace(read=read)


def distance(net: Net, block: blocks.Block) -> float:
    """Between both engines, relative to how far the weights went."""
    right, found = train_mlp(net, block), train_compiled_mlp(net, block)
    moved = float((right.final - block.start).abs().max())
    assert moved > 1e-4 and torch.isfinite(right.final).all()
    bound = 1e-9 if block.start.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found.loss, right.loss, rtol=bound, atol=bound)
    return float((found.final - right.final).abs().max()) / moved


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", LOCALS)
def test_in_double_precision_it_is_the_torch_engine(name: str, objective: Objective) -> None:
    """25 to 55 steps with every optimizer, pull, correction, objective, ragged sizes and batch widths."""
    net = perceptron(nn.Tanh if objective == "gaussian_nll" else nn.ReLU, objective)
    for (offset, anchor), batch in itertools.product([(False, False), (True, True)], (1, 4, 16)):
        block = block_of(net, LOCALS[name], torch.float64, offset=offset, anchor=anchor, batch=batch)
        assert distance(net, block) < 1e-10, (offset, anchor, batch)


@pytest.mark.parametrize("name", ["sgd", "decay", "momentum", "prox", "adam"])
def test_in_single_precision_it_is_the_torch_engine_up_to_rounding(name: str) -> None:
    net = perceptron(nn.Tanh)
    block = block_of(net, LOCALS[name], torch.float32)
    assert distance(net, block) < 2e-5
    exact = train_compiled_mlp(net, block_of(net, LOCALS[name], torch.float64)).final
    ours, torchs = (float((train(net, block).final - exact).abs().max()) for train in (train_compiled_mlp, train_mlp))
    assert ours < 2 * torchs + 1e-7  # as exact as torch


@st.composite
def networks(draw: st.DrawFn) -> tuple[Net, int]:
    """Perceptrons of 1 to 4 layers of any width and bias; their input size."""
    widths = draw(st.lists(st.integers(1, 40), min_size=2, max_size=5))
    bias, activation = draw(st.booleans()), draw(st.sampled_from([nn.ReLU, nn.Tanh]))

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for inside, outside in itertools.pairwise(widths):
            layers += [nn.Linear(inside, outside, bias=bias), activation()]
        return nn.Sequential(*layers[:-1])

    return net_of(make, "drawn", "half_mse", widths[-1]), widths[0]


@settings(max_examples=40, deadline=None)
@given(networks(), st.integers(1, 20), st.sampled_from(["sgd", "decay", "momentum", "adam"]), st.booleans())
def test_any_shape(drawn: tuple[Net, int], batch: int, name: str, offset: bool) -> None:
    net, width = drawn
    block = make_block(net, (width,), LOCALS[name], [7, 20, 1], torch.float64, batch=batch, epochs=2, offset=offset)
    block = block._replace(lr=0.001)
    right, found = train_mlp(net, block), train_compiled_mlp(net, block)
    torch.testing.assert_close(found.final, right.final, rtol=1e-9, atol=1e-9)


def test_a_row_of_one_weight_from_one_input_was_trained_in_place() -> None:
    """The torch engine wrote into the first models, so that the models seemed not to change."""
    net = net_of(lambda: nn.Sequential(nn.Linear(1, 2, bias=False)), "one input", "half_mse", 2)
    block = make_block(net, (1,), Local(), [7, 20, 1], torch.float64, batch=4)
    before = block.start.clone()
    trained = train_mlp(net, block)
    assert torch.equal(block.start, before) and not torch.equal(trained.final, before)


def test_the_change_and_rows_that_are_there_once_give_the_same_bits() -> None:
    net = perceptron()
    for name in ("sgd", "prox", "adam"):
        block = from_source(net, LOCALS[name])
        once = block._replace(start=block.start[:1].expand(3, -1))
        copied = block._replace(start=block.start[:1].repeat(3, 1))
        final = train_compiled_mlp(net, copied).final
        assert torch.equal(train_compiled_mlp(net, once).final, final)
        assert torch.equal(train_compiled_mlp(net, once._replace(wants_change=True)).final, final - copied.start)


@pytest.mark.parametrize("name", LOCALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_lane_has_the_same_bits_alone_and_in_any_block(name: str, dtype: torch.dtype) -> None:
    net = perceptron()
    whole = train_compiled_mlp(net, block_of(net, LOCALS[name], dtype, offset=True))
    order = np.argsort(-blocks.count_steps(np.array(SIZES), Local(batch_size=4, epochs=5)), kind="stable")
    for lanes in ([0], [3], [2, 1], [1, 3, 0]):
        part = train_compiled_mlp(net, block_of(net, LOCALS[name], dtype, offset=True, lanes=lanes))
        inside = [place for place, lane in enumerate(order) if lane in lanes]
        assert torch.equal(part.final, whole.final[inside]) and torch.equal(part.loss, whole.loss[inside])


def from_source(net: Net, local: Local, *, lanes: int = 3, targets: bool = False) -> blocks.Block:
    """A block of bytes that are standardized as they are read; the labels of one world lie behind those of another."""
    random, n = np.random.default_rng(0), 9
    x = torch.from_numpy(random.integers(0, 255, (lanes * n, 6)).astype(np.uint8))
    shift, scale = torch.rand(2, 6) * 100, torch.rand(2, 6) * 50 + 20
    y = (
        torch.from_numpy(random.normal(size=(lanes * n, 4)).astype(np.float32))
        if targets
        else torch.from_numpy(random.integers(0, 4, 2 * lanes * n))
    )
    world = np.arange(lanes) % 2
    first = None if targets else torch.from_numpy(world * lanes * n)
    size = np.full(lanes, n)
    local = Local(**{**local.__dict__, "batch_size": 4, "epochs": 3})
    steps = blocks.count_steps(size, local)
    rows = np.arange(lanes * n).reshape(lanes, n)
    index, weight = blocks.deal_batches(rows, size, steps, 4, rng.keys(0, "batches", 0, np.arange(lanes)))
    where = torch.from_numpy(world)

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        at = index[lo:hi]
        raw = (x[at] - shift[where][:, None]).div_(scale[where][:, None])
        labels = y[at if first is None else at + first[:, None]]
        return raw, (labels - shift[where][:, None, :4]).div_(scale[where][:, None, :4]) if targets else labels

    source = blocks.BatchSource(
        x,
        y,
        index,
        first,
        world,
        shift,
        scale,
        *((shift[:, :4].contiguous(), scale[:, :4].contiguous()) if targets else (None, None)),
    )
    start = torch.stack([net.init(lane) for lane in range(lanes)])
    keys = rng.keys(0, "drop", np.arange(lanes))
    counters = torch.zeros(lanes, 0, dtype=torch.int64)
    return blocks.Block(start, counters, read, weight, steps, local, 0.05, keys, 6, source=source)


@pytest.mark.parametrize("targets", [False, True])
def test_the_kernel_reads_the_batches_that_read_returns(targets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits whether the kernel gathers and standardizes, or torch does, and in pieces of any size."""
    net = perceptron(objective="half_mse" if targets else "cross_entropy")
    for name in ("sgd", "momentum", "adam"):
        block = from_source(net, LOCALS[name], targets=targets)
        direct = train_compiled_mlp(net, block)
        given_batches = train_compiled_mlp(net, block._replace(source=None))
        monkeypatch.setattr(blocks, "PIECE_NUMBERS", 1)
        in_steps = train_compiled_mlp(net, block._replace(source=None))
        monkeypatch.undo()
        monkeypatch.setattr("fedray.training.compiled.MOST_OPERATIONS", 1)
        interrupted = train_compiled_mlp(net, block)
        monkeypatch.undo()
        for other in (given_batches, in_steps, interrupted):
            assert torch.equal(other.final, direct.final)
            torch.testing.assert_close(other.loss, direct.loss)


def test_data_outside_its_bounds_are_an_error_and_nothing_is_read() -> None:
    net = perceptron()
    block = from_source(net, Local())
    assert block.source is not None
    for index, y in ((10**9, None), (-1, None), (0, 4), (0, -1)):
        source = block.source._replace(index=torch.full_like(block.source.index, index))
        labels = source.y if y is None else torch.full_like(source.y, y)
        with pytest.raises(IndexError, match="row number outside" if y is None else "no class"):
            train_compiled_mlp(net, block._replace(source=source._replace(y=labels)))


def variants(net: Net, dtype: torch.dtype) -> list[Tensor]:
    found = []
    for name in LOCALS:
        for offset in (False, True):
            found.append(train_compiled_mlp(net, block_of(net, LOCALS[name], dtype, offset=offset)).final)
    if net.objective != "gaussian_nll":
        found.append(train_compiled_mlp(net, full_batches(net, 3, [0, 1, 2], dtype)).final)
    return found


@pytest.mark.skipif(native.is_available() and library().instructions != "avx512", reason="one instruction set only")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_avx2_and_avx512_give_the_same_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    nets = [perceptron(objective=objective) for objective in OBJECTIVES] + [perceptron(nn.Tanh)]
    wide = [variants(net, dtype) for net in nets]
    narrow = library()._replace(instructions="avx2")
    monkeypatch.setattr(native, "load_library", lambda: narrow)
    for net, expected in zip(nets, wide, strict=True):
        for a, b in zip(variants(net, dtype), expected, strict=True):
            assert torch.equal(a, b) or (torch.isnan(a) == torch.isnan(b)).all()


@pytest.mark.slow
def test_every_compiler_of_this_machine_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of zig and of the system, so that it does not matter which one built an installation."""
    nets = [perceptron(), perceptron(nn.Tanh, "gaussian_nll")]
    expected = [
        [t.numpy().tobytes() for net in nets for t in variants(net, dtype)] for dtype in (torch.float32, torch.float64)
    ]
    for number, compiler in enumerate(build.find_compilers()):
        path = build.compile_library(tmp_path / f"{number}.so", compiler)
        for instructions in ("avx2", "avx512") if library().instructions == "avx512" else (None,):
            other = native.open_library(path, instructions)
            assert isinstance(other, native.Library)
            monkeypatch.setattr(native, "load_library", lambda other=other: other)
            found = [
                [t.numpy().tobytes() for net in nets for t in variants(net, dtype)]
                for dtype in (torch.float32, torch.float64)
            ]
            monkeypatch.undo()
            assert found == expected, (compiler.name, instructions)


def test_threads_give_the_same_bits() -> None:
    net = perceptron()
    block = from_source(net, Local(momentum=0.9))
    alone = train_compiled_mlp(net, block).final
    found: list[Tensor] = []

    def work() -> None:
        found.extend(train_compiled_mlp(net, block).final for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200 and all(torch.equal(one, alone) for one in found)


def test_a_diverged_lane_stays_alone() -> None:
    """NaN of one lane reaches no other lane."""
    net = perceptron()
    block = from_source(net, Local())
    start = block.start.clone()
    start[1] = float("nan")
    right, found = train_compiled_mlp(net, block), train_compiled_mlp(net, block._replace(start=start))
    assert torch.isnan(found.final[1]).any()
    assert torch.equal(found.final[[0, 2]], right.final[[0, 2]])


def test_the_key_lanes_chooses() -> None:
    net = perceptron()
    assert choose_engine(net, lanes="auto").name == choose_engine(net, lanes="compiled").name == "mlp-c"
    assert choose_engine(net, lanes="torch").name == "mlp"
    assert choose_engine(net, "cuda", lanes="auto").name == "mlp"


def test_what_no_kernel_covers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    own = net_of(lambda: nn.Sequential(nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 3)), "own", "cross_entropy", 3)
    assert choose_engine(own, lanes="auto").name == "vmap"
    with pytest.raises(BadInput, match="lanes = compiled: no compiled kernel covers the network own"):
        choose_engine(own, lanes="compiled")
    monkeypatch.setattr(native, "load_library", lambda: native.Missing("it was not built"))
    assert choose_engine(perceptron(), lanes="auto").name == "mlp"
    with pytest.raises(BadInput, match="lanes = compiled: it was not built; or choose auto"):
        choose_engine(perceptron(), lanes="compiled")


def test_a_resumed_run_keeps_its_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that began without kernels goes on without them, and one that began with them is refused without."""
    keys = {"lanes": "auto", "runtime": "inline", "report": False, "rounds": 2, "clients": {"number": 4},
            "data": {"name": "cubic"}, "evaluate": {"every": 2}}  # fmt: skip
    with monkeypatch.context() as without:
        without.setattr(native, "load_library", lambda: native.Missing("it was not built"))
        plain = fedray.run(keys, out=tmp_path / "plain")
        whole = fedray.run({**keys, "rounds": 4}, out=tmp_path / "whole")
    again = fedray.resume(plain.path, rounds=4)
    assert json.loads((again.path / "manifest.json").read_text())["engine"]["name"] == "mlp"
    assert again.summary["state_hash"] == whole.summary["state_hash"]
    compiled = fedray.run(keys, out=tmp_path / "compiled")
    assert json.loads((compiled.path / "manifest.json").read_text())["engine"]["name"] == "mlp-c"
    monkeypatch.setattr(native, "load_library", lambda: native.Missing("it was not built"))
    with pytest.raises(BadInput, match="the run began with compiled kernels, but it was not built"):
        fedray.resume(compiled.path, rounds=4)


FUZZ = """
import torch
from blocks import LOCALS, full_batches, make_block
from torch import nn
from fedray.models.net import net_of
from fedray.training.compiled import train_compiled_mlp
from fedray.core.sums import exact_sum
draw = torch.Generator().manual_seed(0)
def number(low, high):
    return int(torch.randint(low, high + 1, (1,), generator=draw))
for trial in range(150):
    widths = [number(1, 70) for _ in range(number(2, 5))]
    layers = []
    for a, b in zip(widths[:-1], widths[1:]):
        layers += [nn.Linear(a, b, bias=trial % 3 > 0), nn.Tanh() if trial % 2 else nn.ReLU()]
    net = net_of(lambda: nn.Sequential(*layers[:-1]), "fuzz", ["cross_entropy", "half_mse"][trial // 3 % 2], widths[-1])
    local, dtype = list(LOCALS.values())[trial % len(LOCALS)], [torch.float32, torch.float64][trial // 2 % 2]
    sizes = [number(1, 30) for _ in range(number(1, 4))]
    block = make_block(net, (widths[0],), local, sizes, dtype, batch=number(1, 20), epochs=2, offset=bool(trial % 5))
    train_compiled_mlp(net, block)
    train_compiled_mlp(net, full_batches(net, number(1, 40), [1, 0], dtype))
    rows = torch.randn(number(1, 6), number(1, 3000), generator=draw) * 3
    exact_sum(rows, torch.zeros(len(rows), dtype=torch.int64), 1, torch.ones(len(rows), dtype=torch.int64), limbs=2)
print("fine")
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("instructions", ["avx2", "avx512"])
def test_the_kernels_write_nothing_outside_their_memory(instructions: str, run_checked: RunCode) -> None:
    """Random shapes under the address and undefined-behavior sanitizers of the system's compiler."""
    run_checked(FUZZ, instructions)
