"""Losses that read all K models: what they see, what it costs, and that no packing of clients shows in it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from small import copy_run, scenario
from torch import Tensor, nn

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.methods import LocalLoss, LossContext
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress
from fedray.training import choice

FEW: dict[str, Any] = {"rounds": 3, "method": {"models": 3}, "data": {"limit": 90}, "clients": {"number": 4}}
TIERS = {"hpc": {"share": 0.5, "models_per_round": "all"}, "lpc": {"share": 0.5}}
TWO_WORLDS: dict[str, Any] = {"replicates": 2}


def run(loss: Any, *changes: dict[str, Any], **options: Any) -> fedray.Run:
    return fedray.run(scenario(FEW, *changes), loss=loss, **options)


def engine_of(run: fedray.Run) -> str:
    return str(json.loads((run.path / "manifest.json").read_text())["engine"]["name"])


def models(run: fedray.Run) -> Tensor:
    return run.progress.state.models


def repel(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    """Negative-correlation learning (Liu and Yao 1999), with the other models as the round began."""
    says = context.ensemble.softmax(-1)
    mean, other = says.mean(0), (torch.arange(len(says)) != context.model)[:, None, None]
    far: Tensor = ((outputs.softmax(-1) - mean) * (other * (says - mean)).sum(0)).sum(-1)
    return context.objective(outputs, targets) + 0.5 * far


def plain(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    return context.objective(outputs, targets)


def batch_norm() -> nn.Module:
    """A network with buffers, which the loop trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


REPEL = LocalLoss(repel, reads=("ensemble",))
IGNORES = LocalLoss(plain, reads=("ensemble",))


