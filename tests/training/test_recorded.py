"""Steps that are recorded on a GPU: which may be, and that a replayed step is the step."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from blocks import LOCALS, make_block
from torch import Tensor, nn

from fedray.core.method import Local
from fedray.core.types import Net
from fedray.models.net import net_of
from fedray.models.nets import densenet, resnet18
from fedray.runtime.environment import device_of
from fedray.training import loop
from fedray.training.block import Block
from fedray.training.loop import AS_WRITTEN, RecordedStep, can_record, train_loop

CUDA = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def plain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)
    )  # fmt: skip


def test_known_layers_and_sgd_are_recorded_and_what_may_differ_in_each_step_is_not() -> None:
    assert can_record(plain(), Local(momentum=0.9, pull=0.1), CUDA)
    assert can_record(resnet18((3, 32, 32), 10, width=0.1), Local(), CUDA)
    assert not can_record(plain(), Local(), torch.device("cpu"))
    assert not can_record(plain(), Local(optimizer="adam"), CUDA)
    hooked = nn.ReLU()
    hooked.register_forward_hook(lambda *_: None)
    for part in (
        nn.Dropout(0.1),
        nn.FractionalMaxPool2d(2, output_ratio=0.5),
        nn.BatchNorm2d(3, momentum=None),
        nn.Embedding(5, 2, max_norm=1.0),
        torchvision.models.DenseNet(4, (1,), 4, drop_rate=0.2),
        hooked,
        type("Own", (nn.Module,), {})(),
    ):
        assert not can_record(nn.Sequential(plain(), part), Local(), CUDA), part


class Replay:
    """Stands for a graph: it calls the step on the inputs that were recorded."""

    def __init__(self, step: RecordedStep) -> None:
        self.step, self.times = step, 0

    def replay(self) -> None:
        self.times += 1
        x, y, weight = self.step._inputs
        self.step._step(x, y, weight, True)


@pytest.mark.parametrize("works", [True, False])
def test_every_step_sees_its_own_batch_and_only_full_ones_are_replayed(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def step(x: Tensor, y: Tensor, weight: Tensor, _alike: bool) -> None:
        seen.append(float(x.sum() * y.sum() * weight.sum()))

    take = RecordedStep(step, 2)
    graph = Replay(take)
    monkeypatch.setattr(RecordedStep, "_record", lambda _self: graph if works else None)
    for s, size in enumerate(sizes := [2, 1, 2, 2, 2, 1, 2]):
        take(torch.full((size,), s + 1.0), torch.ones(size), torch.full((size,), 1 / size), True)
    take(torch.full((2,), 9.0), torch.ones(2), torch.tensor([0.7, 0.3]), False)
    assert np.allclose(seen, [(s + 1.0) * size * size for s, size in enumerate(sizes)] + [36.0])
    assert graph.times == (sizes.count(2) - AS_WRITTEN + 1 if works else 0)  # the short batch counts as one before


def tokens() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Embedding(10, 2), nn.Flatten(), nn.Linear(2 * 192, 3))


def groups() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "groups": groups,
    "tokens": tokens,
    "resnet18": lambda: resnet18((3, 8, 8), 3, width=0.1),
    "densenet": lambda: densenet((3, 8, 8), 3, blocks=(1, 1), growth=4),
}


def on_device(network: str, kind: str, device: str) -> tuple[Net, Block]:
    """A network and four lanes on a device, whose epochs end in a short batch, or have none."""
    net = net_of(NETWORKS[network], "own", "cross_entropy", 3)
    block = make_block(net, (3, 8, 8), LOCALS[kind], [18, 20, 10, 20], torch.float32, epochs=2)
    net.module.to(device)

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        x, y = block.read(lo, hi)
        return (x.abs().long() if network == "tokens" else x).to(device), y.to(device)

    counters = torch.zeros(len(block.start), len(net.layout.counters), dtype=torch.int64, device=device)
    start, weight = block.start.to(device), block.weight.to(device)
    return net, block._replace(start=start, counters=counters, read=read, weight=weight)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("kind", ["momentum", *(pytest.param(one, marks=SLOW) for one in ("sgd", "prox"))])
@pytest.mark.parametrize(
    ("device", "network"),
    [
        *(pytest.param("cpu", one, marks=SLOW if one in ("resnet18", "densenet") else ()) for one in NETWORKS),
        *(pytest.param("cuda", one, marks=needs_gpu) for one in NETWORKS),
    ],
)
def test_recorded_steps_have_the_bits_of_steps_as_they_are_written(
    device: str, network: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round after round with another rate. On the CPU a stand-in of the graph replays."""
    recordings: list[object] = []
    record = RecordedStep._record if device == "cuda" else Replay

    def watch(step: RecordedStep) -> Any:
        recordings.append(record(step))
        return recordings[-1]

    monkeypatch.setattr(RecordedStep, "_record", watch)
    if device == "cuda":
        device_of(1.0)
    else:
        monkeypatch.setattr(loop, "can_record", lambda *_: True)
        monkeypatch.setattr(loop, "recording_stream", lambda *_: nullcontext())
    net, block = on_device(network, kind, device)
    rounds = [block._replace(lr=lr) for lr in (0.05, 0.02)]
    replayed = [train_loop(net, one) for one in rounds]
    assert len(recordings) == len(rounds) and None not in recordings  # lanes of the same rate share one
    monkeypatch.setattr(loop, "can_record", lambda *_: False)
    for one, found in zip(rounds, replayed, strict=True):
        assert all(map(torch.equal, found, train_loop(net, one)))
    assert not torch.equal(replayed[0].final, replayed[1].final)


