"""What a sweep leaves in its directory: the table of trials, the winners as scenarios, the summary, the page."""

from __future__ import annotations

from typing import Any

import optuna
import pyarrow as pa
from optuna.trial import FrozenTrial, TrialState

from fedray.core import files
from fedray.core.errors import FedrayError
from fedray.scenario.loader import dump_scenario
from fedray.storage import summary as summary_
from fedray.storage.tables import write_parquet
from fedray.tuning.optuna_study import trial_note
from fedray.tuning.search import SearchState
from fedray.tuning.space import Parameter, format_value
from fedray.tuning.trial import score_models

WORDS = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def write_results(course: SearchState) -> dict[str, Any]:
    """Writes everything and returns the summary.

    Raises:
        FedrayError: no trial came to its end.
    """
    trials = course.study.get_trials(deepcopy=False)
    write_trials(course, trials)
    won = find_winners(course.study)
    if not won:
        reasons = [trial_note(trial)["error"] for trial in trials if "error" in trial_note(trial)]
        raise FedrayError(f"no trial came to its end: {reasons[0] if reasons else 'all were pruned'}")
    summary = {**count_trials(course, trials), "winners": [_won(course, trial) for trial in won]}
    write_scenarios(course, won)
    files.write_json(course.out / "summary.json", summary)
    from fedray.tuning.page import write_page

    write_page(course, trials, summary)
    return summary


def find_winners(study: optuna.Study) -> list[FrozenTrial]:
    """The best trial; with several objectives the Pareto front, the first objective's best in front."""
    if not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        return []
    if len(study.directions) == 1:
        return [study.best_trial]
    sign = -1 if study.directions[0] == optuna.study.StudyDirection.MAXIMIZE else 1
    found: dict[str, FrozenTrial] = {}
    for trial in sorted(study.best_trials, key=lambda t: (sign * t.values[0], t.number)):
        found.setdefault(repr(sorted(trial.params.items())), trial)  # a repeated trial wins once
    return list(found.values())


def count_trials(course: SearchState, trials: list[FrozenTrial]) -> dict[str, Any]:
    """How many trials there were, and what looking up has saved."""
    how = [trial_note(trial).get("how") for trial in trials]
    states = [WORDS.get(trial.state, "running") for trial in trials]
    return {
        "name": course.sweep.name,
        "trials": len(trials),
        **{word: states.count(word) for word in WORDS.values()},
        "trainings": how.count("trained"),
        "looked_up": how.count("looked up"),
        "seconds_trained": sum(float(trial_note(trial).get("seconds", 0.0)) for trial in trials),
        "seconds_saved": sum(float(trial_note(trial).get("saved", 0.0)) for trial in trials),
        "rounds_trained": sum(int(trial_note(trial).get("rounds", 0)) for trial in trials),
    }


def summary_line(summary: dict[str, Any]) -> str:
    """The summary in one line.

    Example:
        >>> summary_line({"trials": 50, "complete": 50, "pruned": 0, "failed": 0, "trainings": 1, "looked_up": 49,
        ...       "seconds_trained": 4.0, "seconds_saved": 196.0})
        '50 trials: 50 complete; 1 training (4.0 s), 49 looked up (196.0 s of training saved)'
    """
    states = ", ".join(f"{summary[word]} {word}" for word in ("complete", "pruned", "failed") if summary[word])
    many = "training" if summary["trainings"] == 1 else "trainings"
    return (
        f"{summary['trials']} trials: {states}; {summary['trainings']} {many} ({summary['seconds_trained']:.1f} s), "
        f"{summary['looked_up']} looked up ({summary['seconds_saved']:.1f} s of training saved)"
    )


