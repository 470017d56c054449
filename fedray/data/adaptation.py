"""Converts a user's own data, given as the argument `data=`, to a data set.

A *natural client* is a client named in the data, such as the writer of a text or a hospital.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedray.core.errors import BadInput, FedrayWarning, suggest_nearest, warn_user
from fedray.core.options import ReadOptions
from fedray.data.files import find_path, list_stamps
from fedray.data.forms import arrays, clients, hugging_face, pictures, tables
from fedray.data.forms.rows import make_reading, refuse_idle, refuse_second_test
from fedray.data.forms.tables import GAP, TableColumns, as_frame, encode_inputs, is_frame, list_unseen, require_columns
from fedray.data.partition import CLIENT_COLUMNS, find_names, name_owners
from fedray.data.shards import Shards, StoredShards
from fedray.data.store import find_tokenizer_files, keep_dataset
from fedray.data.types import Array, Dataset, subtract
from fedray.files.layout import TABLES, find_parts, is_leaf, list_tables
from fedray.files.plain import expand_user_path
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# The forms of a user's data, and the readers of these forms. An object is read by the first form in `FORMS` that
# recognizes it. To add a form, add an entry to `FORMS`, and the function that the entry names.
#
# A reader may call the reader of a different form. For example, a file may hold a table.


class Form(NamedTuple):
    """A form of a user's own data.

    Attributes:
        name: Name of the form in messages.
        is_it: Function that returns whether an object has this form. The function gets a `Path` only if the path
            exists.
        open: Function that reads an object of this form with the given options.
        options: Names of the options that act on this form. Other options are refused. None means that `open` itself
            checks the options.
        join: Function that joins the data of several clients to one data set. Two forms have the same function if their
            data can be joined with each other. None means that data of this form cannot be given client by client.
    """

    name: str
    is_it: Callable[[Any], bool]
    open: Callable[[Any, ReadOptions], Dataset]
    options: Collection[str] | None = None
    join: Callable[[Mapping[str, Any], ReadOptions], Dataset] | None = None


def read_form(thing: Any, reading: ReadOptions) -> Dataset:
    """Converts a user's data, given in any known form, to a data set.

    Raises:
        BadInput: The data have no known form or cannot be read.

    Example:
        >>> read_form("digits", ReadOptions())
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data is text: give pathlib.Path('digits') for a file or a folder, or data__name
    """
    thing, form = _find_form(thing)
    if form.options is not None:
        refuse_idle(reading, form.options, form.name)
    return form.open(thing, reading)


def _find_form(thing: Any, *, of_client: bool = False) -> tuple[Any, Form]:
    """Returns the data and their form, and expands `~` in a path.

    If `of_client` is True, the data belong to one of several clients, and must be of a form that has `join`.
    """
    if isinstance(thing, Path):
        thing = find_path("data", str(thing), "file or folder", "a file or a folder")
    if isinstance(thing, str):
        raise BadInput(f"data is text: give pathlib.Path({thing!r}) for a file or a folder, or data__name")
    form = next((form for form in FORMS if form.is_it(thing)), None)
    if form is None or (of_client and form.join is None):
        known = ", ".join(form.name for form in FORMS if form.join or not of_client)
        raise BadInput(f"data is {form.name if form else clients.describe_thing(thing)}: give {known}")
    return thing, form


def _read_table_with_labels(pair: Any, reading: ReadOptions) -> Dataset:
    """Reads a table of inputs and a column of labels, given as a pair. `reading.test` may be a second such pair."""
    whole, target = _join_target(pair)
    test = None if reading.test is None else _join_target(reading.test)[0]
    return tables.read_table(as_frame(whole), reading._replace(target=target, test=test))


def _read_two_tables(two: Any, reading: ReadOptions) -> Dataset:
    """Reads a table of training samples and a table of test samples."""
    refuse_second_test(reading)
    return tables.read_table(as_frame(two[0]), reading._replace(test=two[1]))


def _join_target(pair: Any) -> tuple[Any, str]:
    """Joins a table of inputs with a column of labels. Returns the table, and the name of this column.

    Raises:
        BadInput: The second part is no column of as many labels, has the name of an input, or has the index of a pandas
            table in another order.
    """
    import pandas as pd

    if not clients.is_pair(pair) or not is_frame(pair[0]):
        raise BadInput(f"data.test is {clients.describe_thing(pair)}: give a pair (x, y) as the data are")
    frame, y = as_frame(pair[0]), arrays.as_array(pair[1], "data: y")
    if y.ndim != 1 or len(y) != len(frame):
        raise BadInput(f"data has {len(frame)} inputs, but labels of shape {list(y.shape)}: give one for each input")
    x, labels = (getattr(part, "index", None) for part in pair)
    if isinstance(x, pd.Index) and isinstance(labels, pd.Index) and not x.equals(labels) and set(x) == set(labels):
        raise BadInput(
            "data: the labels have the index of the inputs in another order: give y.loc[x.index], or y.to_numpy() if "
            "their rows go together as they are"
        )
    target = str(getattr(pair[1], "name", None) or "target")
    if target in list(frame):
        raise BadInput(
            f"data: the inputs have a column {target}, which is also the name of the labels: rename or leave out one"
        )
    whole = pd.DataFrame({column: frame[column].reset_index(drop=True) for column in frame})
    return whole.assign(**{target: y}), target


def _join_tables_with_labels(pairs: Mapping[str, Any], reading: ReadOptions) -> Dataset:
    """Joins the data of several clients, each of which has a table of inputs and a column of labels.

    Example:
        >>> import pandas as pd
        >>> x, ill = pd.DataFrame({"age": [31.0, 45.0] * 5, "pulse": [70, 80] * 5}), np.tile([0, 1], 5)
        >>> adapt({"Rome": (x, ill), "Oslo": (x[["pulse", "age"]], ill)}).features
        ('age', 'pulse')
    """
    if reading.test is not None:
        return clients.join_pairs(pairs, reading)
    joined = {client: _join_target(pair) for client, pair in pairs.items()}
    if len(targets := {target for _, target in joined.values()}) > 1:
        raise BadInput(f"data: the labels are called {' and '.join(sorted(targets))}: give them one name")
    tables_of = {client: table for client, (table, _) in joined.items()}
    return clients.join_tables(tables_of, reading._replace(target=targets.pop()))


def _columns(table: Any) -> set[str]:
    """Returns the names of the columns of a pandas, polars or pyarrow table."""
    return set(map(str, getattr(table, "column_names", table.columns)))


def _read_mapping(things: Mapping[Any, Any], reading: ReadOptions) -> Dataset:
    """Reads a mapping from clients, or from the parts `train` and `test`, to data of any form."""
    parts = find_parts(map(str, things), "data", reading.test if isinstance(reading.test, str) else None)
    if parts is None:
        return _read_clients(things, reading)
    named = {str(name): value for name, value in things.items()}
    if parts.test is not None:
        if parts.test not in named or (reading.test is not None and not isinstance(reading.test, str)):
            raise BadInput(f"data.test cannot act beside the parts {', '.join(named)}: name one of them")
        reading = reading._replace(test=named[parts.test])
    data = read_form(named[parts.train], reading)
    return data._replace(remarks=(*parts.remarks, *data.remarks))


def _read_clients(things: Mapping[Any, Any], reading: ReadOptions) -> Dataset:
    """Reads a mapping from the name of each client to its data. Joins the data of all clients."""
    if not things:
        raise BadInput("data: there is no client in the mapping: give {client: data}")
    found: dict[str, tuple[Any, Form]] = {}
    for client, thing in things.items():
        try:
            found[str(client)] = _find_form(thing, of_client=True)
        except BadInput as error:
            columns = "" if isinstance(thing, str | Path) else "; if the dict has columns, give pandas.DataFrame(d)"
            raise BadInput(f"client {client}: {error}{columns}") from None
    first = next(iter(found.values()))[1]
    for client, (_, form) in found.items():
        if form.join != first.join:
            raise BadInput(f"client {client} has {form.name}, but another {first.name}: give all clients one form")
    assert first.join is not None
    return first.join({client: thing for client, (thing, _) in found.items()}, reading)


FORMS = (
    Form("a fedray.data.Dataset", lambda thing: isinstance(thing, Dataset), lambda data, _: data, options=()),
    Form(
        "a Hugging Face Dataset", hugging_face.is_hugging_face, hugging_face.read_hugging_face, join=clients.join_hubs
    ),
    Form("LEAF's JSON", clients.holds_users, clients.read_users, clients.OPTIONS),
    Form(
        "the pathlib.Path of a table",
        lambda thing: isinstance(thing, Path) and thing.is_file(),
        tables.read_table_file,
        join=clients.join_tables,
    ),
    Form(
        "a folder that save_to_disk wrote",
        hugging_face.is_saved,
        lambda at, how: hugging_face.read_hugging_face(hugging_face.open_hub(str(at)), how),
        join=clients.join_hubs,
    ),
    Form("a folder of tables", lambda at: isinstance(at, Path) and bool(list_tables(at)), clients.read_table_folder),
    Form(
        "a folder of pictures",
        lambda at: isinstance(at, Path),
        pictures.read_folder,
        pictures.OPTIONS,
        clients.join_folders,
    ),
    Form(
        "a pandas, polars or pyarrow table",
        is_frame,
        lambda frame, how: tables.read_table(as_frame(frame), how),
        join=clients.join_tables,
    ),
    Form("a mapping {client: data}", lambda thing: isinstance(thing, Mapping), _read_mapping),
    Form(
        "two tables",
        lambda two: (
            clients.is_pair(two) and all(map(is_frame, two)) and not _columns(two[0]).isdisjoint(_columns(two[1]))
        ),
        _read_two_tables,
    ),
    Form(
        "a table with its labels",
        lambda pair: clients.is_pair(pair) and is_frame(pair[0]) and arrays.is_array(pair[1]),
        _read_table_with_labels,
        tables.TEXT_OPTIONS - {"target"},
        _join_tables_with_labels,
    ),
    Form(
        "a pair (x, y) or two pairs (train, test)",
        lambda thing: clients.is_pair(thing) and not clients.is_torch_set(thing[0]),
        clients.read_labeled,
        clients.OPTIONS,
        clients.join_pairs,
    ),
    Form(
        "a torch Dataset or two of them",
        lambda thing: clients.is_torch_set(thing[0] if clients.is_pair(thing) else thing),
        clients.read_labeled,
        clients.OPTIONS,
        clients.join_pairs,
    ),
)


# ---------------------------------------------------------------------------------------------------------------------
# Conversion of new inputs of a user to the form of the inputs in the data set of a run.

REMEDY = "fill them, or drop those rows"


def read_inputs(data: Dataset, x: Any) -> Array:
    """Converts new inputs to the form of the inputs of a data set, `[n, *sample]`.

    The new inputs `x` are an array, a tensor, a list of samples, or a table. The function subtracts the constants
    `data.origin` and fills missing values, but does not standardize the inputs. Columns of a table are found by name
    and encoded as in training. Columns that were not inputs in training, such as the target, are ignored.

    Raises:
        BadInput: The inputs are not numbers, numbers are missing, or a column does not fit the training table.

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
    if data.table and not (arrays.is_array(x) or isinstance(x, list | tuple)):
        raise BadInput(f"x is {name_type(x)}: give a pandas, polars or pyarrow table, or an array of its inputs")
    values = arrays.as_array(x, "x")
    if values.dtype.kind not in "iufb":
        tokens = f"the tokens [n, {data.input_shape[0]}] of your tokenizer, short texts filled up with 0 at the end"
        wanted = tokens if data.kind == "tokens" else "numbers, or a table where the run was trained on one"
        raise BadInput(f"x is of type {values.dtype}: give {wanted}")
    if data.origin is not None and values.shape[1:] == data.input_shape:
        values = subtract(values, data.origin)
    if data.means is not None and values.shape[1:] == data.means.shape and values.dtype.kind == "f":
        values = np.where(np.isnan(values), data.means, values)
    if values.ndim:
        arrays.refuse_rows(
            arrays.find_rows(values, lambda x: ~np.isfinite(x)), "x", "inputs that are NaN or infinite", REMEDY
        )
    if values.dtype.kind == "b" or data.origin is not None:
        return values.astype(np.float32)
    if values.dtype.kind == "u" and values.dtype.itemsize > 1:  # torch does not compute with these types
        return values.astype(np.int64)
    return values if values.flags.writeable else values.copy()  # torch warns of read-only arrays


