"""Every scenario file that is shipped says where it is from, resolves, survives YAML, builds, and trains a round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_files import is_missing

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study, open_data
from fedray.core.errors import BadInput
from fedray.data.types import Dataset, Split, classification, limit_rows
from fedray.experiments.run import run_inline
from fedray.methods import METHODS
from fedray.scenario.loader import NamedCell, dump_scenario, read_cells, read_scenario, to_plain
from fedray.scenario.schema import Scenario
from fedray.storage.directory import make_run_directory

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios").rglob("*.yaml"))
PAPERS = [path for path in FILES if path.parent.name == "papers"]
NARROW: dict[str, dict[str, Any]] = {  # of the networks that have widths
    "cnn": {"channels": [2, 4], "hidden": [4]},
    "mlp": {"hidden": [4]},
    "lstm": {"hidden": 8},
}
DEEP = ("densenet", "mobilenet_v2", "resnet18", "resnet34", "shufflenet_v2", "vgg11")
BASES = [{"name": "mlp", "hidden": [4]}, {"name": "cnn", **NARROW["cnn"]}]  # of a stack
IMAGES = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn")
SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), **dict.fromkeys(IMAGES[3:], (3, 32, 32))}
ROWS = 4000  # of a stand-in

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@cache
def read(path: Path) -> tuple[Scenario, tuple[str, ...]]:
    """A file as a scenario, and the warnings that it gave."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scenario = read_scenario(path)
    return scenario, tuple(str(one.message) for one in said)


def tiny(scenario: Scenario) -> Scenario:
    """The scenario with one round of one step a client, a few rows, and narrow networks: a CNN for the deep ones."""
    name = scenario.model.name
    model = NARROW.get(name, {}) if name in (*NARROW, "linear", "rbf") else {"name": "cnn", **NARROW["cnn"]}
    rows = 2000 if scenario.data.name == "cifar100" else 1000  # it deals 20 shards to each of 100 clients
    small: dict[str, Any] = {
        "rounds": 1,
        "replicates": 1,
        "runtime": "inline",
        "data": {"fold": 0, **({"limit": rows} if scenario.data.name in IMAGES else {})},
        "local": {"steps": 1, "batch_size": 2},
        "model": model,
        **({"predict": {"conformal": {"alpha": 0.5}}} if scenario.predict.conformal else {}),
        **({"method": {"bases": BASES, "meta_rounds": 1}} if scenario.method.name == "stacking" else {}),
        **({"method": {"meta_rounds": 1}} if scenario.method.name == "fens" else {}),
    }
    return alone(scenario, small)


def alone(scenario: Scenario, small: dict[str, Any]) -> Scenario:
    """The scenario without its table, and with other keys."""
    return read_scenario(
        {key: value for key, value in to_plain(scenario).items() if key not in ("table", "published")},
        small,
        explicit=False,
    )


def short(scenario: Scenario) -> Scenario:
    """The scenario with its own deep network: one model, two clients, one step each."""
    small: dict[str, Any] = {
        "rounds": 1,
        "replicates": 1,
        "runtime": "inline",
        "method": {"name": "fedavg"},
        "data": {"limit": 20, "partition": {"name": "iid"}},
        "clients": {"number": 2, "tiers": None},
        "participation": None,
        "schedule": None,
        "graph": None,
        "local": {"steps": 1, "batch_size": 2},
    }
    return alone(scenario, small)


def data_of(scenario: Scenario) -> UserObjects:
    """The data set; where its files are not on this machine, noise of its shape for pictures, and a skip for others.

    Any other complaint is a failure.
    """
    try:
        open_data(scenario, UserObjects())
    except BadInput as error:
        if not is_missing(error):
            raise
        if scenario.data.name not in SHAPES:
            pytest.skip(str(error))
        return UserObjects(data=noise(scenario.data.name))
    return UserObjects()


def noise(name: str) -> Dataset:
    """Pictures of random grey, with as many classes and of the shape that the set has, also out of distribution."""
    numbers, classes = np.random.default_rng(0), 100 if name == "cifar100" else 10
    x = numbers.integers(0, 256, size=(ROWS, *SHAPES[name]), dtype=np.uint8)
    y = np.arange(ROWS) % classes
    return classification(name, Split(x, y), Split(x[:200], y[:200]), tuple(map(str, range(classes))))._replace(
        ood=x[:200]
    )


def find_kinds(cells: list[NamedCell], names: Callable[[Scenario], Hashable]) -> list[NamedCell]:
    """The first cell of each kind, whose method is not a user's own."""
    by = {names(cell.scenario): cell for cell in reversed(cells) if cell.scenario.method.name in METHODS}
    return list(by.values())


def trained_names(s: Scenario) -> Hashable:
    """What cells differ in when they train."""
    return s.method.name, s.schedule.kind, s.data.partition.name


def built_names(s: Scenario) -> Hashable:
    """What cells differ in when they are built: whatever deals the rows, and what names the other parts."""
    parts = (s.model.name, s.data.name, repr(s.data.partition), s.schedule.kind, s.server.robust, s.participation.mode)
    return s.method.name, *parts


