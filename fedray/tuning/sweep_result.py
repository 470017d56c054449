"""A sweep from Python: `fedray.tune`, and what it returns.

Example:
    >>> keys = {"rounds": 1, "data": {"name": "digits", "limit": 60}, "clients": {"number": 2}, "runtime": "inline"}
    >>> grid = {"scenario": keys, "space": {"local.lr": [0.01, 0.3]}, "objectives": ["accuracy"], "sampler": "grid"}
    >>> found = tune({**grid, "jobs": 1}, report=False)
    >>> len(found), [trial.state for trial in found], found.errors
    (2, ['complete', 'complete'], [])
    >>> found.get_best_result() == found.get_best_result("accuracy", "max")
    True
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput, FedrayError
from fedray.core.text import quote_value, suggest_nearest
from fedray.experiments.live import is_in_notebook
from fedray.experiments.results import Run
from fedray.files.bounded import RESTORE, read_parquet_files, read_sealed, say_damaged
from fedray.files.plain import choose_out, expand_user_path
from fedray.own_code.user_code import import_modules
from fedray.scenario.yaml_text import read_mapping
from fedray.tuning.objectives import SweepObjective
from fedray.tuning.places import COPY, has_sweep
from fedray.tuning.space import Parameter, read_params, read_space
from fedray.tuning.sweep import read_objectives
from fedray.tuning.tune import run_sweep

TRIALS_FILE = "trials.parquet"
MODES = {"max": "maximize", "min": "minimize"}


@dataclass(frozen=True)
class TrialResult:
    """One trial of a sweep.

    Attributes:
        number: its number, from 0.
        state: `complete`, `pruned`, `failed` or `running`.
        params: the values that it tried, by scenario key: `fedray.run(scenario, **trial.params)` takes them.
        metrics: the objectives, on held-out data; empty where the trial is not complete.
        path: the run directory of the training that answered it, which other trials may share; None where there is
            none.
        error: why it failed; None where it did not.
    """

    number: int
    state: str
    params: dict[str, Any]
    metrics: dict[str, float]
    path: Path | None
    error: FedrayError | None = field(compare=False)
    modules: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def run(self) -> Run:
        """The training that answered the trial.

        Raises:
            FedrayError: there is none.
        """
        if self.path is None or not (self.path / "scenario.yaml").is_file():
            raise FedrayError(f"trial {self.number} has no run directory: it is {self.state}")
        return Run(self.path, UserObjects(modules=self.modules))

    @property
    def metrics_dataframe(self) -> Any:
        """The rounds of its training as a pandas DataFrame."""
        return self.run.metrics_dataframe

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the newest checkpoint of its training."""
        return self.run.checkpoint


