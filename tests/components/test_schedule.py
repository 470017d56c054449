"""Who trains what: every row meets every model once an age, nothing is remembered, tiers get what was promised."""

import math
import tracemalloc
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.components.schedule import (
    KINDS,
    WorldRound,
    invite_all,
    overcommit,
    sample_clients,
    sample_strata,
    schedule,
)
from fedray.core.method import Schedule
from fedray.core.types import Clients, Plan, State, Tier

AGE_START = (0, 1, 7)  # ages to look at


class Case(NamedTuple):
    """Two tiers of clients, K models, seeds of the worlds, and participants per tier."""

    clients: Clients
    models: int
    seeds: tuple[int, ...]
    per_tier: tuple[int, ...]


@st.composite
def cases(draw: st.DrawFn, most_models: int = 7) -> Case:
    models = draw(st.integers(1, most_models))
    numbers = draw(st.tuples(st.integers(1, 9), st.integers(0, 9)))
    each = draw(st.tuples(*[st.one_of(st.none(), st.integers(1, models))] * 2))  # models a round; None: all
    tiers = tuple(Tier(f"tier{c}", n, m) for c, (n, m) in enumerate(zip(numbers, each, strict=True)))
    per_tier = tuple(draw(st.integers(min(1, n), n)) for n in numbers)
    seeds = tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=3)))
    return Case(Clients(tiers), models, seeds, per_tier)


PEOPLE = {
    "full": lambda case: invite_all(case.clients),
    "sampled": lambda case: sample_clients(case.clients, case.per_tier),
    "strata": lambda case: sample_strata(case.clients, case.per_tier, case.models),
}


def make_schedule(case: Case, kind: str, people: str, rows: str = "client") -> Schedule:
    return schedule(case.clients, case.models, case.seeds, PEOPLE[people](case), KINDS[kind](case.models, rows))


def invite(case: Case, people: str, seed: int, t: int) -> tuple[np.ndarray, np.ndarray]:
    return PEOPLE[people](case)(WorldRound(seed, t, 0), None)


def models_a_round(case: Case, client: np.ndarray) -> np.ndarray:
    each = [case.models if tier.models_per_round is None else tier.models_per_round for tier in case.clients.tiers]
    return np.array(each)[case.clients.tier_of(client)]


def triples(plan: Plan) -> list[tuple[int, int, int]]:
    return list(zip(plan.client.tolist(), plan.model.tolist(), plan.world.tolist(), strict=True))


@given(cases(), st.sampled_from(AGE_START), st.sampled_from(["full", "strata", "sampled"]))
def test_permutation_shows_every_model_to_every_row_once_an_age(case: Case, age: int, people: str) -> None:
    """A client, or the place, whichever client fills it: M models a round, K rounds, each model exactly M times."""
    rows = {"full": "client", "strata": "stratum", "sampled": "slot"}[people]
    plan = make_schedule(case, "permutation", people, rows)
    seen: Counter[tuple[int, int, int]] = Counter()
    for t in range(age * case.models, (age + 1) * case.models):
        who = [invite(case, people, seed, t)[0].tolist() for seed in case.seeds]
        row = {(w, c): s for w, each in enumerate(who) for s, c in enumerate(each)}
        seen.update((row[world, client], model, world) for client, model, world in triples(plan(t, None)))
    for world, seed in enumerate(case.seeds):
        for s, m in enumerate(models_a_round(case, invite(case, people, seed, age * case.models)[0])):
            assert [seen[s, k, world] for k in range(case.models)] == [m] * case.models


@given(cases(), st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(PEOPLE)), st.integers(0, 20))
def test_round_t_alone_is_round_t_after_all_rounds_before(case: Case, kind: str, people: str, t: int) -> None:
    """Nothing is remembered: resuming, or asking twice, cannot change a plan."""
    rows = "stratum" if people == "strata" else "client"
    alone = make_schedule(case, kind, people, rows)(t, None)
    walked = make_schedule(case, kind, people, rows)
    before = [walked(s, None) for s in range(t + 1)][-1]
    assert triples(alone) == triples(before) == triples(walked(t, None))


