"""The compiled kernel of convolution networks computes what the torch engine computes, and its lanes see no other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from blocks import LOCALS, make_block
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedray
from fedray.core import native
from fedray.core.method import Local
from fedray.core.types import Net, Objective
from fedray.data.types import Split, classification
from fedray.models.net import net_of
from fedray.training import block as blocks
from fedray.training.choice import choose_engine
from fedray.training.compiled import find_stages, train_compiled_conv
from fedray.training.layers import train_conv
from fedray.training.loop import train_loop

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")
SIZES = [11, 3, 16, 5]  # ragged: lanes end after different numbers of steps, and last batches are padded


def library() -> native.Library:
    found = native.load_library()
    assert isinstance(found, native.Library)
    return found


def network(name: str) -> tuple[Callable[[], nn.Module], tuple[int, int, int]]:
    """The networks that people write, and some that nobody does, with the shape of their images."""
    first = {"max": (nn.ReLU(), nn.MaxPool2d(2)), "average": (nn.Tanh(), nn.AvgPool2d(2)), "none": (nn.ReLU(),)}
    if name in first:
        width = {"max": 3 * 3, "average": 3 * 3, "none": 8 * 8}[name]

        def plain() -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(1, 6, 3), *first[name], nn.Conv2d(6, 9, 3, bias=name != "none"), nn.ReLU(),
                nn.Flatten(), nn.Linear(9 * width, 7), nn.ReLU(), nn.Linear(7, 4),
            )  # fmt: skip

        return plain, (1, 12, 12)
    if name == "odd":  # padding, windows that leave rows over, several channels, a linear convolution

        def odd() -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(3, 5, (3, 2), padding=(1, 2)), nn.MaxPool2d(2), nn.Tanh(), nn.Conv2d(5, 33, 2, padding=1),
                nn.Conv2d(33, 3, 2), nn.ReLU(), nn.AvgPool2d((2, 3)), nn.Flatten(), nn.Linear(6, 4, bias=False),
            )  # fmt: skip

        return odd, (3, 7, 9)

    def large() -> nn.Module:  # its kernel and its linear layer take the ways of large ones
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(48 * 25, 64), nn.ReLU(), nn.Linear(64, 4),
        )  # fmt: skip

    return large, (1, 14, 14)


NAMES = ("max", "average", "none", "odd", "large")
RunCode = Callable[[str, str], None]  # of the fixture `run_checked`


def block_of(
    name: str, local: str, dtype: torch.dtype, objective: Objective = "cross_entropy", *, epochs: int = 5,
    batch: int = 4, offset: bool = False, lanes: list[int] | None = None,
) -> tuple[Net, blocks.Block]:  # fmt: skip
    module, shape = network(name)
    net = net_of(module, name, objective, 4)
    block = make_block(
        net, shape, LOCALS[local], SIZES, dtype, epochs=epochs, batch=batch, offset=offset, anchor=offset, lanes=lanes
    )
    return net, block._replace(lr=block.lr / 5)


def distance(net: Net, block: blocks.Block, train: Callable[[Net, blocks.Block], blocks.Trained]) -> float:
    """Between the kernel and another engine, relative to how far the weights went."""
    right, found = train(net, block), train_compiled_conv(net, block)
    moved = float((right.final - block.start).abs().max())
    assert moved > 1e-4 and torch.isfinite(right.final).all()
    bound = 1e-9 if block.start.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found.loss, right.loss, rtol=bound, atol=bound)
    return float((found.final - right.final).abs().max()) / moved


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("local", ["sgd", "momentum+prox", "adam"])
def test_in_double_precision_it_is_the_loop(name: str, local: str) -> None:
    epochs = 2 if name == "large" else 5
    for offset, batch in ((False, 4), (True, 16)):
        net, block = block_of(name, local, torch.float64, epochs=epochs, batch=batch, offset=offset)
        assert distance(net, block, train_loop if batch == 4 else train_conv) < 1e-10, (offset, batch)


@pytest.mark.parametrize("local", LOCALS)
def test_every_optimizer_after_fifty_steps(local: str) -> None:
    net, block = block_of("average", local, torch.float64, epochs=50, batch=16, offset=True)
    assert int(block.steps.max()) == 50
    assert distance(net, block, train_conv) < 1e-10


@pytest.mark.parametrize("objective", ["half_mse", "mse"])
def test_other_objectives(objective: Objective) -> None:
    net, block = block_of("max", "sgd", torch.float64, objective, batch=1)
    assert distance(net, block._replace(lr=0.001), train_conv) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_in_single_precision_it_is_as_exact_as_torch(name: str) -> None:
    (net, block), (_, doubled) = (block_of(name, "sgd", dtype, epochs=2) for dtype in (torch.float32, torch.float64))
    exact = train_conv(net, doubled).final
    ours, torchs = (float((train(net, block).final - exact).abs().max()) for train in (train_compiled_conv, train_conv))
    assert ours < 2 * torchs + 1e-7


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, int, int]]:
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
@given(networks(), st.integers(1, 9), st.sampled_from(["sgd", "momentum", "adam"]), st.booleans())
def test_any_shape(drawn: tuple[nn.Sequential, tuple[int, int, int]], batch: int, local: str, offset: bool) -> None:
    module, shape = drawn
    net = net_of(lambda: module, "drawn", "cross_entropy", 3)
    block = make_block(net, shape, LOCALS[local], [7, 4, 1], torch.float64, batch=batch, epochs=2, offset=offset)
    right, found = train_conv(net, block._replace(lr=0.001)), train_compiled_conv(net, block._replace(lr=0.001))
    torch.testing.assert_close(found.final, right.final, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_a_lane_has_the_same_bits_alone_and_in_any_block(name: str) -> None:
    net, block = block_of(name, "adam+prox", torch.float32, epochs=2, offset=True)
    whole = train_compiled_conv(net, block)
    order = np.argsort(-blocks.count_steps(np.array(SIZES), Local(batch_size=4, epochs=2)), kind="stable")
    for lanes in ([0], [3], [2, 1], [1, 3, 0]):
        part = train_compiled_conv(*block_of(name, "adam+prox", torch.float32, epochs=2, offset=True, lanes=lanes))
        inside = [place for place, lane in enumerate(order) if lane in lanes]
        assert torch.equal(part.final, whole.final[inside]) and torch.equal(part.loss, whole.loss[inside])


@pytest.mark.skipif(native.is_available() and library().instructions != "avx512", reason="one instruction set only")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_avx2_and_avx512_give_the_same_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [block_of(name, local, dtype, epochs=2, offset=True) for name in NAMES for local in ("sgd", "adam")]
    wide = [train_compiled_conv(*case).final for case in cases]
    narrow = library()._replace(instructions="avx2")
    monkeypatch.setattr(native, "load_library", lambda: narrow)
    assert all(torch.equal(train_compiled_conv(*case).final, a) for case, a in zip(cases, wide, strict=True))


def test_in_pieces_it_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    net, block = block_of("max", "adam", torch.float32)
    whole = train_compiled_conv(net, block)
    monkeypatch.setattr(blocks, "PIECE_NUMBERS", 1)
    assert torch.equal(train_compiled_conv(net, block).final, whole.final)


UNCOVERED = {
    "a convolution with stride (2, 2)": (nn.Conv2d(1, 2, 3, stride=2), nn.ReLU()),
    "a convolution with dilation (2, 2)": (nn.Conv2d(1, 2, 3, dilation=2), nn.ReLU()),
    "a pooling whose windows overlap": (nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 2), nn.ReLU()),
    "two activations in a row": (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Tanh()),
}


@pytest.mark.parametrize("why", UNCOVERED)
def test_what_the_kernel_does_not_have_stays_with_torch_and_the_reason_says_so(why: str) -> None:
    def make() -> nn.Module:
        features = nn.Sequential(*UNCOVERED[why], nn.Flatten())
        width = features(torch.zeros(1, 1, 9, 9)).shape[1]
        return nn.Sequential(*features, nn.Linear(width, 3))

    net = net_of(make, "own", "cross_entropy", 3)
    engine = choose_engine(net, example=torch.zeros(1, 9, 9), lanes="auto")
    assert engine.name == "conv"
    assert f"the compiled kernel does not have {why}" in engine.why
    assert isinstance(find_stages(net.module), str)


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


FUZZ = """
import torch
import test_compiled_conv as cases
for name in cases.NAMES:
    for local, batch in (("sgd", 1), ("momentum+prox", 3), ("adam", 9)):
        for dtype in (torch.float32, torch.float64):
            cases.train_compiled_conv(*cases.block_of(name, local, dtype, epochs=1, batch=batch, offset=True))
cases.test_any_shape()
print("fine")
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("instructions", ["avx2", "avx512"])
def test_the_kernel_writes_nothing_outside_its_memory(instructions: str, run_checked: RunCode) -> None:
    """Under the address and undefined-behavior sanitizers of the system's compiler."""
    run_checked(FUZZ, instructions)
