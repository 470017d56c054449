"""Map-style data sets of torch: each item is a pair of an input and a label, and is asked for once.

Example:
    >>> pairs = [(np.full(3, i, np.float32), i % 2) for i in range(10)]
    >>> read_pairs(pairs, ReadOptions()).x.shape
    (10, 3)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.data.forms.arrays import as_array, as_inputs, list_classes
from fedray.data.forms.decoding import decode_picture
from fedray.data.forms.pictures import PictureRows
from fedray.data.forms.rows import RawRows, ReadOptions
from fedray.data.forms.tokens import tokenize
from fedray.data.spool import Spool
from fedray.data.types import Array
from fedray.own_code.user_code import blame_user_code, name_type

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
