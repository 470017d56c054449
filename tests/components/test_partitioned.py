"""PVI's parts: natural parameters, cavities, local training against plain torch, and exact inference by factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from blocks import make_block, perceptron
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softplus

from fedray.components.gaussians import (
    LEAST,
    NATURAL,
    add_sites,
    answer_with_draws,
    find_cavity,
    find_posterior,
    from_natural,
    learn_from_cavity,
    refine_sites,
    to_natural,
)
from fedray.components.servers import Rows, mean
from fedray.core.local import Reading, StepContext
from fedray.core.method import Local
from fedray.core.sums import merge_stats
from fedray.core.types import State, Uploads
from fedray.models.net import net_of
from fedray.models.weights import Partitioned, wrap_networks
from fedray.training.client_code import draw_noise, train_client_lanes, train_client_loop

PLAIN = perceptron()
SITED = net_of(wrap_networks(lambda: perceptron().module, Partitioned, -2.5, "mlp"), "mlp", "cross_entropy", 4)
P = PLAIN.layout.trainable
PRIOR = 4.0


def test_mean_and_rho_come_back_from_natural_parameters() -> None:
    """From deviations of 2e-9 to 20, at float64's precision; narrow ones have huge natural parameters."""
    rho = torch.tensor([-20.0, -3.44, -1.0, 0.5, 3.0, 20.0], dtype=torch.float64)
    mean = torch.linspace(-3, 2, 6, dtype=torch.float64)
    back = from_natural(to_natural(mean, rho))
    inside = softplus(rho) < LEAST**-0.5
    torch.testing.assert_close(back, torch.cat([mean, rho]), rtol=1e-6, atol=1e-6)
    assert inside.all()


def row_of(mean: Tensor, rho: Tensor, site: Tensor, is_prior: float) -> Tensor:
    return torch.cat([mean, rho, site, torch.tensor([is_prior], dtype=mean.dtype)])


def test_the_first_cavity_is_the_prior_wherever_training_begins() -> None:
    """With factors of 1 and a posterior that is the prior; later the cavity is the posterior less the factor."""
    g = torch.Generator().manual_seed(0)
    mean, rho, none = torch.randn(5, generator=g), torch.randn(5, generator=g), torch.zeros(10)
    prior = torch.cat([torch.zeros(5), torch.full((5,), PRIOR)]).double()
    assert torch.equal(find_cavity(row_of(mean, rho, none, 1.0), PRIOR, 5), prior)
    assert torch.equal(find_cavity(row_of(mean, rho, none, 0.0), PRIOR, 5), to_natural(mean, rho))
    site = 0.5 * to_natural(mean, rho).float()
    found = find_cavity(row_of(mean, rho, site, 0.0), PRIOR, 5)
    torch.testing.assert_close(found, 0.5 * to_natural(mean, rho), rtol=1e-6, atol=1e-6)


def test_a_precision_that_is_not_above_0_is_taken_for_the_least() -> None:
    """Of a cavity, whose linear term stays, and of a posterior; a factor may have any sign."""
    site = torch.tensor([0.25, -2.0, 9.0, -9.0])
    found = find_cavity(row_of(torch.ones(2), torch.zeros(2), site, 0.0), PRIOR, 2)
    q = to_natural(torch.ones(2), torch.zeros(2))
    torch.testing.assert_close(found, torch.stack([q[0] - 0.25, q[1] + 2.0, q.new_tensor(LEAST), q[3] + 9.0]))
    mean, rho = from_natural(torch.tensor([2.0, -3.0], dtype=torch.float64))
    assert float(mean) == pytest.approx(2.0 / LEAST) and float(softplus(rho)) == pytest.approx(LEAST**-0.5)


