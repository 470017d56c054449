"""A network as samples of its weights: it begins as the network, learns as the last sample, answers with the mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedray.models.net import compute_raw_outputs, net_of
from fedray.models.nets import model_maker
from fedray.models.weights import Samples, wrap_networks

MAKERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (model_maker("mlp", (4,), 4, hidden=[5]), torch.randn(7, 4)),
    "cnn": (model_maker("cnn", (1, 8, 8), 4, channels=[2, 3], hidden=[5]), torch.randn(7, 1, 8, 8)),
    "lstm": (model_maker("lstm", (6,), 4), torch.arange(42).reshape(7, 6) % 4),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_it_begins_as_copies_of_the_network_and_answers_with_their_mean(kind: str) -> None:
    make, x = MAKERS[kind]
    plain = net_of(make, kind, "cross_entropy", 4)
    several = net_of(wrap_networks(make, Samples, 3, kind), kind, "cross_entropy", 4)
    start, p = plain.init(3), plain.layout.d
    assert torch.equal(several.init(3), start.repeat(3))
    rows = torch.stack([start, 0.5 * start, 2.0 * start])
    wanted = compute_raw_outputs(plain, rows, x).softmax(-1).mean(0)
    torch.testing.assert_close(compute_raw_outputs(several, rows.view(1, 3 * p), x)[0].exp(), wanted)


@pytest.mark.parametrize("kind", MAKERS)
def test_one_sample_is_the_network(kind: str) -> None:
    make, x = MAKERS[kind]
    plain, one = (net_of(f, kind, "cross_entropy", 4) for f in (make, wrap_networks(make, Samples, 1, kind)))
    answer = compute_raw_outputs(plain, plain.init(1)[None], x).log_softmax(-1)
    torch.testing.assert_close(compute_raw_outputs(one, plain.init(1)[None], x), answer)


def test_in_training_it_is_its_last_sample_whose_gradient_alone_there_is() -> None:
    make, x = MAKERS["mlp"]
    plain, several = (net_of(f, "mlp", "cross_entropy", 4) for f in (make, wrap_networks(make, Samples, 3, "mlp")))
    rows = torch.stack([plain.init(k) for k in range(3)]).requires_grad_()
    several.module.train()
    out = functional_call(several.module, {"samples": rows}, (x,))
    torch.testing.assert_close(out, compute_raw_outputs(plain, rows[-1:], x)[0])
    (g,) = torch.autograd.grad(out.square().sum(), rows)
    assert (g[-1] != 0).any() and (g[:-1] == 0).all()
