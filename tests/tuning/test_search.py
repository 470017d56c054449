"""Sweeps that run: what is shared, what is stopped, what is left behind, and what a resumed sweep is."""

import errno
import itertools
import json
import math
import signal
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import optuna
import pyarrow.parquet as pq
import pytest
from reports import remove_scripts
from small import run_command
from sweeps import BASE, LR, list_outcomes, rows, run, sweep

import fedray
from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput, FedrayError
from fedray.files.run_files import find_checkpoints
from fedray.storage import checkpoint
from fedray.tuning import optuna_study, space
from fedray.tuning import trial as training
from fedray.tuning.space import is_active
from fedray.tuning.sweep import read_sweep
from fedray.tuning.trial import SearchState
from fedray.tuning.tune import find_winners

GAMMA = {"type": "float", "low": 0.01, "high": 10.0, "log": True}


def opened(out: Path, name: str = "sweep") -> optuna.Study:
    return optuna.load_study(study_name=name, storage=optuna_study.open_storage(str(out / "study.journal")))


def train_again(found: Any, out: Path, row: dict[str, Any], location: Any = None) -> training.Outcome:
    """What a worker does that was killed before the study heard of the end of its trial."""
    given, folder = read_sweep(found), out / row["run_directory"]
    task = training.TrialTask(row["number"], given.scenario(row["params"]), folder, given.objectives, UserObjects())
    return training.train_job(replace(task, location=location))


def test_many_gammas_cost_one_training(tmp_path: Path) -> None:
    tiers: dict[str, Any] = {"evaluate": {"by_tier": True}, "clients": {"tiers": {"a": {"number": 4}, "b": {}}}}
    names = ["personal_accuracy", "tier_b_nll"]
    found = sweep({"predict.gamma": GAMMA}, objectives=names, sampler="random", trials=12, overrides=tiers)
    summary, trials = run(found, tmp_path / "s")
    assert (summary["trials"], summary["trainings"], summary["looked_up"]) == (12, 1, 11)
    assert len(list((tmp_path / "s" / "trials").iterdir())) == 1
    assert summary["seconds_saved"] == pytest.approx(11 * summary["seconds_trained"])
    assert len({row["values"]["personal_accuracy"] for row in trials}) > 1
    gamma, values = trials[-1]["params"]["predict.gamma"], trials[-1]["values"]  # looked up
    alone = fedray.run(BASE, out=tmp_path / "alone", predict__gamma=gamma, data__hold_out=0.2, **tiers)
    assert values == pytest.approx({name: alone.metrics[f"hold_out_{name}"] for name in names}, rel=1e-11)
    assert json.loads((tmp_path / "s" / "summary.json").read_text()) == summary
    assert summary["trainings"] == sum(row["how"] == "trained" for row in trials)
    assert list(trials[0])[:5] == ["number", "state", "values", "params", "run_directory"]


def test_a_training_that_was_made_longer_by_hand_is_not_looked_up(tmp_path: Path) -> None:
    found = sweep({"predict.gamma": GAMMA}, objectives=["personal_accuracy"], sampler="random")
    run(found, tmp_path / "s", trials=2)
    fedray.resume(tmp_path / "s" / "trials" / "00000", rounds=9)
    _, again = run(found, tmp_path / "s", resume=True, trials=4)
    _, undisturbed = run(found, tmp_path / "whole", trials=4)
    assert [row["values"] for row in again] == [row["values"] for row in undisturbed]


def test_every_alpha_and_score_of_conformal_sets_is_answered_by_one_training(tmp_path: Path) -> None:
    space = {"predict.conformal.alpha": [0.3, 0.5], "predict.conformal.score": ["lac", "aps"]}
    summary, trials = run(sweep(space, objectives=["conformal_size"], sampler="grid"), tmp_path / "s")
    assert (summary["trials"], summary["trainings"], summary["looked_up"]) == (4, 1, 3)
    (size,) = (row["values"]["conformal_size"] for row in trials if [*row["params"].values()] == [0.5, "aps"])
    alone = fedray.run(BASE, data__hold_out=0.2, predict__conformal={"alpha": 0.5, "score": "aps"})
    assert size == pytest.approx(alone.metrics["hold_out_conformal_size"], rel=1e-11)
    _, trials = run(
        sweep({**space, "predict.conformal.alpha": [0.3, 0.1]}, objectives=["conformal_size"]), tmp_path / "few"
    )
    assert {row["params"]["predict.conformal.alpha"] for row in trials if row["state"] == "complete"} == {0.3}


