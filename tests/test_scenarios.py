"""Every scenario file that is shipped: it says where it is from, resolves, survives YAML, builds, and trains a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedray.build import Own, build
from fedray.core import BadInput
from fedray.data import dataset
from fedray.methods import METHODS
from fedray.scenario import NamedCell, Scenario, cells, dump, read, resolved
from fedray.simulate import run_inline

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "scenarios").rglob("*.yaml"))
PAPERS = [path for path in FILES if path.parent.name == "papers"]
SMALL_WIDTHS: dict[str, dict[str, Any]] = {  # of the networks that have widths; the others are what they are
    "cnn": {"channels": [2, 4], "hidden": [4]},
    "mlp": {"hidden": [4]},
    "lstm": {"hidden": 8},
    "mobilenet_v2": {"width": 0.25},
}
FEW = 4  # clients of a network without widths

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def tiny(scenario: Scenario) -> Scenario:
    """The scenario with one round of one step a client, a few rows, and a narrow network."""
    narrow = scenario.model.name in SMALL_WIDTHS or scenario.model.name in ("linear", "rbf")
    small: dict[str, Any] = {
        "rounds": 1,
        "replicates": 1,
        "runtime": "inline",
        "data": {"fold": 0},
        "local": {"steps": 1, "batch_size": 2},
        "model": SMALL_WIDTHS.get(scenario.model.name, {}),
    }
    if scenario.data.name in ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn", "shakespeare"):
        small["data"]["limit"] = 1000 if narrow else 100
    if not narrow:
        small["clients"] = {"number": min(FEW, scenario.clients.number or FEW), "tiers": None}
        small["participation"] = None
        small["data"]["partition"] = {"name": "iid"}
    return read({key: value for key, value in resolved(scenario).items() if key not in ("table", "published")}, small)


def needs_files(scenario: Scenario) -> None:
    """Skips where the data set's files are not on this machine."""
    where = dataset.source(scenario.data.name).where
    try:
        if where is not None:
            where(None)
    except BadInput as missing:
        pytest.skip(str(missing))


def kinds(scenario: Scenario) -> list[NamedCell]:
    """The base cell, and the first cell of every method, schedule and partition."""
    base = NamedCell("base", scenario, {})
    by = {
        (c.scenario.method.name, c.scenario.schedule.kind, c.scenario.data.partition.name): c
        for c in reversed([base, *cells(scenario)])
        if c.scenario.method.name in METHODS
    }
    return list(by.values())


@every_file
def test_it_resolves_and_survives_yaml(path: Path) -> None:
    scenario = read(path)
    assert read(dump(scenario)) == scenario
    for cell in cells(scenario):
        assert read(dump(cell.scenario)) == cell.scenario
        assert all(0 < value <= 1 for name, value in cell.published.items() if name.startswith("accuracy")), cell.name


@every_file
def test_it_sets_no_path_and_no_runtime(path: Path) -> None:
    keys = yaml.safe_load(path.read_text())
    assert "root" not in keys["data"]
    assert not {"runtime", "loggers", "checkpoint"} & set(keys), "the machine's matter, not the study's"


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_its_header_names_source_setting_and_command(path: Path) -> None:
    header = "\n".join(line for line in path.read_text().splitlines() if line.startswith("#"))
    for needed in ("# Source: ", "# The paper's ", "# Ours: ", f"#   fedray table scenarios/papers/{path.name} "):
        assert needed in header


@every_file
def test_it_builds_and_trains_a_round(path: Path, tmp_path: Path) -> None:
    scenario = read(path)
    needs_files(scenario)
    for cell in kinds(scenario):
        small = tiny(cell.scenario)
        (tmp_path / cell.name).mkdir()
        summary = run_inline(small, tmp_path / cell.name, Own(), lambda shown: None)
        assert summary["rounds"] == 1, cell.name
        assert summary["totals"]["up_bytes"] > 0, cell.name
        assert all(value["mean"] == value["mean"] for value in summary["metrics"].values()), cell.name  # no NaN


@every_file
def test_every_cell_builds_as_it_is(path: Path) -> None:
    scenario = read(path)
    needs_files(scenario)
    for cell in cells(scenario):
        if cell.scenario.method.name in METHODS:
            study = build(read(resolved(cell.scenario), {"replicates": 1}))
            assert study.clients.number == (cell.scenario.clients.number or study.clients.number)
