"""Keys that cannot act, settings in which a method is another one, and what a scenario keeps."""

import re
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from key_matrix import find_missing_rows
from sweeps import run, sweep

import fedray
from fedray.core.errors import BadInput, ScenarioWarning
from fedray.methods import METHOD_SPECS
from fedray.scenario.identity import FREE_TIER_KEYS, list_result_keys, refuse_edited_scenario
from fedray.scenario.loader import dump_scenario, find_acting_keys, read_scenario, to_plain
from fedray.scenario.names import _ALIAS
from fedray.scenario.nested import expand, flatten, load_yaml
from fedray.scenario.schema import section_types

ROOT = Path(__file__).parents[2]
AVG: dict[str, Any] = {"method": {"name": "fedavg"}}


def of(name: str, **options: Any) -> dict[str, Any]:
    return {"method": {"name": name, **options}}


def test_the_matrix_of_all_keys_and_methods_has_a_row_for_every_key() -> None:
    """`python tools/long_checks.py keys` runs its cells: no key is silent."""
    assert find_missing_rows() == set()


IDLE = re.findall(r'>>> read\("(.*)"\)\n.* cannot act, because', (ROOT / "tests/wording/scenario.txt").read_text())


@pytest.mark.parametrize("tree", IDLE)
def test_a_resolved_scenario_is_read_back_without_a_word(tree: str) -> None:
    """It holds every key, so none of them says what a user wanted: run directories, trials and cells."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spelled = read_scenario(f"{tree}\n", explicit=False)
        assert read_scenario(dump_scenario(spelled)) == spelled
        assert read_scenario(to_plain(spelled), ["seed=7"]).seed == 7


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
        ("local.lr", 0.01),
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


def test_a_base_key_that_only_a_cell_reads_stays() -> None:
    tree = {"server": {"lr": 0.1}, "table": [{"name": "adam", "overrides": {"server.optimizer": "adam"}}]}
    assert read_scenario(tree).server.lr == 0.1


def test_a_scenario_without_tf32_is_written_as_it_was_before_the_key() -> None:
    """A resumed sweep compares the text of trials, and deletes those of other values."""
    tiers = {"gpu": {"num_gpus": 1}}
    plain, off, on = (
        read_scenario({"clients": {"tiers": tiers, **keys}}) for keys in ({}, {"tf32": False}, {"tf32": True})
    )
    assert dump_scenario(plain) == dump_scenario(off) and "tf32" not in dump_scenario(plain)
    assert to_plain(on)["clients"]["tf32"] is True and read_scenario(dump_scenario(on)) == on != plain


# -- Files that people go on with: what a method sets by itself is not in them, and what another one keeps is said

SHEFL: dict[str, Any] = {"method": {"name": "shefl", "models": 2}}
LINE = "method.name = fedavg keeps "


def read_kept(source: Any, *overrides: str) -> tuple[Any, list[str]]:
    """A scenario, and the lines about what it keeps."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = read_scenario(source, overrides)
    return found, [str(one.message) for one in said if " keeps " in str(one.message)]


def test_a_fedavg_made_of_the_best_trial_of_shefl_was_not_fedavg(tmp_path: Path) -> None:
    given = sweep({"local.lr": [0.1, 0.3], "compress.ratio": [0.1, 0.2]}, sampler="grid",
                  objectives=["accuracy", "bytes"], overrides={**SHEFL, "rounds": 2})  # fmt: skip
    summary, _ = run(given, tmp_path / "s", report=False)
    front = [f"pareto/{winner['number']:05d}.yaml" for winner in summary["winners"]]
    for name in ("best.yaml", *front):
        file = tmp_path / "s" / name
        tree = load_yaml(file)
        assert not {"clients.tiers.hpc.share", "compress.kind", "server.coefficients", "graph.kind"} & set(
            flatten(tree)
        )
        now, said = read_kept(file, "method=fedavg", "local.lr=0.3")
        plain = read_scenario({**tree, "method": "fedavg", "compress": None, "local": {"lr": 0.3, "epochs": 1}})
        assert to_plain(now) | {"compress": 0} == to_plain(plain) | {"compress": 0}
        assert (now.compress.kind, now.server.coefficients, now.server.weighting) == ("dense", "fedavg", "examples")
        assert now.clients.tiers == {} and said == []