@given(cases(), st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(PEOPLE)), st.integers(0, 20))
def test_participants_are_counted_by_tier_and_train_its_number_of_different_models(
    case: Case, kind: str, people: str, t: int
) -> None:
    plan = make_schedule(case, kind, people, "stratum" if people == "strata" else "client")(t, None)
    assert plan.client.dtype == plan.model.dtype == plan.world.dtype == np.int64
    assert ((plan.model >= 0) & (plan.model < case.models)).all()
    assert len(set(triples(plan))) == len(plan.client), "a client trains a model twice in one round"
    for world, seed in enumerate(case.seeds):
        mine = plan.client[plan.world == world]
        chosen, slot = invite(case, people, seed, t)
        number = [tier.number for tier in case.clients.tiers] if people == "full" else list(case.per_tier)
        assert np.bincount(case.clients.tier_of(chosen), minlength=2).tolist() == number
        assert len(set(chosen.tolist())) == len(chosen) and slot.tolist() == list(range(len(chosen)))
        assert sorted(mine.tolist()) == sorted(np.repeat(chosen, models_a_round(case, chosen)).tolist())


@settings(max_examples=20)
@given(cases(), st.integers(0, 9))
def test_strata_partition_the_clients(case: Case, seed: int) -> None:
    """Slot by slot the clients of all rounds of an age: disjoint, complete, inside a tier, and of near equal size."""
    people = sample_strata(case.clients, case.per_tier, models=250)
    rounds = [people(WorldRound(seed, t, 0), None).client for t in range(250)]
    slots = [set(column) for column in zip(*(r.tolist() for r in rounds), strict=True)]
    assert sum(len(slot) for slot in slots) == len(set().union(*slots)), "a client is in two strata"
    populated = [c for c, n in enumerate(case.per_tier) if n]
    everyone = set(np.flatnonzero(np.isin(case.clients.tier_of(np.arange(case.clients.number)), populated)).tolist())
    assert set().union(*slots) == everyone  # 250 draws leave out one of 9 once in 10^12
    for c in populated:
        sizes = [len(s) for s in slots if case.clients.tier_of(np.array([min(s)]))[0] == c]
        assert max(sizes) - min(sizes) <= 1


@given(cases(), st.sampled_from(sorted(PEOPLE)), st.integers(0, 30))
def test_balanced_counts_differ_by_at_most_one(case: Case, people: str, t: int) -> None:
    plan = make_schedule(case, "balanced", people, "stratum" if people == "strata" else "client")(t, None)
    for world in range(len(case.seeds)):
        counts = np.bincount(plan.model[plan.world == world], minlength=case.models)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("kind", ["permutation", "random", "adaptive"])
def test_models_are_met_uniformly(kind: str) -> None:
    """5 models, 40 clients, 250 rounds: each pair about 50 times (random: sd 6.3; permutation: exactly)."""
    case = Case(Clients((Tier("all", 40),)), 5, (3,), (40,))
    plan, counts = make_schedule(case, kind, "full"), np.zeros((40, 5))
    for t in range(250):
        jobs = plan(t, None)
        np.add.at(counts, (jobs.client, jobs.model), 1)
    assert (np.abs(counts - 50) < 5 * 6.33).all()
    assert (counts == 50).all() == (kind == "permutation")
    assert np.abs(counts.sum(0) - 2000).max() < 5 * 40


def test_the_clients_that_are_invited_are_those_of_exact_arithmetic() -> None:
    """`50 * 1.1` is 55.00000000000001 in floats, and 55 are invited; never more than a tier has."""
    wanted = list(range(1, 101))
    many, few = (Clients(tuple(Tier(f"tier{n}", most or n) for n in wanted)) for most in (1000, 0))
    for percent in range(100, 201):
        exact = [math.ceil(Fraction(percent, 100) * n) for n in wanted]
        assert overcommit(many, wanted, percent / 100) == exact, percent
    assert overcommit(few, wanted, 1.5) == wanted


def test_clients_seeds_and_ages_draw_different_permutations() -> None:
    """Independent rows: over 60 clients all 6 orders of 3 models appear, and other seeds and ages reshuffle them."""
    plan = make_schedule(Case(Clients((Tier("all", 60),)), 3, (0, 1), (60,)), "permutation", "full")
    drawn = [np.stack([plan(3 * age + t, None).model.reshape(2, 60) for t in range(3)], axis=2) for age in (0, 1)]
    assert len(np.unique(drawn[0][0], axis=0)) == 6
    assert (drawn[0][0] != drawn[0][1]).any() and (drawn[0][0] != drawn[1][0]).any()


