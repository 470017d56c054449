"""Virtual time and who counts in a round: pure functions of plan, devices and seed; and the devices' traces."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from small import scenario

import fedray
from fedray.core.types import Clients, Plan, Tier
from fedray.simulation import devices as clock
from fedray.simulation.devices import CountingRule, Devices, JobCosts, RoundTiming

EXAMPLE = Path(__file__).parents[2] / "docs" / "how-to" / "trace.csv"
GOLDEN = [1.578111152, 5.312827244, 0.710147582, 0.682411533]
FOUR = Clients((Tier("client", 4, uplink=7.0, latency=0.5),))
TWO = Clients((Tier("fast", 3, None, seconds_per_step=1.0), Tier("slow", 3, seconds_per_step=2.0)))
EVERYBODY_COUNTS = CountingRule()
START: Any = {"seeds": np.arange(3), "t": 0, "now": np.zeros(3)}  # of three worlds


def everyone(clients: Clients, worlds: int = 1) -> Plan:
    """Each client trains model 0."""
    who = np.tile(np.arange(clients.number), worlds)
    return Plan(who, np.zeros_like(who), np.repeat(np.arange(worlds), clients.number))


def time_plan(
    plan: Plan, clients: Clients = TWO, rule: CountingRule = EVERYBODY_COUNTS, *, steps: ArrayLike = 10,
    seeds: Sequence[int] | None = None, t: int = 0, devices: Devices | None = None, now: ArrayLike = 0.0,
) -> RoundTiming:  # fmt: skip
    """A round of jobs that send nothing, so that a job lasts as long as its steps."""
    none = np.zeros(len(plan.client), dtype=np.int64)
    work = JobCosts(np.broadcast_to(np.array(steps), len(none)), none, none)
    worlds = np.arange(int(plan.world.max()) + 1) if seeds is None else np.array(seeds)
    start = np.broadcast_to(np.array(now, dtype=float), len(worlds))
    return clock.time_round(devices or Devices(clients), rule, plan, work, seeds=worlds, t=t, now=start)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Clients, Plan, JobCosts]:
    """Two tiers, up to three worlds, some clients with several models."""
    tiers = tuple(
        Tier(name, draw(st.integers(1, 4)), None, seconds_per_step=draw(st.floats(0.01, 9)), seconds_per_sample=0.1,
             uplink=10.0, downlink=20.0, latency=draw(st.floats(0, 2)), side_by_side=draw(st.booleans()))
        for name in ("a", "b")
    )  # fmt: skip
    clients = Clients(tiers)
    places = [(w, c, k) for w in range(3) for c in range(clients.number) for k in range(3)]
    jobs = draw(st.lists(st.sampled_from(places), min_size=1, unique=True))
    columns = np.array(jobs).T
    costs = st.tuples(*map(st.integers, (1, 0, 0, 1), [50] * 4))
    numbers = np.array(draw(st.lists(costs, min_size=len(jobs), max_size=len(jobs)))).T
    return clients, Plan(columns[1], columns[2], columns[0]), JobCosts(*numbers)


@given(rounds())
def test_a_round_lasts_as_long_as_its_slowest_client(case: tuple[Clients, Plan, JobCosts]) -> None:
    """Models are trained one after another or side by side; their transfers share the line either way."""
    clients, plan, work = case
    assert work.samples is not None
    got = clock.time_round(Devices(clients), CountingRule(), plan, work, **START)
    compute, transfer, jobs = defaultdict(list), defaultdict(list), defaultdict(list)
    for j, (client, _, world) in enumerate(zip(*plan, strict=True)):
        tier = clients.tiers[int(client >= clients.tiers[0].number)]
        compute[world, client].append(work.steps[j] * tier.seconds_per_step + work.samples[j] * 0.1)
        jobs[world, client].append(got.job[j])
        both = (work.up[j], tier.uplink), (work.down[j], tier.downlink)
        transfer[world, client].append(sum(size / rate + tier.latency for size, rate in both if size))
    longest = np.zeros(3)
    for (world, client), parts in compute.items():
        tier = clients.tiers[int(client >= clients.tiers[0].number)]
        several = max if tier.side_by_side else sum
        busy = several(parts) + sum(transfer[world, client])
        assert several(jobs[world, client]) == pytest.approx(busy), "as a picture of the jobs shows it"
        longest[world] = max(longest[world], busy)
    np.testing.assert_allclose(got.round, longest, rtol=1e-12)
    assert (got.status == clock.OK).all()


@given(rounds(), st.integers(0, 2**32), st.floats(0, 1))
def test_the_order_of_a_plan_changes_nothing(
    case: tuple[Clients, Plan, JobCosts], shuffle: int, dropout: float
) -> None:
    clients, plan, work = case
    order = np.random.default_rng(shuffle).permutation(len(plan.client))
    clients = Clients(tuple(Tier(t.name, t.number, None, spread=1.0) for t in clients.tiers))
    rule = CountingRule((2, 1), min(dropout, 0.9), 5.0)
    devices = Devices(clients, available=clock.diurnal_availability)
    one = clock.time_round(devices, rule, plan, work, **START)
    two = clock.time_round(
        devices, rule, plan.take(order), JobCosts(work.steps[order], work.up[order], work.down[order]), **START
    )
    assert (one.status[order] == two.status).all()
    np.testing.assert_allclose(one.round, two.round, rtol=1e-12)


def test_spread_is_lognormal_and_a_clients_own() -> None:
    clients = Clients((Tier("client", 20_000, seconds_per_step=3.0, spread=0.5),))
    plan = everyone(clients)
    devices = Devices(clients)
    seconds = time_plan(plan, clients, steps=1).job
    log = np.log(seconds / 3.0)
    assert abs(np.median(log)) < 4 * 1.2533 * 0.5 / 20_000**0.5
    assert abs(log.std() - 0.5) < 0.015
    np.testing.assert_allclose(devices.slowness(np.zeros(20_000, dtype=np.int64), plan.client), seconds / 3.0)
    assert time_plan(plan, clients, steps=1, t=7).job.tolist() == seconds.tolist(), "a client is as slow in every round"
    other = time_plan(plan, clients, steps=1, seeds=[1]).job
    assert abs(np.corrcoef(np.log(other), log)[0, 1]) < 0.05, "another seed draws other devices"


OK, LATE, PAST_DEADLINE = clock.OK, clock.LATE, clock.PAST_DEADLINE
UNEQUAL, LONG, TEN = [30, 10, 20, 30, 10, 20], [99, 10, 11, 10, 11, 12], [10] * 6
OUTCOMES: dict[str, tuple[CountingRule, list[int], list[int], float]] = {  # rule, steps, status, seconds of the round
    "the first two of each tier count, and end the round": (
        CountingRule((2, 2)), UNEQUAL, [LATE, OK, OK, LATE, OK, OK], 40.0
    ),
    "of one tier nobody counts": (CountingRule((2, 0)), UNEQUAL, [LATE, OK, OK, LATE, LATE, LATE], 20.0),
    "of equal ones the lower client": (CountingRule((1, 2)), TEN, [OK, LATE, LATE, OK, OK, LATE], 20.0),
    "of everybody all": (CountingRule((3, 3)), UNEQUAL, [OK] * 6, 60.0),
    "no longer than the deadline": (
        CountingRule(deadline=20.0), [30, 20, 10, 11, 10, 9], [PAST_DEADLINE, OK, OK, PAST_DEADLINE, OK, OK], 20.0
    ),
    "with everybody there it ends before": (CountingRule(deadline=200.0), UNEQUAL, [OK] * 6, 60.0),
    "a full tier waits for nobody": (CountingRule((2, 3), deadline=50.0), LONG, [PAST_DEADLINE, *[OK] * 5], 24.0),
    "a tier that waits": (CountingRule((3, 3), deadline=50.0), LONG, [PAST_DEADLINE, *[OK] * 5], 50.0),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "steps", "status", "seconds"), OUTCOMES.values(), ids=OUTCOMES)
def test_over_commitment_and_deadlines_say_who_counts(
    rule: CountingRule, steps: list[int], status: list[int], seconds: float
) -> None:
    """Three clients of a second a step, and three of two."""
    got = time_plan(everyone(TWO), rule=rule, steps=steps)
    assert (got.status.tolist(), got.round.tolist()) == (status, [seconds])


def test_all_jobs_of_a_client_share_its_status() -> None:
    got = time_plan(Plan(*np.array([[0, 0, 0, 1], [0, 1, 2, 0], [0, 0, 0, 0]])), rule=CountingRule((1, 1)))
    assert got.status.tolist() == [LATE, LATE, LATE, OK]


def test_dropout_has_its_frequency() -> None:
    """30 % of 20 000 clients within 4 standard errors; and they are others in another round."""
    clients = Clients((Tier("client", 20_000),))
    plan = everyone(clients)
    gone = [time_plan(plan, clients, CountingRule(dropout=0.3), t=t).status == clock.DROPPED for t in (0, 1)]
    for one in gone:
        assert abs(one.mean() - 0.3) < 4 * (0.3 * 0.7 / 20_000) ** 0.5
    both = (gone[0] & gone[1]).mean()
    assert abs(both - 0.09) < 4 * (0.09 * 0.91 / 20_000) ** 0.5, "rounds are independent"


def test_dropout_is_missed_at_once_or_at_the_deadline() -> None:
    plan, rule = everyone(TWO, worlds=50), CountingRule(dropout=0.5)
    steps = np.tile([10, 11, 12, 10, 11, 12], 50)
    free = time_plan(plan, rule=rule, steps=steps)
    bound = time_plan(plan, rule=CountingRule(dropout=0.5, deadline=100.0), steps=steps)
    assert free.status.tolist() == bound.status.tolist()
    busy = np.where(free.status == OK, free.job, 0).reshape(50, 6).max(1)
    missed = (free.status == clock.DROPPED).reshape(50, 6).any(1)
    assert 0 < missed.sum() <= 50
    assert free.round.tolist() == busy.tolist()
    assert bound.round.tolist() == np.where(missed, 100.0, busy).tolist()


def test_a_client_without_data_took_the_place_of_one_with() -> None:
    """It answers nothing, so it neither is among the first nor keeps the round waiting."""
    slow = Clients((Tier("client", 3, seconds_per_step=1.0, latency=50.0),))
    got = time_plan(everyone(slow), slow, CountingRule((2,)), steps=[0, 10, 11])
    assert got.status.tolist() == [clock.NO_DATA, OK, OK]
    assert time_plan(everyone(slow), slow, steps=[0, 0, 0]).round.tolist() == [0.0]


def test_time_stood_still_while_nobody_was_there() -> None:
    """A round without a client that is there ends when the first of them comes."""
    clients = Clients((Tier("client", 3, seconds_per_step=1.0),))
    away = clock.window_availability(np.array([0, 1, 2]), np.array([500.0, 200.0, 0.0]), np.array([900.0, 300.0, 10.0]))
    devices = Devices(clients, available=away)
    now, seen = np.zeros(1), []
    for t in range(4):
        got = time_plan(everyone(clients), clients, devices=devices, now=now, t=t)
        now = now + got.round
        seen.append((got.status.tolist(), float(now[0])))
    gone = clock.UNAVAILABLE
    assert seen[0] == ([gone, gone, OK], 10.0)
    assert seen[1] == ([gone, gone, gone], 200.0)
    assert seen[2] == ([gone, OK, gone], 210.0)
    late = time_plan(everyone(clients), clients, devices=devices, now=[1000.0])
    assert late.round.tolist() == [0.0], "nobody will ever come again"


def test_an_available_client_without_data_does_not_stop_the_clock() -> None:
    clients = Clients((Tier("client", 2, seconds_per_step=1.0),))
    away = clock.window_availability(np.array([1]), np.array([200.0]), np.array([300.0]))
    got = time_plan(everyone(clients), clients, steps=[0, 10], devices=Devices(clients, available=away))
    assert got.status.tolist() == [clock.NO_DATA, clock.UNAVAILABLE]
    assert got.round.tolist() == [200.0]


def test_the_spread_of_devices_is_the_same_on_every_machine() -> None:
    """Nine decimals of it: what numpy's exp and cos say beyond depends on the processor."""
    clients = Clients((Tier("client", 4, seconds_per_step=1.0, spread=1.0),))
    factor = Devices(clients).slowness(np.zeros(4, dtype=np.int64), np.arange(4))
    assert factor.tolist() == GOLDEN
    assert time_plan(everyone(clients), clients, steps=1).job.tolist() == GOLDEN