def blocks_of(local: Local, sizes: list[int], is_prior: float) -> Any:
    """Clients with Gaussians around the plain network's weights and factors of their own."""
    plain = make_block(PLAIN, (6,), local, sizes, torch.float32)
    w, lanes = plain.start, torch.arange(len(sizes))
    g = torch.Generator().manual_seed(2)
    site = torch.cat([torch.randn(w.shape, generator=g), 20.0 * torch.rand(w.shape, generator=g)], dim=1)
    rest = [torch.full_like(w, -2.5), site * (1.0 - is_prior), torch.full((len(sizes), 1), is_prior)]
    start = torch.cat([w, *rest], dim=1)
    reading = Reading(0, lanes, torch.zeros_like(lanes), start, size=torch.tensor(sizes))
    return plain._replace(start=start, reading=reading)


def train_by_torch(block: Any, lane: int, local: Local) -> Tensor:
    """Mean and rho after one client's training with torch's divergence from the cavity, autograd and optimizers."""
    start = block.start[lane]
    q = start[: 2 * P].clone().requires_grad_()
    if start[4 * P] > 0.5:
        prior = Normal(torch.zeros(P), PRIOR**-0.5)
    else:
        linear, precision = (to_natural(start[:P], start[P : 2 * P]) - start[2 * P : 4 * P]).float().chunk(2)
        prior = Normal(linear / precision, precision**-0.5)
    make: Any = torch.optim.Adam if local.optimizer == "adam" else torch.optim.SGD
    optimizer = make([q], lr=block.lr, **({} if local.optimizer == "adam" else {"momentum": local.momentum}))
    size = int(block.reading.size[lane])
    for s in range(int(block.steps[lane])):
        x, y = (part[0, lane] for part in block.read(s, s + 1))
        real = block.weight[s, lane] > 0
        noise = draw_noise(block.local, block.keys[lane : lane + 1], s, block.start[:1])[0]
        draw = PLAIN.layout.views(q[:P] + softplus(q[P:]) * noise)
        loss = cross_entropy(functional_call(PLAIN.module, draw, (x[real],)), y[real])
        cost: Any = loss + kl_divergence(Normal(q[:P], softplus(q[P:])), prior).sum() / size
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
    found: Tensor = q.detach()
    return found


@pytest.mark.parametrize("train", [train_client_lanes, train_client_loop], ids=["lanes", "one after another"])
@pytest.mark.parametrize("is_prior", [1.0, 0.0], ids=["first", "later"])
@pytest.mark.parametrize("local", [Local(optimizer="adam", lr=0.01), Local(lr=0.05, momentum=0.9)], ids=["adam", "sgd"])
def test_local_training_is_variational_inference_with_the_cavity_as_its_prior(
    train: Any, is_prior: float, local: Local
) -> None:
    """Of clients of several sizes, whose last batches are padded; factors and the mark stay as they are."""
    sizes = [11, 7]
    rule = learn_from_cavity(local, PRIOR, P)
    block = blocks_of(Local(lr=local.lr), sizes, is_prior)
    block = block._replace(local=Local(lr=local.lr, step=rule), lr=0.01 if local.optimizer == "adam" else 1e-3)
    found = train(SITED, block).final
    for lane in range(len(sizes)):
        wanted = train_by_torch(block, lane, local)
        assert (wanted - block.start[lane, : 2 * P]).abs().max() > 1e-3
        torch.testing.assert_close(found[lane, : 2 * P], wanted, rtol=0, atol=3e-5)
        assert torch.equal(found[lane, 2 * P :], block.start[lane, 2 * P :])


@pytest.mark.parametrize("local", [Local(optimizer="adam", lr=0.01), Local(lr=0.05)], ids=["adam", "sgd"])
def test_rounding_moves_no_gaussian_that_is_its_cavity(local: Local) -> None:
    """Without a factor and without data the gradient is 0 to the bit; Adam made a whole step of what rounding left."""
    g, p = torch.Generator().manual_seed(0), 203
    mean, rho = 3.0 * torch.randn(3, p, generator=g), 4.0 * torch.randn(3, p, generator=g) - 3.0
    rows, rule = torch.cat([mean, rho, torch.zeros(3, 2 * p + 1)], dim=1), learn_from_cavity(local, PRIOR, p)
    one, none = torch.tensor([7.0]), torch.zeros_like
    context = StepContext(0, one, 0, one, local.lr, one, none, none, torch.randn(p, generator=g), one)
    step, _ = torch.vmap(lambda row: rule.update(none(row), rule.init(row), row, context))(rows)
    assert (step == 0.0).all()


