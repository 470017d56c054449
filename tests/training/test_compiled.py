"""What only the compiled kernels have: batches that they read, still lanes, answers, students, their bounds."""

import itertools
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from blocks import COMPILED, FULL, LOCALS, Case, block_of, convolution, full_batches, make_block, perceptron, variants
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedray
from fedray.components.distillation import ask_model, begin_student
from fedray.core import rng
from fedray.core import sums as native
from fedray.core.errors import BadInput
from fedray.core.kernels import build
from fedray.core.method import Local, Teaching
from fedray.core.types import Net, Objective
from fedray.data.types import Split, classification
from fedray.models.net import net_of
from fedray.training import block as blocks
from fedray.training import compiled
from fedray.training.choice import choose_engine
from fedray.training.compiled import (
    BATCH,
    ask_compiled,
    begin_compiled,
    count_least_steps,
    find_still_steps,
    run_kernel,
    train_compiled,
)
from fedray.training.layers import train_conv, train_mlp
from fedray.training.loop import loop_outputs

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")


def library() -> native.Library:
    found = native.load_library()
    assert isinstance(found, native.Library)
    return found


def network(
    widths: Sequence[int],
    activation: type[nn.Module] = nn.ReLU,
    objective: Objective = "cross_entropy",
    *,
    bias: bool = True,
) -> Net:
    """A perceptron whose layers have so many inputs and outputs."""

    def make() -> nn.Module:
        layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b, bias=bias), activation())]
        return nn.Sequential(*layers[:-1])

    return net_of(make, "own", objective, widths[-1])


@st.composite
def networks(draw: st.DrawFn) -> tuple[Net, int]:
    """Perceptrons of 1 to 4 layers of any width and bias; their input size."""
    widths = draw(st.lists(st.integers(1, 40), min_size=2, max_size=5))
    bias, activation = draw(st.booleans()), draw(st.sampled_from([nn.ReLU, nn.Tanh]))
    return network(widths, activation, "half_mse", bias=bias), widths[0]


@settings(max_examples=40, deadline=None)
@given(networks(), st.integers(1, 20), st.sampled_from(["sgd", "decay", "momentum", "adam"]), st.booleans())
def test_any_shape(drawn: tuple[Net, int], batch: int, name: str, offset: bool) -> None:
    net, width = drawn
    block = make_block(net, (width,), LOCALS[name], [7, 20, 1], torch.float64, batch=batch, epochs=2, offset=offset)
    block = block._replace(lr=0.001)
    right, found = train_mlp(net, block), train_compiled(net, block)
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
        final = train_compiled(net, copied).final
        assert torch.equal(train_compiled(net, once).final, final)
        assert torch.equal(train_compiled(net, once._replace(wants_change=True)).final, final - copied.start)


def from_source(net: Net, local: Local, *, lanes: int = 3, targets: bool = False) -> blocks.Block:
    """A block of bytes that are standardized as they are read; the labels of one world lie behind those of another."""
    random, n = np.random.default_rng(0), 9
    x = torch.from_numpy(random.integers(0, 255, (lanes * n, 6)).astype(np.uint8))
    shift, scale = torch.rand(2, 6) * 100, torch.rand(2, 6) * 50 + 20
    world, size = np.arange(lanes) % 2, np.full(lanes, n)
    if targets:
        y, first = torch.from_numpy(random.normal(size=(lanes * n, 4)).astype(np.float32)), None
    else:
        y, first = torch.from_numpy(random.integers(0, 4, 2 * lanes * n)), torch.from_numpy(world * lanes * n)
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

    statistics = (shift, scale, shift[:, :4].contiguous(), scale[:, :4].contiguous())[: 4 if targets else 2]
    source = blocks.BatchSource(x, y, index, first, world, *statistics)
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
        batches, direct = block._replace(source=None), train_compiled(net, block)
        found = [train_compiled(net, batches)]
        for one, module, limit in ((batches, blocks, "PIECE_NUMBERS"), (block, compiled, "MOST_OPERATIONS")):
            with monkeypatch.context() as small:
                small.setattr(module, limit, 1)
                found.append(train_compiled(net, one))
        for other in found:
            assert torch.equal(other.final, direct.final)
            torch.testing.assert_close(other.loss, direct.loss)
    case = COMPILED["conv-c max"]
    block = block_of(case, "adam", torch.float32)
    whole = train_compiled(case.net, block)
    monkeypatch.setattr(blocks, "PIECE_NUMBERS", 1)
    assert torch.equal(train_compiled(case.net, block).final, whole.final)


