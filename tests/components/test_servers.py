"""Servers: robust centers, optimizers, formulas of papers, and what is the same for all of them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import scenario
from torch import Tensor
from uploads import begin, merge_stats, send, step, take

import fedray
from fedray.components import gaussians, one_shot, servers
from fedray.components.servers import Rows
from fedray.core.errors import FedrayError
from fedray.core.method import Local, RateSchedule, Server
from fedray.core.types import State, Tier
from fedray.features.slices import mean_of_slices
from fedray.methods.fedexp import extrapolated_mean
from fedray.methods.fednova import normalized_mean
from fedray.methods.qffl import fair_mean

COLUMNS = st.integers(1, 9)
WIDTHS = st.sampled_from([1, 2, 5, 9, (1 << 16) + 3])  # the last needs two chunks


def draw_normal(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32))


@given(COLUMNS, WIDTHS, st.integers(0, 99))
def test_the_median_is_numpys_per_coordinate(n: int, d: int, seed: int) -> None:
    x = draw_normal(n, d, seed)
    np.testing.assert_allclose(servers.median(x), np.median(x.double().numpy(), axis=0), rtol=1e-14)
    np.testing.assert_allclose(servers.trimmed_mean(99)(x), servers.median(x), atol=1e-15)  # which trims all it can


@given(st.integers(3, 9), WIDTHS, st.integers(0, 1), st.integers(0, 99))
def test_the_trimmed_mean_is_scipys_per_coordinate(n: int, d: int, b: int, seed: int) -> None:
    from scipy.stats import trim_mean

    x = draw_normal(n, d, seed)
    np.testing.assert_allclose(
        servers.trimmed_mean(b)(x), trim_mean(x.double().numpy(), b / n + 1e-9, axis=0), rtol=1e-12, atol=1e-12
    )


@given(st.integers(2, 9), WIDTHS, st.integers(0, 3), st.integers(0, 99))
def test_krum_is_its_definition(n: int, d: int, f: int, seed: int) -> None:
    x = draw_normal(n, d, seed).double()
    square = ((x[:, None] - x[None]) ** 2).sum(-1).numpy()
    near = min(max(1, n - f - 2), n - 1)
    score = [np.sort(np.delete(square[i], i))[:near].sum() for i in range(n)]
    order = np.argsort(score, kind="stable")
    assert torch.equal(servers.krum(f, d)(x), x[order[0]])
    noisy = torch.cat([x, 1e3 * torch.randn(n, 1, dtype=torch.float64)], 1)  # a buffer says nothing
    assert torch.equal(servers.krum(f, d)(noisy)[:d], x[order[0]])
    many = x[order[: max(1, n - f)]].mean(0)
    np.testing.assert_allclose(servers.krum(f, d, multi=True)(x), many, atol=1e-14)


@pytest.mark.parametrize("f", [1, 2, 3])
def test_krum_survives_f_bad_clients_and_the_mean_does_not(f: int) -> None:
    """N = 2 f + 3 uploads, f of them together far away: the worst that the theorem allows."""
    n, d = 2 * f + 3, 20
    good = 1.0 + 0.1 * draw_normal(n, d, 1)
    bad = good.clone()
    bad[:f] = -1000.0
    rows = servers.Rows(1, 1)
    for center in (servers.krum(f, d), servers.krum(f, d, multi=True), servers.median, servers.trimmed_mean(f)):
        found = step(servers.robust_server(rows, center), send(bad))
        assert (found - 1.0).abs().max() < 0.4
    assert (step(servers.mean(rows), send(bad)) - 1.0).abs().max() > 90


@pytest.mark.parametrize("center", [servers.median, servers.trimmed_mean(1), servers.krum(1, 5)])
def test_each_model_has_its_own_center(center: servers.Center) -> None:
    x, model = draw_normal(9, 5, 3), np.array([0, 1, 0, 1, 0, 1, 0, 1, 2])
    after = step(servers.robust_server(Rows(1, 3), center), send(x, model=model), torch.zeros(3, 5))
    for k in range(3):
        assert torch.equal(after[k], center(x[torch.from_numpy(model == k)]).float())


def test_a_diverged_client_is_named_and_not_hidden() -> None:
    x = draw_normal(4, 3, 0)
    x[2, 1] = float("nan")
    with pytest.raises(FedrayError, match=r"rows \[2\]"):
        servers.robust_server(servers.Rows(1, 1), servers.median).reduce(send(x))


def test_a_server_whose_rate_has_fallen_to_0_stays_where_it_is() -> None:
    falls = {"optimizer": "momentum", "momentum": 0.0, "schedule": {"kind": "linear", "rounds": 1}}
    changes = {"method": {"name": "fedavg"}}
    first = fedray.run(scenario(changes, {"rounds": 1})).summary["model_hash"]
    assert fedray.run(scenario(changes, {"server": falls})).summary["model_hash"] == first


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_server_optimisers_are_their_formulas(kind: Any) -> None:
    """Three rounds against NumPy (Reddi et al. 2021, Alg. 2); the buffer behind the trainable numbers is averaged."""
    rows, lr, beta, tau = servers.Rows(1, 1), 0.1, 0.8, 0.02
    halves = RateSchedule("step", at=(2,), gamma=0.5)
    one = servers.with_optimizer(servers.mean(rows), rows, 3, servers.Optimizer(kind, lr, beta, tau, halves))
    state = begin(one, torch.zeros(1, 4))
    w, m, v, buffer = np.zeros(3), np.zeros(3), np.full(3, tau**2), 0.0
    for t in range(3):
        x = draw_normal(5, 4, t)
        state = one.step(state, one.reduce(send(x)), t)
        g = x.double().mean(0).numpy()
        m = beta * m + (g[:3] if kind == "momentum" else (1 - beta) * g[:3])
        square = g[:3] ** 2
        v = 0.99 * v + 0.01 * square if kind == "adam" else v - 0.01 * square * np.sign(v - square)
        w = w + lr * [1, 1, 0.5][t] * (m if kind == "momentum" else m / (np.sqrt(v) + tau))
        buffer += g[3]
        np.testing.assert_allclose(state.models[0].double(), [*w, buffer], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_an_inner_server_with_an_extra_of_its_own_lost_the_optimisers_vectors(kind: Any) -> None:
    rows = servers.Rows(1, 1)
    plain = servers.mean(rows)

    def step(state: State, stats: Any, t: int) -> State:
        after = plain.step(state, stats, t)
        return State(after.models, after.counters, {"last": after.models})

    fresh = plain._replace(init=lambda models: {"last": models}, step=step)
    both = [servers.with_optimizer(inner, rows, 3, servers.Optimizer(kind, lr=0.1)) for inner in (plain, fresh)]
    states = [begin(one, torch.zeros(1, 3)) for one in both]
    for t in range(3):
        sent = send(draw_normal(5, 3, t))
        states = [one.step(state, one.reduce(sent), t) for one, state in zip(both, states, strict=True)]
    assert torch.equal(states[0].models, states[1].models)
    assert states[1].extra.keys() == {"last", *states[0].extra}


# Servers of methods


def test_one_step_of_the_server_is_the_formula_of_fedexp() -> None:
    """Whose last number is a buffer, which is averaged."""
    delta = np.cos(np.arange(20.0)).reshape(4, 5)
    size, eps = np.array([3, 8, 20, 1]), 0.01
    share = size / size.sum()
    mean = share @ delta
    eta = max(1, (share * (delta[:, :4] ** 2).sum(1)).sum() / (2 * ((mean[:4] ** 2).sum() + eps)))
    assert eta > 1.1
    server = extrapolated_mean(Rows(1, 1), "examples", eps=eps, trainable=4)
    found = step(server, send(torch.from_numpy(delta).float(), size=size))[0].double()
    np.testing.assert_allclose(found, np.concatenate([eta * mean[:4], mean[4:]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("q", "size"), [(0.5, 1.0), (10.0, 1e-3), (0.5, 0.0)], ids=str)
def test_one_step_of_the_server_is_the_formula_of_qffl_also_where_all_losses_are_small(q: float, size: float) -> None:
    """Whose powers are then far below the changes of the weights. A loss of 0 counts as 1e-10."""
    lost, lr = size * np.array([1.0, 2.0, 1.5, 0.5]), 0.1
    delta, loss = np.cos(np.arange(12.0)).reshape(4, 3) * 1e-3, np.maximum(lost, 1e-10)
    h = q * loss ** (q - 1) * (delta**2).sum(1) / lr + loss**q
    found = step(
        fair_mean(Rows(1, 1), "uniform", q, lr, 3), send(torch.from_numpy(delta).float(), losses=lost[:, None])
    )
    np.testing.assert_allclose(found[0].double(), (loss**q) @ delta / h.sum(), rtol=1e-5)


P, TWO = 3, Rows(worlds=2, models=2)  # numbers of a network; models of a Gaussian have `4 P + 1`
MEAN, HELD = servers.mean(TWO), torch.ones(2, 4 * P + 1, dtype=torch.float64).index_fill(1, torch.tensor([4]), 0.0)
PAIR = (Tier("strong", 9, models_per_round=None), Tier("weak", 9))
SERVERS: dict[str, Server] = {
    "mean": MEAN,
    "by tier": servers.by_tier(TWO, 2),
    "eq. 2": servers.paper_eq2(TWO, PAIR),
    "median": servers.robust_server(TWO, servers.median),
    "krum": servers.robust_server(TWO, servers.krum(1, P)),
    "yogi": servers.with_optimizer(MEAN, TWO, P, servers.Optimizer("yogi", lr=0.1)),
    "momentum": servers.with_optimizer(MEAN, TWO, P, servers.Optimizer("momentum", lr=0.1)),
    "FedDyn": servers.feddyn_server(MEAN, TWO, 9, 0.1, P),
    "SCAFFOLD": servers.scaffold_server(MEAN, TWO, 9),
    "FedExP": extrapolated_mean(TWO, "examples", eps=0.01, trainable=P),
    "FedNova": normalized_mean(TWO, "examples", Local(), P),
    "q-FFL": fair_mean(TWO, "uniform", q=0.5, lr=0.1, trainable=P),
    "FedFisher": one_shot.fisher_mean(TWO, "examples"),
    "FedFisher, descent": one_shot.fisher_mean(TWO, how=one_shot.Descent(5, 10, one_shot.summing_adam(0.01), None)),
    "FedBEns": one_shot.mixture_server(TWO, "examples", one_shot.Laplace(1.0, 0.5, 0.1, P)),
    "FedAG": gaussians.gaussian_server(TWO, gaussians.ModelSampler("bootstrap", 7, [0, 1], P), "examples"),
    "PVI": gaussians.add_sites(MEAN, TWO, 4.0, P),
    "IVON-ADMM": gaussians.step_by_admm(MEAN, TWO, alpha=0.5, kept=0.1, prior=4.0, p=P),
    "HeteroFL": mean_of_slices(TWO, "examples", lambda _t: HELD),
}


def test_fednova_takes_a_client_of_many_samples_and_steps_with_momentum() -> None:
    """12,000 rows times 74,900 is more than an exact sum takes at once: the run ended, for a reason that was wrong."""
    server, n = normalized_mean(Rows(1, 1), "examples", Local(momentum=0.9), 2), np.array([12_000])
    sent = send(torch.ones(1, 2), size=n, steps=0 * n + 7_500)
    after = server.step(begin(server, torch.zeros(1, 2)), server.reduce(sent), 0)
    torch.testing.assert_close(after.models, torch.ones(1, 2))


AVERAGED = ("mean", "yogi", "momentum", "FedDyn", "FedExP", "FedNova")  # of which numbers behind the first P are means


@pytest.mark.parametrize("name", SERVERS)
def test_order_and_packing_of_uploads_change_no_bit_and_a_model_that_nobody_trained_stays(name: str) -> None:
    """So does what the server keeps of it; counters of batch normalization are the largest that were sent."""
    server = SERVERS[name]
    place = np.array([0, 1, 2, 0, 1, 2, 0, 2, 2, 1, 0])  # nobody trains the second model of the second world
    draw, n = torch.Generator().manual_seed(0), len(place)
    delta, beside = (torch.randn(n, 4 * P + 1, generator=draw) for _ in range(2))
    counters, delta[:, 2 * P :] = torch.arange(2 * n).view(n, 2) % 9, 0.0
    sent = send(
        delta, model=place % 2, world=place // 2, tier=np.arange(n) % 2, size=2 + np.arange(n), beside=beside.abs(),
        losses=np.arange(1.0, 1 + 2 * n).reshape(n, 2), counters=counters,
    )  # fmt: skip
    start = torch.randn(4, 4 * P + 1, generator=draw)
    start[:, 2 * P :] = torch.tensor([0.0] * 2 * P + [1.0])
    states = [begin(server, start)._replace(counters=torch.full((4, 2), 2))]
    for t, some in enumerate([np.arange(n), np.flatnonzero(place < 2)]):  # then the third one is idle, too
        after = server.step(states[-1], server.reduce(take(sent, some)), t)
        for order in (some[::-1].copy(), np.random.default_rng(t).permutation(some)):
            parts = [server.reduce(take(sent, part)) for part in np.array_split(order, 1 + 4 * t)]
            other = server.step(states[-1], merge_stats(parts), t)
            assert all(map(torch.equal, list_tensors(after), list_tensors(other)))
        states.append(after)
    largest = [*(counters[place == k].amax(0).tolist() for k in range(3)), [2, 2]]
    for before, after, moved in zip(states, states[1:], (3, 2), strict=False):
        assert (before.models != after.models).any(1).tolist() == [True] * moved + [False] * (4 - moved)
        assert after.counters.tolist() == largest
        for one, again in zip(list_tensors(before), list_tensors(after), strict=True):
            assert torch.equal(one[moved:], again[moved:])
    if name in AVERAGED:
        weight = torch.from_numpy(sent.size if name in ("FedExP", "FedNova") else np.ones(n)).double()
        for k in range(3):
            mine, change = np.flatnonzero(place == k), (states[1].models - start)[k, P:].double()
            wanted = (weight[mine, None] * delta[mine, P:].double()).sum(0) / weight[mine].sum()
            torch.testing.assert_close(change, wanted, rtol=0, atol=1e-6)


def list_tensors(state: State) -> list[Tensor]:
    return [state.models, state.counters, *(state.extra[name] for name in sorted(state.extra))]
