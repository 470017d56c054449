"""Tables: the UCI regression sets in the standard layout of their splits, the printers, and any table.

Example:
    >>> import tempfile
    >>> import pandas as pd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/rows.csv"
    ...     pd.DataFrame({"a": range(10), "b": [0.5] * 10, "kind": ["x", "y"] * 5}).to_csv(path, index=False)
    ...     data = load_table(None, path=path, target="kind")
    >>> data.class_names, data.train.x.shape
    (('x', 'y'), (8, 2))
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, IntArray
from fedray.data.column_names import spell_columns
from fedray.data.files import explain_damage, find_file
from fedray.data.forms.clients import read_table_folder
from fedray.data.forms.frames import build_table, read_frame
from fedray.data.forms.rows import ReadOptions
from fedray.data.moments import column_moments
from fedray.data.types import Dataset, Split, regression
from fedray.files.plain import expand_user_path, explain_missing_path


def find_uci_folder(name: str, root: Path | None) -> Path:
    """The `data/` folder of one UCI set."""
    folder = name.removeprefix("uci/")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", folder):
        raise BadInput(f"data.name = {name}: write uci/ and the name of a folder, such as uci/yacht")
    places = [f"UCI/UCI_Datasets/{folder}/data", f"UCI_Datasets/{folder}/data", f"{folder}/data"]
    return find_file(root, name, places, "data.txt")


def load_uci(name: str, root: Path | None) -> Dataset:
    """A regression set with its standard splits as folds; every fold is standardized by its own training rows."""
    folder = find_uci_folder(name, root)
    data = _read_numbers(name, folder / "data.txt")
    inputs, target = (_read_rows(name, folder / f"index_{part}.txt", data.shape[1]) for part in ("features", "target"))
    x, y = data[:, inputs].astype(np.float32), data[:, target].astype(np.float32)
    count = int(_read_numbers(name, folder / "n_splits.txt")[0, 0])
    folds = []
    for k in range(count):
        train, test = (_read_rows(name, folder / f"index_{part}_{k}.txt", len(data)) for part in ("train", "test"))
        if np.isin(test, train, kind="table").any():
            raise explain_damage(name, folder / f"index_test_{k}.txt", "rows that are also in the training part")
        folds.append((train, test))
    each = [(*column_moments(x[train]), *column_moments(y[train])) for train, _ in folds]
    a, b, c, d = (np.stack(part) for part in zip(*each, strict=True))
    return Dataset(name, Split(x, y), Split(x[:0], y[:0]), 0, (), a, b, c, d, tuple(folds))


def _read_numbers(name: str, path: Path) -> FloatArray:
    """A file of numbers, `[rows, columns]`, all finite."""
    if not path.exists():
        raise BadInput(f"data.name = {name}, but there is no {path}: run `fedray data get {name}`, or put it there")
    try:
        delimiter = "," if path.suffix == ".csv" else None
        values = np.loadtxt(path, delimiter=delimiter, ndmin=2, dtype=np.float64)
    except (ValueError, OSError) as error:
        raise explain_damage(name, path, error) from error
    if not values.size or not np.isfinite(values).all():
        raise explain_damage(name, path, "empty, or numbers that are not finite")
    return values


def _read_rows(name: str, path: Path, limit: int) -> IntArray:
    """Indices below `limit`, `[n]`; the files hold them as floats."""
    index = _read_numbers(name, path).ravel().astype(np.int64)
    if index.min() < 0 or index.max() >= limit or np.bincount(index).max() > 1:
        raise explain_damage(name, path, f"indices outside 0 .. {limit - 1}, or twice the same")
    return index


def find_printers_folder(root: Path | None) -> Path:
    """The folder of the printers' CSV files."""
    return find_file(root, "printers", ["printer_vibration", "printers"], "*Printer*_Speed*.csv", fetchable=False)


