"""Networks with early exits: where they are cut, and what they answer."""

from typing import Any

import pytest
import torch
from torch import nn

from fedray.core import rng
from fedray.models.net import net_of
from fedray.models.nets import add_exits, keep_exits, model_maker

IMAGE = (1, 8, 8)


def cut(name: str, most: int, **options: Any) -> nn.Module:
    return add_exits(model_maker(name, IMAGE, 10, **options)(), most, IMAGE, name, "it")


@pytest.mark.parametrize(
    ("name", "options", "most", "blocks"),
    [
        ("mlp", {"hidden": [8]}, 4, [3]),
        ("mlp", {"hidden": [8, 8, 8]}, 4, [3, 2, 2]),
        ("mlp", {"hidden": [8, 8, 8]}, 2, [5, 2]),
        ("mlp", {"hidden": [8, 8], "norm": "layer"}, 4, [4, 3]),
        ("cnn", {"channels": [3, 4], "hidden": [8]}, 4, [3, 3, 3]),  # the flattening begins the third
        ("resnet18", {"width": 0.125, "norm": "group"}, 4, [5, 1, 1, 3]),  # stem, first stage; pooling, flattening
    ],
)
def test_blocks_are_cut_before_layers_with_weights(
    name: str, options: dict[str, Any], most: int, blocks: list[int]
) -> None:
    """And the last head answers as the network does, from the same first values."""
    with rng.torch_scope(3):
        plain = model_maker(name, IMAGE, 10, **options)().eval()
    with rng.torch_scope(3):
        exits: Any = cut(name, most, **options).eval()
    assert [len(block) for block in exits.blocks] == blocks
    x = torch.randn(4, *IMAGE)
    alone = keep_exits(net_of(lambda: exits, name, "cross_entropy", 10), len(exits.blocks), [len(exits.blocks) - 1])
    assert torch.equal(alone.module.eval()(x), plain(x))
    heads = exits.train()(x)
    assert heads.shape == (4, len(exits.blocks), 10)
    torch.testing.assert_close(exits.eval()(x), heads.mean(1))  # its answer
