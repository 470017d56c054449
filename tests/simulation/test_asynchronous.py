"""Training without rounds: limits in which it is training in rounds, and bits that depend on the scenario alone."""

import gc
import heapq
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import copy_run

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.bench.works import simulate
from fedray.core import rng
from fedray.core.errors import Enough, FedrayError
from fedray.core.method import Local, Phase, Piece
from fedray.core.types import FloatArray, Mode
from fedray.experiments.run import run_scenario
from fedray.features.windows import Windows
from fedray.runtime.exchange import group_versions
from fedray.scenario.loader import read_scenario
from fedray.simulation import devices as clock
from fedray.simulation.asynchronous import Pace, Timeline
from fedray.simulation.devices import window_availability
from fedray.simulation.study import AsyncRule
from fedray.training import choice

N = 10
SMALL: dict[str, Any] = {"clients": {"number": N}, "runtime": "inline", "report": False}
SMALL |= {"local": {"steps": 3, "lr": 0.1}, "evaluate": {"every": 1000}}
SPREAD = {"clients": {"number": N, "tiers": {"slow": {"share": 0.5, "spread": 1.0}, "fast": {"uplink": 2e6}}}}
CUBIC = {"data": {"name": "cubic"}, "model": {"name": "mlp"}}
TOPK = {"compress": {"kind": "topk", "ratio": 0.1, "error_feedback": True}}
ALL = {"clients": {"number": N, "tiers": {"hpc": {"share": 1.0, "models_per_round": "all"}}}}


def run(method: str, rounds: int, mode: dict[str, Any] | None = None, **more: Any) -> fedray.Run:
    """A small run; with a mode it has no rounds."""
    participation = {} if mode is None else {"participation": mode}
    return fedray.run({**SMALL, "method": {"name": method}, "rounds": rounds, **participation, **more})


def outcome(run: fedray.Run) -> tuple[Any, ...]:
    """The final models, bytes and virtual seconds."""
    totals = run.summary["totals"]
    return run.summary["model_hash"], totals["up_bytes"], totals["down_bytes"], round(totals["sim_seconds"], 9)


IN_STEP: dict[str, tuple[str, int, dict[str, Any]]] = {  # method, server steps a round, what it is combined with
    "fedavg": ("fedavg", 1, {}),
    "server optimizer": ("fedavg", 1, {"server": {"optimizer": "adam", "lr": 0.01}}),
    "robust server": ("fedavg", 1, {"server": {"robust": "median"}}),
    "error feedback": ("fedavg", 1, TOPK),
    "ditto": ("ditto", 1, {}),
    "fedag": ("fedag", 1, CUBIC),
    "five models": ("fed_ensemble", 5, {"schedule": {"kind": "balanced"}}),
    "all models a turn": ("shefl", 5, ALL),
}


@pytest.mark.parametrize(("method", "steps_a_round", "more"), IN_STEP.values(), ids=IN_STEP)
def test_with_equal_speeds_and_a_buffer_for_everybody_it_is_training_in_rounds(
    method: str, steps_a_round: int, more: dict[str, Any]
) -> None:
    goal = N // steps_a_round if method != "shefl" else N
    mode = {"mode": "buffered", "goal": goal, "staleness": "constant"}
    in_rounds = outcome(run(method, 2, **more))
    assert in_rounds == outcome(run(method, 2 * steps_a_round, mode, **more))
    if method == "fedavg":  # a tick that waits for everybody is a round, too
        assert in_rounds[0] == outcome(run(method, 2, {"mode": "semi", "tick": 1.0}, **more))[0]


def test_one_client_at_a_time_is_sequential_training() -> None:
    one = {"concurrency": 1, "staleness": "hinge"}
    mixed = run("fedavg", 6, {"mode": "async", "alpha": 1.0, **one})
    buffered = run("fedavg", 6, {"mode": "buffered", "goal": 1, **one})
    assert mixed.summary["model_hash"] == buffered.summary["model_hash"]
    assert set(mixed.clients["staleness"].to_pylist()) == {0}


