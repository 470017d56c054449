"""What a row of numbers says: raw outputs of a network, and their gradients."""

from __future__ import annotations

import torch
from torch import nn

from fedray.models.net import compute_raw_outputs, net_of, whole_state_dict


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_gradients_flow_to_the_parameters_of_a_network_with_batch_normalization() -> None:
    """A row holds running statistics too, through which torch has no gradient."""
    net, x = net_of(normalized, "normalized", "cross_entropy", 3), torch.randn(6, 4, generator=torch.manual_seed(0))
    row = net.init(0)
    leaf = row.clone().requires_grad_()
    (found,) = torch.autograd.grad(compute_raw_outputs(net, leaf[None], x).square().sum(), leaf)
    plain = normalized().eval()
    plain.load_state_dict(whole_state_dict(net, row))
    wanted = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
    torch.testing.assert_close(found[: net.layout.trainable], torch.cat([each.flatten() for each in wanted]))
    assert not found[net.layout.trainable :].any()
