"""`report.html` of a sweep, in the style of the pages of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from fedray.core import text as text_
from fedray.core.types import FloatArray
from fedray.files import plain
from fedray.report import style
from fedray.report.cards import Card
from fedray.report.pictures import NumberTable, Picture, Section, draw_pictures, pair_figures
from fedray.report.sheets import ScoreCell
from fedray.report.template import fill_template
from fedray.scenario import yaml_text
from fedray.tuning import figures, landscape
from fedray.tuning.optuna_study import trial_note
from fedray.tuning.state import SearchState
from fedray.tuning.sweep_rules import list_idle_parameters
from fedray.tuning.trial import read_histories
from fedray.tuning.view import View, format_cell_value, name_objective, name_winner, pick_course

MOST_CELLS = 4000  # of the table of trials
CURVES = 200  # trainings whose curves are drawn, the best ones
TEST = "Scores on the test set, computed once, for the winners only; the search looked at held-out data."
UNMET = "did not reach a target in every replicate and fold"
WARM = "Ringed: the winners. Darker: earlier trials."


def write_page(state: SearchState, trials: list[FrozenTrial], summary: Mapping[str, Any]) -> None:
    """Writes the page.

    Args:
        state: the sweep.
        trials: its trials.
        summary: what `results.write_results` returns.
    """
    view = make_view(state, trials, [winner["number"] for winner in summary["winners"]])
    with style.use_figure_style():
        sections = list(_sections(view))
    trials_title, trials_table, trials_note = _list_trials(view)
    page = fill_template(
        title=f"Sweep {state.sweep.name}",
        facts=_facts(state, view),
        notes=_notes(view),
        cards=_cards(view, summary),
        tables=[("Winners", _winners(view, summary), TEST), (trials_title, trials_table, trials_note)],
        sections=sections,
        runs=[],
        texts=[
            ("Sweep", yaml_text.write_yaml(dict(state.sweep.source))),
            ("Best scenario", (state.out / "best.yaml").read_text()),
            ("Summary", json.dumps(dict(summary), indent=2)),
        ],
    )
    plain.write_atomically(state.out / "report.html", page.encode())


def make_view(state: SearchState, trials: list[FrozenTrial], winners: list[int]) -> View:
    """What the pictures show, read from the study and the run directories.

    Args:
        state: the sweep.
        trials: its trials.
        winners: numbers of the winning trials.
    """
    objectives = state.sweep.objectives
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    done = [trial for trial in complete if all(math.isfinite(value) for value in trial.values)]
    trained = [t for t in trials if trial_note(t).get("how") == "trained" and trial_note(t).get("training")]
    sign = -1 if objectives[0].direction == "maximize" else 1
    trained.sort(key=lambda t: (t.number not in winners, sign * (t.values or [0.0])[0]))
    curves = {trial.number: curve for trial in trained[:CURVES] if (curve := _curve(state, trial)) is not None}
    idle = list_idle_parameters(state.sweep)
    return View(objectives, state.sweep.space, state.study, trials, done, winners, curves, idle)


def _curve(state: SearchState, trial: FrozenTrial) -> tuple[FloatArray, FloatArray] | None:
    """The metric of `pick_course` over the rounds; the mean over worlds."""
    metric = pick_course(state.sweep.objectives).metric
    worlds = read_histories(state.out / trial_note(trial)["run"])
    short = min(len(rows) for rows in worlds)
    if any(metric not in row for rows in worlds for row in rows):
        return None
    values = np.mean([[float(row[metric]) for row in rows[:short]] for rows in worlds], axis=0)
    return np.array([float(row["round"]) for row in worlds[0][:short]]), values


def _sections(view: View) -> Iterator[Section]:
    """The sections of the page."""
    several = range(len(view.objectives))
    history = [(figures.figure_history(view, i), "") for i in several]
    yield Section("How the search went", pair_figures(draw_pictures(history, "history")))
    front = [(figures.figure_pareto(view), "Numbers: trials; each is a scenario under pareto/.")]
    yield Section("What can be had together", pair_figures(draw_pictures(front, "pareto")))
    yield Section("What matters", pair_figures(_draw_landscape(view)))
    trained = sum(trial_note(trial).get("how") == "trained" for trial in view.trials)
    note = f"Held-out data, mean of the worlds. {_limit(len(view.curves), trained, 'trainings')}".strip()
    yield Section(
        "How the trainings went", pair_figures(draw_pictures([(figures.figure_curves(view), note)], "curves"))
    )


def _draw_landscape(view: View) -> Iterator[Picture]:
    """What the objectives depend on; the numbers of all but the importance are those of the trials."""
    space = len(view.space)
    notes = [_limit(n, space, "parameters") for n in (landscape.IMPORTANT, landscape.PANELS, figures.AXES)]
    importance = f"fANOVA (PED-ANOVA where a parameter is conditional). {notes[0]}".strip()
    yield from draw_pictures([(landscape.figure_importance(view), importance)], "importance")
    contour = "The two most important ones; linear between the trials, which are the dots."
    trials = [
        (landscape.figure_contour(view), contour),
        *((landscape.figure_slices(view, i), f"{WARM} {notes[1]}".strip()) for i in range(len(view.objectives))),
        (figures.figure_parallel(view), f"Brighter: better. {notes[2]}".strip()),
    ]
    yield from draw_pictures(trials, "trials", _tabulate(view))


def _limit(shown: int, all_: int, what: str) -> str:
    """What a picture leaves out; empty where it shows all."""
    return f"{shown} of {all_} {what} are drawn; trials.parquet has all." if shown < all_ else ""


def _tabulate(view: View) -> NumberTable:
    """The numbers of the parallel coordinates: each trial's parameters and values."""
    head = ["trial", *(p.key for p in view.space), *(name_objective(o) for o in view.objectives)]
    rows = [[trial.number, *(trial.params.get(p.key) for p in view.space), *trial.values] for trial in view.done]
    return NumberTable(head, [[_pack_cell(value) for value in row] for row in rows])


