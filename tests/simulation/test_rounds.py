"""The round loop asks the phase for whatever differs between methods; what rounds, servers and answers cost."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small import of_method, run_command, scenario, spell_out

import fedray
from fedray.assembly.study import build_study
from fedray.core.types import FloatArray, IntArray, Plan, State
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation import devices as clock
from fedray.simulation import rounds
from fedray.simulation.devices import CountingRule
from fedray.simulation.study import cost_answer


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
    half = replace(study, rule=CountingRule(dropout=0.5), method=replace(study.method, phase=phase))
    result = rounds.run_round(half, Inline(half), replace(rounds.begin_progress(half), round=3))
    counted = result.table.status == clock.OK
    assert 0 < counted.sum() < len(counted)
    np.testing.assert_array_equal(result.table.up_bytes, np.where(counted, result.plan.client + 30, 0))
    np.testing.assert_array_equal(result.table.down_bytes, np.where(counted, result.plan.client + 100, 0))
    ((plan, loss),) = kept
    np.testing.assert_array_equal(plan.client, result.plan.client[counted])
    np.testing.assert_array_equal(loss, result.table.loss[counted])
    plain = rounds.size_jobs(study, result.plan)
    np.testing.assert_array_equal(result.table.samples, plain.size)


def test_a_model_with_batch_normalization_goes_down_with_its_counters_as_it_comes_up() -> None:
    study = build_study(read_scenario(scenario({"method": {"name": "fedavg"}, "model": {"norm": "batch"}})))
    layout = study.net.layout
    up, down = rounds.job_traffic(study, study.method.phase.schedule(0, None))
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


# Virtual time of a round is that of all passes that the method makes


N, BATCH, CLASSES = 4, 8, 10  # of `small.scenario`


def time_round(method: dict[str, Any], *more: dict[str, Any], **tier: float) -> tuple[float, Any]:
    """Virtual seconds of one round in which links cost nothing, and its rows of clients."""
    free = {"seconds_per_step": 0.0, "uplink": 1e30, "downlink": 1e30} | tier
    device = {"clients": {"number": N, "tiers": {"all": free}}, "rounds": 1, "data": {"partition": {"name": "iid"}}}
    keys = scenario(device, {"local": {"epochs": 2, "batch_size": BATCH}}, *more, {"method": method})
    run = fedray.run(spell_out(keys))
    return run.summary["totals"]["sim_seconds"], run.clients.to_pandas()


@pytest.mark.parametrize(
    ("method", "work"),
    [
        ({"name": "fedavg"}, 1.0),
        ({"name": "fedprox"}, 1.0),
        ({"name": "ditto"}, 2.0),  # a second training
        ({"name": "fedsam"}, 2.0),  # a second gradient
        ({"name": "moon"}, 1 + 2 / 3),  # two forward passes of other models
        ({"name": "ifca", "models": 3}, 1 + 3 / 3 / 2),  # K forward passes over the rows, beside two epochs
        ({"name": "qffl"}, 1 + 1 / 3 / 2),
        ({"name": "fedem", "models": 3}, 3 * (1 + 1 / 3 / 2)),  # K trainings, and the E step of each
        ({"name": "fedfisher", "fisher": "empirical"}, 1 + 1 / 2),  # the gradient of each row
        ({"name": "fedfisher"}, 1 + (1 / 3 + CLASSES * 2 / 3) / 2),  # of each row and class
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_round_takes_the_time_of_all_passes_over_samples(method: dict[str, Any], work: float) -> None:
    took, jobs = time_round(method, seconds_per_sample=1.0)
    assert took == pytest.approx(work * 2 * jobs["samples"].max(), rel=1e-12)
    assert jobs.loc[jobs["samples"] == 60, "steps"].isin([16, 32]).all()  # optimizer steps alone


def test_steps_without_samples_take_time_too() -> None:
    """DSVGD moves a client's own particles `factor_steps` times after their training."""
    local = {"local": {"epochs": None, "steps": 5, "optimizer": "sgd"}, "participation": {"per_round": 1}}
    dsvgd = {"name": "dsvgd", "models": 3}
    one, many = (time_round({**dsvgd, "factor_steps": n}, local, seconds_per_step=1.0)[0] for n in (0, 7))
    ifca = time_round({"name": "ifca", "models": 3}, seconds_per_step=1.0)[0]  # K losses of 60 rows
    assert (one, many, ifca) == (3 * 5, 3 * (5 + 7), 2 * 8 + 3 * 60 / 3 / BATCH)


