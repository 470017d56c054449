"""Sweep files: what is wrong is one line with the key and the remedy; what is right means what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real_files import skipping_without_files
from sweeps import BASE, LR, sweep

from fedray.core.errors import BadInput, ScenarioWarning
from fedray.scenario import yaml_text
from fedray.tuning.objectives import compute_value, read_objective
from fedray.tuning.space import enumerate_corners, enumerate_grid, read_space, to_overrides
from fedray.tuning.sweep import Sweep, read_sweep
from fedray.tuning.tune import run_sweep


def list_inference(found: Sweep) -> tuple[str, ...]:
    """Keys of `predict` that the training of the base scenario does not depend on."""
    return found.find_inference_keys(found.scenario({}))


FILES = sorted((Path(__file__).parents[2] / "tune").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_sweep_is_read_and_its_corners_are_scenarios(path: Path) -> None:
    found = read_sweep(path)
    assert found.scenario({}).data.hold_out == 0.2
    assert len(list(enumerate_corners(found.space))) >= 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_sweep_runs_a_trial(path: Path, tmp_path: Path) -> None:
    tree = yaml_text.load_yaml(path)
    if isinstance(tree["scenario"], str):
        tree["scenario"] = str(path.parent / tree["scenario"])
    tree["overrides"] = {**tree.get("overrides", {}), "rounds": 2}
    with skipping_without_files():
        summary = run_sweep({**tree, "jobs": 1}, tmp_path / "s", trials=1, say=lambda _line: None)
    assert (summary["complete"], summary["trainings"]) == (1, 1)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"trails": 3}, "trails is not a key of a sweep: did you mean trials?"),
        ({"trial": {"actors": 0}}, "trial.actors = 0 "),
        ({"trial": 2}, "trial = 2 is not a mapping: write {actors: ...}"),
        ({"trial": {"actor": 2}}, "trial.actor is not a key of trial: did you mean trial.actors?"),
        ({"space": {"local.lrr": [1]}}, "space.local.lrr: local.lrr is not a key of local: did you mean local.lr?"),
        (
            {"space": {"local.lr": {"type": "float", "low": 0.5, "high": 0.1}}},
            "space.local.lr.low = 0.5, but space.local.lr.high is 0.1: lower it or raise space.local.lr.high",
        ),
        ({"space": {"local.lr": {"type": "float", "low": 0.1}}}, "space.local.lr.high is missing"),
        ({"space": {"local.lr": {"type": "float", "low": 0, "high": 1, "log": True}}}, "a log range is above 0"),
        ({"space": {"local.lr": {"type": "float", "low": 0, "high": 1, "lg": True}}}, "did you mean log?"),
        ({"space": {"method.models": {"type": "int", "low": 0, "high": 3}}}, "method.models = 0 is out of range"),
        ({"space": {"method.models": {"type": "int", "low": 1.5, "high": 3}}}, "is not a whole number"),
        ({"space": {"local.epochs": {"type": "int", "low": 1, "high": 4, "step": 2}}}, "does not lead from 1 to 4"),
        ({"space": {"local.lr": [0.1, 0.1]}}, "space.local.lr holds 0.1 twice"),
        ({"space": {"local.lr": {**LR, "when": {"local.optimizer": "sgd"}}}}, "is not a parameter above"),
        (
            {
                "space": {
                    "local.optimizer": ["sgd", "adam"],
                    "local.lr": [{**LR, "when": {"local.optimizer": "sgd"}}, LR],
                }
            },
            "space.local.lr[1] has no when, as the others have",
        ),
        (
            {
                "space": {
                    "local.optimizer": ["sgd", "adam"],
                    "local.lr": 2 * [{**LR, "when": {"local.optimizer": "sgd"}}],
                }
            },
            "space.local.lr[1].when may hold together with one above it: give each another value of one key",
        ),
        (
            {"space": {"local.optimizer": ["sgd"], "local.lr": [{**LR, "low": 2, "when": {"local.optimizer": "sgd"}}]}},
            "space.local.lr[0].low = 2, but space.local.lr[0].high is 1",
        ),
        (
            {"space": {"local.optimizer": ["sgd"], "local.lr": {**LR, "when": {"local.optimizer": "adam"}}}},
            "space.local.lr.when.local.optimizer = 'adam' is no value of space.local.optimizer",
        ),
        ({"space": {"data.hold_out": [0.1]}}, "space.data.hold_out cannot be searched"),
        ({"space": {"data": [{"limit": 300}, {"hold_out": 0.5}]}}, "data.hold_out = 0.5, but 0.2 in the scenario: tr"),
        ({"space": {"predict": [{"gamma": 0.1}, {"gamma": 1}]}}, "space.predict.gamma cannot act on accuracy: leave"),
        ({"space": {}}, "space is missing or empty"),
        ({"space": {"local.lr": LR}, "sampler": "grid"}, "space.local.lr has no step, which a grid needs"),
        ({"objectives": []}, "objectives is missing or empty"),
        ({"objectives": ["accuracy", "accuracy"]}, "objectives holds accuracy twice"),
        ({"objectives": ["bytes_to_accuracy"]}, "needs a target"),
        ({"objectives": [{"name": "accuracy", "target": 0.9}]}, "belongs to bytes_to_"),
        ({"objectives": [{"name": "accuracy", "direction": "up"}]}, "objectives[0].direction = 'up' is not one of"),
        ({"sampler": "tpee"}, "sampler.name = 'tpee' is not one of tpe, random, grid, nsga2: did you mean tpe?"),
        (
            {"pruner": {"name": "median", "start": 3}},
            "pruner.start is not a key of pruner: did you mean pruner.startup?",
        ),
        ({"pruner": "median", "objectives": ["accuracy", "nll"]}, "needs one objective"),
        ({"pruner": "asha", "objectives": ["up_bytes"]}, "cannot compare up_bytes on the way"),
        ({"overrides": {"data.hold_out": 0}}, "a sweep reads held-out data"),
        ({"overrides": {"evaluate.stop_at": {"metric": "accuracy", "value": 0.9}}}, "write hold_out_accuracy"),
        ({"scenario": "nowhere.yaml"}, "nowhere.yaml does not exist"),
        ({"overrides": {"stop": {"metric": "nll"}}}, "stop.metric = nll is read on the test set, which a sweep leaves"),
        ({"overrides": {"checkpoint.best": "nll"}}, "checkpoint.best = nll is read on the test set"),
        ({"space": {"stop.metric": ["nll"]}}, "space.stop.metric: stop.metric = nll is read on the test set"),
        (
            {"space": {"local.lr, local.epochs": [[0.1, 1], [0.2]]}},
            "holds [0.2]: write a list of choices, each a list of 2",
        ),
        ({"space": {"local.lr, local.epochs": LR}}, "is a range of several keys: write a list of choices"),
        ({"space": {"local.lr, local.epoch": [[0.1, 1]]}}, "local.epoch is not a key of local"),
        ({"space": {"local.lr, data.hold_out": [[0.1, 0.3]]}}, "space.data.hold_out cannot be searched"),
        ({"space": {"local.lr": [0.1], "local.lr, local.epochs": [[0.1, 1]]}}, "local.lr is in the space twice"),
        ({"space": {"local.lr,": [[0.1, 1]]}}, "space.local.lr, names no key beside a comma"),
        ({"space": {"local.lr, server.momentum": [[0.1, 0.5]]}}, "space.server.momentum cannot act, because"),
        ({"space": {"evaluate.every": [1, 2]}}, "space.evaluate.every cannot be searched (trials would be measured"),
        ({"space": {"clients.actors": [1, 2]}}, "space.clients.actors cannot be searched (it changes no result)"),
        ({"space": {"server.momentum": [0.0, 0.5]}}, "space.server.momentum cannot act, because server.optimizer is"),
        ({"space": {"local.lr": {**LR, "points": 3}}}, "points = 3 is for sampler: grid: leave it out, or give step"),
        ({"sampler": {"name": "random", "startup": 3}}, "sampler.startup cannot act, because sampler.name is random"),
    ],
)
def test_a_bad_sweep_is_one_line(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_sweep(sweep(**{"space": {"local.lr": LR}, **keys}))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rmse", "hold_out_acuracy", "bytes_to_rmse"])
def test_an_objective_that_the_data_cannot_give_is_one_line(name: str, tmp_path: Path) -> None:
    objective = {"name": name, "target": 0.1} if "to_" in name else name
    with pytest.raises(BadInput, match=r"cannot be had from digits, which has classes: (did you mean|choose)"):
        run_sweep(sweep({"local.lr": LR}, objectives=[objective]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["rmse_mean", "rmse_max", "nll_residual", "width_95", "sharpness"])
def test_what_is_better_lower_is_minimised(name: str) -> None:
    assert read_objective("", name).direction == "minimize"


@pytest.mark.parametrize("name", ["entropy", "disagreement", "coverage_90", "conformal_coverage_client_worst"])
def test_what_has_no_better_side_is_said_without_a_direction(name: str) -> None:
    with pytest.warns(ScenarioWarning, match=f"o.name = {name}, of which neither .* direction: minimize"):
        read_objective("o", name)
    assert read_objective("o", {"name": name, "direction": "minimize"}).direction == "minimize"
    with pytest.warns(ScenarioWarning, match=f"rounds_to_{name}, of which neither"):
        read_objective("o", {"name": f"rounds_to_{name}", "target": 0.5, "direction": "minimize"})


@pytest.mark.parametrize(
    ("key", "objective"),
    [("predict.gamma", "accuracy"), ("predict.gamma", "conformal_size"), ("predict.average", "up_bytes")],
)
def test_a_sweep_chose_the_value_of_a_key_that_no_objective_reads(key: str, objective: str) -> None:
    values = {"predict.gamma": [0.05, 1.0], "predict.average": ["logits", "probabilities"]}[key]
    sets: dict[str, Any] = {"overrides": {"predict.conformal.alpha": 0.1}}
    with pytest.raises(BadInput, match=rf"^space.{key} cannot act on {objective}: leave it out, or add \w+ or \w+$"):
        read_sweep(sweep({key: values}, objectives=[objective], **sets))
    with pytest.warns(ScenarioWarning, match=rf"^space.{key} cannot act on {objective}: .*; its value in the best"):
        read_sweep(sweep({"local.lr": LR, key: values}, objectives=[objective], **sets))


@pytest.mark.parametrize("objectives", [["accuracy", "personal_accuracy"], ["conformal_coverage_client_worst"]])
def test_a_key_that_one_of_the_objectives_reads_is_searched(objectives: list[str]) -> None:
    wanted = [{"name": name, "direction": "maximize"} for name in objectives]
    sets = {"predict.conformal.alpha": 0.1}
    found = read_sweep(sweep({"predict.gamma": [0.05, 1.0]}, objectives=wanted, overrides=sets))
    assert "gamma" in list_inference(found)
    rule = {"metric": "hold_out_personal_accuracy"}
    for stopped in ({"evaluate.stop_at": {**rule, "value": 0.9}}, {"stop": rule}):
        assert "gamma" not in list_inference(read_sweep(sweep({"predict.gamma": [0.05, 1.0]}, overrides=stopped)))


def test_a_key_that_another_one_of_the_space_makes_act_is_searched() -> None:
    space = {"server.momentum": [0.5, 0.9], "server.optimizer": ["none", "momentum"]}
    assert [parameter.key for parameter in read_sweep(sweep(space)).space] == list(space)


def test_a_key_of_the_scenario_that_acts_in_no_trial_is_named() -> None:
    with pytest.warns(
        ScenarioWarning, match="server.momentum cannot act in any trial, because server.optimizer is none"
    ):
        read_sweep(sweep({"local.lr": LR}, overrides={"server.momentum": 0.5}))


def test_a_copy_of_a_sweep_keeps_its_name(tmp_path: Path) -> None:
    """The name is the study's in its storage: the copy in the run directory goes on with the same one."""
    first = read_sweep(FILES[0].with_name("quick.yaml"))
    (tmp_path / "sweep.yaml").write_text(yaml_text.write_yaml(dict(first.source)))
    assert read_sweep(tmp_path / "sweep.yaml").name == first.name == "quick"