@pytest.mark.slow
def test_trials_that_wait_for_a_training_leave_no_core_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gammas of one training stand beside each other in a grid: the next training starts all the same."""
    jobs: dict[Future[Any], training.TrialTask] = {}
    busy: list[int] = []

    def submit(job: training.TrialTask) -> Future[Any]:
        future: Future[Any] = Future()
        jobs[future] = job
        return future

    def wait(flying: Any, **_: Any) -> tuple[set[Future[Any]], None]:
        busy.append(len(flying))
        first = min(flying, key=lambda future: jobs[future].trial)
        first.set_result(training.train_job(jobs[first]))
        return {first}, None

    monkeypatch.setattr("fedray.tuning.trial.make_workers", lambda *_, **__: nullcontext(submit))
    monkeypatch.setattr(training, "wait", wait)
    space = {"local.lr": [0.1, 0.2, 0.3, 0.4], "predict.gamma": [0.1, 1.0, 10.0]}
    found = sweep(space, objectives=["personal_accuracy"], sampler="grid", trials=None)
    summary, at_once = run({**found, "jobs": 2}, tmp_path / "two")
    assert (summary["trainings"], summary["looked_up"]) == (4, 8) and busy == [2, 2, 2, 1]
    monkeypatch.undo()
    assert list_outcomes(at_once) == list_outcomes(run(found, tmp_path / "one")[1])


def test_a_trial_that_stops_ends_at_the_round_at_which_a_run_of_its_own_ends(tmp_path: Path) -> None:
    rule = {"rounds": 14, "stop": {"metric": "hold_out_accuracy", "patience": 2}}
    found = sweep({"local.lr": [0.03, 0.1]}, sampler="grid", trials=None, overrides=rule)
    _, trials = run(found, tmp_path / "s", report=False)
    for row in trials:
        keys = {**rule, **row["params"], "data.hold_out": 0.2}
        alone = fedray.run(BASE, report=False, **{key.replace(".", "__"): value for key, value in keys.items()})
        assert row["rounds"] == alone.summary["rounds"]
        assert row["values"]["accuracy"] == pytest.approx(alone.metrics["hold_out_accuracy"], rel=1e-11)
    with pytest.raises(BadInput, match="hold_out_accuracy"):  # trials have no scores of test samples
        fedray.compare([tmp_path / "s" / row["run_directory"] for row in trials])


TPE, NSGA2 = {"name": "tpe", "startup": 2, "seed": 3}, {"name": "nsga2", "population": 2}


@pytest.mark.parametrize(
    ("moment", "sampler"),
    [
        ("in a training", TPE),
        pytest.param("before the tell", NSGA2, marks=pytest.mark.slow),
        pytest.param("between two parameters", TPE, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_sweep_ends_as_if_nothing_had_happened(
    moment: str, sampler: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sweep({"local.lr": LR, "local.epochs": {"type": "int", "low": 1, "high": 3}}, sampler=sampler, trials=5)
    found["overrides"] = {"checkpoint.every": 2}
    undisturbed = list_outcomes(run(found, tmp_path / "whole")[1])
    other = run({**found, "sampler": {**sampler, "seed": 5}}, tmp_path / "seed", trials=1)[1]
    assert list_outcomes(other) != undisturbed[:1]
    calls = {"n": 0}

    def killed(wrapped: Any, at: int) -> Any:
        def inner(*args: Any, **kwargs: Any) -> Any:
            calls["n"] += 1
            if calls["n"] == at:
                raise KeyboardInterrupt
            return wrapped(*args, **kwargs)

        return inner

    with monkeypatch.context() as patch:
        if moment == "in a training":
            patch.setattr(checkpoint, "save_checkpoint", killed(checkpoint.save_checkpoint, 8))
        elif moment == "before the tell":
            patch.setattr(optuna.Study, "tell", killed(optuna.Study.tell, 3))
        else:
            patch.setattr("fedray.tuning.optuna_study.is_active", killed(is_active, 6))
        with pytest.raises(FedrayError, match="--resume"):
            run(found, tmp_path / "cut")
    with pytest.raises(BadInput, match="--resume"):
        run(found, tmp_path / "cut")
    assert list_outcomes(run(found, tmp_path / "cut", resume=True)[1]) == undisturbed
    assert len(list((tmp_path / "cut" / "trials").iterdir())) == len(list((tmp_path / "whole" / "trials").iterdir()))
    again = list_outcomes(run(found, tmp_path / "cut", resume=True, trials=6)[1])
    assert again[:5] == undisturbed and len(again) == 6


def test_a_cut_last_line_of_the_journal_is_mended(tmp_path: Path) -> None:
    found = sweep({"local.lr": [0.1, 0.3]}, sampler="grid")
    _, before = run(found, tmp_path / "s", trials=1)
    with (tmp_path / "s" / "study.journal").open("ab") as file:
        file.write(b'{"op_code": 5, "wor')
    _, after = run(found, tmp_path / "s", resume=True)
    assert list_outcomes(after)[:1] == list_outcomes(before) and len(after) == 2


def test_pruned_trials_stop_computing_and_keep_what_they_had(tmp_path: Path) -> None:
    found = sweep({"local.lr": [0.3, 0.2, 1e-4, 2e-4]}, sampler="grid", trials=None, overrides={"replicates": 2},
                  pruner={"name": "median", "startup": 2, "warmup": 1})  # fmt: skip
    summary, trials = run(found, tmp_path / "s")
    assert [row["state"] for row in trials] == ["complete", "complete", "pruned", "pruned"]
    for row in trials:  # without a value it has no error
        value, error = row["values"]["accuracy"], row["standard_errors"]["accuracy"]
        assert (value is None) == (error is None) == (row["state"] == "pruned")
    assert [row["rounds"] for row in trials] == [6, 6, 4, 4]  # an age is K = 2 rounds
    assert summary["rounds_trained"] == 20
    for row in trials:
        folder = tmp_path / "s" / row["run_directory"]
        done = set(checkpoint.read_table(folder, "clients")["round"].to_pylist())
        assert max(done) == row["rounds"] == find_checkpoints(folder / "checkpoints")[-1]
        assert (folder / "summary.json").exists() == (row["state"] == "complete")
    steps = [sorted(trial.intermediate_values) for trial in opened(tmp_path / "s").trials]
    assert steps == [[1, 2, 3], [1, 2, 3], [1, 2], [1, 2]]
    pruner = read_sweep(found).keys.pruner
    where = optuna_study.StudyLocation(str(tmp_path / "s" / "study.journal"), "sweep", pruner, 2, 3)
    again = train_again(found, tmp_path / "s", trials[2], where)
    assert (again.state, again.rounds) == ("pruned", 4)
    assert fedray.resume(tmp_path / "s" / trials[2]["run_directory"]).summary["rounds"] == 6


def test_each_evaluation_is_one_decision_and_the_first_ones_may_be_skipped(tmp_path: Path) -> None:
    for warmup, steps in ((0, [[1, 2], [1, 2], [1]]), (1, [[1, 2], [1, 2], [1, 2]])):  # the last decides nothing
        keys: dict[str, Any] = {"sampler": "grid", "trials": None, "overrides": {"evaluate": {"every": 3}}}
        pruner = {"name": "median", "startup": 1, "warmup": warmup}
        found = sweep({"local.lr": [0.3, 0.2, 1e-4]}, pruner=pruner, **keys)
        run(found, tmp_path / str(warmup), report=False)
        assert [sorted(trial.intermediate_values) for trial in opened(tmp_path / str(warmup)).trials] == steps


def test_a_pruned_training_goes_on_for_another_gamma_with_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rounds are kept: only what lies behind them is trained. It went on with other bits."""
    space = {"local.lr": [0.3, 1e-4], "predict.gamma": [0.1, 10.0]}
    found = sweep(space, sampler="grid", pruner={"name": "median", "startup": 1, "warmup": 1}, trials=None,
                  objectives=["personal_accuracy"], overrides={"lanes": "auto"})  # fmt: skip

    with monkeypatch.context() as patched:  # killed while it takes over the rounds
        patched.setattr(training, "describe_study", lambda *_: signal.default_int_handler(2, None))
        with pytest.raises(FedrayError, match="--resume"):
            run(found, tmp_path / "s", report=False)
    _, trials = run(found, tmp_path / "s", report=False, resume=True)
    assert [row["how"] for row in trials] == ["trained", "looked up", "trained", "trained"]
    assert [row["rounds"] for row in trials] == [6, None, 4, 2]
    assert [row["state"] for row in trials] == ["complete", "complete", "pruned", "complete"]
    keys: dict[str, Any] = {"lanes": "auto", "local__lr": 1e-4, "predict__gamma": 10.0, "data__hold_out": 0.2}
    alone = fedray.run(BASE, report=False, evaluate__personal=True, **keys)
    summary = json.loads((tmp_path / "s" / trials[3]["run_directory"] / "summary.json").read_text())
    assert summary["state_hash"] == alone.summary["state_hash"]


