"""Runs compared seed by seed: the paired differences of their scores, and what a reader must know about the pairs.

Runs in rounds are compared at the last round of the shortest; one whose method has phases is read at its end. Where the
clients of one of them do not wait for rounds, its rounds are steps of its server, and all are compared at equal virtual
time: where the first one of them ended. On demand they are compared at an equal cost (bytes, virtual time): what the
cheapest of them cost in all.

Example:
    >>> import numpy as np
    >>> columns = {name: np.zeros(4) for name in ("fold", "replicate")} | {"round": np.array([0.0, 1.0, 0.0, 1.0])}
    >>> columns["replicate"] = np.array([0.0, 0.0, 1.0, 1.0])
    >>> one, two = (ReadRun(name, {"seed": 3}, "", {}, {}, columns | {"accuracy": np.array([0.1, up, 0.1, up + 0.1])},
    ...             None, None, {}) for name, up in (("one", 0.8), ("two", 0.6)))
    >>> read_world_scores(one, "accuracy")
    {(3, 0): 0.8, (4, 0): 0.9}
    >>> pair = compare_with_first([one, two], ["accuracy"])[0]
    >>> pair.run, pair.baseline, pair.metric, round(pair.difference.mean, 3), pair.difference.n
    ('two', 'one', 'accuracy', -0.2, 2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedray.core.text import format_bytes, format_seconds
from fedray.metrics.paired import PairedDifference, compare_paired
from fedray.report.read import ReadRun
from fedray.report.readings import (
    BYTES,
    ROUNDS,
    SECONDS,
    UPLINK,
    find_common_end,
    find_end,
    read_seed,
    read_worlds,
    tell_readings,
)
from fedray.scenario.reading import has_own_rounds

MOST_NAMED_SEEDS = 12
COSTS = {UPLINK: "uplink", BYTES: "bytes up and down", SECONDS: "virtual time"}


class RunPair(NamedTuple):
    """One score of two runs.

    Attributes:
        metric: the score.
        run: name of the run.
        baseline: name of the run that it is compared with.
        run_mean: mean score of the run over the shared seeds and folds; NaN where they share none.
        baseline_mean: that of the other run.
        difference: run minus baseline over the shared seeds; None where they share none.
    """

    metric: str
    run: str
    baseline: str
    run_mean: float
    baseline_mean: float
    difference: PairedDifference | None


def format_cost(over: str, value: float) -> str:
    """A cost in its unit.

    Example:
        >>> format_cost(BYTES, 2e6), format_cost(SECONDS, 90.0)
        ('2 MB', '1.5 min')
    """
    return format_seconds(value) if over == SECONDS else format_bytes(value)


def read_world_scores(
    run: ReadRun, metric: str, last: float = math.inf, over: str = ROUNDS
) -> dict[tuple[int, int], float]:
    """A score of each replicate and fold by (seed, fold), as `fedray.report.readings.read_worlds` reads it."""
    return {world: found.value for world, found in read_worlds(run, metric, last, over).items()}


def find_axis(runs: Sequence[ReadRun]) -> str:
    """What runs have in common: rounds; virtual seconds where one of them has no rounds.

    Example:
        >>> keys = [{}, {"participation": {"mode": "buffered"}}]
        >>> find_axis([ReadRun("", each, "", {}, {}, {}, None, None, {}) for each in keys])
        'sim_seconds'
    """
    sections = [run.scenario.get("participation") for run in runs]
    modes = {section.get("mode", "sync") for section in sections if isinstance(section, Mapping)}
    return SECONDS if modes - {"sync"} else ROUNDS


def compare_with_first(
    runs: Sequence[ReadRun], metrics: Sequence[str], last: float | None = None, over: str | None = None
) -> list[RunPair]:
    """Every run against the first one: each score that both have, by the end of the shortest.

    Args:
        runs: at least two.
        metrics: columns of `rounds.parquet`; those that two runs do not share there are left out.
        last: the round, or the cost, at which they are compared; None means the end of the shortest run.
        over: rounds, or a cost; None means rounds, and virtual seconds where a run has no rounds.
    """
    over = over or find_axis(runs)
    at = find_common_end(runs, over) if last is None else last
    found = []
    for run in runs[1:]:
        for metric in metrics:
            mine, theirs = (read_world_scores(each, metric, at, over) for each in (run, runs[0]))
            if mine and theirs:
                shared = sorted(mine.keys() & theirs.keys())
                mean, base = (_mean([one[key] for key in shared]) for one in (mine, theirs))
                found.append(RunPair(metric, run.name, runs[0].name, mean, base, compare_paired(mine, theirs)))
    return found


def list_pairing_notes(runs: Sequence[ReadRun], over: str | None = None) -> list[str]:
    """What a reader must know before the runs are compared: lengths and seeds that differ, and too few of them.

    Args:
        runs: to be compared.
        over: the cost that is equal; None means that rounds are, if there are rounds.

    Example:
        >>> import numpy as np
        >>> worlds = {name: np.array([0.0]) for name in ("replicate", "fold")}
        >>> runs = [ReadRun(name, {"seed": seed}, "", {}, {}, worlds | {"round": np.array([length])}, None, None, {})
        ...         for name, seed, length in (("a", 0, 5.0), ("b", 1, 9.0))]
        >>> for line in list_pairing_notes(runs):
        ...     print(line)
        The runs differ in their rounds: a 5, b 9. They are compared by the last evaluation of each up to round 5.
        a and b share no seed: a has 0, b has 1. They cannot be compared in pairs.
    """
    found = _tell_where(runs, over)
    for run in runs[1:]:
        mine, theirs = _list_seeds(run), _list_seeds(runs[0])
        shared = mine & theirs
        names = f"{runs[0].name} has {_name_seeds(theirs)}, {run.name} has {_name_seeds(mine)}"
        if not shared:
            found.append(f"{runs[0].name} and {run.name} share no seed: {names}. They cannot be compared in pairs.")
        elif mine != theirs:
            found.append(f"{runs[0].name} and {run.name} share the seeds {_name_seeds(shared)} only: {names}.")
        if len(shared) == 1 and not _shares_folds(run, runs[0]):
            found.append(f"{runs[0].name} and {run.name} share one seed: nothing says how far chance goes.")
    return found


def _tell_where(runs: Sequence[ReadRun], over: str | None) -> list[str]:
    """Where the runs are compared, unless all of them were evaluated at the end of all."""
    axis = over or find_axis(runs)
    last = find_common_end(runs, axis)
    readings = tell_readings(runs, last, axis)
    if over is not None:
        return [f"Compared at equal {COSTS[over]}, {format_cost(over, last)} a seed.", *readings]
    if axis == SECONDS:
        said = f"Not all runs have rounds. They are compared at equal virtual time, after {format_seconds(last)}."
        return [said, *readings]
    each = {run.name: find_end(run, ROUNDS) for run in runs if not has_own_rounds(run.scenario)}
    if len(set(each.values())) < 2:
        return readings
    ends = ", ".join(f"{name} {f'{end:.0f}' if end < math.inf else 'none'}" for name, end in each.items())
    how = "at" if "between" in " ".join(readings) else "by the last evaluation of each up to"
    return [f"The runs differ in their rounds: {ends}. They are compared {how} round {last:.0f}.", *readings]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _list_seeds(run: ReadRun) -> set[int]:
    """Seeds of the replicates of a run."""
    return {read_seed(run) + int(r) for r in run.rounds.get("replicate", ())}


def _shares_folds(run: ReadRun, other: ReadRun) -> bool:
    """Whether two runs share several folds."""
    return len(set(run.rounds["fold"].tolist()) & set(other.rounds["fold"].tolist())) > 1


def _name_seeds(seeds: set[int]) -> str:
    """Seeds as text.

    Example:
        >>> _name_seeds({0, 1, 2, 7}), _name_seeds(set(range(40)))
        ('0, 1, 2, 7', '40 seeds from 0 to 39')
    """
    if len(seeds) > MOST_NAMED_SEEDS:
        return f"{len(seeds)} seeds from {min(seeds)} to {max(seeds)}"
    return ", ".join(map(str, sorted(seeds))) or "none"
