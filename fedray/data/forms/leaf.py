"""LEAF's JSON, the data of users: as a dict, a file, or a folder with `train` and `test`; a client is a user.

Example:
    >>> from fedray.data.adaptation import adapt
    >>> rows = {"x": [[0.5, 1.0], [0.25, 0.0]] * 5, "y": [0, 1] * 5}
    >>> data = adapt({"users": ["ann", "bob"], "num_samples": [10, 10], "user_data": {"ann": rows, "bob": rows}})
    >>> data.name, data.columns["client"][[0, -1]].tolist()
    ('leaf', ['ann', 'bob'])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.read_options import ReadOptions
from fedray.data.forms.clients import join_client_rows, refuse_empty
from fedray.data.forms.pairs import is_pair, read_raw_parts
from fedray.data.forms.rows import RawRows, make_dataset
from fedray.data.types import Dataset
from fedray.files.leaf_files import is_leaf, list_leaf_files, load_json
from fedray.files.plain import expand_user_path


def read_leaf(train: Sequence[Any], test: Sequence[Any], reading: ReadOptions) -> Dataset:
    """Returns the rows of all users; a client is a user who has training rows.

    Args:
        train: What files of the training part hold.
        test: What files of the test part hold; its users may be others, whose rows are then no known client's.
        reading: How the rows are read.

    Raises:
        BadInput: A user has no rows, or rows that do not fit those of others.
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
    """The data set of a file or a folder that `list_leaf_files` finds; `reading.test` is another one, or None."""
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
    """Whether a thing is LEAF's JSON: a dict, two of them (train, test), or a file or a folder of such files."""
    if isinstance(thing, Path):
        return bool(list_leaf_files(thing))
    return is_leaf(thing) or (is_pair(thing) and all(is_leaf(part) for part in thing))


def read_users(thing: Any, reading: ReadOptions) -> Dataset:
    """Returns the data set of what `holds_users` finds."""
    if isinstance(thing, Path):
        return read_leaf_files(thing, reading)
    train, test = thing if is_pair(thing) else (thing, reading.test)
    if isinstance(test, Path):
        test = load_json(expand_user_path("data.test", str(test)))
    return read_leaf([train], [] if test is None else [test], reading._replace(test=None))


def _read_users(files: Sequence[Any], reading: ReadOptions) -> tuple[list[str], list[RawRows]]:
    """Returns the users of some files in their order, and the rows of each."""
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
