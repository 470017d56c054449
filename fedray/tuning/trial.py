"""Runs the search of a sweep, and the training of one trial in a worker's process."""

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import connection, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
import optuna
from optuna.trial import TrialState

from fedray.assembly.features import check_withheld_rows
from fedray.assembly.registry import UserObjects, list_own_names
from fedray.assembly.study import describe_study
from fedray.core.errors import BadInput, Enough, FedrayError, Unwritable
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.run import choose_device, reopen_study, require_one_cpu_actors, run_inline
from fedray.files import plain
from fedray.files.run_files import SUMMARY_FILE, TRACEBACK_FILE, find_checkpoints
from fedray.own_code.user_code import import_modules
from fedray.process import current_ending, say_notes
from fedray.report.read import CONTEXT
from fedray.runtime.environment import prepare_process, use_one_thread
from fedray.runtime.session import Inline, Snapshot
from fedray.scenario import nested
from fedray.scenario.identity import select_result_keys
from fedray.scenario.loader import dump_scenario, read_scenario, to_plain
from fedray.scenario.names import list_origins
from fedray.scenario.schema import Scenario
from fedray.scenario.shipped import count_last_phase_rounds, find_last_phase_start
from fedray.simulation.rounds import collect_values
from fedray.simulation.study import Progress, Study
from fedray.storage import checkpoint, directory, summary
from fedray.tuning import optuna_study
from fedray.tuning.space import Row, SweepObjective, average_objectives, enumerate_grid, list_keys_of_score
from fedray.tuning.sweep import TRIALS, Sweep

# ---------------------------------------------------------------------------------------------------------------------
# Ends a training of a sweep before its last round if the pruner says so, or if no objective can change any more.


def make_reporter(
    location: optuna_study.StudyLocation | None, number: int, objective: SweepObjective, scenario: Scenario
) -> tuple[Callable[[int, Sequence[Row]], bool], Callable[[int], bool]]:
    """Makes two functions, with which a training asks the pruner of the study whether to stop.

    The first function takes a round and its scores, and returns whether the pruner stops the trial. Every
    `location.age` rounds it reports the metric of `objective` to the study. The second function takes a round, and
    returns whether the pruner stopped the trial at this round in an earlier process. If `location` is None, there is no
    pruner, and both functions return False.
    """
    if location is None:
        return (lambda _round, _rows: False), lambda _round: False
    trial, known = optuna_study.open_trial(location, number)
    reported, stopped = set(known.intermediate_values), known.user_attrs.get(optuna_study.PRUNED)
    last, keys = 0, to_plain(scenario)
    begins, ends = find_last_phase_start(keys), scenario.rounds + count_last_phase_rounds(keys)

    def count_decisions(round: int) -> int:
        return (round - begins) // location.age  # an earlier phase has no scores of the method

    def report(round: int, rows: Sequence[Row]) -> bool:
        nonlocal last
        step = count_decisions(round)
        if step <= last:
            return False
        last = step
        if step == stopped:
            return True
        if step in reported and max(reported) > step:  # an interrupted trial trains these rounds again
            return False
        with optuna_study.explain_storage(location.storage):
            if step not in reported and (values := collect_values(rows).get(objective.metric)):
                trial.report(float(np.mean(values)), step)
            pruned = trial.should_prune() and round < ends
            if pruned:  # some pruners answer only once
                trial.set_user_attr(optuna_study.PRUNED, step)
            return pruned

    return report, lambda round: count_decisions(round) == stopped


# ---------------------------------------------------------------------------------------------------------------------
# Distinguishes faults of the machine from failures of a training. After a fault, a trial does not count as failed.

_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENFILE)


def refuse_fault(error: Exception, folder: Path) -> None:
    """Raises `Unwritable` if a training failed because of a fault of the machine. The same training may succeed later.

    Raises:
        Unwritable: The disk is full or broken, or a file or a storage cannot be written.

    Example:
        >>> refuse_fault(ValueError("the loss is NaN"), Path("trials/00003"))
        >>> refuse_fault(OSError(errno.ENOSPC, "No space left on device"), Path("trials/00003"))
        Traceback (most recent call last):
        fedray.core.errors.Unwritable: trials/00003 cannot be written (No space left on device): free space
    """
    if isinstance(error, Unwritable):
        raise error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, shutil.Error) or (isinstance(cause, OSError) and cause.errno in _FAULTS):
            line = f"{folder} cannot be written ({cause.strerror or 'its files could not be copied'}): free space"
            raise Unwritable(str(error) if isinstance(error, FedrayError) else line) from error
        cause = cause.__cause__ or cause.__context__


