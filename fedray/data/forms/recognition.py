"""Which form a user's data have, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.core.read_options import ReadOptions
from fedray.data.forms import clients, hugging_face, leaf, pictures, tables
from fedray.data.forms.arrays import as_array, as_inputs, is_array, list_classes
from fedray.data.forms.decoding import decode_picture
from fedray.data.forms.pictures import PictureRows
from fedray.data.forms.rows import (
    RawRows,
    is_missing,
    make_dataset,
    refuse_idle,
    tokenize,
)
from fedray.data.forms.tables import require_columns
from fedray.data.spool import Spool
from fedray.data.types import Array, Dataset
from fedray.files.layout import Parts, find_parts, list_tables
from fedray.files.leaf_files import is_leaf, list_leaf_files, load_json
from fedray.files.plain import expand_user_path
from fedray.own_code.user_code import blame_user_code, name_type

# ---------------------------------------------------------------------------------------------------------------------
# What is said of things that are no form of data: what they are, and what to give in their place.

FORMS = (
    "a pair (x, y) of arrays or tensors, two pairs (train, test), a pandas, polars or pyarrow table, a Hugging Face or "
    "torch Dataset, a pathlib.Path, {client: data}, or a fedray.data.Dataset"
)
INPUTS = ("x", "x_train", "train_x", "data", "images", "features", "inputs", "input")  # usual keys of a dict
LABELS = ("y", "y_train", "train_y", "target", "targets", "labels", "label")
MOST_NAMED = 4


def describe_thing(thing: Any) -> str:
    """What a thing is that no form is."""
    if isinstance(thing, tuple | list):
        inner = ", ".join(name_type(part) for part in thing[:MOST_NAMED])
        return f"{name_type(thing)} of {len(thing)} ({inner}{', ...' if len(thing) > MOST_NAMED else ''})"
    if is_array(thing):
        return f"{name_type(thing)} without labels"
    return name_type(thing)


def explain_dict(things: Mapping[Any, Any]) -> str:
    """The line about a dict whose values are no data by themselves: arrays, columns, numbers.

    Example:
        >>> explain_dict({"x": [[0.5]], "y": [1]})
        "data is a dict of x (a list of 1 (a list)), y (a list of 1 (an int)): give a pair, data=(d['x'], d['y'])"
    """
    each = [f"{key} ({name_type(v) if is_array(v) else describe_thing(v)})" for key, v in things.items()]
    has = ", ".join(each[:MOST_NAMED] + ["..."] * (len(each) > MOST_NAMED))
    keys = {str(key).lower(): key for key in things}
    x, y = (next((keys[name] for name in names if name in keys), None) for names in (INPUTS, LABELS))
    if x is None or y is None:
        return f"data is a dict of {has}: give data=pandas.DataFrame(d) if these are columns, or {FORMS}"
    test = [keys.get(str(key).lower().replace("train", "test")) for key in (x, y)]
    if None in test or test == [x, y]:
        return f"data is a dict of {has}: give a pair, data=(d[{x!r}], d[{y!r}])"
    return f"data is a dict of {has}: give two pairs, data=((d[{x!r}], d[{y!r}]), (d[{test[0]!r}], d[{test[1]!r}]))"


# ---------------------------------------------------------------------------------------------------------------------
# Which form a user's data have, and who reads it.

# ---------------------------------------------------------------------------------------------------------------------
# Map-style data sets of torch: each item is a pair of an input and a label, and is asked for once.

PIECE_ROWS = 1024
ASKED_AGAIN = 8  # items


def is_torch_set(thing: Any) -> bool:
    """Whether a thing is a data set of torch, of any style."""
    return bool(list_classes(thing) & {"torch.Dataset", "torch.IterableDataset"})


def read_pairs(dataset: Any, reading: ReadOptions) -> RawRows:
    """The rows of a map-style data set; names of the classes are its `classes`, where it has them.

    Args:
        dataset: Has a length, and `dataset[i]` is a pair.
        reading: How pictures and text are read.

    Raises:
        BadInput: It is of another style, or its items are no pairs.

    Example:
        >>> pairs = [(np.full(3, i, np.float32), i % 2) for i in range(10)]
        >>> read_pairs(pairs, ReadOptions()).x.shape
        (10, 3)
    """
    if "torch.IterableDataset" in list_classes(dataset):
        raise BadInput("data is an IterableDataset: give one of map style, which has a length and items by number")
    try:
        number = len(dataset)
    except TypeError as error:
        raise BadInput(f"data is a {type(dataset).__name__} without a length: define __len__") from error
    spool, labels, texts, first = Spool(), list[Any](), list[str](), list[Array]()
    pictures, waiting = PictureRows(), list[Array]()
    for i in range(number):
        with blame_user_code(f"data: item {i}"):
            item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadInput(f"data: item {i} is {_describe(item)}: give pairs of an input and a label")
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
    x = tokenize([texts], reading.tokenizer, reading.length) if texts else spool.finish()
    x = pictures.finish() if pictures.number else x
    if pictures.number not in (0, number):
        raise BadInput("data: some items are pictures of PIL and others are not: give all in one form")
    names = getattr(dataset, "classes", ())
    known = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return RawRows(x, np.asarray(labels), names=tuple(names) if known else (), remarks=pictures.remarks())


def _is_picture(value: Any) -> bool:
    return any(name.startswith("PIL.") for name in list_classes(value))


def _as_input(value: Any, i: int) -> Array:
    """The input of item i as an array."""
    return np.asarray(value) if np.isscalar(value) else as_array(value, f"the input of item {i}")


def _warn_of_draws(dataset: Any, first: list[Array], reading: ReadOptions) -> None:
    """Says that a data set's transform draws at random, which happens once here; its first items are asked again."""
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
    """Puts rows that wait behind the others."""
    if not waiting:
        return
    shapes = {array.shape for array in waiting}
    if len(shapes) > 1:
        raise BadInput(f"data: items up to {last} have inputs of shapes {sorted(shapes)[:2]}: give them one shape")
    try:
        spool.append(as_inputs(np.stack(waiting), "data: the input"))
    except ValueError as error:
        raise BadInput(
            f"data: items up to {last} have inputs of several kinds ({error}): give them one type"
        ) from error
    waiting.clear()