def test_data_outside_its_bounds_are_an_error_and_nothing_is_read() -> None:
    net = perceptron()
    block = from_source(net, Local())
    assert block.source is not None
    for index, y in ((10**9, None), (-1, None), (0, 4), (0, -1)):
        source = block.source._replace(index=torch.full_like(block.source.index, index))
        labels = source.y if y is None else torch.full_like(source.y, y)
        with pytest.raises(IndexError, match="row number outside" if y is None else "no class"):
            train_compiled(net, block._replace(source=source._replace(y=labels)))


def bits(cases: list[Case]) -> list[bytes]:
    kinds = (torch.float32, torch.float64)
    return [t.numpy().tobytes() for case in cases for kind in kinds for t in variants(case, kind)]


@pytest.mark.slow
def test_every_compiler_of_this_machine_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of zig and of the system, so that it does not matter which one built an installation."""
    case = COMPILED["mlp-c"]
    cases = [case, case._replace(net=perceptron(nn.Tanh, "gaussian_nll"))]
    expected = bits(cases)
    for number, compiler in enumerate(build.find_compilers()):
        path = build.compile_library(tmp_path / f"{number}.so", compiler)
        for instructions in ("avx2", "avx512") if library().instructions == "avx512" else (None,):
            other = native.open_library(path, instructions)
            assert isinstance(other, native.Library)
            with monkeypatch.context() as patch:
                patch.setattr(native, "load_library", lambda other=other: other)
                assert bits(cases) == expected, (compiler.name, instructions)


def test_a_diverged_lane_stays_alone() -> None:
    """NaN of one lane reaches no other lane."""
    net = perceptron()
    block = from_source(net, Local())
    start = block.start.clone()
    start[1] = float("nan")
    right, found = train_compiled(net, block), train_compiled(net, block._replace(start=start))
    assert torch.isnan(found.final[1]).any()
    assert torch.equal(found.final[[0, 2]], right.final[[0, 2]])


def test_the_key_lanes_chooses_and_what_no_kernel_covers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    net = perceptron()
    assert choose_engine(net, lanes="auto").name == choose_engine(net, lanes="compiled").name == "mlp-c"
    assert choose_engine(net, lanes="torch").name == choose_engine(net, "cuda", lanes="auto").name == "mlp"
    own = net_of(lambda: nn.Sequential(nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 3)), "own", "cross_entropy", 3)
    assert choose_engine(own, lanes="auto").name == "vmap"
    with pytest.raises(BadInput):
        choose_engine(own, lanes="compiled")
    monkeypatch.setattr(native, "load_library", lambda: "it was not built")
    assert choose_engine(perceptron(), lanes="auto").name == "mlp"
    with pytest.raises(BadInput):
        choose_engine(perceptron(), lanes="compiled")


def test_a_resumed_run_keeps_its_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that began without kernels goes on without them, and one that began with them is refused without."""
    keys = {"lanes": "auto", "runtime": "inline", "report": False, "rounds": 2, "clients": {"number": 4},
            "data": {"name": "cubic"}, "evaluate": {"every": 2}}  # fmt: skip
    with monkeypatch.context() as without:
        without.setattr(native, "load_library", lambda: "it was not built")
        plain = fedray.run(keys, out=tmp_path / "plain")
        whole = fedray.run({**keys, "rounds": 4}, out=tmp_path / "whole")
    again = fedray.resume(plain.path, rounds=4)
    assert json.loads((again.path / "manifest.json").read_text())["engine"]["name"] == "mlp"
    assert again.summary["state_hash"] == whole.summary["state_hash"]
    compiled = fedray.run(keys, out=tmp_path / "compiled")
    assert json.loads((compiled.path / "manifest.json").read_text())["engine"]["name"] == "mlp-c"
    monkeypatch.setattr(native, "load_library", lambda: "it was not built")
    with pytest.raises(BadInput):
        fedray.resume(compiled.path, rounds=4)