# ---------------------------------------------------------------------------------------------------------------------
# An *age* is K rounds (K is the number of models), in which a client trains each model once. After each age a training
# reports a score to Optuna, whose pruner may then stop the training.

# keys that change scores, but no training
MEASURED_LATER = ("evaluate.personal", "evaluate.clients", "evaluate.train", "evaluate.by_tier")
OutcomeState = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class TrialTask:
    """The training of a trial, as a task for a worker.

    Attributes:
        trial: The trial's number, from 0.
        scenario: The scenario to train, with the inline runtime.
        folder: The run directory.
        objectives: The numbers to compute from the training.
        own: The user's Python objects.
        before: The run directory of an earlier, pruned trial with the same training. The task continues this training.
            None means that the task starts a new training.
        location: The study that the task reports to. None means that there is no pruner.
        actors: The number of client actors that train for the trial, on CPUs that the trial's worker has reserved.
            0 means that the worker itself trains.
    """

    trial: int
    scenario: Scenario
    folder: Path
    objectives: tuple[SweepObjective, ...]
    own: UserObjects
    before: Path | None = None
    location: optuna_study.StudyLocation | None = None
    actors: int = 0


class Outcome(NamedTuple):
    """The outcome of a task, in which a worker trained a trial.

    Attributes:
        state: "complete", "pruned" or "failed".
        values: One value for each objective. The list is empty if the task failed.
        seconds: The wall time in which this task trained.
        rounds: The number of rounds that this task trained.
        total_seconds: `seconds`, plus the wall time of the pruned training that this task continued.
        error: One line about the failure. It is empty if nothing failed.
        errors: The standard error of each value over replicates and folds, as in `average_objectives`.
    """

    state: OutcomeState
    values: list[float]
    seconds: float = 0.0
    rounds: int = 0
    total_seconds: float = 0.0
    error: str = ""
    errors: tuple[float | None, ...] = ()


def hash_training(scenario: Scenario, inference: Sequence[str]) -> str:
    """Returns a hash of a training, with 16 hexadecimal digits.

    Two trials have the same hash exactly if they can share one training.

    `inference` has the keys of `predict` that do not influence the training. The hash also depends on
    `on_client_error`, because a training that fails with `fail` may succeed with `skip`.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> one, other = (read_scenario({"predict": {"gamma": gamma}}) for gamma in (0.1, 1.0))
        >>> hash_training(one, inference=["gamma"]) == hash_training(other, inference=["gamma"])
        True
        >>> hash_training(one, inference=[]) == hash_training(other, inference=[])
        False
    """
    later = {*MEASURED_LATER, *(f"predict.{name}" for name in inference)}
    keys = select_result_keys(to_plain(scenario))
    trained = {key: value for key, value in keys.items() if ".".join(key.split(".")[:2]) not in later}
    return hashlib.sha256(json.dumps(trained, sort_keys=True).encode()).hexdigest()[:16]