def _as_label(label: Any) -> Any:
    """A label as a plain value or an array."""
    if isinstance(label, str | bool | int | float):
        return label
    array = as_array(label, "the label") if not np.isscalar(label) else np.asarray(label)
    return array.item() if array.ndim == 0 else array.ravel()


def _describe(item: Any) -> str:
    """What an item is that is no pair."""
    return f"a tuple of {len(item)}" if isinstance(item, tuple | list) else name_type(item)


# ---------------------------------------------------------------------------------------------------------------------
# Which form a user's data have, and who reads it.

PAIR_OPTIONS = ("test", "test_fraction", "task", "missing", "tokenizer", "length", "size")


def read_form(thing: Any, reading: ReadOptions) -> Dataset:
    """A data set of data in the form that a user has them.

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
    if isinstance(thing, Dataset):
        return thing
    if isinstance(thing, np.lib.npyio.NpzFile):
        raise BadInput(f"data is the arrays {', '.join(thing)[:100]} of an .npz file: give two of them, data=(x, y)")
    if hugging_face.is_hugging_face(thing):
        return hugging_face.read_hugging_face(thing, reading)
    if isinstance(thing, Path):
        return _read_path(thing, reading)
    if is_leaf(thing) or (_is_pair(thing) and all(is_leaf(part) for part in thing)):
        return _read_users(thing, reading)
    if isinstance(thing, Mapping) and not tables.is_frame(thing):
        parts = find_parts(map(str, thing), "data", reading.test if isinstance(reading.test, str) else None)
        return _read_client_map(thing, reading) if parts is None else _read_parts(thing, parts, reading)
    if _is_pair(thing) and all(tables.is_frame(part) for part in thing) and list(thing[0]) == list(thing[1]):
        thing, reading = thing[0], reading._replace(test=thing[1])
    if _is_pair(thing) and tables.is_frame(thing[0]) and is_array(thing[1]) and reading.target is None:
        thing, target = _join_target(thing)
        test = None if reading.test is None else _join_target(reading.test)[0]
        reading = reading._replace(target=target, test=test)
    if tables.is_frame(thing):
        return _read_table(tables.as_frame(thing), reading)
    train, held = read_raw_parts(thing, reading)
    name = "torch" if is_torch_set(thing) or _are_torch_sets(thing) else "arrays"
    return make_dataset(name, train, held, reading)


def _read_table(frame: Any, reading: ReadOptions) -> Dataset:
    """A table of numbers and categories, or of a column of text that is tokenized."""
    other = None if reading.test is None else tables.as_frame(reading.test)
    if reading.tokenizer is None:
        refuse_idle(reading, clients.TABLE_OPTIONS, "a table without data.tokenizer")
        return tables.build_table(frame, other, reading)
    columns = [reading.input] if isinstance(reading.input, str) else list(reading.input or [])
    if len(columns) != 1 or not isinstance(reading.target, str):
        raise BadInput(
            "data.tokenizer is set, but not both columns: name the column of text in data.input and "
            "the one to predict in data.target"
        )
    refuse_idle(reading, {*clients.TABLE_OPTIONS, "tokenizer", "length"}, "a table of text")
    given = [part for part in (frame, other) if part is not None]
    for part in given:
        require_columns(part, [*columns, reading.target, *([reading.group] if reading.group else [])])
    parts = []
    for part in given:
        x = tokenize([part[columns[0]].tolist()], reading.tokenizer, reading.length)
        y = np.asarray(part[reading.target].to_numpy())
        group = tables.number_groups(part[reading.group], frame[reading.group]) if reading.group else None
        parts.append(RawRows(x, y, group, tables.keep_columns(part, columns)))
    return make_dataset("table", parts[0], parts[1] if len(parts) > 1 else None, reading)


def _join_target(pair: Any) -> tuple[Any, str]:
    """A table of inputs and a column of labels as one table, and the name of the target."""
    import pandas as pd

    if not _is_pair(pair) or not tables.is_frame(pair[0]):
        raise BadInput(f"data.test is {describe_thing(pair)}: give a pair (x, y) as the data are")
    frame, y = tables.as_frame(pair[0]), as_array(pair[1], "data: y")
    if y.ndim != 1 or len(y) != len(frame):
        raise BadInput(f"data has {len(frame)} inputs, but labels of shape {list(y.shape)}: give one for each input")
    target = str(getattr(pair[1], "name", None) or "target")
    if target in list(frame):
        raise BadInput(f"data: the inputs have a column {target}, which is also the name of the labels: leave it out")
    whole = pd.DataFrame({column: frame[column].reset_index(drop=True) for column in frame})
    return whole.assign(**{target: y}), target


def _read_parts(things: Mapping[Any, Any], parts: Parts, reading: ReadOptions) -> Dataset:
    """A mapping from parts to data of any form."""
    named = {str(name): value for name, value in things.items()}
    if parts.test is not None:
        if parts.test not in named or (reading.test is not None and not isinstance(reading.test, str)):
            raise BadInput(
                f"data.test cannot act, because the data have the parts {', '.join(named)}: name one of them"
            )
        reading = reading._replace(test=named[parts.test])
    data = read_form(named[parts.train], reading)
    return data._replace(remarks=(*parts.remarks, *data.remarks))


def _read_users(thing: Any, reading: ReadOptions) -> Dataset:
    """What LEAF's JSON holds, or the training and the test part of it."""
    train, test = thing if _is_pair(thing) else (thing, reading.test)
    if isinstance(test, Path):
        test = load_json(expand_user_path("data.test", str(test)))
    return leaf.read_leaf([train], [] if test is None else [test], reading._replace(test=None), read_raw_parts)


