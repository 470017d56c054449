"""Readers of data given client by client: a mapping from clients to data, a folder of tables, or LEAF's JSON.

Example:
    >>> from fedray.data.adaptation import adapt
    >>> rows = {"x": [[0.5, 1.0], [0.25, 0.0]] * 5, "y": [0, 1] * 5}
    >>> data = adapt({"users": ["ann", "bob"], "num_samples": [10, 10], "user_data": {"ann": rows, "bob": rows}})
    >>> data.name, data.columns["client"][[0, -1]].tolist()
    ('leaf', ['ann', 'bob'])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.options import ReadOptions
from fedray.data.forms import hugging_face, pairs, pictures, tables
from fedray.data.forms.arrays import is_array, list_classes
from fedray.data.forms.pairs import (
    KNOWN_FORMS,
    MOST_NAMED,
    describe_thing,
    is_pair,
    is_torch_set,
    read_raw_parts,
)
from fedray.data.forms.rows import CLIENT, RawRows, make_dataset, refuse_idle
from fedray.data.forms.tables import as_frame, build_table, is_frame, read_frame, require_columns
from fedray.data.spool import Spool, read_pieces
from fedray.data.types import Dataset, Split, check_rows
from fedray.files.layout import (
    TABLES,
    find_table_parts,
    is_leaf,
    list_files,
    list_leaf_files,
    list_tables,
    load_json,
    tell_endings,
)
from fedray.files.plain import expand_user_path
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# The clients are numbered in the order of the mapping, or of the names of the files. The samples are joined client
# after client. The partition `natural` gives each client its own samples back.


def read_table_folder(folder: Path, reading: ReadOptions) -> Dataset:
    """Reads a folder of Parquet, CSV or Feather files: a file for each client, named after it, or for each part.

    Args:
        folder: The folder of the files.
        reading: The options for reading; `reading.test` names the file of the test part.

    Raises:
        BadInput: There are no such files, two files have one name, or an option has no effect.
    """
    files = list_tables(folder)
    if not files:
        remedy = "put a file for each client there, or write data.name: folder if it has pictures"
        raise BadInput(f"data.path = {folder}: it has no .parquet or .csv file: {remedy}")
    names = [file.name.partition(".")[0] for file in files]
    parts = find_table_parts(files, reading.test if isinstance(reading.test, str) else None)
    if parts is None:
        data = read_clients(_by_name(folder, files), reading, "table")
    else:
        if parts.test not in (None, *names) or not isinstance(reading.test, str | None):
            raise BadInput(f"data.test = {parts.test}: {folder} has {', '.join(names)[:200]}: name one of them")
        refuse_idle(reading._replace(test=None), tables.OPTIONS - {"test"}, "tables of parts")
        train, test = (None if name is None else read_frame(files[names.index(name)]) for name in parts[:2])
        data = build_table(train, test, reading._replace(test=None))
        data = data._replace(remarks=(*parts.remarks, *data.remarks))
    left = {at for at in list_files(folder) if at.parent == folder or at.suffix.lower() in TABLES} - set(files)
    return data._replace(remarks=(*tell_endings(folder, left), *data.remarks))


def _by_name(folder: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Reads the tables of clients; the name of a client is that of the file."""
    if twice := [name for name, number in Counter(file.stem for file in files).items() if number > 1]:
        raise BadInput(f"data.path = {folder}: two files are called {twice[0]}: leave one out")
    return {file.stem: read_frame(file) for file in files}


def read_client_map(things: Mapping[Any, Any], reading: ReadOptions) -> Dataset:
    """Reads a mapping from clients to tables, files of tables, Hugging Face data sets, pairs, or torch data sets."""
    texts = all(isinstance(value, str) for value in things.values())  # such as paths
    if not texts and not any(_is_readable(value) for value in things.values()):
        each = [f"{key} ({name_type(v) if is_array(v) else describe_thing(v)})" for key, v in things.items()]
        has = ", ".join(each[:MOST_NAMED] + ["..."] * (len(each) > MOST_NAMED))
        raise BadInput(f"data is a dict of {has}: give pandas.DataFrame(d) if these are columns, or {KNOWN_FORMS}")
    if folders := {client: value for client, value in things.items() if isinstance(value, Path) and value.is_dir()}:
        return _read_client_folders(things, folders, reading)
    things = {
        client: read_frame(expand_user_path("data", str(value))) if isinstance(value, Path) else value
        for client, value in things.items()
    }
    if things and all("datasets.Dataset" in list_classes(value) for value in things.values()):
        names = [str(client) for client in things]
        refuse_empty([len(value) for value in things.values()], names)
        import datasets

        joined = [part.add_column(CLIENT, [number] * len(part)) for number, part in enumerate(things.values())]
        whole = datasets.concatenate_datasets(joined)
        data = hugging_face.read_hugging_face(whole, reading._replace(group=CLIENT), name="clients")
        assert data.train.group is not None
        return data._replace(columns={**data.columns, CLIENT: np.array(names)[data.train.group]})
    return read_clients(things, reading)


