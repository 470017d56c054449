"""Lanes of convolutions: a lane has the bits that it has in a block of any other width, on any processor."""

from __future__ import annotations

import threading

import pytest
import torch

from fedray.core.method import Local
from fedray.models.nets import build_net
from fedray.training import choice
from fedray.training.choice import choose_engine
from fedray.training.layers import invariant_convolutions


@pytest.mark.parametrize("batch", [3, 8])
def test_a_lane_has_the_same_bits_in_blocks_of_any_width(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without AVX-512 blocks of three lanes differed from blocks of two in the last bit of some kernels."""
    monkeypatch.setattr(choice, "_LANES", 8)
    net = build_net("cnn", (1, 12, 12), 3, "cross_entropy", channels=[10, 20], hidden=[8], kernel=5, padding=2)
    engine, example = choose_engine(net, lanes="torch"), torch.zeros(1, 12, 12)
    assert engine.name == "conv"
    starts = torch.stack([net.init(lane) for lane in range(8)])

    def train(lanes: list[int]) -> torch.Tensor:
        local = Local(batch_size=batch)
        block = choice._make_block(net, local, example, lanes, starts)
        return engine.train(net, block).final

    pairs = [train([k, k])[0] for k in range(6)]
    for width in range(2, 7):
        assert all(torch.equal(one, pairs[k]) for k, one in enumerate(train(list(range(width))))), width


def test_the_switch_stays_until_the_last_thread_has_left() -> None:
    before, cpu = torch.backends.mkldnn.enabled, torch.device("cpu")
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with invariant_convolutions(cpu):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    with invariant_convolutions(cpu):
        within = torch.backends.mkldnn.enabled
        thread.start()
        entered.wait(10)
    assert torch.backends.mkldnn.enabled == within
    leave.set()
    thread.join()
    assert torch.backends.mkldnn.enabled == before