def _pack_cell(value: Any) -> Any:
    """What stands in the page's numbers: JSON has no infinity, which a choice may be."""
    number = value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value if number else str(value)


def _facts(state: SearchState, view: View) -> list[tuple[str, str]]:
    base = state.sweep.scenario({})
    pruner = state.sweep.pruner.name
    return [
        ("method", base.method.name),
        ("data", base.data.name),
        ("parameters", ", ".join(parameter.key for parameter in view.space)),
        ("objectives", ", ".join(f"{name_objective(o)} ({o.direction})" for o in view.objectives)),
        ("sampler", f"{state.sweep.sampler.name}, seed {state.sweep.sampler.seed}"),
        *([("pruner", pruner)] if pruner != "none" else []),
    ]


def _notes(view: View) -> list[str]:
    unmet = sum(trial.state == TrialState.COMPLETE for trial in view.trials) - len(view.done)
    failed = [trial for trial in view.trials if trial.state == TrialState.FAIL]
    notes = [f"{unmet} of the trials {UNMET}: trials.parquet has them, and the pictures do not."] if unmet else []
    if failed:
        notes.append(f"{len(failed)} trials failed; the first: {trial_note(failed[0]).get('error', '')}")
    return notes + landscape.list_idle_notes(view)


def _cards(view: View, summary: Mapping[str, Any]) -> list[Card]:
    best, name = summary["winners"][0], name_winner(view.objectives)
    name = f"best {name_objective(view.objectives[0])}" if name == "best" else name
    cards = [
        Card(
            name if i == 0 else name_objective(o),
            format_cell_value(o, best["values"][o.name]),
            f"held out, trial {best['number']}",
        )
        for i, o in enumerate(view.objectives)
    ]
    states = ", ".join(f"{summary[s]} {s}" for s in ("complete", "pruned", "failed") if summary[s])
    cards.append(Card("trials", str(summary["trials"]), states))
    cards.append(
        Card("trainings", str(summary["trainings"]), f"{text_.format_seconds(summary['seconds_trained'])} in all")
    )
    saved = f"{text_.format_seconds(summary['seconds_saved'])} saved" if summary["looked_up"] else "none shared"
    cards.append(Card("looked up", str(summary["looked_up"]), saved))
    return cards


Table = tuple[list[str], list[list[ScoreCell]]]


def _params(view: View, trial: FrozenTrial) -> list[ScoreCell]:
    found = [trial.params.get(parameter.key, "-") for parameter in view.space]
    return [ScoreCell(f"{value:.4g}" if isinstance(value, float) else str(value)) for value in found]


def _value_heads(view: View) -> list[str]:
    """The heads of the objectives' columns: each value, and its standard error where trials have some."""
    names, seen = [name_objective(objective) for objective in view.objectives], _have_errors(view)
    return [head for name in names for head in ([name, f"{name}, standard error"] if seen else [name])]


