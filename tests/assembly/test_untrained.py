"""Models that nobody can train in a run are said before it begins, and only where that is sure."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from small import run_command

import fedray
from fedray.advice import count_untrained, find_untrained_models, warn_of_study
from fedray.assembly.study import build_study
from fedray.core.errors import FedrayWarning, ScenarioWarning
from fedray.methods import Answer, Method, Setting, federated, federated_each
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import merge_keys
from fedray.simulation.rounds import begin_progress
from fedray.storage.checkpoint import load_study_checkpoint

SERVER = [{"name": "linear", "tier": "phones"}, {"name": "mlp", "tier": "server"}]  # the server alone has the second
TIERS = {"phones": {"number": 4}, "server": {"number": 0}}
FEDDF = {"method": {"name": "feddf", "networks": SERVER}, "clients": {"tiers": TIERS}}
LOSSES = {"per_round": 1, "selection": {"name": "power_of_choice", "candidates": 2}}
TWO_EACH = {"number": 4, "tiers": {"hpc": {"models_per_round": 2}}}
STACK = {"name": "stacking", "bases": [{"name": "mlp", "models": 3}, {"name": "mlp", "hidden": [4]}]}


def keys(models: int, rounds: int, **more: Any) -> dict[str, Any]:
    usual = {"clients": 4, "participation": {"per_round": 1}, "method": {"models": models}}
    return {"rounds": rounds, "data": {"name": "digits", "limit": 90}, **usual, **more}


def hear(scenario: dict[str, Any]) -> list[str]:
    """What is said of the models of a scenario."""
    read = read_scenario(scenario)
    study = build_study(read)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warn_of_study(read, study, [find_untrained_models])
    return [str(one.message).partition(",")[0] for one in heard]


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        (keys(5, 3, schedule={"kind": "balanced"}), "2 of 5 models in 3 rounds"),
        (keys(9, 3, schedule={"kind": "balanced"}, clients=TWO_EACH), "5 of 9 models in 3 rounds"),
        (keys(5, 3, schedule={"kind": "adaptive"}), "2 of 5 models in 3 rounds"),
        (keys(5, 3, participation=LOSSES), "2 of 5 models in 3 rounds"),
        (keys(5, 3, participation={"mode": "buffered", "goal": 2}), "2 of 5 models in 3 rounds"),
        (keys(3, 1, method={"name": "ifca", "models": 3}), "2 of 3 models in 1 round"),
        (keys(1, 1, method=STACK), "10 of 16 models in 1 round"),
        (keys(1, 1, method="local_only"), "3 of 4 models in 1 round"),
        (merge_keys(keys(1, 3, **FEDDF), {"method": {"distil_steps": 0}}), "1 of 2 models in 3 rounds"),
    ],
)
def test_models_without_a_job_are_counted(scenario: dict[str, Any], said: str) -> None:
    assert hear(scenario) == [f"nobody trains {said}"]


def test_without_rounds_the_remedy_is_one_that_is_taken() -> None:
    """A step takes the uploads of one model; participation.per_round was proposed, which that mode refuses."""
    read = read_scenario(keys(5, 3, participation={"mode": "buffered", "goal": 2}))
    with pytest.warns(UserWarning, match="as they were drawn: raise rounds, or lower method.models$"):
        warn_of_study(read, build_study(read), [find_untrained_models])


@pytest.mark.parametrize(
    "scenario",
    [
        keys(5, 5, schedule={"kind": "balanced"}),
        keys(5, 0),
        keys(5, 5, schedule={"kind": "adaptive"}),
        keys(5, 3, participation={"mode": "semi"}),
        keys(4, 9, method="local_only"),
        keys(1, 1, method="fens"),
        keys(1, 3, **FEDDF),
        keys(1, 1, method={"name": "beta_predbayes", "cycles": 1, "samples": 1}, participation={}),
    ],
)
def test_nothing_is_said_where_every_model_may_be_trained(scenario: dict[str, Any]) -> None:
    assert hear(scenario) == []


def test_a_client_without_rows_trains_no_model() -> None:
    study = build_study(read_scenario(keys(2, 2, participation={}, schedule={"kind": "balanced"})))
    assert count_untrained(study, 1).tolist() == [0]

    class Empty:
        def sizes(self, world: Any, _client: Any) -> Any:
            return np.zeros_like(world)

    object.__setattr__(study, "shards", Empty())
    assert count_untrained(study, 1).tolist() == [2]


def test_a_schedule_of_the_users_own_is_not_asked_ahead() -> None:
    asked = []

    def first(_models: int, _rows: str) -> Any:
        def assign(now: Any, drawn: Any, _m: Any, _state: Any) -> Any:
            asked.append(now.t)
            return np.arange(len(drawn.client)), np.zeros(len(drawn.client), int)

        return assign

    with pytest.warns(FedrayWarning) as said:
        fedray.run({**keys(3, 2), "runtime": "inline", "report": False}, schedule=first)
    assert asked == [0, 0, 1]  # the first answer is asked for twice
    assert [str(one.message).partition(",")[0] for one in said] == ["models that answer as they were drawn"]
    assert not any(isinstance(one.message, ScenarioWarning) for one in said)


def test_the_command_line_says_it_once(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**keys(5, 1), "runtime": "inline", "report": False}))
    for command in (["check"], ["run", "--out", tmp_path / "run"]):
        done = run_command(*command, tmp_path / "s.yaml")
        assert (done.status, done.err.count("fedray: note: nobody trains 4 of 5 models in 1 round, ")) == (0, 1)


@pytest.mark.parametrize("more", [{"method": "local_only"}, {"schedule": {"kind": "balanced"}}], ids=str)
def test_models_whose_clients_were_all_lost_are_those_that_equal_their_first_weights(
    more: dict[str, Any], tmp_path: Path
) -> None:
    lossy = {"participation": {"dropout": 0.7}, "replicates": 2, **more}
    with pytest.warns(FedrayWarning, match="models that took no upload"):
        run = fedray.run(keys(4, 1, **lossy), out=tmp_path / "run", runtime="inline", report=False)
    first = begin_progress(run.study, run.study.method.phase).state.models
    last = load_study_checkpoint(tmp_path / "run", run.study)[0].state.models
    untrained = (first == last).all(dim=-1).reshape(2, -1).sum(dim=1)
    assert run.summary["untrained_models"] == int(untrained.max()) > 0


def test_a_run_in_which_every_model_took_an_upload_says_nothing_of_them(tmp_path: Path) -> None:
    run = fedray.run(keys(2, 2, participation={}), out=tmp_path / "run", runtime="inline", report=False)
    assert "untrained_models" not in run.summary


@pytest.mark.parametrize("heard", [False, True], ids=["weight 0", "equal weights"])
def test_models_that_a_users_own_method_gives_to_nobody_are_said_if_they_answer(heard: bool) -> None:
    def first_two(_models: int, _rows: str) -> Any:
        return lambda _now, drawn, _m, _state: (np.arange(len(drawn.client)), drawn.client % 2)

    def partly(setting: Setting) -> Method:
        weights = np.array([[1.0, 1.0, float(heard), float(heard)]] * len(setting.seeds))
        return Method("partly", federated(setting, assign=first_two), lambda state: Answer(state, 4, weights))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = fedray.run(keys(4, 1, participation={}), method=partly, runtime="inline", report=False)
    assert run.summary.get("drawn_models", 0) == 2 * heard
    assert sum("answer as they were drawn, because no client was asked" in str(one.message) for one in said) == heard


@pytest.mark.parametrize(
    ("answers", "taught", "drawn"),
    [(True, False, 1), (False, False, 0), (True, True, 0)],
    ids=["answers", "does not answer", "taught by the server"],
)
def test_a_network_of_a_users_own_method_that_no_client_has_is_said_if_it_answers(
    answers: bool, taught: bool, drawn: int
) -> None:
    def teach(_t: int, steps: Any) -> Any:
        return [step.after.models + float(number) for number, step in enumerate(steps)]

    def each(setting: Setting) -> Method:
        parts = federated_each(setting)
        return Method("each", parts[0], parts=parts, join=teach if taught else None)

    fedray.register("method", "each", each, options={"networks": []}, models=1)
    networks = [SERVER[0], {**SERVER[1], "answers": answers}]
    scenario = keys(1, 2, method={"name": "each", "networks": networks}, clients={"tiers": TIERS}, participation={})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = fedray.run(scenario, runtime="inline", report=False, replicates=2)
    assert run.summary.get("drawn_models", 0) == drawn
    assert sum("answer as they were drawn, because no client was asked" in str(one.message) for one in said) == drawn


def test_of_a_stack_under_a_schedule_of_ones_own_nothing_is_said() -> None:
    def nobody(_models: int, _rows: str) -> Any:
        nothing = np.array([], int)
        return lambda _now, _drawn, _m, _state: (nothing, nothing)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fedray.run(keys(1, 1, method=STACK), schedule=nobody, runtime="inline", report=False)
    assert "drawn_models" not in run.summary