def load_printers(
    root: Path | None, speed: Literal["nominal", "measured"] = "nominal", test_speed: int = 30
) -> Dataset:
    """The vibration of 3D printers, `sqrt(rms_x^2 + rms_y^2)`, from print speed and printer (one-hot).

    Each printer is a client. Every CSV row (measured speed, rms_x, rms_y) is a sample: its two accelerations are root
    mean squares over a stretch of printing. The test rows are those of one nominal speed, of all printers.

    Args:
        root: Folder of data files; None for the usual one.
        speed: `nominal` (of the file name) or `measured` (column 0, which levels off near 43).
        test_speed: Nominal speed of the test rows.
    """
    if speed not in ("nominal", "measured"):
        raise BadInput(f"data.speed = {speed}: choose nominal or measured")
    folder = find_printers_folder(root)
    parts = []
    for path in sorted(folder.glob("*Printer*_Speed*.csv")):
        if match := re.search(r"Printer(\d+)_Speed(\d+)\.csv$", path.name):
            values = _read_numbers("printers", path)
            if values.shape[1] != 3:
                raise explain_damage("printers", path, f"{values.shape[1]} columns, not 3")
            parts.append(np.column_stack([values, np.tile([int(match[1]), int(match[2])], (len(values), 1))]))
    rows = np.concatenate(parts)  # [n, 5]: measured, rms_x, rms_y, printer, nominal
    label, group = np.unique(rows[:, 3], return_inverse=True)
    first = rows[:, 4 if speed == "nominal" else 0]
    x = np.column_stack([first, np.eye(len(label))[group]]).astype(np.float32)
    y = np.hypot(rows[:, 1], rows[:, 2])[:, None].astype(np.float32)
    held = rows[:, 4] == test_speed
    if held.all() or not held.any():
        raise BadInput(f"data.test_speed = {test_speed}: choose one of {np.unique(rows[:, 4]).astype(int).tolist()}")
    train, test = (Split(x[m], y[m], group[m].astype(np.int64)) for m in (~held, held))
    data = regression("printers", train, test)
    data.shift[:, 1:], data.scale[:, 1:] = 0.0, 1.0  # the label stays one-hot
    return data


def find_table_file(path: str | Path | None, key: str = "path") -> Path:
    """The user's own file, or their folder with one for each client; `key` is the option that names it."""
    if not path:
        raise BadInput(f"data.{key} is missing: give the path of a .parquet or .csv file")
    file = expand_user_path(f"data.{key}", str(path))
    if not file.is_file() and not (key == "path" and file.is_dir()):
        raise BadInput(f"data.{key} = {path}: {explain_missing_path(file, 'file')}")
    return file


def load_table(
    _root: Path | None,
    *,
    path: str | None = None,
    target: str | list[str] | None = None,
    features: list[str] | None = None,
    group: str | None = None,
    test: str | None = None,
    test_fraction: float = 0.2,
    task: Literal["auto", "classification", "regression"] = "auto",
    missing: Literal["refuse", "mean", "drop"] = "refuse",
    seed: int = 0,
) -> Dataset:
    """Any Parquet, CSV or Feather file with a sample in each row, or a folder with one for each client or each part.

    Args:
        path: The file, or the folder.
        target: The column to predict: one, also for a regression.
        features: Columns of numbers, truth values or categories; None means all of them but target and group.
        group: Column whose values are the natural clients.
        test: Another file with the test rows, or which file of a folder of parts has them; None: `test` or `val` of the
            folder, or they are drawn.
        test_fraction: Share of the rows that are test rows, between 0 and 1.
        task: `auto` takes text, truth values and whole numbers as classes, real numbers as targets.
        missing: `refuse` missing values, put the `mean` of the training rows in their place (text gets a category of
            its own), or `drop` the rows that have them.
        seed: Address of the drawn test rows.
    """
    file = find_table_file(path)
    reading = ReadOptions(
        target=spell_columns(target, "data.target"),
        input=spell_columns(features, "data.features"),
        group=spell_columns(group, "data.group"),
        test_fraction=test_fraction,
        task=task,
        missing=missing,
        seed=seed,
        input_key="features",
    )
    if file.is_dir():
        return read_table_folder(file, reading._replace(test=test))
    other = read_frame(find_table_file(test, "test"), "test") if test else None
    return build_table(read_frame(file), other, reading)