class SweepResult:
    """The directory of a sweep: a sequence of trials, in the order of their numbers."""

    def __init__(self, path: Path, modules: tuple[str, ...] = ()) -> None:
        """Reads the trials.

        Args:
            path: the directory.
            modules: the user's modules that register names it uses, already imported.

        Raises:
            BadInput: this is no directory of a sweep, or the sweep has not ended.
            Damaged: a file of it cannot be read.
        """
        if not has_sweep(path):
            raise BadInput(f"{path} is no sweep (it has no {COPY}): give the --out of a sweep")
        if not (path / TRIALS_FILE).exists():
            raise BadInput(f"{path} has no {TRIALS_FILE}: the sweep has not ended: `fedray tune ... --resume`")
        self.path = path
        sweep = read_mapping(path / COPY)[1]
        self._objectives, space = read_objectives(sweep.get("objectives")), read_space(sweep.get("space"))
        self._table = read_parquet_files([path / TRIALS_FILE])[0].sort_by("number")
        try:
            self._trials = [_read_trial(path, row, modules, space) for row in self._table.to_pylist()]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise say_damaged(path / TRIALS_FILE, f"{type(error).__name__}: {error}") from None

    @classmethod
    def from_path(cls, path: str | Path, *, modules: tuple[str, ...] = ()) -> SweepResult:
        """Opens the directory of a sweep, as `fedray tune` leaves it.

        Args:
            path: the directory.
            modules: your modules that register names it uses, to import first.
        """
        import_modules(modules)
        return cls(expand_user_path("path", str(path)), modules)

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self._trials)

    def __getitem__(self, number: int) -> TrialResult:
        return self._trials[number]

    @property
    def errors(self) -> list[FedrayError]:
        """Why trials failed, in the order of their numbers; empty where none did."""
        return [trial.error for trial in self._trials if trial.error is not None]

    @property
    def summary(self) -> dict[str, Any]:
        """`summary.json`: how many trials and trainings there were, and the winners with their test scores."""
        return read_sealed(self.path / "summary.json", RESTORE)

    def get_best_result(self, metric: str | None = None, mode: str | None = None) -> TrialResult:
        """The best complete trial; the first of several that are equal.

        Args:
            metric: an objective of the sweep; None means the first.
            mode: `max` or `min`; None means the direction that the sweep searched in.

        Raises:
            BadInput: the sweep has no such objective, or there is no such mode.
            FedrayError: no trial is complete.
        """
        objective = self._find_objective(metric)
        if mode is not None and mode not in MODES:
            raise BadInput(f"mode = {quote_value(mode)}: choose max or min")
        sign = -1.0 if (objective.direction if mode is None else MODES[mode]) == "maximize" else 1.0
        done = [trial for trial in self._trials if trial.state == "complete"]
        if not done:
            raise FedrayError(f"no trial of {self.path} came to its end: see .errors")
        return min(done, key=lambda trial: (sign * trial.metrics[objective.name], trial.number))

    def get_dataframe(self) -> Any:
        """One row a trial as a pandas DataFrame: objectives and parameters have a column each.

        Where trials have several seeds or folds, `OBJECTIVE_standard_error` is there too. A searched key takes the
        place of a column of the same name, such as `rounds`.
        """
        fields = {name: self._fields(name) for name in ("values", "params")}
        known = {name for columns in fields.values() for name in columns}
        columns: dict[str, Any] = {}
        for name in self._table.column_names:
            if name == "standard_errors":
                errors = {f"{objective}_standard_error": column for objective, column in self._fields(name).items()}
                columns |= {name: column for name, column in errors.items() if column.null_count < len(column)}
            elif name in fields:
                columns |= fields[name]
            elif name not in known:
                columns[name] = self._table[name].combine_chunks()
        return pa.table(columns).to_pandas()

    def _fields(self, name: str) -> dict[str, Any]:
        """The fields of a column of structs, by name."""
        column = self._table[name].combine_chunks()
        return {each.name: column.field(each.name) for each in column.type}

    def _repr_html_(self) -> str:
        return str(self.get_dataframe().to_html(index=False, max_rows=20, float_format="{:.4g}".format, border=0))

    def _find_objective(self, metric: str | None) -> SweepObjective:
        known = {objective.name: objective for objective in self._objectives}
        if metric is None:
            return self._objectives[0]
        if metric not in known:
            remedy = suggest_nearest(metric, known, f"choose one of {', '.join(known)}")
            raise BadInput(f"metric = {quote_value(metric)} is no objective of this sweep: {remedy}")
        return known[metric]


def _read_trial(out: Path, row: Mapping[str, Any], modules: tuple[str, ...], space: Sequence[Parameter]) -> TrialResult:
    """A trial from its row of `trials.parquet`."""
    folder = row["run_directory"]
    return TrialResult(
        number=int(row["number"]),
        state=str(row["state"]),
        params=read_params(space, row["params"] or {}),
        metrics={name: value for name, value in row["values"].items() if value is not None},
        path=None if folder is None else out / folder,
        error=None if row["error"] is None else FedrayError(row["error"]),
        modules=modules,
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
    **objects: Any,
) -> SweepResult:
    """Searches for the best values of a scenario's keys, as `fedray tune` does.

    Args:
        sweep: the keys of a sweep, or the path of a sweep file (`docs/how-to/sweeps.md`).
        out: directory of the sweep; None means a temporary one, which stays until `fedray clean`.
        trials: how many trials in all; None means as many as the sweep says.
        resume: whether to go on with the sweep in `out`.
        storage: an Optuna storage URL; None means a journal file in `out`.
        address: of an existing Ray cluster; None starts one on this machine where the sweep runs on Ray.
        wait_for: what the cluster must have before the first training begins, as in `{"hpc": 32}`.
        modules: your modules that register names, which every worker imports first.
        report: whether the page of the sweep is drawn.
        progress: whether a line is printed for each finished trial, to stderr; None means in a notebook only.
        objects: none: other processes and later calls train the trials. Give your data, model or method a name with
            `fedray.register` in a module, write the name in the scenario, and pass the module.

    Raises:
        BadInput: the sweep or the directory cannot be used, or an object was passed.
        FedrayError: no trial came to its end; `SweepResult.from_path` has their errors.
    """
    if objects:
        raise BadInput(
            f"fedray.tune takes no {min(objects)}=: what is an object needs a name (fedray.register, in a module that "
            "modules= names), and keys stand in the sweep"
        )
    shown = is_in_notebook() if progress is None else progress

    def say(line: str) -> None:
        if shown:
            print(line, file=sys.stderr, flush=True)

    options: dict[str, Any] = {"storage": storage, "address": address, "wait_for": wait_for}
    options |= {"modules": tuple(modules), "report": report}
    with choose_out(out, "sweep") as folder:
        run_sweep(sweep, folder, trials=trials, resume=resume, say=say, **options)
    return SweepResult(folder, tuple(modules))
