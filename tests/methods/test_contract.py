"""Every method keeps the contract of a run directory: one parametrised test, which a new method joins by existing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from columns import find_uncatalogued
from reports import with_short_report, without_report
from safetensors.torch import load_file
from small import copy_run, of_method, rows

import fedray
from fedray.methods import METHODS

ROUND_COLUMNS = ["replicate", "fold", "round", "sim_seconds", "wall_seconds", "up_bytes", "down_bytes"]
CLIENT_COLUMNS = [
    "replicate", "fold", "round", "client", "tier", "model", "samples", "steps", "loss", "up_bytes", "down_bytes",
    "sim_seconds", "status", "error",
]  # fmt: skip
WORLD = ["replicate", "fold"]
DRAWN = ("fed_ensemble", "bayesian_linear", "stacking")  # methods whose page is drawn: classes, a closed form, a stack


def of(method: str, *changes: dict[str, Any]) -> dict[str, Any]:
    return of_method(method, {"replicates": 2}, *changes)


@pytest.fixture(scope="module", params=sorted(METHODS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """A finished run of each method, with two replicates."""
    with pytest.MonkeyPatch.context() as patch:
        (with_short_report if request.param in DRAWN else without_report)(patch)
        return fedray.run(of(request.param), out=tmp_path_factory.mktemp(request.param) / "run")


def parts(run: fedray.Run, name: str) -> pd.DataFrame:
    return pq.read_table(run.path / f"{name}.parquet").to_pandas()


def test_the_run_directory_has_all_its_files(run: fedray.Run) -> None:
    files = {path.name for path in run.path.iterdir() if not path.name.startswith(".")}
    wanted = {"scenario.yaml", "manifest.json", "rounds.parquet", "clients.parquet", "summary.json", "report.html"}
    assert wanted | {"checkpoints"} <= files
    done = run.summary["rounds"]
    assert f"round-{done:06d}" in {path.name for path in (run.path / "checkpoints").iterdir()}
    given = yaml.safe_load((run.path / "scenario.yaml").read_text())
    assert given["method"]["name"] == run.summary["method"]
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert {"versions", "host", "git_commit", "engine", "runtime", "lanes_independent", "timings"} <= manifest.keys()
    assert {"name", "width"} <= manifest["engine"].keys()
    if run.summary["method"] in DRAWN:
        assert (run.path / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_rounds_are_cumulative_from_the_first_models_to_the_last(run: fedray.Run) -> None:
    table = parts(run, "rounds")
    assert list(table.columns)[: len(ROUND_COLUMNS)] == ROUND_COLUMNS
    kinds = {"replicate", "fold", "round", "up_bytes", "down_bytes"}
    assert all(table[name].dtype == (np.int64 if name in kinds else np.float64) for name in ROUND_COLUMNS)
    name = "accuracy" if "accuracy" in table else "rmse"
    assert {f"{name}_min", f"{name}_mean", f"{name}_max", "nll"} <= set(table.columns)
    assert (table[f"{name}_min"] <= table[f"{name}_mean"] + 1e-12).all()
    assert (table[f"{name}_mean"] <= table[f"{name}_max"] + 1e-12).all()
    assert not table.duplicated([*WORLD, "round"]).any()
    for _, world in table.sort_values("round").groupby(WORLD):
        assert world["round"].tolist() == list(range(run.summary["rounds"] + 1))
        assert (world.iloc[0][["sim_seconds", "up_bytes", "down_bytes"]] == 0).all()
        assert (world[["sim_seconds", "wall_seconds", "up_bytes", "down_bytes"]].diff().iloc[1:] >= 0).all(axis=None)


def test_bytes_of_the_jobs_add_up_to_the_rounds(run: fedray.Run) -> None:
    """Bytes of jobs up to round r = row r, for every world and round."""
    jobs, table = parts(run, "clients"), parts(run, "rounds")
    assert list(jobs.columns) == CLIENT_COLUMNS
    assert not jobs.duplicated([*WORLD, "round", "client", "model"]).any()
    assert jobs["round"].between(1, run.summary["rounds"]).all()
    assert (jobs[["samples", "steps", "up_bytes", "down_bytes", "sim_seconds"]] >= 0).all(axis=None)
    assert jobs.loc[jobs["status"] == "ok", "loss"].notna().all()
    for row in table.to_dict("records"):
        mine = jobs[(jobs["replicate"] == row["replicate"]) & (jobs["fold"] == row["fold"])]
        mine = mine[mine["round"] <= row["round"]]
        assert mine["up_bytes"].sum() == row["up_bytes"], row
        assert mine["down_bytes"].sum() == row["down_bytes"], row


def test_every_column_of_every_table_is_in_the_catalogue_with_its_type(run: fedray.Run) -> None:
    tables = {path.stem: pq.read_table(path).schema for path in run.path.glob("*.parquet")}
    assert {"rounds"} <= tables.keys()
    assert find_uncatalogued(tables) == []


@pytest.mark.parametrize("method", ["fedavg", "bayesian_linear"])
def test_pyarrow_pandas_and_duckdb_read_the_same_tables(method: str, tmp_path: Path) -> None:
    """All methods write with one recorder; a closed form has no jobs."""
    run = fedray.run(of(method), out=tmp_path / "run")
    for name in ("rounds", "clients"):
        folder = run.path / f"{name}.parquet"
        assert len(list(folder.glob("part-*.parquet"))) > 1
        arrow, frame = pq.read_table(folder), pd.read_parquet(folder)
        relation = duckdb.sql(f"select * from read_parquet('{folder}/*.parquet')")
        assert relation is not None
        duck = relation.to_arrow_table()
        assert arrow.column_names == list(frame.columns) == duck.column_names
        assert rows(arrow) == rows(duck)
        for column in ("replicate", "round", "up_bytes", "sim_seconds"):
            assert sorted(frame[column]) == sorted(arrow[column].to_pylist())
        assert (arrow.num_rows > 0) is (name == "rounds" or method == "fedavg")


def test_the_summary_is_the_last_round(run: fedray.Run) -> None:
    summary, table = run.summary, parts(run, "rounds")
    assert {"method", "data", "rounds", "seed", "metrics", "totals", "model_hash", "state_hash"} <= summary.keys()
    assert (summary["seed"], summary["rounds"]) == (0, table["round"].max())
    last = table[table["round"] == summary["rounds"]]
    assert summary["totals"].keys() >= {"up_bytes", "down_bytes", "sim_seconds", "wall_seconds"}
    assert summary["totals"]["up_bytes"] == last["up_bytes"].sum()
    assert summary["totals"]["down_bytes"] == last["down_bytes"].sum()
    for name, value in summary["metrics"].items():
        assert value.keys() == {"mean", "sd", "n"}
        if name in last:
            assert value["n"] == len(last) == 2
            assert value["mean"] == pytest.approx(last[name].mean(), nan_ok=True), name
            assert value["sd"] == pytest.approx(last[name].std(), nan_ok=True), name
    assert "accuracy" in summary["metrics"] or "rmse" in summary["metrics"]


def test_another_seed_gives_other_models(run: fedray.Run) -> None:
    """The same seed gives the same bits: resuming from nothing shows it."""
    method = run.summary["method"]
    other = fedray.run(of(method, {"seed": 7}))
    draws = method != "bayesian_linear"  # a closed form of all rows
    assert (other.summary["model_hash"] != run.summary["model_hash"]) is draws


@pytest.mark.parametrize("last_round", [2, None], ids=["from the middle", "from nothing"])
def test_resuming_ends_in_the_same_bits(run: fedray.Run, tmp_path: Path, last_round: int | None) -> None:
    """The same models, the same state, and every row exactly once."""
    again = fedray.resume(copy_run(run, tmp_path / "run", last_round))
    assert again.summary["model_hash"] == run.summary["model_hash"]
    assert again.summary["state_hash"] == run.summary["state_hash"]
    assert rows(again.rounds) == rows(run.rounds)
    assert rows(again.clients) == rows(run.clients)
    assert {**again.summary["metrics"]} == {**run.summary["metrics"]}


def test_the_model_hash_is_that_of_the_exported_files(run: fedray.Run, tmp_path: Path) -> None:
    """SHA-256 over replicate, fold, model, name, shape and little-endian bytes, from plain safetensors."""
    names = [name for name, _ in run.study.net.module.named_parameters()]
    names += [name for name, value in run.study.net.module.named_buffers() if value.is_floating_point()]
    names += run.study.net.layout.counters
    sha = hashlib.sha256()
    for path in fedray.load(run.path).export(tmp_path):
        _, replicate, _, fold, _, model = path.stem.split("-")
        tensors = load_file(path)
        assert set(tensors) >= set(names)
        for name in names:
            value = tensors[name].numpy()
            sha.update(f"{replicate}/{fold}/{model}/{name}/{tuple(value.shape)}".encode())
            sha.update(value.astype("<i8" if value.dtype.kind == "i" else "<f4").tobytes())
    assert sha.hexdigest() == run.summary["model_hash"]
    assert run.summary["state_hash"] != run.summary["model_hash"]


def test_it_answers_for_inputs_it_has_not_seen(run: fedray.Run) -> None:
    """Means and variances of the right shape, and probabilities that sum to 1."""
    inputs = run.study.split("test", 0)[0][:3].numpy()
    answer = fedray.load(run.path).predict(inputs)
    assert answer.mean.shape == answer.variance.shape
    assert np.isfinite(answer.mean).all()
    assert (answer.variance >= 0).all()
    if run.study.classes:
        assert answer.probabilities is not None
        np.testing.assert_allclose(answer.probabilities.sum(-1), 1.0)


def test_its_answers_have_the_scores_that_were_reported(run: fedray.Run) -> None:
    """`predict` asks the models that were evaluated: samples, teachers, Gaussian heads, closed forms."""
    last = parts(run, "rounds").query(f"round == {run.summary['rounds']}").set_index("replicate")
    for replicate in (0, 1):
        x, y = (part.numpy() for part in run.study.split("test", replicate))
        answer = run.predict(x, replicate=replicate)
        if run.study.classes:
            assert (answer.mean.argmax(-1) == y).mean() == pytest.approx(last["accuracy"][replicate], abs=1e-12)
        else:
            assert answer.mean.shape == y.shape
            assert np.sqrt(((answer.mean - y) ** 2).mean()) == pytest.approx(last["rmse"][replicate], rel=1e-6)
