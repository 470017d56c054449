"""The headline numbers of a run, as cards at the top of its page.

Example:
    >>> score = {"accuracy": {"mean": 0.9, "sd": 0.01, "n": 3}}
    >>> run = ReadRun("one", {}, "", {}, {"metrics": score}, {}, None, None, {})
    >>> make_cards(run)[0]
    Card(label='accuracy', value='90.0 %', sub='\u00b1 1.0 % (sd of 3)')
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedray.core.text import format_bytes, format_number, format_seconds, name_score
from fedray.report import compare
from fedray.report.choices import mark_score
from fedray.report.read import ReadRun

CARD_SCORES = (
    *("accuracy", "accuracy_average", "accuracy_mean", "accuracy_max", "personal_accuracy"),
    *("rmse", "rmse_mean", "personal_rmse", "nll", "ece", "crps", "coverage_95"),
    *("conformal_coverage", "conformal_coverage_client_worst", "conformal_size", "conformal_width"),
)


class Card(NamedTuple):
    """One headline number.

    Attributes:
        label: what it is.
        value: the number with its unit.
        sub: a line below it; may be empty.
    """

    label: str
    value: str
    sub: str = ""


def make_cards(run: ReadRun) -> list[Card]:
    """Headline numbers: mean and standard deviation over the replicates and folds."""
    metrics = run.summary.get("metrics", {})
    single = run.models == 1
    shown = [name for name in CARD_SCORES if name in metrics and not (single and name.endswith(("_mean", "_max")))]
    each = [(name, *_format_mean_and_sd(metrics[name], name)) for name in shown]
    found = [Card(name_score(name, unit=True), mark_score(mean, run.summary), sd) for name, mean, sd in each]
    totals = run.summary.get("totals", {})
    for key in ("up_bytes", "down_bytes"):
        if isinstance(totals.get(key), int | float):
            sub = f"{format_bytes(totals[key] / run.worlds)} each" if run.worlds > 1 else "all clients and rounds"
            found.append(Card(name_score(key), format_bytes(totals[key]), sub))
    slowest = f"slowest of {run.worlds}" if run.worlds > 1 else "simulated devices"
    for key, sub in (("sim_seconds", slowest), ("wall_seconds", "without start-up and report")):
        if isinstance(totals.get(key), int | float):
            found.append(Card(name_score(key), format_seconds(totals[key]), sub))
    return found


def _format_mean_and_sd(entry: dict[str, Any], name: str) -> tuple[str, str]:
    """The mean, and a line with the standard deviation where there are several replicates."""
    if entry.get("mean") is None:
        return "-", "not finite"
    if entry.get("sd") is None:
        return format_number(entry["mean"], name), ""
    deviation = f"\u00b1 {compare.format_deviation(entry['sd'], name)} (sd of {entry['n']})"
    return format_number(entry["mean"], name), deviation
