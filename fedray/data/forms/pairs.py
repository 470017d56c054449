"""Reader of pairs of inputs and labels: arrays, tensors, texts, and map-style data sets of torch.

Example:
    >>> train, held = read_raw_parts((np.eye(2), ["no", "yes"]), ReadOptions())
    >>> train.x.shape, train.y.tolist(), held
    ((2, 2), ['no', 'yes'], None)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.core.options import ReadOptions
from fedray.data.forms import tables
from fedray.data.forms.arrays import as_array, as_inputs, is_array, list_classes
from fedray.data.forms.pictures import PictureRows, decode_picture
from fedray.data.forms.rows import RawRows, is_missing, make_dataset, refuse_idle, tokenize
from fedray.data.spool import Spool
from fedray.data.types import Array, Dataset
from fedray.own_code.user_code import blame_user_code, name_type

KNOWN_FORMS = (
    "a pair (x, y) of arrays or tensors, two pairs (train, test), a pandas, polars or pyarrow table, a Hugging Face or "
    "torch Dataset, a pathlib.Path, {client: data}, or a fedray.data.Dataset"
)
NAME = "pairs of inputs and labels"
OPTIONS = ("test", "test_fraction", "task", "missing", "tokenizer", "length", "size")
MOST_NAMED = 4


def describe_thing(thing: Any) -> str:
    """Describes an object of unknown form, for messages."""
    if isinstance(thing, tuple | list):
        inner = ", ".join(name_type(part) for part in thing[:MOST_NAMED])
        return f"{name_type(thing)} of {len(thing)} ({inner}{', ...' if len(thing) > MOST_NAMED else ''})"
    if is_array(thing):
        return f"{name_type(thing)} without labels"
    return name_type(thing)


def read_thing(thing: Any, reading: ReadOptions) -> Dataset:
    """Converts any object that `read_raw_parts` can read to a data set."""
    train, held = read_raw_parts(thing, reading)
    name = "torch" if is_torch_set(thing) or _are_torch_sets(thing) else "arrays"
    return make_dataset(name, train, held, reading)


def read_raw_parts(thing: Any, reading: ReadOptions) -> tuple[RawRows, RawRows | None]:
    """Reads training and test samples from arrays, tensors, texts or torch's data sets; the test part may be None.

    Args:
        thing: A pair (x, y), two pairs (train, test), a data set of torch, or two of them.
        reading: The options for reading.

    Raises:
        BadInput: The object is none of these, or cannot be read.
    """
    if is_torch_set(thing):
        test = reading.test
        return read_pairs(thing, reading), None if test is None else read_raw_parts(test, reading._replace(test=None))[
            0
        ]
    if _are_torch_sets(thing):
        return read_pairs(thing[0], reading), read_pairs(thing[1], reading)
    if is_pair(thing) and all(is_pair(part) for part in thing):
        return _read_pair(thing[0], reading, "train"), _read_pair(thing[1], reading, "test")
    if is_pair(thing):
        test = None if reading.test is None else _read_pair(reading.test, reading, "test")
        return _read_pair(thing, reading, "data"), test
    if "torch.DataLoader" in list_classes(thing):
        raise BadInput("data is a DataLoader: give its data set, loader.dataset")
    if isinstance(thing, str):
        raise BadInput(f"data is text: give pathlib.Path({thing!r}) for a file or a folder, or data__name")
    raise BadInput(f"data is {describe_thing(thing)}: give {KNOWN_FORMS}")


def _read_pair(pair: Any, reading: ReadOptions, where: str) -> RawRows:
    """Reads the samples of a pair (x, y)."""
    if not is_pair(pair):
        raise BadInput(f"{where} is {describe_thing(pair)}: give a pair (x, y)")
    x, y = pair
    features = tuple(map(str, x.columns)) if tables.is_frame(x) and "pandas.DataFrame" in list_classes(x) else ()
    if (
        isinstance(x, list | tuple)
        and any(isinstance(text, str) for text in x)
        and all(isinstance(text, str) or is_missing(text) for text in x)
    ):
        inputs = tokenize([x], reading.tokenizer, reading.length)
    else:
        array = as_array(x, f"{where}: x")
        if array.dtype.kind in "OU" and array.ndim == 1 and reading.tokenizer is not None:
            inputs = tokenize([array.tolist()], reading.tokenizer, reading.length)
        else:
            refuse_idle(reading, set(OPTIONS) - {"tokenizer", "length", "size"}, "inputs that are numbers")
            inputs = as_inputs(array, f"{where}: x")
    return RawRows(inputs, as_array(y, f"{where}: y"), features=features)


def is_pair(thing: Any) -> bool:
    """Returns whether an object is a tuple or list of two objects, neither of them a plain value."""
    return isinstance(thing, tuple | list) and len(thing) == 2 and not any(np.isscalar(part) for part in thing)


def _are_torch_sets(thing: Any) -> bool:
    return is_pair(thing) and all(is_torch_set(part) for part in thing)


# ---------------------------------------------------------------------------------------------------------------------
# Map-style data sets of torch. Each item is a pair of an input and a label; fedray fetches each item once.

PIECE_ROWS = 1024
ASKED_AGAIN = 8  # first items, which are fetched twice to notice random transforms


def is_torch_set(thing: Any) -> bool:
    """Returns whether an object is a data set of torch, of any style."""
    return bool(list_classes(thing) & {"torch.Dataset", "torch.IterableDataset"})


def read_pairs(dataset: Any, reading: ReadOptions) -> RawRows:
    """Reads the samples of a map-style data set; the attribute `classes`, if there is one, names the classes.

    Args:
        dataset: The data set; it has a length, and `dataset[i]` is a pair.
        reading: The options for reading pictures and text.

    Raises:
        BadInput: The data set is of another style, or its items are no pairs.

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
    """Returns the input of item i as an array."""
    return np.asarray(value) if np.isscalar(value) else as_array(value, f"the input of item {i}")


def _warn_of_draws(dataset: Any, first: list[Array], reading: ReadOptions) -> None:
    """Warns if a transform draws at random, which would act only once; fetches the first items again to find out."""
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
    """Moves the waiting inputs to the end of the spool."""
    if not waiting:
        return
    shapes = {array.shape for array in waiting}
    if len(shapes) > 1:
        raise BadInput(f"data: items up to {last} have inputs of shapes {sorted(shapes)[:2]}: give them one shape")
    try:
        spool.append(as_inputs(np.stack(waiting), "data: the input"))
    except ValueError as error:
        raise BadInput(f"data: items up to {last} have inputs of several kinds ({error}): give one type") from error
    waiting.clear()


def _as_label(label: Any) -> Any:
    """Returns a label as a plain value or an array."""
    if isinstance(label, str | bool | int | float):
        return label
    array = as_array(label, "the label") if not np.isscalar(label) else np.asarray(label)
    return array.item() if array.ndim == 0 else array.ravel()