def test_diurnal_clients_are_available_half_of_each_day() -> None:
    seeds, who = np.zeros(20_000, dtype=np.int64), np.arange(20_000)
    for now in (0.0, 12_345.6, 9.7 * clock.DAY):
        there = clock.diurnal_availability(seeds, who, np.full(20_000, now)) == 0
        assert abs(there.mean() - 0.5) < 4 * 0.5 / 20_000**0.5
    one, next_day = (
        clock.diurnal_availability(seeds, who, np.full(20_000, now)) == 0 for now in (5e3, 5e3 + clock.DAY)
    )
    assert (one == next_day).all()
    opposite = clock.diurnal_availability(seeds, who, np.full(20_000, 5e3 + clock.DAY / 2)) == 0
    assert (one != opposite).all()


@given(st.floats(0, 1e9), st.integers(0, 10**6))
def test_a_diurnal_client_is_available_after_its_waiting_time(now: float, client: int) -> None:
    seed, who = np.array([0]), np.array([client])
    wait = clock.diurnal_availability(seed, who, np.array([now]))
    assert 0 <= wait[0] <= clock.DAY / 2 + 1
    assert clock.diurnal_availability(seed, who, np.array([now]) + wait)[0] == 0


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50), st.integers(1, 20)), max_size=12),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 80)), min_size=1, max_size=8),
)
def test_windows_say_how_long_until_a_client_is_available(
    rows: list[tuple[int, int, int]], questions: list[tuple[int, int]]
) -> None:
    client, start, length = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    wait = clock.window_availability(client, start.astype(float), (start + length).astype(float))
    who, now = np.array(questions).T
    got = wait(np.zeros(len(who), dtype=np.int64), who, now.astype(float))
    for (one, at), seconds in zip(questions, got, strict=True):
        mine = [(a, a + n) for c, a, n in rows if c == one]
        later = [t for t in range(at, 200) if any(a <= t < b for a, b in mine)]
        assert seconds == (0 if not mine else later[0] - at if later else np.inf)


