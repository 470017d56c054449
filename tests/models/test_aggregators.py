"""Aggregators: what they are where clients are alike, and what they do not depend on."""

from itertools import pairwise

import pytest
import torch

from fedray.features.stacking import (
    build_aggregator,
    build_interpolation,
    combine_outputs,
    interpolate_answers,
    side_by_side,
)

CLIENTS, CLASSES = 3, 4


def outputs(n: int = 10) -> torch.Tensor:
    return torch.randn(CLIENTS, n, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("kind", ["mean", "label_shares", "voting"])
def test_one_client_or_copies_of_it_are_the_client(kind: str) -> None:
    """Its probabilities, or with votes its first choice; probabilities add up to 1."""
    one = outputs()[:1]
    shares = torch.full((5, CLASSES), 1 / 5)
    alone = combine_outputs(kind, one, torch.ones(1, CLASSES)).exp()
    torch.testing.assert_close(combine_outputs(kind, one.expand(5, -1, -1), shares).exp(), alone)
    torch.testing.assert_close(alone.sum(-1), torch.ones(10, dtype=torch.float64))
    want = one[0].softmax(-1)
    torch.testing.assert_close(alone, want if kind != "voting" else (want == want.amax(-1, keepdim=True)).double())


def test_equal_label_shares_are_the_mean_and_a_class_is_left_to_those_who_have_it() -> None:
    z = outputs()
    equal = torch.full((CLIENTS, CLASSES), 1 / CLIENTS)
    torch.testing.assert_close(combine_outputs("label_shares", z, equal), combine_outputs("mean", z))
    holder = torch.zeros(CLIENTS, CLASSES)
    holder[torch.arange(CLASSES) % CLIENTS, torch.arange(CLASSES)] = 1.0
    said = combine_outputs("label_shares", z, holder).exp()
    each = torch.stack([z[c % CLIENTS].softmax(-1)[:, c] for c in range(CLASSES)], dim=-1)
    torch.testing.assert_close(said, each / each.sum(-1, keepdim=True))


@pytest.mark.parametrize("kind", ["client_weights", "class_weights"])
def test_weights_start_as_the_mean_of_the_logits(kind: str) -> None:
    z = outputs()
    net = build_aggregator(kind, CLIENTS, CLASSES, width=2)
    torch.testing.assert_close(net.module(side_by_side(z)), z.mean(0).float())
    assert net.layout.d == (CLIENTS if kind == "client_weights" else CLIENTS * CLASSES)


def test_the_neural_aggregator_has_no_biases() -> None:
    net = build_aggregator("neural", CLIENTS, CLASSES, width=2)
    assert net.layout.d == 2 * CLIENTS * CLIENTS * CLASSES + CLASSES * 2 * CLIENTS
    assert torch.equal(net.module(torch.zeros(1, CLIENTS * CLASSES)), torch.zeros(1, CLASSES))


def between(z: torch.Tensor, beta: float) -> torch.Tensor:
    return interpolate_answers(z, torch.tensor([beta], dtype=z.dtype))


def test_the_ends_of_beta_are_the_mean_and_the_normalized_product() -> None:
    z = outputs()
    torch.testing.assert_close(between(z, 0.0), combine_outputs("mean", z))
    product = z.softmax(-1).prod(0)
    torch.testing.assert_close(between(z, 1.0).exp(), product / product.sum(-1, keepdim=True))
    torch.testing.assert_close(between(z, 2.0), (2 * between(z, 1.0)).log_softmax(-1))  # no share is below 0
    torch.testing.assert_close(between(z, -0.5), (1.5 * between(z, 0.0)).log_softmax(-1))


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_one_client_is_itself_for_every_beta(beta: float) -> None:
    one = outputs()[:1]
    torch.testing.assert_close(between(one, beta), one[0].log_softmax(-1))


def test_beta_changes_no_first_choice_where_all_clients_agree() -> None:
    """It sharpens: the largest probability grows with beta."""
    same = outputs()[:1].expand(CLIENTS, -1, -1)
    found = [between(same, beta) for beta in (0.0, 0.25, 0.75, 1.0)]
    for less, more in pairwise(found):
        assert torch.equal(less.argmax(-1), more.argmax(-1))
        assert (less.amax(-1) < more.amax(-1)).all()


def test_the_network_of_beta_has_one_number_and_does_not_know_the_order_of_clients() -> None:
    z, net = outputs(), build_interpolation(CLASSES, 0.3)
    assert net.layout.d == 1
    torch.testing.assert_close(net.module(side_by_side(z)), between(z, 0.3).float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(between(z.flip(0), 0.3), between(z, 0.3))


def test_products_of_many_sure_clients_do_not_underflow() -> None:
    z = torch.tensor([80.0, 0.0, -80.0]).expand(500, 1, 3)
    assert between(z, 1.0).isfinite().all() and between(z, 0.5).isfinite().all()
