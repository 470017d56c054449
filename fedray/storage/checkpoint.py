"""Writes and reads checkpoints, and the tables of rounds and clients.

A *study* is everything that a run needs. A *world* is a combination of a seed and a fold of the data. A *private
vector* is a vector that a client keeps between rounds. Each table is a folder. Its *parts* are files with the rows of
some rounds.
"""

import json
import secrets
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedray.core.errors import Damaged, DamageWarning, FedrayError, Unwritable, warn_user
from fedray.core.types import IntArray, Plan, State
from fedray.files import plain, run_files
from fedray.files.plain import sync_to_disk
from fedray.metrics.scores import SCORES
from fedray.simulation import devices
from fedray.simulation.study import ClientScores, JobTable, Progress, Study

# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints are files of safetensors and JSON, without pickles. They are written under a temporary name and renamed.
# So if a crash interrupts the writing, the previous checkpoint remains. A damaged checkpoint causes a one-line error.


def save_checkpoint(
    folder: Path,
    progress: Progress,
    private: dict[str, torch.Tensor] | None = None,
    keep: int = 2,
    *,
    files: run_files.FileSums | None = None,
) -> Path:
    """Writes a checkpoint into `round-NNNNNN/` in a folder, and removes old checkpoints.

    Args:
        folder: The folder that holds the checkpoints of one run.
        progress: The progress of the run.
        private: The clients' private vectors by name. None means that there are no such vectors.
        keep: Number of checkpoints that stay, at least 1, the new one included.
        files: Sizes and digests of the parts of the run's tables. The checkpoint stores them, together with the size
            and the digest of its own state file.

    Returns:
        The folder of the checkpoint.

    Raises:
        FedrayError: The checkpoint cannot be written. The earlier checkpoint is unchanged.

    Example:
        >>> import tempfile
        >>> state = State(torch.ones(1, 3), torch.zeros(1, 0, dtype=torch.int64), {})
        >>> progress = Progress(7, state, *np.zeros((2, 1), np.int64), np.zeros(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_checkpoint(Path(folder), progress)
        ...     loaded, private = load_checkpoint(Path(folder))
        >>> path.name, loaded.round, loaded.state.models.tolist()
        ('round-000007', 7, [[1.0, 1.0, 1.0]])
    """
    state = progress.state
    tensors = {"models": state.models, "counters": state.counters}
    tensors |= {f"extra/{name}": value for name, value in state.extra.items()}
    tensors |= {f"private/{name}": value for name, value in (private or {}).items()}
    tensors |= {f"flight/{name}": value for name, value in progress.flight().items()}
    totals: dict[str, Any] = {
        "round": progress.round,
        "up_bytes": progress.up_bytes.tolist(),
        "down_bytes": progress.down_bytes.tolist(),
        "sim_seconds": [float(s).hex() for s in progress.sim_seconds],
        "wall_seconds": progress.wall_seconds,
        "metrics": progress.metrics,
        "failed": progress.failed,
        run_files.FILES_KEY: dict(files or {}),
    }
    totals |= {name: kept for name in ("courses", "stopped") if (kept := getattr(progress, name))}
    path = folder / f"round-{progress.round:06d}"
    _replace_folder(path, part_tensors(tensors), totals)
    others = [round for round in run_files.find_checkpoints(folder) if round != progress.round]
    for old in others[: max(0, len(others) + 1 - max(1, keep))]:
        shutil.rmtree(folder / f"round-{old:06d}", ignore_errors=True)
    return path


