"""Reads pairs of inputs and labels, and data that are given client by client.

Example:
    >>> from fedray.data.adaptation import adapt
    >>> rows = {"x": [[0.5, 1.0], [0.25, 0.0]] * 5, "y": [0, 1] * 5}
    >>> data = adapt({"users": ["ann", "bob"], "num_samples": [10, 10], "user_data": {"ann": rows, "bob": rows}})
    >>> data.name, data.columns["client"][[0, -1]].tolist()
    ('leaf', ['ann', 'bob'])
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import BadInput, FedrayWarning, show_line, warn_user
from fedray.core.options import ReadOptions
from fedray.data.files import Spool, read_pieces
from fedray.data.forms import hugging_face, pictures, tables
from fedray.data.forms.arrays import INDEX, as_array, as_inputs, is_array, is_missing, list_classes
from fedray.data.forms.pictures import PictureRows, decode_picture
from fedray.data.forms.rows import CLIENT, RawRows, align_parts, make_dataset, refuse_idle, refuse_second_test, tokenize
from fedray.data.types import Array, Dataset, Split, check_rows
from fedray.files import layout
from fedray.files.plain import expand_user_path
from fedray.own_code.user_code import blame_user_code, name_type

# ---------------------------------------------------------------------------------------------------------------------
# Readers of pairs of inputs and labels: arrays, tensors, texts, and map-style data sets of torch.

OPTIONS = ("test", "test_fraction", "task", "missing", "tokenizer", "length", "size")


def describe_thing(thing: Any) -> str:
    """Describes an object of unknown form in a few words, for messages."""
    if isinstance(thing, tuple | list):
        return f"{name_type(thing)} of {len(thing)} ({', '.join(map(name_type, thing[:4]))})"
    return f"{name_type(thing)} without labels" if is_array(thing) else name_type(thing)


def read_labeled(thing: Any, reading: ReadOptions) -> Dataset:
    """Makes a data set from a pair (x, y), from two pairs (train, test), or from one or two data sets of torch."""
    train, held = read_raw_parts(thing, reading)
    _refuse_orders([train, held])
    name = "torch" if is_torch_set(thing[0] if is_pair(thing) else thing) else "arrays"
    return make_dataset(name, train, held, reading)


def read_raw_parts(thing: Any, reading: ReadOptions) -> tuple[RawRows, RawRows | None]:
    """Reads training and test samples from arrays, tensors, texts or data sets of torch. The test part may be None.

    `thing` is a pair (x, y), two pairs (train, test), a data set of torch, or two data sets of torch.

    Raises:
        BadInput: The object has a different form, or cannot be read.

    Example:
        >>> train, held = read_raw_parts((np.eye(2), ["no", "yes"]), ReadOptions())
        >>> train.x.shape, train.y.tolist(), held
        ((2, 2), ['no', 'yes'], None)
    """
    if is_pair(thing) and all(is_pair(part) or is_torch_set(part) for part in thing):
        refuse_second_test(reading)
        return _read_rows(thing[0], reading, "train"), _read_rows(thing[1], reading, "test")
    return _read_rows(thing, reading, "data"), _read_test(reading)


def _read_test(reading: ReadOptions) -> RawRows | None:
    """Reads the test samples of the option `test`, which may be a pair (x, y) or a data set of torch."""
    return None if reading.test is None else _read_rows(reading.test, reading, "test")


def _read_rows(rows: Any, reading: ReadOptions, where: str) -> RawRows:
    """Reads the samples of a pair (x, y) or of a data set of torch. `where` names the samples in messages."""
    if is_torch_set(rows):
        return read_pairs(rows, reading)
    if not is_pair(rows):
        raise BadInput(f"{where} is {describe_thing(rows)}: give a pair (x, y)")
    x, y = rows
    features = tuple(map(str, x.columns)) if list_classes(x) & {"pandas.DataFrame", "polars.DataFrame"} else ()
    if (
        isinstance(x, list | tuple)
        and any(isinstance(text, str) for text in x)
        and all(isinstance(text, str) or is_missing(text) for text in x)
    ):
        refuse_idle(reading, set(OPTIONS) - {"size"}, "text")
        inputs = tokenize([x], reading.tokenizer, reading.length)
    else:
        array = as_array(x, f"{where}: x")
        if array.dtype.kind in "OU" and array.ndim == 1 and reading.tokenizer is not None:
            refuse_idle(reading, set(OPTIONS) - {"size"}, "text")
            inputs = tokenize([array.tolist()], reading.tokenizer, reading.length)
        else:
            refuse_idle(reading, set(OPTIONS) - {"tokenizer", "length", "size"}, "inputs that are numbers")
            inputs = as_inputs(array, f"{where}: x")
    return RawRows(inputs, as_array(y, f"{where}: y"), features=features)


def _refuse_orders(parts: Iterable[RawRows | None]) -> None:
    """Refuses tables of inputs with different columns or orders of columns, because inputs are joined by position."""
    orders = list(dict.fromkeys(part.features for part in parts if part is not None and part.features))
    if len(orders) > 1:
        one, other = (", ".join(names)[:200] for names in orders[:2])
        raise BadInput(f"data: one table of inputs has the columns {one}, but another {other}: give all in one order")


def is_pair(thing: Any) -> bool:
    """Returns whether an object is a tuple or list with two entries, and neither entry is a number or text."""
    return isinstance(thing, tuple | list) and len(thing) == 2 and not any(np.isscalar(part) for part in thing)


# ---------------------------------------------------------------------------------------------------------------------
# Map-style data sets of torch. Each item is a pair of an input and a label, and is fetched once.

PIECE_ROWS = 1024
ASKED_AGAIN = 8  # number of first items that are fetched twice, to notice random transforms


def is_torch_set(thing: Any) -> bool:
    """Returns whether an object is a data set of torch, map-style or iterable."""
    return bool(list_classes(thing) & {"torch.Dataset", "torch.IterableDataset"})


def read_pairs(dataset: Any, reading: ReadOptions) -> RawRows:
    """Reads the samples of a map-style data set.

    A map-style data set has a length, and `dataset[i]` is a pair of an input and a label. If the data set has an
    attribute `classes` with a list of texts, these texts are the names of the classes.

    Raises:
        BadInput: The data set is not map-style, or its items are not pairs.

    Example:
        >>> pairs = [(np.full(3, i, np.float32), i % 2) for i in range(10)]
        >>> read_pairs(pairs, ReadOptions()).x.shape
        (10, 3)
    """
    try:
        number = len(dataset)
    except TypeError as error:
        remedy = "define __len__ (an IterableDataset: give one of map style)"
        raise BadInput(f"data is a {type(dataset).__name__} without a length: {remedy}") from error
    spool, labels, texts, first = Spool(), list[Any](), list[str](), list[Array]()
    pictures, waiting = PictureRows(), list[Array]()
    for i in range(number):
        with blame_user_code(f"data: item {i}"):
            item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadInput(f"data: item {i} is {describe_thing(item)}: give pairs of an input and a label")
        if isinstance(item[0], str):
            texts.append(item[0])
        elif _is_picture(item[0]):
            picture = decode_picture(item[0], reading.size, f"the picture of item {i}")
            pictures.append(picture, f"the picture of item {i}")
            first += [picture.pixels] if i < ASKED_AGAIN else []
        else:
            waiting.append(_as_input(item[0], i))
            first += waiting[-1:] if i < ASKED_AGAIN else []
        labels.append(_as_label(item[1]))
        if len(waiting) == PIECE_ROWS:
            _flush(waiting, spool, i)
    _flush(waiting, spool, number)
    _warn_of_draws(dataset, first, reading)
    used = {"size"} if pictures.number else {"tokenizer", "length"} if texts else set[str]()
    if number:
        refuse_idle(reading, set(OPTIONS) - {"tokenizer", "length", "size"} | used, "these items")
    x = tokenize([texts], reading.tokenizer, reading.length) if texts else spool.finish()
    x = pictures.finish() if pictures.number else x
    names = getattr(dataset, "classes", ())
    known = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return RawRows(x, np.asarray(labels), names=tuple(names) if known else (), remarks=pictures.remarks())


def _is_picture(value: Any) -> bool:
    return any(name.startswith("PIL.") for name in list_classes(value))


def _as_input(value: Any, i: int) -> Array:
    """Returns the input of item number i of a data set as an array."""
    return np.asarray(value) if np.isscalar(value) else as_array(value, f"the input of item {i}")


def _warn_of_draws(dataset: Any, first: list[Array], reading: ReadOptions) -> None:
    """Warns if a transform of the data set is random. To notice this, fetches the first items a second time.

    fedray fetches each item once, before training. So a random transform would give the same result in all epochs.
    """
    for i, array in enumerate(first):
        with blame_user_code(f"data: item {i}"):
            again = dataset[i][0]
        picture = decode_picture(again, reading.size, f"the picture of item {i}").pixels if _is_picture(again) else None
        found = _as_input(again, i) if picture is None else picture
        if not np.array_equal(found, array, equal_nan=array.dtype.kind == "f"):
            warn_user(
                f"data: item {i} differs when it is asked for again. If a transform draws at random: items are read "
                "once, before training, so give the data without it, and the transform as augment=",
                FedrayWarning,
            )
            return


def _flush(waiting: list[Array], spool: Spool, last: int) -> None:
    """Adds the inputs in the list `waiting` to the spool, and empties the list.

    Messages mention `last`, the index of the last input.
    """
    if not waiting:
        return
    try:
        spool.append(as_inputs(np.stack(waiting), "data: the input"))
    except ValueError as error:
        raise BadInput(
            f"data: items up to {last} have inputs that differ ({error}): give one shape and type"
        ) from error
    waiting.clear()


def _as_label(label: Any) -> Any:
    """Converts a label to a plain value or an array."""
    if isinstance(label, str | bool | int | float):
        return label
    array = as_array(label, "the label") if not np.isscalar(label) else np.asarray(label)
    return array.item() if array.ndim == 0 else array.ravel()


# ---------------------------------------------------------------------------------------------------------------------
# Readers of data that are given for each client: a mapping from clients to data, a folder of tables, or LEAF's JSON.
#
# The clients are numbered in the order of the mapping or of the file names. The samples are joined client after
# client. With the partition `natural`, each client gets the samples that the user gave for this client.


def read_table_folder(folder: Path, reading: ReadOptions) -> Dataset:
    """Reads a folder of Parquet, CSV or Feather files, with one file for each client or for each part.

    `reading.test` names the file of the test part.

    Raises:
        BadInput: There are no such files, two files have the same name, or an option has no effect.
    """
    files = layout.list_tables(folder)
    if not files:
        remedy = "put a file for each client there, or write data.name: folder if it has pictures"
        raise BadInput(f"data.path = {folder}: it has no .parquet or .csv file: {remedy}")
    names = [file.name.partition(".")[0] for file in files]
    parts = layout.find_table_parts(files, reading.test if isinstance(reading.test, str) else None)
    if parts is None:
        if twice := [name for name, number in Counter(file.stem for file in files).items() if number > 1]:
            raise BadInput(f"data.path = {folder}: two files are called {twice[0]}: leave one out")
        data = join_tables({file.stem: file for file in files}, reading, "table")
    else:
        if parts.test not in (None, *names) or not isinstance(reading.test, str | None):
            raise BadInput(f"data.test = {parts.test}: {folder} has {', '.join(names)[:200]}: name one of them")
        refuse_idle(reading._replace(test=None), tables.OPTIONS - {"test"}, "tables of parts")
        train, test = (None if name is None else tables.read_frame(files[names.index(name)]) for name in parts[:2])
        data = tables.build_table(train, test, reading._replace(test=None))
        data = data._replace(remarks=(*parts.remarks, *data.remarks))
    left = {at for at in layout.list_files(folder) if at.parent == folder or at.suffix.lower() in layout.TABLES} - set(
        files
    )
    return data._replace(remarks=(*layout.remark_on_unread_files(folder, left), *data.remarks))


def join_pairs(clients: Mapping[str, Any], reading: ReadOptions) -> Dataset:
    """Joins the samples of several clients, given as pairs or data sets of torch, to one data set.

    `clients` has the data of each client by name: a pair (x, y), two pairs (train, test), or one or two data sets of
    torch. The samples of the option `test` belong to no client.

    Raises:
        BadInput: The data of a client do not fit the data of the other clients, or there are both common test samples
            and test samples of a client.
    """
    refuse_idle(reading, OPTIONS, "pairs of inputs and labels")
    names, parts, common = list(clients), [], _read_test(reading)
    for client, value in clients.items():
        try:
            parts.append(read_raw_parts(value, reading._replace(test=None)))
        except BadInput as error:
            raise BadInput(f"client {client}: {error}") from None
    refuse_empty([len(train.x) for train, _ in parts], names)
    _refuse_orders([common, *(part for pair in parts for part in pair)])
    train = join_client_rows([train for train, _ in parts], names, reading)
    held = [test for _, test in parts]
    if any(test is not None for test in held) and not all(test is not None for test in held):
        raise BadInput(f"client {names[held.index(None)]} has no test rows, but others have: give all some, or none")
    if held[0] is not None and common is not None:
        raise BadInput(f"client {names[0]} has test rows of its own, and data.test gives common ones: leave one out")
    tests = [part for part in held if part is not None]
    test = join_client_rows(tests, names, reading) if tests else common
    return make_dataset("clients", train, test, reading)


def join_hubs(clients: Mapping[str, Any], reading: ReadOptions) -> Dataset:
    """Joins the Hugging Face data sets of several clients to one. Folders of saved data sets are accepted, too."""
    import datasets

    refuse_idle(reading, tables.TEXT_OPTIONS - {"test", "group"} | {"size"}, "a Hugging Face data set for each client")
    opened = {name: hugging_face.open_hub(str(at)) if isinstance(at, Path) else at for name, at in clients.items()}
    for client, hub in opened.items():
        if "datasets.Dataset" not in list_classes(hub):
            raise BadInput(f"client {client} has a {type(hub).__name__} of datasets: give one of its splits")
    refuse_empty([len(hub) for hub in opened.values()], list(opened))
    column = _name_column({name for hub in opened.values() for name in hub.column_names})
    joined = [hub.add_column(column, [number] * len(hub)) for number, hub in enumerate(opened.values())]
    try:
        whole = datasets.concatenate_datasets(joined)
    except ValueError as error:
        raise BadInput(
            f"data: {show_line(str(error)).rstrip('.')}: give all clients columns of one type (cast_column)"
        ) from error
    data = hugging_face.read_hugging_face(whole, reading._replace(group=column), name="clients")
    return _name_groups(data, column, list(opened))


def join_folders(clients: Mapping[str, Path], reading: ReadOptions) -> Dataset:
    """Joins the folders of pictures of several clients to one data set."""
    refuse_idle(reading, ("test_fraction", "size"), "folders of pictures")
    return pictures.read_folder(clients, reading)


def _name_column(known: Collection[str]) -> str:
    """Returns the name of the new column with the client of each sample. `known` has the names of the other columns."""
    return CLIENT if CLIENT not in known else "client of the row"


def _name_groups(data: Dataset, column: str, names: list[str]) -> Dataset:
    """Replaces the numbers of the clients in a column by the names of the clients."""
    assert data.train.group is not None
    return data._replace(columns={**data.columns, column: np.array(names)[data.train.group]})


def refuse_empty(sizes: Sequence[int], names: list[str]) -> None:
    """Refuses clients that have no samples, because the data set would not contain these clients.

    Raises:
        BadInput: A client has no samples, although other clients have samples.
    """
    if 0 in sizes and any(sizes):
        raise BadInput(f"data: client {names[sizes.index(0)]} has no rows: leave it out")


def join_tables(clients: Mapping[str, Any], reading: ReadOptions, name: str = "clients") -> Dataset:
    """Joins the tables of several clients, or the files with these tables, to one data set.

    Args:
        clients: Dict from the name of each client to its table, or to the file with the table.
        reading: The options for reading.
        name: Name of the data set.

    Raises:
        BadInput: A client has no rows, or lacks an input or the target.

    Example:
        >>> import pandas as pd
        >>> ward = pd.DataFrame({"age": [1.0, 2.0] * 5, "ill": ["no", "yes"] * 5})
        >>> data = join_tables({"Rome": ward, "Oslo": ward}, ReadOptions(target="ill"))
        >>> data.columns["client"][[0, -1]].tolist(), np.unique(data.train.group).tolist()
        (['Rome', 'Oslo'], [0, 1])
    """
    import pandas as pd

    refuse_idle(reading, tables.OPTIONS - {"test", "group"}, "a table for each client")
    frames = [
        tables.read_frame(value) if isinstance(value, Path) else tables.as_frame(value) for value in clients.values()
    ]
    names, sizes = list(clients), [len(frame) for frame in frames]
    refuse_empty(sizes, names)
    whole = pd.concat(frames, ignore_index=True)
    column = _name_column(whole.columns)
    whole[column] = np.repeat(np.arange(len(frames)), sizes)
    indexes = [name for frame in frames for name in frame.attrs.get(INDEX, ())]
    whole.attrs = {"file": "the table of all clients", INDEX: indexes}
    parts = dict(zip(names, frames, strict=True))
    data = tables.build_table(whole, None, reading._replace(group=column), name, parts=parts)
    return _name_groups(data, column, names)


def join_client_rows(parts: Sequence[RawRows], names: list[str], reading: ReadOptions) -> RawRows:
    """Joins the samples of all clients, client after client.

    Raises:
        BadInput: The samples of the clients differ in shape or type.
    """
    parts = align_parts(parts, reading)
    spool, first, types = Spool(), parts[0], {part.x.dtype for part in parts}
    alike = all(kind.kind in "iu" for kind in types) or all(kind.kind == "f" for kind in types)
    for part, client in zip(parts, names, strict=True):
        check_rows(f"client {client}", Split(part.x, part.y))
        try:
            for piece in read_pieces(part.x):
                spool.append(piece.astype(np.result_type(*types), copy=False) if alike else piece)
            np.concatenate([first.y[:1], part.y[:1]])
        except ValueError as error:
            raise BadInput(f"client {client} has {error}: give the rows of all clients one shape and type") from error
    group = np.repeat(np.arange(len(parts)), [len(part.x) for part in parts]).astype(np.int64)
    y = np.concatenate([part.y for part in parts])
    said = tuple(f"client {client}: {remark}" for part, client in zip(parts, names) for remark in part.remarks)
    return RawRows(spool.finish(), y, group, {CLIENT: np.array(names)[group]}, first.names, remarks=said)


# ---------------------------------------------------------------------------------------------------------------------
# LEAF's JSON, as a dict, a file, or a folder with folders `train` and `test`. Each user in the JSON is a client.


def holds_users(thing: Any) -> bool:
    """Returns whether an object is LEAF's JSON: a dict, two dicts (train, test), a file, or a folder of files."""
    if isinstance(thing, Path):
        return bool(layout.list_leaf_files(thing))
    return layout.is_leaf(thing) or (is_pair(thing) and all(layout.is_leaf(part) for part in thing))


