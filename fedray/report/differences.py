"""What runs differ by: paired differences over the seeds that they share, as a picture and a table.

Example:
    >>> format_difference(RunPair("accuracy", "b", "a", 0.9, 0.88, PairedDifference(0.02, 0.01, 0.03, 5, "seeds")))
    '+2.0 points (95 %: +1.0 to +3.0, 5 seeds)'
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedray.core.text import format_digits, is_share, name_score
from fedray.metrics.names import lower_is_better
from fedray.metrics.paired import PairedDifference
from fedray.report import style
from fedray.report.choices import MARK, list_chosen
from fedray.report.compare import COMPARED_METRICS, list_compared_metrics
from fedray.report.pairs import RunPair, compare_with_first
from fedray.report.read import ReadRun
from fedray.report.readings import find_headline, name_compared
from fedray.report.sheets import ScoreCell

MOST_BARS = 40  # runs in the picture
SHOWN_METRICS = (
    *("accuracy", "personal_accuracy", "rmse", "personal_rmse", "nll", "brier", "ece", "crps"),
    *("conformal_size", "conformal_width"),
)


def figure_differences(runs: list[ReadRun]) -> Figure | None:
    """The paired difference of the headline metric, of every run from the first one, with its interval."""
    metric = find_headline(runs)
    pairs = [pair for pair in compare_with_first(runs, [metric]) if pair.difference][:MOST_BARS]
    if not pairs or not any(pair.difference and pair.difference.n > 1 for pair in pairs):
        return None
    size = (style.WIDE, 1.3 + 0.36 * len(pairs))
    figure, axes = style.make_canvas(tell_difference(pairs[0]) if len(pairs) == 1 else tell_all(pairs), size=size)
    factor, unit = (100.0, "points") if is_share(metric) else (1.0, "")
    place = np.arange(len(pairs))[::-1]
    for y, pair in zip(place, pairs, strict=True):
        found = pair.difference
        if found is not None:
            color = style.ACCENT if found.differs else style.GREY
            ends = [factor * found.low, factor * found.high]
            name = f"_{pair.run}, {count_pairs(found)}"
            if not found.missing_interval:
                axes.plot(ends, [y, y], color=color, linewidth=2.4, label=f"{name}: interval")
            axes.plot([factor * found.mean], [y], "o", color=color, markersize=7, label=name)
    axes.axvline(0, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    labels = [f"{pair.run} ({count_pairs(pair.difference)})" for pair in pairs if pair.difference is not None]
    axes.set_yticks(place, labels)
    axes.set_ylim(-0.6, len(pairs) - 0.4)
    better = "left" if lower_is_better(metric) else "right"
    text = f"{name_compared(runs, metric, unit=True)}: difference from {pairs[0].baseline}"
    axes.set_xlabel(f"{text}{f' ({unit})' if unit else ''}; better to the {better}")
    style.draw_grid(axes, "x")
    return figure


def make_difference_table(runs: list[ReadRun]) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: every score that a run shares with the first one, and the paired difference."""
    first = runs[0].name
    head = ["score", "run", "its mean", f"mean of {first}", "difference", "95 % interval", "pairs"]
    rows, own = [], [name for name in list_compared_metrics(runs) if name not in COMPARED_METRICS]
    shown = dict.fromkeys([find_headline(runs), *SHOWN_METRICS, *own])
    for pair in (pair for metric in shown for pair in compare_with_first(runs, [metric])):
        if pair.difference is not None:
            label = name_compared(runs, pair.metric, unit=True)
            rows.append(make_pair_row(label, pair, pair.difference, list_chosen(runs)))
    return head, rows


def make_pair_row(
    label: str, pair: RunPair, found: PairedDifference, chosen: frozenset[str] = frozenset()
) -> list[ScoreCell]:
    """The row of a table of differences: a label, the run, both means, their difference, its interval, the pairs.

    Args:
        label: what it begins with.
        pair: the runs.
        found: their difference.
        chosen: names of runs whose scores are marked (`fedray.report.choices`).
    """
    both = ((pair.run, pair.run_mean), (pair.baseline, pair.baseline_mean))
    shown = [show_score(pair.metric, value) + (f" {MARK}" if name in chosen else "") for name, value in both]
    cells = [label, pair.run, *shown, show_score(pair.metric, found.mean, True)]
    cells += [show_interval(pair.metric, found), count_pairs(found)]
    return [ScoreCell(text, best=found.differs and i == 4) for i, text in enumerate(cells)]


def tell_difference(pair: RunPair) -> str:
    """One difference as the title of a picture: it says better or worse only where the interval leaves out zero."""
    found = pair.difference
    if found is None:
        return f"{pair.run} and {pair.baseline} share no seed"
    text = f"{pair.run} - {pair.baseline}: {format_difference(pair)} {name_score(pair.metric)}"
    if found.missing_interval or found.differs:
        return text
    return f"No difference beyond chance: {text}"


def tell_all(pairs: list[RunPair]) -> str:
    """Several differences from one run as a title."""
    better = [_is_better(pair) for pair in pairs if pair.difference is not None and pair.difference.differs]
    rest = len(pairs) - len(better)
    counts = ((sum(better), "better"), (len(better) - sum(better), "worse"), (rest, "not told apart"))
    text = ", ".join(f"{number} {word}" for number, word in counts if number)
    return f"Against {pairs[0].baseline}, over shared seeds: {text}"


def format_difference(pair: RunPair) -> str:
    """The difference with its interval and the number of pairs."""
    found = pair.difference
    if found is None:
        return "no shared seed"
    unit = " points" if is_share(pair.metric) else ""
    mean, low, high = (show_score(pair.metric, value, True).removesuffix(" points") for value in found[:3])
    if found.missing_interval:
        return f"{mean}{unit} ({found.missing_interval}: no interval)"
    return f"{mean}{unit} ({100 * found.level:.0f} %: {low} to {high}, {count_pairs(found)})"


def show_interval(metric: str, found: PairedDifference) -> str:
    """The interval of a difference, or why there is none.

    Example:
        >>> show_interval("rmse", PairedDifference(-0.5, -0.75, -0.25, 5, "seeds"))
        '-0.750 to -0.250'
        >>> show_interval("rmse", PairedDifference(np.inf, np.nan, np.nan, 5, "seeds"))
        'none: infinite scores'
    """
    if found.missing_interval:
        return f"none: {found.missing_interval}"
    return f"{show_score(metric, found.low, True)} to {show_score(metric, found.high, True)}"


def count_pairs(found: PairedDifference) -> str:
    """How many pairs there are, and of what."""
    return f"{found.n} {found.over if found.n > 1 else found.over.removesuffix('s')}"


def show_score(metric: str, value: float, difference: bool = False) -> str:
    """A score in its unit; a difference of shares is in points, and has its sign.

    Args:
        metric: its name.
        value: the score; NaN is a dash.
        difference: whether it is a difference.
    """
    if np.isnan(value):
        return "-"
    if not difference:
        return f"{100 * value:.1f} %" if is_share(metric) else format_digits(value, 4)
    return f"{100 * value:+.1f} points" if is_share(metric) else format_digits(value, 3, "+")


def _is_better(pair: RunPair) -> bool:
    found: Any = pair.difference
    return bool((found.mean < 0) == lower_is_better(pair.metric))