def test_a_model_mixed_with_weight_alpha_lies_between_its_versions() -> None:
    """One arrival of a client that started from the newest model: `(1 - alpha) w + alpha u`."""
    whole = run("fedavg", 1, {"mode": "async", "alpha": 1.0, "concurrency": 1}).models[0]
    start = run("fedavg", 0).models[0]
    mixed = run("fedavg", 1, {"mode": "async", "alpha": 0.25, "concurrency": 1}).models[0]
    for name, value in mixed.items():
        assert np.allclose(value, 0.75 * start[name] + 0.25 * whole[name], atol=1e-6)


MODES = {
    "buffered": {"mode": "buffered", "goal": 3, "concurrency": 6},
    "async": {"mode": "async", "concurrency": 6},
    "semi": {"mode": "semi", "tick": 0.05, "concurrency": 6},
}


@pytest.mark.parametrize(("mode", "method"), [("buffered", "fedavg"), ("async", "fed_ensemble"), ("semi", "fedavg")])
def test_a_run_that_stops_anywhere_and_goes_on_ends_in_the_same_bits(mode: str, method: str, tmp_path: Path) -> None:
    """FedAvg with the residuals of sparse uploads."""
    keys = {**SPREAD, **(TOPK if method == "fedavg" else {}), "replicates": 2, "checkpoint": {"every": 4}}
    keys["evaluate"] = {"every": 1}
    whole = run(method, 10, MODES[mode], **keys)

    def stop(snapshot: dict[str, Any]) -> None:
        if snapshot["round"] == 7:
            raise Enough("here")

    scenario = {**SMALL, **keys, "method": {"name": method}, "rounds": 10, "participation": MODES[mode]}
    with pytest.raises(Enough):
        run_scenario(read_scenario(scenario), tmp_path / "run", UserObjects(), stop)
    resumed = fedray.resume(tmp_path / "run")
    assert resumed.summary["model_hash"] == whole.summary["model_hash"]
    assert resumed.summary["state_hash"] == whole.summary["state_hash"]
    assert resumed.clients.drop(["tier"]).equals(whole.clients.drop(["tier"]))


@pytest.mark.parametrize("mode", MODES)
def test_neither_the_width_of_blocks_nor_what_is_trained_ahead_changes_a_bit(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**SPREAD, "lanes": "torch"}
    usual = outcome(run("fed_ensemble", 8, MODES[mode], **keys))
    monkeypatch.setitem(choice.MOST_LANES, "cpu", 2)
    monkeypatch.setattr("fedray.assembly.features.MOST_NUMBERS", 1)  # nothing is trained ahead
    assert outcome(run("fed_ensemble", 8, MODES[mode], **keys)) == usual


def test_weights_of_stale_uploads_are_those_of_the_formula() -> None:
    tau = np.arange(7)
    polynomial = AsyncRule("buffered", 1, staleness="polynomial", staleness_a=0.5).weigh(tau)
    hinge = AsyncRule("async", 1, alpha=0.5, staleness="hinge", staleness_a=2.0, staleness_b=4.0).weigh(tau)
    assert np.allclose(polynomial, 1 / np.sqrt(1 + tau))
    assert np.allclose(hinge, [0.5] * 5 + [0.5 / 3, 0.5 / 5])


def test_a_stale_upload_is_mixed_by_its_weight_with_the_model_that_it_did_not_see() -> None:
    both, two = {"mode": "async", "concurrency": 2}, {"clients": {"number": 2}}
    whole = {**both, "alpha": 1.0, "staleness": "constant"}
    start, first, second = (run("fedavg", n, whole, **two).models[0] for n in (0, 1, 2))
    half = {**both, "alpha": 0.5, "staleness": "polynomial", "staleness_a": 1.0}
    for name, value in run("fedavg", 2, half, **two).models[0].items():
        once = 0.5 * start[name] + 0.5 * first[name]
        assert np.allclose(value, 0.75 * once + 0.25 * second[name], atol=1e-6)  # 0.5 / (1 + 1)


