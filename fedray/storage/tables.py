"""The tables of a run directory: `rounds.parquet` and `clients.parquet`, written part by part as the run goes.

A new part file starts at every checkpoint; resuming from a checkpoint deletes the later ones.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = {"replicate": [0, 0], "fold": [0, 0], "round": [2, 1], "accuracy": [0.8, 0.5]}
    ...     write_parquet(Path(folder) / "rounds.parquet" / "part-000000002.parquet", pa.table(rows))
    ...     read_table(Path(folder), "rounds")["accuracy"].to_pylist()
    [0.5, 0.8]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.core import files
from fedray.core.errors import FedrayError
from fedray.core.types import Plan
from fedray.simulation import clock
from fedray.simulation.interfaces import JobTable, Progress
from fedray.simulation.study import Study
from fedray.storage import checkpoint

FLUSH_ROWS = 200_000
INT_COLUMNS = ("replicate", "fold", "round", "up_bytes", "down_bytes")


class RunRecorder:
    """Writes the rows of one run: a row for each job, and for each evaluated round and world.

    Attributes:
        out: the run directory.
        study: what is trained.
    """

    def __init__(
        self, out: Path, study: Study, private: Callable[[], dict[str, Any]], watch: Callable[[Progress], None]
    ) -> None:
        """Starts with empty buffers.

        Args:
            out: the run directory.
            study: what is trained.
            private: the clients' private vectors, to be saved with a checkpoint.
            watch: called after each evaluated round.
        """
        self.out, self.study = out, study
        self._private, self._watch = private, watch
        self._jobs: list[dict[str, Any]] = []
        self._rounds: list[dict[str, Any]] = []
        self._buffered = 0
        self._tiers = np.array([tier.name for tier in study.clients.tiers])
        self._flushed = time.monotonic()

    def jobs(self, round: int, plan: Plan, table: JobTable) -> None:
        """Keeps the jobs of a round for the next flush.

        Args:
            round: number of the round.
            plan: its J jobs.
            table: what was measured of each job, in the order of the plan.
        """
        n = len(plan.client)
        where = {
            "replicate": plan.world // self.study.per_replicate,
            "fold": self.study.folds[plan.world],
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
        checkpoint.save_checkpoint(self.out / "checkpoints", progress, self._private(), self.study.checkpoint_keep)

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
        write_parquet(self.out / name / f"part-{round:09d}.parquet", table)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a table as one Parquet file, atomically."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    files.write_atomically(path, sink.getvalue().to_pybytes())


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    names = list(dict.fromkeys(name for row in rows for name in row))

    def kind(name: str) -> pa.DataType:
        if name in INT_COLUMNS:
            return pa.int64()
        listed = any(isinstance(row.get(name), list) for row in rows)
        return pa.list_(pa.float64()) if listed else pa.float64()

    return pa.schema([(name, kind(name)) for name in names])


def read_table(out: Path, name: str) -> pa.Table:
    """`rounds` or `clients` of a run directory as one table, sorted by replicate, fold and round.

    Raises:
        FedrayError: the directory holds no rows.
    """
    folder = out / f"{name}.parquet"
    parts = sorted(folder.glob("part-*.parquet"))
    if not parts:
        raise FedrayError(f"{folder} holds no rows: is {out} a finished run?")
    table = pa.concat_tables([pq.read_table(part, partitioning=None) for part in parts], promote_options="default")
    return table.sort_by([("replicate", "ascending"), ("fold", "ascending"), ("round", "ascending")])
