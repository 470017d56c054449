"""Optuna's side of a sweep: the storage, the study, samplers whose random numbers have an address, pruners."""

from __future__ import annotations

import errno
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial

from fedray.core import rng
from fedray.core.errors import BadInput, Unwritable, show_line
from fedray.files.bounded import read_or_explain
from fedray.tuning.space import Parameter, is_active
from fedray.tuning.sweep import PrunerKeys, SamplerKeys, Sweep

# ---------------------------------------------------------------------------------------------------------------------
# The storage of a study when something is wrong with it: damaged, locked by somebody else, or lost on the way.

REMEDY = "bring it back, then --resume"
IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_LIBRARIES = ("optuna", "sqlalchemy", "sqlite3", "redis", "psycopg2", "pymysql", "MySQLdb")


def name_storage(storage: str) -> str:
    """A storage for messages: a file's path, or the kind of a URL, which may hold a password."""
    kind, is_url, _ = storage.partition("://")
    return f"{kind}://..." if is_url else storage


@contextmanager
def explain_storage(storage: str) -> Iterator[None]:
    """Makes one line of what Optuna, its drivers and the file system raise about a storage.

    Args:
        storage: a journal file or a storage URL.

    Raises:
        Unwritable: the storage cannot be used.

    Example:
        >>> with explain_storage("sqlite:///study.db"):
        ...     raise OSError(5, "Input/output error")
        Traceback (most recent call last):
        fedray.core.errors.Unwritable: the storage of the sweep (sqlite://...) cannot be used (Input/output error): ...
    """
    try:
        yield
    except Exception as error:
        of_file = isinstance(error, OSError) and error.filename in (None, storage, f"{storage}.lock")
        damaged = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
        if not (of_file or damaged or type(error).__module__.startswith(_LIBRARIES)):
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:  # Optuna's own text is about its users' mistakes
            cause = cause.__cause__
        why = getattr(cause, "strerror", None) or str(cause).partition("\n")[0] or type(cause).__name__
        full = getattr(cause, "errno", None) in IS_FULL or "disk is full" in why  # SQLite has no numbers
        remedy = "free space, then --resume" if full else REMEDY
        name = name_storage(storage)
        raise Unwritable(f"the storage of the sweep ({name}) cannot be used ({show_line(why)}): {remedy}") from None


def mend_journal(journal: Path) -> None:
    """Cuts off a last line that was never finished, and a lock that a killed sweep left; for when nobody else writes.

    Raises:
        FedrayError: the journal cannot be read.
    """
    if not journal.exists():
        return
    data = read_or_explain(journal, REMEDY)
    if not data.endswith(b"\n"):
        with journal.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------------------------------
# Optuna's side of a sweep: the storage, the study, samplers whose random numbers have an address, pruners.

MADE_MEANWHILE = ("already exists", "locked", "unique", "duplicate")  # what a database says of tables in the making
IN_USE = "name = {} is a study of this storage: choose another, or --resume with the --out of its sweep"
NOTES = "fedray"  # one attribute: every write of a journal is an fsync


class StudyLocation(NamedTuple):
    """Where a study is stored, and its pruner, for the workers that report to it.

    Attributes:
        storage: a journal file or a storage URL.
        name: of the study.
        pruner: the pruner's keys.
        ages: the most steps that a trial can report.
    """

    storage: str
    name: str
    pruner: PrunerKeys
    ages: int