def test_staleness_is_counted_in_steps_of_the_job_s_own_model() -> None:
    jobs = run("fed_ensemble", 15, MODES["buffered"], **SPREAD).clients.to_pylist()
    steps: dict[int, list[int]] = {}
    for job in jobs:
        steps.setdefault(job["model"], []).append(job["round"])
    for job in jobs:
        before = len({r for r in steps[job["model"]] if r < job["round"]})
        assert job["staleness"] == before - job["version"] >= 0
        assert job["arrival_seconds"] - job["start_seconds"] == pytest.approx(job["sim_seconds"])


def replay(rule: AsyncRule, seconds: FloatArray, seed: int, steps: int) -> list[tuple[float, list[int]]]:
    """The server steps of one model whose clients have no data to send: written for this test alone."""
    draws = iter(np.concatenate([rng.uniform(rng.keys(seed, "starts", block), 1024) for block in range(9)]))
    busy: list[tuple[float, int]] = []
    found: list[tuple[float, list[int]]] = []
    waiting: list[int] = []
    idle, now = list(range(len(seconds))), 0.0
    while len(found) < steps:
        while idle and len(busy) < rule.concurrency:
            place = int(next(draws) * len(idle))
            idle[place], idle[-1] = idle[-1], idle[place]
            client = idle.pop()
            heapq.heappush(busy, (now + seconds[client], client))
        now = busy[0][0]
        while busy and busy[0][0] == now:
            client = heapq.heappop(busy)[1]
            waiting.append(client)
            idle.append(client)
            if len(waiting) == rule.goal:
                found.append((now, waiting))
                waiting = []
    return found[:steps]


def timeline(rule: AsyncRule, seconds: FloatArray, seed: int = 0, **pace: Any) -> Timeline:
    """One model, and clients whose jobs take some seconds and send nothing."""
    n = len(seconds)
    speed = Pace(seconds, np.zeros(n), np.zeros(n, bool), np.ones(n, bool), **pace)
    return Timeline(rule, speed, 1, seed=seed, assign=lambda _turn: (np.arange(n), np.zeros(n, int)))


@pytest.mark.parametrize("seed", range(3))
def test_an_independent_simulator_of_the_queue_sees_the_same_arrivals(seed: int) -> None:
    seconds = np.random.default_rng(seed).integers(1, 9, 20).astype(float)  # whole seconds: many meet
    rule = AsyncRule("buffered", concurrency=7, goal=4)
    steps = timeline(rule, seconds, seed).take(300)  # of 1,200 random starts, more than are drawn at once
    clients = [steps.jobs.client[steps.jobs.step == t].tolist() for t in range(300)]
    assert list(zip(steps.time.tolist(), clients, strict=True)) == replay(rule, seconds, seed, 300)


def test_a_job_that_rounding_makes_a_little_longer_than_the_tick_arrives_with_it() -> None:
    line = timeline(AsyncRule("semi", concurrency=1, tick=0.3), np.array([3 * 0.1]))  # 0.30000000000000004
    assert line.take(3).time == pytest.approx([0.3, 0.6, 0.9])  # it never ended


@pytest.mark.parametrize("mode", ["buffered", "semi"])
def test_a_world_had_more_steps_than_were_asked_for_where_many_uploads_arrive_at_once(mode: Mode) -> None:
    """Runs with replicates ended with a ValueError of NumPy; what is taken piece by piece is what is taken at once."""
    seconds = np.random.default_rng(0).integers(1, 3, 20).astype(float)
    one, other = (timeline(AsyncRule(mode, concurrency=15, goal=2, tick=0.5), seconds, 1) for _ in range(2))
    whole, pieces = one.take(60), [other.take(steps) for steps in (1, 2, 7, 0, 50)]
    assert [len(steps.time) for steps in pieces] == [1, 2, 7, 0, 50]
    assert np.concatenate([steps.time for steps in pieces]).tolist() == whole.time.tolist()
    for column, parts in zip(whole.jobs, zip(*(steps.jobs for steps in pieces), strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), column)
    assert sorted(one.list_open()) == sorted(other.list_open())


