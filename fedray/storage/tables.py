"""The tables of a run directory, written part by part as the run goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.core.errors import FedrayError
from fedray.core.types import IntArray, Plan
from fedray.files import plain
from fedray.files.bounded import BEST_FOLDER, FileSums, name_part, read_vouched, sum_file, sum_parts
from fedray.files.tables import COLUMNS, Column, arrow_type, make_table, read_parts, table_schema
from fedray.metrics.scores import SCORES
from fedray.simulation import devices
from fedray.simulation.study import ClientScores, JobTable, Progress, Study
from fedray.storage import checkpoint

# ---------------------------------------------------------------------------------------------------------------------
# They are `rounds.parquet`, `clients.parquet` and, where `evaluate.clients` asks for it, `client_scores.parquet`.
#
# A new part file starts at every checkpoint; resuming from a checkpoint deletes the later ones.

FLUSH_ROWS = 200_000


class RunRecorder:
    """Writes the rows of one run: a row for each job, and for each evaluated round and world.

    Attributes:
        out: the run directory.
        study: what is trained.
    """

    def __init__(
        self,
        out: Path,
        study: Study,
        private: Callable[[], dict[str, Any]],
        watch: Callable[[Progress], None],
        *,
        confirm_place: Callable[[], None] = lambda: None,
        saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts with empty buffers.

        Args:
            out: the run directory.
            study: what is trained.
            private: the clients' private vectors, to be saved with a checkpoint.
            watch: called after each evaluated round.
            confirm_place: called before each write; it raises where the directory is no longer the one that is locked.
            saved: called after each checkpoint.
        """
        self.out, self.study = out, study
        self._private, self._watch, self._confirm_place, self._saved = private, watch, confirm_place, saved
        vouched = read_vouched(out, f"`fedray resume {out}` goes on from the checkpoint before it")
        self._files: FileSums = vouched or sum_parts(out)
        self._jobs: list[dict[str, Any]] = []
        self._rounds: list[dict[str, Any]] = []
        self._scores: list[dict[str, Any]] = []
        self._buffered = 0
        self._tiers = np.array([tier.name for tier in study.clients.tiers])
        self._flushed = time.monotonic()

    def jobs(self, round: int | IntArray, plan: Plan, table: JobTable) -> None:
        """Keeps the jobs of a round, or of several, for the next flush.

        Args:
            round: number of the round, or that of each job, `[J]`.
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
        columns = where | table._asdict()
        del columns["flight"]
        if table.flight is not None:
            columns |= table.flight._asdict()
            columns["staleness"] = np.where(table.flight.staleness < 0, np.nan, table.flight.staleness)  # NaN: empty
        self._jobs.append(columns)
        self._buffered += n

    def keep_clients(self, round: int, world: int, found: ClientScores) -> None:
        """Keeps the scores of a world's clients for the next flush.

        Args:
            round: number of the round that was evaluated.
            world: number of the world.
            found: the scores.
        """
        n = len(found.client)
        replicate, fold = self.study.place(world)
        where = {"replicate": replicate, "fold": fold, "round": round}
        self._scores.append(
            {
                **{name: np.full(n, value) for name, value in where.items()},
                "client": found.client,
                "tier": self.study.clients.tier_of(found.client),
                "samples": found.samples,
                **found.scores,
            }
        )
        self._buffered += n

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None:
        """Keeps the metrics of a round, and shows them to whoever watches."""
        for world, row in enumerate(rows):
            replicate, fold = self.study.place(world)
            totals = {
                "replicate": replicate,
                "fold": fold,
                "round": progress.round,
                "sim_seconds": float(progress.sim_seconds[world]),
                "wall_seconds": progress.wall_seconds,
                "up_bytes": int(progress.up_bytes[world]),
                "down_bytes": int(progress.down_bytes[world]),
            }
            self._rounds.append({**totals, **row})
        self._watch(progress)
        if self._buffered > FLUSH_ROWS or time.monotonic() - self._flushed > 20:
            self.flush(progress.round)

    def checkpoint(self, progress: Progress) -> None:
        """Flushes the rows and saves the state."""
        self.flush(progress.round)
        self._confirm_place()
        folder, keep = self.out / "checkpoints", self.study.checkpoint_keep
        checkpoint.save_checkpoint(folder, progress, self._private(), keep, files=self._files)
        self._saved()

    def keep_best(self, progress: Progress) -> None:
        """Saves the state of the best round so far, instead of the one before."""
        self._confirm_place()
        plain.make_folder(self.out / BEST_FOLDER)
        checkpoint.save_checkpoint(self.out / BEST_FOLDER, progress, self._private(), keep=1)

    def flush(self, round: int) -> None:
        """Writes what is buffered as one part of each table."""
        if self._jobs:
            columns = self._join(self._jobs)
            columns["status"] = np.array(devices.STATUS)[columns["status"]]
            self._write("clients.parquet", make_table("clients", columns), round)  # a loss of NaN, not trained: null
        if self._rounds:
            self._write("rounds.parquet", pa.Table.from_pylist(self._rounds, schema=_schema(self._rounds)), round)
        if self._scores:
            self._write("client_scores.parquet", make_table("client_scores", self._join(self._scores)), round)
        self._jobs, self._rounds, self._scores, self._buffered = [], [], [], 0
        self._flushed = time.monotonic()

    def _join(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the columns of some parts, one after the other, with the names of the tiers."""
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        columns["tier"] = self._tiers[columns["tier"]]
        return columns

    def _write(self, name: str, table: pa.Table, round: int) -> None:
        self._confirm_place()
        plain.make_folder(self.out / name)
        path = self.out / name / name_part(round)
        write_parquet(path, table)
        self._files[f"{name}/{path.name}"] = sum_file(path)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a table as one Parquet file, atomically.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = {"replicate": [0, 0], "fold": [0, 0], "round": [2, 1], "accuracy": [0.8, 0.5]}
        ...     plain.make_folder(Path(folder) / "rounds.parquet")
        ...     write_parquet(Path(folder) / "rounds.parquet" / "part-000000002.parquet", pa.table(rows))
        ...     read_table(Path(folder), "rounds")["accuracy"].to_pylist()
        [0.5, 0.8]
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    plain.write_atomically(path, sink.getvalue().to_pybytes())


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    names = list(dict.fromkeys(name for row in rows for name in row))

    def kind(name: str) -> pa.DataType:
        if name in COLUMNS["rounds"]:
            return arrow_type(COLUMNS["rounds"][name].kind)
        listed = any(isinstance(row.get(name), list) for row in rows)
        return pa.list_(pa.float64()) if listed else pa.float64()

    return pa.schema([(name, kind(name)) for name in names])


