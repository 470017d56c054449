"""A sweep from its file to its directory: what `fedray tune` does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pyarrow as pa
from optuna.trial import FrozenTrial, TrialState

from fedray.assembly.identity import describe_study
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput, FedrayError
from fedray.files import plain
from fedray.files.tables import table_schema
from fedray.own_code.user_code import import_modules
from fedray.process.session import current_ending
from fedray.runtime.environment import find_address, prepare_process, refuse_unused_wait
from fedray.scenario import yaml_text
from fedray.scenario.loader import drop_defaults
from fedray.scenario.nested import expand, merge_keys
from fedray.scenario.yaml_text import write_yaml
from fedray.storage import directory, identity
from fedray.storage import summary as summary_
from fedray.storage.tables import write_parquet
from fedray.tuning import optuna_study
from fedray.tuning.objectives import name_winner
from fedray.tuning.optuna_study import trial_note
from fedray.tuning.places import COPY, JOURNAL, TRIALS, has_sweep, has_trials, refuse_taken_sweep
from fedray.tuning.search import WORDS, Say, SearchState, count_planned_trials, run_search
from fedray.tuning.space import Parameter, check_producible, format_value, to_overrides
from fedray.tuning.sweep import Sweep, read_sweep
from fedray.tuning.trial import make_workers, refuse_idle_actors, score_models

# ---------------------------------------------------------------------------------------------------------------------
# What a sweep leaves in its directory: the table of trials, the winners as scenarios, the summary, the page.

log = logging.getLogger("fedray")


def write_results(state: SearchState, *, report: bool = True) -> dict[str, Any]:
    """Writes everything and returns the summary.

    Args:
        state: of the search.
        report: whether the page is drawn.

    Raises:
        FedrayError: no trial came to its end.
    """
    trials = state.study.get_trials(deepcopy=False)
    write_trials(state, trials)
    winners = find_winners(state.study)
    if not winners:
        reasons = [trial_note(trial)["error"] for trial in trials if "error" in trial_note(trial)]
        raise FedrayError(f"no trial came to its end: {reasons[0] if reasons else 'all were pruned'}")
    summary = {**count_trials(state, trials), "winners": [_describe_winner(state, trial) for trial in winners]}
    if len(state.sweep.objectives) > 1:
        summary["first_winner"] = name_winner(state.sweep.objectives)
    write_scenarios(state, winners)
    plain.write_json(state.out / "summary.json", summary)
    if report:
        log.info("drawing the report")
        from fedray.tuning.page import write_page

        write_page(state, trials, summary)
    return summary


def find_winners(study: optuna.Study) -> list[FrozenTrial]:
    """The best trial, the first of several that are equal; or the Pareto front, the first objective's best in front.

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
    sign = -1 if study.directions[0] == optuna.study.StudyDirection.MAXIMIZE else 1
    if len(study.directions) == 1:  # of equal ones the first; storages give any of them
        return [min(complete, key=lambda trial: (sign * trial.values[0], trial.number))]
    found: dict[str, FrozenTrial] = {}
    for trial in sorted(study.best_trials, key=lambda t: (sign * t.values[0], t.number)):
        found.setdefault(repr(sorted(trial.params.items())), trial)  # a repeated trial wins once
    return list(found.values())


def count_trials(state: SearchState, trials: list[FrozenTrial]) -> dict[str, Any]:
    """How many trials there were, and what looking up has saved."""
    notes = [trial_note(trial) for trial in trials]
    answers = [note.get("how") for note in notes]
    states = [WORDS.get(trial.state, "running") for trial in trials]
    return {
        "name": state.sweep.name,
        "trials": len(trials),
        **{word: states.count(word) for word in WORDS.values()},
        "trainings": answers.count("trained"),
        "looked_up": answers.count("looked up"),
        "seconds_trained": sum(float(note.get("seconds", 0.0)) for note in notes),
        "seconds_saved": sum(float(note.get("saved", 0.0)) for note in notes),
        "rounds_trained": sum(int(note.get("rounds", 0)) for note in notes),
    }


