"""Tables of named columns: pandas and polars frames, pyarrow tables, and files of them.

Example:
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0] * 5, "b": ["x", "y"] * 10, "ill": ["no", "yes"] * 10})
    >>> data = build_table(as_frame(frame), None, ReadOptions(target="ill"))
    >>> data.features, data.train.x.shape, data.class_names
    (('a', 'b=x', 'b=y'), (16, 3), ('no', 'yes'))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.data.cells import find_marks, is_text, name_cells, unbox
from fedray.data.column_names import refuse_twins
from fedray.data.columns import TableColumns, choose_columns, find_row_gaps
from fedray.data.encoding import describe_columns, encode_inputs, find_table_origin, name_inputs
from fedray.data.forms.arrays import list_classes
from fedray.data.forms.rows import GIVEN_ROW, MOST_COUNTED, RawRows, ReadOptions, make_dataset
from fedray.data.forms.text_tables import explain_table, read_text_table
from fedray.data.types import Array, Dataset
from fedray.files.layout import TABLES
from fedray.files.leaf_files import list_leaf_files

OTHER_FILES = {".xlsx": "excel", ".xls": "excel", ".json": "json", ".jsonl": "json", ".dta": "stata", ".sav": "spss"}
OTHER_FILES |= {".pkl": "pickle", ".pickle": "pickle", ".h5": "hdf", ".hdf": "hdf"}
ARRAY_FILES = (".npz", ".npy", ".mat", ".pt", ".pth")
READ_FILES = "CSV (.csv, .tsv, .txt, .data, .gz), Parquet (.parquet, .pq) and Feather files (.feather, .arrow)"
MOST_KEPT = 2_000_000  # values of a table up to which all columns are kept, so that rows can be dealt by any of them
MOST_KEPT_VALUES = 10_000  # different values of a column that is kept of a larger table
_FRAMES = {"pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame", "pyarrow.Table", "pyarrow.RecordBatch"}


class ArrowFrame:
    """The columns of a pyarrow table as pandas series, one at a time, so that a mapped file needs no memory."""

    def __init__(self, table: Any, rows: Array | None = None) -> None:
        """Wraps a table, or the rows of it that are given."""
        self._table, self._rows = table, rows
        self.attrs: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows) if self._rows is None else len(self._rows)

    def __getitem__(self, name: str) -> Any:
        column = unbox(self._table.column(name).to_pandas())
        return column if self._rows is None else column.iloc[self._rows]

    def keep(self, rows: Array) -> ArrowFrame:
        """Some of the rows, by their indices."""
        kept = ArrowFrame(self._table, rows if self._rows is None else self._rows[rows])
        kept.attrs = self.attrs
        return kept


def is_frame(thing: Any) -> bool:
    """Whether a thing is a table of named columns."""
    return bool(list_classes(thing) & _FRAMES) or isinstance(thing, ArrowFrame)


def as_frame(thing: Any) -> Any:
    """A table whose columns are pandas series, by their names as text."""
    if isinstance(thing, ArrowFrame):
        return thing
    classes = list_classes(thing)
    if "polars.LazyFrame" in classes:
        thing = thing.collect()
    if classes & {"polars.LazyFrame", "polars.DataFrame"}:
        return ArrowFrame(thing.to_arrow())
    if "pyarrow.RecordBatch" in classes:
        import pyarrow as pa

        thing = pa.Table.from_batches([thing])
    if classes & {"pyarrow.RecordBatch", "pyarrow.Table"}:
        refuse_twins(thing.column_names, "the table")
        return ArrowFrame(thing)
    if any(not isinstance(name, str) for name in thing.columns):
        thing = thing.set_axis([str(name) for name in thing.columns], axis=1)
    refuse_twins(thing.columns, "the table")
    objects = {name: thing[name] for name, kind in thing.dtypes.items() if kind.name == "object"}
    numbers = {name: made for name, column in objects.items() if (made := unbox(column)) is not column}
    return thing.assign(**numbers) if numbers else thing


def read_frame(file: Path, key: str = "path") -> Any:
    """A file as a pandas table; its ending says how it is read: CSV, Parquet or Feather.

    Args:
        file: The file.
        key: Of the scenario, for messages.

    Raises:
        BadInput: It is a file of another kind, or damaged.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    ending = file.suffix.lower()
    if file.name.lower().endswith((".json.gz", ".jsonl.gz")):
        ending = ".json"
    if list_leaf_files(file):
        raise BadInput(f"data.{key} = {file} is LEAF's JSON: data.name: leaf reads it")
    if ending in OTHER_FILES:
        raise BadInput(
            f"data.{key} = {file}: {ending} files are not read: convert it once, pandas.read_{OTHER_FILES[ending]}(...)"
            ".to_parquet(...)"
        )
    if ending in ARRAY_FILES:
        raise BadInput(f"data.{key} = {file}: {ending} files are no tables: load it, and give its arrays, data=(x, y)")
    kind = TABLES.get(ending, "csv")
    try:
        if kind == "parquet":
            refuse_twins(pq.read_schema(file).names, file.name)
            frame = pd.read_parquet(file)
        elif kind == "feather":
            frame = _read_arrow(file)
        else:
            frame = _read_csv(file, "\t" if kind == "tsv" else ",", key)
    except BadInput:
        raise
    except Exception as error:  # pyarrow and pandas raise many kinds
        if ending not in TABLES:
            raise BadInput(f"data.{key} = {file} is no table that is read: give {READ_FILES}") from error
        raise explain_table(file, error, f"data.{key} = {file}") from error
    frame = as_frame(frame)
    frame.attrs["file"] = file.name  # for messages
    return frame


