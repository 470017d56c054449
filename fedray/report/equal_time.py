"""Runs compared at equal virtual time: how far each is ahead of the first one, moment by moment.

It is for runs of which one has no rounds (`participation.mode`): a round of it is a step of its server.

Example:
    Two seeds each; the second run is evaluated twice as often. At 2 s the first one is not trained yet.

    >>> def run(name, scores, seconds, **keys):
    ...     n = len(scores)
    ...     worlds = {"replicate": np.repeat([0.0, 1.0], n), "fold": np.zeros(2 * n), "round": np.tile(np.arange(n), 2)}
    ...     found = {"sim_seconds": np.tile(seconds, 2), "accuracy": np.r_[scores, np.array(scores) + 0.1]}
    ...     return ReadRun(name, keys, "", {}, {}, worlds | found, None, None, {})
    >>> runs = [run("rounds", [0.1, 0.4, 0.6], [0.0, 4.0, 8.0]), run("buffered", [0.1, 0.3, 0.5, 0.6, 0.8],
    ...         [0.0, 2.0, 4.0, 6.0, 10.0], participation={"mode": "buffered"})]
    >>> [(moment, [round(pair.difference.mean, 3) for pair in each])
    ...  for moment, each in compare_moments(runs, "accuracy", 4)]
    [(2.0, []), (4.0, [0.1]), (6.0, [0.1]), (8.0, [0.1])]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from fedray.core.text import choose_unit, format_seconds, is_share
from fedray.report import style
from fedray.report.choices import list_chosen
from fedray.report.differences import make_pair_row
from fedray.report.pairs import RunPair, compare_with_first, find_axis
from fedray.report.read import ReadRun
from fedray.report.readings import SECONDS, find_common_end, find_headline, name_compared
from fedray.report.sheets import ScoreCell

MOMENTS = 24  # in the picture
SHOWN_MOMENTS = 4  # in the table
MOST_RUNS = 8  # in the picture


def compare_moments(runs: Sequence[ReadRun], metric: str, number: int) -> list[tuple[float, list[RunPair]]]:
    """Paired differences from the first run at moments that all runs have reached; none where all have rounds.

    Args:
        runs: at least two.
        metric: a column of `rounds.parquet`.
        number: how many moments, at equal distances up to where the first run ended.

    Returns:
        Virtual seconds of each moment, and the pairs.
    """
    end = find_common_end(runs, SECONDS)
    if find_axis(runs) != SECONDS or not 0 < end < np.inf:
        return []
    moments = [end * i / number for i in range(1, number + 1)]
    return [(at, compare_with_first(runs, [metric], at)) for at in moments]


def figure_moments(runs: list[ReadRun]) -> Figure | None:
    """The paired difference of the headline metric over virtual time, of every run from the first one."""
    metric = find_headline(runs)
    found = compare_moments(runs[: MOST_RUNS + 1], metric, MOMENTS)
    names = [run.name for run in runs[1 : MOST_RUNS + 1] if any(p.run == run.name for _, each in found for p in each)]
    if not names:
        return None
    size, unit = choose_unit("seconds", found[-1][0])
    factor, points = (100.0, " (points)") if is_share(metric) else (1.0, "")
    title = f"Against {runs[0].name} at equal virtual time, up to {format_seconds(found[-1][0])}"
    figure, axes = style.make_canvas(title, size=(style.WIDE, 3.8))
    for name, color in zip(names, style.pick_colors(len(names) + 1)[1:], strict=True):
        pairs = [(at / size, p.difference) for at, each in found for p in each if p.run == name and p.difference]
        x = np.array([at for at, _ in pairs])
        mean, low, high = (factor * np.array([getattr(d, end) for _, d in pairs]) for end in ("mean", "low", "high"))
        axes.plot(x, mean, color=color, linewidth=2.0, label=name)
        axes.fill_between(x, low, high, color=color, alpha=0.14, linewidth=0, label=style.BAND)
    axes.axhline(0, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlabel(f"virtual time ({unit})")
    axes.set_ylabel(f"{name_compared(runs, metric, unit=True)}: difference{points}")
    style.draw_grid(axes)
    axes.legend(loc="best")
    return figure


def make_moment_table(runs: list[ReadRun]) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: the headline metric of every run and of the first one at equal virtual time."""
    metric, first = find_headline(runs), runs[0].name
    head = [
        "virtual time",
        "run",
        f"its {name_compared(runs, metric)}",
        f"that of {first}",
        "difference",
        "95 % interval",
        "pairs",
    ]
    rows = []
    for at, pairs in compare_moments(runs, metric, SHOWN_MOMENTS):
        for pair in pairs:
            if pair.difference is not None:
                rows.append(make_pair_row(format_seconds(at), pair, pair.difference, list_chosen(runs)))
    return head, rows