def test_a_repeated_pruned_trial_reports_what_the_first_one_did(tmp_path: Path) -> None:
    """A sampler ranks pruned trials by what they reported: one without a report would be ranked apart."""
    space: dict[str, Any] = {"local.lr": optuna.distributions.FloatDistribution(0.01, 1.0)}
    told: list[str] = []
    study = optuna.create_study(direction="maximize")
    known = optuna.trial.create_trial(
        params={"local.lr": 0.1}, distributions=space, state=optuna.trial.TrialState.PRUNED,
        intermediate_values={1: 0.5, 2: 0.25}, user_attrs={optuna_study.NOTES: {"run": "trials/00000", "seconds": 3.0}},
    )  # fmt: skip
    study.add_trial(known)
    study.enqueue_trial({"local.lr": 0.1})
    found = read_sweep(sweep({"local.lr": LR}, pruner={"name": "median"}))
    location = optuna_study.StudyLocation("none", "sweep", found.keys.pruner, age=2, ages=3)
    state = SearchState(found, tmp_path, study, location, UserObjects(), 2, None, told.append)
    training._repeat(state, study.ask(space), study.trials[0])
    first, again = study.trials
    assert again.intermediate_values == first.intermediate_values == {1: 0.5, 2: 0.25}
    assert (again.state, again.value) == (optuna.trial.TrialState.PRUNED, 0.25)
    assert optuna_study.trial_note(again) == {"how": "looked up", "run": "trials/00000", "saved": 3.0}
    assert "trial 1 (of 2) pruned (looked up)" in told[0]