def test_an_ensemble_of_one_is_the_broadcast_model() -> None:
    def distil(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        other = context.broadcast.outputs if context.ensemble is None else context.ensemble[0]
        far: Tensor = (outputs - other).square().sum(-1)
        return context.objective(outputs, targets) + far

    one = {"method": {"name": "fedavg", "models": 1}}
    broadcast, ensemble = (run(LocalLoss(distil, reads=(name,)), one) for name in ("broadcast", "ensemble"))
    assert engine_of(ensemble) == "vmap"
    assert torch.equal(models(broadcast), models(ensemble))
    assert broadcast.summary["totals"]["down_bytes"] == ensemble.summary["totals"]["down_bytes"]


@pytest.mark.parametrize(("model", "engine"), [(None, "vmap"), (batch_norm, "loop")])
def test_a_loss_that_reads_all_models_and_ignores_them_changes_no_bit(model: Any, engine: str) -> None:
    full = {"data": {"partition": {"name": "iid"}}}  # batches of 8 rows: no normalization over a single one
    reads, without = run(IGNORES, full, model=model), run(LocalLoss(plain), full, model=model)
    assert engine_of(reads) == engine
    assert reads.summary["model_hash"] == without.summary["model_hash"]


def test_each_lane_sees_the_models_of_its_own_world_and_which_it_trains() -> None:
    """Its own row of the ensemble is what the model says that it received."""
    seen: Counter[int] = Counter()

    def look(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        assert context.ensemble.shape == (3, *outputs.shape)
        assert not context.ensemble.requires_grad
        k = int(context.model)
        torch.testing.assert_close(context.ensemble[k], context.broadcast.outputs)
        others = [other for other in range(3) if other != k]
        assert all((context.ensemble[other] - context.broadcast.outputs).abs().max() > 1e-3 for other in others)
        seen[k] += 1
        return context.objective(outputs, targets)

    tiers = {"clients": {"tiers": TIERS}}
    found = run(LocalLoss(look, reads=("ensemble", "broadcast", "features")), tiers, TWO_WORLDS)
    assert engine_of(found) == "loop"
    assert set(seen) == {0, 1, 2}


def test_lanes_and_the_loop_train_alike_and_no_packing_shows() -> None:
    def repel_one_by_one(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        int(context.client)  # what cannot be mapped over lanes
        return repel(outputs, targets, context)

    changes = {"clients": {"tiers": TIERS}}, TWO_WORLDS
    lanes, loop = (run(LocalLoss(one, reads=("ensemble",)), *changes) for one in (repel, repel_one_by_one))
    assert (engine_of(lanes), engine_of(loop)) == ("vmap", "loop")
    torch.testing.assert_close(models(lanes), models(loop), rtol=1e-4, atol=1e-5)
    assert (models(lanes) - models(run(IGNORES, *changes))).abs().max() > 1e-4
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(choice.MOST_LANES, "cpu", 2)  # blocks of one world, and of two
        narrow = run(REPEL, *changes)
    assert torch.equal(models(lanes), models(narrow))
    alone = run(REPEL, changes[0])
    assert torch.equal(models(lanes)[:3], models(alone))


def test_a_client_downloads_every_model_once_a_round() -> None:
    """Whether it trains one of them or all; what it sends stays."""

    def bytes_a_client(found: fedray.Run, column: str) -> dict[tuple[int, int], int]:
        total: Counter[tuple[int, int]] = Counter()
        for row in found.clients.to_pylist():
            total[row["round"], row["client"]] += row[column]
        return dict(total)

    tiers = {"clients": {"tiers": TIERS}, "rounds": 2}
    reads, without = run(IGNORES, tiers), run(LocalLoss(plain), tiers)
    model = 4 * reads.study.net.layout.d
    assert set(bytes_a_client(reads, "down_bytes").values()) == {3 * model}
    assert set(bytes_a_client(without, "down_bytes").values()) == {model, 3 * model}
    assert bytes_a_client(reads, "up_bytes") == bytes_a_client(without, "up_bytes")
    asked = {"method": {"name": "ifca"}, "clients": {"number": 4}}  # whose clients have them all anyway
    assert run(IGNORES, asked).summary["totals"] | {"wall_seconds": 0} == run(LocalLoss(plain), asked).summary[
        "totals"
    ] | {"wall_seconds": 0}


def test_a_resumed_run_reads_the_same_models(tmp_path: Path) -> None:
    whole = run(REPEL, {"checkpoint": {"every": 1, "keep": 9}})
    resumed = fedray.resume(copy_run(whole, tmp_path / "half", 1), loss=REPEL)
    assert resumed.summary["state_hash"] == whole.summary["state_hash"]


def test_personal_models_read_it_too() -> None:
    """Ditto with a loss that pushes away from the broadcast model: its global model is FedAvg's with that loss."""
    ditto = run(REPEL, {"method": {"name": "ditto", "models": None}})
    fedavg = run(REPEL, {"method": {"name": "fedavg", "models": None}, "server": {"weighting": "uniform"}})
    assert ditto.summary["model_hash"] == fedavg.summary["model_hash"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"method": {"name": "random_walk", "models": 3}}, "a random walk has no server that sends them"),
        ({"method": {"name": "local_only", "models": None}}, "the method sends its clients no models"),
        ({"participation": {"mode": "buffered", "goal": 2}}, "models change while clients train: set participation"),
        ({"local": {"private": "head"}}, "some layers stay with the clients"),
    ],
)
def test_where_clients_cannot_have_all_models_one_line_says_so(change: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput, match=f"^local.loss reads the ensemble, but {line}"):
        run(REPEL, change)


def test_an_actor_gets_all_models() -> None:
    from fedray.runtime.ray.runtime import reads_all_rows

    for loss, whole in ((REPEL, True), (LocalLoss(plain), False)):
        study = build_study(read_scenario(scenario(FEW)), UserObjects(loss=loss))
        phase = study.method.phase
        assert reads_all_rows(study, phase, begin_progress(study, phase).state) == whole


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ray_trains_with_all_models_to_the_same_bits() -> None:
    changes = {"clients": {"tiers": TIERS}}, TWO_WORLDS
    inline, ray = (run(REPEL, *changes, runtime=where) for where in ("inline", "ray"))
    assert inline.summary["state_hash"] == ray.summary["state_hash"]