def _read_client_folders(things: Mapping[Any, Any], folders: Mapping[Any, Path], reading: ReadOptions) -> Dataset:
    """Reads a mapping from clients to folders of pictures."""
    places = {str(client): expand_user_path("data", str(folder)) for client, folder in folders.items()}
    for client, place in places.items():
        if list_tables(place):
            raise BadInput(f"client {client}: {place} is a folder of tables: give a table, or its file")
    if len(folders) < len(things):
        other = next(client for client in things if client not in folders)
        raise BadInput(f"client {other} has no folder, but others have: give all of them data of one form")
    refuse_idle(reading, ("test_fraction", "size"), "folders of pictures")
    return pictures.read_folder(places, reading)


def _is_readable(value: Any) -> bool:
    """Returns whether a value of a mapping may be the data of a client."""
    known = isinstance(value, Path | Dataset) or is_frame(value) or is_torch_set(value)
    return known or is_pair(value) or hugging_face.is_hugging_face(value) or isinstance(value, Mapping)


def read_clients(
    clients: Mapping[Any, Any],
    reading: ReadOptions,
    name: str = "clients",
) -> Dataset:
    """Joins the data of several clients to one data set.

    Args:
        clients: The data of each client by name, all in the same form.
        reading: The options for reading.
        name: Name of the data set.

    Raises:
        BadInput: The data of a client do not fit those of the others; the message names the client.

    Example:
        >>> import pandas as pd
        >>> ward = pd.DataFrame({"age": [1.0, 2.0] * 5, "ill": ["no", "yes"] * 5})
        >>> data = read_clients({"Rome": ward, "Oslo": ward}, ReadOptions(target="ill"))
        >>> data.columns["client"][[0, -1]].tolist(), np.unique(data.train.group).tolist()
        (['Rome', 'Oslo'], [0, 1])
    """
    names = [str(client) for client in clients]
    if not clients:
        raise BadInput("data: there is no client in the mapping: give {client: data}")
    if all(is_frame(value) for value in clients.values()):
        refuse_idle(reading, tables.OPTIONS - {"test", "group"}, "a table for each client")
        return _join_tables([as_frame(value) for value in clients.values()], names, reading, name)
    refuse_idle(reading, pairs.OPTIONS, pairs.NAME)
    parts = []
    for client, value in clients.items():
        try:
            parts.append(read_raw_parts(value, reading))
        except BadInput as error:
            raise BadInput(f"client {client}: {error}") from None
    refuse_empty([len(train.x) for train, _ in parts], names)
    train = join_client_rows([train for train, _ in parts], names)
    held = [test for _, test in parts]
    if any(test is not None for test in held) and not all(test is not None for test in held):
        raise BadInput(f"client {names[held.index(None)]} has no test rows, but others have: give all some, or none")
    test = join_client_rows([part for part in held if part is not None], names) if held[0] is not None else None
    return make_dataset(name, train, test, reading)


def refuse_empty(sizes: Sequence[int], names: list[str]) -> None:
    """Refuses clients without samples, because the data set would not contain such a client.

    Args:
        sizes: Number of samples of each client.
        names: Names of the clients.

    Raises:
        BadInput: A client has no samples, but another has some; the message names the first such client.
    """
    if 0 in sizes and any(sizes):
        raise BadInput(f"data: client {names[sizes.index(0)]} has no rows: leave it out")


def _join_tables(frames: Sequence[Any], names: list[str], reading: ReadOptions, name: str) -> Dataset:
    """Joins the tables of clients to one with a column that names the client; converts that table to a data set."""
    import pandas as pd

    refuse_empty([len(frame) for frame in frames], names)
    first = list(frames[0])
    column = CLIENT if CLIENT not in first else "client of the row"
    parts = []
    for frame, client in zip(frames, names, strict=True):
        frame.attrs["file"] = f"client {client}"
        require_columns(frame, first)
        parts.append(frame if list(frame) == first else frame[first])
    whole = pd.concat(parts, ignore_index=True)
    whole[column] = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    whole.attrs["file"] = "the table of all clients"
    data = build_table(whole, None, reading._replace(group=column), name)
    assert data.train.group is not None
    return data._replace(columns={**data.columns, column: np.array(names)[data.train.group]})


