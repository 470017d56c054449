"""A key that a user sets and nothing reads is refused, or named where an override or a cell made it so."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from small import run_command, scenario

import fedray
from fedray.core.errors import BadInput, ScenarioWarning
from fedray.scenario.loader import dump_scenario, read_cells, read_scenario, to_plain

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "scenarios" / "quickstart.yaml"
AVG: dict[str, Any] = {"method": {"name": "fedavg"}}
WALK: dict[str, Any] = {"method": {"name": "random_walk"}}
TIERS: dict[str, Any] = {"clients": {"tiers": {"a": {"share": 0.5}, "b": {"share": 0.5}}}}


def of(name: str, **options: Any) -> dict[str, Any]:
    return {"method": {"name": name, **options}}


SILENT: list[tuple[str, dict[str, Any]]] = [  # the key, and the scenario in which nothing read it
    ("server.lr", {"server": {"lr": 0.1}}),
    ("server.momentum", {"server": {"momentum": 0.5}}),
    ("server.trim", {"server": {"trim": 2}}),
    ("server.byzantine", {"server": {"robust": "trimmed_mean", "byzantine": 2}}),
    ("server.coefficients", {**of("fedag"), **TIERS, "server": {"coefficients": "equal_groups"}}),
    ("server.coefficients", {**of("fedbe"), **TIERS, "server": {"coefficients": "equal_groups"}}),
    ("server.coefficients", {**WALK, **TIERS, "server": {"coefficients": "equal_groups"}}),
    ("server.coefficients", {**of("local_only"), **TIERS, "server": {"coefficients": "equal_groups"}}),
    ("server.coefficients", {**AVG, "server": {"coefficients": "equal_groups"}}),
    ("server.weighting", {**WALK, "server": {"weighting": "examples"}}),
    ("local.momentum", {"local": {"optimizer": "adam", "momentum": 0.9}}),
    ("local.lr", {"local": {"lr": 0.1, "lr_grid": [0.1, 0.2]}}),
    ("local.lr_decay_every", {"local": {"lr_decay_every": 5, "lr_decay": 1}}),
    ("compress.ratio", {"compress": {"ratio": 0.5}}),
    ("compress.adaptive", {"compress": {"adaptive": True}}),
    ("compress.error_feedback", {"compress": {"error_feedback": True}}),
    ("compress.resource_ratio", {"compress": {"resource_ratio": 3}}),
    ("compress.resource_ratio", {**AVG, "compress": {"kind": "topk", "resource_ratio": 3}}),
    ("graph.neighbours", {**WALK, "graph": {"neighbours": 6}}),
    ("graph.probability", {**WALK, "graph": {"probability": 0.5}}),
    ("method.samples", of("fedag", samples=5)),
    ("method.beta", of("fedag", beta="residual")),
    ("method.residuals", of("fedag", sampling="omc", residuals="mean")),
    ("method.residuals", of("fedag", residuals="mean")),
    ("method.fold_number", of("stacking", fold_number=3)),
    ("method.meta_lr", of("stacking", meta="average", meta_lr=0.1)),
    ("method.meta_rounds", of("stacking", meta="average", meta_rounds=3)),
    ("model.hidden", {**of("stacking", bases=[{"name": "linear"}]), "model": {"hidden": [8]}}),
    ("predict.average", {**AVG, "predict": {"average": "logits"}}),
    ("predict.gamma", {**AVG, "predict": {"gamma": 0.1}}),
    ("predict.gamma", {**of("ditto", models=2), "predict": {"gamma": 0.1}}),
    ("predict.noise", {"predict": {"noise": "residual"}}),
    ("predict.noise", {**of("deep_ensemble"), "data": {"name": "cubic"}, "predict": {"noise": "residual"}}),
    ("clients.tiers.a.downlink", {**of("federated_bagging"), "clients": {"tiers": {"a": {"downlink": 1e3}}}}),
    ("clients.tiers.a.downlink", {**of("local_only"), "clients": {"tiers": {"a": {"downlink": 1e3}}}}),
    ("clients.tiers.a.downlink", {**of("fens", aggregator="mean"), "clients": {"tiers": {"a": {"downlink": 1e3}}}}),
    ("clients.tiers.a.downlink", {**of("beta_predbayes"), "clients": {"tiers": {"a": {"downlink": 1e3}}}}),
    ("participation.fraction", {**of("beta_predbayes"), "participation": {"fraction": 0.5}}),
    ("method.beta_lr", of("beta_predbayes", beta=0.5, beta_lr=0.1)),
    ("clients.tiers.a.width", {"clients": {"tiers": {"a": {"width": 0.5}}}}),
    ("clients.tiers.a.width", {**of("centralized"), "clients": {"tiers": {"a": {"width": 0.5}}}}),
    ("model.hidden", {**of("feddf", networks=[{"name": "linear"}]), "model": {"hidden": [8]}}),
    ("predict.conformal.penalty", {"data": {"hold_out": 0.2}, "predict": {"conformal": {"penalty": 0.1}}}),
    ("predict.conformal.k_reg", {"data": {"hold_out": 0.2}, "predict": {"conformal": {"score": "aps", "k_reg": 2}}}),
    ("participation.overcommit", {"participation": {"overcommit": 1.5}}),
    ("participation.staleness_a", {"participation": {"staleness_a": 1.0}}),
    (
        "evaluate.every",
        {"participation": {"mode": "async"}, "evaluate": {"every": 2, "every_seconds": 0.5}},
    ),
    ("schedule.kind", {**AVG, "schedule": {"kind": "random"}}),
    ("vary", {"vary": "init"}),
    ("clients.number", {**of("centralized"), "clients": {"number": 7}}),
    ("data.partition.name", {**of("centralized"), "data": {"partition": {"name": "classes"}}}),
    ("data.partition.skew", {"data": {"partition": {"name": "dirichlet_clients", "skew": 3}}}),
    *(
        (f"data.partition.{key}", {"data": {"partition": {"name": "dirichlet_clients", "sizes": [9, 9], key: 3}}})
        for key in ("skew", "min_rows")
    ),
    ("local.epochs", {**of("bayesian_linear"), "data": {"name": "cubic"}, "local": {"epochs": 3}}),
    ("compress.kind", {**of("bayesian_linear"), "data": {"name": "cubic"}, "compress": {"kind": "topk"}}),
]


@pytest.mark.parametrize(("key", "tree"), SILENT)
def test_a_key_that_nothing_reads_is_refused(key: str, tree: dict[str, Any]) -> None:
    """It was taken in silence: key, value, reason and remedy in one line."""
    with pytest.raises(BadInput, match=rf"^{key} = .* cannot act, because .*: leave it out") as wrong:
        read_scenario(tree)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize(("key", "tree"), SILENT)
def test_a_resolved_scenario_is_read_back_without_a_word(key: str, tree: dict[str, Any]) -> None:
    """It holds every key, so none of them says what a user wanted: run directories, trials and cells."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spelled = read_scenario(tree, explicit=False)
        assert read_scenario(dump_scenario(spelled)) == spelled
        assert read_scenario(to_plain(spelled), ["seed=7"]).seed == 7
    assert key


