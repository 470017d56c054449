"""One training of a sweep, in the process of a worker: run or resume it, and stop it as soon as its values are known.

An age is K rounds (K: the number of models), in which a client trains each model once. A training reports to Optuna
once an age, for the pruner.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> one, other = (read_scenario({"predict": {"gamma": gamma}}) for gamma in (0.1, 1.0))
    >>> hash_training(one, inference=["gamma"]) == hash_training(other, inference=["gamma"])
    True
    >>> hash_training(one, inference=[]) == hash_training(other, inference=[])
    False
"""

from __future__ import annotations

import hashlib
import json
import shutil
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedray.assembly.identity import describe_study
from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import FedrayError, Unwritable
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.reopen import reopen_study
from fedray.experiments.run import run_inline
from fedray.files import plain
from fedray.own_code.user_modules import import_modules
from fedray.runtime.environment import device_of, prepare_process, use_one_thread
from fedray.runtime.inline import Inline
from fedray.runtime.session import Enough, Snapshot
from fedray.scenario import yaml_text
from fedray.scenario.identity import select_result_keys
from fedray.scenario.loader import dump_scenario, read_scenario, to_plain
from fedray.scenario.reading import find_last_phase
from fedray.scenario.schema import Scenario
from fedray.simulation.interfaces import Progress
from fedray.simulation.study import Study
from fedray.storage import directory, identity, tables
from fedray.storage.mending import mend_run_directory
from fedray.storage.study_checkpoint import load_study_checkpoint
from fedray.tuning.early_end import find_early_end, make_reporter, read_checkpoint_rows
from fedray.tuning.faults import refuse_fault
from fedray.tuning.objectives import Row, SweepObjective, judge_worlds
from fedray.tuning.optuna_study import StudyLocation

MEASURED_LATER = ("evaluate.personal", "evaluate.clients")  # keys of what is measured, not of what is trained
OutcomeState = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class TrialTask:
    """A trial on its way to a worker.

    Attributes:
        trial: number of the trial.
        scenario: what is trained, inline; several replicates where the seeds of several trials share lanes.
        folder: the run directory.
        objectives: what is read from the training.
        own: the user's Python objects.
        replicate: the replicate that answers, from 0; None means all of them.
        before: the run directory of the same training, pruned earlier, to go on from; None where there is none.
        location: the study to report to; None without pruning.
        actors: client actors that train for it, whose seats its worker has; 0: the worker trains.
    """

    trial: int
    scenario: Scenario
    folder: Path
    objectives: tuple[SweepObjective, ...]
    own: UserObjects
    replicate: int | None = None
    before: Path | None = None
    location: StudyLocation | None = None
    actors: int = 0


class Outcome(NamedTuple):
    """What became of a job.

    Attributes:
        state: "complete", "pruned" or "failed".
        values: one for each objective; empty where the job failed.
        seconds: wall time it trained itself.
        rounds: rounds it trained itself.
        total_seconds: `seconds`, and those of the pruned training it went on from.
        error: what failed, in one line; empty where nothing did.
        errors: the standard error of each value over the worlds, as in `judge_worlds`.
    """

    state: OutcomeState
    values: list[float]
    seconds: float = 0.0
    rounds: int = 0
    total_seconds: float = 0.0
    error: str = ""
    errors: tuple[float | None, ...] = ()


def hash_training(scenario: Scenario, inference: Sequence[str]) -> str:
    """Sixteen hexadecimal digits that two trials share exactly if one training can answer both.

    What a failing client does counts too: with `on_client_error: skip` there may be a training where `fail` has none.

    Args:
        scenario: what is trained.
        inference: keys of `predict` that no training depends on.
    """
    later = {*MEASURED_LATER, *(f"predict.{name}" for name in inference)}
    keys = select_result_keys(to_plain(scenario))
    trained = {key: value for key, value in keys.items() if ".".join(key.split(".")[:2]) not in later}
    return hashlib.sha256(json.dumps(trained, sort_keys=True).encode()).hexdigest()[:16]