def read_table(out: Path, name: str) -> pa.Table:
    """`rounds`, `clients` or `client_scores` of a run directory as one table, sorted by replicate, fold and round.

    A method without local training (`bayesian_linear`, say) has scores and no jobs: its `clients` has no rows.

    Raises:
        Damaged: a part is missing or was changed.
        FedrayError: the directory holds no rows, or a part cannot be read for another reason.
    """
    table = read_parts(out, name)
    if table is None and name == "clients" and read_parts(out, "rounds") is not None:
        return table_schema("clients").empty_table()
    if table is None and name == "client_scores":
        raise FedrayError(f"{out} has no scores of single clients: set evaluate.clients to all, or to a number")
    if table is None:
        raise FedrayError(f"{out / name}.parquet holds no rows: is {out} a finished run?")
    return table.sort_by([("replicate", "ascending"), ("fold", "ascending"), ("round", "ascending")])


# ---------------------------------------------------------------------------------------------------------------------
# Every column of every table that fedray writes, with its unit: for `fedray list columns` and the documentation.

TABLES_OF = {  # where a table is, and when
    "rounds": "`rounds.parquet` of a run: one row per evaluated round, replicate and fold",
    "clients": "`clients.parquet` of a run: one row per job, also those that did not count",
    "client_scores": "`client_scores.parquet` of a run with `evaluate.clients`: one row per evaluated round and client",
    "drift": "`drift.parquet` of a finished run with several models and at most 2,000 clients: one row per client",
    "partition": "`partition.parquet` of a run: one row per training row that a client holds",
    "trials": "`trials.parquet` of a sweep: one row per trial",
    "table": "`table.parquet` of `fedray table`: one row per cell and score",
}


def list_table_columns() -> dict[str, dict[str, Column]]:
    """Returns the columns of all tables; the scores follow the other columns of `rounds`.

    Example:
        >>> columns = list_table_columns()
        >>> columns["rounds"]["accuracy"].unit, "accuracy" in columns["clients"]
        ('share', False)
    """
    return {table: {**COLUMNS[table], **(SCORES if table == "rounds" else {})} for table in TABLES_OF}
