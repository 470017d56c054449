"""The round loop asks the phase for whatever differs between methods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.assembly.study import build_study
from fedray.core.types import FloatArray, IntArray, Plan, State
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation import devices as clock
from fedray.simulation import rounds
from fedray.simulation.devices import CountingRule


def test_a_phase_sizes_its_jobs_counts_their_bytes_and_remembers_those_that_count() -> None:
    """Bytes come from `traffic`, samples from `sizes`, and `remember` gets the jobs that counted, with their losses."""
    study = build_study(read_scenario(scenario({"method": {"name": "fedavg"}})))
    kept: list[tuple[Plan, FloatArray]] = []

    def sizes(plan: Plan) -> IntArray:
        return study.shards.sizes(plan.world, plan.client)

    def traffic(t: int, plan: Plan) -> tuple[IntArray, IntArray]:
        return plan.client + 10 * t, 100 + plan.client

    def remember(t: int, state: State, plan: Plan, loss: FloatArray) -> State:
        assert t == 3
        kept.append((plan, loss))
        return state

    phase = replace(study.method.phase, sizes=sizes, traffic=traffic, remember=remember)
    half = replace(study, rule=CountingRule(dropout=0.5))
    result = rounds.run_round(half, Inline(half), phase, replace(rounds.begin_progress(half, phase), round=3))
    counted = result.table.status == clock.OK
    assert 0 < counted.sum() < len(counted)
    np.testing.assert_array_equal(result.table.up_bytes, np.where(counted, result.plan.client + 30, 0))
    np.testing.assert_array_equal(result.table.down_bytes, np.where(counted, result.plan.client + 100, 0))
    ((plan, loss),) = kept
    np.testing.assert_array_equal(plan.client, result.plan.client[counted])
    np.testing.assert_array_equal(loss, result.table.loss[counted])
    plain = rounds.size_jobs(study, study.method.phase, result.plan)
    np.testing.assert_array_equal(result.table.samples, plain.size)


def test_late_clients_have_downloaded_and_their_uploads_do_not_count() -> None:
    """The server tells them to stop (README): it received nothing; clients that drop out were never reached."""
    study = build_study(read_scenario(scenario({"method": {"name": "fedavg"}})))
    late, absent = (
        replace(study, rule=rule) for rule in (CountingRule(first=(2,)), CountingRule(dropout=0.5, first=(6,)))
    )
    each = 4 * study.net.layout.d
    for one, status in ((late, clock.LATE), (absent, clock.DROPPED)):
        phase = one.method.phase
        table = rounds.run_round(one, Inline(one), phase, rounds.begin_progress(one, phase)).table
        these, counted = table.status == status, table.status == clock.OK
        assert these.any() and counted.any() and (these | counted).all()
        assert set(table.up_bytes[counted]) == set(table.down_bytes[counted]) == {each}
        assert not table.up_bytes[these].any()
        assert set(table.down_bytes[these]) == {each if status == clock.LATE else 0}


def test_a_model_with_batch_normalization_goes_down_with_its_counters_as_it_comes_up() -> None:
    study = build_study(read_scenario(scenario({"method": {"name": "fedavg"}, "model": {"norm": "batch"}})))
    phase, layout = study.method.phase, study.net.layout
    up, down = rounds.job_traffic(study, phase, phase.schedule(0, None))
    assert len(layout.counters) == 1 and up.tolist() == down.tolist()
    assert set(down) == {4 * layout.d + 8}


@pytest.mark.parametrize("mode", ["sync", "buffered"])
def test_each_pass_of_ditto_takes_the_virtual_time_of_its_own_batches(mode: str) -> None:
    """One batch of 16 of 20 rows, twice: 32 samples; the second pass does not go on with the 4 rows that are left."""
    one_batch = {"epochs": None, "steps": 1, "batch_size": 16}
    tier = {"seconds_per_step": 0.0, "seconds_per_sample": 1.0, "uplink": 1e15, "downlink": 1e15}
    changes = {"rounds": 1, "local": one_batch, "clients": {"number": 2, "tiers": {"c": tier}}}
    sizes = {"data": {"limit": 240, "partition": {"name": "sizes", "sizes": [20, 220], "alpha": None}}}
    participation = {"participation": {"mode": "buffered", "goal": 2} if mode == "buffered" else {}}
    for method, seconds in (("fedavg", 16.0), ("ditto", 32.0)):
        run = fedray.run(scenario(changes, sizes, participation, {"method": {"name": method}}))
        assert run.clients["sim_seconds"].to_pylist() == pytest.approx([seconds, seconds])


def test_stragglers_make_a_random_part_of_their_epochs_and_take_as_long() -> None:
    """Half of four participants of each round, with `partial` (FedProx, section 5.2); the others all five epochs."""
    some = {"participation": {"per_round": 4, "partial": 0.5}, "local": {"epochs": 5}, "rounds": 8}
    tier = {"clients": {"tiers": {"all": {"seconds_per_step": 1.0}}}}
    run = fedray.run(scenario({"method": {"name": "fedprox"}}, some, tier))
    rows = run.clients.to_pandas()
    batches = -(-rows["samples"] // 8)
    epochs = rows["steps"] / batches
    assert set(epochs) <= {1.0, 2.0, 3.0, 4.0, 5.0} and len(set(epochs)) > 3
    assert (epochs.eq(5).groupby(rows["round"]).sum() >= 2).all()
    assert epochs.lt(5).sum() > 8  # of 16 stragglers one in five makes all epochs
    transfer = rows["sim_seconds"] - rows["steps"]
    assert np.ptp(transfer) < 1e-9


def test_a_tier_trains_for_its_own_epochs_or_steps() -> None:
    """As if all clients had this number, bit for bit; the other tier is not changed."""
    keys = scenario({"method": {"name": "fednova"}})
    for name in ("epochs", "steps"):
        own = {"clients": {"tiers": {"one": {name: 3}}}, "local": {"epochs": None, name: 7}}
        whole = fedray.run(scenario(keys, {"local": {"epochs": None, name: 3}}))
        assert fedray.run(scenario(keys, own)).summary["model_hash"] == whole.summary["model_hash"]
    two = {"one": {"number": 3, "epochs": 3}, "two": {"number": 3}}
    rows = fedray.run(scenario(keys, {"clients": {"tiers": two}})).clients.to_pandas()
    assert (rows["steps"] == -(-rows["samples"] // 8) * np.where(rows["tier"] == "one", 3, 1)).all()
