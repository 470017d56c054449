"""Reads Hugging Face data sets. Chooses splits and columns, and converts the columns to arrays."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import BadInput, show_line
from fedray.core.options import ReadOptions
from fedray.data.files import Spool
from fedray.data.forms import tables
from fedray.data.forms.arrays import as_inputs, list_classes
from fedray.data.forms.pictures import stack_pictures
from fedray.data.forms.rows import RawRows, make_dataset, refuse_idle, tokenize
from fedray.data.types import Array, Dataset
from fedray.files.layout import find_part
from fedray.files.plain import expand_user_path

# ---------------------------------------------------------------------------------------------------------------------
# If there is a column of pictures, lists or text, this column alone is the input. Otherwise all columns of numbers and
# categories are inputs, as in a table. Samples are read in pieces from the mapped files.

PIECE_ROWS = 10_000
_DATASET, _DICT = "datasets.Dataset", "datasets.DatasetDict"
_STREAMS = {"datasets.IterableDataset", "datasets.IterableDatasetDict"}


def is_hugging_face(thing: Any) -> bool:
    """Returns whether an object is any kind of data set of the package `datasets`.

    Example:
        >>> is_hugging_face({"train": [1, 2]})
        False
    """
    return bool(list_classes(thing) & {_DATASET, _DICT, *_STREAMS})


def remark_on_transform(thing: Any) -> list[str]:
    """Returns a list with a remark if a data set transforms samples when they are fetched.

    Otherwise the list is empty.
    """
    parts = list(thing.values()) if _DICT in list_classes(thing) else [thing]
    if not any(_DATASET in list_classes(part) and part.format["type"] == "custom" for part in parts):
        return []
    return [
        "data: rows are read as they are stored, without the transform of set_transform or with_transform: apply it "
        "with map, or give it as augment= if it draws at random"
    ]


def read_hugging_face(thing: Any, reading: ReadOptions, split: str | None = None, name: str = "hf") -> Dataset:
    """Converts a `datasets.Dataset` or `DatasetDict` to a data set.

    `reading.test` is the name of the split with the test samples, or a `Dataset` of test samples. `split` is the name
    of the training split. None means the split `train`, or the only split.

    Raises:
        BadInput: A split or a column is missing, or cannot be read.
    """
    train, test, remarks = _find_splits(thing, split, reading.test)
    target = reading.target if reading.target is not None else _find_target(train)
    given = [reading.input] if isinstance(reading.input, str) else reading.input
    columns = list(given) if given else _find_input(train, target, reading)
    frame = _scalar_frame(train, name)
    need = [*([target] if isinstance(target, str) else target), *columns, *([reading.group] if reading.group else [])]
    for key, part in (("data", train), ("data.test", test)):
        if part is not None:
            tables.require_columns(part.column_names, need, key, of=f"data {name}")
    if (len(columns) == 1 and columns[0] not in list(frame)) or reading.tokenizer is not None:
        refuse_idle(reading, tables.TEXT_OPTIONS - {"exclude"} | {"size"}, "a column of pictures, lists or text")
        column = columns[0]
        splits = [part for part in (train, test) if part is not None]
        inputs, said = _read_inputs(splits, column, reading)
        parts = []
        for part, x in zip(splits, inputs, strict=True):
            table = frame if part is train else _scalar_frame(part, name)
            group = tables.number_groups(table[reading.group], frame[reading.group]) if reading.group else None
            kept = tables.keep_columns(frame, [column]) if part is train else {}
            parts.append(RawRows(x, _read_target(part, table, target), group, kept, _class_names(part, target)))
        return make_dataset(name, parts[0], parts[1] if len(parts) > 1 else None, reading, (*remarks, *said))
    refuse_idle(reading, tables.OPTIONS, "columns of numbers")
    reading = reading._replace(target=target, input=columns or None)
    other, names = None if test is None else _scalar_frame(test, name), _class_names(train, target)
    if names and test is not None and (found := _class_names(test, target)) not in ((), names):
        told = " and ".join(", ".join(each)[:100] for each in (names, found))
        raise BadInput(f"data: the training and test rows have the classes {told}: give both the same (cast_column)")
    data = tables.build_table(frame, other, reading, name, names=names)
    return data._replace(remarks=(*remarks, *data.remarks))


def _find_splits(thing: Any, split: str | None, test: Any) -> tuple[Any, Any, list[str]]:
    """Returns the training part, the test part (or None), and remarks about splits that are left out."""
    classes = list_classes(thing)
    if classes & _STREAMS:
        raise BadInput("data is read as a stream: load it without streaming=True")
    if _DATASET in classes:
        if split is not None or isinstance(test, str):
            raise BadInput(f"data.{'split' if split else 'test'} = {split or test}: the data are one split: omit it")
        return thing, test, []
    names = list(thing)
    parts = {find_part(name): name for name in reversed(names)}
    first = split or parts.get("train") or (names[0] if len(names) == 1 else None)
    known = ", ".join(names) or "none"
    if first is None:
        raise BadInput(f"data.split is missing: say which split has the training rows: {known}")
    chosen = split is not None or test is not None
    if test is None:
        test = next((parts[kind] for kind in ("test", "validation") if parts.get(kind, first) != first), None)
    for key, name in (("split", first), ("test", test)):
        if isinstance(name, str) and name not in names:
            raise BadInput(f"data.{key} = {name}: there is no such split: choose one of {known}")
    left = [] if chosen else [name for name in names if name not in (first, test)]
    verb = "is" if len(left) == 1 else "are"
    said = [f"data: {', '.join(left)[:200]} {verb} left out: data.split and data.test name splits"] if left else []
    return thing[first], thing[test] if isinstance(test, str) else test, said


def _kind_of(feature: Any) -> str:
    """Returns the kind of a column: picture, classes, list, text, number, or other."""
    name = type(feature).__name__
    if name == "ClassLabel":
        return "classes"
    packed = isinstance(feature, dict) and "bytes" in feature
    binary = name == "Value" and "binary" in feature.dtype  # a Parquet file may not say that it has pictures
    if name == "Image" or packed or binary:
        return "picture"
    if isinstance(feature, list) or name in ("List", "LargeList", "Sequence") or name.startswith("Array"):
        return "list"
    if name != "Value":
        return "other"
    return "text" if "string" in feature.dtype else "number"


def _find_target(dataset: Any) -> str:
    """Returns the column to predict.

    This is the only column of classes. If there is no such column, or there are several, a name such as `label`
    decides.
    """
    kinds = {column: _kind_of(feature) for column, feature in dataset.features.items()}
    found = [column for column, kind in kinds.items() if kind == "classes"]
    if len(found) != 1:
        named = [column for column in kinds if column in ("label", "labels", "target", "y", "class")]
        found = [column for column in named if not found or column in found]
    if len(found) != 1:
        raise BadInput(f"data.target is missing: name the column to predict: {', '.join(kinds)[:300]}")
    return str(found[0])


def _find_input(dataset: Any, target: Any, reading: ReadOptions) -> list[str]:
    """Returns a list with the only column of pictures, lists or text. Without such a column, the list is empty."""
    kinds = {c: _kind_of(f) for c, f in dataset.features.items() if c != target and c != reading.group}
    for kind in ("picture", "text" if reading.tokenizer is not None else "list", "list"):
        found = [column for column, one in kinds.items() if one == kind]
        found = [column for column in found if column == "text"] or found if kind == "text" else found
        if len(found) == 1:
            return found
        if found:
            raise BadInput(f"data.input is missing: name one of the columns {', '.join(found)[:300]}")
    return []


def _class_names(dataset: Any, target: Any) -> tuple[str, ...]:
    """Returns the names of the classes, or an empty tuple if the target column has no such names."""
    feature = dataset.features.get(target) if isinstance(target, str) else None
    return tuple(feature.names) if feature is not None and _kind_of(feature) == "classes" else ()


def _scalar_frame(dataset: Any, name: str) -> Any:
    """Returns the columns of numbers, text and classes as a table."""
    scalar = [c for c, feature in dataset.features.items() if _kind_of(feature) in ("number", "text", "classes")]
    frame = tables.as_frame(dataset.select_columns(scalar).with_format("arrow")[:])
    frame.attrs["file"] = f"data {name}"
    return frame


def _read_inputs(parts: list[Any], column: str, reading: ReadOptions) -> tuple[list[Array], tuple[str, ...]]:
    """Reads one input column of each split. Returns the inputs of each split, and remarks.

    Pictures of all splits get the same number of channels.
    """
    kind = _kind_of(parts[0].features[column])
    each = [part.select_columns([column]).with_format("arrow").iter(batch_size=PIECE_ROWS) for part in parts]
    for key, value, needs in (("tokenizer", reading.tokenizer, "text"), ("size", reading.size, "picture")):
        if value is not None and kind != needs:
            raise BadInput(f"data.{key} cannot act, because column {column} holds no {needs}: leave it out")
    if kind == "picture":
        x, said = stack_pictures((one for pieces in each for one in _list_pictures(pieces, column)), reading.size)
        number = len(parts[0])
        return [x[:number], x[number:]][: len(parts)], said
    if kind == "list":
        return [_stack_lists(pieces, column) for pieces in each], ()
    if kind != "text":
        raise BadInput(f"data.input = {column} is of another type: name pictures, lists, text or numbers")
    texts = [(piece.column(column).to_pylist() for piece in pieces) for pieces in each]
    return [tokenize(part, reading.tokenizer, reading.length) for part in texts], ()


def _read_target(dataset: Any, frame: Any, target: Any) -> Array:
    """Returns the labels of a split, `[n]`, or its targets, `[n, q]`. `frame` has its numbers, text and classes."""
    if isinstance(target, str) and target not in list(frame):
        return _stack_lists(dataset.select_columns([target]).with_format("arrow").iter(batch_size=PIECE_ROWS), target)
    if isinstance(target, str):
        return np.asarray(frame[target].to_numpy())
    return np.column_stack([frame[name] for name in target])


def _list_pictures(pieces: Any, column: str) -> Iterator[tuple[Any, str]]:
    """Yields each encoded picture of a column, and its name in messages."""
    for row, entry in enumerate(entry for piece in pieces for entry in piece.column(column).to_pylist()):
        if entry is None:
            raise BadInput(f"data.input: row {row} has no picture: drop it")
        given = entry if isinstance(entry, bytes) else entry["path"] if entry["bytes"] is None else entry["bytes"]
        yield given, f"the picture of row {row}"


def _stack_lists(pieces: Any, column: str) -> Array:
    """Converts the lists of a column to one array, `[n, ...]`."""
    spool = Spool()
    for piece in pieces:
        for chunk in piece.column(column).chunks:
            try:
                spool.append(as_inputs(_unnest(chunk, column), f"data.input: column {column}"))
            except ValueError as error:
                raise BadInput(f"data.input: column {column} has rows of several kinds ({error}): cast it") from error
    return spool.finish()


def _unnest(chunk: Any, column: str) -> Array:
    """Converts nested lists of equal lengths to an array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(chunk, pa.ExtensionArray):
        chunk = chunk.storage
    shape = [len(chunk)]
    while pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type) or pa.types.is_fixed_size_list(chunk.type):
        lengths = pc.unique(pc.list_value_length(chunk)).to_pylist()
        if len(lengths) > 1 or None in lengths:
            raise BadInput(f"data.input: column {column} has lists of several lengths, or none: pad them")
        shape.append(lengths[0] if lengths else 0)
        chunk = chunk.flatten()
    if pa.types.is_string(chunk.type):
        raise BadInput(f"data.input: column {column} holds lists of text: name numbers, or join the text")
    return np.asarray(chunk.to_numpy(zero_copy_only=False)).reshape(shape)