def test_balanced_shifts_one_order_for_an_age_and_draws_another_for_the_next() -> None:
    """Over 60 ages all 6 orders of 3 models appear; seen by any client, an order is a shift of the first one's."""
    plan = make_schedule(Case(Clients((Tier("all", 4),)), 3, (0,), (4,)), "balanced", "full")
    orders = []
    for age in range(60):
        jobs = [plan(3 * age + t, None).model.tolist() for t in range(3)]
        orders.append(tuple(models[0] for models in jobs))
        assert all(models == [orders[-1][(t + i) % 3] for i in range(4)] for t, models in enumerate(jobs))
    assert len(set(orders)) == 6


def test_adaptive_prefers_the_models_of_high_loss() -> None:
    """Odds are the losses: 8 : 1 : 1 here; a model never met counts as the worst one."""
    case = Case(Clients((Tier("all", 500),)), 3, (0,), (500,))
    plan = make_schedule(case, "adaptive", "full")

    def shares(loss: list[float]) -> np.ndarray:
        told = {"job_loss": torch.tensor(loss).expand(1, 500, 3).clone()}
        state = State(torch.zeros(1, 1), torch.zeros(1, 0, dtype=torch.int64), told)
        jobs = [plan(t, state).model for t in range(4)]
        return np.bincount(np.concatenate(jobs), minlength=3) / 2000

    low = -20.0 - math.log(8.0)  # densities above 1 have negative losses, whose odds are exp(loss)
    for loss, odds in (([8.0, 1, 1], [8, 1, 1]), ([4.0, math.nan, 2], [2, 2, 1]), ([-20.0, low, low], [8, 1, 1])):
        np.testing.assert_allclose(shares(loss), np.array(odds) / sum(odds), atol=0.04)
    for alike in (1.0, math.nan, 0.0):
        np.testing.assert_allclose(shares([alike] * 3), [1 / 3] * 3, atol=0.04)
    assert shares([0.5, -0.1, -2.0]).argmax() == 0  # the worst model was never drawn


def test_the_adaptive_schedule_of_a_world_reads_its_own_losses() -> None:
    """With odds of 1000 : 1 each world trains the model that is the worst of its own."""
    worst = [2, 0, 1]
    plan = make_schedule(Case(Clients((Tier("all", 50),)), 3, (4, 4, 4), (50,)), "adaptive", "full")
    rows = torch.full((3, 50, 3), 1e-3)
    rows[torch.arange(3), :, worst] = 1.0
    jobs = plan(0, State(torch.zeros(1, 1), torch.zeros(1, 0, dtype=torch.int64), {"job_loss": rows}))
    often = [np.bincount(jobs.model[jobs.world == world], minlength=3) for world in range(3)]
    assert [int(count.argmax()) for count in often] == worst and min(count.max() for count in often) > 45


def test_a_million_clients_are_sampled_in_no_time_and_space() -> None:
    """Nothing of the size of the population is made in a round."""
    clients = Clients((Tier("strong", 400_000, None), Tier("weak", 600_000)))
    plan = schedule(clients, 5, (0,), sample_clients(clients, (20, 30)), KINDS["permutation"](5, "client"))
    tracemalloc.start()
    try:
        for t in range(50):
            assert len(plan(t, None).client) == 20 * 5 + 30
        assert tracemalloc.get_traced_memory()[1] < 1_000_000, "a byte for each client"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("per_round", [5, 7], ids=["even", "uneven"])
def test_strata_keep_one_order_of_the_clients_a_world_however_many_ages_and_worlds_pass(per_round: int) -> None:
    """Uneven strata are cut in every age; no more than the newest of a world is kept."""
    number, worlds, ages = 10_000, 3, 20
    people = sample_strata(Clients((Tier("client", number),)), [per_round], models=2)
    tracemalloc.start()
    for t in range(2 * ages):
        for seed in range(worlds):
            people(WorldRound(seed, t, 0), None)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < (worlds + 1) * 8 * number
