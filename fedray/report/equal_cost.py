"""Runs compared at equal cost: what each had reached when it had sent, or lasted, as much as the cheapest did in all.

Example:
    Two seeds each. The second run sends half as much a round, so that the first one is read after its first round.

    >>> def run(name, scores, each):
    ...     worlds = {"replicate": np.repeat([0.0, 1.0], 3), "fold": np.zeros(6), "round": np.tile([0.0, 1.0, 2.0], 2)}
    ...     costs = {"up_bytes": worlds["round"] * each, "down_bytes": worlds["round"] * (2e6 - each)}
    ...     found = {"accuracy": np.r_[scores, np.array(scores) + 0.1]}
    ...     return ReadRun(name, {}, "", {}, {}, worlds | costs | found, None, None, {})
    >>> head, rows = make_equal_cost_table([run("dense", [0.1, 0.5, 0.7], 1e6), run("sparse", [0.1, 0.4, 0.6], 5e5)])
    >>> print("; ".join(cell.text for cell in rows[0]))
    1 MB up; sparse; 65.0 %; 55.0 %; +10.0 points; +10.0 points to +10.0 points; 2 seeds; 100 %; 100 %
"""

from __future__ import annotations

import math

import numpy as np

from fedray.report.choices import list_chosen
from fedray.report.differences import make_pair_row
from fedray.report.pairs import compare_with_first, find_axis, format_cost
from fedray.report.read import ReadRun
from fedray.report.readings import (
    BYTES,
    SECONDS,
    UPLINK,
    find_end,
    find_headline,
    name_compared,
    read_worlds,
    tell_share,
)
from fedray.report.sheets import ScoreCell

NOTE = (
    "Each run less the first one, where a seed had cost what the cheapest run did in all. It is read between the "
    "evaluations around that, whose shares of it stand in the last columns. A run is not compared (-) where none is "
    "near enough: one from 90 % on, or one on either side, the later of which cost at most twice the other. A cost "
    "that is the same for all runs, or that one of them has not, is left out."
)
WORDS = {UPLINK: "up", BYTES: "up and down", SECONDS: "of virtual time"}
ALIKE = 0.01  # costs that differ by no more than this share are the same


def make_equal_cost_table(runs: list[ReadRun]) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: the headline metric of every run and of the first one at equal bytes and virtual time.

    Args:
        runs: at least two.
    """
    metric, first = find_headline(runs), runs[0].name
    head = ["at", "run", f"its {name_compared(runs, metric)}", f"that of {first}", "difference", "95 % interval"]
    head += ["pairs", "it is read at", f"{first} is read at"]
    rows = []
    for cost, word in WORDS.items():
        ends = np.array([find_end(run, cost) for run in runs])
        told = bool(np.all((ends > 0) & (ends < math.inf))) and float(np.ptp(ends)) > ALIKE * float(ends.max())
        if not told or cost == find_axis(runs):  # a table of its own has virtual time, where a run has no rounds
            continue
        last = float(ends.min())
        label = f"{format_cost(cost, last)} {word}"
        pairs = {pair.run: pair for pair in compare_with_first(runs, [metric], over=cost)}
        used = [tell_share(list(read_worlds(run, metric, last, cost).values())) for run in runs]
        for run, share in zip(runs[1:], used[1:], strict=True):
            pair = pairs.get(run.name)
            row = None if pair else _name_row(label, run.name)
            if pair is not None and pair.difference is not None:  # those that share no seed are named above
                row = make_pair_row(label, pair, pair.difference, list_chosen(runs))
            rows += [[*row, ScoreCell(share), ScoreCell(used[0])]] if row else []
    return head, rows


def _name_row(label: str, name: str) -> list[ScoreCell]:
    """The row of a run that cannot be read at a cost."""
    return [ScoreCell(text) for text in (label, name, "-", "-", "not compared", "-", "-")]
