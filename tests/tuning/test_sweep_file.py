"""Sweep files: what is right means what it says; what is wrong stands in `tests/wording/sweep.txt`."""

from pathlib import Path
from typing import Any

import pytest
from real_files import skipping_without_files
from sweeps import BASE, LR, sweep

from fedray.core.errors import BadInput, FedrayError
from fedray.scenario import nested as yaml_text
from fedray.tuning.space import (
    compute_value,
    enumerate_corners,
    enumerate_grid,
    name_objective,
    read_objective,
    read_space,
    to_overrides,
)
from fedray.tuning.sweep import Sweep, read_sweep
from fedray.tuning.tune import run_sweep

FILES = sorted((Path(__file__).parents[2] / "tune").glob("*.yaml"))


def list_inference(found: Sweep) -> tuple[str, ...]:
    """Keys of `predict` that the training of the base scenario does not depend on."""
    return found.list_shared_keys(found.scenario({}))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_sweep_is_read_and_runs_a_trial(path: Path, tmp_path: Path) -> None:
    found = read_sweep(path)
    assert found.scenario({}).data.hold_out == 0.2 and len(list(enumerate_corners(found.space))) >= 2
    tree = yaml_text.load_yaml(path)
    if isinstance(tree["scenario"], str):
        tree["scenario"] = str(path.parent / tree["scenario"])
    tree["overrides"] = {**tree.get("overrides", {}), "rounds": 2}
    with skipping_without_files():
        summary = run_sweep({**tree, "jobs": 1}, tmp_path / "s", trials=1, say=lambda _line: None)
    assert (summary["complete"], summary["trainings"]) == (1, 1)


@pytest.mark.parametrize("objectives", [["accuracy", "personal_accuracy"], ["conformal_coverage_client_worst"]])
def test_a_key_that_one_of_the_objectives_reads_is_searched(objectives: list[str]) -> None:
    wanted = [{"name": name, "direction": "maximize"} for name in objectives]
    found = sweep({"predict.gamma": [0.05, 1.0]}, objectives=wanted, overrides={"predict.conformal.alpha": 0.1})
    assert "gamma" in list_inference(read_sweep(found))
    splits = "hold_out_personal", "hold_out_tier_a", "train_personal"
    rule, tier, train = ({"metric": f"{split}_accuracy"} for split in splits)
    ends = {"evaluate.stop_at": {**rule, "value": 0.9}}, {"stop": tier}, {"stop": train, "evaluate.train": True}
    for stopped in ends:
        assert "gamma" not in list_inference(read_sweep(sweep({"predict.gamma": [0.05, 1.0]}, overrides=stopped)))


def test_a_key_that_another_one_of_the_space_makes_act_is_searched() -> None:
    space = {"server.momentum": [0.5, 0.9], "server.optimizer": ["none", "momentum"]}
    assert [parameter.key for parameter in read_sweep(sweep(space)).space] == list(space)


def test_reading_keeps_the_name_in_a_copy_and_changes_nothing(tmp_path: Path) -> None:
    """The name is the study's in its storage: the copy in the run directory goes on with the same one."""
    first, before = read_sweep(FILES[0].with_name("quick.yaml")), repr(BASE)
    (tmp_path / "sweep.yaml").write_text(yaml_text.write_yaml(dict(first.source)))
    assert read_sweep(tmp_path / "sweep.yaml").name == first.name == "quick"
    read_sweep(sweep({"local.lr": LR}, overrides={"rounds": 3}))
    assert repr(BASE) == before


def test_keys_that_change_together_are_the_sections_that_say_the_same() -> None:
    """K and the width of its networks cannot be one section: a sweep over both trained what nobody asked for."""
    joint = read_space({"method.models, model.hidden": [[2, [32]], [4, [16, 8]]], "local.lr": [0.1, 0.3]})
    found = [to_overrides(joint, point) for point in enumerate_grid(joint)]
    wanted = [(2, [32], 0.1), (2, [32], 0.3), (4, [16, 8], 0.1), (4, [16, 8], 0.3)]
    assert [tuple(one[key] for key in ("method.models", "model.hidden", "local.lr")) for one in found] == wanted
    assert joint[0].labels == ["[2, [32]]", "[4, [16, 8]]"]
    assert len({repr(one) for one in found}) == 4 and all(len(one) == 3 for one in found)


def test_a_grid_holds_every_combination_once_and_conditions_cut_it() -> None:
    share = {"type": "float", "low": 0, "high": 0.9, "points": 3, "when": {"local.optimizer": "sgd"}}
    models = {"type": "int", "low": 1, "high": 5, "step": 2}
    space = {"local.optimizer": ["sgd", "adam"], "local.momentum": share, "method.models": models}
    points = enumerate_grid(read_space(space))
    assert len(points) == 3 * 3 + 3 and {p["method.models"] for p in points} == {1, 3, 5}
    assert all(("local.momentum" in p) == (p["local.optimizer"] == "sgd") for p in points)
    assert read_space({"local.lr": LR | {"points": 3}})[0].grid() == pytest.approx([0.01, 0.1, 1.0])


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
    with pytest.raises(BadInput, match="local.lr = -1"):
        read_sweep(sweep({**space, "local.lr": [cases[0], {**cases[1], "choices": [-1]}]}, sampler="grid"))


