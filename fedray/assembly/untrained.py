"""Warns of models that nobody will train, because a run has too few jobs.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> keys = {"rounds": 2, "clients": 10, "participation": {"per_round": 1}, "method": {"models": 5}}
    >>> count_untrained(build_study(read_scenario(keys)), rounds=2).tolist()
    [3]
"""

from __future__ import annotations

import math

import numpy as np

from fedray.assembly.devices import invited_per_tier
from fedray.core.errors import warn_user
from fedray.core.method import Phase
from fedray.core.types import IntArray
from fedray.scenario.names import is_own
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study

MOST_ROUNDS = 1000  # that are planned ahead


def warn_of_untrained_models(scenario: Scenario, study: Study) -> None:
    """Warns where a run is sure to leave models untrained; nothing is said where only the run itself can tell.

    Schedules that read no state are asked for the jobs of the rounds. Of others, and of training without rounds, the
    jobs are counted. Schedules and methods of the user's own are not asked.

    Args:
        scenario: The scenario.
        study: The same as plain objects.
    """
    method, phase = study.method, study.method.phase
    own = scenario.method.object or scenario.schedule.object or is_own("method", scenario.method.name)
    if own or is_own("schedule", scenario.schedule.kind) or phase.fitting is not None:
        return
    models, left = phase.models, 0
    if study.parts:
        models, left = _count_in_parts(scenario, study)
    elif method.prepare is None and (_reads_state(scenario, phase) or study.asynchronous is not None):
        left = int(max(0, models - _count_jobs(scenario, study)))
    elif method.prepare is None:
        left = int(count_untrained(study, study.rounds).max())
    if left and scenario.rounds:
        rounds = "1 round" if scenario.rounds == 1 else f"{scenario.rounds} rounds"
        remedies = "raise rounds, participation.per_round or models_per_round of clients.tiers, or lower method.models"
        if method.one_model_per_client:
            remedies = "raise rounds or participation.per_round"
        if study.asynchronous is not None:
            remedies = "raise rounds, or lower method.models"
        warn_user(f"nobody trains {left} of {models} models in {rounds}, and they stay as they were drawn: {remedies}")


def count_untrained(study: Study, rounds: int) -> IntArray:
    """Models of each world that the schedule gives to nobody with training rows, `[worlds]`.

    They are none where more rounds would have to be planned than `MOST_ROUNDS`.

    Args:
        study: Its schedule reads no state.
        rounds: Of the study.
    """
    phase = study.method.phase
    trained = np.zeros((study.worlds, phase.models), dtype=bool)
    for t in range(min(rounds, MOST_ROUNDS)):
        plan = phase.schedule(t, None)
        plan = plan.take(study.shards.sizes(plan.world, plan.client) > 0)
        trained[plan.world, plan.model] = True
        if trained.all():
            break
    left: IntArray = (~trained).sum(axis=1) * (rounds <= MOST_ROUNDS)
    return left


def _count_in_parts(scenario: Scenario, study: Study) -> tuple[int, int]:
    """Models of a stack that clients train together, and how many of them nobody trains, in the worst world."""
    parts = [p for p in study.parts if p.combine is None and p.voter is None and p.trained_before is None]
    models = sum(part.folds * part.models for part in parts)
    distilled = scenario.method.options.get("distil_steps", 0) > 0  # networks learn from those that clients train
    if not parts or distilled or _reads_state(scenario, study.method.phase):
        return models, 0
    each = [count_untrained(p.study, p.ends - p.begins).reshape(study.worlds, p.folds).sum(axis=1) for p in parts]
    return models, int(sum(each).max())


def _reads_state(scenario: Scenario, phase: Phase) -> bool:
    """Whether who trains what depends on losses of earlier rounds."""
    return scenario.schedule.kind == "adaptive" or phase.remember is not None or phase.choose is not None


def _count_jobs(scenario: Scenario, study: Study) -> float:
    """Jobs of a whole run at most, one after another; infinitely many where that depends on virtual time."""
    rule, models = study.asynchronous, study.method.phase.models
    if rule is not None:  # in each step one model takes uploads, or every one that has some
        return math.inf if rule.mode == "semi" else study.rounds
    tiers = zip(study.clients.tiers, invited_per_tier(scenario, study.clients), strict=True)
    return study.rounds * sum(number * (tier.models_per_round or models) for tier, number in tiers)
