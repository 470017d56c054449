"""A user's own data, in the form that they have them, as a data set of fedray: what `data=` of the Python API takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.core.read_options import ReadOptions
from fedray.core.text import suggest_nearest
from fedray.data.cut import Cut
from fedray.data.files import list_stamps
from fedray.data.forms.arrays import list_classes
from fedray.data.forms.hugging_face import is_hugging_face, tell_transform
from fedray.data.forms.recognition import read_form
from fedray.data.forms.rows import make_reading
from fedray.data.input_columns import COLUMNS, spell_columns
from fedray.data.shards import Shards, StoredShards
from fedray.data.store import keep_dataset
from fedray.data.types import Array, Dataset
from fedray.files.leaf_files import is_leaf
from fedray.files.plain import expand_user_path

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
