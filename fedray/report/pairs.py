"""Runs compared seed by seed: the paired differences of their scores, and what a reader must know about the pairs.

Runs in rounds are compared at the last round of the shortest. Where the clients of one of them do not wait for rounds,
its rounds are steps of its server, and all are compared at equal virtual time: where the first one of them ended. On
demand they are compared at an equal cost (bytes, virtual time): what the cheapest of them cost in all.

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

import numpy as np

from fedray.core.text import format_bytes, format_seconds
from fedray.core.types import FloatArray
from fedray.metrics.paired import PairedDifference, compare_paired, score_worlds
from fedray.report.read import ReadRun

MOST_NAMED_SEEDS = 12
ROUNDS, SECONDS, UPLINK = "round", "sim_seconds", "up_bytes"  # columns of `rounds.parquet` over which runs are compared
BYTES = "bytes"  # of both directions: the sum of two columns
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


def read_axis(run: ReadRun, over: str) -> FloatArray | None:
    """Rounds, or a cost since the start, of each row of `rounds.parquet`; None where the run does not have it."""
    if over == BYTES:
        up, down = run.rounds.get(UPLINK), run.rounds.get("down_bytes")
        return None if up is None or down is None else up + down
    return run.rounds.get(over)


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
    """A score of each replicate and fold at its last evaluated round, by (seed, fold).

    Several server steps may share a moment of virtual time; the last of them counts.

    Args:
        run: the run.
        metric: a column of `rounds.parquet`; a run without it has no scores.
        last: rounds after this one do not count.
        over: what `last` counts: rounds, or a cost.
    """
    at = read_axis(run, over)
    if at is None or not {metric, ROUNDS} <= run.rounds.keys():
        return {}
    columns = (run.rounds[name] for name in ("replicate", "fold", metric))
    return score_worlds(_read_seed(run), *columns, round=run.rounds[ROUNDS], at=at, last=last)


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


def find_common_end(runs: Sequence[ReadRun], over: str = ROUNDS) -> float:
    """The last round of the shortest run, or the cost of the cheapest; infinity where no run has any.

    Args:
        runs: to be compared.
        over: rounds, or a cost: of costs, that of the cheapest replicate and fold counts.
    """
    return min((find_end(run, over) for run in runs), default=math.inf)


def find_end(run: ReadRun, over: str) -> float:
    """The last round of a run, or what the cheapest of its worlds cost; infinity where the run has evaluated none."""
    column = read_axis(run, over)
    if column is None or not len(column):
        return math.inf
    if over == ROUNDS:
        return float(column.max())
    world = np.stack([run.rounds["replicate"], run.rounds["fold"]])
    each = np.unique(world, axis=1, return_inverse=True)[1].ravel()
    return min(float(column[each == w].max()) for w in range(int(each.max()) + 1))


def compare_with_first(
    runs: Sequence[ReadRun], metrics: Sequence[str], last: float | None = None, over: str | None = None
) -> list[RunPair]:
    """Every run against the first one: each score that both have, by the end of the shortest.

    Args:
        runs: at least two.
        metrics: columns of `rounds.parquet`; those that two runs do not share are left out.
        last: rounds after this one (or a higher cost) do not count; None means the end of the shortest run.
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
    found = []
    ends = [f"{run.rounds['round'].max():.0f}" if run.rounds else "none" for run in runs]
    if over is not None:
        each = format_cost(over, find_common_end(runs, over))
        found.append(f"Compared at equal {COSTS[over]}: the last evaluation of each run within {each} a seed.")
    elif find_axis(runs) == SECONDS:
        moment = format_seconds(find_common_end(runs, SECONDS))
        found.append(f"Not all runs have rounds. They are compared at equal virtual time, after {moment}.")
    elif len(set(ends)) > 1:
        each = ", ".join(f"{run.name} {end}" for run, end in zip(runs, ends, strict=True))
        found.append(
            f"The runs differ in their rounds: {each}. They are compared by the last evaluation of each up to round "
            f"{find_common_end(runs):.0f}."
        )
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


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _read_seed(run: ReadRun) -> int:
    seed = run.scenario.get("seed", 0)
    return seed if isinstance(seed, int) else 0


def _list_seeds(run: ReadRun) -> set[int]:
    """Seeds of the replicates of a run."""
    return {_read_seed(run) + int(r) for r in run.rounds.get("replicate", ())}


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