class Federation:
    """Clients of a conjugate model, who know the optimum: the cavity times their likelihood."""

    def __init__(self, clients: int, damping: float, p: int = 6) -> None:
        g = torch.Generator().manual_seed(4)
        precision = 30.0 * torch.rand(clients, p, generator=g, dtype=torch.float64)
        self.p, self.likelihood = p, torch.cat([precision * torch.randn(clients, p, generator=g), precision], dim=1)
        self.finish = refine_sites(damping, damping, PRIOR, p)
        rows = Rows(1, 1)
        self.server = add_sites(mean(rows), rows, PRIOR, p)
        first = row_of(torch.randn(p, generator=g), torch.full((p,), -3.44), torch.zeros(2 * p), 1.0)[None]
        self.state = State(first, torch.zeros(1, 0, dtype=torch.int64), self.server.init(first))
        self.sites = torch.zeros(clients, 2 * p)

    def train(self, clients: list[int], t: int = 0, blocks: int = 1) -> None:
        """A round of some clients, whose uploads are reduced in so many blocks."""
        start = self.state.models.repeat(len(clients), 1)
        start[:, 2 * self.p : 4 * self.p] = self.sites[clients]
        optimum = find_cavity(start, PRIOR, self.p) + self.likelihood[clients]
        final = torch.cat([from_natural(optimum).float(), start[:, 2 * self.p :]], dim=1)
        kept = self.finish(start, final)
        self.sites[clients] = kept[:, 2 * self.p : 4 * self.p]
        delta = kept - start
        delta[:, 2 * self.p : 4 * self.p] = 0.0
        parts = []
        for some in np.array_split(np.arange(len(clients)), blocks):
            who = np.array(clients)[some]
            zero = 0 * who
            parts.append(self.server.reduce(Uploads(delta[some], who, zero, zero, zero, zero + 1)))
        self.state = self.server.step(self.state, merge_stats(parts), t)

    def exact(self) -> Tensor:
        prior = torch.cat([torch.zeros(self.p), torch.full((self.p,), PRIOR)]).double()
        return prior + self.likelihood.sum(0)

    def check_conservation(self) -> None:
        """The prior times all factors is the posterior, in the state and in the model."""
        product = self.exact() - self.likelihood.sum(0) + self.sites.double().sum(0)
        torch.testing.assert_close(self.state.extra[NATURAL][0], product, rtol=1e-5, atol=1e-4)
        found = find_posterior(self.state.models[0], PRIOR, self.p)
        torch.testing.assert_close(found, product, rtol=1e-5, atol=1e-3)