def part_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns tensors with the same values. They are contiguous and share no memory, as safetensors requires."""
    found: dict[str, torch.Tensor] = {}
    held = set[int]()
    for name, value in tensors.items():
        found[name] = value.contiguous() if value.untyped_storage().data_ptr() not in held else value.clone()
        held.add(found[name].untyped_storage().data_ptr())
    return found


def _replace_folder(final: Path, tensors: dict[str, torch.Tensor], totals: dict[str, Any]) -> None:
    """Writes the two files of a checkpoint into a temporary folder, syncs the folder to the disk, and renames it.

    `totals` has the entries of `progress.json`. Its list of files gets the size and the digest of the state file.
    """
    part = final.with_name(f".{secrets.token_hex(12)}.part")
    try:
        with plain.explain_unwritable(final):
            final.parent.mkdir(exist_ok=True)
            part.mkdir()
            save_file(tensors, part / run_files.STATE_FILE)
            totals[run_files.FILES_KEY][run_files.STATE_FILE] = run_files.sum_file(part / run_files.STATE_FILE)
            (part / "progress.json").write_text(
                json.dumps({**totals, run_files.SEAL: run_files.seal_entries(totals, "progress.json")})
            )
            # safetensors writes 0600
            (part / run_files.STATE_FILE).chmod((part / "progress.json").stat().st_mode & 0o777)
            for file in part.iterdir():
                sync_to_disk(file)
            sync_to_disk(part)
            if final.exists():
                shutil.rmtree(final)
            part.replace(final)
            sync_to_disk(final.parent)
    except SafetensorError as error:
        raise Unwritable(f"cannot write {final}: {error}: free space or choose another directory") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load_checkpoint(folder: Path, round: int | None = None) -> tuple[Progress, dict[str, torch.Tensor]]:
    """Returns the progress in a checkpoint, and the clients' private vectors that were saved with it.

    If `round` is None, reads the newest checkpoint.

    Raises:
        Damaged: A file of the checkpoint is missing or was changed.
        FedrayError: There is no checkpoint, or a file cannot be read for a different reason.
    """
    known = run_files.find_checkpoints(folder)
    if not known:
        raise FedrayError(f"{folder} holds no checkpoint: start the run again with `fedray run`")
    path = folder / f"round-{known[-1] if round is None else round:06d}"
    remedy = f"`fedray resume {folder.parent}` goes on from the checkpoint before it"
    if folder.name == run_files.BEST_FOLDER:
        remedy = "the newest models may be whole; a new run finds the best ones again"
    totals = run_files.read_progress(path, remedy)
    file, sums = path / run_files.STATE_FILE, totals.get(run_files.FILES_KEY, {})
    if run_files.STATE_FILE in sums:
        run_files.check_file(file, sums[run_files.STATE_FILE], remedy)
    try:
        tensors = load_file(file)
    except OSError as error:
        raise run_files.make_unreadable_error(file, error, remedy) from None
    except SafetensorError as error:
        raise run_files.make_damaged_error(file, error, remedy) from None
    parts: dict[str, dict[str, torch.Tensor]] = {"extra": {}, "private": {}, "flight": {}}
    for name, value in tensors.items():
        kind, _, inner = name.partition("/")
        if inner:
            parts[kind][inner] = value
    progress = Progress(
        totals["round"],
        State(tensors["models"], tensors["counters"], parts["extra"]),
        np.array(totals["up_bytes"], dtype=np.int64),
        np.array(totals["down_bytes"], dtype=np.int64),
        np.array([float.fromhex(s) for s in totals["sim_seconds"]]),
        totals["wall_seconds"],
        totals["metrics"],
        totals.get("failed", 0),
        totals.get("courses", {}),
        totals.get("stopped", ""),
        flight=lambda: parts["flight"],
    )
    return progress, parts["private"]


def hash_model(study: Study, state: State) -> str:
    """Returns the SHA-256 of all parameters and buffers of all models.

    For each tensor, the text `REPLICATE/FOLD/MODEL/NAME/(SHAPE)` and then the little-endian bytes are hashed. The
    tensors are in the order of replicate, fold and model. In a model, the trainable parameters come first, then float
    buffers, then counters, each in the order of the module.
    """
    tensors: dict[str, torch.Tensor] = {}
    layout = study.net.layout
    for m in range(len(state.models)):
        world, k = divmod(m, study.method.phase.models)
        replicate, fold = study.place(world)
        label = f"{replicate}/{fold}/{k}"
        for name, value in layout.views(state.models[m]).items():
            tensors[f"{label}/{name}/{tuple(value.shape)}"] = value
        for name, number in zip(layout.counters, state.counters[m], strict=True):
            tensors[f"{label}/{name}/()"] = number
    return plain.hash_tensors(tensors)


def hash_state(model: str, state: State, private: dict[str, torch.Tensor]) -> str:
    """Returns the SHA-256 of `model` (the hash of the models), `State.extra` and the clients' private vectors."""
    rest = {f"extra/{n}": state.extra[n] for n in sorted(state.extra)}
    rest |= {f"private/{n}": private[n] for n in sorted(private)}
    return plain.hash_tensors({f"model_hash/{model}": torch.zeros(0), **rest})


