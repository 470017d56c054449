"""Reads tables of named columns and files of tables. Chooses the inputs, and converts them to numbers.

A *natural client* is a client named in the data, such as the writer of a text.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput, show_line, suggest_nearest
from fedray.core.options import ReadOptions
from fedray.data.files import find_path
from fedray.data.forms import arrays
from fedray.data.forms.rows import GIVEN_ROW, RawRows, make_dataset, refuse_idle, tokenize
from fedray.data.types import Array, Dataset, Float64, find_origin
from fedray.files.layout import TABLES
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# Text files of tables, such as CSV files, and the delimiters of their columns.

DELIMITERS = ";\t|"  # possible delimiters in addition to the comma


def read_text_table(file: Path, delimiter: str) -> Any:
    r"""Reads a table from a text file, with `delimiter` or a different delimiter between the columns.

    If `delimiter` does not divide the first line, but exactly one of semicolon, tab and `|` occurs in this line, the
    table is read with that character as the delimiter.

    Raises:
        BadInput: Two columns have the same name, or the first line does not name the columns.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "t.csv"
        ...     _ = file.write_text("a;b\n1;x\n")
        ...     read_text_table(file, ",").shape
        (1, 2)
    """
    import pandas as pd

    with file.open("rb") as opened:
        encoding = "utf-16" if opened.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8"

    def read_names() -> list[str]:
        """Returns the names of the columns in the file. A column without a name has an empty text."""
        how: Any = {"header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
        return [str(name) for name in pd.read_csv(file, sep=delimiter, encoding=encoding, **how).iloc[0]]

    head = read_names()
    found = [mark for mark in DELIMITERS if len(head) == 1 and mark in head[0]]
    if len(found) == 1:
        delimiter = found[0]
        head = read_names()
    arrays.refuse_twins([name for name in head if name], file.name)  # pandas would rename the second column
    frame = pd.read_csv(file, sep=delimiter, encoding=encoding, low_memory=False)  # one type for each whole column
    if isinstance(frame.index, pd.MultiIndex):
        raise BadInput(
            f"data: {file.name}: its first line names {len(head)} columns, but its rows have "
            f"{len(head) + frame.index.nlevels} fields: remove what stands above the names of the columns, or name all"
        )
    for column in frame if delimiter != "," else ():
        if arrays.is_text(frame[column]) and arrays.holds_marked_numbers(frame[column]):
            raise BadInput(f"data: {file.name}: column {column} has {arrays.MARKS}")
    return frame


# ---------------------------------------------------------------------------------------------------------------------
# Choice of the columns of a table (inputs, categories, targets), and treatment of missing values.

MOST_NAMED_VALUES = 1000  # a text column that the user names as an input may have at most so many different values
GAP = "missing"  # the category of a missing value
REMEDY = "write data.missing: drop (those rows) or mean (of inputs; text gets a category of its own), or fill them"


class TableColumns(NamedTuple):
    """The roles of the columns of a table.

    Attributes:
        targets: Names of the columns to predict.
        inputs: Names of the input columns.
        categories: Dict from the name of each input column of text to the list of its different values. Each value
            becomes a 0-1 input, in the order of the list.
        classes: Whether the target is a class.
        group: Name of the column of the natural clients, or None.
        groups: The group column of the training table, or None.
        remarks: Sentences that tell the user about the choice of columns.
    """

    targets: list[str]
    inputs: list[str]
    categories: dict[str, list[str]]
    classes: bool
    group: str | None
    groups: Any
    remarks: tuple[str, ...] = ()

    @property
    def used(self) -> list[str]:
        """Names of all columns in use: targets, inputs and group."""
        return [*self.targets, *self.inputs, *([self.group] if self.group else [])]


def choose_columns(frame: Any, reading: ReadOptions, task: str) -> TableColumns:
    """Chooses the inputs, the targets and the natural clients of a table.

    If `reading` names no inputs, every column of numbers, booleans or categories is an input, except targets, group and
    `exclude`. `task` is `auto`, `classification` or `regression`, in place of `reading.task`.

    Raises:
        BadInput: A column is missing, is both input and target, or mixes numbers and text.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [31, 45], "smokes": [True, False], "city": ["Rome", "Oslo"], "ill": [0, 1]})
        >>> found = choose_columns(frame, ReadOptions(target="ill"), "auto")
        >>> found.inputs, found.categories
        (['age', 'smokes', 'city'], {'city': ['Oslo', 'Rome']})
    """
    roles = (reading.target, reading.input, reading.exclude)
    targets, features, exclude = ([of] if isinstance(of, str) else list(dict.fromkeys(of or ())) for of in roles)
    group, key = reading.group, reading.input_key
    if not targets:
        raise BadInput(
            f"data.target is missing: name the column to predict: {', '.join(map(str, frame))[:200]} (beside data= in "
            "Python: data__target=COLUMN)"
        )
    if both := set(targets) & set(features):
        raise BadInput(f"data.{key}: {min(both)} is also the target, which every model would copy: leave it out")
    if features and exclude:
        raise BadInput(f"data.exclude cannot act, because data.{key} names the inputs: leave one of them out")
    require_columns(frame, [*targets, *features, *exclude, *([group] if group else [])])
    inputs, remarks = (features, ()) if features else arrays.find_inputs(frame, [*targets, *exclude, group], key)
    for column in features:
        remarks += arrays.check_input(frame, column, key)
    for column in targets:
        _refuse_strange(frame, column, "data.target", task)
        if task != "classification":
            arrays.refuse_stray(frame, column, "data.target", "correct it, or write data.task: classification")
    if group is not None:
        _refuse_strange(frame, group, "data.group", "classification")
    categories = {column: _list_values(frame, column, key) for column in inputs if arrays.is_category(frame[column])}
    classes = task == "classification" or (task == "auto" and len(targets) == 1 and _is_class(frame[targets[0]]))
    for column in targets:
        given = frame[column].dropna().to_numpy()
        remarks += (
            arrays.remark_on_many_classes(given, task) if classes else arrays.remark_on_whole_targets(given, task)
        )
        if not classes and arrays.is_text(frame[column]):
            remarks += (f"data: column {column} is text of numbers, read as targets of a regression",)
    return TableColumns(targets, inputs, categories, classes, group, frame[group] if group else None, remarks)


def require_columns(frame: Any, columns: list[str], key: str = "data", of: str | None = None) -> None:
    """Checks that a table has the required columns. The error suggests the nearest name and lists all columns.

    `of` is the name of the table in the message. The default is the file name of the table.
    """
    known = [str(name) for name in frame]
    for column in columns:
        if column not in known:
            name = of or frame.attrs.get("file", "the table")
            remedy = suggest_nearest(str(column), known, "add it, or choose one of them")
            raise BadInput(f"{key}: {name} has no column {column}: {remedy} (its columns: {', '.join(known)[:400]})")


def find_row_gaps(frame: Any, columns: TableColumns, missing: str, key: str) -> Array:
    """Returns for each row of a table whether it is left out because of missing values, `[n]` bool.

    If `missing` is `drop`, rows with missing values are left out. Otherwise no row is left out. `missing` is `refuse`,
    `mean` or `drop`.

    Raises:
        BadInput: Values are missing, and `missing` does not allow this.
    """
    require_columns(frame, columns.used, key)
    out, found = np.zeros(len(frame), dtype=bool), {}
    for column in columns.used:
        gaps = frame[column].isna().to_numpy(dtype=bool)
        if missing == "drop":
            out |= gaps
        elif gaps.any() and (missing == "refuse" or column not in columns.inputs):
            found[column] = gaps.sum()
    if found:
        remedy = REMEDY
        if needed := [column for column in found if column not in columns.inputs]:
            without = " or ".join(needed)
            remedy = f"take rows without {without} out, or write data.missing: drop (also of rows with missing inputs)"
        counts = ", ".join(f"{column} ({number})" for column, number in found.items())
        raise BadInput(f"{key}: values are missing in {counts[:400]}: {remedy}")
    return out


def _list_values(frame: Any, column: str, key: str) -> list[str]:
    """Returns the different values of a text column. A missing value counts as the text `missing` (`GAP`)."""
    values = frame[column]
    found = sorted({str(value) for value in values.dropna().unique()})
    if len(found) > MOST_NAMED_VALUES:
        raise BadInput(f"data.{key}: column {column} has {len(found)} texts, {MOST_NAMED_VALUES} at most: leave it out")
    return [*found, GAP] if values.isna().any() and GAP not in found else found


def _is_class(column: Any) -> bool:
    """Returns whether a target column holds classes, if the user leaves this open (task `auto`).

    Text, booleans and integers are classes, even if some values are missing. Floating-point numbers are not classes,
    even if they are written as text.
    """
    if column.dtype.kind == "f":
        return arrays.is_whole_with_gaps(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return not (
        arrays.is_text(column) and arrays.is_number_text(column) and any("." in value for value in column.dropna())
    )


def _refuse_strange(frame: Any, column: str, key: str, task: str) -> None:
    """Refuses a target or group column with values other than numbers, booleans and text.

    If `task` is not `classification`, also refuses text that holds numbers with marks, as in `1,234`.
    """
    values = frame[column]
    if values.dtype.kind not in "iufbOU" or not arrays.holds_words(values):
        raise BadInput(f"{key}: column {column} is of type {values.dtype}: give a number or a text in each row")
    if task != "classification" and arrays.is_text(values) and arrays.holds_marked_numbers(values):
        raise BadInput(f"{key}: column {column} has {arrays.MARKS} (or write data.task: classification)")


# ---------------------------------------------------------------------------------------------------------------------
# Conversion of the inputs of a table to numbers.
#
# Numbers and booleans become inputs unchanged. A category becomes one 0-1 input for each value (one-hot, in
# alphabetical order). The 0-1 inputs are not standardized. For a value that is not in the training table, all 0-1
# inputs of the category are 0. `list_unseen` tells the user about such values.


def encode_inputs(frame: Any, columns: TableColumns, origin: Float64 | None = None) -> Array:
    """Converts the inputs of a table to numbers, `[n, f]` float32. A missing number becomes NaN.

    `origin`, `[f]`, is subtracted from the inputs in float64 (`fedray.data.types`). None means that nothing is
    subtracted.

    Example:
        >>> import pandas as pd
        >>> from fedray.data.forms.tables import choose_columns
        >>> frame = pd.DataFrame({"age": [31, 45], "city": ["Rome", "Oslo"], "ill": [0, 1]})
        >>> found = choose_columns(frame, ReadOptions(target="ill"), "auto")
        >>> encode_inputs(frame, found).tolist()
        [[31.0, 0.0, 1.0], [45.0, 1.0, 0.0]]
        >>> name_inputs(found)
        ('age', 'city=Oslo', 'city=Rome')
    """
    x, place = np.empty((len(frame), len(name_inputs(columns))), dtype=np.float32), 0
    for column in columns.inputs:
        block: Array
        if (values := columns.categories.get(column)) is None:
            block = _as_numbers(frame[column])[:, None] - (0.0 if origin is None else origin[place])
        else:  # an unknown value has the number -1, which is no place
            block = _number_values(frame[column], values)[:, None] == np.arange(len(values))
        x[:, place : place + block.shape[1]] = block
        place += block.shape[1]
    return x


def find_table_origin(frame: Any, columns: TableColumns) -> Float64 | None:
    """Returns the constants to subtract from inputs before they become float32, `[f]`. None means that all are 0."""
    parts = []
    for column in columns.inputs:
        values = columns.categories.get(column)
        own = find_origin(_as_numbers(frame[column])[:, None]) if values is None else None
        parts.append(np.zeros(1 if values is None else len(values)) if own is None else own)
    origin = np.concatenate(parts)
    return origin if origin.any() else None


def name_inputs(columns: TableColumns) -> tuple[str, ...]:
    """Returns the names of the f inputs: `column`, or `column=value` for an input of a category."""
    known = columns.categories
    named = ([f"{name}={value}" for value in known[name]] if name in known else [name] for name in columns.inputs)
    return tuple(name for part in named for name in part)


def list_unseen(frame: Any, columns: TableColumns, key: str) -> tuple[str, ...]:
    """Returns a remark for each category with values that are not in the training table.

    Example:
        >>> import pandas as pd
        >>> columns = TableColumns(["ill"], ["city"], {"city": ["Oslo", "Rome"]}, True, None, None)
        >>> list_unseen(pd.DataFrame({"city": ["Rome", "ROME"]}), columns, "x")
        ("x: column city: 1 of 2 rows have values unseen in training, such as 'ROME', read as none of Oslo, Rome",)
    """
    told = []
    for column, values in columns.categories.items():
        text = _as_text(frame[column])
        unseen = text[_number_values(text, values) < 0]
        if len(unseen):
            told.append(
                f"{key}: column {column}: {len(unseen)} of {len(text)} rows have values unseen in training, such as "
                f"{unseen.iloc[0][:40]!r}, read as none of {', '.join(values)[:200]}"
            )
    return tuple(told)


def _number_values(column: Any, values: list[str]) -> Array:
    """Returns for each of n rows the position of its value in `values`, `[n]`. An unknown value gets -1."""
    import pandas as pd

    return np.asarray(pd.Index(values).get_indexer(_as_text(column)), dtype=np.int64)


def _as_text(column: Any) -> Any:
    """Converts each value of a category to text. A missing value becomes the text `missing` (`GAP`)."""
    return column.astype(object).where(column.notna(), GAP).map(str)


def _as_numbers(column: Any) -> Array:
    """Converts numbers and booleans to float64, `[n]`. Missing values become NaN."""
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))


# ---------------------------------------------------------------------------------------------------------------------
# Readers of pandas and polars frames, pyarrow tables, and files of tables.

READ_FILES = "CSV in UTF-8 (.csv, .tsv, .txt, .data, .gz), Parquet (.parquet, .pq) and Feather (.feather, .arrow)"
MOST_KEPT = 2_000_000  # tables of at most so many cells keep all columns, so that partitions can use them
MOST_KEPT_VALUES = 10_000  # larger tables keep a column only if it has at most so many different values
LONGEST_KEPT = 256  # columns with longer texts are not kept, because NumPy stores every text as long as the longest
KEPT_AS_THEY_ARE = (list, tuple, dict, bytes, np.ndarray)  # types of values that are of no use in partitions
OPTIONS = {"target", "input", "exclude", "group", "test", "test_fraction", "task", "missing"}
TEXT_OPTIONS = {*OPTIONS, "tokenizer", "length"}
_FRAMES = {"pandas.DataFrame", "polars.DataFrame", "pyarrow.Table", "pyarrow.RecordBatch"}


def is_frame(thing: Any) -> bool:
    """Returns whether an object is a table of named columns."""
    return bool(arrays.list_classes(thing) & _FRAMES)


def as_frame(thing: Any) -> Any:
    """Converts a pandas, polars or pyarrow table to a pandas table. The column names become text."""
    classes = arrays.list_classes(thing)
    if "polars.DataFrame" in classes:
        thing = thing.to_arrow()
    if "pandas.DataFrame" not in classes:
        arrays.refuse_twins(thing.schema.names, "the table")
        thing = thing.to_pandas(ignore_metadata=True)
    if any(not isinstance(name, str) for name in thing.columns):
        thing = thing.set_axis([str(name) for name in thing.columns], axis=1)
    arrays.refuse_twins(thing.columns, "the table")
    objects = {name: thing[name] for name, kind in thing.dtypes.items() if kind.name == "object"}
    numbers = {name: made for name, column in objects.items() if (made := arrays.unbox(column)) is not column}
    return thing.assign(**numbers) if numbers else thing


def read_frame(file: Path, key: str = "path") -> Any:
    """Reads a CSV, Parquet or Feather file as a pandas table. The ending of the file name tells the format.

    Messages mention `key`, the key of `data` by which the user names the file.

    Raises:
        BadInput: The file has a different format, or is damaged.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = TABLES.get(file.suffix.lower(), "csv")
    if file.suffix.lower() in (".json", ".jsonl"):
        raise BadInput(f"data.{key} = {file} is no table: give {READ_FILES}")
    try:
        if kind == "parquet":
            arrays.refuse_twins(pq.read_schema(file).names, file.name)
            frame = pd.read_parquet(file)
        elif kind == "feather":
            try:
                frame = pd.read_feather(file)
            except pa.ArrowInvalid:  # the file is a stream of Arrow
                with pa.memory_map(str(file)) as opened, pa.ipc.open_stream(opened) as stream:
                    frame = stream.read_pandas()
        else:
            frame = read_text_table(file, "\t" if kind == "tsv" else ",")
    except BadInput:
        raise
    except Exception as error:  # pyarrow and pandas raise errors of many kinds
        why = show_line(f"{type(error).__name__}: {error}")
        raise BadInput(f"data.{key} = {file} cannot be read ({why}): give {READ_FILES}") from error
    index = [name for name in frame.index.names if name is not None]
    frame = as_frame(frame.reset_index(index) if index else frame)
    frame.attrs |= {"file": file.name, arrays.INDEX: list(map(str, index))}  # the file is for messages
    return frame