def read_users(thing: Any, reading: ReadOptions) -> Dataset:
    """Converts the samples of all users in LEAF's JSON to a data set. Each user with training samples is a client.

    Test samples of users without training samples get group -1.

    Args:
        thing: The JSON as a dict, as two dicts (train, test), or in a file or a folder of files.
        reading: The options for reading. `reading.test` may be a dict, a file or a folder with the test samples.

    Raises:
        BadInput: There are no training samples, a user in the training part has no samples, or the samples of a user do
            not fit the samples of other users.
    """
    if isinstance(thing, Path):
        folders = layout.list_leaf_files(thing)
        train, test = folders.get("train", []), folders.get("test", folders.get("validation", []))
        if not train:
            raise BadInput(f"data.path = {thing}: it has no JSON of users in a folder train: put some there")
    else:
        train, test = ([thing[0]], [thing[1]]) if is_pair(thing) else ([thing], [])
    if test:
        refuse_second_test(reading)
    if isinstance(reading.test, Path):
        at = expand_user_path("data.test", str(reading.test))
        test = [file for some in layout.list_leaf_files(at).values() for file in some] if at.exists() else []
        if not test:
            raise BadInput(f"data.test = {reading.test}: it has no JSON of users: give LEAF's JSON, or a folder of it")
    elif reading.test is not None:
        test = [reading.test]
    names, rows = _read_users(train, reading)
    refuse_empty([len(part.x) for part in rows], names)
    held = None
    if test:
        testers, parts = _read_users(test, reading)
        numbers = {name: number for number, name in enumerate(names)}
        owner = np.repeat([numbers.get(name, -1) for name in testers], [len(part.x) for part in parts])
        held = join_client_rows(parts, testers, reading)._replace(group=owner.astype(np.int64), columns={})
    return make_dataset("leaf", join_client_rows(rows, names, reading), held, reading)


def _read_users(files: Sequence[Any], reading: ReadOptions) -> tuple[list[str], list[RawRows]]:
    """Reads LEAF's JSON, given as files or dicts, in this order. Returns the name and the samples of each user."""
    found: dict[str, RawRows] = {}
    for file in files:
        data = layout.load_json(file) if isinstance(file, Path) else file
        if not layout.is_leaf(data):
            raise BadInput("data.test has no user_data, as LEAF's JSON has: give a part of the same form")
        for user, rows in data["user_data"].items():
            if user in found or not isinstance(rows, Mapping) or not {"x", "y"} <= rows.keys():
                raise BadInput(f"data: user {user} has no x and y, or comes twice: give both, as LEAF has them")
            try:
                found[str(user)] = read_raw_parts((rows["x"], rows["y"]), reading._replace(test=None))[0]
            except BadInput as error:
                raise BadInput(f"user {user}: {error}") from None
    return list(found), list(found.values())
