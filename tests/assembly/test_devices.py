"""Who takes part: the scenario's participation, counted over many rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedray.assembly.clients import expect_seconds, make_participation
from fedray.assembly.methods import make_local
from fedray.assembly.registry import UserObjects
from fedray.core.types import Clients, FloatArray, Plan, Tier
from fedray.scenario.loader import read_scenario
from fedray.scenario.rules import tier_table
from fedray.simulation.clock import CountingRule, JobCosts, time_round
from fedray.simulation.devices import make_profile
from fedray.training.block import count_steps, samples_seen

ROUNDS = 2000
TIERS = {"hpc": {"number": 30}, "lpc": {"number": 70}}


def count_shares(keys: dict[str, Any], rounds: int = ROUNDS) -> FloatArray:
    """The share of the rounds that each client of a scenario is invited to, `[N]`."""
    scenario = read_scenario({"clients": {"number": 100}, **keys})
    people = make_participation(scenario, UserObjects(), Clients(tier_table(scenario, 100)))
    counts = np.bincount(np.concatenate([people(0, t).client for t in range(rounds)]), minlength=100)
    share: FloatArray = counts / rounds
    return share


STACK = {"method": {"name": "stacking", "bases": [{"name": "mlp", "models": 2}, {"name": "linear", "models": 3}]}}


def test_strata_of_a_stack_were_drawn_anew_before_a_base_had_met_its_models() -> None:
    """Bases of 2 and 3 models: a stratum is one set of clients for 6 rounds, and all odds are equal all the same."""
    rows = {"participation": {"per_round": 30}, "schedule": {"rows": "stratum"}}
    for keys, age in (({**STACK, **rows}, 6), ({"method": {"models": 5}, **rows}, 5)):
        scenario = read_scenario({"clients": {"number": 100}, **keys})
        people = make_participation(scenario, UserObjects(), Clients(tier_table(scenario, 100)))
        for first in range(0, 10 * age, age):
            met = [
                set(column) for column in np.stack([people(0, t).client for t in range(first, first + age)]).T.tolist()
            ]
            assert sum(map(len, met)) == len(set.union(*met)), "a client stands in two strata of one age"
    assert abs(count_shares({**STACK, **rows}) - 0.3).max() < 6 * np.sqrt(0.3 * 0.7 / ROUNDS)


@pytest.mark.parametrize("rows", [None, "client", "slot", "stratum"])
@pytest.mark.parametrize(
    ("participation", "expected"),
    [
        ({"per_round": 70}, 0.7),
        ({"per_round": 30}, 0.3),
        ({"per_round": 10, "overcommit": 1.3}, 0.13),
        ({"fraction": 0.45}, 0.45),
    ],
    ids=["70 of 100", "30 of 100", "10 -> 13", "45 of 100"],
)
def test_participation_is_unequal_for_ever(participation: dict[str, Any], expected: float, rows: str | None) -> None:
    """With fixed strata 40 of 100 clients took part in every round and 60 in every second one (70 a round)."""
    schedule = {} if rows is None else {"schedule": {"rows": rows}}
    shares = count_shares({"participation": participation, **schedule})
    assert shares.sum() == pytest.approx(100 * expected)
    # strata of one and two clients stay for an age of 5 rounds: the variance of an age's share is at most 1/4
    sd = np.sqrt(expected * (1 - expected) / ROUNDS) if rows != "stratum" else np.sqrt(0.25 / (ROUNDS / 5))
    assert np.abs(shares - expected).max() < 5 * sd
    assert shares.std() < 2 * sd


def test_clients_of_a_tier_have_equal_odds_whatever_the_tiers_sizes() -> None:
    """25 of 30 + 70: 8 and 17 a round (largest remainder), which divide neither tier."""
    shares = count_shares({"clients": {"number": 100, "tiers": TIERS}, "participation": {"per_round": 25}})
    for part, expected in ((shares[:30], 8 / 30), (shares[30:], 17 / 70)):
        assert part.mean() == pytest.approx(expected, abs=1e-9)
        assert np.abs(part - expected).max() < 5 * np.sqrt(expected * (1 - expected) / ROUNDS)


def test_uniform_draws_are_the_default_and_every_pair_of_clients_can_meet() -> None:
    """Two clients of one fixed stratum never took part together."""
    scenario = read_scenario({"clients": {"number": 6}, "participation": {"per_round": 3}})
    assert scenario.schedule.rows == "slot"
    people, met = make_participation(scenario, UserObjects(), Clients((Tier("all", 6),))), np.zeros((6, 6), dtype=int)
    for t in range(600):
        client = people(0, t).client
        met[np.ix_(client, client)] += 1
    pairs = met[np.triu_indices(6, 1)]
    assert np.abs(pairs - 120).max() < 5 * np.sqrt(600 * 0.2 * 0.8)


def test_equal_strata_are_drawn_once_and_unequal_ones_at_every_age() -> None:
    """Slot by slot: 10 of 100 have ten clients each for ever, 30 of 100 keep theirs for the K = 5 rounds of an age."""
    for per_round, size in ((10, 10), (30, 4)):
        keys = {"clients": {"number": 100}, "participation": {"per_round": per_round}, "schedule": {"rows": "stratum"}}
        people = make_participation(read_scenario(keys), UserObjects(), Clients((Tier("all", 100),)))
        rounds = range(400) if per_round == 10 else range(5)
        slots = [set(column) for column in zip(*(people(3, t).client.tolist() for t in rounds), strict=True)]
        assert sum(map(len, slots)) == len(set().union(*slots)), "a client is in two strata"
        assert max(map(len, slots)) <= size


def test_the_seconds_that_a_selection_expects_are_those_of_the_clock() -> None:
    """To the last bit, for a dense model: there were two formulas."""
    clients, size, zero = Clients((Tier("phone", 40, spread=0.5, latency=0.3),)), np.arange(40) * 3, np.zeros(1, int)
    devices, local = make_profile("phones", clients, seed=0), make_local(read_scenario({"local": {"epochs": 2}}))
    steps, sent = count_steps(size, local), np.full(40, 4 * 650)
    costs = JobCosts(steps, sent, sent, samples_seen(size, steps, local.batch_size))
    plan = Plan(np.arange(40), np.zeros(40, int), np.zeros(40, int))
    timing = time_round(devices, CountingRule(), plan, costs, seeds=zero + 7, t=0, now=np.zeros(1))
    expected = expect_seconds(devices, lambda _world: size, local, (7,), 650)(0)
    assert expected.tolist() == timing.job.tolist()