@st.composite
def conv_networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, int, int]]:
    """Networks of 1 to 3 convolutions of any size, with or without padding, pooling and bias; the shape of an image."""
    shape = channels, height, width = draw(st.integers(1, 4)), draw(st.integers(5, 14)), draw(st.integers(5, 14))
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 3))):
        out, kernel = draw(st.integers(1, 20)), (draw(st.integers(1, 6)), draw(st.integers(1, 5)))
        padding = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        sides = [side + 2 * pad - k + 1 for side, pad, k in zip((height, width), padding, kernel, strict=True)]
        if min(sides) < 2:
            break
        layers.append(nn.Conv2d(channels, out, kernel, padding=padding, bias=draw(st.booleans())))
        more: list[nn.Module] = []
        if draw(st.booleans()):
            more.append(draw(st.sampled_from([nn.ReLU, nn.Tanh]))())
        if draw(st.booleans()):
            window = (draw(st.integers(1, min(3, sides[0]))), draw(st.integers(1, min(3, sides[1]))))
            more.append(draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))(window))
            sides = [side // by for side, by in zip(sides, window, strict=True)]
        layers += more if draw(st.booleans()) else more[::-1]
        channels, (height, width) = out, sides
    if not layers:
        layers, channels = [nn.Conv2d(channels, 2, 1)], 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, 3)), shape


@settings(max_examples=40, deadline=None)
@given(conv_networks(), st.integers(1, 9), st.sampled_from(["sgd", "momentum", "adam"]), st.booleans())
def test_any_shape_in_conv(
    drawn: tuple[nn.Sequential, tuple[int, int, int]], batch: int, local: str, offset: bool
) -> None:
    module, shape = drawn
    net = net_of(lambda: module, "drawn", "cross_entropy", 3)
    block = make_block(net, shape, LOCALS[local], [7, 4, 1], torch.float64, batch=batch, epochs=2, offset=offset)
    right, found = train_conv(net, block._replace(lr=0.001)), train_compiled(net, block._replace(lr=0.001))
    torch.testing.assert_close(found.final, right.final, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ((nn.Conv2d(1, 2, 3, stride=2), nn.ReLU()), "a convolution with stride (2, 2)"),
        ((nn.Conv2d(1, 2, 3, dilation=2), nn.ReLU()), "a convolution with dilation (2, 2)"),
        ((nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 2), nn.ReLU()), "a pooling whose windows overlap"),
        ((nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Tanh()), "two activations in a row"),
    ],
)
def test_what_the_kernel_does_not_have_stays_with_torch(features: tuple[nn.Module, ...], why: str) -> None:
    width = nn.Sequential(*features)(torch.zeros(1, 1, 9, 9)).numel()
    net = net_of(lambda: nn.Sequential(*features, nn.Flatten(), nn.Linear(width, 3)), "own", "cross_entropy", 3)
    engine = choose_engine(net, example=torch.zeros(1, 9, 9), lanes="auto")
    assert engine.name == "conv" and f"the compiled kernel does not have {why}" in engine.why


