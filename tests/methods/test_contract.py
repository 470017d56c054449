"""Every method keeps the contract of a run: one run a method, combined as far as it goes, which a new method joins.

Several models where the method has them, a schedule, half of the clients a round, sparse uploads, held-out rows, two
replicates, and scores of the known clients.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from columns import find_uncatalogued
from method_cases import CASES
from safetensors.torch import load_file
from small import copy_run, of_method, rows

import fedray
from fedray.evaluation.answers import own_test_rows
from fedray.methods import METHOD_SPECS, METHODS

ROUND_COLUMNS = ["replicate", "fold", "round", "sim_seconds", "wall_seconds", "up_bytes", "down_bytes"]
CLIENT_COLUMNS = [
    "replicate", "fold", "round", "client", "tier", "model", "samples", "steps", "loss", "up_bytes", "down_bytes",
    "sim_seconds", "status", "error",
]  # fmt: skip
WORLD = ["replicate", "fold"]
REAL_TARGETS = ("deep_ensemble", "bayesian_linear")
SCHEDULES = ("permutation", "random", "balanced", "adaptive")
OPTIONS: dict[str, dict[str, Any]] = {"ditto": {"lambda": [0.1, 1.0]}, "lg_fedavg": {"shared_layers": 1}}
FROM_NOTHING = ("fed_ensemble", "random_walk", "stacking")  # they resume without a checkpoint, too, and with all tables
EACH = pytest.mark.parametrize("method", sorted(METHODS))


def combined(method: str, kind: str = "random", /, **changes: Any) -> dict[str, Any]:
    """A method with all that it combines with, and a schedule of this kind."""
    spec = METHOD_SPECS[method]
    several = {"models": 2} if spec.models == "any" else {}
    served = method != "random_walk"
    with_server = {"schedule": {"kind": kind}, "participation": {"fraction": 0.5}} if served else {}
    sparse: dict[str, Any] = {"kind": "topk", "ratio": 0.5, "error_feedback": served}
    if method == "dsvgd":  # one client a round, whose uploads are whole
        with_server, sparse = {}, {}
    elif not spec.sparse:
        sparse = {"kind": "int8", "error_feedback": True}
    weighed = {} if spec.parts or method in REAL_TARGETS else {"predict": {"gamma": 0.1}}  # a stack answers all alike
    sets = {"evaluate": {"clients": "all"}, "predict": {"conformal": {"alpha": 0.5}}} if method in FROM_NOTHING else {}
    return of_method(
        method,
        sets,
        {"method": {**several, **OPTIONS.get(method, {})}, "rounds": 2, "replicates": 2, **with_server, **weighed},
        {"data": {"hold_out": 0.2}, "checkpoint": {"every": 1}, "evaluate": {"personal": True}, "compress": sparse},
        changes,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], fedray.Run]:
    """Trains a method once."""

    @functools.cache
    def train(method: str) -> fedray.Run:
        kind = SCHEDULES[sorted(METHODS).index(method) % 4]  # methods and schedules meet in the plan alone
        return fedray.run(combined(method, kind), out=tmp_path_factory.mktemp(method) / "run")

    return train


@pytest.fixture
def run(method: str, runs: Callable[[str], fedray.Run]) -> fedray.Run:
    return runs(method)


def parts(run: fedray.Run, name: str) -> pd.DataFrame:
    return pq.read_table(run.path / f"{name}.parquet").to_pandas()


@EACH
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


@EACH
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


@EACH
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


@EACH
def test_every_column_of_every_table_is_in_the_catalogue_with_its_type(run: fedray.Run) -> None:
    tables = {path.stem: pq.read_table(path).schema for path in run.path.glob("*.parquet")}
    assert {"rounds"} <= tables.keys()
    assert find_uncatalogued(tables) == []


@EACH
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


@pytest.mark.parametrize(
    ("method", "last_round"), [*((one, 1) for one in sorted(METHODS)), *((one, None) for one in FROM_NOTHING)]
)
def test_resuming_ends_in_the_same_bits(run: fedray.Run, tmp_path: Path, last_round: int | None) -> None:
    """The same finite models, the same state and private vectors, the same scores, and every row exactly once."""
    assert all(bool(torch.isfinite(value).all()) for model in run.models for value in model.values())
    again = fedray.resume(copy_run(run, tmp_path / "run", last_round))
    for key in ("model_hash", "state_hash", "metrics"):
        assert again.summary[key] == run.summary[key]
    for path in run.path.glob("*.parquet"):
        assert rows(pq.read_table(again.path / path.name)) == rows(pq.read_table(path)), path.name


@EACH
@pytest.mark.filterwarnings("ignore:these files hold the trained models")
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
    assert not torch.equal(*run.progress.state.models.chunk(2))  # of two seeds


@EACH
def test_its_answers_have_the_scores_that_were_reported(run: fedray.Run) -> None:
    """`predict` asks the models that were evaluated: samples, teachers, Gaussian heads, closed forms."""
    last = parts(run, "rounds").query(f"round == {run.summary['rounds']}").set_index("replicate")
    for replicate, asked in ((0, run), (1, fedray.load(run.path))):
        x, y = (part.numpy() for part in run.study.split("test", replicate))
        answer = asked.predict(x, replicate=replicate)
        assert answer.mean.shape == answer.variance.shape
        assert (answer.variance >= 0).all()
        if run.study.classes:
            assert answer.probabilities is not None
            np.testing.assert_allclose(answer.probabilities.sum(-1), 1.0)
            assert (answer.mean.argmax(-1) == y).mean() == pytest.approx(last["accuracy"][replicate], abs=1e-12)
            given = answer.mean[np.arange(len(y)), y]
            assert -np.log(given).mean() == pytest.approx(last["nll"][replicate], rel=1e-6)
        else:
            assert answer.mean.shape == y.shape
            assert np.sqrt(((answer.mean - y) ** 2).mean()) == pytest.approx(last["rmse"][replicate], rel=1e-6)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {*REAL_TARGETS}))
def test_known_clients_are_answered_as_they_were_scored(run: fedray.Run) -> None:
    """Whatever answers (models, samples, teachers, a client's own): `predict(client=i)` scores what was reported."""
    study, right = run.study, []
    x, y = (part.numpy() for part in study.split("test", 0))
    ask = own_test_rows(study, 0)
    for client in range(study.clients.number):
        asked = ask(client)
        said = run.predict(x[asked.rows], client=client).mean.argmax(-1)
        right.append(((said == y[asked.rows]) * asked.weight).sum())
    last = parts(run, "rounds").query(f"round == {run.summary['rounds']} and replicate == 0").iloc[0]
    assert np.mean(right) == pytest.approx(last["personal_accuracy"])
    assert min(right) == pytest.approx(last["personal_worst"])


NO_MODEL: dict[str, Any] = {"model": {"name": None, "hidden": None}}
VARIANTS: dict[str, dict[str, Any]] = {  # parts of methods that their defaults do not reach
    **{
        name: CASES[name]
        for name in (
            "fedag omc", "fedbe dirichlet", "feddf noise", "shefl fedprox", "shefl feddyn", "fens class_weights",
            "fens label_shares", "beta_predbayes product", "random_walk failures",
        )
    },
    **{name: CASES[name] | NO_MODEL for name in ("feddf networks", "stacking within", "stacking classifiers")},
    "adaboost_f weights": {"method": {"draw": "weights"}},
}  # fmt: skip


# Ray takes seconds to start its actors; by default other tests have the parts of which these methods are made.


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(METHODS), *VARIANTS])
@pytest.mark.usefixtures("cluster")
def test_every_method_has_the_bits_of_one_process_in_two_actors(name: str, tmp_path: Path) -> None:
    """Models, private vectors, every table, and the sets of known clients, who are asked where they live.

    With error feedback jobs run where their client lives; without it actors take chunks of them as they finish.
    """
    method, change = name.split()[0], VARIANTS.get(name, {})
    kept: dict[str, Any] = {"compress": {"error_feedback": False}} if change else {}
    sets: dict[str, Any] = {"evaluate": {"clients": "all"}, "predict": {"gamma": None, "conformal": {"alpha": 0.5}}}
    tree = combined(method, "permutation", replicates=1, **sets, **(kept | change))
    actors: dict[str, Any] = {"runtime": "ray", "clients__actors": 1 if METHOD_SPECS[method].pooled else 2}
    ray, inline = fedray.run(tree, out=tmp_path / "ray", **actors), fedray.run(tree, out=tmp_path / "inline")
    for key in ("model_hash", "state_hash", "metrics"):
        assert ray.summary[key] == inline.summary[key]
    for table in ("rounds", "clients", *(["client_scores"] if not METHOD_SPECS[method].pooled else [])):
        assert rows(getattr(ray, table)) == rows(getattr(inline, table)), table