def _read_client_map(things: Mapping[Any, Any], reading: ReadOptions) -> Dataset:
    """A mapping from clients to data: tables, their files, Hugging Face data sets, pairs, or torch data sets."""
    texts = all(isinstance(value, str) for value in things.values())  # paths, say
    if not texts and not any(_is_readable(value) for value in things.values()):
        raise BadInput(explain_dict(things))
    if folders := {client: value for client, value in things.items() if isinstance(value, Path) and value.is_dir()}:
        return _read_client_folders(things, folders, reading)
    things = {
        client: tables.read_frame(expand_user_path("data", str(value))) if isinstance(value, Path) else value
        for client, value in things.items()
    }
    if things and all("datasets.Dataset" in list_classes(value) for value in things.values()):
        names = [str(client) for client in things]
        clients.refuse_empty([len(value) for value in things.values()], names)
        whole = hugging_face.join_clients(list(things.values()), clients.CLIENT)
        data = hugging_face.read_hugging_face(whole, reading._replace(group=clients.CLIENT), name="clients")
        assert data.train.group is not None
        return data._replace(columns={**data.columns, clients.CLIENT: np.array(names)[data.train.group]})
    if all(tables.is_frame(value) for value in things.values()):
        refuse_idle(reading, clients.TABLE_OPTIONS - {"test", "group"}, "a table for each client")
    return clients.read_clients(things, reading, read_raw_parts)


