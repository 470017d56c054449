"""What is improbable is said in one line before a run, and only where that is sure."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedray
from fedray.advice import find_untrained_models
from fedray.assembly.study import build_study
from fedray.core.errors import FedrayWarning, ScenarioWarning
from fedray.methods import Answer, Method, Setting, federated, federated_each
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress
from fedray.storage.checkpoint import load_study_checkpoint

SERVER = [{"name": "linear", "tier": "phones"}, {"name": "mlp", "tier": "server"}]  # the server alone has the second
TIERS = {"phones": {"number": 4}, "server": {"number": 0}}


def keys(models: int, rounds: int, **more: Any) -> dict[str, Any]:
    usual = {"clients": 4, "participation": {"per_round": 1}, "method": {"models": models}}
    return {"rounds": rounds, "data": {"name": "digits", "limit": 90}, **usual, **more}


def test_a_client_without_rows_trains_no_model() -> None:
    scenario = read_scenario(keys(2, 1, participation={}, schedule={"kind": "balanced"}))
    study = build_study(scenario)
    assert not list(find_untrained_models(scenario, study))

    class Empty:
        def sizes(self, world: Any, _client: Any) -> Any:
            return np.zeros_like(world)

    object.__setattr__(study, "shards", Empty())
    ((told, _),) = find_untrained_models(scenario, study)
    assert told.startswith("nobody trains 2 of 2 models")


@pytest.mark.parametrize("more", [{"method": "local_only"}, {"schedule": {"kind": "balanced"}}], ids=str)
def test_models_whose_clients_were_all_lost_are_those_that_equal_their_first_weights(more: dict[str, Any]) -> None:
    lossy = {"participation": {"dropout": 0.7}, "replicates": 2, **more}
    with pytest.warns(FedrayWarning):
        run = fedray.run(keys(4, 1, **lossy), runtime="inline", report=False)
    first = begin_progress(run.study).state.models
    last = load_study_checkpoint(run.path, run.study)[0].state.models
    untrained = (first == last).all(dim=-1).reshape(2, -1).sum(dim=1)
    assert run.summary["untrained_models"] == int(untrained.max()) > 0


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


# -- Classes that no client can learn are said before a run begins

KEYS: dict[str, Any] = {"rounds": 1, "clients": 4, "runtime": "inline", "report": False, "method": "fedavg"}
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
ABC = np.array(["a", "b", "c"])[np.arange(60) % 3]


def test_a_warning_names_the_line_of_the_users_program() -> None:
    with pytest.warns(ScenarioWarning) as caught:
        fedray.run(KEYS, data=((X[ABC != "c"], ABC[ABC != "c"]), (X[:15], ABC[:15])))
    assert caught[0].filename == __file__


# -- What cannot act, or is another thing than it looks, is said in one line: own objects, losses, tiers, tables

ROWS = np.random.default_rng(0).normal(size=(120, 6)).astype(np.float32)
CLASSES = np.arange(120) % 3


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
