"""Who takes part: rules of selection, what they remember, and rules of one's own."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import copy_run, rows, scenario, train_rounds

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.components.schedule import FIRST_PACE, KINDS, PACE_STEP, WorldRound, read_memory, schedule, write_memory
from fedray.components.selection import (
    KnownClients,
    by_examples,
    choose_clients,
    draw_in_turn,
    draw_weighted,
    fair_ages,
    oort,
    power_of_choice,
)
from fedray.core import rng
from fedray.core.types import Clients, FloatArray, IntArray, Plan, State, Tier
from fedray.methods import Method, Setting, federated
from fedray.scenario.loader import read_scenario

N = 12
TIERS = Clients((Tier("a", 5), Tier("b", 7)))


def known(**changes: Any) -> KnownClients:
    start = KnownClients(np.arange(N), np.full(N, 10), np.linspace(0.1, 1.2, N), np.ones(N, np.int64), round=9)
    return start._replace(**changes)


def draws(rule: Any, about: KnownClients, number: int, times: int = 400) -> np.ndarray:
    """How often each client is chosen."""
    chosen = [rule(about, number, rng.stream(0, "selection", t)) for t in range(times)]
    assert all(len(set(one)) == number for one in chosen)
    return np.bincount(np.concatenate(chosen), minlength=N) / times


def test_clients_with_more_samples_are_drawn_more_often() -> None:
    often = draws(by_examples, known(size=np.array([30] * 4 + [10] * 8)), 1, 2000)
    assert np.allclose(often[:4].sum(), 0.6, atol=0.05)
    two = choose_clients(Clients((Tier("a", N), Tier("b", N))), [4, 4], by_examples, lambda _world: np.full(2 * N, 9))
    assert (np.diff(two(WorldRound(0, 5, 0), None).client.reshape(2, 4), axis=0) != N).any()  # tiers draw apart


@pytest.mark.parametrize("number", [0, 1, 10, 999, 1000])
def test_a_draw_is_the_head_of_the_whole_order(number: int) -> None:
    weight = np.arange(1000.0) * (np.arange(1000) % 3 > 0)  # a third is 0: these come last, in order
    whole, some = (draw_weighted(weight, n, rng.stream(0, "selection")) for n in (len(weight), number))
    assert some.tolist() == whole[:number].tolist()


def test_power_of_choice_takes_the_largest_losses_of_its_candidates_and_the_unknown_first() -> None:
    assert power_of_choice(N)(known(), 3, rng.stream(0, "x")).tolist() == [9, 10, 11]
    never = (np.arange(N) != 2).astype(np.int64)
    assert power_of_choice(N)(known(last=never), 2, rng.stream(0, "x")).tolist() == [2, 11]
    often = draws(power_of_choice(3), known(), 3)  # as many candidates as places: nothing but the odds of the draw
    assert np.allclose(often, 3 / N, atol=0.1)
    assert np.all(np.diff(draws(power_of_choice(6), known(), 2)[::3]) >= -0.02)


def test_power_of_choice_has_twice_as_many_candidates_as_participants_unless_told() -> None:
    for number in (1, 2, 5):
        unsaid, said = (power_of_choice(d)(known(), number, rng.stream(0, "x")) for d in (None, 2 * number))
        assert unsaid.tolist() == said.tolist()
    assert draws(power_of_choice(), known(), 2)[0] == 0 < draws(power_of_choice(2), known(), 2)[0]


def test_oort_prefers_useful_and_fast_clients_and_explores_at_first() -> None:
    for below in (2.0, 0.0):  # a Gaussian likelihood may be below 0
        useful = draws(oort(exploration=0.0), known(loss=known().loss - below), 3)
        assert useful[6:].sum() > 2 * useful[:6].sum()
    slow = np.where(np.arange(N) == 11, 100.0, 1.0)
    assert draws(oort(exploration=0.0), known(seconds=slow), 3)[11] < 0.05 < useful[11]
    new = np.array([0] * 6 + [1] * 6)
    assert np.allclose(draws(oort(), known(last=new, round=1), 4)[:6].sum(), 4.0)  # 0.9 of 4, rounded
    assert np.allclose(draws(oort(), known(last=new, round=500), 5)[:6].sum(), 1.0)  # 0.2 of 5
    nobody = draws(oort(), known(last=np.zeros(N, np.int64), loss=np.full(N, np.nan), round=1), 4)
    assert np.allclose(nobody, 4 / N, atol=0.1)


def test_oort_prefers_whom_it_has_not_seen_for_long() -> None:
    late = known(loss=np.ones(N), last=np.arange(1, N + 1), round=20)  # 1 + 0.547 and 1 + 0.387: below 0.95 of it
    assert oort(exploration=0.0)(late, 1, rng.stream(0, "x")).tolist() == [0]


def test_a_client_of_an_extreme_loss_counts_for_oort_as_the_95th_percentile_does() -> None:
    """Of 21 clients that is the second largest utility: all have the same odds, and nobody is always chosen."""
    loss = np.where(np.arange(21) == 7, 1e6, 1.0)
    about = KnownClients(np.arange(21), np.full(21, 10), loss, np.ones(21, np.int64), round=9)
    often = draws(oort(exploration=0.0), about, 1)
    assert np.abs(often - 1 / 21).max() < 5 * np.sqrt(20 / 21**2 / 400)


@pytest.mark.parametrize("kind", ["permutation", "balanced"])
@pytest.mark.parametrize("row", ["client", "slot"])
def test_fair_ages_meet_every_model_once_an_age_and_give_all_clients_the_same_share(kind: str, row: str) -> None:
    models, per_tier = 3, [2, 3]
    plan = schedule(TIERS, models, [4], fair_ages(TIERS, per_tier, models), KINDS[kind](models, row))
    ages: Counter[int] = Counter()
    for age in range(35):
        jobs = Counter((int(i), int(k)) for t in range(models) for i, k in zip(*plan(age * models + t, None)[:2]))
        clients = {client for client, _ in jobs}
        assert jobs == Counter((client, k) for client in clients for k in range(models))
        ages.update(clients)
        for first, end in ((0, 5), (5, 12)):
            count = [ages[i] for i in range(first, end)]
            assert max(count) - min(count) <= 1
    assert {ages[i] for i in range(5)} == {14} and {ages[i] for i in range(5, 12)} == {15}


@pytest.mark.parametrize("number", [1, 5])
def test_clients_in_turn_take_part_equally_often_at_any_time(number: int) -> None:
    """Whatever their tiers: with one participant none of two tiers is left out."""
    draw, count = draw_in_turn(TIERS, number), np.zeros(TIERS.number, np.int64)
    for t in range(25):
        client = draw(WorldRound(0, t, 0), None).client
        assert len(set(client.tolist())) == number and (np.diff(client) > 0).all()
        count[client] += 1
        assert count.max() - count.min() <= 1


PARTIAL = {"participation": {"per_round": 3}, "rounds": 6, "report": False, "method": {"models": 2}}


@pytest.mark.parametrize("selection", ["fair", "oort"])
def test_a_killed_run_chooses_the_same_clients_when_it_goes_on(selection: str, tmp_path: Path) -> None:
    run = fedray.run(scenario(PARTIAL), participation={"selection": selection}, out=tmp_path / "run")
    again = fedray.resume(copy_run(run, tmp_path / "again", 2))
    assert rows(run.clients) == rows(again.clients)
    assert run.summary["state_hash"] == again.summary["state_hash"]
    assert rows(fedray.run(scenario(PARTIAL), out=tmp_path / "plain").clients) != rows(run.clients)


def test_losses_of_two_worlds_and_of_the_adaptive_schedule_are_kept_apart() -> None:
    keys = scenario(PARTIAL, {"schedule": {"kind": "adaptive"}, "replicates": 2})
    run = fedray.run(keys, participation={"selection": "oort"})
    extra = run.progress.state.extra
    assert extra["client_loss"].shape == (2, 6) and extra["job_loss"].shape == (2, 6, 2)
    table = run.clients.to_pylist()
    for world in range(2):
        for client in range(6):
            jobs = [job for job in table if (job["replicate"], job["client"]) == (world, client)]
            last = max((job["round"] for job in jobs), default=0)
            assert last == int(extra["client_round"][world, client])
            if jobs:
                mean = np.mean([job["loss"] for job in jobs if job["round"] == last])
                assert np.isclose(float(extra["client_loss"][world, client]), mean)


def test_own_rules_choose_deal_and_assign_and_are_passed_again_to_go_on(tmp_path: Path) -> None:
    def first(known: KnownClients, number: int, _generator: Any, _options: Any) -> Any:
        return known.client[:number]

    def odd(labels: np.ndarray, clients: int, generator: Any, _options: Any) -> Any:
        return np.array_split(generator.permutation(len(labels)), clients)

    def last_model(models: int, _rows: str) -> Any:
        return lambda _now, _drawn, m, _state: (np.arange(len(m)), np.full(len(m), models - 1))

    own: dict[str, Any] = {"partition": odd, "selection": first, "schedule": last_model}
    keys = scenario(PARTIAL)
    del keys["data"]["partition"]
    run = fedray.run(keys, **own, out=tmp_path / "run")
    jobs = run.clients.to_pylist()
    assert {job["client"] for job in jobs} == {0, 1, 2} and {job["model"] for job in jobs} == {1}
    copy_run(run, tmp_path / "again", 2)
    assert fedray.resume(tmp_path / "again", **own).summary["state_hash"] == run.summary["state_hash"]


def test_oort_drew_by_the_slowness_of_clients_that_it_had_never_met() -> None:
    """Rank of the chosen by time in round 1 was 0.15 to 0.32 for 0.5 by chance."""
    seconds, nobody = np.linspace(1.0, 9.0, N), np.zeros(N, np.int64)
    for exploration, round in ((0.9, 1), (0.9, 7), (0.1, 1)):
        about = known(seconds=seconds, last=nobody, loss=np.full(N, np.nan), round=round)
        assert np.allclose(draws(oort(exploration), about, 3, 2000), 3 / N, atol=0.06)


def test_every_rule_knows_what_a_server_knows() -> None:
    """The time of a client, like its loss, is known when it has counted in a round."""
    clients, heard = Clients((Tier("all", 6),)), list[KnownClients]()

    def rule(about: KnownClients, number: int, _generator: np.random.Generator) -> IntArray:
        heard.append(about)
        return about.client[:number]

    informed = choose_clients(clients, [2], rule, lambda _world: np.full(6, 9), lambda _world: np.arange(6.0))
    extra = {"client_loss": torch.full((1, 6), 0.5), "client_round": torch.tensor([[0, 3, 0, 1, 0, 2]])}
    extra["pace"] = torch.full((1, 41), 30.0, dtype=torch.float64)
    for state in (None, State(torch.zeros(1, 1), torch.zeros(1, 0), extra)):
        informed(WorldRound(0, 5, 0), state)
    first, later = heard
    assert first.seconds is not None and np.isnan(first.seconds).all()
    assert later.seconds is not None and later.seconds[[1, 3, 5]].tolist() == [1.0, 3.0, 5.0]
    assert np.isnan(later.seconds[[0, 2, 4]]).all()


WINDOW = 2
SIZES = np.array([3, 5])


def follow_pace(loss: np.ndarray) -> np.ndarray:
    """The pace after each round `[T, R]` where both clients have these losses, `[T, R]`."""
    rounds, worlds = loss.shape
    pace = torch.zeros((worlds, 1 + 2 * WINDOW), dtype=torch.float64)
    pace[:, 0] = FIRST_PACE
    none = torch.zeros((worlds, 2), dtype=torch.int64)
    extra = {"client_loss": torch.full((worlds, 2), float("nan")), "client_round": none, "pace": pace}
    state = State(torch.zeros(1, 1), torch.zeros(1, 0, dtype=torch.int64), extra)
    plan, found = Plan(np.tile([0, 1], worlds), np.zeros(2 * worlds, np.int64), np.repeat(np.arange(worlds), 2)), []
    for t in range(rounds):
        told: dict[str, Any] = {"plan_of": lambda *_: plan, "sizes": lambda _world: SIZES}
        state = write_memory(t, state, plan, np.repeat(loss[t], 2), **told, window=WINDOW)
        found.append([read_memory(state, w, 2)[2] for w in range(worlds)])
    return np.array(found)


def test_oorts_pace_rises_where_the_newest_rounds_were_not_more_useful_than_those_before() -> None:
    """In each world by itself, at the end of each window but the first, and to 100 % at most."""
    loss = rng.stream(0, "loss").integers(1, 5, (60, 6)).astype(float)
    wanted, expected = np.full(6, FIRST_PACE), []
    for done in range(1, 61):
        if done % WINDOW == 0 and done >= 2 * WINDOW:
            newest, before = (loss[done - n : done - n + WINDOW].sum(axis=0) for n in (WINDOW, 2 * WINDOW))
            wanted = np.where(newest <= before, np.minimum(wanted + PACE_STEP, 100.0), wanted)
        expected.append(wanted)
    assert np.array_equal(follow_pace(loss), np.array(expected))


def test_a_participant_whose_upload_is_not_used_is_no_longer_new() -> None:
    plan, extra = Plan(*np.zeros((3, 1), np.int64)), {"pace": torch.zeros((1, 5), dtype=torch.float64)}
    extra |= {"client_loss": torch.tensor([[0.3, 9.0, np.nan, np.nan]]), "client_round": torch.tensor([[1, 2, 0, 0]])}
    state, both = State(torch.zeros(1, 1), torch.zeros(1, 0), extra), plan._replace(client=np.arange(3))
    both = both._replace(world=np.zeros(3, np.int64))
    told: dict[str, Any] = {"plan_of": lambda *_: both, "sizes": lambda _world: np.full(4, 5)}
    loss, last, _ = read_memory(write_memory(4, state, plan, np.array([0.5]), **told, window=2), 0, 4)
    assert loss[:3].tolist() == [0.5, 0.5, 0.5] and np.isnan(loss[3]) and last.tolist() == [5, 5, 5, 0]


def forgetful(setting: Setting) -> Method:
    """Its `remember` counts jobs in every round, and returns nothing else."""
    phase = federated(setting)

    def remember(t: int, state: State, plan: Plan, loss: FloatArray) -> State:
        assert len(loss) == len(plan.client) > 0
        before = state.extra.get("jobs", torch.zeros(2, dtype=torch.int64))
        assert int(before[1]) == t
        return state._replace(extra={"jobs": before + torch.tensor([len(loss), 1])})

    return Method("forgetful", replace(phase, remember=remember))


@pytest.mark.parametrize(
    ("keys", "kept", "jobs"),
    [
        ({"schedule": {"kind": "adaptive"}}, ["job_loss"], 12),
        ({"participation": {"selection": "oort", "per_round": 3}}, ["client_loss", "client_round", "pace"], 6),
    ],
    ids=["adaptive", "oort"],
)
def test_the_adaptive_schedule_overwrote_what_an_own_method_remembers(
    keys: dict[str, Any], kept: list[str], jobs: int
) -> None:
    tree = scenario(keys, {"method": {"models": 2}, "data": {"limit": 60}})
    state, _ = train_rounds(build_study(read_scenario(tree), UserObjects(method=forgetful)), 2)
    assert state.extra.keys() == {"jobs", *kept} and state.extra["jobs"].tolist() == [jobs, 2]
    assert 0 < int(torch.isfinite(state.extra[kept[0]]).sum()) <= jobs