@pytest.mark.parametrize(
    ("method", "steps", "samples"),
    [  # of the server, which holds 48 of 240 rows; a forward pass is a third of a step's work
        ({"name": "fedbe", "distil_epochs": 3, "distil_batch": 10, "samples": 2}, 3 * 5, 3 * 48 + (1 + 2 + N) * 48 / 3),
        ({"name": "feddf", "distil_steps": 20, "validation": 0, "distil_batch": 10}, 20, 20 * 10 + N * 48 / 3),
        ({"name": "beta_predbayes", "samples": 2, "cycles": 1, "beta_epochs": 2, "beta_batch": 10}, 2 * 5, 2 * 48),
        ({"name": "fedfisher", "solver": "descent", "validation": 0.2, "solver_steps": 200}, 200, 3 * 48 / 3),
        ({"name": "stacking", "meta_data": "pooled", "meta_rounds": 1, "bases": [{"name": "linear"}]}, 2 * 30, 2 * 240),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_the_server_takes_its_time_for_its_own_steps_and_no_client_does(
    method: dict[str, Any], steps: int, samples: float
) -> None:
    """A fit at the server was charged to client 0, and distillation was free."""
    own = {"server_data": 0.2} if method["name"] not in ("fedfisher", "stacking") else {}
    for key, expected in (("seconds_per_step", steps), ("seconds_per_sample", samples)):
        took = time_round({**own, **method}, {"server": {key: 1.0}})[0]
        assert took == pytest.approx(expected, rel=1e-12), key
    assert time_round({**own, **method})[0] == pytest.approx(0, abs=1e-9)


def test_without_rounds_jobs_take_the_time_that_they_take_in_rounds() -> None:
    free = {"participation": {"mode": "async", "concurrency": 1}, "evaluate": {"every": 1}}
    for name in ("fedavg", "fedsam"):
        rounds = time_round({"name": name}, seconds_per_sample=1.0)[1]
        flights = time_round({"name": name}, free, seconds_per_sample=1.0)[1]
        assert np.isin(flights["sim_seconds"].round(6), rounds["sim_seconds"].round(6)).all(), name


# What it costs to answer: models that are handed over once, and forward passes of a sample


CLIENTS = 6


@pytest.mark.parametrize(
    ("method", "models"),
    [
        ("fedavg", 1),
        ("fed_ensemble", 5),
        ("fedag", CLIENTS),
        ("pvi", 10),
        ("local_only", CLIENTS),
        ("fedbe", 1 + 10 + CLIENTS),
    ],
)
def test_a_method_answers_with_the_models_that_its_summary_and_check_count(method: str, models: int) -> None:
    """FedAG's sample is its clients' uploads, FedBE's teachers are its mean, ten draws and the uploads."""
    for net in ({}, {"name": "linear", "hidden": None}):  # FedAG's closed form is for real targets
        keys = of_method(method, {"model": net})
        done = fedray.run(keys, rounds=1, report=False)
        study = build_study(read_scenario(keys, explicit=False))
        before, found = cost_answer(study), done.summary["answer"]
        assert found["models"] == found["passes"] == models == before.models
        assert found["bytes"] == before.bytes == models * study.net.layout.d * 4


def test_learners_and_parts_of_a_stack_count_too() -> None:
    stack, trees = (cost_answer(build_study(read_scenario(of_method(name)))) for name in ("stacking", "adaboost_f"))
    assert stack.passes == stack.models == CLIENTS + 1  # of the folds of one base, and the meta model
    assert (trees.models, trees.passes) == (1, 0)


def test_a_comparison_at_equal_seconds_says_what_they_leave_out() -> None:
    runs = [fedray.run(of_method(name), rounds=2, report=False) for name in ("fed_ensemble", "fedbe")]
    notes: Any = fedray.compare(runs, names=["a", "b"], at_equal="seconds").notes
    assert any("leave out what it costs to answer (a: 12.2 kB of models, 5 passes; b: " in note for note in notes)
    assert any(note.endswith("and steps of the server (b).") for note in notes)
    assert not any("leave out" in note for note in fedray.compare(runs, names=["a", "b"], at_equal="bytes").notes)
    assert "5 models, 12.2 kB to hand over once" in run_command("check", runs[0].path / "scenario.yaml").out
