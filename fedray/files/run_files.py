"""What the files of a run directory hold, and their readers: summary, tables of jobs and rounds, arrays of pictures.

Whoever reads a run directory reads it here, so that a file of the wrong kind or with ids out of range is one line with
its name, whichever command meets it.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "summary.json").write_text('{"method": "fedavg", "rounds": 3}')
    ...     read_summary(Path(folder))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.Damaged: ...summary.json is damaged (it has no metrics): ...
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedray.files.bounded import is_present, read_array_archive, read_parquet_files, say_damaged
from fedray.files.checksums import check_parts
from fedray.files.columns import CLIENT_SCORE_IDS, DRIFT_IDS, JOB_COLUMNS, JOB_IDS, ROUND_IDS, Column
from fedray.files.sealed import read_sealed

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY_FILE = "summary.json"
FAILURE_FILE = "failure.json"  # what ended the run, until it goes on
SUMMARY_KEYS = ("method", "rounds", "metrics", "totals", "model_hash")
_IDS = {"clients": JOB_IDS, "rounds": ROUND_IDS, "client_scores": CLIENT_SCORE_IDS}
RESUME = "restore it, or let `fedray resume` make it again"

PICTURES = (
    "confusion", "confusion_average", "calibration", "label_counts", "class_names", "disagreement", "client_scores",
    "client_accuracy", "client_rmse", "client_rmse_equal", "client_losses", "alpha", "predictive", "pit", "coverage",
    "errors", "loss_plane", "loss_plane_points", "loss_plane_extent", "graph_edges", "clusters", "conformal_clients",
    "conformal_alpha", "ood_entropies", "ood_auroc", "stack_folds", "stack_bases", "meta_weights",
)  # fmt: skip


def read_summary(out: Path) -> dict[str, Any]:
    """`summary.json` of a finished run.

    Raises:
        Damaged: it cannot be read, or a key is missing.
    """
    path = out / SUMMARY_FILE
    found = read_sealed(path, RESUME)
    missing = [key for key in SUMMARY_KEYS if key not in found]
    if missing:
        raise say_damaged(path, f"it has no {missing[0]}", RESUME)
    return found


def read_parts(out: Path, name: str) -> pa.Table | None:
    """`rounds`, `clients` or `client_scores` of a run directory, all parts as one table, in the order of writing.

    Raises:
        Damaged: a part cannot be read, lacks a column, or holds a value that cannot be.
    """
    import pyarrow as pa

    folder = out / f"{name}.parquet"
    if is_present(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise say_damaged(folder, "it is no directory", RESUME)
    parts = check_parts(out, folder.name)
    tables = read_parquet_files(parts, JOB_COLUMNS if name == "clients" else None, RESUME)
    for part, table in zip(parts, tables, strict=True):
        _check_ids(part, table, _IDS[name])
    tables = [table for table in tables if len(table)]
    if not tables:
        return None
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException:
        raise say_damaged(folder, "a column of its parts differs in its type", RESUME) from None


def read_drift_file(path: Path) -> pa.Table:
    """The table of drift scores.

    Raises:
        Damaged: it cannot be read, or holds a value that cannot be.
    """
    table = read_parquet_files([path], None, RESUME)[0]
    _check_ids(path, table, DRIFT_IDS)
    return table


def _check_ids(path: Path, table: pa.Table, columns: dict[str, Column]) -> None:
    """Refuses columns of whole numbers that are missing, have another type, or a value out of range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, (_, _, _, most, needed) in columns.items():
        if name not in table.column_names:
            wrong = f"it has no column {name}" if needed else ""
        elif not pa.types.is_integer(kind := table[name].type) and not pa.types.is_null(kind):
            wrong = f"its column {name} holds no whole numbers"
        elif needed and table[name].null_count:
            wrong = f"its column {name} has empty cells"
        else:
            known = table[name].drop_null()
            ends = pc.min_max(known).as_py().values() if len(known) else ()
            out = next((end for end in ends if not 0 <= end <= most), None)
            wrong = "" if out is None else f"its column {name} has the value {out}, out of 0 to {most}"
        if wrong:
            raise say_damaged(path, wrong, RESUME)


def read_pictures(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of `pictures.npz` that are not empty; none where there is no file.

    Raises:
        Damaged: it cannot be read, or an edge of the graph has no client.
    """
    if not is_present(path):
        return {}
    found = {name: array for name, array in read_array_archive(path, PICTURES, RESUME).items() if array.size}
    edges = found.get("graph_edges")
    if edges is not None and not (
        edges.dtype.kind in "iu" and 0 <= edges.min() <= edges.max() < JOB_IDS["client"].most
    ):
        raise say_damaged(path, "graph_edges are not pairs of clients", RESUME)
    return found