def test_keys_that_change_together_are_the_sections_that_say_the_same() -> None:
    """K and the width of its networks cannot be one section: a sweep over both trained what nobody asked for."""
    joint = read_space({"method.models, model.hidden": [[2, [32]], [4, [16, 8]]], "local.lr": [0.1, 0.3]})
    found = [to_overrides(joint, point) for point in enumerate_grid(joint)]
    wanted = [(2, [32], 0.1), (2, [32], 0.3), (4, [16, 8], 0.1), (4, [16, 8], 0.3)]
    assert [tuple(one[key] for key in ("method.models", "model.hidden", "local.lr")) for one in found] == wanted
    assert joint[0].labels == ["[2, [32]]", "[4, [16, 8]]"]
    assert len({repr(one) for one in found}) == 4 and all(len(one) == 3 for one in found)


def test_a_grid_holds_every_combination_once_and_conditions_cut_it() -> None:
    space = read_space(
        {
            "local.optimizer": ["sgd", "adam"],
            "local.momentum": {"type": "float", "low": 0, "high": 0.9, "points": 3, "when": {"local.optimizer": "sgd"}},
            "method.models": {"type": "int", "low": 1, "high": 5, "step": 2},
        }
    )
    points = enumerate_grid(space)
    assert len(points) == 3 * 3 + 3
    assert {p["method.models"] for p in points} == {1, 3, 5}
    assert all(("local.momentum" in p) == (p["local.optimizer"] == "sgd") for p in points)


