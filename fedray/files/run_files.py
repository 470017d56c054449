"""What the files of a run directory hold, and their readers: summary, tables of jobs and rounds, arrays of pictures.

Whoever reads a run directory reads it here, so that a file of the wrong kind, with ids out of range or numbers in the
wrong shape is one line with its name, whichever command meets it.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = '{"method": "fedavg", "rounds": 3, "metrics": {"accuracy": 0.9}, "totals": {}, "model_hash": ""}'
    ...     _ = (Path(folder) / "summary.json").write_text(summary)
    ...     read_summary(Path(folder))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.Damaged: ...summary.json is damaged (metrics.accuracy is not mean, sd and n): ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedray.core.text import TOTALS, quote_value
from fedray.files.bounded import (
    MOST_FREE_ROWS,
    is_present,
    read_array_archive,
    read_parquet_files,
    say_damaged,
)
from fedray.files.checksums import check_parts
from fedray.files.columns import (
    CLIENT_SCORE_IDS,
    COLUMNS,
    DRIFT_IDS,
    JOB_COLUMNS,
    JOB_IDS,
    JOB_NUMBERS,
    JOB_TEXTS,
    MEMBER_COLUMNS,
    ROUND_IDS,
    Column,
)
from fedray.files.sealed import MOST_JSON_BYTES, read_sealed

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY_FILE = "summary.json"
FAILURE_FILE = "failure.json"  # what ended the run, until it goes on
MOST_TEXT = 200  # characters of a name
MOST_TIERS = 200
SUMMARY_KEYS = ("method", "rounds", "metrics", "totals", "model_hash")
RESUME = "restore it, or let `fedray resume` make it again"

# One letter a dimension: a digit is that number; of any other letter there are at most as many as below, and a capital
# letter stands for the same number in all arrays. `U` is for texts.
MOST_SIZES = {"b": 1000, "l": 1000, "g": 2000, "h": 2000, "f": 10**5, "n": 10**5, "k": 10**5, "K": 10**4, "C": 10**5,
              "c": 10**5, "p": 1000, "m": 10**7, "e": 10**6, "w": 10**6, "U": 10**5}  # fmt: skip
PICTURE_SHAPES = {
    "confusion": "CC", "confusion_average": "CC", "calibration": "b3", "label_counts": "nc", "class_names": "U",
    "disagreement": "KK", "client_scores": "n", "client_accuracy": "n", "client_rmse": "n",
    "client_rmse_equal": "n", "client_losses": "nk", "alpha": "nk",
    "predictive": "m4", "pit": "b", "coverage": "l2", "errors": "m2", "loss_plane": "gh", "loss_plane_points": "p2",
    "loss_plane_extent": "4", "graph_edges": "e2", "clusters": "n", "conformal_clients": "n2",
    "conformal_alpha": "1", "ood_entropies": "b3", "ood_auroc": "1", "stack_folds": "bf",
    "stack_bases": "U", "meta_weights": "cw",
}  # fmt: skip


def read_summary(out: Path) -> dict[str, Any]:
    """`summary.json` of a finished run: text, whole numbers, metrics with mean, sd and n, totals.

    Raises:
        Damaged: it cannot be read, or a value in it has the wrong type.
    """
    path = out / SUMMARY_FILE
    found = read_sealed(path, RESUME, MOST_JSON_BYTES)
    missing = [key for key in SUMMARY_KEYS if key not in found]
    wrong = f"it has no {missing[0]}" if missing else _find_wrong_value(found)
    if wrong:
        raise say_damaged(path, wrong, RESUME)
    return found


def _find_wrong_value(summary: dict[str, Any]) -> str | None:
    """What is wrong with a summary, in a few words; None where nothing is."""
    for key in ("method", "data", "model_hash", "state_hash"):
        if not isinstance(summary.get(key, ""), str) or len(summary.get(key, "")) > MOST_TEXT:
            return f"{key} is not a short text"
    for key in ("rounds", "failed_jobs", "seed", "untrained_models", "drawn_models"):
        if not _is_count(summary.get(key, 0)):
            return f"{key} is not a whole number"
    for section in ("metrics", "totals"):
        if not isinstance(summary.get(section, {}), dict):
            return f"{section} holds no keys"
    for name, entry in summary.get("metrics", {}).items():
        if not _is_score(entry):
            return f"metrics.{quote_value(name)[1:-1]} is not mean, sd and n"
    for name, value in [*summary.get("totals", {}).items(), *((key, None) for key in TOTALS)]:
        if name not in summary["totals"]:
            return f"totals.{name} is missing"
        if value is not None and not _is_number(value):
            return f"totals.{quote_value(name)[1:-1]} is not a number"
    return None


def _is_score(entry: Any) -> bool:
    if not isinstance(entry, dict) or not _is_count(entry.get("n")):
        return False
    return all(key in entry and (entry[key] is None or _is_number(entry[key])) for key in ("mean", "sd"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int) and value >= 0


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
    checks = {"clients": (JOB_COLUMNS, _check_jobs), "client_scores": (None, _check_client_scores)}
    wanted, check = checks.get(name, (None, _check_rounds))
    tables = read_parquet_files(parts, wanted, RESUME)
    for part, table in zip(parts, tables, strict=True):
        _check_table(part, table, check)
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
    _check_table(path, table, lambda found: _check_ids(found, DRIFT_IDS))
    return table


def _check_table(path: Path, table: pa.Table, check: Callable[[pa.Table], None]) -> None:
    try:
        check(table)
    except ValueError as error:
        raise say_damaged(path, error, RESUME) from None


def _check_ids(table: pa.Table, columns: dict[str, Column]) -> None:
    """Refuses columns of whole numbers that are missing, have another type, or a value out of range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, (_, _, _, most, needed) in columns.items():
        if name not in table.column_names:
            if needed:
                raise ValueError(f"it has no column {name}")
            continue
        column = table[name]
        if not len(column) or pa.types.is_null(column.type):
            ends = {"min": None, "max": None}
        elif pa.types.is_integer(column.type):
            ends = pc.min_max(column).as_py()
        else:
            raise ValueError(f"its column {name} holds no whole numbers")
        if needed and column.null_count:
            raise ValueError(f"its column {name} has empty cells")
        for end in ends.values():
            if end is not None and not 0 <= end <= most:
                raise ValueError(f"its column {name} has the value {quote_value(end)}, out of 0 to {most}")