def test_lists_and_infinity_can_be_choices() -> None:
    space = {"model.hidden": [[8], [8, 8]], "predict.gamma": [0.1, float("inf")]}
    found = read_sweep(sweep(space, objectives=["personal_accuracy"]))
    labels = [parameter.labels for parameter in found.space]
    assert found.scenario({"model.hidden": labels[0][1]}).model.options["hidden"] == [8, 8]
    assert found.scenario({"predict.gamma": labels[1][1]}).predict.gamma == float("inf")


def test_defaults_follow_what_the_space_chooses() -> None:
    """A method in the space brings its own defaults, and trials are evaluated once an age."""
    found = read_sweep(sweep({"method.name": ["fed_ensemble", "shefl", "fedavg"], "method.models": [3]}))
    assert found.scenario({"method.name": "shefl"}).compress.kind == "topk"
    assert found.scenario({"method.name": "fedavg"}).method.models == 1
    assert found.scenario({"method.models": 3}).evaluate.every == 3
    for objective in ({"name": "bytes_to_accuracy", "target": 0.5}, {"name": "accuracy", "within_bytes": 250}):
        budget = read_sweep(sweep({"method.models": [3]}, objectives=[objective], overrides={"evaluate.every": 9}))
        assert budget.scenario({"method.models": 3}).evaluate.every == 1
    keys = {"scenario": {"method": "fedavg", "data": "digits"}, "space": {"local.lr": [0.1]}, "objectives": "accuracy"}
    named = read_sweep(keys).scenario({"local.lr": 0.1})  # a name alone is its section
    assert (named.method.name, named.data.name, named.data.hold_out) == ("fedavg", "digits", 0.2)


def test_parameters_of_prediction_need_no_training_of_their_own() -> None:
    """gamma, averaging and noise act at inference only, unless the course of a training decides by them."""
    assert list_inference(read_sweep(sweep({"local.lr": LR}))) == ("average", "gamma", "noise", "conformal")
    for objective, left in (
        ({"name": "bytes_to_accuracy", "target": 0.5}, ("gamma", "conformal")),
        ({"name": "personal_accuracy", "within_bytes": 1e6}, ("noise", "conformal")),
    ):
        assert list_inference(read_sweep(sweep({"local.lr": LR}, objectives=[objective]))) == left


COURSE = [
    {"round": r, "up_bytes": 10 * r, "down_bytes": 90 * r, "sim_seconds": 2.0 * r, "hold_out_accuracy": a}
    | {"hold_out_nll": 1 - a}
    for r, a in enumerate([0.1, 0.6, 0.5, 0.8])
]


@pytest.mark.parametrize(("entry", "value", "name"), [
    ({"name": "accuracy"}, 0.8, "accuracy"),
    ({"name": "up_bytes"}, 30, "uplink"),
    ({"name": "bytes"}, 300, "bytes up and down"),
    ({"name": "bytes_to_accuracy", "target": 0.55}, 100, "bytes up and down to accuracy 55.0 %"),
    ({"name": "up_bytes_to_accuracy", "target": 0.55}, 10, "uplink bytes to accuracy 55.0 %"),
    ({"name": "seconds_to_nll", "target": 0.45}, 2.0, "seconds to NLL 0.45"),
    ({"name": "rounds_to_accuracy", "target": 0.9}, float("inf"), "rounds to accuracy 90.0 %"),
    ({"name": "accuracy", "within_bytes": 250}, 0.5, "accuracy within 250 B up and down"),
    ({"name": "accuracy", "within_up_bytes": 25}, 0.5, "accuracy within 25 B up"),
    ({"name": "accuracy", "within_seconds": 2.0}, 0.6, "accuracy within 2 s"),
], ids=str)  # fmt: skip
def test_objectives_read_values_from_the_rounds_and_say_which_bytes_they_count(
    entry: dict[str, Any], value: float, name: str
) -> None:
    objective = read_objective("o", entry)
    assert compute_value(objective, COURSE) == value and name_objective(objective) == name
    assert objective.direction == ("maximize" if entry["name"] == "accuracy" else "minimize")


def test_a_budget_of_a_sweep_was_read_at_an_evaluation_long_before_it() -> None:
    objective = read_objective("o", {"name": "accuracy", "within_bytes": 250})
    for seldom in ([COURSE[0], COURSE[3]], [*COURSE[:2], COURSE[3]]):  # at 40 % of it, then at 120 %
        with pytest.raises(FedrayError):
            compute_value(objective, seldom)
    later = {**COURSE[3], "round": 4, "up_bytes": 40, "down_bytes": 360}
    assert compute_value(objective, [COURSE[0], COURSE[2], later]) == pytest.approx(0.5 + 0.3 / 4)
