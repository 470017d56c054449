"""The partition of a run is a file that is read back with the same bits, and refused for another data set."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import copy_run, scenario

import fedray
from fedray.core.errors import BadInput
from fedray.data.types import Split, regression
from fedray.files.run_files import read_sealed

PLAIN: dict[str, Any] = {"rounds": 2, "report": False}


def by_file(path: Path, *changes: Any) -> dict[str, Any]:
    keys = scenario(PLAIN, *changes)
    return {**keys, "data": {**keys["data"], "partition": {"file": str(path)}}, "clients": {}}


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"hold_out": 0.2}, "replicates": 2, "method": {"models": 2}},
        {"method": {"name": "fedbe", "server_data": 0.2}},
        {"replicates": 2, "vary": "init"},
    ],
    ids=["hold_out of two replicates", "server", "init"],
)
def test_a_partition_is_read_back_with_the_same_bits(changes: dict[str, Any], tmp_path: Path) -> None:
    run = fedray.run(scenario(PLAIN, changes), out=tmp_path / "one")
    again = fedray.run(by_file(run.path / "partition.parquet", changes), out=tmp_path / "two")
    assert again.summary["model_hash"] == run.summary["model_hash"]
    assert again.rounds.drop_columns(["wall_seconds"]) == run.rounds.drop_columns(["wall_seconds"])
    assert (again.path / "partition.parquet").read_bytes() == (run.path / "partition.parquet").read_bytes()


def test_folds_have_rows_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    rows = Split(x, x[:, :1])
    folds = tuple((np.flatnonzero(np.arange(60) % 3 != f), np.flatnonzero(np.arange(60) % 3 == f)) for f in range(3))
    data = regression("folds", rows, rows)._replace(folds=folds)
    shift, scale, y_shift, y_scale = (np.repeat(a, 3, 0) for a in (data.shift, data.scale, data.y_shift, data.y_scale))
    data = data._replace(shift=shift, scale=scale, y_shift=y_shift, y_scale=y_scale)
    keys = {"rounds": 1, "runtime": "inline", "report": False, "model": "linear", "clients": 4, "method": "fedavg"}
    run = fedray.run({**keys, "data": {"fold": "all"}}, data=data, out=tmp_path / "one")
    path = run.path / "partition.parquet"
    table = pq.read_table(path).to_pandas()
    assert all(set(part["row"]) == set(folds[fold][0]) for fold, part in table.groupby("fold"))
    again = fedray.run({**keys, "data": {"fold": "all", "partition": {"file": str(path)}}}, data=data)
    assert again.summary["model_hash"] == run.summary["model_hash"]


def test_a_file_of_another_tool_needs_rows_and_clients_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"row": np.arange(239, -1, -1), "client": np.arange(240) % 6}), path)
    study = fedray.run(by_file(path)).study
    assert study.clients.number == 6
    assert study.shards.fetch(np.array([0]), np.array([1])).rows[0, :3].tolist() == [238, 232, 226]


def test_a_partition_names_the_rows_of_the_users_own_data(tmp_path: Path) -> None:
    x, y = np.arange(60.0)[:, None], np.arange(60) % 3
    run = fedray.run({**scenario(PLAIN), "data": {}}, data=(x, y), out=tmp_path / "run")
    dealt = pq.read_table(run.path / "partition.parquet").to_pandas()
    assert (x[dealt["given_row"]] == run.study.shards.data.train.x[dealt["row"]]).all()


def test_resume_writes_a_missing_partition_again_and_a_changed_file_ends_a_run_that_used_it(tmp_path: Path) -> None:
    run = fedray.run(scenario(PLAIN, {"rounds": 4}), out=tmp_path / "one")
    whole = (run.path / "partition.parquet").read_bytes()
    again = copy_run(run, tmp_path / "again", 2)
    (again / "partition.parquet").unlink()
    fedray.resume(again)
    assert (again / "partition.parquet").read_bytes() == whole
    shutil.copy(run.path / "partition.parquet", file := tmp_path / "split.parquet")
    user = fedray.run(by_file(file, {"rounds": 4}), out=tmp_path / "two")
    table = pq.read_table(file).replace_schema_metadata(None)
    pq.write_table(table.take(np.arange(len(table))[::-1]), file)
    with pytest.raises(BadInput, match=r"the data are not those the run began with \(the clients' rows\)"):
        fedray.resume(copy_run(user, tmp_path / "more", 2))


def test_generated_clients_have_no_rows_to_write_and_the_manifest_says_what_deals_them(tmp_path: Path) -> None:
    keys = {"data": {"name": "synthetic", "test": 20}, "clients": 5, "rounds": 1, "runtime": "inline", "report": False}
    run = fedray.run({**keys, "model": "linear"}, out=tmp_path / "run")
    assert not (run.path / "partition.parquet").exists()
    assert read_sealed(run.path / "manifest.json")["study"]["partition"].startswith("generated: the rows of a client")