def _encode_table(data: Dataset, frame: Any) -> Array:
    """Converts the inputs of a table to numbers, `[n, f]`. Columns are found by name."""
    known = data.table or dict.fromkeys(data.features)
    if not known:
        what = "the tokens [n, L] of its texts" if data.kind == "tokens" else "an array, such as x.to_numpy()"
        raise BadInput(f"x is a table, but the data of this run name no columns: give {what}")
    inputs = [name for name, values in known.items() if values != ()]
    require_columns(frame, inputs, "x")
    if unknown := [str(name) for name in frame if name not in known]:
        raise BadInput(f"x has a column {unknown[0]}, which the training table has not: leave it out")
    categories = {name: list(values) for name in inputs if (values := known[name]) is not None}
    for name in inputs:
        _check_column(name, frame[name], categories.get(name), fill=data.means is not None)
    columns = TableColumns([], inputs, categories, False, None, None)
    for remark in list_unseen(frame, columns, "x"):
        warn_user(remark, FedrayWarning)
    x = encode_inputs(frame, columns, data.origin)
    return x if data.means is None else np.where(np.isnan(x), data.means, x)


def _check_column(name: str, column: Any, values: list[str] | None, *, fill: bool) -> None:
    """Refuses an input column with infinite values, text instead of numbers, or missing values that are not filled."""
    gaps = column.isna().to_numpy(dtype=bool)
    if not fill and GAP not in (values or ()):
        arrays.refuse_rows(gaps, "x", f"no value in column {name}", REMEDY)
    if values is not None or gaps.all():
        return
    if (arrays.is_text(column) and not arrays.is_number_text(column)) or column.dtype.kind not in "iufbO":
        raise BadInput(f"x: column {name} is of type {column.dtype}, but held numbers in training: give numbers")
    numbers = np.where(gaps, 0.0, column.to_numpy(dtype=np.float64, na_value=np.nan))
    arrays.refuse_rows(np.isinf(numbers), "x", f"an infinite value in column {name}", REMEDY)


