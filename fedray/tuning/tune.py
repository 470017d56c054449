"""Runs a whole sweep, as `fedray tune` does: reads the sweep file, runs the trials, and writes the results."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import pyarrow as pa
from optuna.trial import FrozenTrial, TrialState

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study, describe_study
from fedray.core.errors import BadInput, FedrayError, FedrayWarning, quote_value, suggest_nearest, warn_user
from fedray.evaluation.evaluate import list_scored_tiers
from fedray.experiments.live import is_in_notebook
from fedray.experiments.results import Run
from fedray.files import plain
from fedray.files.run_files import RESTORE, read_parquet_file, read_sealed, table_schema
from fedray.own_code.user_code import import_modules
from fedray.process import current_ending
from fedray.runtime.environment import find_address, prepare_process, refuse_unused_wait
from fedray.scenario import nested
from fedray.scenario.loader import find_acting_keys, import_first, read_scenario
from fedray.storage import directory
from fedray.storage import summary as records
from fedray.storage.checkpoint import write_parquet
from fedray.tuning import optuna_study
from fedray.tuning import space as spaces
from fedray.tuning import trial as search
from fedray.tuning.space import BYTES, Parameter, format_value, name_winner, read_params, read_space, to_overrides
from fedray.tuning.sweep import Sweep, drop_idle_overrides, read_objectives, read_sweep, warn_of_missing_noise

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

# ---------------------------------------------------------------------------------------------------------------------
# Writes the table of trials, the winners as scenarios, the summary and the page to the directory of a sweep.

log = logging.getLogger("fedray")


def write_results(state: search.SearchState, *, report: bool = True) -> dict[str, Any]:
    """Writes the results of a sweep and returns the summary.

    Raises:
        FedrayError: No trial came to its end.
    """
    trials = state.study.get_trials(deepcopy=False)
    write_trials(state, trials)
    winners = find_winners(state.study)
    if not winners:
        reasons = [note["error"] for note in map(optuna_study.trial_note, trials) if "error" in note]
        raise FedrayError(f"no trial came to its end: {reasons[0] if reasons else 'all were pruned'}")
    complete = [trial.values for trial in trials if trial.state == TrialState.COMPLETE]
    if len(complete) > 1 and all(values == complete[0] for values in complete):
        warn_user(
            f"all {len(complete)} trials have equal values, so that the first wins: choose other objectives or a wider "
            "space, or raise data.hold_out"
        )
    summary = {**count_trials(state, trials), "winners": [_describe_winner(state, trial) for trial in winners]}
    if len(state.sweep.objectives) > 1:
        summary["first_winner"] = name_winner(state.sweep.objectives)
    write_scenarios(state, winners)
    plain.write_json(state.out / "summary.json", summary)
    if report:
        log.info("drawing the report")
        from fedray.tuning.page import write_page

        write_page(state.sweep, state.out, state.study, summary, state.out / "report.html")
    return summary


def find_winners(study: optuna.Study) -> list[FrozenTrial]:
    """Returns the best trial. With several objectives, returns the trials of the Pareto front.

    The front is sorted by the first objective. If trials are equally good in it, the next objectives decide. Of trials
    with the same values of all parameters, only the first is returned.

    Example:
        >>> study = optuna.create_study(direction="maximize")
        >>> for value in (0.5, 0.9, 0.7):
        ...     study.add_trial(optuna.create_trial(value=value))
        >>> [trial.number for trial in find_winners(study)]
        [1]
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not complete:
        return []
    signs = [-1 if direction == optuna.study.StudyDirection.MAXIMIZE else 1 for direction in study.directions]

    def rank(trial: FrozenTrial) -> tuple[float, ...]:
        return (*(sign * value for sign, value in zip(signs, trial.values, strict=True)), trial.number)

    if len(signs) == 1:  # of equal trials the first; storages return any of them
        return [min(complete, key=rank)]
    found: dict[str, FrozenTrial] = {}
    for trial in sorted(study.best_trials, key=rank):
        found.setdefault(repr(sorted(trial.params.items())), trial)  # of repeated trials only one wins
    return list(found.values())