def _check_jobs(table: pa.Table) -> None:
    import pyarrow as pa

    _check_ids(table, JOB_IDS)
    for name in (*JOB_NUMBERS, *JOB_TEXTS):
        needed = name != "loss" and COLUMNS["clients"][name].needed
        if name not in table.column_names:
            if needed:
                raise ValueError(f"it has no column {name}")
            continue
        kind = table[name].type
        right = pa.types.is_floating if name in JOB_NUMBERS else pa.types.is_string
        if not (right(kind) or pa.types.is_null(kind)) or (needed and table[name].null_count):
            raise ValueError(f"its column {name} holds no {'numbers' if name in JOB_NUMBERS else 'texts'}")
    _check_names(table, ("tier", "status"))


def _check_names(table: pa.Table, columns: tuple[str, ...]) -> None:
    """Refuses columns of names that are missing, or have too many or too long ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in columns:
        if name not in table.column_names or not pa.types.is_string(table[name].type):
            raise ValueError(f"its column {name} holds no texts")
        known = pc.unique(table[name])
        if len(known) > MOST_TIERS or any(len(text or "") > MOST_TEXT for text in known.to_pylist()):
            raise ValueError(f"its column {name} has more than {MOST_TIERS} names, or names that are too long")


def _check_client_scores(table: pa.Table) -> None:
    import pyarrow as pa

    _check_ids(table, CLIENT_SCORE_IDS)
    _check_names(table, ("tier",))
    for name in table.column_names:
        if name not in (*CLIENT_SCORE_IDS, "tier") and not pa.types.is_floating(table[name].type):
            raise ValueError(f"its column {name} holds no numbers")


def _check_rounds(table: pa.Table) -> None:
    import pyarrow as pa

    _check_ids(table, ROUND_IDS)
    for name in MEMBER_COLUMNS:
        if name in table.column_names:
            kind = table[name].type
            listed = pa.types.is_list(kind) and pa.types.is_floating(kind.value_type)
            if not listed and not pa.types.is_null(kind):
                raise ValueError(f"its column {name} holds no lists of numbers")
    for name in ("sim_seconds", "wall_seconds", "accuracy", "rmse"):
        kind = table[name].type if name in table.column_names else pa.null()
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
            raise ValueError(f"its column {name} holds no numbers")


def read_pictures(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of `pictures.npz` that are not empty; none where there is no file.

    Raises:
        Damaged: it cannot be read, or an array has the wrong shape or type.
    """
    remedy = RESUME
    if not is_present(path):
        return {}
    found = {name: array for name, array in read_array_archive(path, PICTURE_SHAPES, remedy).items() if array.size}
    sizes: dict[str, int] = {}
    for name, array in found.items():
        if not _fits_pattern(array, PICTURE_SHAPES[name], sizes):
            shape = " x ".join(map(str, array.shape)) or "one value"
            raise say_damaged(path, f"{name} is {shape} of type {array.dtype}", remedy)
    edges = found.get("graph_edges")
    if edges is not None and not (
        edges.dtype.kind in "iu" and 0 <= edges.min() <= edges.max() < JOB_IDS["client"].most
    ):
        raise say_damaged(path, "graph_edges are not pairs of clients", remedy)
    return found


def _fits_pattern(array: NDArray[Any], pattern: str, sizes: dict[str, int]) -> bool:
    """Whether an array has the shape of a pattern; `sizes` keeps what the capital letters stand for."""
    if pattern == "U":
        known = array.ndim == 1 and array.dtype.kind == "U" and array.dtype.itemsize <= 4 * MOST_TEXT
        return known and len(array) <= MOST_SIZES["U"]
    if array.dtype.kind == "U" or array.ndim != len(pattern):
        return False
    for letter, size in zip(pattern, array.shape, strict=True):
        wanted = int(letter) if letter.isdigit() else sizes.setdefault(letter, size) if letter.isupper() else size
        if size != wanted or size > MOST_SIZES.get(letter, size):
            return False
    return True


def refuse_wide_table(path: Path, rows: int, *sides: int) -> None:
    """Refuses rows that are so far apart that the table they span is much larger than they are.

    Args:
        path: of the file, for the message.
        rows: how many there are.
        sides: of the table.

    Raises:
        Damaged: the table has more cells than ten times the rows and a million.
    """
    if math.prod(sides) > MOST_FREE_ROWS + 10 * rows:
        raise say_damaged(path, f"{rows:,} rows span {' x '.join(f'{side:,}' for side in sides)} cells", RESUME)