@pytest.mark.parametrize(("width", "last"), [(0.1, False), (0.125, True)])
def test_channels_are_not_last_where_torch_would_overwrite_memory(width: float, last: bool) -> None:
    """ResNet-18's shortcuts are 1x1 with a stride: below 8 channels their gradients are wrong on CPUs with AVX2."""
    net = net_of(lambda: resnet18((3, 8, 8), 3, width=width), "own", "cross_entropy", 3)
    assert loop.reads_channels_last(net, (3, 8, 8), torch.float32) == last
    block = make_block(net, (3, 8, 8), Local(lr=0.05), [8], torch.float32, epochs=1)
    block = block._replace(counters=torch.zeros(1, len(net.layout.counters), dtype=torch.int64))
    exact = net_of(lambda: resnet18((3, 8, 8), 3, width=width).double(), "own", "cross_entropy", 3)

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        x, y = block.read(lo, hi)
        return x.double(), y

    found = train_loop(exact, block._replace(start=block.start.double(), read=read, weight=block.weight.double()))
    assert (train_loop(net, block).final - found.final).abs().max() < 1e-4


@needs_gpu
def test_graphs_of_many_lanes_take_the_memory_of_one() -> None:
    device_of(1.0)
    net, block = on_device("resnet18", "momentum", "cuda")
    taken = []
    for _ in range(4):
        train_loop(net, block)
        torch.cuda.synchronize()
        taken.append(torch.cuda.memory_reserved())
    assert taken[1] == taken[3]


@needs_gpu
@pytest.mark.parametrize("error", [RuntimeError("it cannot be recorded"), TimeoutError("it took longer")])
def test_a_gpu_trains_on_after_a_recording_that_failed(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    device_of(1.0)
    net, block = on_device("plain", "momentum", "cuda")
    before = train_loop(net, block)
    losses = loop.sum_losses

    def fail(*given: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise error
        return losses(*given)

    monkeypatch.setattr(loop, "sum_losses", fail)
    monkeypatch.setattr(loop, "_KEPT", [])  # else the record of the first training is replayed
    if isinstance(error, TimeoutError):
        with pytest.raises(TimeoutError):
            train_loop(net, block)
    else:
        assert all(map(torch.equal, before, train_loop(net, block)))
    monkeypatch.setattr(loop, "sum_losses", losses)
    assert all(map(torch.equal, before, train_loop(net, block)))


@needs_gpu
def test_a_gpu_trains_on_after_a_layer_asked_it_while_it_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device_of(1.0)
    monkeypatch.setitem(NETWORKS, "asks", lambda: nn.Sequential(nn.BatchNorm2d(3, momentum=None), plain()))
    net, block = on_device("asks", "sgd", "cuda")
    written = train_loop(net, block)
    monkeypatch.setattr(loop, "can_record", lambda *_: True)
    for _ in range(2):
        assert all(map(torch.equal, written, train_loop(net, block)))
