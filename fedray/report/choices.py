"""Scores of a round that the test rows chose: how they are marked, and what is said of them.

Example:
    >>> summary = {"chosen_on_test": {"stop.metric": "accuracy"}}
    >>> is_chosen(summary), mark_score("90.0 %", summary)
    (True, '90.0 % \u2020')
    >>> tell_choices(summary)
    ['\u2020: of a round that the test rows chose (stop.metric = accuracy), so that it is too good.']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.report.read import ReadRun

MARK = "\u2020"
BEST = "checkpoint.best"  # it chooses models that are kept, and not the end of a run


def is_chosen(summary: Mapping[str, Any]) -> bool:
    """Whether a run ended in a round that its test rows chose, so that all its final scores are too good."""
    return any(key != BEST for key in _read_choices(summary))


def mark_score(text: str, summary: Mapping[str, Any]) -> str:
    """A final score as text, with a mark where the test rows chose its round."""
    return f"{text} {MARK}" if is_chosen(summary) else text


def tell_choices(summary: Mapping[str, Any], whose: str = "") -> list[str]:
    """What the mark of a run says, and whether its best round was chosen so.

    Args:
        summary: of the run.
        whose: the run, where there are several.
    """
    found, of = _read_choices(summary), f" of {whose}" if whose else ""
    ends = ", ".join(f"{key} = {name}" for key, name in found.items() if key != BEST)
    lines = [f"{MARK}: of a round{of} that the test rows chose ({ends}), so that it is too good."] if ends else []
    if BEST in found:
        lines.append(f"The best round{of} was chosen by the test rows ({BEST} = {found[BEST]}): its score is too good.")
    return lines


def list_choice_notes(runs: Sequence[ReadRun]) -> list[str]:
    """What must be known of runs whose rounds were chosen by the test rows."""
    return [line for run in runs for line in tell_choices(run.summary, run.name)]


def list_chosen(runs: Sequence[ReadRun]) -> frozenset[str]:
    """The names of the runs whose final scores are marked."""
    return frozenset(run.name for run in runs if is_chosen(run.summary))


def _read_choices(summary: Mapping[str, Any]) -> Mapping[str, str]:
    found = summary.get("chosen_on_test")
    return found if isinstance(found, Mapping) else {}
