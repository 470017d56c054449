"""When a run ends before its last round, and which of its rounds was the best.

A rule that watches a score reads it on withheld rows, where there are any: a round that the test rows choose has a
score that is too good. Before the last phase of a method nothing is watched.

Example:
    The best value of round 4 was not passed in three rounds.

    >>> course = Course("accuracy", [[0.8, 4.0]])
    >>> follow_course(course, [0.79], round=7, min_delta=0.0)
    False
    >>> is_out_of_patience(course, 7, patience=3)
    True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.metrics.names import lower_is_better, reaches_target
from fedray.models import net as nets
from fedray.own_code.user_code import name_type
from fedray.simulation.interfaces import Progress
from fedray.simulation.study import Evaluation, Study

PATIENCE, BEST = "stop", "best"  # what the courses of a run are kept for
WITHHELD = "hold_out_"  # before the name of a score on withheld rows


class Course(NamedTuple):
    """The best values of a metric so far.

    Attributes:
        metric: its name.
        best: value and round, for each world, or for their mean; empty for a world without a value so far.
    """

    metric: str
    best: list[list[float]]


def read_value(row: Mapping[str, Any], name: str, key: str) -> float | None:
    """The value of a metric in a row; None where it was not measured in this round.

    Args:
        row: metrics by name.
        name: of the metric.
        key: the scenario's, for the error message.

    Raises:
        BadInput: there is no such metric in this run.
    """
    if name not in row:
        known = ", ".join(k for k, v in row.items() if isinstance(v, float))
        raise BadInput(f"{key} = {name}: this run has no such metric: choose one of {known}")
    value: float | None = row[name]
    return value


def watched_score(row: Mapping[str, Any], name: str) -> str:
    """The score that a rule reads where a scenario names one: that of the withheld rows, where a row has it.

    Args:
        row: metrics by name.
        name: of the score.

    Example:
        >>> watched_score({"accuracy": 0.5, "hold_out_accuracy": 0.4}, "accuracy"), watched_score({"nll": 1.0}, "nll")
        ('hold_out_accuracy', 'nll')
    """
    return f"{WITHHELD}{name}" if f"{WITHHELD}{name}" in row else name


def list_choosing_keys(evaluation: Evaluation) -> dict[str, str]:
    """The keys of a scenario by which a round is chosen, and the scores that they name."""
    patience, stop_at, best = evaluation.patience, evaluation.stop_at, evaluation.best
    found = {"stop.metric": patience and patience.metric, "evaluate.stop_at.metric": stop_at and stop_at[0]}
    return {key: name for key, name in {**found, "checkpoint.best": best}.items() if name}


def list_test_choices(study: Study, progress: Progress) -> dict[str, str]:
    """The keys by which a round of a run was chosen by its test rows, and the scores that they read.

    Args:
        study: what ran.
        progress: the end of the run.
    """
    row: Mapping[str, Any] = progress.metrics[0] if progress.metrics else {}
    chosen = {key: watched_score(row, name) for key, name in list_choosing_keys(study.evaluation).items()}
    return {
        key: name
        for key, name in chosen.items()
        if not name.startswith(WITHHELD)
        and (progress.courses.get(BEST) if key == "checkpoint.best" else progress.stopped.startswith(f"{name} has "))
    }


def collect_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The values of every metric in the rows of the worlds, without the worlds that do not have it.

    Example:
        >>> collect_values([{"accuracy": 0.5, "nll": None}, {"accuracy": 0.75, "nll": 1.0}])
        {'accuracy': [0.5, 0.75], 'nll': [1.0]}
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, float):
                found.setdefault(name, []).append(value)
    return found


def follow_course(course: Course, values: Sequence[float | None], round: int, min_delta: float) -> bool:
    """Keeps the values that are better than all before, and says whether there is one.

    Args:
        course: what is known; it is changed in place.
        values: of the round, one for each entry of the course.
        round: the round.
        min_delta: by how much a value must be better.
    """
    sign, found = -1.0 if lower_is_better(course.metric) else 1.0, False
    for place, value in enumerate(values):
        if value is None or np.isnan(value):
            continue
        course.best.extend([] for _ in range(place + 1 - len(course.best)))
        if not course.best[place] or sign * (value - course.best[place][0]) > min_delta:
            course.best[place] = [value, float(round)]
            found = True
    return found


def is_out_of_patience(course: Course, round: int, patience: int) -> bool:
    """Whether no entry of a course got better in the last rounds.

    Args:
        course: of a metric.
        round: the round now.
        patience: rounds without a better value.
    """
    found = [entry[1] for entry in course.best if entry]
    return bool(found) and all(round - at >= patience for at in found)


def follow_metrics(study: Study, progress: Progress) -> bool:
    """Follows the metrics of an evaluated round that a rule watches, and says whether the round is the best one so far.

    Args:
        study: what runs.
        progress: where it stands; its courses are changed in place.

    Raises:
        BadInput: this run has no such metric.
    """
    rules, rows = study.evaluation, progress.metrics
    if not rows or progress.round <= study.last_phase > 0:
        return False
    if rules.patience is not None:
        name = watched_score(rows[0], rules.patience.metric)
        course = Course(name, progress.courses.setdefault(PATIENCE, []))
        values = [read_value(row, name, "stop.metric") for row in rows]
        follow_course(course, values, progress.round, rules.patience.min_delta)
    if rules.best is None:
        return False
    name = watched_score(rows[0], rules.best)
    known = [read_value(row, name, "checkpoint.best") for row in rows]
    mean = None if None in known else float(np.mean([value for value in known if value is not None]))
    return follow_course(Course(name, progress.courses.setdefault(BEST, [])), [mean], progress.round, 0.0)


def find_stop(study: Study, progress: Progress) -> str:
    """Why a run ends after an evaluated round, in words; empty where no rule ends it.

    Args:
        study: what runs.
        progress: where it stands.
    """
    rules = study.evaluation
    if rules.stop_at is not None and progress.metrics and not progress.round <= study.last_phase > 0:
        name, wanted = watched_score(progress.metrics[0], rules.stop_at[0]), rules.stop_at[1]
        values = [read_value(row, name, "evaluate.stop_at.metric") for row in progress.metrics]
        if all(value is not None and reaches_target(name, value, wanted) for value in values):
            return f"{name} has reached {wanted:g}"
    if rules.patience is not None:
        name = watched_score(progress.metrics[0] if progress.metrics else {}, rules.patience.metric)
        course = Course(name, progress.courses.get(PATIENCE, []))
        if is_out_of_patience(course, progress.round, rules.patience.rounds):
            return f"{course.metric} has not become better in {rules.patience.rounds:,} rounds"
    return "" if study.method.explain_end is None else study.method.explain_end(progress.state) or ""


def ask_callbacks(study: Study, progress: Progress, *, measured: bool, gather: Callable[[], Any]) -> str:
    """Calls the user's functions after a round; the first one that asks for the end of the run is named, if one does.

    Args:
        study: what runs.
        progress: where it stands.
        measured: whether the round was evaluated.
        gather: completes `progress.state`, where a callback asks for models.
    """
    asked = [name for name, callback in study.callbacks if _ask(callback, study, progress, measured, gather)]
    return f"the callback {asked[0]} asked for it" if asked else ""


def _ask(
    callback: Callable[..., Any], study: Study, progress: Progress, measured: bool, gather: Callable[[], Any]
) -> bool:
    """Whether a callback wants the run to end."""

    def models() -> list[dict[str, Tensor]]:
        gather()
        state = progress.state
        return [nets.whole_state_dict(study.net, *one) for one in zip(state.models, state.counters, strict=True)]

    found = collect_values(progress.metrics if measured else [])
    scores = {name: float(np.mean(values)) for name, values in found.items()}
    said = callback(progress.round, scores, models)
    if said is not None and not isinstance(said, bool | np.bool_):
        raise BadInput(f"a callback returned {name_type(said)}: return True to end the run, or nothing")
    return bool(said)
