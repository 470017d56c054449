"""Which cluster is meant: what was typed, then RAY_ADDRESS, then one that is started here; and what is waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import run_command

import fedray
from fedray.core.errors import BadInput
from fedray.experiments import table
from fedray.runtime.environment import find_address
from fedray.scenario.loader import read_scenario
from fedray.scenario.yaml_text import write_yaml


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        (None, None, None),
        (None, "", None),
        (None, "10.0.0.1:6379", "10.0.0.1:6379"),
        ("auto", "10.0.0.1:6379", "auto"),
        ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379"),
        ("local", "10.0.0.1:6379", None),
        (None, "local", None),
        ("[::1]:6379", None, "[::1]:6379"),
    ],
)
def test_what_is_typed_comes_before_rays_variable(
    given: str | None, variable: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert find_address("ray", given) == found


def test_what_runs_here_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """RAY_ADDRESS is there for whoever uses Ray, in a submitted job always; an address that was typed is refused."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert find_address("inline", None) is None
    with pytest.raises(BadInput, match="--address auto, but runtime = inline"):
        find_address("inline", "auto")


CELL = [{"name": "a", "overrides": {"method": "fedavg"}}]
KEYS: dict[str, Any] = {"rounds": 1, "runtime": "ray", "clients": {"number": 2}}


def test_nodes_are_waited_for_on_a_cluster_only(tmp_path: Path) -> None:
    """Tables and sweeps did not know the option."""
    given: dict[str, Any] = {
        "run": KEYS,
        "table": {**KEYS, "table": CELL},
        "tune": {"scenario": KEYS, "space": {"local.lr": [0.1]}, "objectives": ["accuracy"]},
    }
    for command, written in given.items():
        (tmp_path / f"{command}.yaml").write_text(write_yaml(written))
        result = run_command(command, tmp_path / f"{command}.yaml", "--out", tmp_path / command, "--wait-for", "hpc=3")
        assert result.status == 2 and "--wait-for waits for the nodes of a cluster" in result.err, result.err
        assert not (tmp_path / command).exists()
    calls: list[tuple[Any, Any]] = [(fedray.run, KEYS), (fedray.tune, str(tmp_path / "tune.yaml"))]
    for call, keys in calls:
        with pytest.raises(BadInput, match="--wait-for waits for the nodes of a cluster"):
            call(keys, out=tmp_path / "python", wait_for={"hpc": 3})


def test_every_cell_of_a_table_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[str]] = {}

    def train(_cells: Any, _out: Path, _jobs: int, options: dict[str, list[str]], _say: Any) -> dict[str, str]:
        seen.update(options)
        return {"a": "not trained"}

    monkeypatch.setattr(table, "train_cells", train)
    awaited = {"hpc": 3, "GPU": 0.5}
    table.run_table(read_scenario({**KEYS, "table": CELL}), tmp_path, address="10.0.0.1:6379", wait_for=awaited)
    assert "--wait-for=hpc=3,GPU=0.5" in seen["a"]
