"""Trials that train side by side share lanes, and are to the bit what they are alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blocks import make_block, perceptron
from sweeps import BASE, list_outcomes, run, sweep

from fedray.assembly.user_objects import UserObjects
from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.method import Local
from fedray.files.checksums import find_checkpoints
from fedray.models.catalogue import build_net
from fedray.scenario.loader import read_scenario
from fedray.storage import checkpoint
from fedray.storage import tables as record
from fedray.training import joint, mlp
from fedray.training.block import Block, Rates, Trained, deal_batches
from fedray.training.choice import choose_engine
from fedray.training.joint import WaitingBlock, describe_form, train_side_by_side
from fedray.tuning.objectives import read_objective
from fedray.tuning.trial import TrialTask, train_jobs

CLOCK = "wall_seconds"
RAGGED = {"data.partition": {"name": "dirichlet", "alpha": 0.3}, "participation.per_round": 5}


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the sweep's page takes longer than these sweeps."""
    monkeypatch.setattr("fedray.tuning.page.write_page", lambda *_: None)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(lanes, learning rates) of every block of two and more trials."""
    seen: list[tuple[int, int]] = []
    honest = joint.join_blocks

    def joined(parts: Any, order: Any) -> Block:
        block = honest(parts, order)
        seen.append((len(block.start), len(np.unique(block.rates.lr))))
        return block

    monkeypatch.setattr(joint, "join_blocks", joined)
    return seen


def left(folder: Path) -> tuple[Any, ...]:
    """All that a run leaves but its clock: rows, jobs, the newest state."""
    tables = [record.read_table(folder, name) for name in ("rounds", "clients")]
    rows = [table.drop_columns([c for c in (CLOCK,) if c in table.column_names]).to_pylist() for table in tables]
    progress, private = checkpoint.load_checkpoint(folder / "checkpoints")
    state = progress.state
    whole = {"models": state.models, **state.extra, **private}
    return (*rows, {name: value.numpy().tobytes() for name, value in whole.items()})


SPACES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "learning rates": ({"local.lr": [0.3, 0.1, 0.01]}, RAGGED),
    "pulls": ({"method.mu": [0.1, 1.0], "local.lr": [0.3, 0.05]}, {"method": {"name": "fedprox"}, **RAGGED}),
    "no pull beside pulls": ({"local.pull": [0.0, 0.5, 1.0]}, RAGGED),
    "seeds, models, bytes": (
        {"seed": [3, 8], "method.models": [2, 3], "compress.ratio": [0.2, 1.0]}, {"compress.kind": "topk", **RAGGED},
    ),
    "corrections": ({"local.lr": [0.3, 0.1], "method.alpha": [0.1, 0.2]}, {"method": {"name": "feddyn"}}),
    "personal passes": ({"local.lr": [0.3, 0.1]}, {"method": {"name": "ditto"}}),
    "momentum, one rate a block": ({"local.lr": [0.3, 0.1], "seed": [0, 5]}, {"local.momentum": 0.9}),
    "other batches and networks": ({"local.batch_size": [4, 8], "model.hidden": [[8], [6]]}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPACES)
def test_trials_side_by_side_are_the_trials_alone(name: str, tmp_path: Path, blocks: list[tuple[int, int]]) -> None:
    space, overrides = SPACES[name]
    found = sweep(space, sampler="grid", trials=None, overrides={"rounds": 3, **overrides})
    _, shared = run({**found, "together": 8}, tmp_path / "shared")
    mixed = {"learning rates": 3, "pulls": 2, "corrections": 2, "personal passes": 2}
    if name != "other batches and networks":
        assert max(rates for _, rates in blocks) == mixed.get(name, 1)
    joined = len(blocks)
    _, alone = run({**found, "together": 1}, tmp_path / "alone")
    assert len(blocks) == joined
    assert list_outcomes(shared) == list_outcomes(alone)
    for row in alone:
        assert row["how"] == "trained"
        folders = [tmp_path / side / row["run_directory"] for side in ("shared", "alone")]
        assert left(folders[0]) == left(folders[1])
        assert (folders[0] / "scenario.yaml").read_text() == (folders[1] / "scenario.yaml").read_text()


def test_a_pruned_trial_stops_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops computing at once; what the others compute is what they compute alone."""
    lanes: list[int] = []
    honest = mlp.train_mlp

    def counted(net: Any, block: Block) -> Trained:
        lanes.append(len(block.start))
        return honest(net, block)

    monkeypatch.setattr(mlp, "train_mlp", counted)
    found = sweep({"local.lr": [0.3, 0.2, 1e-4, 2e-4]}, sampler="grid", trials=None, together=4,
                  pruner={"name": "asha", "warmup": 1, "reduction": 2})  # fmt: skip
    _, trials = run(found, tmp_path / "s")
    assert [row["state"] for row in trials] == ["complete", "complete", "pruned", "pruned"]
    assert max(row["rounds"] for row in trials[2:]) < 6
    assert lanes[-1] < max(lanes) == 4 * BASE["clients"]["number"]
    single = sweep({"local.lr": [0.3, 0.2]}, sampler="grid", trials=None, together=1)
    assert list_outcomes(run(single, tmp_path / "alone")[1])[0][2] == trials[0]["values"]


