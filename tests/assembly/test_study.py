"""Studies: worlds, files, memory, devices, and what clients tell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray import cloudpickle
from safetensors.torch import load_file, save_file
from small import of_method, run_command, run_quietly, scenario

import fedray
from fedray.assembly.clients import expect_seconds, make_participation
from fedray.assembly.features import read_failures
from fedray.assembly.methods import make_local
from fedray.assembly.models import estimate_rows
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.components.schedule import WorldRound
from fedray.core import sums as native
from fedray.core.errors import BadInput
from fedray.core.types import Clients, FloatArray, Plan, Tier
from fedray.data.deal import PartitionSettings, build_shards
from fedray.data.shards import StoredShards
from fedray.data.store import load_data
from fedray.data.types import Dataset, Split, regression
from fedray.scenario.loader import read_scenario, tier_table
from fedray.simulation.devices import CountingRule, JobCosts, make_profile, time_round
from fedray.simulation.rounds import draw_first_state
from fedray.training.block import count_steps, samples_seen

FOLDS = 3


def make_folds() -> Dataset:
    """60 rows of a noisy line, and folds that all hold the same rows out."""
    x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
    y = x + np.sin(7 * x)
    rows = Split(x, y)
    same = (np.arange(0, 50), np.arange(50, 60))
    line = regression("line", rows, rows.take(np.arange(0)))
    shift, scale = (np.repeat(value, FOLDS, 0) for value in (line.shift, line.scale))
    y_shift, y_scale = (np.repeat(value, FOLDS, 0) for value in (line.y_shift, line.y_scale))
    return line._replace(folds=(same,) * FOLDS, shift=shift, scale=scale, y_shift=y_shift, y_scale=y_scale)


def run(fold: Any, **keys: Any) -> fedray.Run:
    scenario = {
        "rounds": 2, "runtime": "inline", "report": False, "method": {"name": "fed_ensemble", "models": 2},
        "clients": {"number": 4}, "local": {"epochs": 2, "lr": 0.05, "batch_size": 4}, "data": {"fold": fold}, **keys,
    }  # fmt: skip
    return fedray.run(scenario, data=make_folds())


def test_folds_of_equal_rows_are_trained_from_different_first_models_and_batches() -> None:
    scenario = read_scenario({"data": {"fold": "all"}, "replicates": 2, "clients": {"number": 4}})
    study = build_study(scenario, UserObjects(data=make_folds()))
    assert [study.place(world) for world in range(study.worlds)] == [(r, f) for r in range(2) for f in range(FOLDS)]
    first = draw_first_state(study).models
    assert len(torch.unique(first, dim=0)) == len(first) == 2 * FOLDS * 5
    assert len(set(study.seeds.tolist())) == 2 * FOLDS
    plan = study.method.phase.schedule(0, None)
    trained = {tuple(plan.model[plan.world == world].tolist()) for world in range(study.worlds)}
    assert len(trained) > 2, "all folds have one schedule"
    scores = [row["rmse"] for row in run("all").rounds.to_pylist() if row["round"] == 2]
    assert len(set(scores)) == FOLDS


def test_a_fold_alone_is_that_fold_among_all_and_fold_0_has_the_seed_of_its_replicate() -> None:
    together = run("all", seed=5)
    for fold in range(FOLDS):
        alone = run(fold, seed=5)
        among = [row["rmse"] for row in together.rounds.to_pylist() if row["fold"] == fold]
        assert [row["rmse"] for row in alone.rounds.to_pylist()] == among
        assert alone.summary["seed"] == together.summary["seed"] == 5
    study = build_study(read_scenario({"seed": 5, "replicates": 3, "clients": {"number": 4}}))
    assert study.seeds.tolist() == [5, 6, 7]


# -- What another process gets in place of the files that this one has read

KEYS: dict[str, Any] = {
    "data": {"name": "digits", "limit": 60, "partition": "iid"},
    "method": {"name": "random_walk", "models": 2},
    "clients": {"number": 4, "trace": "trace.csv"},
    "graph": {"kind": "edges", "edges": "edges.csv", "failures": "failures.csv"},
}


def test_a_process_without_the_files_of_a_scenario_builds_the_same_study(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("edges.csv").write_text("node,neighbour\n0,1\n1,2\n2,3\n")
    Path("failures.csv").write_text("first,last,node\n1,1,2\n")
    Path("trace.csv").write_text("client,seconds_per_step\n0,1\n1,2\n2,3\n3,4\n")
    scenario = read_scenario(KEYS)
    study = build_study(scenario, UserObjects())
    sent = cloudpickle.loads(cloudpickle.dumps(UserObjects().shipped(study)))  # type: ignore[no-untyped-call]  # cloudpickle has no types
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    there = build_study(scenario, sent)
    here_walk, there_walk = study.method.phase.walk, there.method.phase.walk
    assert here_walk is not None and there_walk is not None
    for t in range(8):
        np.testing.assert_array_equal(here_walk.at(t), there_walk.at(t))
        np.testing.assert_array_equal(here_walk.down(t), there_walk.down(t))
    client = np.arange(4)
    np.testing.assert_array_equal(study.shards.sizes(0 * client, client), there.shards.sizes(0 * client, client))


# -- Memory of rows: what is estimated for copies and for shifted rows is what their arrays take

SHIFTS: dict[str, dict[str, Any]] = {
    "turned copies": {"rotation": 4, "copies": True},
    "copies with other labels": {"permute_labels": 3, "copies": True},
    "turned rows": {"rotation": 4},
    "other labels": {"permute_labels": 3},
    "noisy rows": {"feature_noise": 0.5},
    "plain rows": {},
}


@pytest.mark.parametrize("options", SHIFTS.values(), ids=SHIFTS)
def test_the_estimate_is_what_the_arrays_take(options: dict[str, Any]) -> None:
    data, scenario = load_data("digits"), read_scenario({"data": {"partition": {"name": "iid", **options}}})
    shards = build_shards(data, PartitionSettings("iid", dict(options), 8), [0, 1])
    assert isinstance(shards, StoredShards)
    arrays = [shards.data.train.x, shards.data.test.x, shards.data.train.y, shards.data.test.y]
    made = sum(array.nbytes for array in arrays) if options.get("copies") else 0
    known = {shards.data.train.x.__array_interface__["data"][0], shards.data.train.y.__array_interface__["data"][0]}
    made += sum(one.numel() * one.element_size() for one in (shards._x, shards._y) if one.data_ptr() not in known)
    tables, *rest = estimate_rows(scenario, data, worlds=2)
    assert sum(need.bytes for need in rest) == made
    assert tables.bytes == 48.0 * 2 * len(shards.data.train.y)
    assert estimate_rows(scenario, shards.data, worlds=2, copied=True) == [tables, *rest]


# -- Edge files and failure files: what is no node's id is refused


def test_an_empty_neighbour_is_the_failure_of_a_whole_node(tmp_path: Path) -> None:
    path = tmp_path / "failures.csv"
    path.write_text("first,last,node,neighbour\n0,3,1,2\n4,5,0,\n")
    assert read_failures(path, 3).tolist() == [[0, 3, 1, 2], [4, 5, 0, -1]]


# -- Which engine computes the students of a server, and that a run keeps it

TAUGHT = {
    "rounds": 2, "runtime": "inline", "report": False, "evaluate": {"every": 2}, "clients": {"number": 4},
    "data": {"name": "digits", "limit": 200}, "model": {"name": "mlp", "hidden": [8]}, "local": {"lr": 0.05},
}  # fmt: skip
METHODS = {
    "fedbe": {"name": "fedbe", "samples": 2, "distil_epochs": 2, "server_data": 0.2},
    "feddf": {"name": "feddf", "distil_steps": 30, "server_data": 0.2, "validation": 0.0},
}
needs_kernels = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")


@needs_kernels
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_compiled_students_learn_what_those_of_torch_learn(method: dict[str, object]) -> None:
    rows = []
    for lanes in ("auto", "torch"):
        rows.append(fedray.run({**TAUGHT, "method": method, "lanes": lanes}).progress.state.models)
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-4)
    assert not torch.equal(rows[0], rows[1])
    run = fedray.run({**TAUGHT, "method": method}, loss=lambda o, t, c: c.objective(o, t) / 2)  # by torch at clients
    assert json.loads((run.path / "identity.json").read_text())["engine"]["lanes"] == "compiled"


# -- Who takes part: the scenario's participation, counted over many rounds

ROUNDS = 2000
TIERS = {"hpc": {"number": 30}, "lpc": {"number": 70}}


def count_shares(keys: dict[str, Any], rounds: int = ROUNDS) -> FloatArray:
    """The share of the rounds that each client of a scenario is invited to, `[N]`."""
    scenario = read_scenario({"clients": {"number": 100}, **keys})
    people = make_participation(scenario, UserObjects(), Clients(tier_table(scenario, 100)))
    invited = np.concatenate([people(WorldRound(0, t, 0), None).client for t in range(rounds)])
    share: FloatArray = np.bincount(invited, minlength=100) / rounds
    return share


STACK = {"method": {"name": "stacking", "bases": [{"name": "mlp", "models": 2}, {"name": "linear", "models": 3}]}}


def test_strata_of_a_stack_were_drawn_anew_before_a_base_had_met_its_models() -> None:
    """Bases of 2 and 3 models: a stratum is one set of clients for 6 rounds, and all odds are equal all the same."""
    rows = {"participation": {"per_round": 30}, "schedule": {"rows": "stratum"}}
    for keys, age in (({**STACK, **rows}, 6), ({"method": {"models": 5}, **rows}, 5)):
        scenario = read_scenario({"clients": {"number": 100}, **keys})
        people = make_participation(scenario, UserObjects(), Clients(tier_table(scenario, 100)))
        for first in range(0, 10 * age, age):
            drawn = [people(WorldRound(0, t, 0), None).client for t in range(first, first + age)]
            met = [set(column) for column in np.stack(drawn).T.tolist()]
            assert sum(map(len, met)) == len(set.union(*met)), "a client stands in two strata of one age"
    assert abs(count_shares({**STACK, **rows}) - 0.3).max() < 6 * np.sqrt(0.3 * 0.7 / ROUNDS)


@pytest.mark.parametrize("rows", ["client", "slot", "stratum"])
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
def test_participation_is_unequal_for_ever(participation: dict[str, Any], expected: float, rows: str) -> None:
    shares = count_shares({"participation": participation, "schedule": {"rows": rows}})
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
    scenario = read_scenario({"clients": {"number": 6}, "participation": {"per_round": 3}})
    assert scenario.schedule.rows == "slot"
    people, met = make_participation(scenario, UserObjects(), Clients((Tier("all", 6),))), np.zeros((6, 6), dtype=int)
    for t in range(600):
        client = people(WorldRound(0, t, 0), None).client
        met[np.ix_(client, client)] += 1
    pairs = met[np.triu_indices(6, 1)]
    assert np.abs(pairs - 120).max() < 5 * np.sqrt(600 * 0.2 * 0.8)


def test_the_seconds_that_a_selection_expects_are_those_of_the_clock() -> None:
    """To the last bit, for a dense model: there were two formulas."""
    clients, size, zero = Clients((Tier("phone", 40, spread=0.5, latency=0.3),)), np.arange(40) * 3, np.zeros(1, int)
    devices, local = make_profile("phones", clients, seed=0), make_local(read_scenario({"local": {"epochs": 2}}))
    steps, sent = count_steps(size, local), np.full(40, 4 * 650)
    costs = JobCosts(steps, sent, sent, samples_seen(size, steps, local))
    plan = Plan(np.arange(40), np.zeros(40, int), np.zeros(40, int))
    timing = time_round(devices, CountingRule(), plan, costs, seeds=zero + 7, t=0, now=np.zeros(1))
    expected = expect_seconds(devices, lambda _world: size, local, (7,), 650)(0)
    assert expected.tolist() == timing.job.tolist()


# Models that start from given weights: those of a run, or of a file


STARTED = ("fed_ensemble", "ditto", "fedag", "dsvgd", "local_only", "random_walk", "centralized", "heterofl")
NOTHING: dict[str, Any] = {"rounds": 0, "report": False}


def run_from(method: str, *changes: dict[str, Any], **options: Any) -> fedray.Run:
    return run_quietly(of_method(method, {"rounds": 1, "report": False}, *changes), None, **options)


@pytest.mark.parametrize("method", STARTED)
def test_a_run_starts_where_another_one_ended(method: str, tmp_path: Path) -> None:
    """Every member of every replicate, whatever the seed: to the bit."""
    one = run_from(method, {"replicates": 2}, out=tmp_path / "one")
    more = {"replicates": 2, "seed": 7, "model": {"weights": str(tmp_path / "one")}}
    other = run_from(method, NOTHING, more)
    assert torch.equal(other.progress.state.models, one.progress.state.models)
    assert not torch.equal(
        run_from(method, NOTHING, {"replicates": 2}).progress.state.models, one.progress.state.models
    )
    moved = run_from(method, more)
    assert not torch.equal(moved.progress.state.models, one.progress.state.models)


@pytest.fixture
def member(tmp_path: Path) -> Path:
    """The third member of an ensemble, as `fedray export` writes it."""
    run_from("fed_ensemble", out=tmp_path / "run")
    assert run_command("export", tmp_path / "run").status == 0
    return tmp_path / "run" / "export" / "replicate-0-fold-0-model-2.safetensors"


def test_all_members_start_from_a_file_and_a_run_knows_which_numbers_it_held(member: Path, tmp_path: Path) -> None:
    keys = scenario({"rounds": 2, "checkpoint": {"every": 1}, "report": False, "model": {"weights": str(member)}})
    wanted = load_file(member)
    for model in fedray.run({**keys, "rounds": 0}).models:
        assert all(torch.equal(model[name], value) for name, value in wanted.items())
    done = fedray.run(keys, out=tmp_path / "done")
    (done.path / "summary.json").unlink()
    assert fedray.resume(done.path).summary["model_hash"] == done.summary["model_hash"]
    save_file({name: value + 1 for name, value in wanted.items()}, member)
    with pytest.raises(BadInput, match="first weights"):
        fedray.resume(done.path)
