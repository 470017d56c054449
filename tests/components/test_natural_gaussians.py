"""Gaussians with factors and mean fields in local training, on losses whose posterior is known."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from blocks import make_block, perceptron
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softplus
from uploads import begin, send

from fedray.components import gaussians
from fedray.components.servers import Rows, mean
from fedray.core.method import Local, Reading, Server, StepContext, Transform
from fedray.core.types import State
from fedray.models.net import MeanField, Partitioned, net_of
from fedray.training.client_code import draw_noise, train_client_lanes, train_client_loop

PLAIN = perceptron()
SITED = net_of(lambda: Partitioned(perceptron().module, -2.5, "mlp"), "mlp", "cross_entropy", 4)
P = PLAIN.layout.trainable
PRIOR, BETA1, BETA2, ROWS = 4.0, 0.9, 0.99, Rows(1, 1)
Learn = Callable[[Tensor, Tensor, Tensor], Tensor]  # (rows [n, 4 p + 1], likelihoods, factors) -> natural parameters


def test_mean_and_rho_come_back_from_natural_parameters() -> None:
    """From deviations of 2e-9 to 20, at float64's precision; narrow ones have huge natural parameters."""
    rho = torch.tensor([-20.0, -3.44, -1.0, 0.5, 3.0, 20.0], dtype=torch.float64)
    mean = torch.linspace(-3, 2, 6, dtype=torch.float64)
    back = gaussians.from_natural(gaussians.to_natural(mean, rho))
    inside = softplus(rho) < gaussians.LEAST**-0.5
    torch.testing.assert_close(back, torch.cat([mean, rho]), rtol=1e-6, atol=1e-6)
    assert inside.all()


def row_of(mean: Tensor, rho: Tensor, site: Tensor, is_prior: float) -> Tensor:
    return torch.cat([mean, rho, site, torch.tensor([is_prior], dtype=mean.dtype)])


def test_the_first_cavity_is_the_prior_wherever_training_begins() -> None:
    """With factors of 1 and a posterior that is the prior; later the cavity is the posterior less the factor."""
    g = torch.Generator().manual_seed(0)
    mean, rho, none = torch.randn(5, generator=g), torch.randn(5, generator=g), torch.zeros(10)
    prior = torch.cat([torch.zeros(5), torch.full((5,), PRIOR)]).double()
    assert torch.equal(gaussians.find_cavity(row_of(mean, rho, none, 1.0), PRIOR, 5), prior)
    assert torch.equal(gaussians.find_cavity(row_of(mean, rho, none, 0.0), PRIOR, 5), gaussians.to_natural(mean, rho))
    site = 0.5 * gaussians.to_natural(mean, rho).float()
    found = gaussians.find_cavity(row_of(mean, rho, site, 0.0), PRIOR, 5)
    torch.testing.assert_close(found, 0.5 * gaussians.to_natural(mean, rho), rtol=1e-6, atol=1e-6)


def test_a_precision_that_is_not_above_0_is_taken_for_the_least() -> None:
    """Of a cavity, whose linear term stays, and of a posterior; a factor may have any sign."""
    site = torch.tensor([0.25, -2.0, 9.0, -9.0])
    found = gaussians.find_cavity(row_of(torch.ones(2), torch.zeros(2), site, 0.0), PRIOR, 2)
    q = gaussians.to_natural(torch.ones(2), torch.zeros(2))
    torch.testing.assert_close(found, torch.stack([q[0] - 0.25, q[1] + 2.0, q.new_tensor(gaussians.LEAST), q[3] + 9.0]))
    mean, rho = gaussians.from_natural(torch.tensor([2.0, -3.0], dtype=torch.float64))
    assert float(mean) == pytest.approx(2.0 / gaussians.LEAST) and float(softplus(rho)) == pytest.approx(
        gaussians.LEAST**-0.5
    )


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