# ---------------------------------------------------------------------------------------------------------------------
# Hugging Face data sets on disk and in the user's cache. Data sets are downloaded only if the user requests it.

BUILDERS = {".pq": "parquet", ".jsonl": "json", ".txt": "text"}
BUILDERS |= {f".{kind}": kind for kind in ("parquet", "json", "arrow")}


def load_hf(
    _root: Path | None,
    reading: ReadOptions,
    *,
    path: str | None = None,
    config: str | None = None,
    split: str | None = None,
    download: bool = False,
) -> Dataset:
    """Loads a Hugging Face data set from the user's disk or cache.

    Args:
        reading: The options for reading. `reading.test` is the name of the test split. `reading.input` or
            `reading.target` may be None if only one column can be the input or the target.
        path: Path of a folder that `save_to_disk` wrote, path of a folder or file that `load_dataset` can read, or name
            of a data set in the cache.
        config: Name of the configuration of a data set in the cache.
        split: Name of the training split. None means the split `train`, or the only split.
        download: Whether a data set that is given by name may be downloaded.
    """
    return read_hugging_face(open_hub(path, config, download=download), reading, split)


def find_hf_files(
    _root: Path | None, path: str | None = None, config: str | None = None, download: bool = False, **_: Any
) -> Path:
    """Returns the folder or file of a data set on disk, or the folder of the data set in the cache.

    If the data set is in neither place and `download` is True, the function downloads the data set.

    Example:
        >>> find_hf_files(None, path="no_such_data_set")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data.path = no_such_data_set: no such folder, and no such name in ...
    """
    if not path:
        raise BadInput("data.path is missing: give a folder that save_to_disk wrote, or a name in the cache")
    place = expand_user_path("data.path", path)
    if place.exists():
        return place
    *owner, name = path.split("/")
    name = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)).lower()
    cache = _find_cache() / "___".join([*owner, name])  # as `datasets` names the folder
    if not cache.is_dir():
        if not download:
            raise BadInput(
                f"data.path = {path}: no such folder, and no such name in {_find_cache()}: correct it, or write "
                "data.download: true"
            )
        open_hub(path, config, download=True)
    return cache if cache.is_dir() else _find_cache()


