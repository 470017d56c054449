"""A user's own data, in the form that they have them, as a data set of fedray: what `data=` of the Python API takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedray.core.errors import BadInput, FedrayWarning, suggest_nearest, warn_user
from fedray.core.options import ReadOptions
from fedray.data.files import list_stamps
from fedray.data.forms import clients, hugging_face, pairs, pictures, tables
from fedray.data.forms.arrays import (
    as_array,
    find_rows,
    is_array,
    is_number_text,
    is_text,
    list_classes,
    refuse_rows,
)
from fedray.data.forms.hugging_face import is_hugging_face, tell_transform
from fedray.data.forms.pairs import describe_thing, is_pair
from fedray.data.forms.rows import make_reading, refuse_idle
from fedray.data.forms.tables import GAP, TableColumns, as_frame, encode_inputs, is_frame, require_columns
from fedray.data.input_columns import COLUMNS, spell_columns
from fedray.data.partition import Cut
from fedray.data.shards import Shards, StoredShards
from fedray.data.store import keep_dataset
from fedray.data.types import Array, Dataset, subtract
from fedray.files.layout import find_parts, is_leaf, list_tables
from fedray.files.plain import expand_user_path

# ---------------------------------------------------------------------------------------------------------------------
# Which form a user's data have, and who reads it: one row a form, and the first that knows a thing reads it.
#
# A row may open what it holds by the rows again: a table with its labels is a table, and a file of a table is one.


class Form(NamedTuple):
    """A form of a user's own data.

    Attributes:
        name: What messages call it.
        is_it: Whether a thing has it. A `Path` is that of a file or a folder that exists.
        open: Reads a thing of it, as the options say.
        options: Those that it reads; others are refused. None: `open` refuses what it does not read.
    """

    name: str
    is_it: Callable[[Any], bool]
    open: Callable[[Any, ReadOptions], Dataset]
    options: Collection[str] | None = None


def read_form(thing: Any, reading: ReadOptions) -> Dataset:
    """Returns a data set of data in the form that a user has them.

    Args:
        thing: One of the forms that `fedray.data.adapt` lists.
        reading: How they are read.

    Raises:
        BadInput: The data are of no such form, or cannot be read; one line with the remedy.

    Example:
        >>> read_form("digits", ReadOptions())
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data is text: give pathlib.Path('digits') for a file or a folder, or data__name
    """
    if isinstance(thing, Path):
        place = expand_user_path("data", str(thing))
        if not place.exists():
            raise BadInput(f"data = {thing}: there is no such file or folder: correct the path")
        thing = place
    form = next(form for form in FORMS if form.is_it(thing))
    if form.options is not None:
        refuse_idle(reading, form.options, form.name)
    return form.open(thing, reading)


def _read_table_with_labels(pair: Any, reading: ReadOptions) -> Dataset:
    """Returns a table of inputs and a column of labels, and the same of the test rows."""
    whole, target = _join_target(pair)
    test = None if reading.test is None else _join_target(reading.test)[0]
    return tables.read_table(tables.as_frame(whole), reading._replace(target=target, test=test))


def _join_target(pair: Any) -> tuple[Any, str]:
    """Returns a table of inputs and a column of labels as one table, and the name of the target."""
    import pandas as pd

    if not is_pair(pair) or not tables.is_frame(pair[0]):
        raise BadInput(f"data.test is {describe_thing(pair)}: give a pair (x, y) as the data are")
    frame, y = tables.as_frame(pair[0]), as_array(pair[1], "data: y")
    if y.ndim != 1 or len(y) != len(frame):
        raise BadInput(f"data has {len(frame)} inputs, but labels of shape {list(y.shape)}: give one for each input")
    target = str(getattr(pair[1], "name", None) or "target")
    if target in list(frame):
        raise BadInput(f"data: the inputs have a column {target}, which is also the name of the labels: leave it out")
    whole = pd.DataFrame({column: frame[column].reset_index(drop=True) for column in frame})
    return whole.assign(**{target: y}), target


def _read_mapping(things: Mapping[Any, Any], reading: ReadOptions) -> Dataset:
    """Returns a mapping from clients to data, or from parts to data of any form."""
    parts = find_parts(map(str, things), "data", reading.test if isinstance(reading.test, str) else None)
    if parts is None:
        return clients.read_client_map(things, reading)
    named = {str(name): value for name, value in things.items()}
    if parts.test is not None:
        if parts.test not in named or (reading.test is not None and not isinstance(reading.test, str)):
            raise BadInput(f"data.test cannot act beside the parts {', '.join(named)}: name one of them")
        reading = reading._replace(test=named[parts.test])
    data = read_form(named[parts.train], reading)
    return data._replace(remarks=(*parts.remarks, *data.remarks))


FORMS = (
    Form("a fedray.data.Dataset", lambda thing: isinstance(thing, Dataset), lambda data, _: data),
    Form("a Hugging Face data set", hugging_face.is_hugging_face, hugging_face.read_hugging_face),
    Form("LEAF's JSON", clients.holds_users, clients.read_users, pairs.OPTIONS),
    Form("a file of a table", lambda thing: isinstance(thing, Path) and thing.is_file(), tables.read_table_file),
    Form("what save_to_disk wrote", hugging_face.is_saved, hugging_face.read_saved),
    Form("a folder of tables", lambda at: isinstance(at, Path) and bool(list_tables(at)), clients.read_table_folder),
    Form("a folder of pictures", lambda at: isinstance(at, Path), pictures.read_folder, pictures.OPTIONS),
    Form("a table", tables.is_frame, lambda frame, how: tables.read_table(tables.as_frame(frame), how)),
    Form("a mapping", lambda thing: isinstance(thing, Mapping), _read_mapping),
    Form(
        "two tables",
        lambda two: is_pair(two) and all(map(tables.is_frame, two)) and list(two[0]) == list(two[1]),
        lambda two, how: tables.read_table(tables.as_frame(two[0]), how._replace(test=two[1])),
    ),
    Form(
        "a table with its labels",
        lambda pair: is_pair(pair) and tables.is_frame(pair[0]) and is_array(pair[1]),
        _read_table_with_labels,
        tables.TEXT_OPTIONS - {"target"},
    ),
    Form(pairs.NAME, lambda _: True, pairs.read_thing, pairs.OPTIONS),  # the last: it says what else is no form
)


# ---------------------------------------------------------------------------------------------------------------------
# Inputs of rows that a run has not seen, in the form that a user has them, as its data set has its own.

REMEDY = "fill them, or drop those rows"


def read_inputs(data: Dataset, x: Any) -> Array:
    """Inputs as the data set has them, `[n, *sample]`: less its `origin`, not standardized, gaps filled.

    Args:
        data: What the run was trained on.
        x: An array, a tensor, a list of rows, or a table: its columns are found by name and encoded as in training.
            Columns of the training table that are no inputs, such as its target, are not read.

    Raises:
        BadInput: They are no numbers, numbers are missing, or columns are not those of the training table.

    Example:
        >>> import pandas as pd
        >>> from fedray.data.adaptation import adapt
        >>> rows = pd.DataFrame({"age": [31.0, 45.0] * 5, "pulse": [70, 80] * 5, "ill": ["no", "yes"] * 5})
        >>> data = adapt(rows, target="ill")
        >>> read_inputs(data, pd.DataFrame({"pulse": [75], "age": [50]})).tolist()
        [[50.0, 75.0]]
    """
    if is_frame(x):
        return _encode_table(data, as_frame(x))
    values = as_array(x, "x")
    if values.dtype.kind in "UO" and data.kind == "tokens":
        raise BadInput(
            f"x is of type {values.dtype}, but this run was trained on tokens: give them as whole numbers "
            f"[n, {data.train.x.shape[1]}], those of your tokenizer, short texts filled up with 0 at the end"
        )
    if values.dtype.kind not in "iufb":
        raise BadInput(f"x is of type {values.dtype}: give numbers, or a table where the run was trained on one")
    if data.origin is not None and values.shape[1:] == data.input_shape:
        values = subtract(values, data.origin)
    if data.means is not None and values.shape[1:] == data.means.shape and values.dtype.kind == "f":
        values = np.where(np.isnan(values), data.means, values)
    if values.ndim:
        refuse_rows(find_rows(values, lambda x: ~np.isfinite(x)), "x", "inputs that are NaN or infinite", REMEDY)
    if values.dtype.kind == "b" or data.origin is not None:
        return values.astype(np.float32)
    if values.dtype.kind == "u" and values.dtype.itemsize > 1:  # torch does not compute with them
        return values.astype(np.int64)
    return values if values.flags.writeable else values.copy()  # torch warns of others


def _encode_table(data: Dataset, frame: Any) -> Array:
    """Returns the inputs of a table, `[n, f]`, by the names of its columns."""
    known = data.table or dict.fromkeys(data.features)
    if not known:
        raise BadInput("x is a table, but the data of this run name no columns: give an array, such as x.to_numpy()")
    inputs = [name for name, values in known.items() if values != ()]
    require_columns(frame, inputs, "x")
    if unknown := [str(name) for name in frame if name not in known]:
        raise BadInput(f"x has a column {unknown[0]}, which the training table has not: leave it out")
    categories = {name: list(values) for name in inputs if (values := known[name]) is not None}
    for name in inputs:
        _check_column(name, frame[name], categories.get(name), fill=data.means is not None)
    x = encode_inputs(frame, TableColumns([], inputs, categories, False, None, {}), data.origin)
    return x if data.means is None else np.where(np.isnan(x), data.means, x)


def _check_column(name: str, column: Any, values: list[str] | None, *, fill: bool) -> None:
    """Refuses an input with what training had not: missing values, text among numbers, infinity."""
    gaps = column.isna().to_numpy(dtype=bool)
    if not fill if values is None else GAP not in values:
        refuse_rows(gaps, "x", f"no value in column {name}", REMEDY)
    if values is not None or gaps.all():
        return
    if (is_text(column) and not is_number_text(column)) or column.dtype.kind not in "iufbO":
        raise BadInput(f"x: column {name} is of type {column.dtype}, but held numbers in training: give numbers")
    numbers = np.where(gaps, 0.0, column.to_numpy(dtype=np.float64, na_value=np.nan))
    refuse_rows(np.isinf(numbers), "x", f"an infinite value in column {name}", REMEDY)


# ---------------------------------------------------------------------------------------------------------------------
# A user's own data, in the form that they have them, as a data set of fedray: what `data=` of the Python API takes.

SCENARIO_KEYS = ("name", "object", "root", "fold", "hold_out", "partition")  # of the section `data`, whatever the data
STORED_BYTES = 1 << 20  # of the rows, from which on data that are in memory are put into the store


def adapt(
    thing: Any,
    *,
    target: str | int | Sequence[str | int] | None = None,
    input: str | int | Sequence[str | int] | None = None,
    group: str | int | None = None,
    test: Any = None,
    test_fraction: float = 0.2,
    task: Literal["auto", "classification", "regression"] = "auto",
    missing: Literal["refuse", "mean", "drop"] = "refuse",
    tokenizer: Any = None,
    length: int | None = None,
    size: int | None = None,
) -> Dataset:
    """Returns a data set of data in the form that you have them.

    Args:
        thing: The data: a pair (x, y) of arrays or tensors, two pairs (train, test), a pandas, polars or pyarrow table,
            a `datasets.Dataset` or `DatasetDict`, a map-style `torch.utils.data.Dataset` (or two of them), the
            `pathlib.Path` of a table, of a folder with a folder of pictures for each class, or of a folder with a table
            for each client, a list of texts with labels, or a mapping from clients to any of these, or from parts
            (`train`, `test`).
        target: The column to predict: one, also for a regression.
        input: The inputs: a column of pictures, lists or text, or columns of numbers and categories; None: the one such
            column, or all columns of a table beside target and group.
        group: Column of the natural clients.
        test: The test rows: a thing of the same form, or the split or folder of `thing` that has them. None: its test
            part, or a share that is drawn.
        test_fraction: This share, drawn with a fixed seed; of classes the same share of each.
        task: `auto` takes text, truth values, one-hot rows and whole numbers as classes, and real numbers as
            targets.
        missing: `refuse` missing values, put the `mean` of the training rows in their place (text gets a category of
            its own), or `drop` the rows that have them.
        tokenizer: Makes tokens of text: a function from a text to whole numbers, a tokenizer of `tokenizers` or
            `transformers`, or its file.
        length: Tokens of a row; None: those of the longest, 256 at most. Shorter ones end in zeros.
        size: Height and width that pictures are brought to.

    Raises:
        BadInput: The data are of no such form, or cannot be read; one line with the remedy.

    Example:
        >>> import numpy as np
        >>> x, y = np.arange(40.0).reshape(20, 2), np.array(["no", "yes"] * 10)
        >>> data = adapt((x, y))
        >>> data.name, data.class_names, data.train.x.dtype, len(data.test.y)
        ('arrays', ('no', 'yes'), dtype('float32'), 4)
    """
    if isinstance(thing, Dataset):
        return thing
    columns: dict[str, Any] = {"target": target, "input": input, "group": group, "missing": missing}
    drawn: dict[str, Any] = {"test": test, "test_fraction": test_fraction, "task": task}
    reading = make_reading(**columns, **drawn, tokenizer=tokenizer, length=length, size=size)
    known = _find_key(thing, reading)
    if known is None:
        data = _keep_rows(read_form(thing, reading))
    else:
        data = keep_dataset(*known, lambda: read_form(thing, reading))
    for remark in [*data.remarks, *tell_transform(thing)]:
        warn_user(remark, FedrayWarning)
    return data


def names_data(thing: Any) -> bool:
    """Whether `data=` is a name or keys of a scenario, and not the data themselves.

    Example:
        >>> names_data("digits"), names_data({"name": "digits"}), names_data({"Rome": ([[1.0], [2.0]], [0, 1])})
        (True, True, False)
    """
    if isinstance(thing, str):
        return True
    if not isinstance(thing, Mapping) or is_hugging_face(thing):
        return False
    rest = [value for key, value in thing.items() if key not in (*COLUMNS, "features")]  # whose names may be numbers
    lists = [value for value in rest if isinstance(value, list | tuple)]
    rows = is_leaf(thing) or any(isinstance(one, int | float | list | tuple) for value in lists for one in value)
    return "name" in thing or not (rows or not all(is_plain(value) for value in thing.values()))


def take_data_options(thing: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `adapt` out of the overrides of a scenario, where the data are an object.

    Args:
        thing: The data.
        overrides: By dotted key; those of `data` that no scenario has are taken out.

    Raises:
        BadInput: `adapt` does not have such an option, or the data have been read already.
    """
    known = ReadOptions._fields[:-1]
    found = [key for key in overrides if key.startswith("data.") and key.split(".")[1] not in SCENARIO_KEYS]
    for key in found:
        option = key.removeprefix("data.")
        if isinstance(thing, Dataset):
            raise BadInput(f"{key} cannot act, because the data are a fedray.data.Dataset already: leave it out")
        if option not in known:
            remedy = suggest_nearest(option, known, f"choose one of {', '.join(known)}", prefix="data.")
            raise BadInput(f"{key} is no option of data that are an object: {remedy}")
    given = {key.removeprefix("data."): overrides.pop(key) for key in found}
    return {key: spell_columns(one, f"data.{key}") if key in COLUMNS else one for key, one in given.items()}