def train_by_torch(
    block: Any, lane: int, local: Local, own: Tensor, prior: Tensor, *, zeta: float = 1.0, turns: int = 10**9
) -> Tensor:
    """Both Gaussians `[mean, rho]` after one client's training with torch's divergence, autograd and optimizers."""
    both = [part.clone().requires_grad_() for part in (own, prior)]
    make: Any = torch.optim.Adam if local.optimizer == "adam" else torch.optim.SGD
    more = {} if local.optimizer == "adam" else {"momentum": local.momentum}
    optimizers = [make([part], lr=block.lr, **more) for part in both]
    size = int(block.reading.size[lane])
    for s in range(int(block.steps[lane])):
        x, y = (part[0, lane] for part in block.read(s, s + 1))
        real = block.weight[s, lane] > 0
        noise = draw_noise(block.local, block.keys[lane : lane + 1], s, block.start[:1])[0]
        draw = PLAIN.layout.views(both[0][:P] + softplus(both[0][P:]) * noise)
        loss = cross_entropy(functional_call(PLAIN.module, draw, (x[real],)), y[real])
        costs = [loss + zeta / size * diverge(both[0], both[1].detach())]
        for optimizer in optimizers[: 2 if (s + 1) % turns == 0 else 1]:
            optimizer.zero_grad()
            cost: Any = costs.pop() if costs else zeta / size * diverge(both[0].detach(), both[1])
            cost.backward()
            optimizer.step()
    return torch.cat(both).detach()


