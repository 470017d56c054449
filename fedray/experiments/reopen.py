"""Opens a run directory again: its scenario and its study, refused where the run began with something else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.assembly.identity import describe_study
from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects, refuse_objects, require_objects
from fedray.files.checksums import has_file, refuse_links
from fedray.scenario.loader import read_scenario
from fedray.scenario.schema import Scenario, section_fields
from fedray.scenario.yaml_text import load_yaml
from fedray.simulation.study import Study
from fedray.storage.identity import (
    check_identity,
    check_scenario_file,
    read_identity,
    read_keys,
    refuse_missing_names,
)
from fedray.storage.places import require_run_directory

_AFTER_TRAINING = ("training", "method", "selection", "schedule")  # parts whose code reads values in training


def read_run_scenario(out: Path, own: UserObjects) -> Scenario:
    """The scenario of a run directory, for the Python objects the run was started with.

    Args:
        out: the run directory.
        own: the user's Python objects.

    Raises:
        BadInput: this is no run directory, or an object is missing or was not there when the run began.
    """
    refuse_links(out)
    require_run_directory(out)
    refuse_missing_names(out)
    scenario = read_scenario(read_keys(out), explicit=False)
    require_objects(scenario, own)
    if read_identity(out):
        refuse_objects(scenario, own)
    return scenario


def read_data_options(out: Path) -> dict[str, Any]:
    """How the data object of a run directory was read: the options that were given beside it; empty without any.

    Args:
        out: the run directory, or a path that is none.
    """
    path = out / "scenario.yaml"
    tree = load_yaml(path) if has_file(out, path.name) else {}
    data = tree.get("data") if isinstance(tree, dict) else None
    if not isinstance(data, dict) or data.get("object") is None:
        return {}
    return {key: value for key, value in data.items() if key not in section_fields("data")}


def _leave_values(digests: Mapping[str, str]) -> dict[str, str]:
    """The digests of a part without those of values that its code reads, which may change behind the training."""
    return {key: digest for key, digest in digests.items() if not key.startswith("value ")}


def reopen_study(out: Path, own: UserObjects) -> Study:
    """The study of a run directory, made again from its scenario.

    Args:
        out: the run directory.
        own: the user's Python objects.

    Raises:
        BadInput: the scenario, the data, the network or the method is not the one the run began with.
    """
    scenario = read_run_scenario(out, own)
    check_scenario_file(out)
    study = build_study(scenario, own)
    if read_identity(out):
        digests = describe_study(scenario, own, study)
        late = {part: _leave_values(digests[part]) for part in _AFTER_TRAINING if part in digests}
        check_identity(out, {**digests, **late})
    return study