def write_trials(course: SearchState, trials: list[FrozenTrial]) -> None:
    """`trials.parquet`: one row a trial; values and params are structs with a field each."""
    rows = []
    names = [objective.name for objective in course.sweep.objectives]
    for trial in trials:
        attrs = trial_note(trial)
        values = trial.values if trial.state == TrialState.COMPLETE and trial.values else [None] * len(names)
        rows.append(
            {
                "number": trial.number,
                "state": WORDS.get(trial.state, "running"),
                "values": dict(zip(names, values, strict=True)),
                "params": {p.key: _cell(p, trial.params.get(p.key)) for p in course.sweep.space},
                "run_directory": attrs.get("run") or None,
                "how": attrs.get("how"),
                "rounds": attrs.get("rounds"),
                "training_seconds": attrs.get("seconds"),
                "seconds_saved": attrs.get("saved"),
                "error": attrs.get("error"),
            }
        )
    write_parquet(course.out / "trials.parquet", pa.Table.from_pylist(rows, schema=_schema(course)))


def _cell(parameter: Parameter, value: Any) -> Any:
    return value if value is None or _type(parameter) != pa.string() or isinstance(value, str) else format_value(value)


def _type(parameter: Parameter) -> Any:
    """The column type of a parameter: that of all its choices, or text where they differ."""
    kinds = {type(choice) for choice in parameter.choices}
    if parameter.kind == "int" or kinds == {int}:
        return pa.int64()
    if parameter.kind == "float" or (kinds and kinds <= {int, float}):
        return pa.float64()
    return pa.bool_() if kinds == {bool} else pa.string()


def _schema(course: SearchState) -> pa.Schema:
    return pa.schema(
        [
            ("number", pa.int64()),
            ("state", pa.string()),
            ("values", pa.struct([(objective.name, pa.float64()) for objective in course.sweep.objectives])),
            ("params", pa.struct([(parameter.key, _type(parameter)) for parameter in course.sweep.space])),
            ("run_directory", pa.string()),
            ("how", pa.string()),
            ("rounds", pa.int64()),
            ("training_seconds", pa.float64()),
            ("seconds_saved", pa.float64()),
            ("error", pa.string()),
        ]
    )


def _won(course: SearchState, trial: FrozenTrial) -> dict[str, Any]:
    """A winner: its values, and its scores on the test set, which nothing has looked at before."""
    scenario = course.sweep.scenario(trial.params)
    folder = course.out / trial_note(trial)["run"]
    known = next((t for t in course.trainings.values() if t.run == trial_note(trial)["run"]), None)
    replicate = scenario.seed - known.seed if known is not None and known.seeds > 1 else None
    rows = score_models(folder, scenario, course.own, replicate, test=True)
    test = {k: v["mean"] for k, v in summary_.pool_metrics(rows).items() if not k.startswith("hold_out_")}  # type: ignore[arg-type]
    names = [objective.name for objective in course.sweep.objectives]
    return {
        "number": trial.number,
        "values": dict(zip(names, trial.values, strict=True)),
        "params": dict(trial.params),
        "run_directory": trial_note(trial)["run"],
        "test": test,
    }


def write_scenarios(course: SearchState, won: list[FrozenTrial]) -> None:
    """`best.yaml`, and with several objectives the whole front under `pareto/`."""
    files.write_atomically(course.out / "best.yaml", _text(course, won[0]).encode())
    if len(course.sweep.objectives) > 1:
        folder = course.out / "pareto"
        folder.mkdir(exist_ok=True)
        for old in folder.glob("[0-9]*.yaml"):
            old.unlink()
        for trial in won:
            files.write_atomically(folder / f"{trial.number:05d}.yaml", _text(course, trial).encode())


def _text(course: SearchState, trial: FrozenTrial) -> str:
    """A winner as a scenario file that runs as it stands."""
    names = [objective.name for objective in course.sweep.objectives]
    values = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, trial.values, strict=True))
    scenario = course.sweep.scenario(trial.params)
    return (
        f"# Trial {trial.number} of the sweep {course.sweep.name}: {values} (held-out data).\n"
        f"# data.hold_out is the sweep's, so that this run repeats the trial: 0 trains on all the training data.\n"
        f"{dump_scenario(scenario)}"
    )
