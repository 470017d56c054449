"""The learning rate is chosen inside the training part: the candidates are lanes, the test rows are never read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import copy_run, scenario

import fedray
from fedray.core.errors import FedrayError
from fedray.data.types import Split, classification

GRID = [0.001, 0.01, 0.1]
CUBIC: dict[str, Any] = {
    "method": {"name": "fedag"}, "data": {"name": "cubic", "limit": None, "partition": None}, "rounds": 2,
    "predict": {"noise": "residual"}, "replicates": 2, "local": {"lr": None, "epochs": 1}, "checkpoint": {"every": 1},
}  # fmt: skip


def run(*changes: dict[str, Any], **options: Any) -> fedray.Run:
    return fedray.run(scenario(CUBIC, *changes), **options)


def told(of: fedray.Run) -> list[dict[str, Any]]:
    worlds: list[dict[str, Any]] = json.loads((of.path / "learning_rates.json").read_text())["worlds"]
    return worlds


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    return run({"local": {"lr_grid": GRID[::-1]}, "report": False}, out=tmp_path_factory.mktemp("rates") / "run")


def test_each_world_takes_the_rate_whose_own_run_scores_best(chosen: fedray.Run) -> None:
    """To the bit: a candidate is what `local.lr` would have given it, a fifth of every client's rows withheld."""
    alone = [run({"local": {"lr": rate}, "data": {"hold_out": 0.2}}) for rate in GRID]
    rows = [[row for row in one.rounds.to_pylist() if row["round"] == 2] for one in alone]
    for world in told(chosen):
        scores = [each[world["replicate"]]["hold_out_nll"] for each in rows]
        assert world["hold_out_nll"] == scores
        assert world["lr"] == GRID[int(np.argmin(scores))]


def test_the_run_then_trains_on_every_row_with_what_was_chosen(chosen: fedray.Run) -> None:
    assert set(chosen.clients["samples"].to_pylist()) == {16}
    assert "hold_out_nll" not in chosen.rounds.column_names
    for world in told(chosen):
        alone = run({"local": {"lr": world["lr"]}, "seed": world["replicate"], "replicates": 1})
        mine = chosen.progress.state.models[world["replicate"]]
        assert torch.equal(mine, alone.progress.state.models[0])


def test_another_test_set_changes_no_choice() -> None:
    keys = {"method": {"name": "fedavg"}, "rounds": 2, "data": {"name": "digits", "partition": {"name": "iid"}}}
    small = {**scenario(keys), "local": {"lr_grid": [0.0001, 0.01, 0.3], "epochs": 1}, "replicates": 2}
    small["data"].pop("limit")
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    tests = Split(x[:20], y[:20]), Split(1 + x[:20], (y[:20] + 1) % 2)
    one, two = (fedray.run(small, data=classification("mine", Split(x, y), test, ("a", "b"))) for test in tests)
    assert told(one) == told(two)
    assert one.summary["model_hash"] == two.summary["model_hash"]
    assert one.summary["metrics"]["nll"] != two.summary["metrics"]["nll"]


def test_personal_passes_train_with_the_rate_that_was_chosen() -> None:
    """Ditto's replicates, side by side, are the runs with their rates."""
    keys = scenario({"method": {"name": "ditto"}, "rounds": 2, "data": {"limit": 120}, "local": {"lr": None}})
    together = fedray.run({**keys, "replicates": 2, "local": {**keys["local"], "lr_grid": GRID}})
    for world in told(together):
        alone = fedray.run({**keys, "seed": world["replicate"], "local": {**keys["local"], "lr": world["lr"]}})
        a, b = together.rounds.to_pylist(), alone.rounds.to_pylist()
        mine = [row["personal_accuracy"] for row in a if row["replicate"] == world["replicate"]]
        assert mine == [row["personal_accuracy"] for row in b]


def test_candidates_that_diverge_are_dropped(tmp_path: Path) -> None:
    left = run({"local": {"lr_grid": [0.01, 1e20, 1e30]}})
    assert {world["lr"] for world in told(left)} == {0.01}
    assert all(len(world["hold_out_nll"]) == 1 for world in told(left))
    with pytest.raises(FedrayError, match="local.lr_grid = .* diverges with each of them"):
        run({"local": {"lr_grid": [1e20, 1e30]}}, out=tmp_path / "none")


def test_a_resumed_run_keeps_the_choice(chosen: fedray.Run, tmp_path: Path) -> None:
    again = fedray.resume(copy_run(chosen, tmp_path / "again", 1))
    assert again.summary["model_hash"] == chosen.summary["model_hash"]
    folder = copy_run(chosen, tmp_path / "anew", None)
    (folder / "learning_rates.json").unlink()
    assert fedray.resume(folder).summary["model_hash"] == chosen.summary["model_hash"]


@pytest.mark.slow
def test_both_runtimes_train_with_the_rates_that_were_chosen(chosen: fedray.Run, tmp_path: Path) -> None:
    ray = run({"local": {"lr_grid": GRID}, "runtime": "ray", "clients": {"actors": 2}}, out=tmp_path / "ray")
    assert told(ray) == told(chosen)
    assert ray.summary["model_hash"] == chosen.summary["model_hash"]


OWN: dict[str, dict[str, Any]] = {"fedper": {}, "ditto": {"lambda": [0.1, 1.0]}, "local_only": {}}
OWN |= {name: {"models": 2} for name in ("ifca", "fedem")}


@pytest.mark.parametrize("method", [
    pytest.param({"name": name, **more}, id=name, marks=pytest.mark.slow if name in ("ifca", "local_only") else ())
    for name, more in OWN.items()
])  # fmt: skip
def test_the_rate_was_chosen_by_an_answer_that_no_client_uses(method: dict[str, Any]) -> None:
    """FedPer's own last layers learn with the rate; that of the server, by which it was chosen, is never trained."""
    keys = scenario({"method": method, "rounds": 2, "data": {"limit": 120, "hold_out": 0.3}, "local": {"lr": None}})
    grid = [0.0001, 0.3]
    chosen = fedray.run({**keys, "local": {**keys["local"], "lr_grid": grid}})
    (world,) = told(chosen)
    for rate, score in zip(grid, world["hold_out_personal_nll"], strict=True):
        alone = fedray.run({**keys, "local": {**keys["local"], "lr": rate}})
        study, losses = alone.study, []
        x, y = study.split("hold_out", 0)
        for client in range(study.clients.number):
            if len(rows := study.shards.client_holdout(0, client)):
                p = alone.predict(x[rows].numpy(), client=client).mean[np.arange(len(rows)), y[rows].numpy()]
                losses.append(-np.log(np.maximum(p, np.finfo(float).tiny)).mean())
        assert score == pytest.approx(np.mean(losses), rel=1e-7)
    assert world["lr"] == grid[int(np.argmin(world["hold_out_personal_nll"]))]


def test_the_rate_of_a_regression_is_chosen_by_the_clients_own_errors() -> None:
    left = run({"method": {"name": "ditto"}, "predict": {"noise": "none"}, "local": {"lr_grid": [0.0001, 0.1]}})
    assert all(world["lr"] == [0.0001, 0.1][int(np.argmin(world["hold_out_personal_rmse"]))] for world in told(left))
