"""Clients that never train (`data.test_clients`): nothing of them reaches a model, and scores are over their rows."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from small import of_method, scenario, train

import fedray
from fedray.core.errors import BadInput, ScenarioWarning
from fedray.data.shards import StoredShards
from fedray.data.store import load_data
from fedray.data.types import classification, limit_rows, regression
from fedray.experiments.export import describe_inputs_and_outputs
from fedray.methods import METHOD_SPECS
from fedray.simulation.study import Study

ROWS = {name: load_data(name) for name in ("digits", "cubic")}


def unseen(study: Study, world: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The clients that are kept out of a world, and their rows."""
    assert isinstance(study.shards, StoredShards)
    dealt = study.shards.dealt
    return np.setdiff1d(np.arange(dealt.owned[world].clients), dealt.ids[world]), dealt.test[world]


@pytest.mark.parametrize("method", sorted(METHOD_SPECS))
def test_rows_of_clients_that_never_train_change_no_bit_of_a_model(method: str) -> None:
    """Nor do they have a job; the statistics that standardize do not read them."""
    keys = of_method(method, {"rounds": 1, "data": {"test_clients": 2}})
    data = limit_rows(ROWS[keys["data"]["name"]], 240)
    keys["data"].pop("limit", None)
    if not data.classes:
        keys["data"]["partition"] = {"name": "iid"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = fedray.run(keys, data=data, report=False)
        study, x = done.study, data.train.x.copy()
        out, rows = unseen(study)
        x[rows] = x.max() - x[rows] + 3
        other_rows = data.train._replace(x=x)
        if data.classes:
            other = classification("other", other_rows, data.test, data.class_names)
        else:
            other = regression("other", other_rows, data.test)
        assert not np.array_equal(data.shift, other.shift)
        _, changed, _ = train(keys, data=other)
    one, two = done.progress.state, changed.state
    assert len(rows) and torch.equal(one.models, two.models) and torch.equal(one.counters, two.counters)
    assert all(torch.equal(one.extra[name], two.extra[name]) for name in one.extra)
    if not METHOD_SPECS[method].pooled:
        assert len(out) == 2 and not np.isin(done.clients["client"].to_numpy(), out).any()
    assert np.array_equal(study.split("test", 0)[0].numpy(), data.train.x[rows])


def hospitals(tmp_path: Path) -> dict[str, Any]:
    """A table of six hospitals; the last has other values than the others."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"lab": rng.normal(0, 1, 90), "age": rng.normal(50, 9, 90), "site": [*"abcdef"] * 15})
    frame.loc[frame.site == "f", "age"] += 500
    frame["ill"] = np.where(frame.lab + rng.normal(0, 1, 90) > 0, "yes", "no")
    frame.to_csv(tmp_path / "sites.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "sites.csv"), "target": "ill", "group": "site"}
    keys = scenario({"method": {"name": "ditto"}, "rounds": 2, "checkpoint": {"every": 1}, "report": False})
    return {**keys, "clients": {}, "model": "linear", "data": data}


def test_each_client_is_left_out_in_one_fold(tmp_path: Path) -> None:
    """Its 15 rows are the test rows of this fold, and those of the others its training rows, in every replicate."""
    keys = hospitals(tmp_path)
    keys = {**keys, "replicates": 2, "data": {**keys["data"], "test_clients": 1, "fold": "all"}}
    with pytest.warns(ScenarioWarning):
        run = fedray.run(keys, out=tmp_path / "run")
    study, left = run.study, []
    jobs = run.clients.to_pandas()
    about = describe_inputs_and_outputs(study)["standardization"]
    for world, (mine, rows) in enumerate(unseen(study, world) for world in range(study.worlds)):
        replicate, fold = study.place(world)
        left.append(study.client_names[mine[0]])
        seen = jobs[(jobs.replicate == replicate) & (jobs.fold == fold)].client
        assert set(seen) == set(range(6)) - {*mine.tolist()}
        others = np.setdiff1d(np.arange(90), rows)
        x = study.shards.data.train.x[others].astype(float)
        shift = about[f"replicate-{replicate}-fold-{fold}"]["shift"]
        assert len(rows) == 15 and shift == pytest.approx(x.mean(0), 1e-5)
    assert sorted(left) == sorted([*"abcdef"] * 2)
    again = fedray.run({**keys, "data": {**keys["data"], "fold": 3}}, out=tmp_path / "one")
    assert unseen(again.study)[0].tolist() == unseen(study, 3)[0].tolist()
    (tmp_path / "run" / "summary.json").unlink()
    assert fedray.resume(tmp_path / "run").summary["model_hash"] == run.summary["model_hash"]


def test_a_hospital_without_a_case_is_left_out_of_the_mean(tmp_path: Path) -> None:
    """Its area under the ROC curve is undefined. The mean over the others was no number, too."""
    keys = hospitals(tmp_path)
    frame = pd.read_csv(tmp_path / "sites.csv")
    frame.loc[frame.site == "c", "ill"] = "no"
    frame.to_csv(tmp_path / "sites.csv", index=False)
    keys = {**keys, "method": "fedavg", "evaluate": {"metrics": ["roc_auc"]}}
    keys = {**keys, "data": {**keys["data"], "test_clients": 1, "fold": "all"}}
    run = fedray.run(keys, out=tmp_path / "run")
    each = run.metrics_dataframe.query("round == 2")["roc_auc"]
    found = run.summary["metrics"]["roc_auc"]
    assert each.isna().sum() == 1 and found["n"] == 5
    assert found["mean"] == run.metrics["roc_auc"] == pytest.approx(each.mean())
    assert not any(name.startswith("personal_") for name in run.metrics)  # nobody who trains is tested: no count of 0


def test_a_client_that_is_named_is_answered_as_a_new_one(tmp_path: Path) -> None:
    keys = hospitals(tmp_path)
    keys = {**keys, "data": {**keys["data"], "test_clients": ["f"]}}
    run = fedray.run(keys)
    table = pd.read_csv(tmp_path / "sites.csv")
    mine = table[table.site == "f"]
    right = run.predict(mine).mean.argmax(1) == (mine.ill == "yes").to_numpy()
    assert run.metrics["accuracy"] == pytest.approx(right.mean())
    assert run.predict(mine, client="e").mean.shape == (15, 2)
    with pytest.raises(BadInput):
        run.predict(mine, client="f")
    text = "{rounds: 0, method: fedavg, clients: {}, data: {test_clients: [f]}, runtime: inline, report: false}"
    other = fedray.run(text, data=table, data__target="ill", data__group="site")
    assert len(other.study.split("test", 0)[1]) == len(mine)


def test_a_partition_file_keeps_the_same_clients_out(tmp_path: Path) -> None:
    """Also where the rows of a client are turned, withheld or held by a server."""
    more = {"method": {"name": "fedbe", "server_data": 0.2}, "rounds": 1, "replicates": 2}
    kinds = {"test_clients": 0.3, "hold_out": 0.2, "partition": {"name": "iid", "rotation": 2}}
    one = fedray.run(scenario(more, {"data": kinds}), out=tmp_path / "one", report=False)
    table = pd.read_parquet(tmp_path / "one" / "partition.parquet")
    assert table.groupby(["replicate", "split"], observed=True).client.nunique().unstack().test.tolist() == [2, 2]
    dealt = {"name": "file", "file": str(tmp_path / "one" / "partition.parquet"), "rotation": 2}
    keys = scenario(more, {"data": {**kinds, "partition": dealt}})
    other = fedray.run({**keys, "clients": {}}, report=False)
    assert other.summary["model_hash"] == one.summary["model_hash"]
    assert other.metrics["accuracy"] == one.metrics["accuracy"]


@pytest.mark.parametrize("given", [{"data__test_clients": 2}, {"data": {"test_clients": 2}}], ids=["option", "key"])
def test_of_a_frame_every_row_trains_or_is_a_row_of_a_client_that_never_trains(given: dict[str, Any]) -> None:
    """A fifth of the rows was drawn as test rows, and never used."""
    g = np.random.default_rng(0)
    frame = pd.DataFrame(g.normal(size=(120, 3))).add_prefix("x").assign(y=g.integers(0, 2, 120), of=np.arange(120) % 6)
    keys = scenario({"method": {"name": "fedavg"}, "rounds": 0}, {"data": None, "clients": None, "participation": None})
    keys = {key: value for key, value in keys.items() if value is not None} | {"data": given.get("data", {})}
    options = {key: value for key, value in given.items() if key != "data"}
    study = fedray.run(keys, data=frame, data__target="y", data__group="of", report=False, **options).study
    assert len(study.split("test", 0)[1]) == 40
    assert study.shards.sizes(np.zeros(4, int), np.arange(4)).sum() == 80