def train_job(job: TrialTask) -> Outcome:
    """Trains or resumes the run of a task, and returns the outcome. A finished run is only scored.

    A failure of the training becomes an outcome, but a fault of the machine ends the sweep.
    """
    prepare_process()
    use_one_thread()
    try:
        import_modules(job.own.modules)
        state: OutcomeState = "complete"
        given = job.folder / "scenario.yaml"
        if given.is_file() and given.read_text() != dump_scenario(job.scenario):  # left by a trial with other values
            shutil.rmtree(job.folder)
        damage = checkpoint.mend_run_directory(job.folder)
        if damage or not (job.folder / "summary.json").is_file():
            state = _train(job)
        else:
            reopen_study(job.folder, job.own)  # it was trained on the present data and code, or is refused
        histories = read_histories(job.folder)
        last = histories[0][-1]
        first = read_histories(job.before)[0][-1] if job.before else {"wall_seconds": 0.0, "round": 0}
        seconds, rounds = last["wall_seconds"] - first["wall_seconds"], int(last["round"] - first["round"])
        values, errors = average_objectives(job.objectives, histories)
        return Outcome(state, values, seconds, rounds, last["wall_seconds"], errors=errors)
    except Exception as error:  # a failing corner of the space must not end the sweep
        refuse_fault(error, job.folder)
        if isinstance(error, FedrayError):
            return Outcome("failed", [], error=str(error))
        with suppress(FedrayError):
            plain.write_atomically(job.folder / TRACEBACK_FILE, traceback.format_exc().encode())
        return Outcome("failed", [], error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _train(job: TrialTask) -> OutcomeState:
    """Runs or resumes a training until the last round, or until the pruner stops it, or until all objectives are final.

    Nothing more is trained if the training ended in an earlier process that was killed before it reported the end.
    """
    begun = (job.folder / "scenario.yaml").is_file()
    _make_directory(job)
    report, was_pruned = make_reporter(job.location, job.trial, job.objectives[0], job.scenario)
    newest = find_last_phase_start(to_plain(job.scenario)) or -1  # earlier rounds are not of the method

    def are_decided(rows: Sequence[Row]) -> bool:
        return all(objective.is_decided(row) for objective in job.objectives for row in rows)

    saved = find_checkpoints(job.folder / checkpoint.CHECKPOINTS) if begun else []
    rows = checkpoint.read_table(job.folder, "rounds").to_pylist() if saved else []
    there = [row for row in rows if row["round"] == saved[-1] > newest]
    if there and (was_pruned(saved[-1]) or are_decided(there)):  # the study has not heard of the end
        reopen_study(job.folder, job.own)  # it was trained on the present data and code, or is refused
        return "complete" if are_decided(there) else "pruned"
    latest: list[Row] = []
    ended: OutcomeState | None = None

    def measure(study: Study, runtime: Any) -> Callable[[Progress], list[dict[str, Any]]]:
        rule = study.evaluation.conformal
        if rule is not None and any("conformal" in list_keys_of_score(o.metric) for o in job.objectives):
            check_withheld_rows(rule, study.shards, job.scenario.data.hold_out, halved=True)
        score = make_evaluator(study, runtime, test=False)

        def evaluate(progress: Progress) -> list[dict[str, Any]]:
            rows = score(progress)
            costs = {name: getattr(progress, name) for name in ("up_bytes", "down_bytes", "sim_seconds")}
            latest[:] = [row | {name: each[w].item() for name, each in costs.items()} for w, row in enumerate(rows)]
            return rows

        return evaluate

    def watch(snapshot: Snapshot) -> None:
        nonlocal ended, newest
        if snapshot["round"] <= newest or not latest:
            return
        newest = snapshot["round"]
        ended = "complete" if are_decided(latest) else "pruned" if report(newest, latest) else None
        if ended:
            raise Enough(ended)

    with suppress(Enough):
        run_inline(job.scenario, job.folder, job.own, watch, measure=measure, actors=job.actors)
    return ended or "complete"


def _make_directory(job: TrialTask) -> None:
    """Makes the run directory of a task. Copies the rounds of a pruned training, if there is one.

    If the directory holds a run already, nothing changes.
    """
    if (job.folder / "scenario.yaml").is_file():
        return
    if not job.folder.parent.is_dir():
        raise Unwritable(f"{job.folder.parent} is gone: was the directory of the sweep moved or deleted?")
    if job.folder.exists():  # crashed before the scenario was written: nothing to keep
        shutil.rmtree(job.folder)
    if job.before is None:
        directory.make_run_directory(job.folder, dump_scenario(job.scenario))
        return
    copy = job.folder.with_suffix(".part")  # a worker that is killed here leaves no folder without its identity
    shutil.rmtree(copy, ignore_errors=True)
    directory.adopt_run(job.before, copy, dump_scenario(job.scenario))
    began = summary.read_identity(job.before)
    if began:  # with the kernels that the training began with
        digests = describe_study(job.scenario, job.own, reopen_study(job.before, job.own))
        kept = {part: began.get(part, {}) for part in ("engine", "device")}
        summary.write_identity(copy, digests | kept)
    copy.rename(job.folder)


def read_histories(folder: Path) -> list[list[dict[str, Any]]]:
    """Reads a run's scores: for each replicate and fold, a list of the evaluated rounds of the last phase, in order."""
    worlds: dict[tuple[int, int], list[dict[str, Any]]] = {}
    begins = find_last_phase_start(nested.load_yaml(folder / "scenario.yaml"))
    rows = checkpoint.read_table(folder, "rounds").to_pylist()
    for row in [row for row in rows if row["round"] > begins > 0] or rows:
        worlds.setdefault((row["replicate"], row["fold"]), []).append(row)
    return list(worlds.values())


def score_models(folder: Path, scenario: Scenario, own: UserObjects, *, test: bool = False) -> list[Row]:
    """Scores the newest models of a run directory with the section `predict` of a scenario.

    Returns a row for each replicate and fold. `test` says whether models are also scored on the test set.
    """
    study = reopen_study(folder, own, predict=scenario.predict, evaluate=scenario.evaluate)
    progress, private = checkpoint.load_study_checkpoint(folder, study)
    runtime = Inline(study, choose_device(scenario, study, folder))
    runtime.restore(private)
    return list(make_evaluator(study, runtime, test=test)(progress))


def look_up_values(job: TrialTask, folder: Path) -> Outcome:
    """Returns a task's outcome from a finished training. Scores the models again if the section `predict` differs."""
    histories = read_histories(folder)
    if read_scenario(folder / "scenario.yaml", explicit=False).predict != job.scenario.predict:
        rows = score_models(folder, job.scenario, job.own)
        last = [{name: history[-1][name] for name in CONTEXT if name in history[-1]} for history in histories]
        histories = [[*h[:-1], {**old, **row}] for h, old, row in zip(histories, last, rows, strict=True)]
    values, errors = average_objectives(job.objectives, histories)
    return Outcome("complete", values, errors=errors)


# ---------------------------------------------------------------------------------------------------------------------
# Runs the trainings of a sweep in this process, in a pool of processes, or as tasks on a Ray cluster.

Submit = Callable[[TrialTask], "Future[Outcome]"]
_OF_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # sent to every process started from the terminal


@contextmanager
def make_workers(
    number: int,
    base: Scenario,
    address: str | None,
    own: UserObjects,
    folder: Path,
    *,
    actors: int = 0,
    wait_for: Mapping[str, float] | None = None,
) -> Iterator[Submit]:
    """Yields a function that submits a task to a worker. The workers end with the `with` block.

    Args:
        number: The number of workers that train at the same time. If it is 1 and there is no cluster, this process
            itself trains.
        base: The base scenario of the sweep. Trainings run as tasks on a Ray cluster if the runtime of the scenario is
            `ray`, or `auto` with an `address`.
        address: The address of an existing Ray cluster. None starts a cluster on this machine.
        own: The user's objects. The workers import the modules of these objects.
        folder: The directory of the sweep, which must lie on a disk that all workers share.
        actors: The number of client actors of each training. 0 means that the worker itself trains.
        wait_for: The resources that the cluster must have before the first training begins, by their names in Ray.
    """
    if _trains_on_ray(base, address):
        from fedray.runtime.ray.tasks import run_as_tasks

        tiers = () if base.clients.device == "cpu" else base.clients.tiers.values()
        gpus = max((tier.num_gpus for tier in tiers), default=0.0)
        with run_as_tasks(address, number, gpus, own, folder, actors=actors, wait_for=wait_for) as send:
            yield lambda job: send(train_job, job)
    elif number == 1:

        def train_here(job: TrialTask) -> Future[Outcome]:
            future: Future[Outcome] = Future()
            try:
                future.set_result(train_job(job))
            except FedrayError as error:
                future.set_exception(error)
            return future

        yield train_here
    else:
        names = [name for (_, name), origin in list_origins().items() if origin.module == "__main__"]
        if names:
            raise BadInput(
                f"jobs = {number}: other processes do not know what a script registers ({', '.join(names)}): "
                "register it in a module, and give modules=[...], or write jobs: 1"
            )
        with _open_pool(number) as submit:
            yield submit


@contextmanager
def _open_pool(number: int) -> Iterator[Submit]:
    """Opens a pool of processes until the `with` block ends, and yields a function that submits tasks to the pool."""
    _start_tracker()
    others, ending = set(multiprocessing.active_children()), current_ending()
    pool = ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), initializer=_end_with_parent)

    def submit(job: TrialTask) -> Future[Outcome]:
        # A terminal sends signals to children too. A blocked signal stays blocked in a child that starts meanwhile.
        # `multiprocessing` runs the main script in each child: a script without a guard would start again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINAL)
        script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            return pool.submit(train_job, job)
        finally:
            sys.modules["__main__"] = script
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def kill_workers() -> None:
        for child in set(multiprocessing.active_children()) - others:
            child.kill()

    ending.hooks.append(kill_workers)
    try:
        yield submit
        pool.shutdown()
    finally:  # some may be left after an error or Ctrl-C
        ending.hooks.remove(kill_workers)
        kill_workers()
        pool.shutdown(wait=False, cancel_futures=True)