def test_a_key_of_the_command_line_that_nothing_reads_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^server.lr = 0.1 cannot act"):
        read_scenario(QUICKSTART, ["server.lr=0.1"])


def test_a_key_that_an_override_makes_idle_is_a_warning_and_not_an_error() -> None:
    with pytest.warns(ScenarioWarning, match=r"^predict.gamma cannot act, because method.models is 1$") as said:
        assert read_scenario(QUICKSTART, ["method.name=fedavg"]).method.name == "fedavg"
    assert len(said) == 1


def test_the_remedy_of_a_mode_that_a_method_does_not_have_is_taken() -> None:
    """`set it to sync` says the line, also where all rows are one client's."""
    with pytest.raises(BadInput, match="participation.mode = async, but centralized .*: set it to sync"):
        read_scenario({**of("centralized"), "participation": {"mode": "async"}})
    assert read_scenario({**of("centralized"), "participation": {"mode": "sync"}}).participation.mode == "sync"
    assert read_scenario({**of("adaboost_f"), "model": {"objective": "auto"}}).model.objective == "auto"


def test_what_says_that_nothing_is_done_may_stand_anywhere() -> None:
    nothing = {"server": {"optimizer": "none", "robust": "none"}, "compress": {"kind": "dense", "adaptive": False}}
    found = read_scenario({**of("local_only"), **nothing, "local": {"momentum": 0, "optimizer": "adam"}})
    assert (found.server.optimizer, found.compress.kind, found.local.momentum) == ("none", "dense", 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.lr", 1.0),
        ("compress.ratio", 1),
        ("compress.resource_ratio", 1),
        ("lanes", "auto"),
        ("participation.alpha", 1),
        ("participation.staleness", "constant"),
        ("clients.tiers.all.share", 1),
        ("clients.tiers.all.models_per_round", 1),
        ("clients.tiers.all.width", 1),
        ("schedule.rows", "client"),
        ("local.schedule.gamma", 1),
        ("clients.number", 1),
        ("data.partition.name", "iid"),
        ("participation.per_round", 1),
    ],
)
def test_a_value_that_changes_nothing_is_not_refused_where_its_key_cannot_act(key: str, value: object) -> None:
    """Files that are translated from other tools hold them, such as a server's rate of 1."""
    for tree in (AVG, of("centralized"), of("adaboost_f"), {**of("bayesian_linear"), "data": {"name": "cubic"}}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert read_scenario(tree, {key: value}).method.name == tree["method"]["name"]


def test_a_random_walk_that_says_that_it_walks_is_not_refused() -> None:
    """The line about other schedules said: leave it at walk."""
    assert read_scenario(WALK, ["schedule.kind=walk"]).schedule.kind == "walk"


@pytest.mark.parametrize("method", ["heterofl", "preweak_f", "centralized", "fedavg", "fens", "bayesian_linear"])
def test_overrides_that_name_new_tiers_do_not_end_in_a_key_error(method: str) -> None:
    """The tiers were looked up in the scenario before the overrides."""
    tiers = ["clients.tiers.a.share=0.5", "clients.tiers.b.share=0.5", "clients.tiers.b.width=0.5"]
    try:
        found = read_scenario(QUICKSTART, [f"method={method}", *tiers, "predict.gamma="])
    except BadInput as wrong:
        assert re.match(r"clients\.tiers\.[ab]\.\w+ = 0.5 cannot act, because ", str(wrong))
    else:
        assert (method, found.clients.tiers["b"].width) == ("heterofl", 0.5)


def test_a_key_that_some_cells_read_is_named_with_the_others() -> None:
    tree = {
        "method": {"models": 3},
        "predict": {"gamma": 0.1},
        "table": [{"name": "one", "overrides": {"method": {"name": "fedavg"}}}, {"name": "all"}],
    }
    with pytest.warns(ScenarioWarning, match=r"^predict.gamma cannot act in cell one, because method.models is 1$"):
        found = read_scenario(tree)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cell in read_cells(found):
            read_scenario(dump_scenario(cell.scenario))
        read_scenario(dump_scenario(found))


def test_a_cell_that_sets_a_key_that_nothing_reads_is_refused() -> None:
    tree = {"table": [{"name": "one", "overrides": {"server.lr": 0.1}}]}
    with pytest.raises(BadInput, match=r"^table.one: server.lr = 0.1 cannot act"):
        read_scenario(tree)


def test_a_base_key_that_only_a_cell_reads_stays() -> None:
    tree = {"server": {"lr": 0.1}, "table": [{"name": "adam", "overrides": {"server.optimizer": "adam"}}]}
    assert read_scenario(tree).server.lr == 0.1


LIMITS: list[tuple[str, dict[str, Any]]] = [
    ("FedAvg", of("fed_ensemble", models=1)),
    ("FedDyn", of("feddyn_ensemble", models=1)),
    ("FedAvg", of("fedprox", mu=0)),
    ("local training", of("lg_fedavg", shared_layers=0)),
    ("error feedback keeps nothing back", {"compress": {"kind": "topk", "ratio": 1, "error_feedback": True}}),
    ("the plain mean", {"server": {"robust": "trimmed_mean", "trim": 0}}),
    ("uniform", {**WALK, "graph": {"transition": "metropolis"}}),
]


@pytest.mark.parametrize(("other", "tree"), LIMITS)
def test_a_setting_in_which_a_method_is_another_one_is_named(other: str, tree: dict[str, Any]) -> None:
    with pytest.warns(ScenarioWarning, match=other):
        read_scenario(tree)


def test_lg_fedavg_that_shares_every_layer_says_that_it_is_fedavg() -> None:
    """On the quickstart's network of two layers it was FedAvg to the bit, by default."""
    assert read_scenario(of("lg_fedavg")).method.options["shared_layers"] == 1
    with pytest.warns(ScenarioWarning, match="makes lg_fedavg FedAvg"):
        whole = fedray.run(scenario(of("lg_fedavg", shared_layers=2), {"rounds": 1}))
    plain = fedray.run(scenario(AVG, {"rounds": 1}))
    assert whole.summary["model_hash"] == plain.summary["model_hash"]


def test_the_command_line_says_it_in_one_line_of_standard_error(tmp_path: Path) -> None:
    for command in (["check"], ["run", "--out", tmp_path / "run"]):
        small = ["runtime=inline", "rounds=1", "clients.number=10", "local.epochs=1", "report=false"]
        done = run_command(*command, QUICKSTART, "method.name=fedavg", *small)
        assert done.status == 0
        assert done.err.count("fedray: note: predict.gamma cannot act, because method.models is 1\n") == 1
    done = run_command("check", QUICKSTART, "compress.ratio=0.5")
    assert (done.status, done.err.count("\n")) == (2, 1)


def test_tf32_acts_where_a_gpu_multiplies_matrices() -> None:
    gpus = {"number": 4, "tf32": True, "tiers": {"gpu": {"num_gpus": 1}}}
    assert read_scenario({"clients": gpus}).clients.tf32
    learners = {**of("adaboost_f"), "clients": gpus}
    for keys, why in (
        ({"clients": {"number": 4, "tf32": True}}, r"no tier has GPUs \(clients.tiers.\*.num_gpus\): leave it out"),
        ({"clients": {**gpus, "device": "cpu"}}, "clients.device is cpu: leave it out"),
        (learners, "in adaboost_f clients fit method.learner, and trees multiply no matrices: leave it out"),
    ):
        with pytest.raises(BadInput, match=f"clients.tf32 = true cannot act, because {why}"):
            read_scenario(keys)
    assert not read_scenario({"clients": {"number": 4, "tf32": False}}).clients.tf32


def test_a_scenario_without_tf32_is_written_as_it_was_before_the_key() -> None:
    """A resumed sweep compares the text of trials, and deletes those of other values."""
    tiers = {"gpu": {"num_gpus": 1}}
    plain, off, on = (
        read_scenario({"clients": {"tiers": tiers, **keys}}) for keys in ({}, {"tf32": False}, {"tf32": True})
    )
    assert dump_scenario(plain) == dump_scenario(off) and "tf32" not in dump_scenario(plain)
    assert to_plain(on)["clients"]["tf32"] is True and read_scenario(dump_scenario(on)) == on != plain
