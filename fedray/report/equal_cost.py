"""Runs compared at equal cost: what each had reached when it had sent, or lasted, as much as the cheapest did in all.

Example:
    Two seeds each. The second run sends half as much a round, so that the first one is read after its first round.

    >>> def run(name, scores, each):
    ...     worlds = {"replicate": np.repeat([0.0, 1.0], 3), "fold": np.zeros(6), "round": np.tile([0.0, 1.0, 2.0], 2)}
    ...     costs = {"up_bytes": worlds["round"] * each, "down_bytes": worlds["round"] * (2e6 - each)}
    ...     found = {"accuracy": np.r_[scores, np.array(scores) + 0.1]}
    ...     return ReadRun(name, {}, "", {}, {}, worlds | costs | found, None, None, {})
    >>> head, rows = make_equal_cost_table([run("dense", [0.1, 0.5, 0.7], 1e6), run("sparse", [0.1, 0.4, 0.6], 5e5)])
    >>> [[cell.text for cell in row] for row in rows]
    [['1 MB up', 'sparse', '65.0 %', '55.0 %', '+10.0 points', '+10.0 points to +10.0 points', '2 seeds']]
"""

from __future__ import annotations

import math

import numpy as np

from fedray.core.text import name_score
from fedray.report.differences import make_pair_row
from fedray.report.pairs import BYTES, SECONDS, UPLINK, compare_with_first, find_axis, find_end, format_cost
from fedray.report.read import ReadRun
from fedray.report.sheets import ScoreCell

NOTE = (
    "Each run less the first one: the last score that a seed had before it cost more than the cheapest run did in all. "
    "A cost that is the same for all runs, or that one of them has not, is left out."
)
WORDS = {UPLINK: "up", BYTES: "up and down", SECONDS: "of virtual time"}
ALIKE = 0.01  # costs that differ by no more than this share are the same


def make_equal_cost_table(runs: list[ReadRun]) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: the headline metric of every run and of the first one at equal bytes and virtual time.

    Args:
        runs: at least two.
    """
    metric, first = runs[0].metric, runs[0].name
    head = ["at", "run", f"its {name_score(metric)}", f"that of {first}", "difference", "95 % interval", "pairs"]
    rows = []
    for cost, word in WORDS.items():
        ends = np.array([find_end(run, cost) for run in runs])
        told = bool(np.all((ends > 0) & (ends < math.inf))) and float(np.ptp(ends)) > ALIKE * float(ends.max())
        if not told or cost == find_axis(runs):  # a table of its own has virtual time, where a run has no rounds
            continue
        label = f"{format_cost(cost, float(ends.min()))} {word}"
        pairs = compare_with_first(runs, [metric], over=cost)
        rows += [make_pair_row(label, pair, pair.difference) for pair in pairs if pair.difference is not None]
    return head, rows