def diverge(own: Tensor, prior: Tensor) -> Tensor:
    """KL(q || w) by torch, of `[mean, rho]`."""
    one, other = (Normal(row[: len(row) // 2], softplus(row[len(row) // 2 :])) for row in (own, prior))
    return kl_divergence(one, other).sum()


@pytest.mark.parametrize("train", [train_client_lanes, train_client_loop], ids=["lanes", "one after another"])
@pytest.mark.parametrize("is_prior", [1.0, 0.0], ids=["first", "later"])
@pytest.mark.parametrize("local", [Local(optimizer="adam", lr=0.01), Local(lr=0.05, momentum=0.9)], ids=["adam", "sgd"])
def test_local_training_is_variational_inference_with_the_cavity_as_its_prior(
    train: Any, is_prior: float, local: Local
) -> None:
    """Of clients of several sizes, whose last batches are padded; factors and the mark stay as they are."""
    sizes = [11, 7]
    rule = gaussians.learn_from_cavity(local, PRIOR, P)
    block = blocks_of(Local(lr=local.lr), sizes, is_prior)
    block = block._replace(local=Local(lr=local.lr, step=rule), lr=0.01 if local.optimizer == "adam" else 1e-3)
    found = train(SITED, block).final
    for lane in range(len(sizes)):
        cavity = gaussians.from_natural(gaussians.find_cavity(block.start[lane], PRIOR, P)).float()
        wanted = train_by_torch(block, lane, local, block.start[lane, : 2 * P], cavity)[: 2 * P]
        assert (wanted - block.start[lane, : 2 * P]).abs().max() > 1e-3
        torch.testing.assert_close(found[lane, : 2 * P], wanted, rtol=0, atol=3e-5)
        assert torch.equal(found[lane, 2 * P :], block.start[lane, 2 * P :])


@pytest.mark.parametrize("local", [Local(optimizer="adam", lr=0.01), Local(lr=0.05)], ids=["adam", "sgd"])
def test_rounding_moves_no_gaussian_that_is_its_cavity(local: Local) -> None:
    """Without a factor and without data the gradient is 0 to the bit; Adam made a whole step of what rounding left."""
    g, p = torch.Generator().manual_seed(0), 203
    mean, rho = 3.0 * torch.randn(3, p, generator=g), 4.0 * torch.randn(3, p, generator=g) - 3.0
    rows, rule = torch.cat([mean, rho, torch.zeros(3, 2 * p + 1)], dim=1), gaussians.learn_from_cavity(local, PRIOR, p)
    one, none = torch.tensor([7.0]), torch.zeros_like
    context = StepContext(0, one, 0, one, local.lr, one, none, none, torch.randn(p, generator=g), one)
    step, _ = torch.vmap(lambda row: rule.update(none(row), rule.init(row), row, context))(rows)
    assert (step == 0.0).all()


class Federation:
    """Clients of a conjugate model, who know what they come to: `learn` gives it in natural parameters."""

    def __init__(self, clients: int, server: Server, learn: Learn, *, kept: float, sent: float) -> None:
        g, self.p = torch.Generator().manual_seed(4), 6
        precision = 30.0 * torch.rand(clients, self.p, generator=g, dtype=torch.float64)
        self.likelihood = torch.cat([precision * torch.randn(clients, self.p, generator=g), precision], dim=1)
        self.finish, self.server, self.learn = gaussians.refine_sites(kept, sent, PRIOR, self.p), server, learn
        mean, rho = torch.randn(self.p, generator=g), torch.full((self.p,), -3.44)
        self.state = begin(server, row_of(mean, rho, torch.zeros(2 * self.p), 1.0)[None])
        self.sites = torch.zeros(clients, 2 * self.p)

    def train(self, clients: list[int], t: int = 0) -> None:
        """A round of some clients."""
        start = self.state.models.repeat(len(clients), 1)
        start[:, 2 * self.p : 4 * self.p] = self.sites[clients]
        optimum = self.learn(start, self.likelihood[clients], self.sites[clients].double())
        kept = self.finish(start, torch.cat([gaussians.from_natural(optimum).float(), start[:, 2 * self.p :]], dim=1))
        self.sites[clients] = kept[:, 2 * self.p : 4 * self.p]
        delta = kept - start
        delta[:, 2 * self.p : 4 * self.p] = 0.0
        self.state = self.server.step(self.state, self.server.reduce(send(delta, client=clients)), t)

    @property
    def natural(self) -> Tensor:
        return self.state.extra[gaussians.NATURAL][0]

    def exact(self) -> Tensor:
        return torch.cat([torch.zeros(self.p), torch.full((self.p,), PRIOR)]).double() + self.likelihood.sum(0)

    def check_conservation(self) -> None:
        """The prior times all factors is the posterior, in the state and in the model."""
        product = self.exact() - self.likelihood.sum(0) + self.sites.double().sum(0)
        torch.testing.assert_close(self.natural, product, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(
            gaussians.find_posterior(self.state.models[0], PRIOR, self.p), product, rtol=1e-5, atol=1e-3
        )


def pvi(clients: int, damping: float) -> Federation:
    """Clients come to the cavity times their likelihood."""

    def learn(start: Tensor, likelihood: Tensor, _site: Tensor) -> Tensor:
        return gaussians.find_cavity(start, PRIOR, 6) + likelihood

    return Federation(clients, gaussians.add_sites(mean(ROWS), ROWS, PRIOR, 6), learn, kept=damping, sent=damping)


def admm(clients: int, *, penalty: float = 1.0, gamma: float = 1.0, step: Any = "admm") -> Federation:
    """`lambda(q_k) = lambda(q) + (likelihood - factor) / rho`; clients keep factors as PVI's do."""

    def learn(start: Tensor, likelihood: Tensor, site: Tensor) -> Tensor:
        return gaussians.find_posterior(start, PRIOR, 6) + (likelihood - site) / penalty

    kept, alpha = gamma * penalty, 1 / (1 + penalty * clients) if step == "admm" else step
    server = gaussians.step_by_admm(mean(ROWS), ROWS, alpha=alpha, kept=kept, prior=PRIOR, p=6)
    return Federation(clients, server, learn, kept=kept, sent=1.0)


def test_one_pass_over_clients_one_by_one_is_exact_inference() -> None:
    """With a conjugate model and damping 1 (Bui et al. 2018); the posterior is conserved on the way."""
    one = pvi(5, 1.0)
    for client in range(5):
        one.check_conservation()
        one.train([client], client)
    one.check_conservation()
    torch.testing.assert_close(one.state.extra[gaussians.NATURAL][0], one.exact(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(
        one.state.models[0, :12], gaussians.from_natural(one.exact()).float(), rtol=1e-5, atol=1e-5
    )


def test_the_draws_that_answer_have_the_posteriors_mean_and_deviation() -> None:
    p, draws = 2000, 8
    row = row_of(torch.ones(p), torch.full((p,), -1.0), torch.zeros(2 * p), 0.0)
    state = State(torch.stack([row, row + 1.0, row, row]), torch.zeros(4, 0, dtype=torch.int64), {})
    answer = gaussians.answer_with_draws(state, [5, 6], draws, p)
    assert answer.models == 2 * draws and len(answer.state.models) == 4 * draws
    first = answer.state.models[:draws, :p]
    assert float((first - 1.0).std()) == pytest.approx(float(softplus(torch.tensor(-1.0))), rel=0.03)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.equal(answer.state.models[:, p:], state.models.repeat_interleave(draws, 0)[:, p:])
    assert not torch.equal(first, answer.state.models[2 * draws : 3 * draws, :p])  # of another world
    assert gaussians.answer_with_draws(state, [5, 6], 0, p).state is state


def train_as_written(
    block: Any, lane: int, *, penalty: float, temperature: float, prior: float
) -> tuple[Tensor, Tensor]:
    """Mean and precision after one client's training by IVON as the paper has it: with h, delta, v and V."""
    start, size = block.start[lane].double(), int(block.reading.size[lane])
    n, m, s = size / (temperature * penalty), start[:P], softplus(start[P : 2 * P]) ** -2
    v, big_v = (-part * temperature / size for part in start[2 * P : 4 * P].chunk(2))
    first, center = (torch.full_like(s, prior), 0.0 * m) if start[4 * P] > 0.5 else (s, m)
    delta, momentum = first / n, torch.zeros_like(m)
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
    sizes, weights = [11, 7], {"penalty": 0.5, "temperature": 0.1, "prior": PRIOR}
    block = blocks_of(Local(), sizes, is_prior)
    block = block._replace(local=Local(step=gaussians.learn_by_ivon(**weights, beta1=BETA1, beta2=BETA2, p=P)), lr=0.02)
    start = block.start
    found = train(SITED, block).final
    for lane in range(2):
        m, s = train_as_written(block, lane, **weights)
        assert (m - start[lane, :P]).abs().max() > 0.02 and (s - 1 / softplus(torch.tensor(-2.5)) ** 2).abs().max() > 1
        torch.testing.assert_close(found[lane, :P].double(), m, rtol=0, atol=1e-4)
        torch.testing.assert_close(softplus(found[lane, P : 2 * P].double()) ** -2, s, rtol=2e-4, atol=0)
        assert torch.equal(found[lane, 2 * P :], start[lane, 2 * P :])
    still = train(SITED, block._replace(lr=0.0)).final
    assert torch.equal(still, start)


def context(noise: Tensor, size: int, step: int = 0) -> StepContext:
    none = torch.tensor(0)
    return StepContext(0, none, step, none, 0.1, none, torch.clone, torch.clone, noise, torch.tensor(size))


def ivon(p: int, *, penalty: float, temperature: float = 1.0, beta2: float = BETA2) -> Transform:
    return gaussians.learn_by_ivon(penalty=penalty, temperature=temperature, prior=PRIOR, beta1=BETA1, beta2=beta2, p=p)


def ivon_row_of(natural: Tensor, site: Tensor, is_prior: float = 0.0) -> Tensor:
    return torch.cat([gaussians.from_natural(natural), site, torch.tensor([is_prior])]).double()


def test_a_factor_that_outweighs_the_received_precision_leaves_a_client_none() -> None:
    """Where its rows say nothing, its precision goes to S_g - b / rho, and where that is below 0 to next to nothing."""
    factor = torch.tensor([0.0, 0.0, 1.0, 6.0], dtype=torch.float64)
    row = ivon_row_of(torch.tensor([0.0, 0.0, 10.0, 10.0], dtype=torch.float64), factor)
    rule = ivon(2, penalty=0.5)
    state, noise = rule.init(row), torch.ones(2, dtype=torch.float64)
    for step in range(1000):
        state = rule.update(torch.zeros(9, dtype=torch.float64), state, row, context(noise, 20, step))[1]
    torch.testing.assert_close(state.precision[0], torch.tensor(8.0, dtype=torch.float64), rtol=1e-3, atol=0)
    assert 0 < state.precision[1] < 0.1


def test_at_the_exact_posterior_with_exact_factors_a_step_moves_nothing_on_average() -> None:
    """Over both signs of the noise, for a quadratic loss: the fixed point that decides the signs of the duals."""
    g, n = torch.Generator().manual_seed(3), 20
    mine, others = (torch.rand(2, 5, generator=g, dtype=torch.float64) * 30 + 1 for _ in range(2))
    rule = ivon(5, penalty=0.3, temperature=0.2)
    whole = (mine + others).flatten()
    whole[5:] += PRIOR
    row = ivon_row_of(whole, mine.flatten())
    moved, ratio = [], []
    for sign in (1.0, -1.0):
        noise = torch.full((5,), sign, dtype=torch.float64)
        at = rule.at(row, noise)[:5]  # type: ignore[misc]
        gradient = torch.cat([(mine[1] * at - mine[0]) * 0.2 / n, torch.zeros(16)])
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
    rule = ivon(5, penalty=1.0, beta2=0.5)
    natural = torch.tensor([0.0, 1, 2, 3, 4, 1, 1, 10, 10, 100]).double()
    row = ivon_row_of(natural, torch.zeros(10))
    for size in (-1e3, -2.0, -0.1, 0.1, 1e3):
        gradient = torch.cat([torch.full((5,), size), torch.zeros(16)]).double()
        _, state = rule.update(gradient, rule.init(row), row, context(torch.ones(5).double(), 7))
        assert (state.precision > 0.499 * natural[5:]).all()


CONJUGATE: dict[str, tuple[Callable[[], Federation], float]] = {  # and what a factor takes of what is left in a round
    "pvi": (partial(pvi, 5, 0.2), 0.2),
    **{
        f"admm of {n}, {rho}, {gamma}": (partial(admm, n, penalty=rho, gamma=gamma), gamma)
        for n in (1, 5)
        for rho, gamma in ((0.2, 1.0), (0.2, 0.3), (2.0, 1.0))
    },
}


@pytest.mark.parametrize(("make", "gamma"), CONJUGATE.values(), ids=CONJUGATE)
def test_all_clients_at_once_come_to_the_joint_posterior(make: Callable[[], Federation], gamma: float) -> None:
    """On the way a factor is the share 1 - (1 - gamma)^r of its client's likelihood, and the server knows them all."""
    one = make()
    for t in range(200):
        one.train(list(range(len(one.sites))), t)
        if t in (0, 1, 7):
            wanted = (1 - (1 - gamma) ** (t + 1)) * one.likelihood
            torch.testing.assert_close(one.sites.double(), wanted, rtol=1e-3, atol=2e-2)
        if gaussians.SITES in one.state.extra:
            known = one.state.extra[gaussians.SITES][0]
            torch.testing.assert_close(known, one.sites.double().sum(0), rtol=1e-4, atol=5e-2)
        else:
            one.check_conservation()
    torch.testing.assert_close(one.natural, one.exact(), rtol=1e-4, atol=2e-2)
    torch.testing.assert_close(
        one.state.models[0, :12], gaussians.from_natural(one.exact()).float(), rtol=1e-3, atol=1e-3
    )


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
    one, other = admm(5, gamma=0.2, step=1.0), pvi(5, 0.2)
    other.learn = admm(5).learn  # clients of IVON-ADMM with penalty 1 at PVI's server
    for t in range(6):
        who = list(range(5)) if t % 2 else [t // 2, 4]
        for each in (one, other):
            each.train(who, t)
        torch.testing.assert_close(one.natural, other.natural, rtol=1e-5, atol=1e-2)
        torch.testing.assert_close(one.sites, other.sites, rtol=1e-5, atol=1e-2)


PAIR = net_of(lambda: MeanField(perceptron().module, -2.5, "mlp"), "mlp", "cross_entropy", 4)


def test_between_equal_gaussians_there_is_no_divergence_and_nothing_moves() -> None:
    """Also where they are as narrow, or as wide, as the option `rho` allows."""
    same = torch.cat([torch.randn(6), torch.tensor([-20.0, -5.0, -1.0, 0.0, 3.0, 20.0])])
    assert all((slope == 0).all() for slope in gaussians.differentiate_divergence(same, same))


@pytest.mark.parametrize("train", [train_client_lanes, train_client_loop], ids=["lanes", "one after another"])
@pytest.mark.parametrize(
    ("local", "turns"),
    [(Local(optimizer="adam", lr=0.01), 5), (Local(lr=0.05, momentum=0.9), 3), (Local(lr=0.05), 1)],
    ids=["adam, 5 to 1", "momentum, 3 to 1", "sgd, 1 to 1"],
)
def test_local_training_is_that_of_torchs_divergence_and_optimizers(train: Any, local: Local, turns: int) -> None:
    """Of clients of several sizes, whose last batches are padded."""
    zeta, sizes = 3.0, [11, 7]
    rule = gaussians.learn_posterior(local, zeta, turns, P)
    block = blocks_of(Local(lr=local.lr), sizes, 1.0)
    own = block.start[:, : 2 * P]
    start = torch.cat([own, own + torch.tensor([0.1, 0.3]).repeat_interleave(P)], dim=1)  # priors lie elsewhere
    block = block._replace(start=start, local=Local(lr=local.lr, step=rule), lr=local.lr)
    found = train(PAIR, block).final
    for lane in range(len(sizes)):
        wanted = train_by_torch(block, lane, local, *block.start[lane].split(2 * P), zeta=zeta, turns=turns)
        assert (wanted[2 * P :] - block.start[lane, 2 * P :]).abs().max() > 1e-3  # the prior moves, too
        torch.testing.assert_close(found[lane], wanted, rtol=0, atol=2e-5)