# ---------------------------------------------------------------------------------------------------------------------
# The function `adapt`, which converts a user's own data to a data set.


def adapt(
    thing: Any,
    *,
    target: str | int | Sequence[str | int] | None = None,
    input: str | int | Sequence[str | int] | None = None,
    exclude: str | int | Sequence[str | int] | None = None,
    group: str | int | None = None,
    test: Any = None,
    test_fraction: float = 0.2,
    task: Literal["auto", "classification", "regression"] = "auto",
    missing: Literal["refuse", "mean", "drop"] = "refuse",
    tokenizer: Any = None,
    length: int | None = None,
    size: int | None = None,
) -> Dataset:
    """Converts your own data, in one of many forms, to a data set of fedray.

    Args:
        thing: The data. Arrays, tensors or a list of texts are given with their labels as a pair (x, y), or as two
            pairs (train, test). Other forms are a pandas, polars or pyarrow table, a `datasets.Dataset` or
            `DatasetDict`, and one or two map-style `torch.utils.data.Dataset`. A `pathlib.Path` leads to a table, or to
            a folder that has a table for each client, or a folder of pictures for each class. A mapping has clients, or
            the parts `train` and `test`, as keys. Its values are data in any of these forms.
        target: The column to predict.
        input: The input columns: columns of numbers and categories, or a single column of pictures, lists or text. None
            means the only column of pictures, lists or text. If there is no such column, None means all columns except
            target, group and `exclude`.
        exclude: The columns of a table that are no inputs. They may be given only if `input` is None.
        group: The column that names the natural client (such as a hospital) of each sample.
        test: The test data in the same form as `thing`, or the name of the split or folder in `thing` that holds the
            test data. None means the test part of `thing`. If `thing` has no test part, test samples are drawn at
            random.
        test_fraction: Share of the samples to draw as test samples. The seed is fixed, and the share is the same in
            each class.
        task: Kind of the task: `classification`, `regression` or `auto`. With `auto`, text, booleans, one-hot labels
            and integers are classes, and floating-point numbers are targets.
        missing: Treatment of missing values. `refuse` raises an error. `mean` replaces a missing number by its column's
            mean over the training samples, and missing text by an extra category. `drop` leaves out samples with
            missing values.
        tokenizer: Converter from text to tokens. It is a function that takes a text and returns integers, a tokenizer
            of `tokenizers` or `transformers`, or the file of such a tokenizer.
        length: Number of tokens of each sample. Shorter texts are filled with zeros at the end. None means the length
            of the longest text, but at most 256.
        size: Height and width in pixels to which pictures are resized. None means that pictures are not resized.

    Raises:
        BadInput: The data have no known form or cannot be read.

    Example:
        >>> import numpy as np
        >>> x, y = np.arange(40.0).reshape(20, 2), np.array(["no", "yes"] * 10)
        >>> data = adapt((x, y))
        >>> data.name, data.class_names, data.train.x.dtype, len(data.test.y)
        ('arrays', ('no', 'yes'), dtype('float32'), 4)
    """
    if isinstance(thing, Dataset):
        return thing
    columns: dict[str, Any] = {"target": target, "input": input, "exclude": exclude, "group": group}
    drawn: dict[str, Any] = {"test": test, "test_fraction": test_fraction, "task": task}
    reading = make_reading(**columns, **drawn, missing=missing, tokenizer=tokenizer, length=length, size=size)
    known = _find_key(thing, reading)
    data = read_form(thing, reading) if known is None else keep_dataset(*known, lambda: read_form(thing, reading))
    for remark in [*data.remarks, *hugging_face.remark_on_transform(thing)]:
        warn_user(remark, FedrayWarning)
    if group is not None and str(group) in data.columns:  # so that clients keep their names, whoever gets the data set
        return data._replace(columns={**data.columns, CLIENT_COLUMNS[0]: data.columns[str(group)]})
    return data