def is_saved(thing: Any) -> bool:
    """Returns whether an object is the path of a folder that `save_to_disk` wrote."""
    return isinstance(thing, Path) and any((thing / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _find_cache() -> Path:
    """Returns the cache folder of the package `datasets`. Does not import the package, because this would be slow."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets").expanduser()


def open_hub(path: str | None, config: str | None = None, *, download: bool = False) -> Any:
    """Opens a Hugging Face data set that is on disk or in the cache."""
    files = None if download else find_hf_files(None, path, config)
    try:
        import datasets
    except ImportError as error:
        raise BadInput("data.name = hf needs datasets: `pip install 'fedray[hf]'`") from error
    assert path is not None
    place = expand_user_path("data.path", path)
    try:
        if is_saved(place):
            return datasets.load_from_disk(str(place))
        with _offline(not download):
            if place.is_file():
                kind = BUILDERS.get(place.suffix.lower(), "csv")
                more = {"sep": "\t"} if place.suffix.lower() == ".tsv" else {}
                return datasets.load_dataset(kind, data_files=str(place), **more)
            return datasets.load_dataset(str(place) if place.exists() else path, config)
    except Exception as error:  # `datasets` raises errors of many kinds
        if isinstance(error, ConnectionError) and not download:
            raise BadInput(f"data.path = {path} is not in the cache: write data.download: true") from error
        why: BaseException = error
        while why.__cause__ is not None:  # the outer errors say only that something went wrong
            why = why.__cause__
        raise BadInput(
            f"data.path = {files or place}: datasets cannot read it ({show_line(f'{type(why).__name__}: {why}')}): "
            "correct it, or read it by data.name: table if it is one"
        ) from error


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """If `wanted` is True, the package `datasets` does not use the network during the `with` block."""
    modules: list[Any] = [sys.modules[name] for name in ("datasets.config", "huggingface_hub.constants")]
    before = [getattr(module, "HF_HUB_OFFLINE", False) for module in modules]
    try:
        for module in modules if wanted else []:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
