"""IVON-ADMM's parts: steps of IVON against its formulas, exact inference by duals, PVI and FedDyn as cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from blocks import make_block, perceptron
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softplus

from fedray.components.gaussians import (
    NATURAL,
    SITES,
    Weights,
    add_sites,
    find_posterior,
    find_server_step,
    from_natural,
    learn_by_ivon,
    refine_sites,
    step_by_admm,
)
from fedray.components.servers import Rows, feddyn_server, mean
from fedray.core.local import Reading, StepContext
from fedray.core.method import Local, Server
from fedray.core.sums import merge_stats
from fedray.core.types import State, Uploads
from fedray.methods.feddyn import correct_clients
from fedray.models.net import net_of
from fedray.models.weights import Partitioned, wrap_networks
from fedray.training.client_code import draw_noise, train_client_lanes, train_client_loop

PLAIN = perceptron()
SITED = net_of(wrap_networks(lambda: perceptron().module, Partitioned, -2.5, "mlp"), "mlp", "cross_entropy", 4)
P = PLAIN.layout.trainable
BETA1, BETA2, PRIOR = 0.9, 0.99, 4.0


def train_as_written(block: Any, lane: int, weights: Weights) -> tuple[Tensor, Tensor]:
    """Mean and precision after one client's training by IVON as the paper has it: with h, delta, v and V."""
    start, size = block.start[lane].double(), int(block.reading.size[lane])
    n, m, s = size / (weights.temperature * weights.penalty), start[:P], softplus(start[P : 2 * P]) ** -2
    v, big_v = (-part * weights.temperature / size for part in start[2 * P : 4 * P].chunk(2))
    prior, center = (torch.full_like(s, weights.prior), 0.0 * m) if start[4 * P] > 0.5 else (s, m)
    delta, momentum = prior / n, torch.zeros_like(m)
    h = s / n - delta
    for step in range(int(block.steps[lane])):
        x, y = (part[0, lane] for part in block.read(step, step + 1))
        real = block.weight[step, lane] > 0
        noise = draw_noise(block.local, block.keys[lane : lane + 1], step, block.start[:1])[0].double()
        away = noise / (n * (h + delta)).sqrt()
        theta = (m + away).float().requires_grad_()
        loss = cross_entropy(functional_call(PLAIN.module, PLAIN.layout.views(theta), (x[real],)), y[real])
        (g,) = (one.double() for one in torch.autograd.grad(loss, theta))
        momentum = BETA1 * momentum + (1 - BETA1) * g
        f = g * away * n * (h + delta) + big_v
        h = BETA2 * h + (1 - BETA2) * f + 0.5 * (1 - BETA2) ** 2 * (h - f) ** 2 / (h + delta)
        pulled = momentum / (1 - BETA1 ** (step + 1)) - v + big_v * m + delta * (m - center)
        m = m - block.lr * pulled / (h + delta)
    return m, n * (h + delta)


@pytest.mark.parametrize("train", [train_client_lanes, train_client_loop], ids=["lanes", "one after another"])
@pytest.mark.parametrize("is_prior", [1.0, 0.0], ids=["first", "later"])
def test_local_training_is_ivon_with_the_duals_of_the_paper(train: Any, is_prior: float) -> None:
    """Of clients of several sizes, whose last batches are padded; factors and the mark stay as they are."""
    sizes, weights = [11, 7], Weights(penalty=0.5, temperature=0.1, prior=PRIOR)
    plain = make_block(PLAIN, (6,), Local(), sizes, torch.float32)
    g, lanes = torch.Generator().manual_seed(2), torch.arange(2)
    site = torch.cat([torch.randn(plain.start.shape, generator=g), 9.0 * torch.rand(plain.start.shape, generator=g)], 1)
    parts = [plain.start, torch.full_like(plain.start, -2.5), (1 - is_prior) * site, torch.full((2, 1), is_prior)]
    start, local = torch.cat(parts, dim=1), Local(step=learn_by_ivon(weights, BETA1, BETA2, P))
    reading = Reading(0, lanes, torch.zeros_like(lanes), start, size=torch.tensor(sizes))
    block = plain._replace(start=start, reading=reading, local=local, lr=0.02)
    found = train(SITED, block).final
    for lane in range(2):
        m, s = train_as_written(block, lane, weights)
        assert (m - start[lane, :P]).abs().max() > 0.02 and (s - 1 / softplus(torch.tensor(-2.5)) ** 2).abs().max() > 1
        torch.testing.assert_close(found[lane, :P].double(), m, rtol=0, atol=1e-4)
        torch.testing.assert_close(softplus(found[lane, P : 2 * P].double()) ** -2, s, rtol=2e-4, atol=0)
        assert torch.equal(found[lane, 2 * P :], start[lane, 2 * P :])
    still = train(SITED, block._replace(lr=0.0)).final
    assert torch.equal(still, start)


