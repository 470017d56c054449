"""A network under a Gaussian with a factor: it begins and answers as the network, and says that nothing was learned."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedray.models.net import compute_raw_outputs, net_of
from fedray.models.nets import model_maker
from fedray.models.weights import SITE_NAMES as NAMES
from fedray.models.weights import Partitioned, wrap_networks


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


@pytest.mark.parametrize("make", [model_maker("mlp", (4,), 3, hidden=[5]), normalized], ids=["mlp", "batch norm"])
def test_it_begins_and_answers_as_the_network(make: object) -> None:
    """The same first weights from the same address, a factor of 1, and answers that the mean alone decides."""
    plain = net_of(make, "net", "cross_entropy", 3)  # type: ignore[arg-type]
    one = net_of(wrap_networks(make, Partitioned, -2.0, "net"), "net", "cross_entropy", 3)  # type: ignore[arg-type]
    p, row, start = plain.layout.trainable, one.init(3), plain.init(3)
    assert one.layout.names[:5] == NAMES
    assert one.layout.sizes[:5] == (p, p, p, p, 1) and one.layout.trainable == 4 * p + 1
    assert torch.equal(row[:p], start[:p])
    assert (row[p : 2 * p] == -2.0).all() and (row[2 * p : 4 * p] == 0.0).all() and row[4 * p] == 1.0
    assert torch.equal(row[4 * p + 1 :], start[p:])  # running statistics
    x, half = torch.randn(7, 4), torch.cat([0.5 * start[:p], start[p:]])
    other = torch.cat([0.5 * start[:p], row[p : 4 * p + 1] + 9.0, start[p:]])
    wanted = compute_raw_outputs(plain, torch.stack([start, half]), x)
    torch.testing.assert_close(compute_raw_outputs(one, torch.stack([row, other]), x), wanted)