def test_lists_and_infinity_can_be_choices() -> None:
    found = read_sweep(
        sweep({"model.hidden": [[8], [8, 8]], "predict.gamma": [0.1, float("inf")]}, objectives=["personal_accuracy"])
    )
    labels = [parameter.labels for parameter in found.space]
    assert found.scenario({"model.hidden": labels[0][1]}).model.options["hidden"] == [8, 8]
    assert found.scenario({"predict.gamma": labels[1][1]}).predict.gamma == float("inf")


def test_defaults_follow_what_the_space_chooses() -> None:
    """A method in the space brings its own defaults, and trials are evaluated once an age."""
    found = read_sweep(sweep({"method.name": ["fed_ensemble", "shefl", "fedavg"], "method.models": [3]}))
    assert found.scenario({"method.name": "shefl"}).compress.kind == "topk"
    assert found.scenario({"method.name": "fedavg"}).method.models == 1
    assert found.scenario({"method.models": 3}).evaluate.every == 3
    to = read_sweep(sweep({"method.models": [3]}, objectives=[{"name": "bytes_to_accuracy", "target": 0.5}]))
    assert to.scenario({"method.models": 3}).evaluate.every == 1


def test_parameters_of_prediction_need_no_training_of_their_own() -> None:
    """gamma, averaging and noise act at inference only, unless the course of a training decides by them."""
    assert list_inference(read_sweep(sweep({"local.lr": LR}))) == ("average", "gamma", "noise", "conformal")
    for objective, left in (
        ({"name": "bytes_to_accuracy", "target": 0.5}, ("gamma", "conformal")),
        ({"name": "personal_accuracy", "within_bytes": 1e6}, ("noise", "conformal")),
    ):
        assert list_inference(read_sweep(sweep({"local.lr": LR}, objectives=[objective]))) == left


