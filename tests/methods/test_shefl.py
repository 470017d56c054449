"""SHEFL: its limits are FedAvg and Fed-ensemble, its groups weigh the same, its bytes and seconds add up."""

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import scenario
from torch import Tensor
from uploads import send, step

import fedray
from fedray.api import Run
from fedray.components.servers import Rows, by_tier, paper_eq2
from fedray.core.errors import FedrayError
from fedray.core.method import Method
from fedray.core.types import Plan, SizedPlan, State, Tier
from fedray.methods import METHODS, Composition
from fedray.methods.setting import Setting
from fedray.runtime.worker import Worker
from fedray.scenario.loader import read_scenario, to_plain

K, N = 3, 12
TIERS = {
    "hpc": {"number": 6, "seconds_per_step": 0.002, "uplink": 12.5e6},
    "lpc": {"number": 6, "seconds_per_step": 0.01, "uplink": 1.25e6},
}
ROWS = {"data": {"limit": 300, "partition": {"alpha": 0.6}}, "clients": {"number": N, "tiers": TIERS}}
METHOD = {"method": {"name": "shefl", "models": K}, "seed": 3, "replicates": 2}
BASE = scenario(METHOD, ROWS, {"model": {"hidden": [6]}, "local": {"lr": 0.1}})
D = 64 * 6 + 6 + 6 * 10 + 10  # parameters of the network
DENSE = {"kind": "topk", "ratio": 1.0}  # keep = 1
HALF = {"per_round": 6}
SentCase = tuple[int, int, list[int], list[int], Tensor]


KNOWN: dict[str, Run] = {}


def run(own: Composition | None = None, **overrides: Any) -> Run:
    """The base scenario with overrides, each of them once; limits set keys that cannot act."""
    name = repr((own, overrides))
    if name not in KNOWN:
        keys = {name.replace("__", "."): value for name, value in overrides.items()}
        KNOWN[name] = fedray.run(to_plain(read_scenario(BASE, keys, explicit=False)), method=own, report=False)
    return KNOWN[name]


def rows_of(run: Run) -> Tensor:
    """The final models `[R * K, d]`."""
    return run.progress.state.models


@cache
def train_only(k: int) -> Composition:
    """FedAvg of model k alone: everybody who takes part trains it."""

    def compose(setting: Setting) -> Method:
        method = METHODS["fed_ensemble"](setting)
        phase = method.phase

        def plan(t: int, state: State | None) -> Plan:
            everything = phase.schedule(t, state)
            return everything.take(everything.model == k)

        return replace(method, phase=replace(phase, schedule=plan))

    return compose


STRONG: dict[str, Any] = {"clients__tiers__hpc__number": N, "clients__tiers__lpc__number": 0, "compress": DENSE}


@pytest.mark.parametrize("participation", [None, HALF], ids=["full", "half"])
def test_without_lpc_and_dense_it_is_k_independent_fedavgs(participation: dict[str, int] | None) -> None:
    """Bit for bit: each model as if it had been trained alone; and model 0 is FedAvg's."""
    together = rows_of(run(**STRONG, participation=participation))
    plain = {"method__name": "fed_ensemble", "clients__tiers__hpc__models_per_round": "all", "server": None}
    for k in range(K):
        alone = rows_of(run(train_only(k), **{**STRONG, **plain, "compress": None}, participation=participation))
        assert torch.equal(together[k::K], alone[k::K])
    alone_by_name = {**STRONG, "method": {"name": "fedavg"}, "compress": None, "server": {"weighting": "uniform"}}
    fedavg = run(**alone_by_name, participation=participation)
    assert torch.equal(together[0::K], rows_of(fedavg))


@st.composite
def draw_uploads(draw: st.DrawFn) -> SentCase:
    """models, tiers, and the model, tier and integer delta of each upload."""
    models, tiers = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    jobs = draw(st.lists(st.tuples(st.integers(0, models - 1), st.integers(0, tiers - 1)), min_size=1, max_size=14))
    numbers = draw(st.lists(st.integers(-20, 20), min_size=2 * len(jobs), max_size=2 * len(jobs)))
    delta = torch.tensor(numbers, dtype=torch.float32).view(len(jobs), 2)
    return models, tiers, [m for m, _ in jobs], [c for _, c in jobs], delta