def test_a_pruner_compares_ensembles_of_different_size_after_equal_rounds(tmp_path: Path) -> None:
    pruner = {"name": "median", "startup": 2}
    run(sweep({"method.models": [3, 1]}, sampler="grid", pruner=pruner, trials=None), tmp_path / "s")
    assert [list(trial.intermediate_values) for trial in opened(tmp_path / "s").trials] == [[1, 2], [1, 2]]  # 6 rounds


def test_of_equal_trials_the_first_number_wins_whichever_ended_first() -> None:
    study = optuna.create_study(direction="maximize")
    trials = [study.ask() for _ in range(3)]
    for number in (2, 1, 0):
        study.tell(trials[number], 0.9)
    assert study.best_trial.number != 0
    assert [trial.number for trial in find_winners(study)] == [0]
    several = optuna.create_study(directions=["minimize", "maximize", "minimize"])
    for values in ((1, 2, 1), (1, 3, 2)):  # the second objective decides between them
        several.add_trial(optuna.create_trial(values=values))
    assert find_winners(several)[0].number == 1


@pytest.mark.parametrize("name", ["hyperband", pytest.param("asha", marks=pytest.mark.slow)])
def test_the_other_pruners_prune_too(name: str, tmp_path: Path) -> None:
    space = {"local.lr": [0.3, 0.2, 0.1, 1e-4, 2e-4, 3e-4]}
    summary, _ = run(sweep(space, sampler="grid", pruner={"name": name, "reduction": 2}, trials=None), tmp_path / "s")
    assert summary["pruned"] >= 1 and summary["rounds_trained"] < 6 * 6


