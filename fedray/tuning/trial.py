"""One training of a sweep, in whatever process it lands: run or resume, report once an age, stop when all is known."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects
from fedray.core import files
from fedray.core.errors import FedrayError
from fedray.core.user_modules import import_modules
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.run import run_inline
from fedray.runtime.environment import device_of, prepare_process, use_one_thread
from fedray.runtime.inline import Inline
from fedray.runtime.session import Enough
from fedray.scenario.loader import dump_scenario, read_scenario, to_plain
from fedray.scenario.schema import Scenario
from fedray.simulation.interfaces import Progress
from fedray.storage import checkpoint, directory, tables
from fedray.training.joint import JointTraining
from fedray.tuning.objectives import Row, SweepObjective, pruning_value, values_of
from fedray.tuning.optuna_study import StudyLocation, make_pruner, open_storage

NO_RESULT = ("runtime", "table", "published", "loggers", "checkpoint")  # sections that change no number
State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Job:
    """A trial on its way to a worker.

    scenario: what is trained (inline; several replicates where seeds share lanes). replicate: the one that answers,
    None for all. before: the run directory of the same training, pruned earlier, to go on from. place: where to report,
    None without pruning.
    """

    trial: int
    scenario: Scenario
    folder: Path
    objectives: tuple[SweepObjective, ...]
    own: UserObjects
    replicate: int | None = None
    before: Path | None = None
    place: StudyLocation | None = None


class Outcome(NamedTuple):
    """What became of a job: values, one an objective; seconds and rounds that it trained itself; whole: seconds with
    those of the pruned training that it went on from."""

    state: State
    values: list[float]
    seconds: float = 0.0
    rounds: int = 0
    whole: float = 0.0
    error: str = ""


def key_of(scenario: Scenario, inference: Sequence[str]) -> str:
    """What a training is: the resolved scenario without the keys that change no result of it.

    Args:
        inference: keys of `predict` that no training depends on.
    """
    tree = to_plain(scenario)
    for section in NO_RESULT:
        tree.pop(section, None)
    for section, names in (("predict", inference), ("evaluate", ("personal",)), ("clients", ("per_actor", "actors"))):
        tree[section] = {name: value for name, value in tree.get(section, {}).items() if name not in names}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def train_jobs(jobs: Sequence[Job]) -> list[Outcome]:
    """Trains (or finishes, or only reads) the run directories of some jobs, several of them side by side.

    Each is trained as if it were alone, to the bit; they share lanes, and the seconds they took are dealt out to them.
    """
    if len(jobs) == 1:
        return [_carried(jobs[0])]
    company, began = JointTraining(), time.perf_counter()
    outcomes = company.run([partial(_carried, job, company) for job in jobs])
    share = (time.perf_counter() - began) / max(sum(outcome.seconds for outcome in outcomes), 1e-9)
    return [
        outcome._replace(seconds=outcome.seconds * share, whole=outcome.whole + outcome.seconds * (share - 1.0))
        for outcome in outcomes
    ]


def _carried(job: Job, company: JointTraining | None = None) -> Outcome:
    """What became of one job; a failure is an outcome, not an exception."""
    prepare_process()
    use_one_thread()
    try:
        state: State = "complete"
        given = job.folder / "scenario.yaml"
        if given.is_file() and given.read_text() != dump_scenario(
            job.scenario
        ):  # of a trial that was proposed otherwise
            shutil.rmtree(job.folder)
        if not (job.folder / "summary.json").is_file():
            state = _train(job, company)
        courses = courses_of(job.folder, job.replicate)
        last = courses[0][-1]
        had = courses_of(job.before)[0][-1] if job.before else {"wall_seconds": 0.0, "round": 0}
        seconds, rounds = last["wall_seconds"] - had["wall_seconds"], int(last["round"] - had["round"])
        return Outcome(state, values_of(job.objectives, courses), seconds, rounds, last["wall_seconds"])
    except FedrayError as error:
        return Outcome("failed", [], error=str(error))
    except Exception as error:  # one bad corner of the space must not end the sweep
        (job.folder / "error.txt").write_text(traceback.format_exc())
        return Outcome("failed", [], error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _train(job: Job, company: JointTraining | None = None) -> State:
    """Runs or resumes until the end, or until pruning or the objectives have seen enough (others of its company go on
    without it)."""
    _begin(job)
    latest: list[Row] = []
    tell = _reporter(job)
    seen = {"round": -1, "pruned": False}

    def measure(study: Any, runtime: Any) -> Callable[[Progress], list[dict[str, Any]]]:
        score = make_evaluator(study, runtime, test=False)
        if company is not None:
            net = study.net
            kind = f"{study.scenario['model']} {study.input_shape} {net.name} {net.objective} {net.outputs}"
            runtime.host.engine = company.joins(runtime.host.engine, kind)

        def evaluate(progress: Progress) -> list[dict[str, Any]]:
            rows = score(progress)
            costs = zip(progress.up_bytes.tolist(), progress.sim_seconds.tolist(), strict=True)
            latest[:] = [{**row, "up_bytes": up, "sim_seconds": s} for row, (up, s) in zip(rows, costs, strict=True)]
            return rows

        return evaluate

    def watch(shown: dict[str, Any]) -> None:
        if shown["round"] <= seen["round"] or not latest:
            return
        seen["round"] = shown["round"]
        if all(objective.decided(row) for objective in job.objectives for row in latest):
            raise Enough("every objective is decided")
        if tell(shown["round"], latest):
            seen["pruned"] = True
            raise Enough("pruned")

    try:
        import_modules(job.own.modules)
        run_inline(job.scenario, job.folder, job.own, watch, measure=measure)
    except Enough:
        return "pruned" if seen["pruned"] else "complete"
    return "complete"


def _begin(job: Job) -> None:
    """A run directory with a scenario: fresh, as it was left, or with the rounds of the pruned training before."""
    if (job.folder / "scenario.yaml").is_file():
        return
    if job.folder.exists():  # a crash before the scenario was written: nothing to keep
        shutil.rmtree(job.folder)
    if job.before is None:
        directory.make_run_directory(job.folder, dump_scenario(job.scenario))
        return
    shutil.copytree(job.before, job.folder, ignore=shutil.ignore_patterns("scenario.yaml", ".lock", "manifest.json"))
    files.write_atomically(job.folder / "scenario.yaml", dump_scenario(job.scenario).encode())


def _reporter(job: Job) -> Callable[[int, Sequence[Row]], bool]:
    """A function (round, rows) -> whether to stop: reports the first objective's metric at the end of every age."""
    if job.place is None:
        return lambda round, rows: False
    import optuna

    storage = open_storage(job.place.storage)
    study = optuna.load_study(study_name=job.place.name, storage=storage, pruner=make_pruner(job.place))
    number = {frozen.number: frozen._trial_id for frozen in study.get_trials(deepcopy=False)}[job.trial]
    trial = optuna.Trial(study, number)
    done = set(storage.get_trial(number).intermediate_values)
    age, last = job.scenario.method.models, {"step": 0}

    def tell(round: int, rows: Sequence[Row]) -> bool:
        step = round // age
        if step <= last["step"]:
            return False
        last["step"] = step
        if step in done and max(done) > step:  # an interrupted trial trains these rounds again
            return False
        if step not in done:
            trial.report(pruning_value(job.objectives[0], rows), step)
        return trial.should_prune() and round < job.scenario.rounds

    return tell