def _start_tracker() -> None:
    """Starts the process with which Python removes semaphores of ended processes, and silences its warnings."""
    given = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (given, "ignore:resource_tracker")))
    try:
        resource_tracker.ensure_running()
    finally:
        if given is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = given


def _trains_on_ray(base: Scenario, address: str | None) -> bool:
    return base.runtime == "ray" or (base.runtime == "auto" and address is not None)


def refuse_idle_actors(sweep: Sweep, base: Scenario, address: str | None) -> None:
    """Refuses `trial.actors` if no actor would train.

    Raises:
        BadInput: No actor would train, or the actors of a tier need more than one CPU.
    """
    if not sweep.keys.trial.actors:
        return
    named = f"trial.actors = {sweep.keys.trial.actors}"
    if not _trains_on_ray(base, address):
        more = "" if base.runtime == "inline" else ", give --address"
        remedy = f"write overrides: {{runtime: ray}}{more}, or leave trial out"
        raise BadInput(f"{named} needs a cluster, but runtime = {base.runtime}: {remedy}")
    require_one_cpu_actors(base)


def _end_with_parent() -> None:
    """Makes a worker end with its parent process, however the parent ends. Only the parent handles Ctrl-C.

    The worker prints its warnings to stderr, because they cannot reach the parent.
    """
    say_notes(partial(print, file=sys.stderr))
    for number in _OF_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait_for_parent() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