def describe_summary(summary: dict[str, Any]) -> str:
    """The summary in one line.

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


def write_trials(state: SearchState, trials: list[FrozenTrial]) -> None:
    """`trials.parquet`: one row a trial; values and params are structs with a field each."""
    rows, types = [], _types(state.sweep.space)
    names = [objective.name for objective in state.sweep.objectives]
    for trial in trials:
        note, cells = trial_note(trial), dict[str, Any]()
        for parameter in state.sweep.space:  # by column; `space.read_params` reads them
            value = trial.params.get(parameter.key)
            is_text = types[parameter.column] == pa.string() and not isinstance(value, str | None)
            if value is not None or parameter.column not in cells:
                cells[parameter.column] = format_value(value) if is_text else value
        values = trial.values if trial.state == TrialState.COMPLETE and trial.values else [None] * len(names)
        rows.append(
            {
                "number": trial.number,
                "state": WORDS.get(trial.state, "running"),
                "values": dict(zip(names, values, strict=True)),
                "standard_errors": dict(zip(names, note.get("standard_errors") or [None] * len(names), strict=True)),
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


def _types(space: Sequence[Parameter]) -> dict[str, Any]:
    """The type of each column: that of all values but None, or text where they differ."""
    kinds: dict[str, set[type]] = {}
    for parameter in space:
        given: set[type] = {type(choice) for choice in parameter.choices if choice is not None}
        ranges: dict[str, set[type]] = {"int": {int}, "float": {float}}
        kinds.setdefault(parameter.column, set()).update(given | ranges.get(parameter.kind, set()))
    known = {frozenset({int}): pa.int64(), frozenset({bool}): pa.bool_()}
    known |= dict.fromkeys((frozenset({float}), frozenset({int, float})), pa.float64())
    return {column: known.get(frozenset(found), pa.string()) for column, found in kinds.items()}


def _describe_winner(state: SearchState, trial: FrozenTrial) -> dict[str, Any]:
    """A winner: its values, and its scores on the test set, which nothing has looked at before."""
    scenario = state.sweep.scenario(trial.params)
    folder = state.out / trial_note(trial)["run"]
    rows = score_models(folder, scenario, state.own, test=True)
    test = {k: v["mean"] for k, v in summary_.pool_metrics(rows).items() if not k.startswith("hold_out_")}
    names = [objective.name for objective in state.sweep.objectives]
    return {
        "number": trial.number,
        "values": dict(zip(names, trial.values, strict=True)),
        "standard_errors": dict(
            zip(names, trial_note(trial).get("standard_errors") or [None] * len(names), strict=True)
        ),
        "params": to_overrides(state.sweep.space, trial.params),
        "run_directory": trial_note(trial)["run"],
        "test": test,
    }


def write_scenarios(state: SearchState, winners: list[FrozenTrial]) -> None:
    """`best.yaml`, and with several objectives the whole front under `pareto/`."""
    several = len(state.sweep.objectives) > 1
    plain.write_atomically(state.out / "best.yaml", _write_text(state, winners[0], first=several).encode())
    if several:
        folder = state.out / "pareto"
        folder.mkdir(exist_ok=True)
        for old in folder.glob("[0-9]*.yaml"):
            old.unlink()
        for trial in winners:
            plain.write_atomically(folder / f"{trial.number:05d}.yaml", _write_text(state, trial).encode())


def _write_text(state: SearchState, trial: FrozenTrial, *, first: bool = False) -> str:
    """A winner as a scenario file that runs as it stands; `first`: it is the first of a front of several."""
    names = [objective.name for objective in state.sweep.objectives]
    values = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, trial.values, strict=True))
    scenario, space = state.sweep.scenario(trial.params), state.sweep.space
    given = merge_keys(state.sweep.base, expand(to_overrides(space, trial.params)))
    top = (
        f"# The {name_winner(state.sweep.objectives)} of the Pareto front (pareto/); no trial is best in everything.\n"
    )
    return (
        f"{top if first else ''}"
        f"# Trial {trial.number} of the sweep {state.sweep.name}: {values} (held-out data).\n"
        f"# data.hold_out is the sweep's, so that this run repeats the trial: 0 trains on all the training data.\n"
        f"{write_yaml(drop_defaults(scenario, given))}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# A sweep from its file to its directory: what `fedray tune` does.

CHANGEABLE = {"trials", "jobs", "trial", "together"}  # may differ when a sweep is resumed; the last is of old sweeps


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
    if resume := resume and has_sweep(folder):
        identity.refuse_missing_names(folder)
    sweep = read_sweep(source)
    base = sweep.scenario({})
    refuse_unused_wait(wait_for, address := find_address(base.runtime, address))
    refuse_idle_actors(sweep, base, address)
    log.info("reading the data")
    study = build_study(base, own)
    check_producible(sweep.objectives, study.classes, base.data.name, study.evaluation.metrics)
    limit, points = count_planned_trials(sweep, trials)
    journal = folder.absolute() / JOURNAL
    optuna_study.check_vacant(storage, sweep.name, resume=resume)  # before anything is written
    current_ending().advise("the same command with --resume goes on", needs=folder / COPY)
    _make_directory(sweep, folder, resume, journal if storage is None else None)
    with directory.lock_run_directory(folder) as confirm_place:
        identity.confirm_digests(folder, describe_study(base, own, study), fresh=not (begun := has_trials(folder)))
        optuna_study.mend_journal(journal)
        ages = base.rounds // base.method.models
        location = optuna_study.StudyLocation(storage or str(journal), sweep.name, sweep.pruner, ages)
        with optuna_study.explain_storage(location.storage):
            trials_of_sweep = optuna_study.start_study(sweep, location, resume=resume, begun=begun)
            state = SearchState(sweep, folder.absolute(), trials_of_sweep, location, own, limit, points, say)
            log.info("training the trials")
            try:
                how: dict[str, Any] = {"actors": sweep.actors, "wait_for": wait_for}
                with make_workers(sweep.jobs, base, address, own, state.out, **how) as submit:
                    run_search(state, submit, confirm_place)
            except KeyboardInterrupt:
                raise FedrayError(f"interrupted; `fedray tune ... --out {state.out} --resume` goes on") from None
            return write_results(state, report=report)


def _make_directory(sweep: Sweep, folder: Path, resume: bool, journal: Path | None) -> None:
    """Makes the sweep's directory, or checks that it holds this very sweep."""
    copy = folder / COPY
    refuse_taken_sweep(folder, resume=resume)
    if copy.is_file():
        before, now = yaml_text.read_mapping(copy)[1], dict(sweep.source)
        if any(before.get(key) != now.get(key) for key in {*before, *now} - CHANGEABLE):
            raise BadInput(f"--out {folder} holds another sweep (see its {COPY}): choose another directory")
        if journal is None and (folder / JOURNAL).is_file():
            raise BadInput(f"{folder} keeps its study in {JOURNAL}: leave out --storage")
    else:
        plain.make_parent(copy)
        plain.write_atomically(copy, yaml_text.write_yaml(dict(sweep.source)).encode())
    (folder / TRIALS).mkdir(exist_ok=True)
    if journal is not None:
        journal.touch()
