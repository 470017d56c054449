"""A sweep from its file to its directory: what `fedray tune` does.

Example:
    >>> import tempfile
    >>> keys = {"rounds": 1, "data": {"name": "digits", "limit": 60}, "clients": {"number": 2}, "runtime": "inline"}
    >>> sweep = {"scenario": keys, "space": {"local.lr": [0.01, 0.1]}, "objectives": ["accuracy"], "trials": 1}
    >>> summary = run_sweep(sweep, tempfile.mkdtemp(), say=lambda line: None)
    >>> summary["trials"], summary["complete"]
    (1, 1)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from fedray.assembly.identity import describe_study
from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput, FedrayError
from fedray.files import plain
from fedray.files.checksums import refuse_links
from fedray.own_code.user_modules import import_modules
from fedray.process.ending import current_ending
from fedray.runtime.addresses import find_address
from fedray.runtime.awaited import refuse_unused_wait
from fedray.runtime.environment import prepare_process
from fedray.scenario import yaml_text
from fedray.scenario.schema import Scenario
from fedray.storage import directory, identity
from fedray.tuning import optuna_study, study_storage
from fedray.tuning.places import COPY, JOURNAL, TRIALS, has_sweep, has_trials, refuse_taken_sweep
from fedray.tuning.producible import check_producible
from fedray.tuning.results import write_results
from fedray.tuning.search import count_planned_trials, run_search
from fedray.tuning.state import Say, SearchState
from fedray.tuning.sweep import Sweep
from fedray.tuning.sweep_file import read_sweep
from fedray.tuning.workers import end_in_worker, make_workers, refuse_idle_actors

log = logging.getLogger("fedray")
CHANGEABLE = ("trials", "jobs", "trial", "together")  # may differ when a sweep is resumed; the last is of old sweeps


def run_sweep(
    source: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    trials: int | None = None,
    resume: bool = False,
    storage: str | None = None,
    address: str | None = None,
    wait_for: Mapping[str, float] | None = None,
    modules: tuple[str, ...] = (),
    report: bool = True,
    say: Say = print,
) -> dict[str, Any]:
    """Runs a sweep in a directory, or goes on with one, and returns its summary.

    Args:
        source: the sweep file, or its keys.
        out: directory of the sweep; a new one, unless the sweep is resumed.
        trials: how many trials in all; None means as many as the file says.
        resume: whether to go on where the directory stands.
        storage: an Optuna storage URL; None means a journal file in `out`.
        address: of an existing Ray cluster; None starts one on this machine where the sweep runs on Ray.
        wait_for: what the cluster must have before the first training begins, by Ray's names.
        modules: names of your modules, which every worker imports first.
        report: whether the page of the sweep is drawn.
        say: called with a line about each finished trial.

    Raises:
        BadInput: the sweep or the directory cannot be used.
        FedrayError: no trial came to its end.
    """
    prepare_process()
    folder, own = plain.expand_user_path("out", str(out)), UserObjects(modules=modules)
    sweep, base = _read_sweep(source, own, folder if (resume := resume and has_sweep(folder)) else None)
    refuse_unused_wait(wait_for, address := find_address(base.runtime, address))
    refuse_idle_actors(sweep, base, address)
    log.info("reading the data")
    study = build_study(base, own)
    check_producible(sweep.objectives, study.classes, base.data.name, study.evaluation.metrics)
    limit, points = count_planned_trials(sweep, trials)
    journal = folder.absolute() / JOURNAL
    optuna_study.check_vacant(storage, sweep.name, resume=resume)  # before anything is written
    refuse_links(folder)
    given = {"storage": storage and "...", "address": address, "trials": trials}  # a URL may hold a password
    current_ending().advise(_describe_resume(source, folder, modules, given), needs=folder / COPY)
    _make_directory(sweep, folder, resume, journal if storage is None else None)
    with directory.lock_run_directory(folder) as confirm_place:
        identity.confirm_digests(folder, describe_study(base, own, study), fresh=not (begun := has_trials(folder)))
        study_storage.mend_journal(journal)
        ages = base.rounds // base.method.models
        location = optuna_study.StudyLocation(storage or str(journal), sweep.name, sweep.pruner, ages)
        with study_storage.explain_storage(location.storage):
            trials_of_sweep = optuna_study.start_study(sweep, location, resume=resume, begun=begun)
            state = SearchState(sweep, folder.absolute(), trials_of_sweep, location, own, limit, points, say)
            state.confirm_storage = study_storage.watch_storage(location.storage)
            _train_trials(state, base, address, confirm_place, wait_for=wait_for)
            return write_results(state, report=report)


def _read_sweep(
    source: str | Path | Mapping[str, Any], own: UserObjects, resumed: Path | None
) -> tuple[Sweep, Scenario]:
    """The sweep and its base scenario, once the user's modules have registered their names.

    `resumed` is the directory that goes on.
    """
    end_in_worker()
    import_modules(own.modules)
    if resumed is not None:
        identity.refuse_missing_names(resumed)
    sweep = read_sweep(source)
    return sweep, sweep.scenario({})


def _train_trials(
    state: SearchState,
    base: Scenario,
    address: str | None,
    confirm_place: Callable[[], None],
    *,
    wait_for: Mapping[str, float] | None,
) -> None:
    """Trains the trials that the sweep asks for."""
    log.info("training the trials")
    jobs, actors = state.sweep.jobs, state.sweep.actors
    try:
        with make_workers(jobs, base, address, state.own, state.out, actors=actors, wait_for=wait_for) as submit:
            run_search(state, submit, confirm_place)
    except KeyboardInterrupt:
        raise FedrayError(f"interrupted; `fedray tune ... --out {state.out} --resume` goes on") from None


def _describe_resume(
    source: str | Path | Mapping[str, Any], folder: Path, modules: tuple[str, ...], given: Mapping[str, Any]
) -> str:
    """How a sweep goes on that was ended; `given` are its other options, None where one was not given.

    Example:
        >>> _describe_resume("lr.yaml", Path("runs/lr"), ("mine",), {"storage": None, "address": "auto"})
        '`fedray tune lr.yaml --out runs/lr --import mine --address auto --resume` goes on'
    """
    file = quote(str(source)) if isinstance(source, str | Path) else "..."
    options = [("import", name) for name in modules] + [(k, value) for k, value in given.items() if value is not None]
    more = "".join(f" --{name} {value if value == '...' else quote(str(value))}" for name, value in options)
    return f"`fedray tune {file} --out {quote(str(folder))}{more} --resume` goes on"


def _make_directory(sweep: Sweep, folder: Path, resume: bool, journal: Path | None) -> None:
    """Makes the sweep's directory, or checks that it holds this very sweep."""
    copy = folder / COPY
    refuse_taken_sweep(folder, resume=resume)
    if copy.is_file():
        if _without_changeable(yaml_text.read_mapping(copy)[1]) != _without_changeable(sweep.source):
            raise BadInput(f"--out {folder} holds another sweep (see its {COPY}): choose another directory")
        if journal is not None and not journal.is_file():
            raise BadInput(f"{journal} is missing: give the --storage that the sweep began with")
        if journal is None and (folder / JOURNAL).is_file():
            raise BadInput(f"{folder} keeps its study in {JOURNAL}: leave out --storage")
        return
    try:
        (folder / TRIALS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder} cannot be made ({error.strerror}): choose another directory") from None
    if journal is not None:
        journal.touch()
    plain.write_atomically(copy, yaml_text.write_yaml(dict(sweep.source)).encode())


def _without_changeable(source: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key not in CHANGEABLE}