def count_trials(state: search.SearchState, trials: list[FrozenTrial]) -> dict[str, Any]:
    """Counts the trials by state. Adds up the time that training took, and the time that shared trainings saved."""
    notes = [optuna_study.trial_note(trial) for trial in trials]
    answers = [note.get("how") for note in notes]
    states = [search.WORDS.get(trial.state, "running") for trial in trials]
    return {
        "name": state.sweep.name,
        "trials": len(trials),
        **{word: states.count(word) for word in search.WORDS.values()},
        "trainings": answers.count("trained"),
        "looked_up": answers.count("looked up"),
        "seconds_trained": sum(float(note.get("seconds", 0.0)) for note in notes),
        "seconds_saved": sum(float(note.get("saved", 0.0)) for note in notes),
        "rounds_trained": sum(int(note.get("rounds", 0)) for note in notes),
    }


def describe_summary(summary: dict[str, Any]) -> str:
    """Describes the summary of a sweep in one line.

    Example:
        >>> describe_summary({"trials": 50, "complete": 50, "pruned": 0, "failed": 0, "trainings": 1, "looked_up": 49,
        ...       "seconds_trained": 4.0, "seconds_saved": 196.0})
        '50 trials: 50 complete; 1 training (4.0 s), 49 looked up (196.0 s of training saved)'
    """
    states = ", ".join(f"{summary[word]} {word}" for word in ("complete", "pruned", "failed") if summary[word])
    many = "training" if summary["trainings"] == 1 else "trainings"
    return (
        f"{summary['trials']} trials: {states}; {summary['trainings']} {many} ({summary['seconds_trained']:.1f} s), "
        f"{summary['looked_up']} looked up ({summary['seconds_saved']:.1f} s of training saved)"
    )


def write_trials(state: search.SearchState, trials: list[FrozenTrial]) -> None:
    """Writes `trials.parquet` with a row per trial. The columns `values` and `params` are structs."""
    rows, types = [], _types(state.sweep.space)
    names = [objective.name for objective in state.sweep.objectives]
    for trial in trials:
        note, cells = optuna_study.trial_note(trial), dict[str, Any]()
        for parameter in state.sweep.space:  # by column, for `space.read_params`
            value = trial.params.get(parameter.key)
            is_text = types[parameter.column] == pa.string() and not isinstance(value, str | None)
            if value is not None or parameter.column not in cells:
                cells[parameter.column] = format_value(value) if is_text else value
        values = trial.values if trial.state == TrialState.COMPLETE and trial.values else [None] * len(names)
        rows.append(
            {
                "number": trial.number,
                "state": search.WORDS.get(trial.state, "running"),
                "values": dict(zip(names, values, strict=True)),
                "standard_errors": _name_errors(state, trial),
                "params": cells,
                "run_directory": note.get("run") or None,
                "how": note.get("how"),
                "rounds": note.get("rounds"),
                "training_seconds": note.get("seconds"),
                "seconds_saved": note.get("saved"),
                "error": note.get("error"),
            }
        )
    values = pa.struct([(name, pa.float64()) for name in names])
    schema = table_schema("trials", values=values, standard_errors=values, params=pa.struct(list(types.items())))
    write_parquet(state.out / "trials.parquet", pa.Table.from_pylist(rows, schema=schema))


def _name_errors(state: search.SearchState, trial: FrozenTrial) -> dict[str, float | None]:
    """Returns a trial's standard errors by the names of the objectives. An unknown standard error is None."""
    names = [objective.name for objective in state.sweep.objectives]
    return dict(zip(names, optuna_study.trial_note(trial).get("standard_errors") or [None] * len(names), strict=True))