def test_objectives_read_values_from_the_rounds_of_a_trial() -> None:
    course = [
        {"round": r, "up_bytes": 100 * r, "sim_seconds": 2.0 * r, "hold_out_accuracy": a, "hold_out_nll": 1 - a}
        for r, a in enumerate([0.1, 0.6, 0.5, 0.8])
    ]

    def value(**entry: Any) -> float:
        return compute_value(read_objective("o", entry), course)

    assert value(name="accuracy") == 0.8
    assert value(name="up_bytes") == 300
    assert value(name="bytes_to_accuracy", target=0.55) == 100
    assert value(name="seconds_to_nll", target=0.45) == 2.0
    assert value(name="rounds_to_accuracy", target=0.9) == float("inf")
    assert value(name="accuracy", within_bytes=250) == 0.5
    assert value(name="accuracy", within_seconds=2.0) == 0.6
    assert [read_objective("o", name).direction for name in ("accuracy", "nll", "up_bytes")] == [
        "maximize",
        "minimize",
        "minimize",
    ]
    assert read_objective("o", "worst_client_accuracy").metric == "hold_out_personal_worst"


def test_the_base_scenario_is_not_changed_by_reading() -> None:
    before = repr(BASE)
    read_sweep(sweep({"local.lr": LR}, overrides={"rounds": 3}))
    assert repr(BASE) == before


def test_a_name_alone_is_its_section_in_the_base_of_a_sweep_too() -> None:
    sweep = read_sweep(
        {"scenario": {"method": "fedavg", "data": "digits"}, "space": {"local.lr": [0.1]}, "objectives": "accuracy"}
    )
    scenario = sweep.scenario({"local.lr": 0.1})
    assert (scenario.method.name, scenario.data.name, scenario.data.hold_out) == ("fedavg", "digits", 0.2)


def test_a_range_for_each_value_of_another_key_could_not_be_said() -> None:
    """Each optimizer has learning rates of its own; a key stood in the space once, with one range."""
    cases: list[dict[str, Any]] = [
        {"type": "float", "low": 0.1, "high": 1, "points": 3, "when": {"local.optimizer": "sgd"}},
        {"choices": [0.001, 0.01], "when": {"local.optimizer": ["adam"]}},
    ]
    space = {"local.optimizer": ["sgd", "adam"], "local.lr": cases}
    found = read_sweep(sweep(space, sampler="grid"))
    points = [to_overrides(found.space, point) for point in enumerate_grid(found.space)]
    rates = {"sgd": [0.1, 0.55, 1.0], "adam": [0.001, 0.01]}
    assert points == [{"local.optimizer": name, "local.lr": lr} for name, each in rates.items() for lr in each]
    assert {parameter.column for parameter in found.space} == {"local.optimizer", "local.lr"}
    with pytest.raises(BadInput, match=r"space.local.lr \(adam\): local.lr = -1"):
        read_sweep(sweep({**space, "local.lr": [cases[0], {**cases[1], "choices": [-1]}]}, sampler="grid"))