# ---------------------------------------------------------------------------------------------------------------------
# The state of a running sweep, with its study, the finished trainings, and the trainings under way.

Say = Callable[[str], None]


class RunningTrial(NamedTuple):
    """A trial that is being trained.

    Attributes:
        trial: Optuna's trial.
        job: The task that the worker was given.
        key: The hash of the trial's training (`hash_training`).
    """

    trial: optuna.Trial
    job: TrialTask
    key: str


class Training(NamedTuple):
    """A finished training.

    Attributes:
        run: The run directory of the training, relative to the directory of the sweep.
        state: "complete" or "pruned".
        seconds: The wall time of the training, including the time of a pruned training that it continued.
    """

    run: str
    state: str
    seconds: float


@dataclass
class SearchState:
    """The state of a running sweep.

    Attributes:
        sweep: The sweep file.
        out: The absolute path of the directory of the sweep.
        study: Optuna's study.
        location: The storage, the name and the pruner of the study.
        own: The user's Python objects.
        limit: The planned number of trials.
        points: The points of a grid. It is None for other samplers.
        say: A function that is called with a line about each finished trial.
        trainings: The finished trainings, by their hashes (`hash_training`).
        running: The trials that workers train now. The keys are the futures of the trainings.
        waiting: The trials that wait for the end of an equal training of a different trial.
    """

    sweep: Sweep
    out: Path
    study: optuna.Study
    location: optuna_study.StudyLocation
    own: UserObjects
    limit: int
    points: list[dict[str, Any]] | None
    say: Say
    trainings: dict[str, Training] = field(default_factory=dict)
    running: dict[Future[Outcome], RunningTrial] = field(default_factory=dict)
    waiting: list[optuna.Trial] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------------------
# A search can be interrupted and resumed at any time, because its whole state is in the study and the run directories.

STATES: dict[OutcomeState, TrialState] = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
WORDS = {state: word for word, state in STATES.items()}