def _types(space: Sequence[Parameter]) -> dict[str, Any]:
    """Returns a dict from the name of each parameter's column to its Arrow type.

    A column with only integers, only floats or only booleans has this type. Integers and floats together are floats.
    All other columns are text. Values that are None do not count.
    """
    kinds: dict[str, set[type]] = {}
    for parameter in space:
        given: set[type] = {type(choice) for choice in parameter.choices if choice is not None}
        ranges: dict[str, set[type]] = {"int": {int}, "float": {float}}
        kinds.setdefault(parameter.column, set()).update(given | ranges.get(parameter.kind, set()))
    known = {frozenset({int}): pa.int64(), frozenset({bool}): pa.bool_()}
    known |= dict.fromkeys((frozenset({float}), frozenset({int, float})), pa.float64())
    return {column: known.get(frozenset(found), pa.string()) for column, found in kinds.items()}


def _describe_winner(state: search.SearchState, trial: FrozenTrial) -> dict[str, Any]:
    """Returns the values of a winner, and the scores of its newest models on the test set.

    The search itself has not used the test set. The newest models may be from a round after the budget of an objective.
    """
    scenario = state.sweep.scenario(trial.params)
    folder = state.out / optuna_study.trial_note(trial)["run"]
    rows = search.score_models(folder, scenario, state.own, test=True)
    test = {k: v["mean"] for k, v in records.pool_metrics(rows).items() if not k.startswith("hold_out_")}
    names = [objective.name for objective in state.sweep.objectives]
    last = [world[-1] for world in search.read_histories(folder)]
    cost = sum(spaces.read_cost(row, BYTES) for row in last) / len(last)
    return {
        "number": trial.number,
        "values": dict(zip(names, trial.values, strict=True)),
        "standard_errors": _name_errors(state, trial),
        "params": drop_idle_overrides(state.sweep.base, to_overrides(state.sweep.space, trial.params)),
        "run_directory": optuna_study.trial_note(trial)["run"],
        "test": test,
        "tested_after": {"round": last[0]["round"], BYTES: cost},
    }


def write_scenarios(state: search.SearchState, winners: list[FrozenTrial]) -> None:
    """Writes `best.yaml` and, with several objectives, the whole Pareto front under `pareto/`."""
    several = len(state.sweep.objectives) > 1
    plain.write_atomically(state.out / "best.yaml", _write_text(state, winners[0], first=several).encode())
    if several:
        folder = state.out / "pareto"
        folder.mkdir(exist_ok=True)
        for old in folder.glob("[0-9]*.yaml"):
            old.unlink()
        for trial in winners:
            plain.write_atomically(folder / f"{trial.number:05d}.yaml", _write_text(state, trial).encode())