def is_plain(value: Any) -> bool:
    """Whether a value is one that YAML has."""
    if isinstance(value, Mapping):
        return all(is_plain(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return all(is_plain(inner) for inner in value)
    return value is None or isinstance(value, str | bool | int | float)


def _find_key(thing: Any, reading: ReadOptions) -> tuple[str, list[Any]] | None:
    """Returns a name and what tells data from others without reading them; None where only their rows do."""
    if not all(is_plain(value) for value in reading):
        return None
    if isinstance(thing, Path) and reading.test is None and reading.tokenizer is None:
        place = expand_user_path("data", str(thing))
        name = re.sub(r"[^A-Za-z0-9._-]", "-", place.stem) or "path"
        return (name, [reading, list_stamps(place)]) if place.exists() else None
    if "datasets.Dataset" in list_classes(thing):
        return "hf", [reading, thing._fingerprint]
    if "datasets.DatasetDict" in list_classes(thing):
        return "hf", [reading, {name: part._fingerprint for name, part in thing.items()}]
    return None


def _keep_rows(data: Dataset) -> Dataset:
    """Returns the data set with its rows in the store, if they are more than a few."""
    from fedray.data.shards import hash_array  # which needs torch

    arrays = (data.train.x, data.train.y, data.test.x, data.test.y)
    if sum(array.nbytes for array in arrays) < STORED_BYTES:
        return data
    groups = [part.group for part in (data.train, data.test) if part.group is not None]
    digests = [hash_array(array) for array in (*arrays, *groups, *data.columns.values())]
    named = [data.features, data.table] if data.table else data.features
    further = [part.tolist() for part in (data.means, data.origin) if part is not None]
    return keep_dataset(data.name, [data.class_names, named, data.remarks, digests, *further], lambda: data)


# ---------------------------------------------------------------------------------------------------------------------
# What the clients are called, where each has the rows of one name: a mapping from clients to data, or a natural
# group.

CLIENT_COLUMNS = ("client of the row", "client")  # of data that are given client by client
MOST_NAMES = 10_000


def name_clients(shards: Shards, group: str | None = None) -> tuple[str, ...]:
    """Returns the name of each client, N of them; empty where a client has rows of several names, or two have one.

    Args:
        shards: The clients' data.
        group: The column of the natural clients, where a table has one.

    Example:
        >>> from fedray.data.adaptation import adapt
        >>> from fedray.data.deal import build_shards
        >>> ward = np.arange(20.0).reshape(10, 2), [0, 1] * 5
        >>> data = adapt({"Rome": ward, "Oslo": ward})
        >>> name_clients(build_shards(data, "natural", {}, clients=2, seeds=[0]))
        ('Rome', 'Oslo')
        >>> name_clients(build_shards(data, "iid", {}, clients=2, seeds=[0]))
        ()
    """
    if not isinstance(shards, StoredShards) or shards.dealt.owned[0].clients > MOST_NAMES:
        return ()
    if shards.original is not shards.data:  # copies of all rows
        return ()
    known = shards.data.columns
    column = next((known[name] for name in (group, *CLIENT_COLUMNS) if name is not None and name in known), None)
    if column is None:
        return ()
    each = {_name_owners(cut, column) for cut in shards.dealt.owned}
    return each.pop() if len(each) == 1 else ()


def find_client(client: int | str, names: tuple[str, ...], number: int) -> int:
    """Returns the number of a client that is named, or is a number already.

    Args:
        client: Its name, or 0 to N - 1.
        names: Of the clients, as `name_clients` gives them.
        number: Of clients, N.

    Raises:
        BadInput: There is no such client.
    """
    if isinstance(client, str) and client in names:
        return names.index(client)
    if isinstance(client, int | np.integer) and not isinstance(client, bool) and 0 <= client < number:
        return int(client)
    called = f", or a name: {', '.join(names)[:300]}" if names else ""
    raise BadInput(f"client = {client!r}: there is no such client: give 0 to {number - 1}{called}")


def _name_owners(cut: Cut, column: Array) -> tuple[str, ...]:
    """Returns for each client the value that all of its rows and no other rows have; empty if there is none."""
    values = column[cut.rows]
    first = cut.offsets[:-1]
    if not len(values) or (np.diff(cut.offsets) == 0).any() or (values != values[first][cut.owner]).any():
        return ()
    names = tuple(str(name) for name in values[first])
    return names if len(set(names)) == len(names) else ()