def test_a_training_stops_where_its_objectives_are_decided(tmp_path: Path) -> None:
    objectives = [{"name": "bytes_to_accuracy", "target": 0.2}, {"name": "accuracy", "within_bytes": 75_000}]
    found = sweep({"compress.ratio": [0.1, 1.0]}, objectives=objectives, sampler="grid",
                  overrides={"rounds": 40, "compress.kind": "topk"})  # fmt: skip
    summary, trials = run(found, tmp_path / "s")
    assert all(row["rounds"] < 40 for row in trials)
    for row in trials:
        course = checkpoint.read_table(tmp_path / "s" / row["run_directory"], "rounds").to_pylist()
        costs = [point["up_bytes"] + point["down_bytes"] for point in course]
        assert costs[-1] > 75_000
        within = [point for point, cost in zip(course, costs, strict=True) if cost <= 75_000]
        assert row["values"]["accuracy"] == pytest.approx(within[-1]["hold_out_accuracy"], rel=1e-11)
    again = train_again(found, tmp_path / "s", trials[0])
    assert (again.state, again.rounds) == ("complete", trials[0]["rounds"])
    for winner in summary["winners"]:  # its test scores are of a later round than its accuracy
        after = winner["tested_after"]
        assert after["round"] == trials[winner["number"]]["rounds"] and after["bytes"] > 75_000
    assert sorted(p.stem for p in (tmp_path / "s" / "pareto").iterdir()) == [
        f"{n:05d}" for n in sorted(w["number"] for w in summary["winners"])
    ]


def test_the_test_set_is_left_to_the_winners_which_a_run_of_best_yaml_repeats(tmp_path: Path) -> None:
    found = sweep({"local.lr": [0.1, 0.3]}, sampler="grid", objectives=["worst_client_accuracy", "nll"])
    summary, trials = run(found, tmp_path / "s")
    for row in trials:
        for name in checkpoint.read_table(tmp_path / "s" / row["run_directory"], "rounds").column_names:
            assert name.startswith("hold_out_") or name in (
                "replicate", "fold", "round", "sim_seconds", "wall_seconds", "up_bytes", "down_bytes"
            )  # fmt: skip
    best, again = summary["winners"][0], fedray.run(tmp_path / "s" / "best.yaml", out=tmp_path / "again")
    for name in ("accuracy", "nll"):  # the file repeats the trial
        assert all(name in winner["test"] for winner in summary["winners"])
        assert again.metrics[name] == best["test"][name]
    assert best["values"]["nll"] == pytest.approx(again.metrics["hold_out_nll"], rel=1e-11)  # a value has 12 digits


def test_a_trial_with_bad_values_fails_alone(tmp_path: Path) -> None:
    space = {"method.models": [1, 4], "clients.tiers.hpc.models_per_round": [1, 4]}
    found = sweep(space, sampler="grid", overrides={"method": {"name": "shefl", "models": 4}})
    summary, trials = run(found, tmp_path / "s")
    assert (summary["failed"], summary["complete"]) == (1, 3)
    assert "models_per_round = 4, but method.models is 1" in trials[1]["error"]


def test_a_score_that_is_not_a_number_fails_its_trial_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = space.compute_value
    worst = {"calls": 0}

    def sometimes(objective: Any, course: Any) -> float:
        worst["calls"] += 1
        return float("nan") if worst["calls"] in (1, 4) else true(objective, course)

    monkeypatch.setattr(space, "compute_value", sometimes)
    found = sweep(
        {"local.lr": [0.1, 0.3], "predict.gamma": [0.1, 1.0]}, sampler="grid", objectives=["personal_accuracy"]
    )
    summary, trials = run(found, tmp_path / "s")
    assert [row["state"] for row in trials] == ["failed", "complete", "complete", "failed"]
    assert "accuracy is not a number" in trials[0]["error"]
    assert summary["winners"][0]["number"] in (1, 2)


def test_trials_that_did_equally_well_have_one_value() -> None:
    accuracy = space.read_objective("o", "accuracy")
    orders = list(itertools.permutations((0.1, 0.2, 0.3)))
    worlds = [[[{"round": 0, "hold_out_accuracy": value}] for value in order] for order in orders]
    assert len({float(np.mean(order)) for order in orders}) == 2
    assert {tuple(space.average_objectives([accuracy], each)[0]) for each in worlds} == {(0.2,)}
    lacks = [[{"hold_out_nll": 1.0, "hold_out_accuracy": value}] for value in (math.nan, 0.5)]  # a class, in one fold
    assert space.average_objectives([accuracy], lacks) == ([0.5], (None,))
    never = space.read_objective("o", {"name": "rounds_to_accuracy", "target": 0.9})
    assert space.average_objectives([never], worlds[0]) == ([float("inf")], (None,))


