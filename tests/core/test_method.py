"""What a server says of itself is true: which of them compute each number of the models by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import of_method

from fedray.assembly.study import build_study
from fedray.core.exact_sum import ExactSum, Kept
from fedray.core.types import State, Stats
from fedray.methods import METHODS
from fedray.runtime.inline import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress, run_round, size_jobs

TIERS = {"hpc": {"number": 2, "models_per_round": "all"}, "lpc": {}}
BY_COLUMN: dict[str, dict[str, Any]] = {
    "mean": of_method("fed_ensemble", {"method": {"models": 2}}),
    "by tier": of_method("shefl", {"clients": {"tiers": TIERS}}),
    "eq. 2": of_method("shefl", {"clients": {"tiers": TIERS}, "server": {"coefficients": "paper_eq2"}}),
    "server optimizer": of_method("fedavg", {"server": {"optimizer": "yogi"}}),
    "median": of_method("fedavg", {"server": {"robust": "median"}}),
    "memory of clients": of_method("fedavg", {"participation": {"per_round": 3, "selection": "oort"}}),
    **{name: of_method(name) for name in ("feddyn", "scaffold", "fednova", "fedag", "fedfisher")},
}
TOGETHER = {
    "krum": of_method("fedavg", {"server": {"robust": "krum"}}),
    "distillation": of_method("fedbe"),
    "product of mixtures": of_method("fedbens", {"method": {"temperature": 1e6, "precision": 0.1, "prior": 0.0}}),
}


def other_columns(value: Any, columns: slice) -> Any:
    """Numbers of the models, or of what is kept beside them, changed in some columns."""
    if isinstance(value, ExactSum):
        return ExactSum({limb: other_columns(part, columns) for limb, part in value.limbs.items()})
    if isinstance(value, Kept):
        return Kept({key: other_columns(part, columns) for key, part in value.rows.items()})
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() and value.shape[-1] > columns.stop:
        value = value.clone()
        value[..., columns] = 2.0 * value[..., columns] + 0.125  # whole models are then compared by these columns
    return value


def step_twice(keys: dict[str, Any], columns: slice) -> tuple[bool, State, State]:
    """Whether a server says that it works by column, and what it makes of a round as it is, and with other columns."""
    study = build_study(read_scenario(keys))
    phase, runtime, progress = study.method.phase, Inline(study), begin_progress(study, study.method.phase)
    progress.state = run_round(study, runtime, phase, progress)[2]
    jobs = size_jobs(study, phase, phase.schedule(1, progress.state))
    stats: Stats = runtime.train(1, jobs, progress.state, phase)[0]
    models, counters, extra = progress.state
    changed = State(
        other_columns(models, columns),
        counters,
        {name: other_columns(value, columns) for name, value in extra.items()},
    )
    other = {name: other_columns(value, columns) for name, value in stats.items()}
    return phase.server.columns, phase.server.step(progress.state, stats, 1), phase.server.step(changed, other, 1)


def differs(one: torch.Tensor, other: torch.Tensor, columns: slice) -> bool:
    """Whether two tensors differ outside of some columns."""
    outside = torch.ones(one.shape[-1], dtype=torch.bool)
    outside[columns] = False
    return not torch.equal(one[..., outside], other[..., outside])


COLUMNS = slice(100, 300)  # of more than 500 numbers: other extras are shorter


@pytest.mark.parametrize("case", BY_COLUMN)
def test_a_server_that_works_by_column_computes_each_number_by_itself(case: str) -> None:
    said, one, other = step_twice(BY_COLUMN[case], COLUMNS)
    assert said
    assert not differs(one.models, other.models, COLUMNS)
    assert not torch.equal(one.models, other.models)
    for name, value in one.extra.items():
        if value.dim() and value.shape[-1] > COLUMNS.stop:
            assert not differs(value, other.extra[name], COLUMNS), name
        else:
            assert torch.equal(value.nan_to_num(), other.extra[name].nan_to_num()), name


@pytest.mark.parametrize("case", TOGETHER)
def test_a_server_that_compares_whole_models_does_not_say_so(case: str) -> None:
    said, one, other = step_twice(TOGETHER[case], COLUMNS)
    assert not said
    assert differs(one.models, other.models, COLUMNS)


@pytest.mark.slow
def test_every_method_has_said_what_its_server_is() -> None:
    """Of a new method it is asked here which of the two it is."""
    silent = {name for name in METHODS if not build_study(read_scenario(of_method(name))).method.phase.server.columns}
    trees = {"adaboost_f", "distboost_f", "preweak_f", "federated_bagging"}
    assert silent == trees | {
        "feddf",
        "fedbe",
        "fedbens",
        "fedbe_nokd",
        "fedrolex",
        "fens",
        "beta_predbayes",
        "heterofl",
        "ivon_admm",
        "pfedbayes",
        "pvi",
        "random_walk",
        "stacking",
    }