def test_the_example_of_the_documentation() -> None:
    clients = Clients((Tier("client", 4, seconds_per_step=0.01, uplink=1e6, downlink=1e7, spread=0.3),))
    devices, who = clock.read_trace(clients, EXAMPLE), np.arange(4)
    assert devices.figure("seconds_per_step", who).tolist() == [0.004, 0.02, 0.01, 0.01]
    assert devices.figure("uplink", who).tolist() == [2.5e6, 0.4e6, 0.1e6, 1e6]
    assert devices.figure("downlink", who).tolist() == [12.5e6, 5e6, 1e7, 1e7]
    slowness = devices.slowness(np.zeros(4, dtype=np.int64), who)
    assert slowness[:2].tolist() == [1, 1] and (slowness[2:] != 1).all(), "measured"
    assert devices.available is not None
    seeds = np.zeros(4, dtype=np.int64)
    at = {now: devices.available(seeds, who, np.full(4, now)).tolist() for now in (0.0, 3600.0, 7300.0, 20000.0)}
    assert at == {0.0: [0, 0, 600, 0], 3600.0: [3600, 0, 0, 0], 7300.0: [0] * 4, 20000.0: [np.inf, 0, 0, 0]}
    page = EXAMPLE.with_name("traces.md").read_text()
    assert all(f"`{name}`" in page for name in EXAMPLE.read_text().splitlines()[0].split(","))