def test_a_full_disk_made_trials_failed_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, full = sweep({"local.lr": [0.1, 0.3]}, sampler="grid", trials=None), OSError(errno.ENOSPC, "No space left")
    with monkeypatch.context() as patch:
        patch.setattr(training, "run_inline", Mock(side_effect=full))
        with pytest.raises(FedrayError, match="No space left.*free space.*--resume goes on"):
            run(found, tmp_path / "s")
    assert not any(trial.state.is_finished() for trial in opened(tmp_path / "s").trials)
    assert list_outcomes(run(found, tmp_path / "s", resume=True)[1]) == list_outcomes(run(found, tmp_path / "whole")[1])


def test_a_trial_that_crashes_leaves_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("no such\nkernel")

    monkeypatch.setattr(training, "run_inline", broken)
    with pytest.raises(FedrayError, match="no trial came to its end: RuntimeError: no such kernel"):
        run(sweep({"local.lr": [0.1]}, sampler="grid"), tmp_path / "s")
    assert "in broken" in (tmp_path / "s" / "trials" / "00000" / "error.txt").read_text()
    assert rows(tmp_path / "s")[0]["state"] == "failed"


@pytest.mark.drawn
def test_the_page_has_every_picture(tmp_path: Path) -> None:
    """Also of an infinite gamma, which JSON does not know: the sweep ended with a ValueError."""
    space = {"local.lr": LR, "method.models": {"type": "int", "low": 1, "high": 3}, "local.optimizer": ["sgd", "adam"],
             "predict.gamma": [0.1, float("inf")]}  # fmt: skip
    found = sweep(space, objectives=["personal_accuracy", "up_bytes"], trials=5, sampler="random")
    run({**found, "overrides": {"rounds": 2}}, tmp_path / "s")
    page = (tmp_path / "s" / "report.html").read_text()
    for title in ("Best personalized accuracy:", "matters most", "against each parameter", "that no other beats",
                  "The course of", "Winners"):  # fmt: skip
        assert title in page, title
    shown = remove_scripts(page)
    assert "http" not in shown.replace("http://www.w3.org", "").replace("http-equiv", "")
    assert "$" not in shown
    again = run_command("report", tmp_path / "s", "--out", tmp_path / "again.html")
    assert (again.status, (tmp_path / "again.html").read_text()) == (0, page)
    for name in ("up_bytes", "trials", "pareto"):
        assert run_command("plot", tmp_path / "s", name, "--out", tmp_path / "a.png", "--dpi", "40").status == 0
    (drawn,) = fedray.SweepResult.from_path(tmp_path / "s").plot().axes  # the first objective, over the trials
    values = [row["values"]["personal_accuracy"] for row in rows(tmp_path / "s")]
    dots = np.concatenate([np.asarray(part.get_offsets()) for part in drawn.collections])
    assert sorted(dots[:, 1]) == pytest.approx(sorted(values))


@pytest.mark.drawn
def test_trials_of_several_seeds_have_the_standard_errors_of_their_values(tmp_path: Path) -> None:
    """Over the worlds, also where another trial's training is looked up; the page says what the best is worth."""
    keys = {"local.lr": [0.1, 0.3], "predict.gamma": [0.1, 1.0]}
    given = sweep(keys, sampler="grid", objectives=["accuracy", "up_bytes"], overrides={"replicates": 3})
    summary, trials = run(given, tmp_path / "s")
    assert {row["how"] for row in trials} == {"trained", "looked up"}
    for row in trials:
        table = pq.read_table(tmp_path / "s" / row["run_directory"] / "rounds.parquet").to_pylist()
        last = [world["hold_out_accuracy"] for world in table if world["round"] == 6]
        assert len(last) == 3
        assert row["values"]["accuracy"] == pytest.approx(np.mean(last), abs=1e-12)
        assert row["standard_errors"]["accuracy"] == pytest.approx(np.std(last, ddof=1) / 3**0.5, abs=1e-12)
        assert row["standard_errors"]["up_bytes"] == 0.0
    best = summary["winners"][0]
    assert best["standard_errors"]["accuracy"] == trials[best["number"]]["standard_errors"]["accuracy"]
    page = (tmp_path / "s" / "report.html").read_text()
    assert "accuracy, standard error" in page
    assert "of the best accuracy; errors are over the replicates and folds" in page