def _read_arrow(file: Path) -> Any:
    """A Feather file, or a stream of Arrow."""
    import pandas as pd
    import pyarrow as pa

    try:
        return pd.read_feather(file)
    except pa.ArrowInvalid:
        with pa.memory_map(str(file)) as opened, pa.ipc.open_stream(opened) as stream:
            return stream.read_pandas()


def _read_csv(file: Path, delimiter: str, key: str) -> Any:
    """A file of text, where `key` names it; one without commas between its columns may have them in its numbers."""
    frame, found = read_text_table(file, delimiter)
    for column in frame if found != delimiter else ():
        if is_text(frame[column]) and (marks := find_marks(frame[column])):
            more = f", or {marks[1].options} if these are decimal commas" if len(marks) > 1 else ""
            what = "commas" if "," in marks[0] else marks[0].what
            raise BadInput(
                f"data.{key} = {file}: column {column} has numbers with {what}: convert it once, pandas.read_csv(..., "
                f"sep={found!r}, {marks[0].options}).to_parquet(...){more}"
            )
    return frame


def build_table(
    frame: Any, other: Any, reading: ReadOptions, name: str = "table", names: Sequence[str] = ()
) -> Dataset:
    """The data set of a table.

    Args:
        frame: The table, from which test rows are drawn if there is no other.
        other: Another table with the test rows; None: there is none.
        reading: How it is read.
        name: Of the data set.
        names: Of the classes, where the target has numbers that stand for them.

    Raises:
        BadInput: A column is missing, has gaps that may not be, or holds what cannot be read.
    """
    if not len(frame):
        raise BadInput(f"data: {frame.attrs.get('file', 'the table')} has no rows: give some")
    target, features = reading.target, reading.input
    targets = [target] if isinstance(target, str) else list(target or [])
    inputs = [features] if isinstance(features, str) else list(features) if features else None
    task = "classification" if names else reading.task
    columns = choose_columns(frame, targets, inputs, reading.group, task, key=reading.input_key)
    train = _read_part(frame, columns, reading, "data")
    test = None if other is None else _read_part(other, columns, reading, "data.test", train)
    if test is not None and columns.classes:
        unknown = np.setdiff1d(test.y, train.y)
        if len(unknown):
            raise BadInput(f"data.test: class {unknown[0]} is not in the training table: remove its rows")
    train = train._replace(names=names)
    task = "classification" if columns.classes else "regression"
    return make_dataset(name, train, test, reading._replace(task=task), columns.remarks)


def _read_part(
    frame: Any, columns: TableColumns, reading: ReadOptions, key: str, first: RawRows | None = None
) -> RawRows:
    """The rows of a table that are used; `first` are those of the training table."""
    gaps = find_row_gaps(frame, columns, reading.missing, key)
    rows = np.flatnonzero(~gaps)
    if gaps.all() and len(gaps):
        raise BadInput(f"{key}: each of {len(gaps)} rows has gaps, so data.missing = drop leaves none: fill them")
    if gaps.any():
        frame = frame.keep(rows) if isinstance(frame, ArrowFrame) else frame.iloc[rows]
    origin = find_table_origin(frame, columns) if first is None else first.origin
    x, y = encode_inputs(frame, columns, origin), _read_target(frame, columns)
    group = None
    if columns.group is not None:
        group = frame[columns.group].map(columns.groups).fillna(-1).to_numpy(dtype=np.int64)
    names = name_inputs(columns)
    numbers = {str(column) for column in columns.inputs if column not in columns.categories}
    indicators = np.array([name not in numbers for name in names]) if columns.categories else None
    table = describe_columns(list(frame), columns)
    kept = keep_columns(frame, columns.inputs)
    if len(rows) <= MOST_COUNTED:
        kept.setdefault(GIVEN_ROW, rows)
    return RawRows(x, y, group, kept, features=names, indicators=indicators, table=table, origin=origin)


def _read_target(frame: Any, columns: TableColumns) -> Array:
    """Classes of any type `[n]`, or targets `[n, q]`."""
    if columns.classes:
        values = frame[columns.targets[0]]
        if values.dtype.kind in "iufb":
            return np.asarray(values.to_numpy())
        if all(isinstance(value, bool) for value in values.unique()):
            return np.asarray(values.to_numpy(dtype=bool))
        return np.asarray(values.map(str).to_numpy(dtype=str))
    try:
        return np.column_stack([frame[target].to_numpy(dtype=np.float64) for target in columns.targets])
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"data.target = {columns.targets[0]}: not numeric, so data.task must be classification"
        ) from error


def keep_columns(frame: Any, inputs: Sequence[str]) -> dict[str, Array]:
    """Columns as text, by which rows can be dealt to clients: all of a small table, of a large one no inputs.

    Args:
        frame: The table.
        inputs: Columns that are inputs.
    """
    names = list(frame)
    small = len(names) * len(frame) <= MOST_KEPT
    kept = {}
    for name in names:
        values = frame[name]
        if values.dtype.name == "object" and name_cells(values) != "objects":
            continue
        if (small or name not in inputs) and (small or values.nunique() <= MOST_KEPT_VALUES):
            kept[str(name)] = values.astype(str).to_numpy(dtype=str)
    return kept


def number_groups(column: Any, known: Any) -> Array:
    """The natural client of each row, `[n]`: the place of its value among those of the training rows in rising order.

    Args:
        column: Whose each row is.
        known: The same column of the training rows; a value that is not there is -1.
    """
    if column.isna().any():
        raise BadInput(f"data.group: {int(column.isna().sum())} rows have none: fill them or drop those rows")
    found = {value: i for i, value in enumerate(sorted(known.dropna().unique()))}
    return np.asarray(column.map(found).fillna(-1).to_numpy(dtype=np.int64))