def _write_text(state: search.SearchState, trial: FrozenTrial, *, first: bool = False) -> str:
    """Returns the text of a scenario file for a winner. `first` says whether this winner leads the Pareto front."""
    names = [objective.name for objective in state.sweep.objectives]
    values = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, trial.values, strict=True))
    scenario, space = state.sweep.scenario(trial.params), state.sweep.space
    given = nested.merge_keys(state.sweep.base, nested.expand(to_overrides(space, trial.params)))
    which = name_winner(state.sweep.objectives)
    top = f"# The {which} of the Pareto front (pareto/); no trial is best in everything.\n" if first else ""
    return (
        f"{top}# Trial {trial.number} of the sweep {state.sweep.name}: {values} (held-out data).\n"
        f"# data.hold_out is the sweep's, so that this run repeats the trial: 0 trains on all the training data.\n"
        f"{nested.write_yaml(find_acting_keys(scenario, given))}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Runs a sweep from its file to its directory, as `fedray tune` does.

CHANGEABLE = {"trials", "jobs", "trial"}  # may change on resuming


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
    say: search.Say = print,
) -> dict[str, Any]:
    """Runs a sweep in a new directory, or continues an interrupted sweep, and returns the summary.

    Args:
        source: The sweep file, or the keys of a sweep.
        out: The directory of the sweep, which must be new unless the sweep is resumed.
        trials: The total number of trials. None means the number in the file.
        resume: Whether to continue the sweep in `out`.
        storage: An Optuna storage URL. None means a journal file in `out`.
        address: The address of an existing Ray cluster. None starts a cluster on this machine if the sweep runs on Ray.
        wait_for: The resources that the cluster must have before the first training begins, by their names in Ray.
        modules: The names of your modules, which every worker imports before it trains.
        report: Whether the page of the sweep is drawn.
        say: A function that is called with a line about each finished trial.

    Raises:
        BadInput: The sweep or the directory cannot be used.
        FedrayError: No trial came to its end.

    Example:
        >>> import tempfile
        >>> keys = {"rounds": 1, "data": {"name": "digits", "limit": 60}, "clients": {"number": 2}, "runtime": "inline"}
        >>> sweep = {"scenario": keys, "space": {"local.lr": [0.01, 0.1]}, "objectives": ["accuracy"], "trials": 1}
        >>> summary = run_sweep(sweep, tempfile.mkdtemp(), say=lambda line: None)
        >>> summary["trials"], summary["complete"]
        (1, 1)
    """
    prepare_process()
    folder, own = plain.expand_user_path("out", str(out)), UserObjects(modules=modules)
    import_modules(own.modules)
    if resume := resume and directory.has_sweep(folder):
        import_first(nested.read_mapping(folder / directory.COPY)[1].get("scenario", {}))
        records.refuse_missing_names(folder)
    sweep = read_sweep(source)
    base = sweep.scenario({})
    named = (base.own or {}).get("modules", [])
    own = replace(own, modules=(*modules, *(name for name in named if name not in modules)))
    refuse_unused_wait(wait_for, address := find_address(base.runtime, address))
    search.refuse_idle_actors(sweep, base, address)
    log.info("reading the data")
    study = build_study(base, own)
    tiers = [tier.name for tier in list_scored_tiers(study)]
    spaces.check_producible(sweep.objectives, study.classes, base.data.name, study.evaluation.metrics, tiers)
    if not study.classes:
        warn_of_missing_noise(sweep)
    limit, points = search.count_planned_trials(sweep, trials)
    journal = folder.absolute() / directory.JOURNAL
    if storage is not None:
        optuna_study.check_vacant(storage, sweep.name, resume=resume)  # before anything is written
    current_ending().advise("the same command with --resume goes on", needs=folder / directory.COPY)
    _make_directory(sweep, folder, resume, journal if storage is None else None)
    with directory.lock_run_directory(folder) as confirm_directory:
        begun = any((folder / directory.TRIALS).glob("*"))
        records.confirm_digests(folder, describe_study(base, own, study), fresh=not begun)
        optuna_study.mend_journal(journal)
        age = sweep.count_rounds_between_decisions()
        ages = base.rounds // age
        location = optuna_study.StudyLocation(storage or str(journal), sweep.name, sweep.keys.pruner, age, ages)
        with optuna_study.explain_storage(location.storage):
            trials_of_sweep = optuna_study.start_study(sweep, location, resume=resume, begun=begun)
            state = search.SearchState(sweep, folder.absolute(), trials_of_sweep, location, own, limit, points, say)
            log.info("training the trials")
            try:
                how: dict[str, Any] = {"actors": sweep.keys.trial.actors, "wait_for": wait_for}
                with search.make_workers(sweep.keys.jobs, base, address, own, state.out, **how) as submit:
                    search.run_search(state, submit, confirm_directory)
            except KeyboardInterrupt:
                raise FedrayError(f"interrupted; `fedray tune ... --out {state.out} --resume` goes on") from None
            return write_results(state, report=report)