def context(noise: Tensor, size: int, step: int = 0) -> StepContext:
    none = torch.tensor(0)
    return StepContext(0, none, step, none, 0.1, none, torch.clone, torch.clone, noise, torch.tensor(size))


def row_of(natural: Tensor, site: Tensor, is_prior: float = 0.0) -> Tensor:
    return torch.cat([from_natural(natural), site, torch.tensor([is_prior])]).double()


def test_a_factor_that_outweighs_the_received_precision_leaves_a_client_none() -> None:
    """Where its rows say nothing, its precision goes to S_g - b / rho, and where that is below 0 to next to nothing."""
    factor = torch.tensor([0.0, 0.0, 1.0, 6.0], dtype=torch.float64)
    row = row_of(torch.tensor([0.0, 0.0, 10.0, 10.0], dtype=torch.float64), factor)
    rule = learn_by_ivon(Weights(penalty=0.5, temperature=1.0, prior=PRIOR), BETA1, BETA2, 2)
    state, noise = rule.init(row), torch.ones(2, dtype=torch.float64)
    for step in range(1000):
        state = rule.update(torch.zeros(9, dtype=torch.float64), state, row, context(noise, 20, step))[1]
    torch.testing.assert_close(state.precision[0], torch.tensor(8.0, dtype=torch.float64), rtol=1e-3, atol=0)
    assert 0 < state.precision[1] < 0.1


def test_at_the_exact_posterior_with_exact_factors_a_step_moves_nothing_on_average() -> None:
    """Over both signs of the noise, for a quadratic loss: the fixed point that decides the signs of the duals."""
    g, n = torch.Generator().manual_seed(3), 20
    mine, others = (torch.rand(2, 5, generator=g, dtype=torch.float64) * 30 + 1 for _ in range(2))
    weights = Weights(0.3, 0.2, PRIOR)
    rule = learn_by_ivon(weights, BETA1, BETA2, 5)
    whole = (mine + others).flatten()
    whole[5:] += PRIOR
    row = row_of(whole, mine.flatten())
    moved, ratio = [], []
    for sign in (1.0, -1.0):
        noise = torch.full((5,), sign, dtype=torch.float64)
        at = rule.at(row, noise)[:5]  # type: ignore[misc]
        gradient = torch.cat([(mine[1] * at - mine[0]) * weights.temperature / n, torch.zeros(16)])
        step, state = rule.update(gradient, rule.init(row), row, context(noise, n))
        moved.append(step[:5] * state.precision)
        ratio.append(state.precision / whole[5:] - 1)
    assert moved[0].abs().max() > 1.0
    torch.testing.assert_close(moved[0], -moved[1], rtol=1e-6, atol=1e-6)
    y = (ratio[0] - ratio[1]) / 2
    torch.testing.assert_close((ratio[0] + ratio[1]) / 2, y.square() / 2, rtol=1e-4, atol=1e-9)
    assert y.abs().max() > 1e-3


def test_a_step_leaves_at_least_half_of_a_precision() -> None:
    """Also with huge curvature of either sign."""
    rule = learn_by_ivon(Weights(1.0, 1.0, PRIOR), BETA1, 0.5, 5)
    natural = torch.tensor([0.0, 1, 2, 3, 4, 1, 1, 10, 10, 100]).double()
    row = row_of(natural, torch.zeros(10))
    for size in (-1e3, -2.0, -0.1, 0.1, 1e3):
        gradient = torch.cat([torch.full((5,), size), torch.zeros(16)]).double()
        _, state = rule.update(gradient, rule.init(row), row, context(torch.ones(5).double(), 7))
        assert (state.precision > 0.499 * natural[5:]).all()