def read_raw_parts(thing: Any, reading: ReadOptions) -> tuple[RawRows, RawRows | None]:
    """The training rows and the test rows, or None, of arrays, tensors, texts and torch's data sets.

    Args:
        thing: A pair (x, y), two pairs, a torch data set or two of them, or a path of pictures.
        reading: How they are read.

    Raises:
        BadInput: It is none of these.
    """
    refuse_idle(reading, PAIR_OPTIONS, "pairs of inputs and labels")
    if is_torch_set(thing):
        test = reading.test
        return read_pairs(thing, reading), None if test is None else read_raw_parts(test, reading._replace(test=None))[
            0
        ]
    if _are_torch_sets(thing):
        return read_pairs(thing[0], reading), read_pairs(thing[1], reading)
    if "torch.DataLoader" in list_classes(thing):
        raise BadInput("data is a DataLoader: give its data set, loader.dataset")
    if _is_pair(thing) and all(_is_pair(part) for part in thing):
        return _read_pair(thing[0], reading, "train"), _read_pair(thing[1], reading, "test")
    if _is_pair(thing):
        test = None if reading.test is None else _read_pair(reading.test, reading, "test")
        return _read_pair(thing, reading, "data"), test
    if isinstance(thing, str):
        raise BadInput(f"data is text: give pathlib.Path({thing!r}) for a file or a folder, or data__name")
    raise BadInput(f"data is {describe_thing(thing)}: give {FORMS}")


def _read_pair(pair: Any, reading: ReadOptions, where: str) -> RawRows:
    """The rows of a pair (x, y)."""
    if not _is_pair(pair):
        raise BadInput(f"{where} is {describe_thing(pair)}: give a pair (x, y)")
    x, y = pair
    features = tuple(map(str, x.columns)) if tables.is_frame(x) and "pandas.DataFrame" in list_classes(x) else ()
    if _are_texts(x):
        inputs = tokenize([x], reading.tokenizer, reading.length)
    else:
        array = as_array(x, f"{where}: x")
        if array.dtype.kind in "OU" and array.ndim == 1 and reading.tokenizer is not None:
            inputs = tokenize([array.tolist()], reading.tokenizer, reading.length)
        else:
            refuse_idle(reading, set(PAIR_OPTIONS) - {"tokenizer", "length", "size"}, "inputs that are numbers")
            inputs = as_inputs(array, f"{where}: x")
    return RawRows(inputs, as_array(y, f"{where}: y"), features=features)


def _read_path(path: Path, reading: ReadOptions) -> Dataset:
    """A file, a folder of pictures, a folder of tables, or what `save_to_disk` wrote."""
    place = expand_user_path("data", str(path))
    if place.exists() and list_leaf_files(place):
        return leaf.read_leaf_files(place, reading, read_raw_parts)
    if place.is_file():
        if isinstance(reading.test, str | Path):
            file = expand_user_path("data.test", str(reading.test))
            reading = reading._replace(test=tables.read_frame(file, "test"))
        return _read_table(tables.read_frame(place), reading)
    if not place.is_dir():
        raise BadInput(f"data = {path}: there is no such file or folder: correct the path")
    if any((place / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return hugging_face.read_hugging_face(hugging_face.open_saved(str(place)), reading)
    if list_tables(place):
        return clients.read_table_folder(place, reading)
    refuse_idle(reading, ("test", "test_fraction", "size"), "a folder of pictures")
    return pictures.read_folder(place, reading)


def _read_client_folders(things: Mapping[Any, Any], folders: Mapping[Any, Path], reading: ReadOptions) -> Dataset:
    """A mapping from clients to folders of pictures."""
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
    """Whether a value of a mapping may be the data of a client."""
    known = isinstance(value, Path | Dataset) or tables.is_frame(value) or is_torch_set(value)
    return known or _is_pair(value) or hugging_face.is_hugging_face(value) or isinstance(value, Mapping)


def _are_texts(x: Any) -> bool:
    """Whether inputs are a list of texts, of which some may be missing."""
    return isinstance(x, list | tuple) and any(isinstance(text, str) for text in x) and all(
        isinstance(text, str) or is_missing(text) for text in x
    )  # fmt: skip


def _is_pair(thing: Any) -> bool:
    return isinstance(thing, tuple | list) and len(thing) == 2 and not any(np.isscalar(part) for part in thing)


def _are_torch_sets(thing: Any) -> bool:
    return _is_pair(thing) and all(is_torch_set(part) for part in thing)
