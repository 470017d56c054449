"""`summary.json` and `manifest.json` of a run directory: what came out, and where it was computed."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedray.core.types import State
from fedray.files.bounded import read_parquet_files, say_damaged
from fedray.files.checksums import list_parts
from fedray.scenario.names import is_own
from fedray.simulation.interfaces import Progress
from fedray.simulation.measuring import meets_target
from fedray.simulation.parts import read_part
from fedray.simulation.rounds import draw_first_state
from fedray.simulation.stopping import BEST, collect_values, list_test_choices, watched_score
from fedray.simulation.study import Study
from fedray.storage.tables import read_table

JOB_MODEL = ("replicate", "fold", "model")  # whose jobs are those of one model
PACKAGES = ("fedray", "torch", "torchvision", "numpy", "pyarrow", "ray", "optuna")


def pool_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """Mean, sd and n of every number in the rows; sd is None for a single one.

    Example:
        >>> pool_metrics([{"accuracy": 0.5}, {"accuracy": 0.75, "rounds_to_target": 9.0}])["rounds_to_target"]
        {'mean': 9.0, 'sd': None, 'n': 1}
    """
    metrics: dict[str, dict[str, float | int | None]] = {}
    for name, values in collect_values(rows).items():
        with np.errstate(invalid="ignore"):  # of infinite values: their mean and sd are no numbers
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            metrics[name] = {"mean": float(np.mean(values)), "sd": sd, "n": len(values)}
    return metrics


def collect_course_metrics(study: Study, out: Path) -> list[dict[str, float]]:
    """Metrics that need a world's whole course, one dict a world; of a method with phases the last one counts.

    They are the mean score over the last 3 evaluated rounds (Fed-ensemble section V), and the round, virtual second and
    uplink byte at which the target was first reached; these are absent where it was not.
    """
    found, first = [], study.last_phase + 1 if study.last_phase else 0
    rows = read_table(out, "rounds").to_pylist()
    for world in range(study.worlds):
        where = study.place(world)
        course = [row for row in rows if (row["replicate"], row["fold"]) == where and row["round"] >= first]
        values: dict[str, float] = {}
        for name in ("accuracy", "rmse"):
            scores = [row[name] for row in course if row["round"] and row.get(name) is not None]
            if len(scores) >= 3:  # none of them untrained
                values[f"{name}_last3"] = float(np.mean(scores[-3:]))
        target = study.evaluation.target
        if target is not None:
            if target == study.evaluation.stop_at and course:  # the score that ended the run
                target = watched_score(course[0], target[0]), target[1]
            met = next((row for row in course if meets_target(row, target)), None)
            if met is not None:
                values["rounds_to_target"] = float(met["round"])
                values["seconds_to_target"] = float(met["sim_seconds"])
                values["bytes_to_target"] = float(met["up_bytes"])
        found.append(values)
    return found


def count_lost_models(out: Path) -> int:
    """Models that were given to clients and took no upload in the whole run; of the replicate and fold with the most.

    Args:
        out: The run directory, with all its jobs.

    Raises:
        Damaged: A part of the jobs lacks a column, or has another kind of values there.
    """
    model, used = list(JOB_MODEL), dict[tuple[int, ...], bool]()
    for path in list_parts(out, "clients.parquet").values():  # one after another: they may be long
        jobs = read_parquet_files([path], (*JOB_MODEL, "status"))[0]
        try:
            jobs = jobs.append_column("ok", pc.equal(jobs["status"], "ok"))
            found = jobs.group_by(model, use_threads=False).aggregate([("ok", "any")]).to_pylist()
        except (pa.ArrowException, KeyError) as error:
            raise say_damaged(path, str(error).partition(" in ")[0]) from None
        for row in found:
            key = tuple(row[name] for name in JOB_MODEL)
            used[key] = used.get(key, False) or row["ok_any"]
    lost = Counter(key[:2] for key, taken in used.items() if not taken)
    return max(lost.values(), default=0)


def count_drawn_answers(study: Study, progress: Progress) -> int:
    """Models that answer as they were drawn at the end of a run with a method or a schedule of the user's own.

    Of fedray's methods the jobs of a plan say it before a run (`fedray.assembly.untrained`).

    Args:
        study: what was trained.
        progress: the end of the run.

    Returns:
        Their number in the replicate and fold with the most; 0 without a round, and of a stack of fedray's.
    """
    method, schedule = (study.scenario.get(section, {}) for section in ("method", "schedule"))
    own = bool(method.get("object")) or is_own("method", method.get("name", ""))
    scheduled = bool(schedule.get("object")) or is_own("schedule", schedule.get("kind", ""))
    if not progress.round or not (own or (scheduled and not study.parts)):
        return 0
    if study.parts:
        each = [_find_drawn(one.study, read_part(progress.state, one)) for one in study.parts if one.answers]
        return int(sum((e.reshape(study.worlds, -1).sum(axis=1) for e in each), np.zeros(study.worlds, np.int64)).max())
    answer = study.answer(progress.state)
    drawn = _find_drawn(study, answer.state).reshape(study.worlds, -1)
    weigh = np.ones((study.worlds, answer.models)) if answer.weights is None else answer.weights
    return int((drawn & (weigh > 0)).sum(axis=1).max())


def _find_drawn(study: Study, state: State) -> NDArray[np.bool_]:
    """Which models of a state are as one of them was drawn, `[worlds * K]`."""
    first = draw_first_state(study, study.method.phase).models
    drawn = {row.numpy().tobytes() for row in first}
    return np.array([row.numpy().tobytes() in drawn for row in state.models.to(first.dtype)])


def make_summary(study: Study, progress: Progress, out: Path, model_hash: str, state_hash: str) -> dict[str, Any]:
    """What `summary.json` holds: final metrics pooled over replicates and folds, totals, hashes.

    Args:
        study: what was trained.
        progress: the end of the run.
        out: the run directory, with all its rows.
        model_hash: of `checkpoint.hash_model`.
        state_hash: of `checkpoint.hash_state`.
    """
    metrics = {**pool_metrics(progress.metrics), **pool_metrics(collect_course_metrics(study, out))}
    more: dict[str, Any] = {"stopped": progress.stopped} if progress.stopped else {}
    if lost := count_lost_models(out):
        more["untrained_models"] = lost
    if (drawn := count_drawn_answers(study, progress)) > lost:
        more["drawn_models"] = drawn - lost
    if study.evaluation.best is not None and progress.courses.get(BEST):
        value, round = progress.courses[BEST][0]
        name = watched_score(progress.metrics[0] if progress.metrics else {}, study.evaluation.best)
        more["best"] = {"metric": name, "value": value, "round": int(round)}
    if chosen := list_test_choices(study, progress):
        more["chosen_on_test"] = chosen
    return {
        "method": study.method.name,
        "data": study.scenario.get("data", {}).get("name", study.name),
        "rounds": progress.round,
        "failed_jobs": progress.failed,
        "seed": int(study.scenario.get("seed", study.seeds[0])),
        "metrics": metrics,
        "totals": {
            "up_bytes": int(progress.up_bytes.sum()),
            "down_bytes": int(progress.down_bytes.sum()),
            "sim_seconds": float(progress.sim_seconds.max()),
            "wall_seconds": progress.wall_seconds,
        },
        "model_hash": model_hash,
        "state_hash": state_hash,
        **more,
    }


def make_manifest(extra: dict[str, Any]) -> dict[str, Any]:
    """Versions, host and commit; nothing from the environment's secrets."""
    host = {"machine": platform.machine(), "system": platform.platform(), "python": sys.version.split()[0]}
    return {"versions": dict(_versions()), "host": host, "git_commit": _commit(), **extra}


@cache
def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


@cache
def _commit() -> str | None:
    if shutil.which("git") is None:
        return None
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