# ---------------------------------------------------------------------------------------------------------------------
# Reading a checkpoint for a study. Number and length of the models and number of worlds must be those of the study.


def load_study_checkpoint(
    out: Path, study: Study, folder: str = "checkpoints"
) -> tuple[Progress, dict[str, torch.Tensor]]:
    """Returns the progress and the clients' private vectors in the newest checkpoint of a run directory.

    Raises:
        Damaged: A file of the checkpoint is missing or was changed.
        FedrayError: There is no checkpoint, or the checkpoint belongs to a different study.
    """
    progress, private = load_checkpoint(out / folder)
    models, layout = study.worlds * study.method.phase.models, study.net.layout
    wanted = (models, layout.d), (models, len(layout.counters)), study.worlds
    state = progress.state
    found = tuple(state.models.shape), tuple(state.counters.shape), len(progress.sim_seconds)
    if found != wanted:
        raise FedrayError(
            f"{out / 'scenario.yaml'} wants models, counters and worlds of {wanted}, but the checkpoint of round "
            f"{progress.round} holds {found}: restore the scenario the run began with"
        )
    return progress, private


# ---------------------------------------------------------------------------------------------------------------------
# The repair of a damaged run directory by `fedray resume`, which sets damaged files aside and makes them again.
#
# Nothing is deleted. If a checkpoint or a part of a table is truncated or changed, it is moved to `set-aside/1` (or 2,
# 3 ...) of the run directory, together with all later files that depend on it. The run continues from the newest
# undamaged checkpoint whose tables are undamaged, too, or from its first round. If a file cannot be read for a
# different reason, such as its permissions, `fedray resume` ends with an error of one line.

SET_ASIDE = "set-aside"
CHECKPOINTS = "checkpoints"


def warn_of_damage(out: Path) -> None:
    """Moves damaged files of a run directory to `set-aside`, and gives a `DamageWarning` for each file."""
    for line in mend_run_directory(out):
        warn_user(line, DamageWarning)


def mend_run_directory(out: Path) -> list[str]:
    """Moves damaged files of a run directory to `set-aside`, so that the run can be resumed.

    The directory must be locked.

    Returns:
        One line for each damaged file, which says what is wrong and where the file was moved. The list is empty if
        nothing is damaged.

    Raises:
        FedrayError: A file cannot be read, though it may be undamaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     out = Path(folder)
        ...     (out / "checkpoints" / "round-000002").mkdir(parents=True)
        ...     print(mend_run_directory(out)[0].replace(folder, "RUN"))  # doctest: +ELLIPSIS
        RUN/checkpoints/round-000002/progress.json is missing: ... is in RUN/set-aside/1, and the run goes on from ...
    """
    trusted, reasons = -1, list[str]()
    rounds = run_files.find_checkpoints(out / CHECKPOINTS)
    for round in reversed(rounds):
        try:
            load_checkpoint(out / CHECKPOINTS, round)
            run_files.check_files(
                out, run_files.read_progress(out / CHECKPOINTS / f"round-{round:06d}", "").get(run_files.FILES_KEY, {})
            )
        except Damaged as error:
            reasons.append(error.reason)
        else:
            trusted = round
            break
    if not reasons:
        return []
    aside = [out / CHECKPOINTS / f"round-{round:06d}" for round in rounds if round > trusted]
    for table in run_files.TABLES:  # all files that were made after a damaged file are made again, too
        aside += [path for round, path in run_files.list_parts(out, table).items() if round > trusted]
    place = _move_aside(out, aside)
    start = f"the checkpoint of round {trusted}" if trusted >= 0 else "the first round"
    each = dict.fromkeys(reasons)
    return [f"{reason}: what cannot be trusted is in {place}, and the run goes on from {start}" for reason in each]