def test_a_run_on_images_trains_in_the_kernel() -> None:
    """Images are standardized by channel, and read by the kernel as they are stored."""
    x = np.random.default_rng(0).integers(0, 255, size=(60, 2, 9, 9)).astype(np.uint8)
    y = np.arange(60) % 3
    data = classification("mine", Split(x[:40], y[:40]), Split(x[40:], y[40:]), tuple("abc"))

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))

    keys = {"rounds": 2, "clients": {"number": 4}, "runtime": "inline", "report": False}
    compiled, plain = (fedray.run({**keys, "lanes": lanes}, data=data, model=make) for lanes in ("compiled", "torch"))
    assert compiled.summary["model_hash"] != plain.summary["model_hash"]
    answers = [run.predict(x[:10]).mean for run in (compiled, plain)]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-5)


INPUTS = 40
STILL_SIZES = [7, 3, 1, 12]  # their batches are 7, 3, 1 and 16 samples wide: a block each


NETS = {
    "relu": network((INPUTS, 6, 4)),
    "tanh": network((INPUTS, 6, 4), nn.Tanh),
    "deep": network((INPUTS, 9, 5, 4)),
    "without bias": network((INPUTS, 6, 4), bias=False),
    "one layer": network((INPUTS, 4)),
    "regression": network((INPUTS, 6, 4), objective="half_mse"),
}


@pytest.mark.parametrize("name", NETS)
def test_a_still_lane_trains_what_the_torch_engine_trains(name: str) -> None:
    """In double precision, to ten digits; in single precision, to rounding."""
    net = NETS[name]
    for size in STILL_SIZES:
        assert find_still_steps(full_batches(net, size, [0]), INPUTS, net.layout.shapes[0][0])
        for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
            block = full_batches(net, size, [2, 5, 0], dtype)
            right, found = train_mlp(net, block), train_compiled(net, block)
            moved = float((right.final - block.start).abs().max())
            assert moved > 1e-3 and float((found.final - right.final).abs().max()) < bound * moved
            torch.testing.assert_close(found.loss, right.loss, rtol=bound, atol=bound)


def test_inputs_are_read_once_and_the_order_of_later_batches_changes_no_bit() -> None:
    net = NETS["deep"]
    block = full_batches(net, 12, [0, 1])
    source = block.source
    assert source is not None
    first = block._replace(source=source._replace(index=source.index[:1].expand_as(source.index).contiguous()))
    assert not torch.equal(first.source.index, source.index)  # type: ignore[union-attr]  # it has one
    swapped = block.weight[:1].expand_as(block.weight).contiguous()
    found = train_compiled(net, first._replace(weight=swapped))
    assert torch.equal(found.final, train_compiled(net, block).final)