def join_client_rows(parts: Sequence[RawRows], names: list[str]) -> RawRows:
    """Joins the samples of all clients, client after client.

    Args:
        parts: The samples of each client.
        names: Names of the clients.

    Raises:
        BadInput: The samples of the clients differ in shape or type.
    """
    spool, first, types = Spool(), parts[0], {part.x.dtype for part in parts}
    alike = all(kind.kind in "iu" for kind in types) or all(kind.kind == "f" for kind in types)
    for part, client in zip(parts, names, strict=True):
        check_rows(f"client {client}", Split(part.x, part.y))
        try:
            for piece in read_pieces(part.x):
                spool.append(piece.astype(np.result_type(*types), copy=False) if alike else piece)
        except ValueError as error:
            raise BadInput(f"client {client} has {error}: give all clients' inputs one shape and type") from error
    group = np.repeat(np.arange(len(parts)), [len(part.x) for part in parts]).astype(np.int64)
    try:
        y = np.concatenate([part.y for part in parts])
    except ValueError as error:
        raise BadInput(f"data: the clients have labels of several shapes ({error}): give them one") from error
    said = tuple(f"client {client}: {remark}" for part, client in zip(parts, names) for remark in part.remarks)
    return RawRows(spool.finish(), y, group, {CLIENT: np.array(names)[group]}, first.names, remarks=said)


# ---------------------------------------------------------------------------------------------------------------------
# LEAF's JSON with the samples of users: a dict, a file, or a folder with `train` and `test`. Each user is a client.


def read_leaf(train: Sequence[Any], test: Sequence[Any], reading: ReadOptions) -> Dataset:
    """Converts the samples of all users to a data set; each user with training samples is a client.

    Args:
        train: Contents of the files of the training part.
        test: Contents of the files of the test part. Test samples of users without training samples have group -1.
        reading: The options for reading.

    Raises:
        BadInput: A user has no training samples, or the samples of a user do not fit those of others.
    """
    names, rows = _read_users(train, reading)
    refuse_empty([len(part.x) for part in rows], names)
    held = None
    if test:
        testers, parts = _read_users(test, reading)
        numbers = {name: number for number, name in enumerate(names)}
        owner = np.repeat([numbers.get(name, -1) for name in testers], [len(part.x) for part in parts])
        held = join_client_rows(parts, testers)._replace(group=owner.astype(np.int64), columns={})
    return make_dataset("leaf", join_client_rows(rows, names), held, reading)


def read_leaf_files(place: Path, reading: ReadOptions) -> Dataset:
    """Reads LEAF's JSON from a file or folder; `reading.test` is None or another file, folder or dict for testing."""
    parts = list_leaf_files(place)
    tests = [files for part, files in parts.items() if part != "train"]
    test = [load_json(file) for file in (tests[0] if tests else [])]
    if isinstance(reading.test, Path):
        test = [load_json(file) for files in list_leaf_files(reading.test).values() for file in files]
    elif reading.test is not None:
        test = [reading.test]
    train = [load_json(file) for file in parts.get("train", ())]
    if not train:
        raise BadInput(f"data.path = {place}: it has no JSON of users in a folder train: put the training part there")
    return read_leaf(train, test, reading._replace(test=None))


def holds_users(thing: Any) -> bool:
    """Returns whether an object is LEAF's JSON: a dict, two dicts (train, test), a file, or a folder of files."""
    if isinstance(thing, Path):
        return bool(list_leaf_files(thing))
    return is_leaf(thing) or (is_pair(thing) and all(is_leaf(part) for part in thing))


def read_users(thing: Any, reading: ReadOptions) -> Dataset:
    """Reads an object for which `holds_users` is True."""
    if isinstance(thing, Path):
        return read_leaf_files(thing, reading)
    train, test = thing if is_pair(thing) else (thing, reading.test)
    if isinstance(test, Path):
        test = load_json(expand_user_path("data.test", str(test)))
    return read_leaf([train], [] if test is None else [test], reading._replace(test=None))


def _read_users(files: Sequence[Any], reading: ReadOptions) -> tuple[list[str], list[RawRows]]:
    """Returns the names of the users in some files, in order, and the samples of each user."""
    found: dict[str, RawRows] = {}
    for data in files:
        if not is_leaf(data):
            raise BadInput("data.test has no user_data, as LEAF's JSON has: give a part of the same form")
        for user, rows in data["user_data"].items():
            if user in found or not isinstance(rows, Mapping) or not {"x", "y"} <= rows.keys():
                raise BadInput(f"data: user {user} has no x and y, or comes twice: give both, as LEAF has them")
            try:
                found[str(user)] = read_raw_parts((rows["x"], rows["y"]), reading._replace(test=None))[0]
            except BadInput as error:
                raise BadInput(f"user {user}: {error}") from None
    return list(found), list(found.values())
