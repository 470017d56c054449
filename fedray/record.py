"""The run directory: Parquet parts written as the run goes, the manifest and the summary.

Parts never straddle a checkpoint, so resuming drops whole parts that are newer than its checkpoint.
"""

from __future__ import annotations

import fcntl
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray import checkpoint, clock
from fedray.core import BadInput, FedrayError, Plan
from fedray.engine import JobTable, Progress, meets
from fedray.study import Study

FLUSH_ROWS = 200_000
LOCK_SECONDS = 30.0
PACKAGES = ("fedray", "torch", "torchvision", "numpy", "pyarrow", "ray", "optuna")
INT_COLUMNS = ("replicate", "fold", "round", "up_bytes", "down_bytes")


def prepare(out: Path, scenario_text: str) -> None:
    """Makes a fresh run directory.

    Raises:
        BadInput: the directory holds something already.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "another run" if (out / "scenario.yaml").exists() else "other files"
        raise BadInput(f"--out {out} holds {what}: choose another directory, or `fedray resume {out}`")
    try:
        (out / "checkpoints").mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"--out {out} cannot be made ({error.strerror}): choose another directory") from None
    checkpoint.write_atomically(out / "scenario.yaml", scenario_text.encode())


def discard(out: Path, fresh: bool) -> None:
    """Takes back what `prepare` made, if nothing was recorded: bad input leaves no directory behind."""
    if (out / "rounds.parquet").exists():
        return
    for path in [out] if fresh else out.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keeps other processes from writing a run directory; the lock goes when its process does, however that ends.

    A run whose driver was killed may write for some seconds more: resuming waits for it.
    """
    try:
        file = (out / ".lock").open("w")
    except OSError as error:
        raise FedrayError(f"cannot write {out}: {error.strerror}: free space or choose another --out") from None
    with file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _locked(file):
            if time.monotonic() > deadline:
                raise BadInput(f"{out} is being written by another process: let it finish, or stop it")
            time.sleep(0.1)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing can be promised
        return True
    return True