def test_a_still_lane_has_the_same_bits_beside_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, in any block, and in a block of calls that could be interrupted."""
    net = NETS["deep"]
    whole = train_compiled(net, full_batches(net, 12, [0, 1, 2, 3])).final
    for lanes in ([3], [2, 0]):
        assert torch.equal(train_compiled(net, full_batches(net, 12, lanes)).final, whole[lanes])
    monkeypatch.setattr(compiled, "MOST_OPERATIONS", 1)
    assert torch.equal(train_compiled(net, full_batches(net, 12, [0, 1, 2, 3])).final, whole)


def test_lanes_whose_steps_differ_or_whose_gradient_is_changed_read_their_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = NETS["relu"]
    block = full_batches(net, 12, [0, 1])
    still = train_compiled(net, block).final
    changes = {"momentum": 0.5, "optimizer": "adam", "weight_decay": 0.1, "pull": 0.1, "batch_size": 16}
    others = [block._replace(local=Local(**{**FULL.__dict__, key: value})) for key, value in changes.items()]
    for other in (*others, block._replace(offset=block.start), block._replace(steps=np.array([1, 1]))):
        assert find_still_steps(other, INPUTS, 6) == 0
    monkeypatch.setattr(compiled, "find_still_steps", lambda *_: 0)
    plain = train_compiled(net, block).final
    assert not torch.equal(plain, still)  # by rounding
    torch.testing.assert_close(plain, still, rtol=0, atol=1e-6)


@settings(max_examples=100)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_a_lane_is_still_where_that_halves_its_operations(rows: int, inputs: int, outputs: int) -> None:
    def halves(steps: int) -> bool:
        product = rows * inputs * outputs
        return 2 * (2 * product + rows**2 * inputs + steps * rows**2 * outputs) < 2 * steps * product

    least = count_least_steps(rows, inputs, outputs)
    assert not any(halves(steps) for steps in range(1, (least or 200)))
    assert not least or halves(least)


def padded() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, (3, 2), padding=(1, 2)), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(5, 9, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(72, 7), nn.Tanh(), nn.Linear(7, 3),
    )  # fmt: skip


NONE = torch.zeros(3, 0)  # counters


def case(dtype: torch.dtype, models: int = 3, n: int = 2 * BATCH + 5) -> tuple[Net, Tensor, Tensor]:
    """A network, its models, and inputs of each."""
    net = net_of(padded, "own", "cross_entropy", 3)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(models, n, 2, 6, 8, generator=draw, dtype=torch.float64).to(dtype)
    return net, torch.stack([net.init(k) for k in range(models)]).to(dtype), x


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_answers_are_those_of_the_module(dtype: torch.dtype, bound: float) -> None:
    net, rows, x = case(dtype)
    net.module.to(dtype)
    for each in (x, x[:1].expand(3, *x.shape[1:])):  # of every model its own, and shared ones
        right = loop_outputs(net, rows, NONE, each)
        torch.testing.assert_close(run_kernel(net, rows, NONE, each), right, rtol=0, atol=bound)
    one = ask_compiled(net, rows[0], x[0])
    torch.testing.assert_close(one, ask_model(net, rows[0], x[0]), rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_answer_depends_on_no_other_one(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any models and rows together, any build, calls of any length: the same bits."""
    net, rows, x = case(dtype)
    whole = run_kernel(net, rows, NONE, x)
    for models, first, end in (([0], 0, 1), ([2], 7, 30), ([1, 2], 3, 3 + BATCH), ([2, 0], 0, 37)):
        part = run_kernel(net, rows[models], NONE, x[models, first:end])
        assert torch.equal(part, whole[models, first:end])
    monkeypatch.setattr("fedray.training.compiled.MOST_OPERATIONS", 1)
    assert torch.equal(run_kernel(net, rows, NONE, x), whole)
    built = library()
    if built.instructions == "avx512":
        monkeypatch.setattr(native, "load_library", lambda: built._replace(instructions="avx2"))
        assert torch.equal(run_kernel(net, rows, NONE, x), whole)


RATES = [0.3, 0.1, 0.2, 0.05, 0.15]
STUDENT_NETS = {
    "mlp": (perceptron(nn.Tanh), (6,)),
    "conv": (convolution(), (2, 6, 6)),
    "regression": (perceptron(objective="half_mse", out=2), (6,)),
    "gaussian": (perceptron(objective="gaussian_nll", out=4), (6,)),
}


def teaching_of(net: Net, shape: tuple[int, ...], optimizer: str, dtype: torch.dtype = torch.float64) -> Teaching:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(10, *shape, generator=draw, dtype=torch.float64)
    target = torch.randn(10, net.outputs, generator=draw, dtype=torch.float64)
    if net.objective == "cross_entropy":
        target = (2 * target).softmax(-1)
    return Teaching(x.to(dtype), target.to(dtype), 4, optimizer)  # type: ignore[arg-type]