def find_table_file(_root: Path | None, path: str | None = None, key: str = "path", **_: Any) -> Path:
    """Returns the path of the user's file or folder. Messages mention `key`, the option that names the path."""
    kind = "file or folder" if key == "path" else "file"
    return find_path(f"data.{key}", path, kind, "the path of a .parquet or .csv file")


def read_table_file(file: Path, reading: ReadOptions) -> Dataset:
    """Reads a data set from a file."""
    return read_table(read_frame(file), reading)


def read_table(frame: Any, reading: ReadOptions) -> Dataset:
    """Converts a table to a data set. The inputs are numbers and categories, or a column of text to tokenize.

    `reading.test` is a table with the test samples, or names the file with this table.
    """
    other = reading.test
    if isinstance(other, str | Path):
        other = read_frame(find_table_file(None, str(other), "test"), "test")
    elif other is not None:
        if not is_frame(other):
            raise BadInput(f"data.test is {name_type(other)}: give a table, or the path of its file")
        other = as_frame(other)
    if reading.tokenizer is None:
        refuse_idle(reading, OPTIONS, "a table without data.tokenizer")
        return build_table(frame, other, reading)
    columns = [reading.input] if isinstance(reading.input, str) else list(reading.input or [])
    if len(columns) != 1 or not isinstance(reading.target, str):
        raise BadInput("data.tokenizer is set: name the column of text in data.input, that to predict in data.target")
    refuse_idle(reading, TEXT_OPTIONS, "a table of text")
    given = [part for part in (frame, other) if part is not None]
    for part in given:
        require_columns(part, [*columns, reading.target, *([reading.group] if reading.group else [])])
    parts = []
    for part in given:
        x = tokenize([part[columns[0]].tolist()], reading.tokenizer, reading.length)
        y = np.asarray(part[reading.target].to_numpy())
        group = number_groups(part[reading.group], frame[reading.group]) if reading.group else None
        parts.append(RawRows(x, y, group, keep_columns(part, columns) if part is frame else {}))
    return make_dataset("table", parts[0], parts[1] if len(parts) > 1 else None, reading)


