"""What is known of a sweep while it runs: its study, the trainings that are done, and those under way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import optuna

from fedray.assembly.user_objects import UserObjects
from fedray.tuning.optuna_study import StudyLocation
from fedray.tuning.sweep import Sweep
from fedray.tuning.trial import Outcome, TrialTask

Say = Callable[[str], None]


class RunningTrial(NamedTuple):
    """A trial that is being trained.

    Attributes:
        trial: Optuna's trial.
        job: what a worker was given.
        key: hash of its training, see `hash_training`.
    """

    trial: optuna.Trial
    job: TrialTask
    key: str


class Training(NamedTuple):
    """A training that is done.

    Attributes:
        run: its run directory, relative to the sweep's.
        state: "complete" or "pruned".
        seconds: wall time it took, with that of the pruned training it went on from.
        seed: seed of its first replicate.
        seeds: how many trials share it, each as one of its replicates; 1 where it is one trial's.
    """

    run: str
    state: str
    seconds: float
    seed: int
    seeds: int


@dataclass
class SearchState:
    """A sweep while it runs.

    Attributes:
        sweep: the sweep file.
        out: directory of the sweep, absolute.
        study: Optuna's study.
        location: where the study is stored.
        own: the user's Python objects.
        limit: how many trials there will be.
        points: the points of a grid; None for other samplers.
        say: called with a line about each finished trial.
        trainings: the trainings that are done, by key.
        running: the trials that workers train now, by their futures.
        waiting: trials that wait for a training which another trial runs.
        unchecked: keys of trainings that an earlier process did, and that this one has not compared with its data yet.
        confirm_storage: raises where the storage of the study is no longer the one that the search began with.
        failed_keys: keys of trainings shared by several seeds that failed; each of the seeds is then trained alone.
    """

    sweep: Sweep
    out: Path
    study: optuna.Study
    location: StudyLocation
    own: UserObjects
    limit: int
    points: list[dict[str, Any]] | None
    say: Say
    trainings: dict[str, Training] = field(default_factory=dict)
    running: dict[Future[Outcome], RunningTrial] = field(default_factory=dict)
    waiting: list[optuna.Trial] = field(default_factory=list)
    unchecked: set[str] = field(default_factory=set)
    failed_keys: set[str] = field(default_factory=set)
    confirm_storage: Callable[[], None] = lambda: None