def batches_of(n: int = 10, size: int = 4) -> list[Tensor]:
    """Five batches from two orders of all inputs; the last ones of an order are smaller."""
    orders = [torch.randperm(n, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    return list(itertools.chain(*(torch.split(order, size) for order in orders)))[:5]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize(("net", "shape"), STUDENT_NETS.values(), ids=STUDENT_NETS)
def test_a_student_is_the_one_that_torch_trains(net: Net, shape: tuple[int, ...], optimizer: str) -> None:
    teaching, start = teaching_of(net, shape, optimizer), net.init(0).double()
    net.module.double()
    right = begin_student(net, start, teaching)(batches_of(), RATES)
    assert float((right - start).abs().max()) > 0.01
    torch.testing.assert_close(begin_compiled(net, start, teaching)(batches_of(), RATES), right, rtol=0, atol=1e-10)
    net.module.float()


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize(("net", "shape"), [STUDENT_NETS["mlp"], STUDENT_NETS["conv"]], ids=["mlp", "conv"])
def test_calls_of_any_length_give_the_same_bits(net: Net, shape: tuple[int, ...], optimizer: str) -> None:
    """Also where another student trains between two calls, and where a call of the kernel has one step."""
    teaching, start, steps = teaching_of(net, shape, optimizer, torch.float32), net.init(0), batches_of()
    whole = begin_compiled(net, start, teaching)(steps, RATES)
    train, other = begin_compiled(net, start, teaching), begin_compiled(net, net.init(1), teaching)
    assert torch.equal(train([], []), start)
    for a, b in ((0, 2), (2, 3), (3, 5)):
        part = train(steps[a:b], RATES[a:b])
        other(steps[a:b], RATES[a:b])
    assert torch.equal(part, whole)
    with pytest.MonkeyPatch.context() as short:
        short.setattr("fedray.training.compiled.MOST_OPERATIONS", 1)
        assert torch.equal(begin_compiled(net, start, teaching)(steps, RATES), whole)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_certain_teachers_are_labels(kind: str) -> None:
    """Where every target is one class, a student is a client that trains on these labels, to the same bits."""
    net, shape = STUDENT_NETS[kind]
    block = make_block(net, shape, Local(optimizer="adam"), [12], torch.float32, epochs=2)
    client = train_compiled(net, block).final[0]
    x, y = (part[:, 0].flatten(0, 1) for part in block.read(0, int(block.steps[0])))
    size = block.weight.shape[2]
    teaching = Teaching(x, nn.functional.one_hot(y, net.outputs).float(), size, "adam")
    batches = [s * size + torch.arange(int((block.weight[s, 0] > 0).sum())) for s in range(int(block.steps[0]))]
    student = begin_compiled(net, block.start[0], teaching)(batches, [block.lr] * len(batches))
    assert torch.equal(student, client)


def test_a_row_outside_the_inputs_is_refused() -> None:
    net, shape = STUDENT_NETS["mlp"]
    train = begin_compiled(net, net.init(0), teaching_of(net, shape, "adam", torch.float32))
    with pytest.raises(IndexError, match="outside the inputs"):
        train([torch.tensor([10])], [0.1])


FUZZ = """
import torch
import test_compiled as cases
from blocks import COMPILED, variants
from fedray.core.sums import exact_sum
from fedray.training import compiled
compiled._KEPT_BYTES = 0
for dtype in (torch.float32, torch.float64):
    for case in COMPILED.values():
        variants(case, dtype)
    for models, n in ((1, 1), (2, 16), (3, 33)):
        net, rows, x = cases.case(dtype, models, n)
        cases.run_kernel(net, rows, cases.NONE, x)
for shapes in (cases.test_any_shape, cases.test_any_shape_in_conv):
    shapes()
for n in (1, 5, 3000):
    one = torch.ones(4, dtype=torch.int64)
    exact_sum(torch.randn(4, n), 0 * one, 1, one, limbs=2)
print("fine")
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("instructions", ["avx2", "avx512"])
def test_the_kernels_write_nothing_outside_their_memory(
    instructions: str, run_checked: Callable[[str, str], None]
) -> None:
    """Random shapes under the address and undefined-behavior sanitizers of the system's compiler."""
    run_checked(FUZZ, instructions)
