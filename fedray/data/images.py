"""Pictures: scikit-learn's digits, the torchvision sets, and LEAF's FEMNIST."""

from __future__ import annotations

import gzip
import importlib.util
import json
import string
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data.files import explain_damage, find_file, gunzip, scratch_folder, untar
from fedray.data.types import Dataset, Split, classification, split_stratified

IDX = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}  # torchvision's class, which is also the folder
CIFAR = {"cifar10": ("CIFAR10", "cifar-10"), "cifar100": ("CIFAR100", "cifar-100")}  # class, and beginning of files


def load_digits(_root: Path | None) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels with levels 0 to 16; a fixed fifth of every class is the test part.

    Example:
        >>> load_digits(None).train.x.shape
        (1438, 1, 8, 8)
    """
    x, y = _read_digits()
    x, y = x.reshape(-1, 1, 8, 8).astype(np.uint8), y.astype(np.int64)
    train, test = split_stratified(y, 0.2, rng.stream(0, "digits"))
    return classification("digits", Split(x[train], y[train]), Split(x[test], y[test]), tuple("0123456789"))


@cache
def _read_digits() -> tuple[Any, Any]:
    """Inputs `[n, 64]` and labels `[n]`. scikit-learn's file is read without importing scikit-learn for a second."""
    home = importlib.util.find_spec("sklearn")
    file = Path(home.origin).parent / "datasets" / "data" / "digits.csv.gz" if home and home.origin else None
    if file is not None and file.is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x, y


def find_torchvision_folder(name: str, root: Path | None) -> Path:
    """The folder of a torchvision set; raises BadInput if there is none."""
    if name in IDX:
        return find_file(root, name, [f"{IDX[name]}/raw"], "*-ubyte*")
    if name == "svhn":
        return find_file(root, name, ["SVHN", "."], "*_32x32.mat")
    folder, stem = CIFAR[name]
    for needs in (f"{stem}-*/*", f"{stem}-python*tar*"):
        try:
            return find_file(root, name, [folder, "."], needs)
        except BadInput as error:
            missing = error
    raise missing


def load_torchvision(name: str, root: Path | None) -> Dataset:
    """MNIST, FashionMNIST, CIFAR-10, CIFAR-100 or SVHN, read by torchvision's own classes."""
    folder = find_torchvision_folder(name, root)
    with scratch_folder() as space:
        try:
            train, test, names = _read_torchvision(name, _unpack(name, folder, space))
        except (RuntimeError, AssertionError, ValueError, OSError, EOFError, KeyError) as error:
            raise explain_damage(name, folder, error) from error
    if len(train.x) != len(train.y) or len(test.x) != len(test.y) or not len(train.x):
        raise explain_damage(name, folder, f"{len(train.x)} pictures and {len(train.y)} labels")
    return classification(name, train, test, names)


def _unpack(name: str, folder: Path, space: Path) -> Path:
    """The root for torchvision: the user's own if it has unpacked files, else `space`, where they are unpacked."""
    if name == "svhn":
        return folder
    if name in IDX:
        parts = [f"{a}-{b}-ubyte" for a in ("train", "t10k") for b in ("images-idx3", "labels-idx1")]
        if all((folder / part).exists() for part in parts):
            return folder.parent.parent
        raw = space / IDX[name] / "raw"
        raw.mkdir(parents=True)
        for part in parts:
            find_file(folder, name, [f"{part}.gz"])
            gunzip(name, folder / f"{part}.gz", raw / part)
        return space
    stem = CIFAR[name][1]
    if any(folder.glob(f"{stem}-*/*")):
        return folder
    for archive in sorted(folder.glob(f"{stem}-python*tar*")):
        untar(name, archive, space)
    return space


def _read_torchvision(name: str, root: Path) -> tuple[Split, Split, tuple[str, ...]]:
    """The training part, the test part and the names of the classes; pictures are `[n, C, H, W]`."""
    from torchvision import datasets

    if name == "svhn":
        parts = [datasets.SVHN(root, split=split) for split in ("train", "test")]
        train, test = (_make_split(part.data, part.labels) for part in parts)
        return train, test, tuple("0123456789")
    kind = getattr(datasets, IDX[name] if name in IDX else CIFAR[name][0])
    parts = [kind(root, train=train) for train in (True, False)]
    pictures = [np.asarray(part.data) for part in parts]
    axes = [p[:, None] if name in IDX else p.transpose(0, 3, 1, 2) for p in pictures]  # [n, C, H, W]
    names = tuple(str(c).split(" - ")[0] for c in parts[0].classes)
    train, test = (_make_split(x, part.targets) for x, part in zip(axes, parts, strict=True))
    return train, test, names


def _make_split(x: Any, y: Any) -> Split:
    return Split(np.ascontiguousarray(x, dtype=np.uint8), np.asarray(y).astype(np.int64))


def find_femnist_folder(root: Path | None) -> Path:
    """The folder that holds LEAF's `train/` and `test/`."""
    places = ["femnist_leaf/data", "femnist/data", "femnist", "FEMNIST"]
    return find_file(root, "femnist", places, "train/*.json*", fetchable=False)


def load_femnist(root: Path | None) -> Dataset:
    """LEAF's FEMNIST: handwriting `[n, 1, 28, 28]` in 62 classes (background 255, dark ink); a writer is a client."""
    folder = find_femnist_folder(root)
    train, test = _read_leaf(folder / "train"), _read_leaf(folder / "test")
    writers = {user: i for i, user in enumerate(sorted(train))}
    names = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    return classification("femnist", _by_writer(train, writers), _by_writer(test, writers), names)


def _read_leaf(folder: Path) -> dict[str, tuple[Any, IntArray]]:
    """Pictures `[n, 1, 28, 28]` uint8 and labels `[n]` by writer, from all JSON files of a folder."""
    found: dict[str, tuple[Any, IntArray]] = {}
    for path in sorted(folder.glob("*.json*")):
        try:
            with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
                data = json.load(file)["user_data"]
            for user, rows in data.items():
                x = np.asarray(rows["x"], dtype=np.float64)
                if x.size and not (x.min() >= 0 and x.max() <= 1):
                    raise _say_others(path, x)
                pixels = np.rint(x * 255).astype(np.uint8).reshape(-1, 1, 28, 28)
                y = np.asarray(rows["y"], dtype=np.int64)
                if user in found or len(pixels) != len(y) or (len(y) and not 0 <= y.min() <= y.max() < 62):
                    raise ValueError(f"the rows of writer {user} are inconsistent")
                found[user] = (pixels, y)
        except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
            raise explain_damage("femnist", path, error) from error
    return found


def _say_others(path: Path, x: Any) -> BadInput:
    """The line about other data in LEAF's form, such as standardized pictures, which bytes do not hold."""
    return BadInput(
        f"data.name = femnist, but {path} has pixels from {x.min():.3g} to {x.max():.3g}, and FEMNIST's are from 0 to "
        f"1: read other data of this form as they are, data: {{name: leaf, path: {path.parent.parent}}}"
    )


def _by_writer(found: dict[str, tuple[Any, IntArray]], writers: dict[str, int]) -> Split:
    """All rows, sorted by writer; one who has no training rows is no client (-1)."""
    users = sorted(found)
    group = np.repeat([writers.get(u, -1) for u in users], [len(found[u][1]) for u in users]).astype(np.int64)
    return Split(np.concatenate([found[u][0] for u in users]), np.concatenate([found[u][1] for u in users]), group)