class Federation:
    """Clients of a conjugate model, who know the least of their objectives; they keep factors as PVI's do."""

    def __init__(self, clients: int, server: Server, *, kept: float, sent: float, penalty: float) -> None:
        p = 6
        g = torch.Generator().manual_seed(4)
        precision = 30.0 * torch.rand(clients, p, generator=g, dtype=torch.float64)
        self.p, self.likelihood = p, torch.cat([precision * torch.randn(clients, p, generator=g), precision], dim=1)
        self.finish, self.server, self.penalty = refine_sites(kept, sent, PRIOR, p), server, penalty
        first = torch.cat([torch.randn(p, generator=g), torch.full((p,), -3.44), torch.zeros(2 * p), torch.ones(1)])
        self.state = State(first[None], torch.zeros(1, 0, dtype=torch.int64), server.init(first[None]))
        self.sites = torch.zeros(clients, 2 * p)

    def train(self, clients: list[int], t: int = 0, blocks: int = 1) -> None:
        """A round of some clients: `lambda(q_k) = lambda(q) + (likelihood - factor) / rho`."""
        start = self.state.models.repeat(len(clients), 1)
        start[:, 2 * self.p : 4 * self.p] = self.sites[clients]
        optimum = find_posterior(start, PRIOR, self.p)
        optimum = optimum + (self.likelihood[clients] - self.sites[clients].double()) / self.penalty
        kept = self.finish(start, torch.cat([from_natural(optimum).float(), start[:, 2 * self.p :]], dim=1))
        self.sites[clients] = kept[:, 2 * self.p : 4 * self.p]
        delta = kept - start
        delta[:, 2 * self.p : 4 * self.p] = 0.0
        parts = []
        for some in np.array_split(np.arange(len(clients)), blocks):
            who = np.array(clients)[some]
            parts.append(self.server.reduce(Uploads(delta[some], who, 0 * who, 0 * who, 0 * who, 0 * who + 1)))
        self.state = self.server.step(self.state, merge_stats(parts), t)

    @property
    def natural(self) -> Tensor:
        return self.state.extra[NATURAL][0]

    def exact(self) -> Tensor:
        return torch.cat([torch.zeros(self.p), torch.full((self.p,), PRIOR)]).double() + self.likelihood.sum(0)


def admm(clients: int, *, penalty: float = 1.0, gamma: float = 1.0, step: Any = "admm") -> Federation:
    rows, kept, alpha = Rows(1, 1), gamma * penalty, find_server_step(step, penalty, clients)
    server = step_by_admm(mean(rows), rows, alpha=alpha, kept=kept, prior=PRIOR, p=6)
    return Federation(clients, server, kept=kept, sent=1.0, penalty=penalty)


@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize(("penalty", "gamma"), [(0.2, 1.0), (0.2, 0.3), (2.0, 1.0)])
def test_clients_with_quadratic_losses_come_to_the_joint_posterior(clients: int, penalty: float, gamma: float) -> None:
    """Mean and precision; on the way a factor is the share 1 - (1 - gamma)^r of its client's likelihood."""
    one = admm(clients, penalty=penalty, gamma=gamma)
    for t in range(200):
        one.train(list(range(clients)), t)
        if t in (0, 1, 7):
            wanted = (1 - (1 - gamma) ** (t + 1)) * one.likelihood
            torch.testing.assert_close(one.sites.double(), wanted, rtol=1e-3, atol=2e-2)
        torch.testing.assert_close(one.state.extra[SITES][0], one.sites.double().sum(0), rtol=1e-4, atol=5e-2)
    torch.testing.assert_close(one.natural, one.exact(), rtol=1e-4, atol=2e-2)
    torch.testing.assert_close(one.state.models[0, :12], from_natural(one.exact()).float(), rtol=1e-3, atol=1e-3)


def test_some_clients_a_round_come_to_the_joint_posterior_too() -> None:
    one = admm(5, penalty=0.5)
    for t in range(200):
        one.train([t % 5, (t + 2) % 5], t)
    torch.testing.assert_close(one.natural, one.exact(), rtol=1e-4, atol=2e-2)


def test_with_a_server_that_follows_the_factors_one_round_is_exact() -> None:
    """With alpha = 1, for quadratic losses: a Newton step, whatever the penalty."""
    for penalty in (0.1, 3.0):
        one = admm(5, penalty=penalty, step=1.0)
        one.train(list(range(5)))
        torch.testing.assert_close(one.natural, one.exact(), rtol=1e-4, atol=2e-2)