def _move_aside(out: Path, paths: list[Path]) -> Path:
    """Moves files and folders of a run directory into a new folder in `set-aside`, under the same names."""
    place = next(out / SET_ASIDE / str(n) for n in count(1) if not (out / SET_ASIDE / str(n)).exists())
    with plain.explain_unwritable(place):
        for path in paths:
            target = place / path.relative_to(out)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    return place


# ---------------------------------------------------------------------------------------------------------------------
# The tables of a run directory, which the run writes part by part: `rounds.parquet`, `clients.parquet` and, with
# `evaluate.clients`, `client_scores.parquet`.
#
# Every checkpoint begins a new part. A run that resumes from a checkpoint deletes the later parts.

FLUSH_ROWS = 200_000  # with more rows in memory, a part is written


class RunRecorder:
    """Writes the tables of one run: its jobs, the metrics of its evaluated rounds, and the scores of clients.

    A job trains one model at one client.

    Attributes:
        out: The run directory.
        study: The study that is trained.
    """

    def __init__(
        self,
        out: Path,
        study: Study,
        private: Callable[[], dict[str, Any]],
        watch: Callable[[Progress], None],
        *,
        confirm_directory: Callable[[], None] = lambda: None,
        saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes a recorder without rows in memory.

        Args:
            out: The run directory.
            study: The study that is trained.
            private: A function that returns the clients' private vectors, which are saved with a checkpoint.
            watch: A function that is called with the progress after each evaluated round.
            confirm_directory: A function that is called before each write. It raises an error if the run directory was
                moved or deleted.
            saved: A function that is called after each checkpoint.
        """
        self.out, self.study = out, study
        self._private, self._watch, self._confirm_directory, self._saved = private, watch, confirm_directory, saved
        self._files = run_files.read_listed_files(out)
        self._jobs: list[dict[str, Any]] = []
        self._rounds: list[dict[str, Any]] = []
        self._scores: list[dict[str, Any]] = []
        self._buffered = 0
        self._tiers = np.array([tier.name for tier in study.clients.tiers])
        self._flushed = time.monotonic()

    def jobs(self, round: int | IntArray, plan: Plan, table: JobTable) -> None:
        """Keeps one row per job of `plan` in memory until `flush` writes the rows.

        `round` is the round of all jobs, or an array with the round of each job.
        """
        n = len(plan.client)
        where = {
            "replicate": plan.world // self.study.per_replicate,
            "fold": self.study.folds[plan.world],
            "round": np.full(n, round),
            "client": self.study.client_ids(plan.world, plan.client),
            "tier": self.study.clients.tier_of(plan.client),
            "model": plan.model,
        }
        columns = where | table._asdict()
        del columns["flight"]
        if table.flight is not None:
            columns |= table.flight._asdict()
            columns["staleness"] = np.where(table.flight.staleness < 0, np.nan, table.flight.staleness)  # an empty cell
        self._jobs.append(columns)
        self._buffered += n

    def keep_clients(self, round: int, world: int, found: ClientScores) -> None:
        """Keeps the scores of the clients of one replicate and fold in memory until `flush` writes them."""
        n = len(found.client)
        replicate, fold = self.study.place(world)
        where = {"replicate": replicate, "fold": fold, "round": round}
        self._scores.append(
            {
                **{name: np.full(n, value) for name, value in where.items()},
                "client": self.study.client_ids(world, found.client),
                "tier": self.study.clients.tier_of(found.client),
                "samples": found.samples,
                **found.scores,
            }
        )
        self._buffered += n

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None:
        """Keeps the metrics of a round in memory until `flush` writes them, and calls the function `watch`."""
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
        """Writes the rows in memory, and saves a checkpoint."""
        self.flush(progress.round)
        self._confirm_directory()
        folder, keep = self.out / "checkpoints", self.study.checkpoint_keep
        save_checkpoint(folder, progress, self._private(), keep, files=self._files)
        self._saved()

    def keep_best(self, progress: Progress) -> None:
        """Saves the models of the best round so far, and removes the models of the earlier best round."""
        self._confirm_directory()
        plain.make_folder(self.out / run_files.BEST_FOLDER)
        save_checkpoint(self.out / run_files.BEST_FOLDER, progress, self._private(), keep=1)

    def flush(self, round: int) -> None:
        """Writes the rows in memory as one part of each table. `round` is the last round in these rows."""
        if self._jobs:
            columns = self._join(self._jobs)
            columns["status"] = np.array(devices.STATUS)[columns["status"]]
            self._write("clients.parquet", run_files.make_table("clients", columns), round)  # NaN becomes null
        if self._rounds:
            self._write("rounds.parquet", pa.Table.from_pylist(self._rounds, schema=_schema(self._rounds)), round)
        if self._scores:
            self._write("client_scores.parquet", run_files.make_table("client_scores", self._join(self._scores)), round)
        self._jobs, self._rounds, self._scores, self._buffered = [], [], [], 0
        self._flushed = time.monotonic()

    def _join(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Joins the columns of several parts, and replaces the indexes of tiers by the names of tiers."""
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        columns["tier"] = self._tiers[columns["tier"]]
        return columns

    def _write(self, name: str, table: pa.Table, round: int) -> None:
        self._confirm_directory()
        plain.make_folder(self.out / name)
        path = self.out / name / f"part-{round:09d}.parquet"
        write_parquet(path, table)
        self._files[f"{name}/{path.name}"] = run_files.sum_file(path)


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
        if name in run_files.COLUMNS["rounds"]:
            return run_files.arrow_type(run_files.COLUMNS["rounds"][name].kind)
        listed = any(isinstance(row.get(name), list) for row in rows)
        return pa.list_(pa.float64()) if listed else pa.float64()

    return pa.schema([(name, kind(name)) for name in names])


def read_table(out: Path, name: str) -> pa.Table:
    """Returns one of the tables `rounds`, `clients` and `client_scores`, sorted by replicate, fold and round.

    A method without local training, such as `bayesian_linear`, has scores but no jobs. The table `clients` of its runs
    has no rows.

    Raises:
        Damaged: A part of the table is missing or was changed.
        FedrayError: The table has no rows, or a part cannot be read for a different reason.
    """
    table = run_files.read_parts(out, name)
    if table is None and name == "clients" and run_files.read_parts(out, "rounds") is not None:
        return run_files.table_schema("clients").empty_table()
    if table is None and name == "client_scores":
        raise FedrayError(f"{out} has no scores of single clients: set evaluate.clients to all, or to a number")
    if table is None:
        raise FedrayError(f"{out / name}.parquet holds no rows: is {out} a finished run?")
    return table.sort_by([("replicate", "ascending"), ("fold", "ascending"), ("round", "ascending")])


# ---------------------------------------------------------------------------------------------------------------------
# Every column of every table that fedray writes, for `fedray list columns` and the documentation.

TABLES_OF = {  # the file of each table, the runs that have the table, and what a row is
    "rounds": "`rounds.parquet` of a run: one row per evaluated round, replicate and fold",
    "clients": "`clients.parquet` of a run: one row per job, also for jobs whose upload was not used",
    "client_scores": "`client_scores.parquet` of a run with `evaluate.clients`: one row per evaluated round and client",
    "drift": "`drift.parquet` of a finished run in which several trained models predict (up to 2,000 clients)",
    "partition": "`partition.parquet` of a run: one row per training sample that a client holds",
    "trials": "`trials.parquet` of a sweep: one row per trial",
    "table": "`table.parquet` of `fedray table`: one row per cell and score",
}


def list_table_columns() -> dict[str, dict[str, run_files.Column]]:
    """Returns a dict of the columns of each table. In the table `rounds`, the scores come last.

    Example:
        >>> columns = list_table_columns()
        >>> columns["rounds"]["accuracy"].unit, "accuracy" in columns["clients"]
        ('share', False)
    """
    return {table: {**run_files.COLUMNS[table], **(SCORES if table == "rounds" else {})} for table in TABLES_OF}
