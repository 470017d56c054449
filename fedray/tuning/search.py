"""The sweep itself: ask Optuna, train or look up, tell; at any time interrupted, at any time resumed."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.trial import TrialState

from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput, FedrayError
from fedray.scenario.schema import Scenario
from fedray.tuning import optuna_study as stores
from fedray.tuning.space import Values, enumerate_grid
from fedray.tuning.sweep_file import TRIALS, Sweep
from fedray.tuning.trial import Job, Outcome, key_of, look_up, train_jobs

Submit = Callable[[list[Job]], "Future[list[Outcome]]"]
Say = Callable[[str], None]
STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


class RunningTrial(NamedTuple):
    """A trial under way: its job and the key of its training."""

    trial: optuna.Trial
    job: Job
    key: str


class Training(NamedTuple):
    """A training that is done: its directory (below the sweep's), state, seconds, and the seeds it holds."""

    run: str
    state: str
    seconds: float
    seed: int
    seeds: int


@dataclass
class SearchState:
    """A sweep on its way. trainings: by key; flying: under way, side by side those of one future; parked: trials that
    wait for one of those; broken: keys of seeds that failed together; together: trials of one process at once."""

    sweep: Sweep
    out: Path
    study: optuna.Study
    place: stores.StudyLocation
    own: UserObjects
    limit: int
    points: list[dict[str, Any]] | None
    say: Say
    together: int = 1
    trainings: dict[str, Training] = field(default_factory=dict)
    flying: dict[Future[list[Outcome]], list[RunningTrial]] = field(default_factory=dict)
    parked: list[optuna.Trial] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)


def limit_of(sweep: Sweep, trials: int | None) -> tuple[int, list[dict[str, Any]] | None]:
    """How many trials there will be, and the grid's points."""
    if trials is not None and trials < 1:
        raise BadInput(f"--trials = {trials}: give at least 1")
    points = enumerate_grid(sweep.space) if sweep.sampler.name == "grid" else None
    wanted = trials or sweep.trials or (len(points) if points is not None else TRIALS)
    return (wanted if points is None else min(wanted, len(points))), points


def run_search(course: SearchState, submit: Submit) -> None:
    """Runs the trials that are missing."""
    for frozen in course.study.get_trials(deepcopy=False):
        known = stores.trial_note(frozen).get("training")
        if frozen.state.is_finished() and known:
            course.trainings[known["key"]] = Training(*known["is"])
    queue = deque(stores.unfinished_trials(course.study))
    while True:
        while len(course.flying) + _held(course) // course.together < course.sweep.jobs:
            flights = _flights(course, queue)
            if not flights:
                break
            course.flying[submit([flight.job for flight in flights])] = flights
        if not course.flying:
            return
        done, _ = wait(course.flying, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda one: course.flying[one][0].trial.number):
            _land(course, future)
        queue.extendleft(reversed(course.parked))
        course.parked = []


def _flights(course: SearchState, queue: deque[optuna.Trial]) -> list[RunningTrial]:
    """The next trials that must be trained, as many as one process trains side by side; others are answered at once."""
    flights: list[RunningTrial] = []
    while len(flights) + _held(course) < course.together:
        trial = queue.popleft() if queue else _asked(course)
        if trial is None:
            break
        flight = _started(course, trial, [one.key for one in flights])
        flights += [flight] if flight else []
    return flights


def _held(course: SearchState) -> int:
    """Places that parked trials take: a sampler that learns should hear of them first, the others need not wait."""
    return 0 if course.sweep.sampler.name in ("grid", "random") else len(course.parked)


def _asked(course: SearchState) -> optuna.Trial | None:
    if len(course.study.get_trials(deepcopy=False)) >= course.limit:
        return None
    return stores.ask_trial(course.study, course.sweep, course.points)


def _started(course: SearchState, trial: optuna.Trial, beside: list[str]) -> RunningTrial | None:
    """A trial that must be trained (beside others); None where it is answered from what is known, or waits for one."""
    sweep = course.sweep
    chosen = stores.propose_values(course.study, sweep.sampler, sweep.space, trial)
    twin = _twin(course.study, trial.number, chosen)
    if twin is not None:
        _repeat(course, trial, twin)
        return None
    try:
        scenario = replace(sweep.scenario(chosen), runtime="inline")
    except BadInput as wrong:
        _tell(course, trial, Outcome("failed", [], error=str(wrong)), {"how": "refused"})
        return None
    first, seeds = _block(course, scenario, chosen)
    if key_of(replace(scenario, seed=first, replicates=seeds), sweep.inference) in course.broken:
        first, seeds = scenario.seed, 1
    run = f"trials/{trial.number:05d}"
    job = Job(
        trial.number,
        replace(scenario, seed=first, replicates=seeds) if seeds > 1 else scenario,
        course.out / run,
        sweep.objectives,
        course.own,
        scenario.seed - first if seeds > 1 else None,
        place=course.place if sweep.pruner.name != "none" else None,
    )
    key = key_of(job.scenario, sweep.inference)
    known = course.trainings.get(key)
    if known is not None and known.state == "complete":
        _tell(
            course,
            trial,
            _found(job, course.out / known.run),
            {"how": "looked up", "run": known.run, "saved": known.seconds / known.seeds},
        )
    elif key in beside or any(key == one.key for flights in course.flying.values() for one in flights):
        course.parked.append(trial)
    else:
        return RunningTrial(trial, replace(job, before=None if known is None else course.out / known.run), key)
    return None