@given(st.floats(0, 1e6), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4))
def test_windows_that_repeat_are_met_after_the_waiting_time_and_a_period_later(
    now: float, rows: list[tuple[int, int]]
) -> None:
    start, length = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    wait = clock.window_availability(np.zeros(len(rows), int), start, start + length, np.full(len(rows), 20.0))
    zero = np.zeros(1, int)
    seconds = wait(zero, zero, np.array([now]))
    assert 0 <= seconds[0] <= 20.001
    assert wait(zero, zero, now + seconds)[0] == 0
    assert (seconds[0] == 0) == any(a <= now % 20.0 < a + n for a, n in rows)


def test_a_link_changes_over_time_and_begins_anew_after_its_period(tmp_path: Path) -> None:
    trace: dict[str, Any] = {
        "client": [0, 0, 1, 1, 2],
        "link_from": [None, 60, 10, 20, None],  # the first row is valid from the start, and its period is that of all
        "period": [100, None, None, None, None],
        "available_from": [0, 70, None, None, None],
        "available_to": [66, 90, None, None, None],
        "uplink": [100, 10, 5, 6, 50],
        "latency": [0.0, 0.2, None, 1.0, None],
    }
    pd.DataFrame(trace).to_parquet(path := tmp_path / "trace.parquet")
    devices, who = clock.read_trace(FOUR, path), np.arange(4)

    def at(name: str, now: float) -> list[float]:
        return [float(x) for x in devices.figure(name, who, np.full(4, now))]

    assert [at("uplink", now) for now in (0, 65, 130)] == [[100, 5, 50, 7], [10, 6, 50, 7], [100, 6, 50, 7]]
    assert at("latency", 0) == [0, 0.5, 0.5, 0.5]
    assert at("latency", 165) == [0.2, 1.0, 0.5, 0.5]
    plan, zero = Plan(*np.zeros((3, 1), int)), np.zeros(1, int)
    assert devices.available is not None
    assert devices.available(zero, zero, np.array([191.0])) == pytest.approx(9)
    costs = JobCosts(zero + 1, zero + 100, zero)  # 100 bytes up, in a round that starts at 0 or at 65 s
    times = [clock.time_round(devices, EVERYBODY_COUNTS, plan, costs, seeds=zero, t=0, now=zero + s) for s in (0, 65)]
    assert np.diff([time.job[0] for time in times]) == pytest.approx(100 / 10 - 100 / 100 + 0.2)