def test_one_pass_over_clients_one_by_one_is_exact_inference() -> None:
    """With a conjugate model and damping 1 (Bui et al. 2018); the posterior is conserved on the way."""
    one = Federation(5, 1.0)
    for client in range(5):
        one.check_conservation()
        one.train([client], client)
    one.check_conservation()
    torch.testing.assert_close(one.state.extra[NATURAL][0], one.exact(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(one.state.models[0, :12], from_natural(one.exact()).float(), rtol=1e-5, atol=1e-5)


def test_all_clients_at_once_come_to_exact_inference_by_the_damping() -> None:
    """After r rounds of damping 1 / N a factor is the share 1 - (1 - 1 / N)^r of its client's likelihood."""
    one = Federation(5, 0.2)
    for t in range(60):
        one.train(list(range(5)), t)
        if t in (0, 1, 7):
            wanted = (1 - 0.8 ** (t + 1)) * one.likelihood
            torch.testing.assert_close(one.sites.double(), wanted, rtol=1e-4, atol=1e-3)
            one.check_conservation()
    torch.testing.assert_close(one.state.extra[NATURAL][0], one.exact(), rtol=1e-5, atol=1e-3)


def test_a_client_alone_with_damping_1_has_the_prior_as_its_cavity_in_every_round() -> None:
    """So that its local training is plain variational inference, from where it stopped."""
    one = Federation(1, 1.0)
    prior = torch.cat([torch.zeros(6), torch.full((6,), PRIOR)]).double()
    for t in range(3):
        start = one.state.models.clone()
        start[:, 12:24] = one.sites
        torch.testing.assert_close(find_cavity(start, PRIOR, 6)[0], prior, rtol=1e-4, atol=1e-3)
        one.train([0], t)


def test_the_order_of_clients_and_how_they_are_packed_change_no_bit() -> None:
    clients = list(range(6))
    for order, blocks in (([3, 1, 5, 0, 4, 2], 1), (clients, 3), (clients[::-1], 6)):
        one, other = Federation(6, 0.5), Federation(6, 0.5)
        one.train(clients)
        other.train(order, blocks=blocks)
        assert torch.equal(one.state.models, other.state.models)
        assert torch.equal(one.state.extra[NATURAL], other.state.extra[NATURAL])


def test_the_change_of_the_posterior_is_proportional_to_the_damping() -> None:
    half, tenth = Federation(4, 0.5), Federation(4, 0.1)
    for one in (half, tenth):
        one.train([0, 2, 3])
    first = half.exact() - half.likelihood.sum(0)
    moved = [one.state.extra[NATURAL][0] - first for one in (half, tenth)]
    torch.testing.assert_close(moved[0], 5 * moved[1], rtol=1e-4, atol=1e-3)


def test_a_model_that_nobody_trained_stays_the_prior() -> None:
    """Its row and its mark stay, to the bit; those of the other model change."""
    rows, p = Rows(1, 2), 3
    server = add_sites(mean(rows), rows, PRIOR, p)
    row = row_of(torch.ones(p), torch.full((p,), -3.0), torch.zeros(2 * p), 1.0)
    state = State(row.repeat(2, 1), torch.zeros(2, 0, dtype=torch.int64), server.init(row.repeat(2, 1)))
    zero, delta = np.array([0]), torch.zeros(1, 4 * p + 1)
    delta[0, : 2 * p] = 1.0
    after = server.step(state, server.reduce(Uploads(delta, zero, zero, zero, zero, zero + 1)), 0)
    assert torch.equal(after.models[1], row) and after.models[0, -1] == 0.0
    assert torch.equal(after.extra[NATURAL][1], state.extra[NATURAL][1])
    wanted = from_natural(torch.tensor([1.0] * p + [PRIOR + 1.0] * p).double()).float()
    torch.testing.assert_close(after.models[0, : 2 * p], wanted)


def test_the_draws_that_answer_have_the_posteriors_mean_and_deviation() -> None:
    p, draws = 2000, 8
    row = row_of(torch.ones(p), torch.full((p,), -1.0), torch.zeros(2 * p), 0.0)
    state = State(torch.stack([row, row + 1.0, row, row]), torch.zeros(4, 0, dtype=torch.int64), {})
    answer = answer_with_draws(state, [5, 6], draws, p)
    assert answer.models == 2 * draws and len(answer.state.models) == 4 * draws
    first = answer.state.models[:draws, :p]
    assert float((first - 1.0).std()) == pytest.approx(float(softplus(torch.tensor(-1.0))), rel=0.03)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.equal(answer.state.models[:, p:], state.models.repeat_interleave(draws, 0)[:, p:])
    assert not torch.equal(first, answer.state.models[2 * draws : 3 * draws, :p])  # of another world
    assert answer_with_draws(state, [5, 6], 0, p).state is state