class Recorder:
    """Writes one run's rows; buffers between flushes hold plain arrays."""

    def __init__(
        self, out: Path, study: Study, private: Callable[[], dict[str, Any]], watch: Callable[[Progress], None]
    ) -> None:
        self.out, self.study = out, study
        self._private, self._watch = private, watch
        self._jobs: list[dict[str, Any]] = []
        self._rounds: list[dict[str, Any]] = []
        self._buffered = 0
        self._tiers = np.array([tier.name for tier in study.clients.tiers])
        self._flushed = time.monotonic()

    def jobs(self, round: int, plan: Plan, table: JobTable) -> None:
        """Keeps the jobs of a round for the next flush."""
        n = len(plan.client)
        where = {
            "replicate": plan.replicate // self.study.per_replicate,
            "fold": self.study.folds[plan.replicate],
            "round": np.full(n, round),
            "client": plan.client,
            "tier": self.study.clients.tier_of(plan.client),
            "model": plan.model,
        }
        self._jobs.append({**where, **table._asdict()})
        self._buffered += n

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None:
        """Keeps the metrics of a round, and shows them to whoever watches."""
        for world, row in enumerate(rows):
            where = {"replicate": world // self.study.per_replicate, "fold": int(self.study.folds[world])}
            totals = {
                "round": progress.round,
                "sim_seconds": float(progress.sim_seconds[world]),
                "wall_seconds": progress.wall_seconds,
                "up_bytes": int(progress.up_bytes[world]),
                "down_bytes": int(progress.down_bytes[world]),
            }
            self._rounds.append({**where, **totals, **row})
        self._watch(progress)
        if self._buffered > FLUSH_ROWS or time.monotonic() - self._flushed > 20:
            self.flush(progress.round)

    def checkpoint(self, progress: Progress) -> None:
        """Flushes the rows and saves the state."""
        self.flush(progress.round)
        checkpoint.save(self.out / "checkpoints", progress, self._private(), self.study.checkpoint_keep)

    def flush(self, round: int) -> None:
        """Writes what is buffered as one part of each table."""
        if self._jobs:
            columns = {k: np.concatenate([part[k] for part in self._jobs]) for k in self._jobs[0]}
            columns["tier"] = self._tiers[columns["tier"]]
            columns["status"] = np.array(clock.STATUS)[columns["status"]]
            columns["loss"] = pa.array(columns["loss"], from_pandas=True)  # NaN, not trained: null
            columns["error"] = pa.array(columns["error"], pa.string())
            self._write("clients.parquet", pa.table(columns), round)
        if self._rounds:
            self._write("rounds.parquet", pa.Table.from_pylist(self._rounds, schema=_schema(self._rounds)), round)
        self._jobs, self._rounds, self._buffered, self._flushed = [], [], 0, time.monotonic()

    def _write(self, name: str, table: pa.Table, round: int) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        checkpoint.write_atomically(self.out / name / f"part-{round:09d}.parquet", sink.getvalue().to_pybytes())


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    names = list(dict.fromkeys(name for row in rows for name in row))

    def kind(name: str) -> pa.DataType:
        if name in INT_COLUMNS:
            return pa.int64()
        listed = any(isinstance(row.get(name), list) for row in rows)
        return pa.list_(pa.float64()) if listed else pa.float64()

    return pa.schema([(name, kind(name)) for name in names])


def drop_newer(out: Path, round: int) -> None:
    """Removes the parts written after a round."""
    for name in ("rounds.parquet", "clients.parquet"):
        for part in (out / name).glob("part-*.parquet"):
            if int(part.stem[5:]) > round:
                part.unlink()


def table(out: Path, name: str) -> pa.Table:
    """`rounds` or `clients` of a run directory as one table, sorted by round."""
    folder = out / f"{name}.parquet"
    parts = sorted(folder.glob("part-*.parquet"))
    if not parts:
        raise FedrayError(f"{folder} holds no rows: is {out} a finished run?")
    whole = pa.concat_tables([pq.read_table(part, partitioning=None) for part in parts], promote_options="default")
    return whole.sort_by([("replicate", "ascending"), ("fold", "ascending"), ("round", "ascending")])


def pooled(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """Mean, sd and n of every number in the rows; sd is None for a single one."""
    metrics: dict[str, dict[str, float | int | None]] = {}
    for name in dict.fromkeys(k for row in rows for k, v in row.items() if isinstance(v, float)):
        values = np.array([row[name] for row in rows if name in row])
        sd = float(values.std(ddof=1)) if len(values) > 1 else None
        metrics[name] = {"mean": float(values.mean()), "sd": sd, "n": len(values)}
    return metrics


def history(study: Study, out: Path) -> list[dict[str, float]]:
    """What needs a world's whole course, one dict a world: scores over the last 3 evaluated rounds (FE section V),
    and the round, virtual second and uplink byte at which the target was first reached (absent where it was not)."""
    found = []
    rows = table(out, "rounds").to_pylist()
    for world in range(study.worlds):
        where = (world // study.per_replicate, int(study.folds[world]))
        course = [row for row in rows if (row["replicate"], row["fold"]) == where]
        values: dict[str, float] = {}
        for name in ("accuracy", "rmse"):
            scores = [row[name] for row in course if row["round"] and row.get(name) is not None]
            if len(scores) >= 3:  # none of them untrained
                values[f"{name}_last3"] = float(np.mean(scores[-3:]))
        if study.evaluation.target is not None:
            first = next((row for row in course if meets(row, study.evaluation.target)), None)
            if first is not None:
                values["rounds_to_target"] = float(first["round"])
                values["seconds_to_target"] = float(first["sim_seconds"])
                values["bytes_to_target"] = float(first["up_bytes"])
        found.append(values)
    return found


def summary(study: Study, progress: Progress, out: Path, model_hash: str, state_hash: str) -> dict[str, Any]:
    """`summary.json` by contract: final metrics pooled over replicates and folds, totals, hashes."""
    metrics = {**pooled(progress.metrics), **pooled(history(study, out))}  # type: ignore[arg-type]
    return {
        "method": study.method.name,
        "data": study.scenario.get("data", {}).get("name", study.name),
        "rounds": progress.round,
        "failed_jobs": progress.failed,
        "seed": int(study.seeds[0]),
        "metrics": metrics,
        "totals": {
            "up_bytes": int(progress.up_bytes.sum()),
            "down_bytes": int(progress.down_bytes.sum()),
            "sim_seconds": float(progress.sim_seconds.max()),
            "wall_seconds": progress.wall_seconds,
        },
        "model_hash": model_hash,
        "state_hash": state_hash,
    }


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically; NaN becomes null."""
    text = json.dumps(_finite(value), indent=2)
    checkpoint.write_atomically(path, (text + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def manifest(extra: dict[str, Any]) -> dict[str, Any]:
    """Versions, host and commit; nothing from the environment's secrets."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    host = {"machine": platform.machine(), "system": platform.platform(), "python": sys.version.split()[0]}
    return {"versions": versions, "host": host, "git_commit": _commit(), **extra}


def _commit() -> str | None:
    if shutil.which("git") is None:
        return None
    here = Path(__file__).parent
    done = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
