"""The search of a sweep: ask Optuna for a trial, train it or look it up, tell Optuna its values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.trial import TrialState

from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput, FedrayError, Unwritable
from fedray.experiments.reopen import reopen_study
from fedray.scenario.yaml_text import load_yaml
from fedray.tuning import optuna_study
from fedray.tuning.optuna_study import StudyLocation
from fedray.tuning.space import enumerate_grid
from fedray.tuning.sweep import TRIALS, Sweep, warn_of_random_search
from fedray.tuning.trial import Outcome, OutcomeState, Submit, TrialTask, hash_training, look_up_values

# ---------------------------------------------------------------------------------------------------------------------
# The state of a running sweep: its study, the finished trainings, and the trainings under way.

Say = Callable[[str], None]


class RunningTrial(NamedTuple):
    """A trial that is being trained.

    Attributes:
        trial: Optuna's trial.
        job: the task that the worker was given.
        key: the hash of the trial's training, see `hash_training`.
    """

    trial: optuna.Trial
    job: TrialTask
    key: str


class Training(NamedTuple):
    """A finished training.

    Attributes:
        run: the run directory of the training, relative to the directory of the sweep.
        state: "complete" or "pruned".
        seconds: the wall time of the training; if the training continued a pruned one, both times together.
    """

    run: str
    state: str
    seconds: float


@dataclass
class SearchState:
    """The state of a running sweep.

    Attributes:
        sweep: the sweep file.
        out: the absolute path of the directory of the sweep.
        study: Optuna's study.
        location: where the study is stored.
        own: the user's Python objects.
        limit: the number of trials that there will be.
        points: the points of a grid; None for other samplers.
        say: a function that is called with a line about each finished trial.
        trainings: the finished trainings, by the key of `hash_training`.
        running: the trials that workers train now, by the futures of the workers.
        waiting: the trials that wait for a training under way for another trial.
        unchecked: the keys of trainings by an earlier process whose data this process has not yet compared with its
            own.
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


# ---------------------------------------------------------------------------------------------------------------------
# A search can be interrupted at any time and resumed: its whole state is in the study and in the run directories.

STATES: dict[OutcomeState, TrialState] = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
WORDS = {state: word for word, state in STATES.items()}


def count_planned_trials(sweep: Sweep, trials: int | None) -> tuple[int, list[dict[str, Any]] | None]:
    """Counts the trials to come, and lists the points of a grid (None for other samplers).

    Warns where there are too few trials for the sampler to learn from.

    Raises:
        BadInput: fewer than one trial is requested.

    Example:
        >>> from fedray.tuning.sweep import read_sweep
        >>> keys = {"data": {"name": "digits"}, "clients": {"number": 4}}
        >>> grid = {"scenario": keys, "space": {"local.lr": [0.1, 0.3]}, "objectives": ["accuracy"], "sampler": "grid"}
        >>> count_planned_trials(read_sweep(grid), trials=None)
        (2, [{'local.lr': 0.1}, {'local.lr': 0.3}])
    """
    if trials is not None and trials < 1:
        raise BadInput(f"--trials = {trials}: give at least 1")
    points = enumerate_grid(sweep.space) if sweep.sampler.name == "grid" else None
    wanted = trials or sweep.trials or (len(points) if points is not None else TRIALS)
    warn_of_random_search(sweep, wanted)
    return (wanted if points is None else min(wanted, len(points))), points


def run_search(state: SearchState, submit: Submit, confirm_place: Callable[[], None] = lambda: None) -> None:
    """Runs the trials that are still missing.

    Args:
        state: the state of the search.
        submit: hands the task of a trial to a worker.
        confirm_place: called before anything is written; raises if the directory of the sweep was moved or deleted.
    """
    for frozen in state.study.get_trials(deepcopy=False):
        known = optuna_study.trial_note(frozen).get("training")
        if frozen.state.is_finished() and known:
            state.trainings[known["key"]] = Training(*known["is"][:3])
            state.unchecked.add(known["key"])
    _check_trainings(state)
    queue = deque(optuna_study.unfinished_trials(state.study))
    learns = state.sweep.sampler.name not in ("grid", "random")  # from values: proposals wait for them
    while True:
        confirm_place()
        while len(state.running) + learns * len(state.waiting) < state.sweep.jobs:
            trial = queue.popleft() if queue else _ask(state)
            if trial is None:
                break
            if running := _start(state, trial):
                state.running[submit(running.job)] = running
        if not state.running:
            return
        done, _ = wait(state.running, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda one: state.running[one].trial.number):
            _finish(state, future)
        queue.extendleft(reversed(state.waiting))
        state.waiting = []


def _check_trainings(state: SearchState) -> None:
    """Refuses to go on if the data or the user's code have changed since a training of the sweep.

    The space of a sweep may hold several data sets, networks and methods. For each of them that was trained, one
    training is compared.
    """
    seen = set()
    for training in state.trainings.values():
        path = state.out / training.run / "scenario.yaml"
        if path.is_file():
            tree = load_yaml(path)
            kind = str((tree.get("data"), tree.get("model"), tree.get("method", {}).get("name")))
            if kind not in seen:
                reopen_study(state.out / training.run, state.own)
            seen.add(kind)