def test_a_schedule_may_list_jobs_in_any_order() -> None:
    def all_models(models: int, _rows: str, first: int = 0) -> Any:
        plan = np.stack(np.divmod(np.arange(N * models), models))  # the rows: client, model
        plan = plan[:, np.argsort(plan[first], kind="stable")]
        return lambda _now, _drawn, _m, _state: (plan[0], plan[1])

    keys = {**SMALL, "method": {"models": 2}, "rounds": 8, "participation": MODES["buffered"]}
    by_client, by_model = (fedray.run(keys, schedule=partial(all_models, first=first)) for first in (0, 1))
    assert outcome(by_client) == outcome(by_model)


def test_every_client_meets_every_model_once_an_age() -> None:
    jobs = run("fed_ensemble", 40, MODES["async"], **SPREAD).clients
    for client in range(N):
        mine = [j for j in jobs.to_pylist() if j["client"] == client]
        models = [j["model"] for j in sorted(mine, key=lambda job: job["start_seconds"])]
        for age in range(len(models) // 5):
            assert sorted(models[5 * age : 5 * age + 5]) == list(range(5))


def test_a_client_that_dropped_out_was_past_the_deadline_and_its_download_counted() -> None:
    """In rounds it is `dropped`, and was never reached; both free their place at the deadline."""
    rule, status = AsyncRule("buffered", concurrency=2, goal=1, dropout=0.5, deadline=3.0), []
    for at in (5.0, 3.0):
        jobs = timeline(rule, np.array([1.0, at])).take(40).jobs
        status.append({(j, s) for j, c, s in zip(jobs.turn, jobs.client, jobs.status, strict=True) if c == 1})
    dropped = [{turn for turn, one in found if one == clock.DROPPED} for found in status]
    late = {turn for turn, one in status[0] if one == clock.PAST_DEADLINE}
    assert dropped[0] & dropped[1] and not late & dropped[1]


@pytest.mark.parametrize("mode", MODES)
def test_no_upload_is_used_that_is_staler_than_allowed(mode: str) -> None:
    """Its bytes were sent; a limit that no upload exceeds changes nothing."""
    free, wide, narrow = (
        run("fedavg", 30, {**MODES[mode], "concurrency": 8, "max_staleness": most}, **SPREAD) for most in (None, 999, 1)
    )
    assert outcome(free) == outcome(wide) != outcome(narrow)
    staleness = [job["staleness"] for job in free.clients.to_pylist() if job["status"] == "ok"]
    assert max(staleness) > 1
    for job in narrow.clients.to_pylist():
        assert (job["status"] == "ok" and job["staleness"] <= 1) or (job["status"] == "stale" and job["up_bytes"] > 0)
    assert "stale" in narrow.clients["status"].to_pylist()


def test_a_large_buffer_ended_the_run_because_many_jobs_were_lost_between_two_steps() -> None:
    """Some 900 of 1,000 jobs are lost, but an upload arrives after every tenth."""
    steps = timeline(AsyncRule("buffered", concurrency=2, goal=100, dropout=0.9), np.ones(2)).take(1)
    assert (steps.jobs.status == clock.OK).sum() == 100 and len(steps.jobs.status) > 500


def test_ticks_at_which_nobody_is_there_had_no_end() -> None:
    """Clients are there from second 1 to 5 of every 20, and the server looks at 10, 20, 30, ..."""
    wait = window_availability(np.arange(2), np.ones(2), np.full(2, 5.0), np.full(2, 20.0))

    def moment(client: int, now: float) -> float:
        return float(wait(np.zeros(1, int), np.array([client]), np.array([now]))[0])

    rule = AsyncRule("semi", concurrency=2, tick=10.0)
    with pytest.raises(FedrayError):
        timeline(rule, np.ones(2), wait=moment).take(1)
    assert timeline(replace(rule, tick=21.0), np.ones(2), wait=moment).take(1).time.tolist() == [42.0]


def test_a_job_has_the_links_of_its_start(tmp_path: Path) -> None:
    """From the fifth virtual second on uploads take a second more: 1 MB/s before, then as slow as that needs."""
    trace = tmp_path / "trace.csv"
    rows = [f"{client},{moment},{link}" for client in range(N) for moment, link in ((0, 1e12), (5, 2600.0))]
    trace.write_text("client,link_from,uplink\n" + "\n".join(rows))
    keys = {"clients": {"number": N, "trace": str(trace), "tiers": {"phones": {"seconds_per_step": 1.0}}}}
    jobs = run("fedavg", 12, MODES["buffered"], **keys).clients.to_pylist()
    before = {round(job["sim_seconds"], 3) for job in jobs if job["start_seconds"] < 5}
    after = {round(job["sim_seconds"], 3) for job in jobs if job["start_seconds"] >= 5}
    slower = round(jobs[0]["up_bytes"] / 2600.0, 3)
    assert len(before) == len(after) == 1 and after.pop() - before.pop() == pytest.approx(slower, abs=2e-3)


def test_a_client_may_be_in_one_buffer_twice_and_a_median_counts_both() -> None:
    tiers = {"slow": {"number": 1, "seconds_per_step": 1.0}, "fast": {"number": 1}}
    keys = {"clients": {"number": 2, "tiers": tiers}, "server": {"robust": "median"}}
    jobs = run("fedavg", 2, {"mode": "buffered", "goal": 3}, **keys).clients
    assert jobs["client"].to_pylist()[:3] == [1, 1, 1] and jobs["status"].to_pylist() == ["ok"] * 6


def test_evaluation_follows_the_virtual_clock_and_only_then_a_rule_is_asked(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"stop": {"metric": "nll", "patience": 1}, "checkpoint": {"every": 1, "keep": 99}}
    whole = run("fedavg", 30, MODES["buffered"], **SPREAD, **keys, evaluate={"every_seconds": 0.1})
    ticks = [int(at // 0.1) for at in whole.rounds["sim_seconds"].to_pylist()]
    assert len(set(ticks[:-1])) == len(ticks[:-1]) > 3  # the last row is there in any case
    measured = whole.rounds["round"].to_pylist()
    between = next(t for t in range(measured[1], measured[-1]) if t not in measured)
    assert fedray.resume(copy_run(whole, tmp_path / "left", between)).rounds["round"].to_pylist() == measured


def test_memory_does_not_grow_with_server_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that further server steps leave behind, after as many that fill what is kept."""
    monkeypatch.setattr("fedray.simulation.asynchronous.KEPT_TURNS", 8)
    more, _ = simulate(build_study(read_scenario({**SMALL, **CUBIC, **SPREAD, "participation": MODES["buffered"]})))
    more(60)
    sizes = []
    tracemalloc.start()
    for further in (20, 80):
        more(further)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] - sizes[0] < 60_000


@pytest.mark.slow  # Ray takes seconds to start
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("mode", MODES)
def test_two_actors_have_the_bits_of_one_process(mode: str) -> None:
    keys = {**SPREAD, **TOPK}
    inline = run("fed_ensemble", 8, MODES[mode], **keys)
    clients = {**SPREAD["clients"], "actors": 2}
    on_ray = run("fed_ensemble", 8, MODES[mode], **{**keys, "clients": clients, "runtime": "ray"})
    assert on_ray.summary["state_hash"] == inline.summary["state_hash"]


def phase_of(local: Local, *pieces: Piece) -> Phase:
    nothing: Any = None
    return Phase(1, nothing, local, nothing, nothing, pieces=pieces)


def test_jobs_before_the_first_sampled_version_share_no_block_with_those_behind_it() -> None:
    """Nor do jobs of several learning rates; where neither changes, all may."""
    version, windows = np.array([0, 3, 1, 2, 5]), Windows(lambda start, means: means[-1] - start, burn_in=2)
    sampled, falling = phase_of(Local(), windows), phase_of(Local(lr_decay=0.5, lr_decay_every=3), windows)
    assert group_versions(sampled, version).tolist() == [0, 1, 0, 1, 1]
    assert len(set(group_versions(falling, version).tolist())) == 3
    assert group_versions(phase_of(Local()), version).tolist() == [0] * 5
