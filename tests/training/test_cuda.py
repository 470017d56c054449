"""The same engines on a GPU, where there is one: equal to the CPU within float tolerance."""

from __future__ import annotations

import pytest
import torch
from blocks import ENGINES, LOCALS, NETS, SHAPES, make_block

from fedray.training.choice import LANE_FLOATS, MOST_LANES, choose_engine

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@needs_gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "prox"])
def test_an_engine_on_cuda_equals_itself_on_the_cpu(engine: str, kind: str) -> None:
    net = NETS[engine]()
    block = make_block(net, SHAPES[engine], LOCALS[kind], [17, 20, 9, 20], torch.float32, epochs=3)
    reference = ENGINES[engine](net, block).final

    def read(lo: int, hi: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = block.read(lo, hi)
        return x.cuda(), y.cuda()

    net.module.cuda()
    moved = block._replace(
        start=block.start.cuda(), counters=block.counters.cuda(), read=read, weight=block.weight.cuda()
    )
    final = ENGINES[engine](net, moved).final.cpu()
    net.module.cpu()
    assert (final - reference).abs().max() < 1e-4


def test_the_width_rule_has_constants_of_its_own_for_each_device() -> None:
    net = NETS["mlp"]()
    assert choose_engine(net, "cuda").width > choose_engine(net, "cpu").width
    assert LANE_FLOATS.keys() == MOST_LANES.keys() == {"cpu", "cuda"}
