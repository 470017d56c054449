"""Every column that is written is in the catalogue, with its type and unit; and parts are read at little cost."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from columns import columns_markdown, find_column, find_uncatalogued
from small import run_command, scenario
from sweeps import sweep

import fedray
from fedray.core.scores import find_score
from fedray.metrics.scores import SCORES
from fedray.storage.checkpoint import list_table_columns

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run_directory.md"
TOY: dict[str, Any] = {"rounds": 1, "clients": 4, "runtime": "inline", "report": False, "local": {"epochs": 1}}
TOY |= {"data": {"name": "sine", "samples": 20}, "model": {"name": "rbf"}}
RUNS: dict[str, dict[str, Any]] = {
    "classes": scenario(
        {"rounds": 1, "data": {"hold_out": 0.2}, "evaluate": {"personal": True, "clients": 2, "ood": "noise"}},
        {"report": False, "predict": {"gamma": 0.1}, "replicates": 2},
    ),
    "targets": {**TOY, "predict": {"noise": "residual"}, "evaluate": {"personal": True, "clients": "all"}},
    "bias and variance": {**TOY, "replicates": 2},
}


def schemas(folder: Path) -> dict[str, pa.Schema]:
    return {path.stem: pq.read_table(path).schema for path in folder.glob("*.parquet")}


@pytest.mark.parametrize("name", RUNS)
def test_a_column_that_a_run_writes_is_in_the_catalogue(name: str, tmp_path: Path) -> None:
    run = fedray.run(RUNS[name], out=tmp_path / "run")
    tables = schemas(run.path)
    assert find_uncatalogued(tables) == []
    assert {"rounds", "clients"} <= tables.keys() and ("client_scores" in tables) == (name != "bias and variance")
    assert ("bias2" in run.summary["metrics"]) == (name == "bias and variance")
    units = {find_score(score).unit for score in run.summary["metrics"]}  # type: ignore[union-attr]  # it has one
    assert ("share" in units) == (name == "classes" or "coverage_95" in run.summary["metrics"])


def test_so_are_those_of_sweeps() -> None:
    found = fedray.tune(sweep({"local.lr": [0.1]}, sampler="grid", overrides={"rounds": 1}), report=False)
    assert "trials" in schemas(found.path) and find_uncatalogued(schemas(found.path)) == []


def test_derived_scores_have_the_unit_of_theirs() -> None:
    assert [find_score(name).unit for name in SCORES] == [one.unit for one in SCORES.values()]  # type: ignore[union-attr]  # it has one
    member = find_column("rounds", "hold_out_member_nll")
    assert member is not None and (member.kind, member.unit) == ("numbers", "nats")
    assert find_score("accuracy_base_0_fold_12") is not None and find_score("nll_mean") is None


def test_the_page_and_the_command_print_the_catalogue() -> None:
    assert PAGE.read_text().endswith(columns_markdown())
    said = run_command("list", "columns")
    assert said.status == 0
    names = [line.split()[0] for line in said.out.splitlines() if line.startswith("  ")]
    assert names == [name for columns in list_table_columns().values() for name in columns]


def test_the_score_of_the_last_three_rounds_is_their_mean_in_each_world(tmp_path: Path) -> None:
    """As Fed-ensemble's tables have it; of fewer than three evaluated rounds after the first state there is none."""
    run = fedray.run(scenario({"rounds": 5, "replicates": 2, "report": False}), out=tmp_path / "run")
    frame = run.metrics_dataframe.sort_values("round")
    each = [world["accuracy"].to_numpy()[-3:].mean() for _, world in frame.groupby("replicate")]
    pooled = run.summary["metrics"]["accuracy_last3"]
    assert pooled["mean"] == pytest.approx(np.mean(each), abs=1e-15)
    assert pooled["sd"] == pytest.approx(np.std(each, ddof=1), abs=1e-15) and pooled["n"] == 2
    few = fedray.run(scenario({"rounds": 2, "report": False}), out=tmp_path / "few")
    assert "accuracy_last3" not in few.summary["metrics"]