def build_table(
    frame: Any,
    other: Any,
    reading: ReadOptions,
    name: str = "table",
    *,
    names: Sequence[str] = (),
    parts: Mapping[str, Any] = {},
) -> Dataset:
    """Converts a table of numbers and categories to a data set.

    Args:
        frame: The table. If `other` is None, test samples are drawn from this table.
        other: A table with the test samples, or None.
        reading: The options for reading.
        name: Name of the data set.
        names: Names of the classes, if the target column holds indices of classes. Otherwise the sequence is empty.
        parts: The tables of clients that were joined to `frame`, by client. Each of these tables must have all inputs
            and targets.

    Raises:
        BadInput: A column is missing, has missing values that are not allowed, or cannot be converted.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0] * 5, "b": ["x", "y"] * 10, "ill": ["no", "yes"] * 10})
        >>> data = build_table(as_frame(frame), None, ReadOptions(target="ill"))
        >>> data.features, data.train.x.shape, data.class_names
        (('a', 'b=x', 'b=y'), (16, 3), ('no', 'yes'))
    """
    if not len(frame):
        raise BadInput(f"data: {frame.attrs.get('file', 'the table')} has no rows: give some")
    task = "classification" if names else reading.task
    columns = choose_columns(frame, reading, task)
    for client, part in parts.items():
        require_columns(part, [*columns.targets, *columns.inputs], of=f"client {client}")
    gaps = find_row_gaps(frame, columns, reading.missing, "data")
    if gaps.any() and not gaps.all():  # values that only these rows have are no categories
        kept = frame[~gaps]
        if task == "auto" and columns.classes and kept[columns.targets[0]].dtype.kind == "f":  # gaps made floats
            kept = kept.astype({columns.targets[0]: np.int64})
        columns = choose_columns(kept, reading, task)
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
    """Converts a table to raw samples. If `reading.missing` is `drop`, leaves out rows with missing values.

    If the table holds the test samples, `first` has the raw samples of the training table.
    """
    gaps = find_row_gaps(frame, columns, reading.missing, key)
    rows = np.flatnonzero(~gaps)
    if gaps.all() and len(gaps):
        raise BadInput(f"{key}: each of {len(gaps)} rows has gaps, so data.missing = drop leaves none: fill them")
    if gaps.any():
        frame = frame.iloc[rows]
    origin = find_table_origin(frame, columns) if first is None else first.origin
    x, y = encode_inputs(frame, columns, origin), _read_target(frame, columns)
    group = None if columns.group is None else number_groups(frame[columns.group], columns.groups)
    each = {name: columns.categories.get(name) for name in columns.inputs}
    widths = [1 if values is None else len(values) for values in each.values()]
    indicators = np.repeat([values is not None for values in each.values()], widths) if columns.categories else None
    table = {str(name): None if values is None else tuple(values) for name, values in each.items()}
    table |= {str(name): () for name in frame if name not in columns.inputs}
    raw = RawRows(x, y, group, features=name_inputs(columns), indicators=indicators, table=table, origin=origin)
    if first is not None:
        return raw._replace(remarks=list_unseen(frame, columns, key))
    kept = keep_columns(frame, columns.inputs)
    kept.setdefault(GIVEN_ROW, rows)
    return raw._replace(columns=kept)


