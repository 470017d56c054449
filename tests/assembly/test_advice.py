"""What is improbable is said in one line before a run, and only where that is sure."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from small import run_command, scenario

import fedray
from fedray.advice import (
    count_untrained,
    tell_short,
)
from fedray.assembly.study import build_study
from fedray.core.errors import FedrayError, FedrayWarning, ScenarioWarning
from fedray.experiments.check import explain_scenario
from fedray.methods import Answer, Method, Setting, federated, federated_each
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress
from fedray.storage.checkpoint import load_study_checkpoint

SERVER = [{"name": "linear", "tier": "phones"}, {"name": "mlp", "tier": "server"}]  # the server alone has the second
TIERS = {"phones": {"number": 4}, "server": {"number": 0}}
STACK = {"name": "stacking", "bases": [{"name": "mlp", "models": 3}, {"name": "mlp", "hidden": [4]}]}


def keys(models: int, rounds: int, **more: Any) -> dict[str, Any]:
    usual = {"clients": 4, "participation": {"per_round": 1}, "method": {"models": models}}
    return {"rounds": rounds, "data": {"name": "digits", "limit": 90}, **usual, **more}


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


# -- Classes that no client can learn are said before a run begins

KEYS: dict[str, Any] = {"rounds": 1, "clients": 4, "runtime": "inline", "report": False, "method": "fedavg"}
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
ABC = np.array(["a", "b", "c"])[np.arange(60) % 3]


def test_a_warning_names_the_line_of_the_users_program() -> None:
    """It named a line within fedray."""
    with pytest.warns(ScenarioWarning, match="no client has a training row of class c") as caught:
        fedray.run(KEYS, data=((X[ABC != "c"], ABC[ABC != "c"]), (X[:15], ABC[:15])))
    assert caught[0].filename == __file__


# -- Clients with a batch of one row, on which batch normalization cannot train, are named before the run


def batch_norm_keys(**more: Any) -> dict[str, Any]:
    return {
        "method": "fedavg",
        "rounds": 1,
        "clients": 3,
        "data": {"name": "digits", "limit": 100, "partition": {"name": "sizes", "sizes": [40, 41, 19]}},
        "model": {"name": "mlp", "hidden": [4], "norm": "batch"},
        "local": {"epochs": 1, "batch_size": 4},
        "runtime": "inline",
        "report": False,
        **more,
    }


def test_a_client_whose_last_batch_has_one_row_was_found_in_the_middle_of_a_run() -> None:
    """The check names it with the remedies, and so does the line that ends the run."""
    with pytest.warns(ScenarioWarning, match="client 1 has a batch of one row, and the run ends when one of them"):
        explain_scenario(read_scenario(batch_norm_keys()))
    match = r"client 1 \(model 0\) failed: ValueError: Expected .*: choose another local.batch_size, .*model.norm"
    with pytest.warns(ScenarioWarning), pytest.raises(FedrayError, match=match):
        fedray.run(batch_norm_keys())


# -- Clients with fewer steps than their upload is made of are told, and others are not


@pytest.mark.parametrize(("rate", "told"), [(0.01, True), (0.06, False)])
def test_a_fit_of_beta_that_could_not_come_to_its_optimum_was_called_one(rate: float, *, told: bool) -> None:
    """48 rows at the server are one batch: ten steps of Adam, which move beta by 0.1 where 0.6 were needed."""
    keys = scenario({"method": {"name": "beta_predbayes", "samples": 2, "cycles": 1, "beta_lr": rate}, "rounds": 1})
    keys["local"]["epochs"] = 5
    with warnings.catch_warnings(record=True) as all_of_them:
        warnings.simplefilter("always")
        beta = float(fedray.run(keys, report=False).progress.state.models[0, -1])
    text = "beta = fit makes 10 steps of 0.01 on the 48 rows of the server, and comes no farther than 0.1 from 0.5"
    assert told == any(text in str(one.message) for one in all_of_them)
    assert (beta < 0.61) if told else (beta > 0.9)


@pytest.mark.parametrize(
    ("steps", "who"),
    [
        ([4, 9, 0], ""),
        ([3, 0, 2], "every client makes"),
        ([9, 3, 0], "client 1 makes"),
        ([9, 3, 2], "2 clients (the first is 1) make"),
        ([3], "client 0 makes"),
        ([0, 0], ""),
    ],
)
def test_who_has_fewer_is_named_and_who_does_not_train_is_not(steps: list[int], who: str) -> None:
    assert tell_short(np.array(steps), 4) == who


# -- What cannot act, or is another thing than it looks, is said in one line: own objects, losses, tiers, tables

ROWS = np.random.default_rng(0).normal(size=(120, 6)).astype(np.float32)
CLASSES, TARGETS = np.arange(120) % 3, 20.0 * ROWS[:, 0] + 100.0


def write_sites(path: Path) -> str:
    site = np.repeat(["Rome", "Oslo", "Lima"], 40)
    lines = [f"{row[0]},{row[1]},{float(y)},{of}" for row, y, of in zip(ROWS, CLASSES, site, strict=True)]
    path.write_text("\n".join(["a,b,y,site", *lines]))
    return str(path)


def test_classes_that_are_real_numbers_in_a_table_are_said(tmp_path: Path) -> None:
    table = {"path": write_sites(tmp_path / "t.csv"), "target": "y", "features": ["a", "b"]}
    keys = {**KEYS, "data": {"name": "table", **table}}
    with pytest.warns(UserWarning, match="3 different values, read as targets of a regression: write data.task"):
        build_study(read_scenario(keys))


def test_a_column_of_clients_makes_the_clients(tmp_path: Path) -> None:
    data = {"name": "table", "path": write_sites(tmp_path / "t.csv"), "target": "y", "group": "site"}
    keys = {**KEYS, "data": {**data, "task": "classification"}, "clients": {}}
    assert build_study(read_scenario(keys)).clients.number == 3
    dealt = {**keys, "data": {**keys["data"], "partition": "iid"}, "clients": 5}
    assert build_study(read_scenario(dealt)).clients.number == 5


def test_a_partition_learns_which_of_the_users_rows_are_training_rows() -> None:
    def by_class(labels: Any, clients: int, _generator: Any, _options: Any, *, columns: Any) -> Any:
        assert (CLASSES[columns["row"]] == labels).all()
        return [np.flatnonzero(labels % clients == c) for c in range(clients)]

    run = fedray.run({**KEYS, "clients": 3}, data=(ROWS, CLASSES), partition=by_class)
    given = pq.read_table(run.path / "partition.parquet").to_pydict()
    assert (CLASSES[given["given_row"]] == given["client"]).all()
    assert len(given["row"]) == 96


@pytest.mark.parametrize("names", [[3, 4], [2, 3]], ids=["new clients alone", "one known client"])
def test_known_clients_without_a_test_row_of_their_own_are_said(names: list[int]) -> None:
    train = pd.DataFrame(ROWS).assign(y=CLASSES, ward=np.arange(len(ROWS)) // 40)
    test = train[:30].assign(ward=np.resize(names, 30))
    keys = {**KEYS, "clients": {}, "evaluate": {"personal": True}, "method": {"name": "fed_ensemble", "models": 2}}
    known = bool(set(names) & {0, 1, 2})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = fedray.run(keys, data=(train, test), data__target="y", data__group="ward")
    assert ("personal_accuracy" in run.metrics) == known
    assert sum("no test row is of a client that trains" in str(one.message) for one in said) == (not known)