def test_best_yaml_of_every_scenario_is_the_trial() -> None:
    for name in METHOD_SPECS:
        keys = {"method": {"name": name}, "rounds": 7, "seed": 3, "data": "sine" if "linear" in name else "digits"}
        scenario = read_scenario(keys, explicit=False)
        for given in (keys, to_plain(scenario)):
            found = find_acting_keys(scenario, given)
            assert read_scenario(found) == scenario or name == "bayesian_linear"  # which has no rounds that could act
            assert given is not keys or len(flatten(found)) < 8


def test_a_resolved_scenario_says_what_another_method_keeps_of_it() -> None:
    done = fedray.run({"rounds": 1, "clients": {"number": 6}, **SHEFL}, runtime="inline", report=False)
    for source in (done.path / "scenario.yaml", load_yaml(done.path / "scenario.yaml")):
        now, (line,) = read_kept(source, "method=fedavg")
        assert now.compress.kind == "topk"
        kept = "rounds = 1, clients.tiers, compress.kind = 'topk', server.coefficients = 'equal_groups', server.weight"
        assert line.startswith(f"{LINE}{kept}") and line.endswith(" from the file: KEY=null gives its own default")
        given = ["compress=null", "server=null", "clients.tiers=null", "rounds=3"]
        assert read_kept(source, "method=fedavg", *given)[1] == []
        assert read_kept(source, "method.models=3")[1] == read_kept(source)[1] == []
    with pytest.warns(ScenarioWarning, match=f"{LINE}rounds = 1, clients.tiers, compress.kind"):
        fedray.run(done.path / "scenario.yaml", method="fedavg", report=False)


def test_what_a_person_set_for_every_method_is_kept_without_a_word() -> None:
    keys = {"method": "fed_ensemble", "local": {"lr": 0.3}, "compress": {"kind": "topk"}, "rounds": 9}
    now, said = read_kept(keys, "method=fedavg")
    assert now.compress.kind == "topk" and said == []
    now, said = read_kept({**keys, "method": "shefl"}, "method=fedavg")  # where SHEFL has it by itself
    assert said == [f"{LINE}compress.kind = 'topk' from the file: KEY=null gives its own default"]


# -- Every key of a scenario decides its results, and a run goes on with no other value, unless the page says it may

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "identity.md"
SECTIONS = {section.replace("*", "a") for section in section_types()}  # a tier named a
KEYS = [
    f"{section}.{'mine' if one.name == 'options' else one.name}".removeprefix(".").replace("*", "a")
    for section, owner in section_types().items()
    if section != "table.*"  # a list, which counts as a whole
    for one in fields(owner)
]
LEAVES = [key for key in KEYS if key not in SECTIONS]


def test_no_remedy_is_a_key_that_is_refused_in_turn() -> None:
    assert {key.replace("NAME", "a") for key in _ALIAS.values()} <= {*KEYS}


def find_refusal(key: str) -> str:
    """What is said where a run goes on with another value of a key; empty where it may."""
    before, after = (expand({"rounds": 3, key: value}) for value in ("one", "two"))
    began = {"rounds": before["rounds"], "scenario": list_result_keys(before)}
    refuse_edited_scenario("run", began, before)
    try:
        refuse_edited_scenario("run", began, after)
    except BadInput as error:
        return str(error)
    return ""


def test_a_run_goes_on_with_another_value_of_no_key_but_those_that_the_page_lists() -> None:
    """Keys of a tier stand here as those of the tier a."""
    named = PAGE.read_text().split("These keys may be edited in `scenario.yaml`")[1].split("\n- ")[0]
    names = re.findall(r"`([a-z_.]+)`", named)
    listed = {f"clients.tiers.a.{name}" if name in FREE_TIER_KEYS else name for name in names}
    said = {key: find_refusal(key) for key in LEAVES}
    free = {key for key in LEAVES if {key, key.split(".")[0]} & listed}
    assert {key for key, line in said.items() if not line} == free
    for key, line in said.items():
        assert not line or line.startswith(f"run/scenario.yaml has {key} = two, but the run began with one: restore it")
    assert len(LEAVES) > 130 and "local.lr" in LEAVES and "clients.tiers.a.uplink" in LEAVES