@every_file
def test_it_resolves_and_survives_yaml_and_sets_no_path(path: Path) -> None:
    scenario, _ = read(path)
    assert read_scenario(dump_scenario(scenario)) == scenario
    cells = read_cells(scenario)
    for cell in cells:
        assert cell.scenario.data.root is None, cell.name
        assert all(0 < value <= 1 for name, value in cell.published.items() if name.startswith("accuracy")), cell.name
    for cell in find_kinds(cells, built_names):
        assert read_scenario(dump_scenario(cell.scenario)) == cell.scenario


@every_file
def test_it_holds_no_idle_keys(path: Path) -> None:
    """Except where a method of a table leaves one unread, which is named with its cells."""
    scenario, said = read(path)
    assert all("cell" in one for one in said) and (scenario.table or not said)


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_its_header_names_source_and_command(path: Path) -> None:
    header = "\n".join(line for line in path.read_text().splitlines() if line.startswith("#"))
    for needed in ("# Source: ", "paper", f"#   fedray table scenarios/papers/{path.name} "):
        assert needed in header


SAME = {f"shefl_{what}_{data}" for what in ("table1a", "fig1") for data in ("cifar10", "cifar100", "svhn")}
SAME = SAME - {"shefl_table1a_cifar10"} | {"fed_ensemble_table2_cifar100", "fed_ensemble_table3_femnist"}
LARGE = {
    "fed_ensemble_fig6_cifar10", "fed_ensemble_table2_cifar10", "ifca_rotated_mnist", "shefl_table1a_cifar10",
    "stacking_table4_mnist_deep", "stacking_table5_cifar10",
}  # fmt: skip
TRAINED, BUILT = (
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in slow else []) for path in FILES]
    for slow in (SAME | LARGE - {"stacking_table5_cifar10"}, SAME | LARGE)
)


# CIFAR-10 takes longer to unpack than all of these tests; slow ones read it, for other files.
STOOD_IN = ("stacking_table5_cifar10", "stacking_table5_readings")


TRIED: set[Hashable] = set()  # the kinds of cells that a file of this process has trained


@pytest.mark.parametrize("path", TRAINED)  # slow: the networks of another file on other pictures
def test_it_builds_and_trains_a_round(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file itself, and those of its cells whose kind no file before it had.

    Only the first measures what its pictures need, which takes as long as all the rest.
    """
    scenario, _ = read(path)
    own = UserObjects(data=noise(scenario.data.name)) if path.stem in STOOD_IN else data_of(scenario)
    new = [
        cell for cell in find_kinds(read_cells(scenario), trained_names) if trained_names(cell.scenario) not in TRIED
    ]
    cells = find_kinds([NamedCell("base", scenario, {}), *new], trained_names)
    TRIED.update(trained_names(cell.scenario) for cell in cells)
    tried = [(tiny(cell.scenario), tmp_path / cell.name) for cell in cells]
    tried += [(short(scenario), tmp_path / "deep")] if scenario.model.name in DEEP else []
    for one, out in tried:
        summary = trained(one, out, own)
        monkeypatch.setattr("fedray.runtime.session.measure_drift", lambda *_: None)
        monkeypatch.setattr("fedray.runtime.session.write_report_data", lambda *_, **__: None)
        two = one.method.name in ("stacking", "fens") or one.method.options.get("beta") == "fit"
        assert summary["rounds"] == 1 + two
        assert (summary["totals"]["up_bytes"] > 0) is (one.method.name != "bayesian_linear")
        assert not any(math.isnan(value["mean"]) for value in summary["metrics"].values())


def trained(scenario: Scenario, out: Path, own: UserObjects) -> dict[str, Any]:
    """The summary of a run, without its report."""
    make_run_directory(out, dump_scenario(scenario))
    if own.data is not None:
        own = replace(own, data=limit_rows(own.data, scenario.data.options["limit"]))
    return run_inline(scenario, out, own, lambda _snapshot: None)


@pytest.mark.parametrize("path", BUILT)  # slow: as above, and networks of ten million numbers
def test_cells_of_every_kind_build_as_they_are(path: Path) -> None:
    scenario, _ = read(path)
    own = UserObjects(data=noise(scenario.data.name)) if path.stem in STOOD_IN else data_of(scenario)
    for cell in find_kinds(read_cells(scenario), built_names):
        study = build_study(read_scenario(to_plain(cell.scenario), {"replicates": 1}), own)
        assert study.clients.number == study.shards.number, cell.name


def test_shefls_files_had_a_layer_of_512_at_seven_times_the_price() -> None:
    """With it a round was no better (76.7 % in round 6, without it 78.1 %)."""
    files = [path for path in PAPERS if path.stem.startswith(("shefl_fig1", "shefl_table1")) and "mnist" in path.stem]
    assert len(files) == 5
    assert all(read(path)[0].model.options["hidden"] == [128] for path in files)


def test_one_learning_rate_for_all_sets_left_naval_unconverged_and_protein_a_bad_fold() -> None:
    """Each split of FedAG's references and of protein chooses its own, on rows that are withheld from training."""
    for name in ("fedag_references", "fedag_table2_protein"):
        scenario, _ = read(ROOT / "scenarios" / "papers" / f"{name}.yaml")
        rates = {cell.name: cell.scenario.local.lr_grid for cell in read_cells(scenario)}
        assert all(len(grid) >= 4 for cell, grid in rates.items() if cell.endswith("fedag_linear") or cell == "protein")
        assert not any(grid for cell, grid in rates.items() if cell.endswith("deep_ensemble"))