def open_storage(storage: str) -> Any:
    """An Optuna storage: a journal file (its last line mended if a crash cut it), or any URL that Optuna knows."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if "://" not in storage:
        with explain_storage(storage):
            return JournalStorage(JournalFileBackend(storage, JournalFileOpenLock(storage)))
    for wait in (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, None):  # another sweep may be making its tables at this moment
        try:
            return optuna.storages.get_storage(storage)
        except Exception as error:  # SQLAlchemy and drivers raise their own kinds; the URL may hold a password
            if wait is None or not any(word in str(error).lower() for word in MADE_MEANWHILE):
                name = f"--storage {name_storage(storage)}"
                raise BadInput(
                    f"{name} cannot be opened ({type(error).__name__}): check the URL and its driver"
                ) from None
        time.sleep(wait)
    raise AssertionError


def check_vacant(url: str | None, name: str, *, resume: bool) -> None:
    """Checks that a storage can be opened, and holds no study of this name unless that is resumed.

    Args:
        url: of the storage; None where the study has a journal file, which is not checked.
        name: of the study.
        resume: whether to go on with a study that is there.

    Raises:
        BadInput: the storage cannot be opened, or the name is in use.
    """
    if url is None:
        return
    with explain_storage(url):
        known = optuna.get_all_study_names(open_storage(url))
    if name in known and not resume:
        raise BadInput(IN_USE.format(name))


def start_study(sweep: Sweep, location: StudyLocation, *, resume: bool, begun: bool = False) -> optuna.Study:
    """The study of a sweep, new or as it was left.

    Args:
        sweep: the sweep file.
        location: where the study is stored.
        resume: whether to go on with a study that is there.
        begun: whether trials of the sweep were trained, so that there must be one.

    Raises:
        BadInput: the storage holds a study of this name already, and this is no resume, or it has lost the study.
    """
    storage, where = open_storage(location.storage), name_storage(location.storage)
    if begun and location.name not in optuna.get_all_study_names(storage):  # a new study would train over its trials
        raise BadInput(
            f"the storage {where} has no study {location.name}, of which trials were trained: give the --storage that "
            "the sweep began with, or restore it"
        )
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=location.name,
            directions=[objective.direction for objective in sweep.objectives],
            load_if_exists=resume,
            pruner=make_pruner(location),
        )
    except optuna.exceptions.DuplicatedStudyError:
        raise BadInput(IN_USE.format(location.name)) from None
    with warnings.catch_warnings():  # names are experimental in Optuna 5, and only shown
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([objective.name for objective in sweep.objectives])
    return study


def open_trial(location: StudyLocation, number: int) -> tuple[optuna.Trial, FrozenTrial]:
    """A trial of a study for the worker that trains it, and what the study knows of it already.

    Raises:
        Unwritable: the storage cannot be used.
    """
    with explain_storage(location.storage):
        try:
            storage = open_storage(location.storage)
        except BadInput as error:  # it was good when the sweep began
            raise Unwritable(str(error)) from None
        study = optuna.load_study(study_name=location.name, storage=storage, pruner=make_pruner(location))
        known = {frozen.number: frozen for frozen in study.get_trials(deepcopy=False)}[number]
        return optuna.Trial(study, known._trial_id), known


def trial_note(trial: FrozenTrial) -> Mapping[str, Any]:
    """What the search noted about a trial: how it was answered (trained, looked up, refused), its run, seconds, ..."""
    found: Mapping[str, Any] = trial.user_attrs.get(NOTES, {})
    return found


def make_pruner(location: StudyLocation) -> optuna.pruners.BasePruner:
    """The pruner; its steps are ages, of K rounds each."""
    keys = location.pruner
    if keys.name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=keys.startup, n_warmup_steps=keys.warmup)
    least = max(1, keys.warmup)
    if keys.name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=least, reduction_factor=keys.reduction)
    if keys.name == "hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=least, max_resource=max(least, location.ages), reduction_factor=keys.reduction
        )
    return optuna.pruners.NopPruner()


def make_sampler(keys: SamplerKeys, number: int, draw: int) -> optuna.samplers.BaseSampler:
    """The sampler of one draw; its seed is an address, so that a resumed sweep draws what it would have drawn.

    Args:
        keys: kind of the sampler, its seed and its options.
        number: of the trial.
        draw: 0 for what is drawn for all parameters together, 1 + i for parameter i.
    """
    seed = int(rng.keys(keys.seed, "tune", number, draw)) % 2**32
    if keys.name == "nsga2":
        return optuna.samplers.NSGAIISampler(population_size=keys.population, seed=seed)
    if keys.name == "tpe":
        return optuna.samplers.TPESampler(n_startup_trials=keys.startup, seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def propose_values(
    study: optuna.Study, keys: SamplerKeys, space: tuple[Parameter, ...], trial: optuna.Trial
) -> dict[str, Any]:
    """Values for a trial; those that it has already, because it was interrupted, stay.

    Args:
        study: the study, whose sampler is set for each draw.
        keys: kind of the sampler, its seed and its options.
        space: the parameters.
        trial: the trial.

    Returns:
        The value of each parameter that counts, as Optuna stores it.
    """
    study.sampler = make_sampler(keys, trial.number, 0)
    _ = trial.relative_params  # drawn together, before the single ones
    chosen: dict[str, Any] = {}
    for draw, parameter in enumerate(space, 1):
        if is_active(parameter, chosen):
            study.sampler = make_sampler(keys, trial.number, draw)
            chosen[parameter.key] = parameter.suggest(trial)
    return chosen


def ask_trial(study: optuna.Study, sweep: Sweep, points: list[dict[str, Any]] | None) -> optuna.Trial | None:
    """The next trial, or None at the end of a grid.

    Args:
        study: the study.
        sweep: the sweep file.
        points: the points of a grid; None for other samplers.
    """
    number = len(study.get_trials(deepcopy=False))
    if points is not None:
        if number >= len(points):
            return None
        study.enqueue_trial(points[number])
    study.sampler = make_sampler(sweep.sampler, number, 0)
    return study.ask()


def unfinished_trials(study: optuna.Study) -> list[optuna.Trial]:
    """The trials that an interrupted sweep left, in order, ready to go on."""
    states = (optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.WAITING)
    found = []
    for frozen in study.get_trials(deepcopy=False, states=states):
        if frozen.state == optuna.trial.TrialState.WAITING:
            found.append(study.ask())  # the oldest waiting one
        else:
            found.append(optuna.Trial(study, frozen._trial_id))
    return sorted(found, key=lambda trial: trial.number)