@given(draw_uploads())
def test_tier_means_weigh_equally_whatever_the_head_count(case: SentCase) -> None:
    """Of the tiers that sent something for a model, each one's mean counts alike; a model nobody sent for stays."""
    models, tiers, model, tier, delta = case
    got = step(by_tier(Rows(1, models), tiers), send(delta, model=model, tier=tier), torch.zeros(models, 2))
    groups = defaultdict(list)
    for row, m, c in zip(delta.double().numpy(), model, tier, strict=True):
        groups[m, c].append(row)
    for m in range(models):
        means = [np.mean(groups[m, c], axis=0) for c in range(tiers) if (m, c) in groups]
        expected = np.mean(means, axis=0) if means else np.zeros(2)
        np.testing.assert_allclose(got[m].numpy(), expected, rtol=1e-6, atol=1e-6)


PAIR = (Tier("hpc", 9, models_per_round=None), Tier("lpc", 9, models_per_round=1))


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 3), min_size=1, max_size=8), st.booleans())
def test_equal_groups_is_eq_2_where_l_is_k_and_one_lpc_trained_the_model(
    models: int, strong: int, weak: list[int], turned: bool
) -> None:
    """And nowhere else, but for one more zero of the difference: no LPC trained the model and L = 2K."""
    assigned = [k % models for k in weak]
    model = [k for _ in range(strong) for k in range(models)] + assigned
    tier = [0] * (strong * models) + [1] * len(weak)
    delta = torch.from_numpy(np.random.default_rng(0).uniform(1, 2, size=(len(model), 3)).astype(np.float32))
    tiers, columns = (PAIR[::-1], [1 - c for c in tier]) if turned else (PAIR, tier)
    up, rows = send(delta, model=model, tier=columns), Rows(1, models)
    ours, theirs = (step(one, up, torch.zeros(models, 3)) for one in (by_tier(rows, 2), paper_eq2(rows, tiers)))
    for k in range(models):
        number = assigned.count(k)
        same = (len(weak) == models and number == 1) or (len(weak) == 2 * models and number == 0)
        assert torch.allclose(ours[k], theirs[k], rtol=1e-6) == same


def test_eq_2_by_hand() -> None:
    """H = 2, L = 3, K = 2: a_h = 5/4 * 3/2, a_l = 5/2, over H + L = 5."""
    delta = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0]])
    up = send(delta, model=[0, 1, 0, 1, 0, 0, 1], tier=[0, 0, 0, 0, 1, 1, 1])
    got = step(paper_eq2(Rows(1, 2), PAIR), up, torch.zeros(2, 1))
    expected = [[(1.875 * (1 + 3) + 2.5 * (5 + 6)) / 5], [(1.875 * (2 + 4) + 2.5 * 7) / 5]]
    torch.testing.assert_close(got, torch.tensor(expected))


def jobs_of(run: Run) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = run.clients.to_pylist()
    return jobs


TRACE = [4e6, 2e6, 1e6, 1e6, 2e6, 2e6, 1e6, 5e5, 1e6, 3e6, 5e6, 1.5e6]  # uplinks of the clients


