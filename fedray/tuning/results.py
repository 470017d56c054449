"""What a sweep leaves in its directory: the table of trials, the winners as scenarios, the summary, the page.

Example:
    >>> study = optuna.create_study(direction="maximize")
    >>> for value in (0.5, 0.9, 0.7):
    ...     study.add_trial(optuna.create_trial(value=value))
    >>> [trial.number for trial in find_winners(study)]
    [1]
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import optuna
import pyarrow as pa
from optuna.trial import FrozenTrial, TrialState

from fedray.core.errors import FedrayError
from fedray.files import plain
from fedray.files.columns import table_schema
from fedray.scenario.nested import expand, merge_keys
from fedray.scenario.sparse import drop_defaults
from fedray.scenario.yaml_text import write_yaml
from fedray.storage import summary as summary_
from fedray.storage.tables import write_parquet
from fedray.tuning.optuna_study import trial_note
from fedray.tuning.parameter import Parameter, Values, format_value
from fedray.tuning.search import WORDS
from fedray.tuning.space import to_overrides
from fedray.tuning.state import SearchState
from fedray.tuning.trial import score_models

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
        summary["first_winner"] = _name_first(state)
    write_scenarios(state, winners)
    plain.write_json(state.out / "summary.json", summary)
    if report:
        log.info("drawing the report")
        from fedray.tuning.page import write_page

        write_page(state, trials, summary)
    return summary


def find_winners(study: optuna.Study) -> list[FrozenTrial]:
    """The best trial, the first of several that are equal; or the Pareto front, the first objective's best in front."""
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
    rows = []
    names = [objective.name for objective in state.sweep.objectives]
    for trial in trials:
        note = trial_note(trial)
        values = trial.values if trial.state == TrialState.COMPLETE and trial.values else [None] * len(names)
        rows.append(
            {
                "number": trial.number,
                "state": WORDS.get(trial.state, "running"),
                "values": dict(zip(names, values, strict=True)),
                "standard_errors": dict(zip(names, note.get("standard_errors") or [None] * len(names), strict=True)),
                "params": _cells(state.sweep.space, trial.params),
                "run_directory": note.get("run") or None,
                "how": note.get("how"),
                "rounds": note.get("rounds"),
                "training_seconds": note.get("seconds"),
                "seconds_saved": note.get("saved"),
                "error": note.get("error"),
            }
        )
    write_parquet(state.out / "trials.parquet", pa.Table.from_pylist(rows, schema=_schema(state)))


def _cells(space: Sequence[Parameter], params: Values) -> dict[str, Any]:
    """The values of a trial by column; `points.read_params` reads them."""
    types, cells = _types(space), dict[str, Any]()
    for parameter in space:
        value = params.get(parameter.key)
        is_text = types[parameter.column] == pa.string() and not isinstance(value, str | None)
        if value is not None or parameter.column not in cells:
            cells[parameter.column] = format_value(value) if is_text else value
    return cells


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


def _schema(state: SearchState) -> pa.Schema:
    values = pa.struct([(objective.name, pa.float64()) for objective in state.sweep.objectives])
    params = pa.struct(list(_types(state.sweep.space).items()))
    return table_schema("trials", values=values, standard_errors=values, params=params)


def _describe_winner(state: SearchState, trial: FrozenTrial) -> dict[str, Any]:
    """A winner: its values, and its scores on the test set, which nothing has looked at before."""
    scenario = state.sweep.scenario(trial.params)
    folder = state.out / trial_note(trial)["run"]
    training = next((one for one in state.trainings.values() if one.run == trial_note(trial)["run"]), None)
    replicate = scenario.seed - training.seed if training is not None and training.seeds > 1 else None
    rows = score_models(folder, scenario, state.own, replicate, test=True)
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
    return (
        f"{_tell_first(state) if first else ''}"
        f"# Trial {trial.number} of the sweep {state.sweep.name}: {values} (held-out data).\n"
        f"# data.hold_out is the sweep's, so that this run repeats the trial: 0 trains on all the training data.\n"
        f"{write_yaml(drop_defaults(scenario, given))}"
    )


def _tell_first(state: SearchState) -> str:
    """A comment of `best.yaml`, where there are several objectives."""
    return f"# The {_name_first(state)} of the Pareto front (pareto/); no trial is best in everything.\n"


def _name_first(state: SearchState) -> str:
    """What the first winner is."""
    from fedray.tuning.view import name_winner  # matplotlib is slow to import

    return name_winner(state.sweep.objectives)