def _read_target(frame: Any, columns: TableColumns) -> Array:
    """Returns the labels of a table, `[n]` of any type, or the targets `[n, q]`."""
    if columns.classes:
        values = frame[columns.targets[0]]
        if values.dtype.kind in "iufb":
            return np.asarray(values.to_numpy())
        return np.asarray(values.map(str).to_numpy(dtype=str))
    try:
        return np.column_stack([frame[target].to_numpy(dtype=np.float64) for target in columns.targets])
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"data.target = {columns.targets[0]}: not numeric, so data.task must be classification"
        ) from error


def keep_columns(frame: Any, inputs: Sequence[str]) -> dict[str, Array]:
    """Returns the columns by which partitions can deal samples, as text.

    Leaves out columns of long texts, and the inputs of a large table.

    Example:
        >>> import pandas as pd
        >>> keep_columns(pd.DataFrame({"city": ["Rome", None, "Riga"]}), [])["city"].tolist()
        ['Rome', 'nan', 'Riga']
    """
    names = list(frame)
    small = len(names) * len(frame) <= MOST_KEPT
    kept = {}
    for name in names:
        values = frame[name]
        if values.dtype.name == "object" and isinstance(next(iter(values.dropna()), None), KEPT_AS_THEY_ARE):
            continue
        if (small or name not in inputs) and (small or values.nunique() <= MOST_KEPT_VALUES):
            text = np.where(values.isna(), "nan", values.astype(str).to_numpy(dtype=object))  # pandas 3 keeps gaps
            if max(map(len, text), default=0) <= LONGEST_KEPT:
                kept[str(name)] = text.astype(str)
    return kept


def number_groups(column: Any, known: Any) -> Array:
    """Returns the natural client of each row, `[n]`, as an index in the sorted values of `known`.

    `known` is the column of natural clients of the training samples. Values that are not in `known` get -1.

    Example:
        >>> import pandas as pd
        >>> wards = pd.Series([102, "Mainz", 101, 102])
        >>> number_groups(wards, wards).tolist()
        [1, 2, 0, 1]
    """
    if column.isna().any():
        raise BadInput(f"data.group: {int(column.isna().sum())} rows have none: fill them or drop those rows")
    values = list(known.dropna().unique())
    alike = len({isinstance(value, str) for value in values}) < 2  # numbers beside text are sorted as text
    found = {value: i for i, value in enumerate(sorted(values, key=None if alike else str))}
    return np.asarray(column.map(found).astype(float).fillna(-1).to_numpy(dtype=np.int64))