def names_data(thing: Any) -> bool:
    """Returns whether the argument `data=` is a name or a dict of scenario keys instead of the data themselves.

    Example:
        >>> names_data("digits"), names_data({"name": "digits"}), names_data({"Rome": ([[1.0], [2.0]], [0, 1])})
        (True, True, False)
        >>> names_data({"train": {"users": ["Ann"], "user_data": {"Ann": {"x": [1.0], "y": [0]}}}})  # LEAF's JSON
        False
    """
    if isinstance(thing, str):
        return Path(thing).suffix.lower() not in TABLES  # a name, and not the name of a file
    if not isinstance(thing, Mapping) or hugging_face.is_hugging_face(thing):
        return False
    if "name" in thing:
        return True
    rest = [value for key, value in thing.items() if key not in (*arrays.COLUMNS, "features")]  # names may be numbers
    lists = [value for value in rest if isinstance(value, list | tuple)]
    has_rows = any(isinstance(one, int | float | list | tuple) for value in lists for one in value)
    return not has_rows and not any(map(is_leaf, (thing, *rest))) and all(map(is_plain, thing.values()))


def take_data_options(thing: Any, overrides: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Removes the options of `adapt` from the overrides of a scenario, and returns these options as a dict.

    Args:
        thing: The user's data.
        overrides: Values by dotted key, such as `data.target`. Keys below `data` that are not in `keys` are options of
            `adapt`.
        keys: The keys of the scenario's section `data`.

    Raises:
        BadInput: `adapt` has no such option, or the data are already a `Dataset`, on which options have no effect.
    """
    known = ReadOptions._fields[:-1]
    found = [key for key in overrides if key.startswith("data.") and key.split(".")[1] not in keys]
    for key in found:
        option = key.removeprefix("data.")
        if isinstance(thing, Dataset):
            raise BadInput(f"{key} cannot act, because the data are a fedray.data.Dataset already: leave it out")
        if option not in known:
            remedy = suggest_nearest(option, known, f"choose one of {', '.join(known)}", prefix="data.")
            raise BadInput(f"{key} is no option of data that are an object: {remedy}")
    given = {key.removeprefix("data."): overrides.pop(key) for key in found}
    unseen = overrides.get("data.test_clients") is not None
    if unseen and isinstance(thing, Dataset) and len(thing.test.y):
        warn_user(
            f"data.test_clients: the {len(thing.test.y)} test rows of the data are not used: with "
            "one part and fedray.data.adapt(..., test_fraction=0) all rows belong to clients",
            FedrayWarning,
        )
    elif unseen and not isinstance(thing, Dataset) and "test" not in given:
        given = {"test_fraction": 0.0, **given}  # samples of these clients are the test samples
    return {key: arrays.spell_columns(one) if key in arrays.COLUMNS else one for key, one in given.items()}


def is_plain(value: Any) -> bool:
    """Returns whether a value and all values inside it have types of YAML."""
    if isinstance(value, Mapping):
        return all(is_plain(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return all(is_plain(inner) for inner in value)
    return value is None or isinstance(value, str | bool | int | float)


def _find_key(thing: Any, reading: ReadOptions) -> tuple[str, list[Any]] | None:
    """Returns a name and a list of values that identify data. Returns None if only the samples identify the data."""
    if not all(is_plain(value) for value in reading):
        return None
    if isinstance(thing, Path) and reading.test is None and reading.tokenizer is None:
        place = expand_user_path("data", str(thing))
        name = re.sub(r"[^A-Za-z0-9._-]", "-", place.stem) or "path"
        return (name, [reading, list_stamps(place)]) if place.exists() else None
    stamps = [list_stamps(at) for at in find_tokenizer_files(reading.tokenizer)]
    if "datasets.Dataset" in arrays.list_classes(thing):
        return "hf", [reading, thing._fingerprint, *stamps]
    if "datasets.DatasetDict" in arrays.list_classes(thing):
        return "hf", [reading, {name: part._fingerprint for name, part in thing.items()}, *stamps]
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Names of clients. A client has a name if all of its samples have the same value in a column of names. The user gives
# the names as the keys of a mapping from clients to data, or as a column of natural clients.

MOST_NAMES = 10_000


def name_clients(shards: Shards, group: str | None = None) -> tuple[str, ...]:
    """Returns the names of the N clients.

    The tuple is empty if a client has no name or several names, or if two clients have the same name. `group` is the
    name of the column that names the client of each sample. None means a column with a usual name, such as `client`.

    Example:
        >>> from fedray.data.adaptation import adapt
        >>> from fedray.data.deal import PartitionSettings, build_shards
        >>> ward = np.arange(20.0).reshape(10, 2), [0, 1] * 5
        >>> data = adapt({"Rome": ward, "Oslo": ward})
        >>> name_clients(build_shards(data, PartitionSettings("natural"), [0]))
        ('Rome', 'Oslo')
        >>> name_clients(build_shards(data, PartitionSettings("iid", clients=2), [0]))
        ()
    """
    if not isinstance(shards, StoredShards) or shards.dealt.owned[0].clients > MOST_NAMES:
        return ()
    if shards.original.train is not shards.data.train:  # each group has a copy of all rows
        return ()
    column = find_names(shards.data, group)
    each = {name_owners(cut, column) for cut in shards.dealt.owned}
    return each.pop() if len(each) == 1 else ()


def find_client(client: int | str, names: tuple[str, ...], number: int) -> int:
    """Returns the index of a client. The client is given by name or by index.

    Raises:
        BadInput: There is no such client.
    """
    if isinstance(client, str) and client in names:
        return names.index(client)
    if isinstance(client, int | np.integer) and not isinstance(client, bool) and 0 <= client < number:
        return int(client)
    called = f", or a name: {', '.join(names)[:300]}" if names else ""
    raise BadInput(f"client = {client!r}: there is no such client: give 0 to {number - 1}{called}")
