"""What `--wait-for` takes, and when it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import run_command

import fedray
from fedray.core.errors import BadInput
from fedray.experiments import table
from fedray.runtime.environment import read_awaited
from fedray.scenario.loader import read_scenario
from fedray.scenario.yaml_text import write_yaml

QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"


@pytest.mark.parametrize(
    "text", ["", "hpc", "hpc=", "hpc=many", "hpc=0", "hpc=nan", "hpc=inf", "=3", "a=1,", "a=1,a=2"]
)
def test_what_is_no_amount_is_one_line(text: str) -> None:
    with pytest.raises(BadInput, match="--wait-for .*give NAME=AMOUNT, several with commas, as in hpc=32,lpc=8"):
        read_awaited(text)


def test_nodes_are_waited_for_on_a_cluster_only(tmp_path: Path) -> None:
    result = run_command("run", QUICKSTART, "--out", tmp_path / "run", "--wait-for", "hpc=3")
    assert result.status == 2
    assert "--wait-for waits for the nodes of a cluster: give its --address" in result.err
    assert not (tmp_path / "run").exists()


def test_tables_and_sweeps_wait_on_a_cluster_only_too(tmp_path: Path) -> None:
    """They did not know the option."""
    cells = [{"name": "a", "overrides": {"method": "fedavg"}}]
    keys = {"rounds": 1, "runtime": "ray", "clients": {"number": 2}}
    file, sweep = tmp_path / "cells.yaml", tmp_path / "sweep.yaml"
    file.write_text(write_yaml({**keys, "table": cells}))
    sweep.write_text(write_yaml({"scenario": keys, "space": {"local.lr": [0.1]}, "objectives": ["accuracy"]}))
    for command, path in (("table", file), ("tune", sweep)):
        result = run_command(command, path, "--out", tmp_path / command, "--wait-for", "hpc=3")
        assert result.status == 2, result.err
        assert "--wait-for waits for the nodes of a cluster: give its --address" in result.err
    for call in (fedray.run, fedray.tune):
        given = keys if call is fedray.run else str(sweep)
        with pytest.raises(BadInput, match="--wait-for waits for the nodes of a cluster"):
            call(given, out=tmp_path / "python", wait_for={"hpc": 3})
        with pytest.raises(BadInput, match=r"wait_for = {'hpc': 0}: give amounts above 0"):
            call(given, out=tmp_path / "python", wait_for={"hpc": 0}, address="10.0.0.1:6379")


def test_every_cell_of_a_table_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[str]] = {}

    def train(_cells: Any, _out: Path, _jobs: int, options: dict[str, list[str]], _say: Any) -> dict[str, str]:
        seen.update(options)
        return {"a": "not trained"}

    monkeypatch.setattr(table, "train_cells", train)
    keys = {
        "rounds": 1,
        "runtime": "ray",
        "clients": {"number": 2},
        "table": [{"name": "a", "overrides": {"method": "fedavg"}}],
    }
    table.run_table(read_scenario(keys), tmp_path / "out", address="10.0.0.1:6379", wait_for={"hpc": 3, "GPU": 0.5})
    assert "--wait-for=hpc=3,GPU=0.5" in seen["a"]
