"""`report.html` of a sweep, in the style of the pages of runs.

Example:
    >>> import optuna
    >>> view = View((), (), optuna.create_study(), [], [], [], {})
    >>> [section.pictures for section in _sections(view)]  # no trial, no picture
    [[], [], [], []]
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from fedray.core import text as text_
from fedray.core.types import FloatArray
from fedray.files import plain
from fedray.report import style
from fedray.report.cards import Card
from fedray.report.page import fill_template
from fedray.report.pictures import Section, draw_pictures, pair_figures
from fedray.report.sheets import ScoreCell
from fedray.scenario import yaml_text
from fedray.tuning import figures, landscape
from fedray.tuning.optuna_study import trial_note
from fedray.tuning.state import SearchState
from fedray.tuning.trial import read_histories
from fedray.tuning.view import View, format_cell_value, name_objective

SHOWN = 15  # trials of the table
CURVES = 200  # trainings whose curves are drawn, the best ones
TEST = "Scores on the test set, computed once, for the winners only; the search looked at held-out data."
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
    page = fill_template(
        title=f"Sweep {state.sweep.name}",
        facts=_facts(state, view),
        notes=_notes(view),
        cards=_cards(view, summary),
        tables=[("Winners", _winners(view, summary), TEST), ("Trials, the best first", _trials(view), "")],
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
    return View(objectives, state.sweep.space, state.study, trials, done, winners, curves)


def _curve(state: SearchState, trial: FrozenTrial) -> tuple[FloatArray, FloatArray] | None:
    """The first objective that is read at every round, over the rounds; the mean over worlds."""
    metric = next((o.metric for o in state.sweep.objectives if o.kind != "total"), state.sweep.objectives[0].metric)
    worlds = read_histories(state.out / trial_note(trial)["run"])
    short = min(len(rows) for rows in worlds)
    if any(metric not in row for rows in worlds for row in rows):
        return None
    values = np.mean([[float(row[metric]) for row in rows[:short]] for rows in worlds], axis=0)
    return np.array([float(row["round"]) for row in worlds[0][:short]]), values


def _sections(view: View) -> Any:
    """The sections of the page."""
    several = range(len(view.objectives))
    yield Section(
        "How the search went",
        pair_figures(draw_pictures([(figures.figure_history(view, i), "") for i in several], "history")),
    )
    front = [(figures.figure_pareto(view), "Numbers: trials; each is a scenario under pareto/.")]
    yield Section("What can be had together", pair_figures(draw_pictures(front, "pareto")))
    what = [
        (landscape.figure_importance(view), "fANOVA (PED-ANOVA where a parameter is conditional)."),
        (landscape.figure_contour(view), "The two most important ones; linear between the trials, which are the dots."),
        *((landscape.figure_slices(view, i), WARM) for i in several),
        (figures.figure_parallel(view), "Brighter: better."),
    ]
    yield Section("What matters", pair_figures(draw_pictures(what, "what")))
    yield Section(
        "How the trainings went",
        pair_figures(draw_pictures([(figures.figure_curves(view), "Held-out data, mean of the worlds.")], "curves")),
    )


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
    notes = (
        [f"{unmet} trials never reached their target: they are in trials.parquet, not in the pictures."]
        if unmet
        else []
    )
    if failed:
        notes.append(f"{len(failed)} trials failed; the first: {trial_note(failed[0]).get('error', '')}")
    return notes


def _cards(view: View, summary: Mapping[str, Any]) -> list[Card]:
    best = summary["winners"][0]
    cards = [
        Card(
            f"best {name_objective(o)}" if i == 0 else name_objective(o),
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


def _params(view: View, trial: Any) -> list[ScoreCell]:
    given = trial["params"] if isinstance(trial, Mapping) else trial.params
    found = [given.get(parameter.key, "-") for parameter in view.space]
    return [ScoreCell(f"{value:.4g}" if isinstance(value, float) else str(value)) for value in found]


def _winners(view: View, summary: Mapping[str, Any]) -> Table:
    test = [
        n
        for n in ("accuracy", "personal_accuracy", "personal_worst", "rmse", "nll")
        if n in summary["winners"][0]["test"]
    ]
    head = [
        "trial",
        *(name_objective(o) for o in view.objectives),
        *(p.key for p in view.space),
        *(f"test {text_.name_score(n)}" for n in test),
    ]
    rows = []
    for winner in summary["winners"]:
        values = [ScoreCell(format_cell_value(o, winner["values"][o.name]), best=True) for o in view.objectives]
        scores = [ScoreCell(text_.format_number(winner["test"][n], n) if n in winner["test"] else "-") for n in test]
        rows.append([ScoreCell(str(winner["number"])), *values, *_params(view, winner), *scores])
    return head, rows


def _trials(view: View) -> Table:
    head = ["trial", *(name_objective(o) for o in view.objectives), *(p.key for p in view.space), "answered by"]
    sign = -1 if view.objectives[0].direction == "maximize" else 1
    rows = []
    for trial in sorted(view.done, key=lambda t: (sign * t.values[0], t.number))[:SHOWN]:
        values = [
            ScoreCell(format_cell_value(o, v), trial.number in view.winners)
            for o, v in zip(view.objectives, trial.values, strict=True)
        ]
        how = trial_note(trial).get("run", "") if trial_note(trial).get("how") == "looked up" else "its own training"
        rows.append([ScoreCell(str(trial.number)), *values, *_params(view, trial), ScoreCell(how)])
    return head, rows
