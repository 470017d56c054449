"""Trains a round of every shipped scenario: `python tools/shipped.py [NAME ...]`, files by their stems.

A file is trained as it is, narrow and short, and so are those of its cells whose kind (method, schedule, partition) no
file before it had; a deep network is tried for a step with its own layers. Cells of every kind are also built as they
are. Where a data set is not on this machine, noise takes the place of its pictures, and other files are left out.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import numpy as np
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

FILES = sorted((Path(__file__).parents[1] / "scenarios").rglob("*.yaml"))
STOOD_IN = ("stacking_table5_cifar10", "stacking_table5_readings")  # CIFAR-10 takes longer to unpack than all the rest
NARROW: dict[str, dict[str, Any]] = {  # of the networks that have widths
    "cnn": {"channels": [2, 4], "hidden": [4]},
    "mlp": {"hidden": [4]},
    "lstm": {"hidden": 8},
}
DEEP = ("densenet", "mobilenet_v2", "resnet18", "resnet34", "shufflenet_v2", "vgg11")
BASES = [{"name": "mlp", "hidden": [4]}, {"name": "cnn", **NARROW["cnn"]}]  # of a stack; the second needs images
IMAGES = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn")
SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), **dict.fromkeys(IMAGES[3:], (3, 32, 32))}
ROWS = 4000  # of a stand-in


def tiny(scenario: Scenario) -> Scenario:
    """Returns the scenario with one round of one step, few samples and a narrow network (a CNN for deep ones)."""
    name = scenario.model.name
    model = NARROW.get(name, {}) if name in (*NARROW, "linear", "rbf") else {"name": "cnn", **NARROW["cnn"]}
    rows = 2000 if scenario.data.name == "cifar100" else 1000  # it deals 20 shards to each of 100 clients
    images = scenario.data.name in IMAGES
    small: dict[str, Any] = {
        "rounds": 1,
        "replicates": 1,
        "runtime": "inline",
        "data": {"fold": 0, **({"limit": rows} if images else {})},
        "local": {"steps": 1, "batch_size": 2},
        "model": model,
        **({"predict": {"conformal": {"alpha": 0.5}}} if scenario.predict.conformal else {}),
        **({"method": {"bases": BASES[: 1 + images], "meta_rounds": 1}} if scenario.method.name == "stacking" else {}),
        **({"method": {"meta_rounds": 1}} if scenario.method.name == "fens" else {}),
    }
    return alone(scenario, small)


def alone(scenario: Scenario, small: dict[str, Any]) -> Scenario:
    """Returns the scenario without its table, with the keys in `small` changed."""
    return read_scenario(
        {key: value for key, value in to_plain(scenario).items() if key not in ("table", "published")},
        small,
        explicit=False,
    )


def short(scenario: Scenario) -> Scenario:
    """Returns the scenario with its own deep network, but one model, two clients and one step each."""
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


def data_of(scenario: Scenario) -> UserObjects | None:
    """Returns the data set. If its files are missing, returns noise of its shape for pictures, and None for others."""
    try:
        open_data(scenario, UserObjects())
    except BadInput as error:
        if not is_missing(error):
            raise
        if scenario.data.name not in SHAPES:
            return None
        return UserObjects(data=noise(scenario.data.name))
    return UserObjects()


def noise(name: str) -> Dataset:
    """Returns random pictures with the shape and the number of classes of a data set, also out of distribution."""
    numbers, classes = np.random.default_rng(0), 100 if name == "cifar100" else 10
    x = numbers.integers(0, 256, size=(ROWS, *SHAPES[name]), dtype=np.uint8)
    y = np.arange(ROWS) % classes
    return classification(name, Split(x, y), Split(x[:200], y[:200]), tuple(map(str, range(classes))))._replace(
        ood=x[:200]
    )


def find_kinds(cells: list[NamedCell], names: Callable[[Scenario], Hashable]) -> list[NamedCell]:
    """Returns the first cell of each kind that has a built-in method."""
    by = {names(cell.scenario): cell for cell in reversed(cells) if cell.scenario.method.name in METHODS}
    return list(by.values())


def trained_names(s: Scenario) -> Hashable:
    """Returns the names in which cells differ when they train."""
    return s.method.name, s.schedule.kind, s.data.partition.name


def built_names(s: Scenario) -> Hashable:
    """Returns the names in which cells differ when they are built: the partition and the other parts."""
    parts = (s.model.name, s.data.name, repr(s.data.partition), s.schedule.kind, s.server.robust, s.participation.mode)
    return s.method.name, *parts


def train(scenario: Scenario, out: Path, own: UserObjects) -> None:
    """Runs a scenario without its report, and checks what its summary says."""
    make_run_directory(out, dump_scenario(scenario))
    if own.data is not None:
        own = replace(own, data=limit_rows(own.data, scenario.data.options["limit"]))
    summary = run_inline(scenario, out, own, lambda _snapshot: None)
    two = scenario.method.name in ("stacking", "fens") or scenario.method.options.get("beta") == "fit"
    assert summary["rounds"] == 1 + two
    assert (summary["totals"]["up_bytes"] > 0) is (scenario.method.name != "bayesian_linear")
    assert not any(math.isnan(value["mean"]) for value in summary["metrics"].values())


def try_file(path: Path, out: Path, tried: set[Hashable]) -> str:
    """Trains and builds a file.

    Args:
        path: The file of the scenario.
        out: A new folder.
        tried: The kinds of cells that were trained; those of this file are added.

    Returns:
        How much was trained, or why it was left out.
    """
    scenario = read_scenario(path)
    own = UserObjects(data=noise(scenario.data.name)) if path.stem in STOOD_IN else data_of(scenario)
    if own is None:
        return "its data are not here"
    cells = read_cells(scenario)
    new = [cell for cell in find_kinds(cells, trained_names) if trained_names(cell.scenario) not in tried]
    runs = find_kinds([NamedCell("base", scenario), *new], trained_names)
    tried.update(trained_names(cell.scenario) for cell in runs)
    for cell in runs:
        train(tiny(cell.scenario), out / cell.name, own)
    if scenario.model.name in DEEP:
        train(short(scenario), out / "deep", own)
    built = find_kinds(cells, built_names)
    for cell in built:
        study = build_study(read_scenario(to_plain(cell.scenario), {"replicates": 1}), own)
        assert study.clients.number == study.shards.number, cell.name
    return f"{len(runs)} trained, {len(built)} built"


def main(names: list[str]) -> None:
    """Prints a line for each file; ends with status 1 where one failed."""
    failed, tried = 0, set[Hashable]()
    warnings.simplefilter("ignore")
    for path in FILES:
        if names and path.stem not in names:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = try_file(path, Path(folder), tried)
            except Exception:
                said, failed = f"FAILED\n{traceback.format_exc()}", failed + 1
        print(f"{path.stem} [{time.monotonic() - began:.0f} s]: {said}", flush=True)
    print(f"{failed} files failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
