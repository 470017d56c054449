"""A sweep's page shows every trial, or says how many it leaves out."""

from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from fedray.report import pictures
from fedray.report.read import Best
from fedray.tuning import page
from fedray.tuning.optuna_study import NOTES
from fedray.tuning.page import View
from fedray.tuning.space import read_objective, read_space


def make_view(trials: int) -> View:
    """Trials of one parameter, of which one was pruned and one failed."""
    study = optuna.create_study(direction="maximize")
    spread: dict[str, Any] = {"local.lr": optuna.distributions.FloatDistribution(0.0, 1.0)}
    for i in range(trials):
        state = {0: TrialState.PRUNED, 1: TrialState.FAIL}.get(i, TrialState.COMPLETE)
        given: dict[str, Any] = {"params": {"local.lr": i / trials}, "distributions": spread}
        given["user_attrs"] = {NOTES: {"how": "trained", "error": "the data ran out"}}
        given["value"] = i / trials if state == TrialState.COMPLETE else None
        study.add_trial(optuna.trial.create_trial(state=state, **given))
    objectives = (read_objective("", {"name": "accuracy"}),)
    done = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    space = read_space({"local.lr": {"type": "float", "low": 0.0, "high": 1.0}})
    return View(objectives, space, study, study.trials, done, [done[-1].number], {})


def test_all_trials_are_shown_with_how_they_ended_and_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    title, (head, rows), note = page._list_trials(make_view(30))
    assert (title, note, len(rows)) == ("All 30 trials, the best first", "", 30)
    assert [row[0] for row in rows] == [*(str(i) for i in range(29, 1, -1)), "0", "1"]
    assert [row[-1] for row in rows[-2:]] == ["pruned", "failed: the data ran out"]
    assert {len(row) for row in rows} == {len(head)} and isinstance(rows[0][1], Best)
    monkeypatch.setattr(page, "MOST_CELLS", 40)
    title, (_, rows), note = page._list_trials(make_view(30))
    assert (title, len(rows)) == ("The best 10 of 30 trials", 10)
    assert note.startswith("20 trials are left out here") and "all 30" in note


def test_a_target_that_one_replicate_missed_was_never_reached() -> None:
    view = make_view(3)
    wanted = (read_objective("", {"name": "rounds_to_accuracy", "target": 0.9}),)
    space: dict[str, Any] = {"local.lr": optuna.distributions.FloatDistribution(0.0, 1.0)}
    missed = optuna.trial.create_trial(value=np.inf, params={"local.lr": 0.5}, distributions=space)
    view = view._replace(objectives=wanted, trials=[missed], done=[missed])
    assert page._notes(view)[0].startswith(f"1 of the trials {page.UNMET}: ")
    assert page._list_trials(view)[1][1][0][-1] == page.UNMET
    studied = optuna.create_study(directions=["maximize", "minimize"])
    for one, other in ((0.9, np.inf), (0.8, 2.0), (0.7, 1.0)):  # a trial has a place where its own value is finite
        studied.add_trial(optuna.trial.create_trial(values=[one, other], params={"local.lr": one}, distributions=space))
    both = (read_objective("", "accuracy"), *wanted)
    view = view._replace(objectives=both, study=studied, trials=studied.trials, done=studied.trials, winners=[0, 1, 2])
    figures = [page.figure_history(view, 0), page.figure_history(view, 1), page.figure_pareto(view)]
    assert [figure and figure.get_label() for figure in figures] == [
        "Best accuracy: 90.0 %, first in trial 0", "Best rounds to accuracy 90.0 %: 1, first in trial 2",
        "3 trials that no other beats in everything (1 of them at infinity)",
    ]  # fmt: skip
    assert [row[0] for row in page._list_trials(view)[1][1]] == ["0", "1", "2"]


def test_long_names_left_no_room_for_importances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "compute_importance", lambda *_: {"method.models, model.hidden": 0.6, "local.lr": 0.4})
    long = tuple(read_objective("", {"name": name, "target": 0.5}) for name in ("bytes_to_accuracy", "seconds_to_nll"))
    figure = page.figure_importance(make_view(3)._replace(objectives=long))
    assert figure is not None
    figure.draw_without_rendering()
    assert figure.axes[0].get_position().width > 0.6


def test_curves_had_the_label_of_the_bytes_and_the_course_of_the_accuracy() -> None:
    objectives = (read_objective("", "up_bytes"), read_objective("", "accuracy"))
    view = make_view(6)._replace(objectives=objectives, curves={2: (np.arange(3.0), np.array([0.1, 0.5, 0.6]))})
    figure = page.figure_curves(view)
    assert figure is not None and figure.axes[0].get_ylabel() == "held-out accuracy"
    assert figure.get_label() == "The course of 1 trainings"  # the pruned one has no curve
    bytes_alone = view._replace(objectives=objectives[:1])
    counts = dict.fromkeys(("complete", "pruned", "failed", "trials", "trainings", "seconds_trained", "looked_up"), 0)
    assert page._cards(bytes_alone, {"winners": [{"number": 5}], **counts})[0].sub == "trial 5"  # no held-out score
    alone = page.figure_curves(bytes_alone)
    assert alone is not None and alone.axes[0].get_ylabel() == "uplink"
    wide = {2: (np.arange(3.0), np.array([np.inf, 0.5, np.nan])), 3: (np.arange(3.0), np.full(3, np.inf))}
    drawn = page.figure_curves(view._replace(curves=wide))
    assert drawn is not None and drawn.axes[0].get_ylim() == pytest.approx((0.5, 0.5), abs=1e-6)
    assert page.figure_curves(view._replace(curves={3: wide[3]})) is None


def test_long_choices_that_begin_alike_had_one_name() -> None:
    given = [{"name": "classes", "classes": number} for number in (2, 4)]
    figure, axes = pictures.make_canvas("")
    page.label_parameter(axes, read_space({"data.partition": given})[0])
    names = pictures.read_panels(figure)[0]["x"]["names"]
    assert names[0] != names[1]
