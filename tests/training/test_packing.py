"""Packing changes no bit: it does not matter how a round's jobs are dealt to processes and cut into blocks.

Clients of 1 to 45 rows, any batch size, every engine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import rows, scenario
from torch import Tensor, nn

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.sums import merge_stats
from fedray.core.types import State
from fedray.runtime.jobs import split_jobs
from fedray.runtime.worker import Worker
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import draw_first_state, size_jobs
from fedray.simulation.study import Study

CLIENTS, WORLDS = 12, 2


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 10))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(72, 10))


ENGINES: dict[str, tuple[dict[str, Any], Any]] = {  # what runs, the scenario's model, a module of one's own
    "mlp": ({"model": {"name": "mlp", "hidden": [6]}}, None),
    "conv": ({"model": {"name": "cnn", "channels": [2, 3], "hidden": [5], "kernel": 3, "padding": 1}}, None),
    "vmap": ({}, normed),
    "loop": ({}, dropping),
}


@cache
def study(engine: str, batch_size: int | str) -> Study:
    change, module = ENGINES[engine]
    given = scenario(
        change,
        {
            "replicates": WORLDS,
            "data": {"limit": 200, "partition": {"name": "dirichlet", "alpha": 0.05}},
            "clients": {"number": CLIENTS},
            "method": {"models": 3},
            "local": {"batch_size": batch_size, "momentum": 0.9},
        },
    )
    return build_study(read_scenario(given), UserObjects(model=module))


def next_models(made: Study, state: State, actor: list[int], width: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """Models and counters after a round, and each job's loss; job j is done by process `actor[j]`."""
    phase = made.method.phase
    plan, dealt = phase.schedule(0, None), np.array(actor)
    loss, stats = np.full(len(dealt), np.nan), []
    for number in np.unique(dealt):
        host = Worker(made)
        most = min(width, host.engine.width)
        host.engine = replace(host.engine, width=most, jobs=min(width, host.engine.jobs))
        mine = np.flatnonzero(dealt == number)
        part, row = host.train(0, size_jobs(made, phase, plan.take(mine)), state, phase)
        stats.append(part)
        loss[mine] = row.loss
    after = phase.server.step(state, merge_stats(stats[::-1]), 0)
    return after.models, after.counters, loss


@cache
def whole(engine: str, batch_size: int | str) -> tuple[Tensor, Tensor, np.ndarray]:
    made = study(engine, batch_size)
    assert Worker(made).engine.name.removesuffix("-c") == engine
    return next_models(made, draw_first_state(made, made.method.phase), [0] * CLIENTS * WORLDS, 10**6)


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_never_share_a_network_that_an_engine_writes_into(engine: str) -> None:
    """`loop` and `vmap` put weights into the module: one thread at a time."""
    assert Worker(study(engine, 8), threads=3).threads == (3 if engine in ("mlp", "conv") else 1)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_deal_and_any_width_give_the_same_models(engine: str, data: st.DataObject) -> None:
    batch_size = data.draw(st.sampled_from([1, 3, 8, "full"]))
    made = study(engine, batch_size)
    jobs = CLIENTS * WORLDS
    actor = data.draw(st.lists(st.integers(0, 4), min_size=jobs, max_size=jobs))
    width = data.draw(st.integers(2, 9))
    want = whole(engine, batch_size)
    models, counters, loss = next_models(made, draw_first_state(made, made.method.phase), actor, width)
    assert torch.equal(models, want[0])
    assert torch.equal(counters, want[1])
    np.testing.assert_array_equal(loss, want[2])


def test_the_loop_takes_several_clients_a_block_unless_their_time_is_limited_or_their_rows_are_many() -> None:
    made = study("loop", 8)
    plan = made.method.phase.schedule(0, None)
    jobs = size_jobs(made, made.method.phase, plan)

    def count_lanes(study: Study) -> set[int]:
        return {len(block) for block in split_jobs(study, made.method.phase, jobs, Worker(study).engine)}

    assert max(count_lanes(made)) > 1
    for alone in (replace(made, client_timeout=60.0), replace(made, input_shape=(1, 1 << 10, 1 << 10))):
        assert count_lanes(alone) == {1}


def test_the_population_of_this_file_is_ragged() -> None:
    size = study("mlp", 8).shards.sizes(np.zeros(CLIENTS, np.int64), np.arange(CLIENTS))
    assert size.min() == 1 < 8 < 40 < size.max()


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_a_replicate_of_a_module_of_ones_own_is_its_single_run(engine: str) -> None:
    module = ENGINES[engine][1]
    together = fedray.run(scenario({"replicates": 2, "rounds": 2}), model=module)
    for r in range(2):
        alone = fedray.run(scenario({"seed": r, "rounds": 2}), model=module)
        models = together.progress.state.models.view(2, 5, -1)[r]
        assert torch.equal(models, alone.progress.state.models)
        mine = together.rounds.filter(np.array(together.rounds["replicate"]) == r)
        assert rows(mine, "replicate") == rows(alone.rounds, "replicate")