def _make_directory(sweep: Sweep, folder: Path, resume: bool, journal: Path | None) -> None:
    """Makes the directory of a sweep, or checks that the directory already holds the same sweep."""
    copy = folder / directory.COPY
    directory.refuse_taken_sweep(folder, resume=resume)
    if copy.is_file():
        before, now = nested.read_mapping(copy)[1], dict(sweep.source)
        if any(before.get(key) != now.get(key) for key in {*before, *now} - CHANGEABLE):
            raise BadInput(f"out = {folder} holds another sweep (see its {directory.COPY}): choose another directory")
        if journal is None and (folder / directory.JOURNAL).is_file():
            raise BadInput(f"{folder} keeps its study in {directory.JOURNAL}: leave out --storage")
    else:
        plain.write_user_file(copy, nested.write_yaml(dict(sweep.source)).encode())
        if journal is not None:
            journal.touch()
    (folder / directory.TRIALS).mkdir(exist_ok=True)


# ---------------------------------------------------------------------------------------------------------------------
# `fedray.tune`, which runs a sweep from Python, and its result.

TRIALS_FILE = "trials.parquet"
MODES = {"max": "maximize", "min": "minimize"}


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial of a sweep.

    Attributes:
        number: The number of the trial, from 0.
        state: `complete`, `pruned`, `failed` or `running`.
        params: The values that the trial tried, by scenario key. Keys without effect in this trial are left out, so
            that `fedray.run(scenario, **trial.params)` accepts the values.
        metrics: The values of the objectives on held-out data. The dict is empty if the trial is not complete.
        path: The run directory of the training from which the trial has its values. Several trials may share a
            training. None means that there is no such training.
        error: The reason why the trial failed. None means that it did not fail.
    """

    number: int
    state: str
    params: dict[str, Any]
    metrics: dict[str, float]
    path: Path | None
    error: FedrayError | None = field(compare=False)
    modules: tuple[str, ...] = field(default=(), compare=False, repr=False)
    keys: nested.Tree = field(default_factory=dict, compare=False, repr=False)

    @property
    def run(self) -> Run:
        """Returns the run of the training from which the trial has its values. The run predicts as the trial did.

        Several trials may share one training. The run's tables have the scores of the trial that was trained. If that
        trial has a different section `predict`, a warning says so.

        Raises:
            FedrayError: The trial has no training.
        """
        if self.path is None or not (self.path / "scenario.yaml").is_file():
            raise FedrayError(f"trial {self.number} has no run directory: it is {self.state}")
        predict = read_scenario(self.keys, explicit=False).predict
        if predict != read_scenario(self.path / "scenario.yaml", explicit=False).predict:
            warn_user(
                f"trial {self.number} predicts in its own way with the models of {self.path}: the scores of this run "
                "are of another trial's predictions, see .metrics of the trial",
                FedrayWarning,
            )
        return Run(self.path, UserObjects(modules=self.modules), predict=predict)


class SweepResult:
    """The results in the directory of a sweep, as a sequence of trials in the order of their numbers."""

    def __init__(self, path: Path, modules: tuple[str, ...] = ()) -> None:
        """Reads the trials of a sweep.

        Args:
            path: The directory of the sweep.
            modules: The user's modules, which register the names that the sweep uses. The caller has imported these
                modules.

        Raises:
            BadInput: `path` is no directory of a sweep, or the sweep has not ended.
            Damaged: A file of the directory cannot be read.
        """
        if not directory.has_sweep(path):
            raise BadInput(f"{path} is no sweep (it has no {directory.COPY}): give the directory of a sweep")
        if not (path / TRIALS_FILE).exists():
            raise BadInput(f"{path} has no {TRIALS_FILE}: the sweep has not ended: `fedray tune ... --resume`")
        self.path = path
        sweep = nested.read_mapping(path / directory.COPY)[1]
        self._objectives, space = read_objectives(sweep.get("objectives")), read_space(sweep.get("space"))
        self._table = read_parquet_file(path / TRIALS_FILE).sort_by("number")
        rows, base = self._table.to_pylist(), sweep["scenario"]
        self._trials = [_read_trial(path, row, modules, space, base) for row in rows]

    @classmethod
    def from_path(cls, path: str | Path, *, modules: tuple[str, ...] = ()) -> "SweepResult":
        """Opens the directory of a sweep that `fedray tune` has written.

        Args:
            path: The directory of the sweep.
            modules: Your modules, which register the names that the sweep uses. These modules are imported first.
        """
        import_modules(modules)
        return cls(plain.expand_user_path("path", str(path)), modules)

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self._trials)

    def __getitem__(self, number: int) -> TrialResult:
        return self._trials[number]

    @property
    def errors(self) -> list[FedrayError]:
        """Returns the errors of the failed trials, in the order of the trials."""
        return [trial.error for trial in self._trials if trial.error is not None]

    @property
    def summary(self) -> dict[str, Any]:
        """Returns the content of `summary.json`, with counts of trials and trainings, and winners with test scores."""
        return read_sealed(self.path / "summary.json", RESTORE)

    def write_report(self, out: Path | None = None) -> Path:
        """Draws the page of the sweep again, and returns its path.

        Args:
            out: The HTML file. None means `report.html` in the directory of the sweep.

        Raises:
            BadInput: The study of the sweep is not in its directory.
        """
        from fedray.tuning.page import write_page

        target = out or self.path / "report.html"
        write_page(*self._open(), target)
        return target

    def plot(self, name: str | None = None) -> "Figure":
        """Returns one picture of the sweep's page as a Matplotlib figure.

        Args:
            name: The picture: `trials` (the first objective over each parameter), `importance`, `pareto`, `curves`, or
                the name of an objective, which is drawn over the trials. None means the first objective.

        Raises:
            BadInput: There is no picture of this name, or the study of the sweep is not in its directory.
            FedrayError: The sweep has no numbers for the picture.
        """
        from fedray.tuning.page import draw_plot, make_view

        return draw_plot(make_view(*self._open()), name)

    def _open(self) -> tuple[Sweep, Path, optuna.Study, dict[str, Any]]:
        """Returns the sweep, its directory, its study and its summary."""
        journal = self.path / directory.JOURNAL
        if not journal.is_file():
            raise BadInput(
                f"{self.path} has no {journal.name}, its study is in another storage: `fedray tune ... --resume "
                "--storage URL` draws the report"
            )
        records.refuse_missing_names(self.path)
        sweep = read_sweep(nested.read_mapping(self.path / directory.COPY)[1], imports=False)
        with optuna_study.explain_storage(str(journal)):
            study = optuna.load_study(study_name=sweep.name, storage=optuna_study.open_storage(str(journal)))
        return sweep, self.path, study, self.summary

    def get_best_result(self, metric: str | None = None, mode: str | None = None) -> TrialResult:
        """Returns the best complete trial. Between equally good trials, the other objectives decide in their order.

        Args:
            metric: The name of an objective of the sweep. None means the first objective.
            mode: `max` or `min`. None means the direction of the search.

        Raises:
            BadInput: The sweep has no such objective, or there is no such mode.
            FedrayError: No trial is complete.
        """
        known = {objective.name: objective for objective in self._objectives}
        name = metric or self._objectives[0].name
        if name not in known:
            remedy = suggest_nearest(name, known, f"choose one of {', '.join(known)}")
            raise BadInput(f"metric = {quote_value(name)} is no objective of this sweep: {remedy}")
        if mode is not None and mode not in MODES:
            raise BadInput(f"mode = {quote_value(mode)}: choose max or min")
        wanted = {name: known[name].direction if mode is None else MODES[mode]}  # then the others
        wanted |= {other: one.direction for other, one in known.items() if other != name}
        done = [trial for trial in self._trials if trial.state == "complete"]
        if not done:
            raise FedrayError(f"no trial of {self.path} came to its end: see .errors")

        def rank(trial: TrialResult) -> tuple[float, ...]:
            signed = [-trial.metrics[one] if way == "maximize" else trial.metrics[one] for one, way in wanted.items()]
            return (*signed, trial.number)

        return min(done, key=rank)

    def get_dataframe(self) -> Any:
        """Returns a pandas DataFrame with a row for each trial, and a column for each objective and parameter.

        If the trials have several seeds or folds, there is a column `OBJECTIVE_standard_error` too. If a
        searched key has the name of another column, such as `rounds`, the column has the values of the key.
        """
        flat, columns = self._table.flatten(), dict[str, Any]()
        for path, column in zip(flat.column_names, flat.columns, strict=True):
            record, _, name = path.partition(".")
            if not name:
                columns.setdefault(record, column)
            elif record != "standard_errors":
                columns[name] = column
            elif column.null_count < len(column):
                columns[f"{name}_standard_error"] = column
        return pa.table(columns).to_pandas()

    def _repr_html_(self) -> str:
        return str(self.get_dataframe().to_html(index=False, max_rows=20, float_format="{:.4g}".format, border=0))


def _read_trial(
    out: Path, row: Mapping[str, Any], modules: tuple[str, ...], space: Sequence[Parameter], base: nested.Tree
) -> TrialResult:
    """Reads a trial from its row of `trials.parquet`. `base` has the keys of the sweep's scenario."""
    folder, tried = row["run_directory"], read_params(space, row["params"] or {})
    return TrialResult(
        number=int(row["number"]),
        state=str(row["state"]),
        params=drop_idle_overrides(base, tried),
        metrics={name: value for name, value in row["values"].items() if value is not None},
        path=None if folder is None else out / folder,
        error=None if row["error"] is None else FedrayError(row["error"]),
        modules=modules,
        keys=nested.merge_keys(base, nested.expand(tried)),
    )