def _found(job: Job, run: Path) -> Outcome:
    """A trial's outcome, read from a training that is done."""
    try:
        return Outcome("complete", look_up(job, run))
    except FedrayError as wrong:
        return Outcome("failed", [], error=str(wrong))


def _twin(study: optuna.Study, number: int, chosen: Values) -> Any:
    """The first finished trial with the same values, if any."""
    alike = (t for t in study.get_trials(deepcopy=False) if t.state.is_finished() and t.number != number)
    return next((t for t in alike if repr(sorted(t.params.items())) == repr(sorted(chosen.items()))), None)


def _repeat(course: SearchState, trial: optuna.Trial, twin: Any) -> None:
    """Tells what the twin was told: the same values are the same trial."""
    names = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    if twin.state == TrialState.PRUNED:
        for step, value in twin.intermediate_values.items():
            trial.report(value, step)
    values = list(twin.values) if twin.state == TrialState.COMPLETE else []
    notes = stores.trial_note(twin)
    outcome = Outcome(names[twin.state], values, error=notes.get("error", ""))  # type: ignore[arg-type]
    seconds = float(notes.get("seconds", 0.0)) or float(notes.get("saved", 0.0))
    _tell(course, trial, outcome, {"how": "looked up", "run": notes.get("run", ""), "saved": seconds})


def _block(course: SearchState, scenario: Scenario, chosen: Values) -> tuple[int, int]:
    """The seeds that can share lanes as replicates of one training: (first, how many); (_, 1) where they cannot.

    Only in a whole grid over neighbouring seeds: there every one of them will be asked for.
    """
    sweep, points = course.sweep, course.points
    alone = scenario.replicates == 1 and scenario.vary == "all" and scenario.evaluate.stop_at is None
    whole = points is not None and course.limit == len(points) and sweep.pruner.name == "none"
    if not (alone and whole and "seed" in chosen):
        return scenario.seed, 1
    seeds = {int(v) for parameter in sweep.space if parameter.key == "seed" for v in parameter.grid()}
    first = last = scenario.seed
    while first - 1 in seeds:
        first -= 1
    while last + 1 in seeds:
        last += 1
    return first, last - first + 1


def _land(course: SearchState, future: Future[list[Outcome]]) -> None:
    """Takes the outcomes of trainings and tells them."""
    flights = course.flying.pop(future)
    try:
        outcomes = future.result()
    except Exception as error:  # what a trial raises is an outcome; this is a worker that died
        raise FedrayError(f"a worker died ({type(error).__name__}; memory?): lower jobs, then --resume") from error
    for flight, outcome in zip(flights, outcomes, strict=True):
        _trained(course, flight, outcome)


def _trained(course: SearchState, flight: RunningTrial, outcome: Outcome) -> None:
    """Notes a training that is done, and tells its trial."""
    trial, job, key = flight
    if outcome.state == "failed" and job.replicate is not None:  # one seed of them may have done it: each by itself
        course.broken.add(key)
        course.parked.append(trial)
        return
    run = str(job.folder.relative_to(course.out))
    facts: dict[str, Any] = {"how": "trained", "run": run, "seconds": outcome.seconds, "rounds": outcome.rounds}
    if outcome.state != "failed":
        training = Training(run, outcome.state, outcome.whole, job.scenario.seed, job.scenario.replicates)
        shared = job.replicate is not None
        known = training._replace(seeds=training.seeds if shared else 1)
        course.trainings[key] = known
        facts["training"] = {"key": key, "is": list(known)}
    _tell(course, trial, outcome, facts)


def _tell(course: SearchState, trial: optuna.Trial, outcome: Outcome, facts: Mapping[str, Any]) -> None:
    """Notes how a trial was answered, and tells the study."""
    trial.set_user_attr(stores.NOTES, {**facts, **({"error": outcome.error} if outcome.error else {})})
    state = STATES[outcome.state]
    study = course.study
    study.sampler = stores.make_sampler(course.sweep.sampler, trial.number, 0)
    study.tell(trial, outcome.values if state == TrialState.COMPLETE else None, state)
    names = [objective.name for objective in course.sweep.objectives]
    scores = ", ".join(f"{n} {v:.4g}" for n, v in zip(names, outcome.values, strict=False)) or outcome.error
    word = "" if facts["how"] == "trained" else f" ({facts['how']})"
    values = ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in trial.params.items()
    )
    course.say(f"trial {trial.number} (of {course.limit}) {outcome.state}{word}: {scores}  [{values}]")


@contextmanager
def make_workers(number: int, base: Scenario, address: str | None) -> Iterator[Submit]:
    """Where trainings run: this process (one at a time), a pool of processes, or tasks on a Ray cluster."""
    if base.runtime == "ray":
        from fedray.runtime.ray.cluster import run_as_tasks

        gpus = max((tier.num_gpus for tier in base.clients.tiers.values()), default=0.0)
        with run_as_tasks(address, number, gpus) as send:
            yield lambda jobs: send(train_jobs, jobs)
    elif number == 1:
        yield _at_once
    else:
        before = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), initializer=_orphaned)
        try:
            yield lambda jobs: pool.submit(train_jobs, jobs)
            pool.shutdown()
        finally:  # an error or Ctrl-C: what was interrupted is resumed from its checkpoint
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
            pool.shutdown(wait=False, cancel_futures=True)


def _at_once(jobs: list[Job]) -> Future[list[Outcome]]:
    future: Future[list[Outcome]] = Future()
    future.set_result(train_jobs(jobs))
    return future


def _orphaned() -> None:
    """A worker ends with the process that made it, however that ends; Ctrl-C is the parent's business."""
    import os

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
