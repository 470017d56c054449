"""Makes Optuna's objects for a sweep: the storage, the study (all trials), the pruner and the sampler."""

import json
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
from fedray.files.run_files import read_or_explain
from fedray.tuning.space import Parameter, is_active
from fedray.tuning.sweep import PrunerKeys, SamplerKeys, Sweep

# ---------------------------------------------------------------------------------------------------------------------
# Faults of the storage of a study, which may be damaged, lost, or locked by a different process.

REMEDY = "free space or bring it back, then --resume"
_LIBRARIES = ("optuna", "sqlalchemy", "sqlite3", "redis", "psycopg2", "pymysql", "MySQLdb")


def name_storage(storage: str) -> str:
    """Returns the name of a storage for messages: the path of its file, or the scheme of its URL."""
    kind, is_url, _ = storage.partition("://")
    return f"{kind}://..." if is_url else storage


@contextmanager
def explain_storage(storage: str) -> Iterator[None]:
    """Turns an error about a storage, raised in the `with` block, into a one-line error.

    Raises:
        Unwritable: The storage cannot be used.

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
        while cause.__cause__ is not None:  # Optuna's own text describes mistakes of its users
            cause = cause.__cause__
        why = getattr(cause, "strerror", None) or str(cause).partition("\n")[0] or type(cause).__name__
        name = name_storage(storage)
        raise Unwritable(f"the storage of the sweep ({name}) cannot be used ({show_line(why)}): {REMEDY}") from None


def mend_journal(journal: Path) -> None:
    """Repairs a journal file: cuts off an unfinished last line, and removes the lock of a killed sweep.

    The caller makes sure that no other process writes to the journal meanwhile.

    Raises:
        FedrayError: The journal cannot be read.
    """
    if not journal.exists():
        return
    data = read_or_explain(journal, REMEDY)
    if not data.endswith(b"\n"):
        with journal.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------------------------------
# The storage, the study, the pruner and the sampler. A resumed sweep continues with the same proposals.

NOTES = "fedray"  # one attribute for all notes: each write to a journal is an fsync
PRUNED = "pruned at age"  # an attribute of a trial that its worker writes before the training stops


class StudyLocation(NamedTuple):
    """The storage, the name and the pruner of a study. Workers need these to report to the study.

    Attributes:
        storage: A journal file or a storage URL.
        name: The name of the study.
        pruner: The section `pruner` of the sweep file.
        age: Number of rounds between two reports of a trial to the pruner.
        ages: The largest possible number of reports of a trial.
    """

    storage: str
    name: str
    pruner: PrunerKeys
    age: int
    ages: int


def open_storage(storage: str) -> Any:
    """Opens an Optuna storage: a journal file, or any URL that Optuna knows."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if "://" not in storage:
        with explain_storage(storage):
            return JournalStorage(JournalFileBackend(storage, JournalFileOpenLock(storage)))
    try:
        return optuna.storages.get_storage(storage)
    except Exception as error:  # SQLAlchemy and drivers raise errors of their own; the URL may hold a password
        name = f"--storage {name_storage(storage)}"
        raise BadInput(f"{name} cannot be opened ({type(error).__name__}): check the URL and its driver") from None


def check_vacant(url: str, name: str, *, resume: bool) -> None:
    """Checks that a storage can be opened and has no study called `name`. With `resume`, the study may exist.

    Raises:
        BadInput: The storage cannot be opened, or the name is in use and `resume` is False.
    """
    with explain_storage(url):
        known = optuna.get_all_study_names(open_storage(url))
    if name in known and not resume:
        raise BadInput(
            f"name = {name} is a study of this storage: choose another, or resume the sweep in its directory"
        )


def start_study(sweep: Sweep, location: StudyLocation, *, resume: bool, begun: bool = False) -> optuna.Study:
    """Opens a new study of a sweep, or an existing study that is resumed.

    Args:
        sweep: The sweep file.
        location: The storage and the name of the study.
        resume: Whether an existing study is resumed.
        begun: Whether trials of the sweep have been trained. If so, the study must exist.

    Raises:
        BadInput: The storage has lost the study.
    """
    is_lost = begun and "://" not in location.storage and not Path(location.storage).exists()  # opening would make it
    storage: Any = None if is_lost else open_storage(location.storage)
    if begun and (is_lost or location.name not in optuna.get_all_study_names(storage)):  # trials would be overwritten
        raise BadInput(
            f"the storage {name_storage(location.storage)} has no study {location.name}, of which trials were trained: "
            "give the --storage that the sweep began with, or restore it"
        )
    study = optuna.create_study(
        storage=storage,
        study_name=location.name,
        directions=[objective.direction for objective in sweep.objectives],
        load_if_exists=resume,
        pruner=make_pruner(location),
    )
    with warnings.catch_warnings():  # experimental in Optuna 5; the names are only for display
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([objective.name for objective in sweep.objectives])
    return study