def tune(
    sweep: Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    trials: int | None = None,
    resume: bool = False,
    storage: str | None = None,
    address: str | None = None,
    wait_for: Mapping[str, float] | None = None,
    modules: tuple[str, ...] = (),
    report: bool = True,
    progress: bool | None = None,
) -> SweepResult:
    """Searches for the best values of a scenario's keys, as `fedray tune` does.

    Python objects cannot be passed, because other processes train the trials and cannot receive the objects. Give your
    data, model or method a name with `fedray.register` in a module, write the name in the scenario, and pass the
    module.

    Args:
        sweep: The keys of a sweep, or the path of a sweep file (`docs/how-to/sweeps.md`).
        out: The directory of the sweep. None means a temporary directory, which `fedray clean` removes.
        trials: The total number of trials. None means the number in the sweep.
        resume: Whether to continue the sweep in `out`.
        storage: An Optuna storage URL. None means a journal file in `out`.
        address: The address of an existing Ray cluster. None starts a cluster on this machine if the sweep runs on Ray.
        wait_for: The resources that the cluster must have before the first training begins, as in `{"hpc": 32}`.
        modules: Your modules, which register names. Every worker imports these modules before it trains.
        report: Whether the page of the sweep is drawn.
        progress: Whether to print a line to stderr for each finished trial. None prints these lines only in a notebook.

    Raises:
        BadInput: The sweep or the directory cannot be used.
        FedrayError: No trial came to its end. `SweepResult.from_path(out).errors` lists the reasons.

    Example:
        >>> keys = {"rounds": 1, "data": {"name": "digits", "limit": 60}, "clients": {"number": 2}, "runtime": "inline"}
        >>> grid = {"scenario": keys, "space": {"local.lr": [0.01, 0.3]}, "objectives": ["accuracy"], "sampler": "grid"}
        >>> found = tune({**grid, "jobs": 1}, report=False)
        >>> len(found), [trial.state for trial in found], found.errors
        (2, ['complete', 'complete'], [])
        >>> found.get_best_result() == found.get_best_result("accuracy", "max")
        True
    """
    shown = is_in_notebook() if progress is None else progress

    def say(line: str) -> None:
        if shown:
            print(line, file=sys.stderr, flush=True)

    options: dict[str, Any] = {"storage": storage, "address": address, "wait_for": wait_for}
    options |= {"modules": tuple(modules), "report": report}
    with plain.choose_out(out, "sweep") as folder:
        run_sweep(sweep, folder, trials=trials, resume=resume, say=say, **options)
    return SweepResult(folder, tuple(modules))
