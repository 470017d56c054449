"""What the round loop does with a round that was trained: it measures, asks who may end the run, and saves.

Example:
    >>> meets_target({"accuracy": 0.9, "nll": 0.4}, ("accuracy", 0.8)), meets_target({"nll": 0.4}, ("nll", 0.3))
    (True, False)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedray.core.types import FloatArray
from fedray.metrics.names import reaches_target
from fedray.simulation.interfaces import Progress, Recorder, Runtime
from fedray.simulation.stopping import ask_callbacks, find_stop, follow_metrics, read_value
from fedray.simulation.study import Evaluation, Study

CountRounds = Callable[[FloatArray], int]  # virtual seconds of world 0 after each of the next rounds -> how many pass


@dataclass
class Measuring:
    """What the loop does with a round that was trained: the arguments of `run_rounds`, and when the run began."""

    study: Study
    runtime: Runtime
    recorder: Recorder
    evaluate: Callable[[Progress], list[dict[str, Any]]]
    progress: Progress
    began: float

    def gather(self) -> None:
        """Brings all models into the state."""
        self.progress.state = self.runtime.gather(self.progress.state)

    def measure(self) -> None:
        """Evaluates the models and keeps the metrics, and the models if they are the best so far.

        Raises:
            BadInput: A target names no metric of this run.
        """
        progress, target = self.progress, self.study.evaluation.target
        progress.metrics = self.evaluate(progress)
        progress.wall_seconds = time.perf_counter() - self.began
        if target is not None and progress.metrics:
            read_value(progress.metrics[0], target[0], "evaluate.target.metric")  # refuses a name that is no metric
        if follow_metrics(self.study, self.progress):
            self.recorder.keep_best(self.progress)
        self.recorder.evaluated(progress, progress.metrics)  # whoever watches may end the run here, which is then saved

    def count_rounds(self, seconds: FloatArray) -> int:
        """How many rounds may pass until the loop does more than record their jobs, at least 1.

        Args:
            seconds: Virtual seconds at the end of each of the next rounds, of the first world, `[n]`.
        """
        study, progress, rules = self.study, self.progress, self.study.evaluation
        if study.callbacks:
            return 1
        most = min(len(seconds), study.rounds - progress.round, _rounds_until(study.checkpoint_every, progress.round))
        if rules.every_seconds is None:
            return max(1, min(most, _rounds_until(rules.every, progress.round)))
        due = _count_due(seconds[:most], rules.every_seconds) > _count_due(progress.sim_seconds[0], rules.every_seconds)
        return max(1, int(due.argmax()) + 1 if due.any() else most)

    def finish_round(self, before: FloatArray) -> bool:
        """Measures, asks who may end the run, and saves; returns whether it ends.

        Args:
            before: Virtual seconds at which the round, or the first of several, began, `[R]`.
        """
        study, progress = self.study, self.progress
        last = progress.round >= study.rounds
        measured = last or _is_due(study.evaluation, progress, before)
        kept = last or progress.round % study.checkpoint_every == 0
        if measured or kept:
            self.gather()
        if measured:
            self.measure()
            progress.stopped = find_stop(study, progress)
        asked = ask_callbacks(study, progress, measured=measured, gather=self.gather)
        if asked and not measured:
            self.gather()
            self.measure()
        progress.stopped = progress.stopped or asked
        done = last or bool(progress.stopped)
        if done or kept:
            self.recorder.checkpoint(progress)
        return done


def _rounds_until(every: int, round: int) -> int:
    """Rounds from one to the next multiple of a number."""
    return every - round % every


def _count_due(seconds: FloatArray, every: float) -> FloatArray:
    """How many evaluations are due by some virtual seconds.

    Example:
        >>> _count_due(np.array([0.5, 0.59, 3 * 0.2]), 0.1).tolist()  # 0.5 // 0.1 is 4
        [5.0, 5.0, 6.0]
    """
    due: FloatArray = np.floor(seconds / every + 1e-9)  # a tick that rounding makes a little earlier is one
    return due


def _is_due(evaluation: Evaluation, progress: Progress, before: FloatArray) -> bool:
    """Whether the models are evaluated after a round that began at the virtual seconds `before`, `[R]`."""
    if evaluation.every_seconds is None:
        return progress.round % evaluation.every == 0
    every = evaluation.every_seconds
    return bool(_count_due(progress.sim_seconds[0], every) > _count_due(before[0], every))


def meets_target(row: Mapping[str, Any], target: tuple[str, float]) -> bool:
    """Whether a row of metrics has reached the target of a scenario.

    Args:
        row: Metrics by name; None where one was not measured in this round.
        target: The name of a metric and the value to reach.

    Raises:
        BadInput: There is no such metric in this run.
    """
    name, wanted = target
    value = read_value(row, name, "evaluate.target.metric")
    return value is not None and reaches_target(name, value, wanted)
