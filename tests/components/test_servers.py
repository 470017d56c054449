"""Servers: robust centres, optimizers, counters, and their resistance to flipped labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import scenario

import fedray
from fedray.assembly.study import build_study
from fedray.components import servers
from fedray.components.servers import Rows, by_tier, mean
from fedray.core.errors import FedrayError
from fedray.core.method import RateSchedule, Server
from fedray.core.sums import merge_stats
from fedray.core.types import State, Uploads
from fedray.scenario.loader import read_scenario

COLUMNS = st.integers(1, 9)


def uploads(delta: torch.Tensor, model: list[int] | None = None) -> Uploads:
    n = len(delta)
    each = np.arange(n)
    models = np.zeros(n, dtype=np.int64) if model is None else np.array(model)
    return Uploads(delta, each, models, np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), each + 1)


def models_after_round(
    one: Server, delta: torch.Tensor, models: int = 1, model: list[int] | None = None
) -> torch.Tensor:
    """The models after one round from zero."""
    start = torch.zeros(models, delta.shape[1])
    state = State(start, torch.zeros(models, 0, dtype=torch.int64), one.init(start))
    return one.step(state, one.reduce(uploads(delta, model)), 0).models


def draw_normal(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32))


@given(COLUMNS, COLUMNS, st.integers(0, 99))
def test_the_median_is_numpys_per_coordinate(n: int, d: int, seed: int) -> None:
    x = draw_normal(n, d, seed)
    np.testing.assert_allclose(servers.median(x), np.median(x.double().numpy(), axis=0), rtol=1e-14)


@given(st.integers(3, 9), COLUMNS, st.integers(0, 1), st.integers(0, 99))
def test_the_trimmed_mean_is_scipys_per_coordinate(n: int, d: int, b: int, seed: int) -> None:
    from scipy.stats import trim_mean

    x = draw_normal(n, d, seed)
    np.testing.assert_allclose(
        servers.trimmed_mean(b)(x), trim_mean(x.double().numpy(), b / n + 1e-9, axis=0), rtol=1e-12, atol=1e-12
    )


def test_trimming_nothing_is_the_mean_and_too_much_is_the_median() -> None:
    x = draw_normal(6, 4, 0)
    np.testing.assert_allclose(servers.trimmed_mean(0)(x), x.double().mean(0), atol=1e-15)
    np.testing.assert_allclose(servers.trimmed_mean(99)(x), servers.median(x), atol=1e-15)


@given(st.integers(2, 9), COLUMNS, st.integers(0, 3), st.integers(0, 99))
def test_krum_is_its_definition(n: int, d: int, f: int, seed: int) -> None:
    x = draw_normal(n, d, seed).double()
    square = ((x[:, None] - x[None]) ** 2).sum(-1).numpy()
    near = min(max(1, n - f - 2), n - 1)
    score = [np.sort(np.delete(square[i], i))[:near].sum() for i in range(n)]
    order = np.argsort(score, kind="stable")
    assert torch.equal(servers.krum(f, d)(x), x[order[0]])
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
    for centre in (servers.krum(f, d), servers.krum(f, d, multi=True), servers.median, servers.trimmed_mean(f)):
        found = models_after_round(servers.robust_server(rows, centre), bad)
        assert (found - 1.0).abs().max() < 0.4
    assert (models_after_round(servers.mean(rows), bad) - 1.0).abs().max() > 90


@pytest.mark.parametrize("centre", [servers.median, servers.trimmed_mean(1), servers.krum(1, 5)])
def test_each_model_has_its_own_centre_in_any_order_of_arrival(centre: servers.Center) -> None:
    x, model = draw_normal(9, 5, 3), [0, 1, 0, 1, 0, 1, 0, 1, 3]
    one = servers.robust_server(servers.Rows(1, 4), centre)
    after = models_after_round(one, x, 4, model)
    for k in (0, 1, 3):
        mine = x[[j for j in range(9) if model[j] == k]]
        assert torch.equal(after[k], centre(mine).float())
    assert torch.equal(after[2], torch.zeros(5))  # nobody trained it
    whole = uploads(x, model)
    blocks = [whole._replace(**{n: getattr(whole, n)[part] for n in ("delta", "client", "model", "world", "size")})
              for part in (slice(5, 9), slice(0, 5))]  # fmt: skip
    state = State(torch.zeros(4, 5), torch.zeros(4, 0, dtype=torch.int64), {})
    assert torch.equal(one.step(state, merge_stats([one.reduce(block) for block in blocks]), 0).models, after)


def test_a_diverged_client_is_named_and_not_hidden() -> None:
    x = draw_normal(4, 3, 0)
    x[2, 1] = float("nan")
    with pytest.raises(FedrayError, match=r"rows \[2\]"):
        servers.robust_server(servers.Rows(1, 1), servers.median).reduce(uploads(x))


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
    one = servers.with_optimizer(servers.mean(rows), rows, 3, kind, lr=lr, momentum=beta, tau=tau, schedule=halves)
    start = torch.zeros(1, 4)
    state = State(start, torch.zeros(1, 0, dtype=torch.int64), one.init(start))
    w, m, v, buffer = np.zeros(3), np.zeros(3), np.full(3, tau**2), 0.0
    for t in range(3):
        x = draw_normal(5, 4, t)
        state = one.step(state, one.reduce(uploads(x)), t)
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
    plain, start = servers.mean(rows), torch.zeros(1, 3)

    def step(state: State, stats: Any, t: int) -> State:
        after = plain.step(state, stats, t)
        return State(after.models, after.counters, {"last": after.models})

    fresh = plain._replace(init=lambda models: {"last": models}, step=step)
    both = [servers.with_optimizer(inner, rows, 3, kind, lr=0.1) for inner in (plain, fresh)]
    states = [State(start, torch.zeros(1, 0, dtype=torch.int64), one.init(start)) for one in both]
    for t in range(3):
        sent = uploads(draw_normal(5, 3, t))
        states = [one.step(state, one.reduce(sent), t) for one, state in zip(both, states, strict=True)]
    assert torch.equal(states[0].models, states[1].models)
    assert states[1].extra.keys() == {"last", *states[0].extra}


def test_an_idle_model_keeps_its_weights_and_the_optimisers_state() -> None:
    rows = servers.Rows(1, 2)
    one = servers.with_optimizer(servers.mean(rows), rows, 3, "yogi", lr=0.1)
    start = draw_normal(2, 3, 9)
    state = State(start, torch.zeros(2, 0, dtype=torch.int64), one.init(start))
    state = one.step(state, one.reduce(uploads(draw_normal(4, 3, 1), [0, 1, 0, 1])), 0)
    after = one.step(state, one.reduce(uploads(draw_normal(2, 3, 2), [0, 0])), 1)
    assert torch.equal(after.models[1], state.models[1])
    assert not torch.equal(after.models[0], state.models[0])
    for name in state.extra:
        assert torch.equal(after.extra[name][1], state.extra[name][1])


def test_a_flipped_client_has_every_label_moved_by_one_and_a_noisy_one_random_labels() -> None:
    """Inputs, sizes and all other clients are untouched; who is bad differs between replicates."""

    def shards(partition: dict[str, Any]) -> Any:
        changes = {"data": {"partition": {"name": "iid", **partition}}, "clients": {"number": 10}, "replicates": 2}
        return build_study(read_scenario(scenario(changes))).shards

    true, bad = shards({}), shards({"flipped": 0.2, "noisy": 0.1})
    who: list[list[str]] = [[], []]
    for world in (0, 1):
        for client in range(10):
            a, b = (s.fetch(np.array([world]), np.array([client])) for s in (true, bad))
            y, z = (one.labels(one.rows, torch.arange(1)[:, None])[0] for one in (a, b))
            assert torch.equal(a.x[a.rows[0]], b.x[b.rows[0]])
            who[world].append("true" if torch.equal(y, z) else "flipped" if torch.equal((y + 1) % 10, z) else "noisy")
        assert sorted(who[world]) == ["flipped"] * 2 + ["noisy"] + ["true"] * 7
        assert torch.equal(true.test(world)[1], bad.test(world)[1])
    assert who[0] != who[1]


ROWS = Rows(worlds=1, models=3)


@pytest.mark.parametrize("server", [mean(ROWS), by_tier(ROWS, 2)], ids=["mean", "by_tier"])
def test_the_counters_of_a_model_that_nobody_trained_stay(server: Server) -> None:
    """Those of batch normalization count steps; of a trained model the largest that was sent is the new one."""
    state = State(torch.zeros(3, 2), torch.tensor([[5, 1], [6, 2], [7, 3]]), {})
    zero, client = np.zeros(2, np.int64), np.arange(2)
    counters = torch.tensor([[8, 4], [9, 3]])
    uploads = Uploads(torch.ones(2, 2), client, 1 + zero, zero, client, 1 + zero, counters)
    after = server.step(state, server.reduce(uploads), 0)
    assert after.counters.tolist() == [[5, 1], [9, 4], [7, 3]]
    assert after.models.tolist() == [[0, 0], [1, 1], [0, 0]]