def _have_errors(view: View) -> bool:
    return any("standard_errors" in trial_note(trial) for trial in view.trials)


def _value_cells(
    view: View, values: Sequence[float | None], errors: Sequence[float | None], *, best: bool, seen: bool
) -> list[ScoreCell]:
    """The cells below `_value_heads`; `seen`: there are columns of errors."""
    cells = []
    for o, value, error in zip(view.objectives, values, errors, strict=True):
        cells.append(ScoreCell("-" if value is None else format_cell_value(o, value), best))
        if seen:
            cells.append(ScoreCell("-" if error is None or value is None else format_cell_value(o, error)))
    return cells


def _errors_of(view: View, trial: FrozenTrial) -> list[float | None]:
    """The standard error of each objective's value."""
    return list(trial_note(trial).get("standard_errors") or [None] * len(view.objectives))


def _count_ties(view: View) -> str:
    """How many trials are no more than a standard error worse than the best one; empty where nobody knows."""
    ranked = sorted(view.done, key=lambda trial: trial.values[0], reverse=view.objectives[0].direction == "maximize")
    error = _errors_of(view, ranked[0])[0] if ranked else None
    if error is None:
        return ""
    near = sum(abs(trial.values[0] - ranked[0].values[0]) <= error for trial in ranked[1:])
    tell = "is" if near == 1 else "are"
    return (
        f"{near or 'No'} of the other trials {tell} within one standard error of the best {view.objectives[0].name}; "
        "errors are over the replicates and folds, and the best of many trials is partly luck."
    )


def _winners(view: View, summary: Mapping[str, Any]) -> Table:
    test = [
        n
        for n in ("accuracy", "personal_accuracy", "personal_worst", "rmse", "nll")
        if n in summary["winners"][0]["test"]
    ]
    head = [
        "trial",
        *_value_heads(view),
        *(p.key for p in view.space),
        *(f"test {text_.name_score(n)}" for n in test),
    ]
    rows, trials = [], {trial.number: trial for trial in view.trials}
    for winner in summary["winners"]:
        found = ([winner[what][o.name] for o in view.objectives] for what in ("values", "standard_errors"))
        values = _value_cells(view, *found, best=True, seen=_have_errors(view))
        scores = [ScoreCell(text_.format_number(winner["test"][n], n) if n in winner["test"] else "-") for n in test]
        rows.append([ScoreCell(str(winner["number"])), *values, *_params(view, trials[winner["number"]]), *scores])
    return head, rows


def _list_trials(view: View) -> tuple[str, Table, str]:
    """Title, table and note of the trials: the complete ones, the best first, then the others by their numbers."""
    head = ["trial", *_value_heads(view), *(p.key for p in view.space), "how it ended"]
    sign = -1 if view.objectives and view.objectives[0].direction == "maximize" else 1
    ranked = sorted(view.done, key=lambda t: (sign * t.values[0], t.number))
    done, first = {trial.number for trial in ranked}, name_winner(view.objectives)
    every = [*ranked, *(trial for trial in view.trials if trial.number not in done)]
    most, seen = max(1, MOST_CELLS // len(head)), _have_errors(view)
    rows = []
    for trial in every[:most]:
        values = trial.values if trial.number in done else [None] * len(view.objectives)
        cells = _value_cells(view, values, _errors_of(view, trial), best=trial.number in view.winners, seen=seen)
        rows.append([ScoreCell(str(trial.number)), *cells, *_params(view, trial), ScoreCell(_tell_end(trial))])
    if len(every) <= most:
        return f"All {len(every)} trials, the {first} first", (head, rows), _count_ties(view)
    left = len(every) - most
    note = f"{left} trials are left out here, the worst and those without a value: trials.parquet has all {len(every)}."
    note = f"{_count_ties(view)} {note}".strip()
    title = f"{most} of {len(every)} trials"
    return f"The best {title}" if first == "best" else f"{title}, the {first} first", (head, rows), note


def _tell_end(trial: FrozenTrial) -> str:
    note = trial_note(trial)
    if trial.state == TrialState.PRUNED:
        return f"pruned after step {trial.last_step}" if trial.last_step is not None else "pruned"
    if trial.state == TrialState.FAIL:
        return f"failed: {note.get('error', 'no message')}"
    if trial.state != TrialState.COMPLETE:
        return trial.state.name.lower()
    if not all(math.isfinite(value) for value in trial.values):
        return UNMET
    return f"looked up in {note.get('run', '')}" if note.get("how") == "looked up" else "trained"
