"""What ends a training of a sweep before its last round: the pruner, or objectives that can no longer change.

A worker that was killed after such an end, before its trial was told to the study, finds it here and trains no further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from fedray.files.checksums import find_checkpoints
from fedray.scenario import yaml_text
from fedray.scenario.loader import to_plain
from fedray.scenario.reading import count_last_phase, find_last_phase
from fedray.scenario.schema import Scenario
from fedray.storage import tables
from fedray.tuning.objectives import Row, SweepObjective, compute_pruning_value
from fedray.tuning.optuna_study import StudyLocation, open_trial
from fedray.tuning.study_storage import explain_storage

PRUNED = "pruned at age"  # attribute of a trial; its worker writes it before the training stops


class Reporter(NamedTuple):
    """How a training tells the study where it stands.

    Attributes:
        report: given a round and its rows, reports the first objective's metric once an age and says whether to stop.
        was_pruned: whether the trial was stopped at a round, by a process that was killed before it could say so.
    """

    report: Callable[[int, Sequence[Row]], bool]
    was_pruned: Callable[[int], bool]


def make_reporter(
    location: StudyLocation | None, number: int, objective: SweepObjective, scenario: Scenario
) -> Reporter:
    """The reporter of a trial.

    Args:
        location: the study; None without pruning.
        number: of the trial.
        objective: the first one.
        scenario: the trial's.
    """
    if location is None:
        return Reporter(lambda _round, _rows: False, lambda _round: False)
    trial, known = open_trial(location, number)
    reported, stopped = set(known.intermediate_values), known.user_attrs.get(PRUNED)
    age, last, keys = scenario.method.models, 0, to_plain(scenario)
    begins, ends = find_last_phase(keys), scenario.rounds + count_last_phase(keys)

    def report(round: int, rows: Sequence[Row]) -> bool:
        nonlocal last
        step = round // age
        if step <= last or round <= begins > 0:  # scores of a phase that others follow are not the method's
            return False
        last = step
        if step == stopped:
            return True
        if step in reported and max(reported) > step:  # an interrupted trial trains these rounds again
            return False
        with explain_storage(location.storage):
            if step not in reported:
                trial.report(compute_pruning_value(objective, rows), step)
            if not (trial.should_prune() and round < ends):
                return False
            trial.set_user_attr(PRUNED, step)
        return True

    return Reporter(report, lambda round: round // age == stopped)


def find_early_end(
    rows: Sequence[Row], objectives: Sequence[SweepObjective], was_pruned: Callable[[int], bool]
) -> Literal["complete", "pruned"] | None:
    """What ended a training at its newest checkpoint; None where it goes on.

    Args:
        rows: of the worlds at that checkpoint.
        objectives: of the sweep.
        was_pruned: of the trial's `Reporter`.
    """
    if rows and all(objective.is_decided(row) for objective in objectives for row in rows):
        return "complete"
    return "pruned" if rows and was_pruned(int(rows[0]["round"])) else None


def read_checkpoint_rows(folder: Path) -> list[Row]:
    """The rows of all worlds at the newest checkpoint of a run directory; none where it was not evaluated there."""
    found = find_checkpoints(folder / "checkpoints")
    rows = tables.read_table(folder, "rounds").to_pylist() if found else []
    begins = find_last_phase(yaml_text.load_yaml(folder / "scenario.yaml")) if found else 0
    return [row for row in rows if row["round"] == found[-1] and not row["round"] <= begins > 0]