def test_phones_have_the_published_medians_and_a_tenfold_spread_and_are_drawn_at_their_address() -> None:
    many = Clients((Tier("phone", 40_001, uplink=5.0),))
    one, two, other = (clock.make_profile("phones", many, seed) for seed in (1, 1, 2))
    page = EXAMPLE.with_name("traces.md").read_text()
    for name, law in clock.PROFILES["phones"].items():
        values = one.figure(name, np.arange(40_001))
        assert np.isclose(np.median(values), law.median, rtol=0.03)
        low, high = np.percentile(values, (10, 90))
        assert np.isclose(high / low, 10.0 if name != "latency" else 10.0**0.5, rtol=0.05)
        assert np.array_equal(values, two.figure(name, np.arange(40_001)))
        assert not np.array_equal(values, other.figure(name, np.arange(40_001)))
        unit, scale = {"seconds_per_sample": ("s", 1.0), "latency": ("ms", 1e3)}.get(name, ("Mbit/s", 8e-6))
        assert re.search(rf"\b{scale * law.median:.4g} {unit}\b", page), name


def test_phones_change_the_clock_alone() -> None:
    keys = scenario({"rounds": 2, "report": False})
    plain, phones = (fedray.run(keys, clients={"number": 6, **more}) for more in ({}, {"profile": "phones"}))
    assert plain.summary["model_hash"] == phones.summary["model_hash"]
    assert plain.summary["totals"]["sim_seconds"] < phones.summary["totals"]["sim_seconds"]
