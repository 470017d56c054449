"""Evaluation in pieces: what is common to the pieces of a world is read once."""

from __future__ import annotations

import pytest
import torch

from fedray.assembly.study import build_study
from fedray.data.shards import StoredShards
from fedray.runtime.inline import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.questions import outputs_on
from fedray.simulation.rounds import begin_progress


def test_the_withheld_rows_of_a_world_were_copied_for_every_500_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"data": {"hold_out": 0.8}, "clients": 4, "replicates": 2, "model": {"name": "mlp", "hidden": [4]}}
    study = build_study(read_scenario({**keys, "method": {"name": "fedavg"}}))
    read, holdout = list[int](), StoredShards.holdout

    def count(shards: StoredShards, world: int) -> tuple[torch.Tensor, torch.Tensor]:
        read.append(world)
        return holdout(shards, world)

    monkeypatch.setattr(StoredShards, "holdout", count)
    pieces = Inline(study).ask(outputs_on("hold_out", 1), begin_progress(study, study.method.phase).state)
    assert list(pieces) == [(world, first) for world in range(2) for first in (0, 500, 1000)]
    assert read == [0, 1, 0, 1]  # to count them, and to answer them