def train_job(job: TrialTask) -> Outcome:
    """Trains (or finishes, or only reads) the run directory of a job.

    A failure of the training is an outcome, and one of the machine ends the sweep.
    """
    prepare_process()
    use_one_thread()
    try:
        import_modules(job.own.modules)
        state: OutcomeState = "complete"
        given = job.folder / "scenario.yaml"
        if given.is_file() and given.read_text() != dump_scenario(job.scenario):  # of a trial with other values
            shutil.rmtree(job.folder)
        damage = mend_run_directory(job.folder)
        if damage or not (job.folder / "summary.json").is_file():
            state = _train(job)
        else:
            reopen_study(job.folder, job.own)  # it was trained on what is there now, or refused
        histories = read_histories(job.folder, job.replicate)
        last = histories[0][-1]
        first = read_histories(job.before)[0][-1] if job.before else {"wall_seconds": 0.0, "round": 0}
        seconds, rounds = last["wall_seconds"] - first["wall_seconds"], int(last["round"] - first["round"])
        values, errors = judge_worlds(job.objectives, histories)
        return Outcome(state, values, seconds, rounds, last["wall_seconds"], errors=errors)
    except Exception as error:  # one bad corner of the space must not end the sweep
        refuse_fault(error, job.folder)
        if isinstance(error, FedrayError):
            return Outcome("failed", [], error=str(error))
        with suppress(FedrayError):
            plain.write_atomically(job.folder / "error.txt", traceback.format_exc().encode())
        return Outcome("failed", [], error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _train(job: TrialTask) -> OutcomeState:
    """Runs or resumes a training until its end, or until it is pruned or its values can no longer change."""
    _make_directory(job)
    latest: list[Row] = []
    reporter = make_reporter(job.location, job.trial, job.objectives[0], job.scenario)
    pruned, newest = False, find_last_phase(to_plain(job.scenario)) or -1  # rounds before have not the method's scores
    if ended := find_early_end(read_checkpoint_rows(job.folder), job.objectives, reporter.was_pruned):
        return ended

    def measure(study: Study, runtime: Any) -> Callable[[Progress], list[dict[str, Any]]]:
        if job.replicate is not None and study.method.explain_end is not None:  # which seeds do at rounds of their own
            raise FedrayError("seeds end at different rounds")
        score = make_evaluator(study, runtime, test=False)

        def evaluate(progress: Progress) -> list[dict[str, Any]]:
            rows = score(progress)
            costs = {name: getattr(progress, name) for name in ("up_bytes", "down_bytes", "sim_seconds")}
            latest[:] = [row | {name: each[w].item() for name, each in costs.items()} for w, row in enumerate(rows)]
            return rows

        return evaluate

    def watch(snapshot: Snapshot) -> None:
        nonlocal newest, pruned
        if snapshot["round"] <= newest or not latest:
            return
        newest = snapshot["round"]
        if all(objective.is_decided(row) for objective in job.objectives for row in latest):
            raise Enough("every objective is decided")
        pruned = reporter.report(newest, latest)
        if pruned:
            raise Enough("pruned")

    with suppress(Enough):
        run_inline(job.scenario, job.folder, job.own, watch, measure=measure, actors=job.actors)
    return "pruned" if pruned else "complete"


def _make_directory(job: TrialTask) -> None:
    """A run directory with a scenario: fresh, as it was left, or with the rounds of the training that was pruned."""
    if (job.folder / "scenario.yaml").is_file():
        return
    if not job.folder.parent.is_dir():
        raise Unwritable(f"{job.folder.parent} is gone: was the directory of the sweep moved or deleted?")
    if job.folder.exists():  # a crash before the scenario was written: nothing to keep
        shutil.rmtree(job.folder)
    if job.before is None:
        directory.make_run_directory(job.folder, dump_scenario(job.scenario))
        return
    directory.adopt_run(job.before, job.folder, dump_scenario(job.scenario))
    began = identity.read_identity(job.before)
    if began:  # with the kernels that it began with
        digests = describe_study(job.scenario, job.own, reopen_study(job.before, job.own))
        identity.write_identity(job.folder, digests | {"engine": began.get("engine", {})})


def read_histories(folder: Path, replicate: int | None = None) -> list[list[dict[str, Any]]]:
    """The history of each world: the recorded rows of its evaluated rounds, by rising round, from the last phase on.

    Args:
        folder: the run directory.
        replicate: of which replicate, from 0; None means all of them.
    """
    worlds: dict[tuple[int, int], list[dict[str, Any]]] = {}
    begins = find_last_phase(yaml_text.load_yaml(folder / "scenario.yaml"))
    rows = tables.read_table(folder, "rounds").to_pylist()
    for row in [row for row in rows if row["round"] > begins > 0] or rows:
        if replicate in (None, row["replicate"]):
            worlds.setdefault((row["replicate"], row["fold"]), []).append(row)
    return list(worlds.values())


def score_models(
    folder: Path, scenario: Scenario, own: UserObjects, replicate: int | None, *, test: bool = False
) -> list[Row]:
    """Scores the newest models of a run directory, read as `scenario.predict` says; one row for each world.

    Args:
        folder: the run directory.
        scenario: the one whose `predict` and `evaluate` count.
        own: the user's Python objects.
        replicate: of which replicate, from 0; None means all of them.
        test: on the test set too, which is for winners only.
    """
    trained = replace(
        read_scenario(folder / "scenario.yaml", explicit=False), predict=scenario.predict, evaluate=scenario.evaluate
    )
    study = build_study(trained, own)
    if identity.read_identity(folder):
        identity.check_identity(folder, describe_study(trained, own, study))
    progress, private = load_study_checkpoint(folder, study)
    gpus = max((tier.num_gpus for tier in study.clients.tiers), default=0.0)
    runtime = Inline(study, device_of(gpus, scenario.clients.device, tf32=scenario.clients.tf32))
    runtime.restore(private)
    rows = make_evaluator(study, runtime, test=test)(progress)
    return [row for w, row in enumerate(rows) if replicate in (None, study.place(w)[0])]


def look_up_values(job: TrialTask, folder: Path) -> Outcome:
    """A job's outcome from the run directory of a training that is done; scored again if only the inference differs."""
    histories = read_histories(folder, job.replicate)
    if read_scenario(folder / "scenario.yaml", explicit=False).predict != job.scenario.predict:
        rows = score_models(folder, job.scenario, job.own, job.replicate)
        histories = [[*history[:-1], {**history[-1], **row}] for history, row in zip(histories, rows, strict=True)]
    values, errors = judge_worlds(job.objectives, histories)
    return Outcome("complete", values, errors=errors)
