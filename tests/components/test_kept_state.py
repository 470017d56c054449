"""What a state keeps of past rounds: several keepers follow one another, and a server cannot lose it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small import scenario, train_rounds

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.types import FloatArray, Plan, State
from fedray.methods import Method, Setting, federated
from fedray.scenario.loader import read_scenario


def forgetful(setting: Setting) -> Method:
    """Its `remember` counts jobs in every round, and returns nothing else."""
    phase = federated(setting)

    def remember(t: int, state: State, plan: Plan, loss: FloatArray) -> State:
        assert len(loss) == len(plan.client) > 0
        before = state.extra.get("jobs", torch.zeros(2, dtype=torch.int64))
        assert int(before[1]) == t
        return state._replace(extra={"jobs": before + torch.tensor([len(loss), 1])})

    return Method("forgetful", replace(phase, remember=remember))


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({"schedule": {"kind": "adaptive"}}, {"job_loss"}),
        ({"participation": {"selection": "oort", "per_round": 3}}, {"client_loss", "client_round", "pace"}),
    ],
    ids=["adaptive", "oort"],
)
def test_the_adaptive_schedule_overwrote_what_an_own_method_remembers(keys: dict[str, Any], kept: set[str]) -> None:
    tree = scenario(keys, {"method": {"models": 2}, "data": {"limit": 60}})
    study = build_study(read_scenario(tree), UserObjects(method=forgetful))
    state, _ = train_rounds(study, 2)
    jobs, rounds = state.extra["jobs"].tolist()
    assert (rounds, state.extra.keys() - {"jobs"}) == (2, kept)
    assert jobs == (12 if "job_loss" in kept else 6)
    losses = state.extra["job_loss" if "job_loss" in kept else "client_loss"]
    assert 0 < int(torch.isfinite(losses).sum()) <= jobs