def test_pvi_is_the_case_of_penalty_and_server_step_1() -> None:
    """Its damping is then gamma; clients whose losses are quadratic go the same way in every round."""
    rows = Rows(1, 1)
    other = Federation(5, add_sites(mean(rows), rows, PRIOR, 6), kept=0.2, sent=0.2, penalty=1.0)
    one = admm(5, gamma=0.2, step=1.0)
    for t in range(6):
        who = list(range(5)) if t % 2 else [t // 2, 4]
        for each in (one, other):
            each.train(who, t)
        torch.testing.assert_close(one.natural, other.natural, rtol=1e-5, atol=1e-2)
        torch.testing.assert_close(one.sites, other.sites, rtol=1e-5, atol=1e-2)


def test_the_order_of_clients_and_how_they_are_packed_change_no_bit() -> None:
    for order, blocks in (([3, 1, 5, 0, 4, 2], 1), (list(range(6)), 3), ([5, 4, 3, 2, 1, 0], 6)):
        one, other = admm(6, penalty=0.2), admm(6, penalty=0.2)
        one.train(list(range(6)))
        other.train(order, blocks=blocks)
        assert torch.equal(one.state.models, other.state.models)
        assert all(torch.equal(one.state.extra[name], other.state.extra[name]) for name in (NATURAL, SITES))


def test_with_a_constant_precision_it_is_feddyn_whose_next_model_the_prior_pulls_to_0() -> None:
    """S = c I = the prior: factors are FedDyn's corrections, and the model is (1 - alpha) times FedDyn's.

    Clients find the least `n loss + <linear, m> + rho c / 2 |m - m_g|^2`, which is FedDyn's with alpha = rho c / n.
    """
    clients, p, n, penalty, c, t0 = 4, 3, 50, 0.6, 9.0, torch.zeros(1, 0, dtype=torch.int64)
    g, rows = torch.Generator().manual_seed(5), Rows(1, 1)
    curve, least = (torch.rand(clients, p, generator=g, dtype=torch.float64) + 0.1 for _ in range(2))
    alpha, share, kept = penalty * c / n, find_server_step("admm", penalty, clients), penalty
    server = step_by_admm(mean(rows), rows, alpha=share, kept=kept, prior=c, p=p)
    dynamic, (_, update) = feddyn_server(mean(rows), rows, clients, alpha, p), correct_clients(Local(), alpha, p)
    who = np.arange(clients)
    row = torch.cat([torch.zeros(p), from_natural(torch.tensor([0.0] * p + [c] * p))[p:], torch.zeros(2 * p + 1)])[None]
    one, other = State(row, t0, server.init(row)), State(row[:, :p].double(), t0, dynamic.init(row[:, :p]))
    sites, h = torch.zeros(clients, 2 * p), torch.zeros(clients, p, dtype=torch.float64)
    finish, spread = refine_sites(kept, 1.0, c, p), row[:, p : 2 * p].repeat(clients, 1)
    for t in range(12):
        start = torch.cat([one.models[:, :p].repeat(clients, 1), spread, sites, torch.zeros(clients, 1)], dim=1)
        pull = penalty * c * start[:, :p].double() - sites[:, :p].double()
        learned = (n * curve * least + pull) / (n * curve + penalty * c)
        kept_rows = finish(start, torch.cat([learned.float(), start[:, p:]], dim=1))
        sites, delta = kept_rows[:, 2 * p : 4 * p], kept_rows - start
        delta[:, 2 * p : 4 * p] = 0.0
        one = server.step(one, server.reduce(Uploads(delta, who, 0 * who, 0 * who, 0 * who, 0 * who + 1)), t)
        w = other.models.repeat(clients, 1)
        u = (curve * least + h + alpha * w) / (curve + alpha)  # grad + alpha (u - w) - h = 0
        h = update.update(h, None, u - w, torch.ones(clients, 1))
        other = dynamic.step(other, dynamic.reduce(Uploads(u - w, who, 0 * who, 0 * who, 0 * who, 0 * who + 1)), t)
        other = other._replace(models=(1 - share) * other.models)
        torch.testing.assert_close(one.models[:, :p].double(), other.models, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sites[:, :p].double(), -n * h, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(sites[:, p:], torch.zeros(clients, p), rtol=0, atol=1e-4)
    wanted = n * (curve * least).sum(0) / (n * curve.sum(0) + c)
    torch.testing.assert_close(one.models[0, :p].double(), wanted, rtol=2e-2, atol=0)  # the least under the prior


def test_a_model_that_nobody_trained_stays() -> None:
    """Its row, its mark and what the state keeps of it, to the bit; those of the other model change."""
    rows, p = Rows(1, 2), 3
    server = step_by_admm(mean(rows), rows, alpha=0.5, kept=0.1, prior=PRIOR, p=p)
    row = torch.cat([torch.ones(p), torch.full((p,), -3.0), torch.zeros(2 * p), torch.ones(1)]).repeat(2, 1)
    state = State(row, torch.zeros(2, 0, dtype=torch.int64), server.init(row))
    state.extra[NATURAL] += 7.0  # as after rounds
    zero, delta = np.array([0]), torch.zeros(1, 4 * p + 1)
    delta[0, : 2 * p] = 1.0
    after = server.step(state, server.reduce(Uploads(delta, zero, zero, zero, zero, zero + 1)), 0)
    assert torch.equal(after.models[1], row[1]) and after.models[0, -1] == 0.0
    for name in (NATURAL, SITES):
        assert torch.equal(after.extra[name][1], state.extra[name][1])
        assert not torch.equal(after.extra[name][0], state.extra[name][0])