def open_trial(location: StudyLocation, number: int) -> tuple[optuna.Trial, FrozenTrial]:
    """Opens a trial for the worker that trains it. Returns the trial and its stored state.

    Raises:
        Unwritable: The storage cannot be used.
    """
    with explain_storage(location.storage):
        try:
            storage = open_storage(location.storage)
        except BadInput as error:  # the storage was good when the sweep began
            raise Unwritable(str(error)) from None
        study = optuna.load_study(study_name=location.name, storage=storage, pruner=make_pruner(location))
        known = {frozen.number: frozen for frozen in study.get_trials(deepcopy=False)}[number]
        return optuna.Trial(study, known._trial_id), known


def trial_note(trial: FrozenTrial) -> Mapping[str, Any]:
    """Returns what the search has noted about a trial, such as its run directory and the seconds of training."""
    return dict(trial.user_attrs.get(NOTES, {}))


def make_pruner(location: StudyLocation) -> optuna.pruners.BasePruner:
    """Makes the pruner, which decides every `location.age` rounds whether a trial is stopped."""
    keys = location.pruner
    if keys.name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=keys.startup, n_warmup_steps=keys.warmup + 1)
    least = keys.warmup + 1  # decisions are numbered from 1
    if keys.name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=least, reduction_factor=keys.reduction)
    if keys.name == "hyperband":
        return optuna.pruners.HyperbandPruner(
            min_resource=least, max_resource=max(least, location.ages), reduction_factor=keys.reduction
        )
    return optuna.pruners.NopPruner()


def make_sampler(keys: SamplerKeys, number: int, draw: int) -> optuna.samplers.BaseSampler:
    """Makes the sampler for a single draw of values.

    The seed of the sampler is computed from the arguments. So a resumed sweep draws the same values as a sweep without
    interruption. `number` is the trial's number, from 0. `draw` is 0 if the values of all parameters are drawn jointly,
    and 1 + i if only the value of parameter i is drawn.
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
    """Proposes the values of a trial. An interrupted trial keeps its values.

    Returns:
        A dict from the key of a parameter to its value, as Optuna stores the value. Parameters whose conditions do not
        hold are left out.
    """
    study.sampler = make_sampler(keys, trial.number, 0)
    _ = trial.relative_params  # the joint draw, before the draws of single parameters
    chosen: dict[str, Any] = {}
    for draw, parameter in enumerate(space, 1):
        if is_active(parameter, chosen):
            study.sampler = make_sampler(keys, trial.number, draw)
            chosen[parameter.key] = parameter.suggest(trial)
    return chosen


def ask_trial(
    study: optuna.Study, keys: SamplerKeys, points: list[dict[str, Any]] | None, limit: int
) -> optuna.Trial | None:
    """Returns the next trial, or None if the study has `limit` trials.

    Args:
        study: The study.
        keys: The kind of the sampler, its seed and its options.
        points: The points of a grid. It is None for other samplers.
        limit: The planned number of trials. For a grid, it is at most the number of points.
    """
    number = len(study.get_trials(deepcopy=False))
    if number >= limit:
        return None
    if points is not None:
        study.enqueue_trial(points[number])
    study.sampler = make_sampler(keys, number, 0)
    return study.ask()


def unfinished_trials(study: optuna.Study) -> list[optuna.Trial]:
    """Returns the unfinished trials of an interrupted sweep, in the order of their numbers."""
    states = (optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.WAITING)
    found = []
    for frozen in study.get_trials(deepcopy=False, states=states):
        if frozen.state == optuna.trial.TrialState.WAITING:
            found.append(study.ask())  # the oldest waiting trial
        else:
            found.append(optuna.Trial(study, frozen._trial_id))
    return sorted(found, key=lambda trial: trial.number)
