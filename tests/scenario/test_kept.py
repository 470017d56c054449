"""Files that people go on with: what a method sets by itself is not in them, and what another one keeps is said."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from sweeps import LR, run, sweep

import fedray
from fedray.core.errors import ScenarioWarning
from fedray.methods import METHOD_SPECS
from fedray.scenario.loader import drop_defaults, dump_scenario, read_scenario, to_plain
from fedray.scenario.nested import flatten
from fedray.scenario.yaml_text import load_yaml, write_yaml
from fedray.tuning.sweep import read_sweep

SHEFL: dict[str, Any] = {"method": {"name": "shefl", "models": 2}}
LINE = "method.name = fedavg keeps "


def read(source: Any, *overrides: str) -> tuple[Any, list[str]]:
    """A scenario, and the lines about what it keeps."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = read_scenario(source, overrides)
    return found, [str(one.message) for one in said if " keeps " in str(one.message)]


@pytest.mark.parametrize("spelled", [False, True], ids=["as defaults", "spelled out"])
def test_a_fedavg_made_of_the_best_trial_of_shefl_was_not_fedavg(spelled: bool, tmp_path: Path) -> None:
    """It kept top-k, equal groups and the tiers: 0.714 at 21 MB in place of 0.759 at 61 MB."""
    overrides = (
        {**SHEFL, "compress": {"kind": "topk"}, "server": {"coefficients": "equal_groups"}} if spelled else SHEFL
    )
    given = sweep({"local.lr": [0.1, 0.3], "compress.ratio": [0.1, 0.2]}, sampler="grid",
                  objectives=["accuracy", "bytes"], overrides={**overrides, "rounds": 2})  # fmt: skip
    summary, _ = run(given, tmp_path / "s", report=False)
    front = [f"pareto/{winner['number']:05d}.yaml" for winner in summary["winners"]]
    for name in ("best.yaml", *front):
        file = tmp_path / "s" / name
        tree = load_yaml(file)
        assert not {"clients.tiers.hpc.share", "compress.kind", "server.coefficients", "graph.kind"} & set(
            flatten(tree)
        )
        now, said = read(file, "method=fedavg", "local.lr=0.3")
        plain = read_scenario({**tree, "method": "fedavg", "compress": None, "local": {"lr": 0.3, "epochs": 1}})
        assert to_plain(now) | {"compress": 0} == to_plain(plain) | {"compress": 0}
        assert (now.compress.kind, now.server.coefficients, now.server.weighting) == ("dense", "fedavg", "examples")
        assert now.clients.tiers == {} and said == [f"{LINE}rounds = 2, local.epochs = 1 from the file: "
                                                    "KEY=null gives its own default"]  # fmt: skip


def test_best_yaml_of_every_scenario_is_the_trial() -> None:
    for name in METHOD_SPECS:
        keys = {"method": {"name": name}, "rounds": 7, "seed": 3, "data": "sine" if "linear" in name else "digits"}
        scenario = read_scenario(keys, explicit=False)
        for sparse in (drop_defaults(scenario), drop_defaults(scenario, keys)):
            assert read_scenario(sparse) == scenario or name == "bayesian_linear"  # which has no rounds that could act
            assert len(flatten(sparse)) < 8


def test_a_resolved_scenario_says_what_another_method_keeps_of_it(tmp_path: Path) -> None:
    done = fedray.run(
        {"rounds": 1, "clients": {"number": 6}, **SHEFL}, runtime="inline", report=False, out=tmp_path / "a"
    )
    for source in (done.path / "scenario.yaml", load_yaml(done.path / "scenario.yaml")):
        now, (line,) = read(source, "method=fedavg")
        assert now.compress.kind == "topk"
        kept = "rounds = 1, clients.tiers, compress.kind = 'topk', server.coefficients = 'equal_groups', server.weight"
        assert line.startswith(f"{LINE}{kept}") and line.endswith(" from the file: KEY=null gives its own default")
        given = ["compress=null", "server=null", "clients.tiers=null", "rounds=3"]
        assert read(source, "method=fedavg", *given)[1] == []
        assert read(source, "method.models=3")[1] == read(source)[1] == []
    with pytest.warns(ScenarioWarning, match=f"{LINE}rounds = 1, clients.tiers, compress.kind"):
        fedray.run(done.path / "scenario.yaml", method="fedavg", report=False)


def test_what_a_person_set_for_every_method_is_kept_without_a_word() -> None:
    keys = {"method": "fed_ensemble", "local": {"lr": 0.3}, "compress": {"kind": "topk"}, "rounds": 9}
    now, said = read(keys, "method=fedavg")
    assert now.compress.kind == "topk" and said == []
    now, said = read({**keys, "method": "shefl"}, "method=fedavg")  # where SHEFL has it by itself
    assert said == [f"{LINE}compress.kind = 'topk' from the file: KEY=null gives its own default"]


def test_a_sweep_over_methods_says_what_they_keep_of_its_scenario(tmp_path: Path) -> None:
    resolved = to_plain(read_scenario({**SHEFL, "clients": {"number": 8}, "data": {"hold_out": 0.2}}))
    with pytest.warns(ScenarioWarning, match=f"{LINE}clients.tiers, compress.kind = 'topk'"):
        read_sweep(sweep({"method.name": ["shefl", "fedavg"], "local.lr": LR}) | {"scenario": resolved})
    file = tmp_path / "scenario.yaml"
    file.write_text(dump_scenario(read_scenario(resolved)))
    with pytest.warns(ScenarioWarning, match=f"{LINE}clients.tiers, compress.kind = 'topk'"):
        read_sweep(sweep({"local.lr": LR}, overrides={"method": "fedavg"}) | {"scenario": str(file)})
    small = tmp_path / "small.yaml"
    small.write_text(write_yaml(drop_defaults(read_scenario(resolved))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_sweep(sweep({"local.lr": LR}, overrides={"method": "fedavg"}) | {"scenario": str(small)})