def courses_of(folder: Path, replicate: int | None = None) -> list[list[dict[str, Any]]]:
    """The recorded rows of each world (of one replicate), by rising round."""
    worlds: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in tables.read_table(folder, "rounds").to_pylist():
        if replicate is None or row["replicate"] == replicate:
            worlds.setdefault((row["replicate"], row["fold"]), []).append(row)
    return list(worlds.values())


def score_models(
    folder: Path, scenario: Scenario, own: UserObjects, replicate: int | None, test: bool = False
) -> list[Row]:
    """Scores of a directory's newest models, read as `scenario.predict` says; one row a world.

    Args:
        test: on the test set too: for winners only.
    """
    known = replace(read_scenario(folder / "scenario.yaml"), predict=scenario.predict, evaluate=scenario.evaluate)
    study = build_study(known, own)
    progress, private = checkpoint.load_checkpoint(folder / "checkpoints")
    runtime = Inline(study, device_of(max((tier.num_gpus for tier in study.clients.tiers), default=0.0)))
    runtime.restore(private)
    rows = make_evaluator(study, runtime, test=test)(progress)
    return [row for w, row in enumerate(rows) if replicate in (None, w // study.per_replicate)]


def look_up(job: Job, folder: Path) -> list[float]:
    """A job's values from a training that is done, evaluated again where only the inference differs."""
    courses = courses_of(folder, job.replicate)
    if read_scenario(folder / "scenario.yaml").predict != job.scenario.predict:
        rows = score_models(folder, job.scenario, job.own, job.replicate)
        courses = [[*course[:-1], {**course[-1], **row}] for course, row in zip(courses, rows, strict=True)]
    return values_of(job.objectives, courses)