def count_planned_trials(sweep: Sweep, trials: int | None) -> tuple[int, list[dict[str, Any]] | None]:
    """Returns the planned number of trials, and the points of a grid (None for other samplers).

    Raises:
        BadInput: Fewer than one trial is requested.

    Example:
        >>> from fedray.tuning.sweep import read_sweep
        >>> keys = {"data": {"name": "digits"}, "clients": {"number": 4}}
        >>> grid = {"scenario": keys, "space": {"local.lr": [0.1, 0.3]}, "objectives": ["accuracy"], "sampler": "grid"}
        >>> count_planned_trials(read_sweep(grid), trials=None)
        (2, [{'local.lr': 0.1}, {'local.lr': 0.3}])
    """
    if trials is not None and trials < 1:
        raise BadInput(f"--trials = {trials}: give at least 1")
    points = enumerate_grid(sweep.space) if sweep.keys.sampler.name == "grid" else None
    wanted = trials or sweep.keys.trials or (len(points) if points is not None else TRIALS)
    return (wanted if points is None else min(wanted, len(points))), points


def run_search(state: SearchState, submit: Submit, confirm_directory: Callable[[], None] = lambda: None) -> None:
    """Runs the trials that a sweep still lacks.

    `submit` gives a task to a worker. Before the search starts new trials, it calls `confirm_directory`. This function
    raises an error if the directory of the sweep was moved or deleted.
    """
    _recall_trainings(state)
    queue = deque(optuna_study.unfinished_trials(state.study))
    ask = partial(optuna_study.ask_trial, state.study, state.sweep.keys.sampler, state.points, state.limit)
    learns = state.sweep.keys.sampler.name not in ("grid", "random")  # these samplers need the values of waiting trials
    while True:
        confirm_directory()
        while len(state.running) + learns * len(state.waiting) < state.sweep.keys.jobs:
            trial = queue.popleft() if queue else ask()
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


def _recall_trainings(state: SearchState) -> None:
    """Collects the finished trainings of earlier processes.

    Refuses to go on if the data or the user's code have changed since then. The space of a sweep may hold several data
    sets, networks, methods and objects of the user. One training of each combination is checked. Leaves out trainings
    that were removed, and trainings that were resumed by hand with more rounds.
    """
    seen = set()
    for frozen in state.study.get_trials(deepcopy=False):
        known = optuna_study.trial_note(frozen).get("training")
        path = state.out / (known["is"][0] if known else "") / "scenario.yaml"
        if not known or not frozen.state.is_finished() or not path.is_file():
            continue
        stored = read_scenario(path, explicit=False)
        if hash_training(stored, state.sweep.list_shared_keys(stored)) != known["key"]:
            continue
        kind = str((stored.data, stored.model, stored.method.name, list_own_names(stored, state.own)))
        if kind not in seen:
            reopen_study(path.parent, state.own)
        seen.add(kind)
        run, ended, seconds = known["is"][:3]
        ended = "complete" if (path.parent / SUMMARY_FILE).is_file() else ended  # a pruned one may be resumed by hand
        state.trainings[known["key"]] = Training(run, ended, seconds)


def _start(state: SearchState, trial: optuna.Trial) -> RunningTrial | None:
    """Prepares the training of a trial. Returns None if the trial needs no training of its own."""
    sweep = state.sweep
    chosen = optuna_study.propose_values(state.study, sweep.keys.sampler, sweep.space, trial)
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
        location=state.location if sweep.keys.pruner.name != "none" else None,
        actors=sweep.keys.trial.actors,
    )
    key = hash_training(scenario, sweep.list_shared_keys(scenario))
    known = state.trainings.get(key)
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
    """Reports to the study that a trial has the same outcome as an equal earlier trial."""
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
    """Records a training that a worker has finished, and reports its values to the study."""
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
    """Records how the values of a trial were found, and reports the values to the study."""
    more: dict[str, Any] = {"error": outcome.error} if outcome.error else {}
    result = STATES[outcome.state]
    if result == TrialState.COMPLETE and any(error is not None for error in outcome.errors):  # others have none
        more["standard_errors"] = list(outcome.errors)
    trial.set_user_attr(optuna_study.NOTES, {**note, **more})
    state.study.sampler = optuna_study.make_sampler(state.sweep.keys.sampler, trial.number, 0)
    state.study.tell(trial, outcome.values if result == TrialState.COMPLETE else None, result)
    names = [objective.name for objective in state.sweep.objectives]
    scores = ", ".join(f"{n} {v:.4g}" for n, v in zip(names, outcome.values, strict=False)) or outcome.error
    how = "" if note["how"] == "trained" else f" ({note['how']})"
    values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in trial.params.items())
    state.say(f"trial {trial.number} (of {state.limit}) {outcome.state}{how}: {scores}  [{values}]")