def test_a_trial_that_diverges_fails_alone(tmp_path: Path) -> None:
    found = sweep({"local.lr": [0.3, 1e30, 0.1]}, sampler="grid", trials=None)
    _, shared = run({**found, "together": 3}, tmp_path / "shared")
    assert [row["state"] for row in shared] == ["complete", "failed", "complete"]
    assert list_outcomes(shared) == list_outcomes(run({**found, "together": 1}, tmp_path / "alone")[1])


def test_a_sweep_interrupted_side_by_side_resumes_to_the_same_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them from its own newest checkpoint; nothing is trained twice."""
    found = sweep({"local.lr": [0.3, 0.1, 0.01]}, sampler="grid", trials=None, together=3,
                  overrides={"checkpoint.every": 2})  # fmt: skip
    undisturbed = list_outcomes(run(found, tmp_path / "whole")[1])
    saved, calls = checkpoint.save_checkpoint, []

    def killed(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return saved(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_checkpoint", killed)
        with pytest.raises(FedrayError, match="--resume"):
            run(found, tmp_path / "cut")
    stands = [find_checkpoints(folder / "checkpoints")[-1] for folder in sorted((tmp_path / "cut/trials").iterdir())]
    assert stands == [4, 2, 2]
    assert list_outcomes(run(found, tmp_path / "cut", resume=True)[1]) == undisturbed


def test_a_directory_of_another_training_is_not_taken_for_the_trials(tmp_path: Path) -> None:
    goal = (read_objective("", "accuracy"),)
    one, two = (read_scenario({**BASE, "data": {**BASE["data"], "hold_out": 0.2}, "seed": seed}) for seed in (1, 2))
    first, other = (TrialTask(0, scenario, tmp_path / "trial", goal, UserObjects()) for scenario in (one, two))
    (alone,) = train_jobs([TrialTask(0, two, tmp_path / "alone", goal, UserObjects())])
    train_jobs([first])
    (found,) = train_jobs([other])
    assert alone.state == found.state == "complete" and found.values == alone.values
    assert read_scenario(tmp_path / "trial" / "scenario.yaml") == two


def test_the_seconds_of_trials_side_by_side_add_up_to_the_sweeps(tmp_path: Path) -> None:
    found = sweep({"local.lr": [0.3, 0.2, 0.1, 0.05]}, sampler="grid", trials=None, together=4)
    summary, trials = run(found, tmp_path / "s")
    clocks = [record.read_table(tmp_path / "s" / row["run_directory"], "rounds")[CLOCK][-1].as_py() for row in trials]
    assert max(clocks) * 0.9 < summary["seconds_trained"] < sum(clocks)


def test_a_lane_of_its_own_rates_has_the_bits_of_a_block_of_them() -> None:
    """Rates enter by products with one rounding each: a number and a vector of that number are the same."""
    net = build_net("mlp", (6,), 3, "cross_entropy", hidden=[7, 5])
    lanes, size = 6, np.full(6, 11)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(66, 6, generator=g), torch.randint(3, (66,), generator=g)
    keys = rng.keys(0, "batches", np.arange(lanes))
    index, weight = deal_batches(np.arange(66).reshape(6, 11), size, size, 4, keys)
    start = torch.stack([net.init(k) for k in range(lanes)])
    offset = 0.1 * torch.randn(start.shape, generator=g)
    given = [(0.3, 0.01, 0.0), (0.017, 0.3, 0.5), (1.1, 0.0, 0.07)]

    def block(who: list[int], rates: tuple[float, float, float], own: Rates | None) -> Block:
        local = Local(lr=rates[0], weight_decay=rates[1], pull=rates[2], batch_size=4)
        counters = torch.zeros(len(who), 0, dtype=torch.int64)
        return Block(start[who], counters, lambda a, b: (x[index[a:b][:, who]], y[index[a:b][:, who]]), weight[:, who],
                     size[who], local, rates[0], keys[who], 6, None, offset[who], own)  # fmt: skip

    mixed = mlp.train_mlp(net, block([0, 1, 2, 3, 4, 5], given[0], Rates(*np.repeat(np.array(given).T, 2, axis=1))))
    for at, rates in enumerate(given):
        alone = mlp.train_mlp(net, block([2 * at, 2 * at + 1], rates, None))
        assert torch.equal(alone.final, mixed.final[2 * at : 2 * at + 2])
        assert torch.equal(alone.loss, mixed.loss[2 * at : 2 * at + 2])


def test_blocks_whose_rate_is_0_train_apart_from_those_that_move() -> None:
    """The losses of lanes with plain SGD are divided by their rates."""
    net = perceptron()
    engine = choose_engine(net)
    still, slow, fast = (
        WaitingBlock(engine, net, make_block(net, (6,), Local(), [8, 8], torch.float32)._replace(lr=lr), "")
        for lr in (0.0, 0.1, 0.2)
    )
    assert describe_form(slow) == describe_form(fast) != describe_form(still)
    trained = train_side_by_side({0: still, 1: slow, 2: still})
    assert all(isinstance(one, Trained) and bool(one.loss.isfinite().all()) for one in trained.values())