@pytest.mark.parametrize(("ratio", "r", "adaptive"), [(0.1, 3.0, False), (0.02, 10.0, False), (0.1, 1.5, True)])
def test_bytes_of_each_tier_follow_its_budget_and_an_adaptive_uplink_each_clients_bandwidth(
    ratio: float, r: float, adaptive: bool, tmp_path: Path
) -> None:
    """Then entries are in proportion to the uplink, around the tier's own number at the mean of all clients."""
    keys: dict[str, Any] = {"compress": {"kind": "topk", "ratio": ratio, "resource_ratio": r, "adaptive": adaptive}}
    if adaptive:
        keys["clients__trace"] = str(tmp_path / "trace.csv")
        (tmp_path / "trace.csv").write_text("client,uplink\n" + "".join(f"{i},{u}\n" for i, u in enumerate(TRACE)))
    kept = {"lpc": int(ratio * D), "hpc": int(min(1.0, ratio * r / K) * D)}
    for job in jobs_of(run(**keys, rounds=1)):
        k = kept[job["tier"]]
        k = int(k * (TRACE[job["client"]] / np.mean(TRACE)) + 1e-6) if adaptive else k
        assert job["up_bytes"] == min(4 * k + min(4 * k, -(-D // 8)), 4 * D)
        assert job["down_bytes"] == 4 * D


ROUGH: dict[str, Any] = {
    "participation": {"per_round": 4, "overcommit": 2.0, "dropout": 0.2, "deadline": 0.2},
    "clients__availability": "diurnal",
    "clients__tiers__hpc__spread": 1.0,
    "clients__tiers__lpc__spread": 1.0,
}


def test_no_computed_job_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what counts is trained; the rest has no steps, no loss and sends nothing."""
    trained: list[tuple[int, ...]] = []

    def train(self: Worker, t: int, jobs: SizedPlan, *rest: Any) -> Any:
        trained.extend((t + 1, *job) for job in zip(*(column.tolist() for column in jobs.plan), strict=True))
        return original(self, t, jobs, *rest)

    original = Worker.train
    monkeypatch.setattr(Worker, "train", train)
    jobs = jobs_of(run(**ROUGH, rounds=12))
    status = Counter(job["status"] for job in jobs)
    assert set(status) == {"ok", "late", "dropped", "unavailable", "past deadline"}
    counted = [(j["round"], j["client"], j["model"], j["replicate"]) for j in jobs if j["status"] == "ok"]
    assert sorted(trained) == sorted(counted)
    for job in jobs:
        if job["status"] == "ok":
            assert job["steps"] > 0
            assert job["loss"] > 0
            assert job["up_bytes"] > 0
        else:
            assert (job["steps"], job["up_bytes"]) == (0, 0)
            assert job["loss"] is None
        assert (job["down_bytes"] > 0) == (job["status"] in ("ok", "late", "past deadline"))


@pytest.mark.parametrize("how", [{}, ROUGH], ids=["smooth", "rough"])
def test_bytes_of_the_jobs_add_up_to_those_of_the_rounds(how: dict[str, Any]) -> None:
    """Also where not every round is measured; the totals of a run are the sums of its worlds."""
    done = run(**how, rounds=5, evaluate__every=2)
    jobs, rows = done.clients.to_pandas(), done.rounds.to_pandas()
    assert sorted(set(rows["round"])) == [0, 2, 4, 5]
    for name in ("up_bytes", "down_bytes"):
        for world, t, recorded in zip(rows["replicate"], rows["round"], rows[name], strict=True):
            assert jobs.loc[(jobs["replicate"] == world) & (jobs["round"] <= t), name].sum() == recorded
        assert done.summary["totals"][name] == rows.loc[rows["round"] == 5, name].sum() > 0


def test_time_and_bytes_to_accuracy_are_those_of_the_first_row_that_has_it() -> None:
    """In each world, read from the table of rounds; the summary has their mean."""
    done = run(rounds=8, evaluate__target={"metric": "accuracy", "value": 0.3})
    rows = done.rounds.to_pandas().sort_values("round")
    first = rows[rows["accuracy"] >= 0.3].groupby("replicate").first()
    assert len(first) == 2 and first["round"].min() > 1
    for name, column in (("rounds", "round"), ("seconds", "sim_seconds"), ("bytes", "up_bytes")):
        assert done.summary["metrics"][f"{name}_to_target"]["mean"] == pytest.approx(first[column].mean(), rel=1e-12)


def test_a_client_that_diverged_was_dropped_silently() -> None:
    """The largest entries of a delta full of NaN are none: the sparse uplink must not hide them."""
    with pytest.raises(FedrayError, match="diverged"):
        run(local__lr=1e30, compress={"kind": "topk"})