def _ask(state: SearchState) -> optuna.Trial | None:
    """Returns a new trial, or None if there are enough trials."""
    if len(state.study.get_trials(deepcopy=False)) >= state.limit:
        return None
    return optuna_study.ask_trial(state.study, state.sweep, state.points)


def _start(state: SearchState, trial: optuna.Trial) -> RunningTrial | None:
    """Starts a trial that must be trained; None if its values are looked up, or if the trial waits for another one."""
    sweep = state.sweep
    chosen = optuna_study.propose_values(state.study, sweep.sampler, sweep.space, trial)
    for other in state.study.get_trials(deepcopy=False):
        if other.state.is_finished() and repr(sorted(other.params.items())) == repr(sorted(chosen.items())):
            _repeat(state, trial, other)
            return None
    try:
        scenario = replace(sweep.scenario(chosen), runtime="inline")
    except BadInput as error:
        _tell(state, trial, Outcome("failed", [], error=str(error)), {"how": "refused"})
        return None
    job = TrialTask(
        trial=trial.number,
        scenario=scenario,
        folder=state.out / f"trials/{trial.number:05d}",
        objectives=sweep.objectives,
        own=state.own,
        location=state.location if sweep.pruner.name != "none" else None,
        actors=sweep.actors,
    )
    key = hash_training(scenario, sweep.find_inference_keys(scenario))
    known = state.trainings.get(key)
    if known is not None and key in state.unchecked:
        reopen_study(state.out / known.run, state.own)
        state.unchecked.discard(key)
    if known is not None and known.state == "complete":
        try:
            outcome = look_up_values(job, state.out / known.run)
        except Unwritable:
            raise
        except FedrayError as error:
            outcome = Outcome("failed", [], error=str(error))
        _tell(state, trial, outcome, {"how": "looked up", "run": known.run, "saved": known.seconds})
    elif any(key == one.key for one in state.running.values()):
        state.waiting.append(trial)
    else:
        return RunningTrial(trial, replace(job, before=None if known is None else state.out / known.run), key)
    return None


def _repeat(state: SearchState, trial: optuna.Trial, equal: optuna.trial.FrozenTrial) -> None:
    """Tells the study that a trial ended as an equal earlier trial did."""
    if equal.state == TrialState.PRUNED:
        for step, value in equal.intermediate_values.items():
            trial.report(value, step)
    values = list(equal.values) if equal.state == TrialState.COMPLETE else []
    note = optuna_study.trial_note(equal)
    errors = tuple(note.get("standard_errors", ()))
    outcome = Outcome(WORDS[equal.state], values, error=note.get("error", ""), errors=errors)
    seconds = float(note.get("seconds", 0.0)) or float(note.get("saved", 0.0))
    _tell(state, trial, outcome, {"how": "looked up", "run": note.get("run", ""), "saved": seconds})


def _finish(state: SearchState, future: Future[Outcome]) -> None:
    """Takes the outcome of a worker, notes the finished training, and tells the study its values."""
    trial, job, key = state.running.pop(future)
    try:
        outcome = future.result()
    except FedrayError as error:  # Ray is gone, or the machine has a fault: the trials stay unfinished
        raise FedrayError(f"{error}; then the same command with --resume goes on") from error
    except Exception as error:  # not an error of the training (these are outcomes): the worker died
        raise FedrayError(f"a worker died ({type(error).__name__}; memory?): lower jobs, then --resume") from error
    run = str(job.folder.relative_to(state.out))
    note: dict[str, Any] = {"how": "trained", "run": run, "seconds": outcome.seconds, "rounds": outcome.rounds}
    if outcome.state != "failed":
        state.trainings[key] = Training(run, outcome.state, outcome.total_seconds)
        note["training"] = {"key": key, "is": list(state.trainings[key])}
    _tell(state, trial, outcome, note)


def _tell(state: SearchState, trial: optuna.Trial, outcome: Outcome, note: Mapping[str, Any]) -> None:
    """Notes how a trial got its values, and tells the study these values."""
    more: dict[str, Any] = {"error": outcome.error} if outcome.error else {}
    result = STATES[outcome.state]
    if result == TrialState.COMPLETE and any(error is not None for error in outcome.errors):  # others have none
        more["standard_errors"] = list(outcome.errors)
    trial.set_user_attr(optuna_study.NOTES, {**note, **more})
    state.study.sampler = optuna_study.make_sampler(state.sweep.sampler, trial.number, 0)
    state.study.tell(trial, outcome.values if result == TrialState.COMPLETE else None, result)
    names = [objective.name for objective in state.sweep.objectives]
    scores = ", ".join(f"{n} {v:.4g}" for n, v in zip(names, outcome.values, strict=False)) or outcome.error
    how = "" if note["how"] == "trained" else f" ({note['how']})"
    values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in trial.params.items())
    state.say(f"trial {trial.number} (of {state.limit}) {outcome.state}{how}: {scores}  [{values}]")
