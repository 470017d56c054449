"""Finds the parts, clients and classes of a user's data by the names of folders and files. Hidden files are ignored.

A *part* is the training, test or validation part of a data set.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedray.core.errors import BadInput
from fedray.files.plain import expand_user_path

# ---------------------------------------------------------------------------------------------------------------------
# Keys of a mapping, files of tables and folders are parts if their names are in `PARTS` (`find_parts`). Upper and lower
# case are the same here. A folder that holds pictures is a class. A folder that holds only folders is a part or a
# client.

PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
}
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")  # endings of pictures
TABLES = {".csv": "csv", ".gz": "csv", ".txt": "csv", ".data": "csv", ".tsv": "tsv", ".parquet": "parquet"}
TABLES |= {".pq": "parquet", ".feather": "feather", ".arrow": "feather"}
# names of files that are no tables; case is ignored
NOTICES = ("README", "LICENSE", "LICENCE", "CHANGELOG", "NOTICE", "CITATION")


class Parts(NamedTuple):
    """The names of the training part and the test part of a data set.

    Attributes:
        train: The name of the training part.
        test: The name of the test part, or of the validation part if no part is called test. None means that test
            samples are drawn from the training part.
        remarks: Sentences for the user about parts that are left out.
    """

    train: str
    test: str | None
    remarks: tuple[str, ...] = ()


class ClassFolder(NamedTuple):
    """A folder that holds the pictures of one class.

    Attributes:
        part: `train` or `test`.
        client: Name of the client that holds these pictures. The name is empty if folders do not name clients.
        name: Name of the class.
        path: Path of the folder.
    """

    part: str
    client: str
    name: str
    path: Path


class PictureFolders(NamedTuple):
    """The folders of a data set of pictures.

    Attributes:
        classes: The folders of single classes. The training part comes first, client after client.
        remarks: Sentences for the user about folders that are left out.
    """

    classes: list[ClassFolder]
    remarks: list[str]


def find_parts(names: Iterable[str], where: str = "data", test: str | None = None) -> Parts | None:
    """Finds the names of the training part and of the test part. Returns None if no name stands for a part.

    `test` is the name that the user gives for the test part. None means that a name such as `test` is looked for.

    Raises:
        BadInput: The number of training parts is not 1, or there are several test parts. Or some names mean no part,
            and the training part or the test part is missing.
    """
    names = list(names)
    kinds = {name: find_part(name) for name in names}
    train, tests, more = ([n for n in names if kinds[n] == kind] for kind in ("train", "test", "validation"))
    others = [name for name in names if not kinds[name] and name != test]
    if not (train or tests or more):
        return None
    if others and not (train and (tests or more)):
        part = (train + tests + more)[0]
        raise BadInput(f"{where}: {part} says part, and {others[0]} does not: rename one of them, or leave it out")
    if len(train) != 1 or len(tests) > 1:
        raise BadInput(f"{where}: one of {', '.join(names)[:200]} is to say train, and one at most test: rename some")
    chosen = test if test is not None else next(iter(tests + more), None)
    unread = [] if test is not None else [name for name in names if name not in (train[0], chosen)]
    if not unread:
        return Parts(train[0], chosen)
    said = f"data: {', '.join(unread)[:200]} {'is' if len(unread) == 1 else 'are'} left out, because the test rows are"
    return Parts(train[0], chosen, (f"{said} those of {chosen}: data.test names another part",))


def list_folders(folder: Path) -> list[Path]:
    """Returns the folders in a folder, sorted by name, without hidden folders."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def list_files(folder: Path, *, inside: bool = True) -> list[Path]:
    """Returns the files of a folder, sorted by path. With `inside`, files in its subfolders are included."""
    return sorted(_walk_files(folder, inside=inside))


def list_tables(folder: Path) -> list[Path]:
    """Returns the tables in a folder, sorted by name.

    The result is empty if the folder also has several folders of pictures, because tables beside pictures only describe
    the pictures. Files such as `README.txt` are left out.
    """
    if sum(_has_pictures(at, inside=True) for at in list_folders(folder)) > 1:
        return []
    files = [path for path in list_files(folder, inside=False) if path.suffix.lower() in TABLES]
    return [path for path in files if path.name.partition(".")[0].upper() not in NOTICES]


def find_table_parts(files: Sequence[Path], test: str | None = None) -> Parts | None:
    """Finds the training part and the test part among files of tables. Returns None if the files belong to clients."""
    return find_parts([file.name.partition(".")[0] for file in files], "data.path", test)


def remark_on_unread_files(folder: Path, files: Iterable[Path]) -> list[str]:
    """Returns a list with a remark that counts unread files by their endings. Without such files, the list is empty."""
    counts = Counter(path.suffix.lower() or "without an ending" for path in files)
    if not counts:
        return []
    each = ", ".join(f"{number:,} {ending}" for ending, number in sorted(counts.items(), key=lambda c: (-c[1], c[0])))
    return [f"data: files of {folder.name or folder} left out: {each[:300]}"]


def holds_clients(name: str, path: object) -> bool:
    """Returns whether a folder has one table, or one folder of pictures, for each client.

    `name` and `path` are the scenario's `data.name` and `data.path`. If the name is neither `table` nor `folder`, the
    result is False.
    """
    if name not in ("table", "folder") or not isinstance(path, str) or not path:
        return False
    try:
        folder = expand_user_path("data.path", path)
        if not folder.is_dir():
            return False
        if name == "table":
            return find_table_parts(list_tables(folder)) is None
        return any(one.client for one in find_classes(folder).classes)
    except (BadInput, OSError):  # the reader of the folder reports this error
        return False


def find_classes(folder: Path, test: str | None = None) -> PictureFolders:
    """Finds the folders of classes in the folder of a data set.

    The folders of classes are in this folder, in a folder for each part or client, or in a folder for each client of
    each part. `test` is the test part, as a name in `folder` or a path. None means that the test part is found by its
    name.

    Raises:
        BadInput: The folders are of several kinds, or no folder holds pictures.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     for path in ("Train/cat/1.png", "Train/dog/2.png", "Test/cat/3.png", "val/dog/4.png", ".cache/5.png"):
        ...         (Path(home) / path).parent.mkdir(parents=True, exist_ok=True)
        ...         (Path(home) / path).touch()
        ...     found = find_classes(Path(home))
        >>> [(one.part, one.client, one.name) for one in found.classes]
        [('train', '', 'cat'), ('train', '', 'dog'), ('test', '', 'cat')]
        >>> found.remarks
        ['data: val is left out, because the test rows are those of Test: data.test names another part']
    """
    layout = PictureFolders([], [])
    if test is None:
        _walk(layout, folder, "", "", None)
    else:
        inside = folder / test
        other = inside if inside.is_dir() else expand_user_path("data.test", test)
        if not other.is_dir():
            raise BadInput(f"data.test = {test}: there is no such folder in {folder}, nor as a path: correct it")
        named = [at for at in list_folders(folder) if find_part(at.name) == "train" and not _has_pictures(at)]
        train = named[0] if named else folder
        _walk(layout, train, "train", "", other)
        _walk(layout, other, "test", "", None)
    if not layout.classes:
        endings = ", ".join(PICTURES[:4])
        raise BadInput(f"data.path = {folder}: no folder in it holds pictures ({endings}, ...): put some into one")
    return layout._replace(classes=sorted(layout.classes, key=lambda one: one.part == "test"))


def _walk(layout: PictureFolders, folder: Path, part: str, client: str, skip: Path | None) -> None:
    """Adds the folders of classes in one folder (of the data set, of a part or of a client) to `layout`."""
    full = [at for at in list_folders(folder) if at != skip and _has_pictures(at, inside=True)]
    names, direct = [at.name for at in full], [at for at in full if _has_pictures(at)]
    if direct:
        if len(direct) < len(full) or all(find_part(name) for name in names):
            raise BadInput(f"data.path = {folder}: put the pictures of each class of each part into a folder")
        layout.classes.extend(ClassFolder(part or "train", client, at.name, at) for at in full)
        return
    parts = find_parts(names, f"data.path = {folder}") if full else None
    if parts is not None and not part:
        layout.remarks.extend(parts.remarks)
        _walk(layout, folder / parts.train, "train", client, None)
        if parts.test is not None:
            _walk(layout, folder / parts.test, "test", client, None)
    elif full and (parts is not None or client):
        raise BadInput(f"data.path = {full[0]}: it holds only folders: put the pictures of each class into a folder")
    elif full:
        for at in full:
            _walk(layout, at, part, at.name, None)


def _has_pictures(folder: Path, *, inside: bool = False) -> bool:
    """Returns whether a folder holds pictures. With `inside`, pictures in subfolders count, too."""
    return any(path.suffix.lower() in PICTURES for path in _walk_files(folder, inside=inside))


def _walk_files(folder: Path, *, inside: bool) -> Iterator[Path]:
    """Yields the files in a folder in any order. With `inside`, also yields files in subfolders.

    Hidden files and hidden folders are skipped.
    """
    for path in folder.rglob("*") if inside else folder.iterdir():
        if not any(part.startswith(".") for part in path.relative_to(folder).parts) and path.is_file():
            yield path


def find_part(name: str) -> str:
    """Returns the part that a name means, or an empty text if the name means no part.

    A number at the end of the name of a file, as in `train-00000-of-00002`, is ignored.
    """
    return PARTS.get(re.sub(r"-\d+-of-\d+$", "", name).casefold(), "")


# ---------------------------------------------------------------------------------------------------------------------
# JSON files in LEAF's format, which LEAF and FedProx write. Such a file holds the samples of each of its users.

ENDINGS = (".json", ".json.gz")
BEGIN = 4096  # number of bytes at the start of a file in which a key of LEAF's format must occur


def is_leaf(thing: Any) -> bool:
    """Returns whether an object is the content of a JSON file in LEAF's format.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     file = Path(home) / "users.json"
        ...     _ = file.write_text('{"users": ["ann"], "user_data": {"ann": {"x": [[0.5]], "y": [1]}}}')
        ...     is_leaf(load_json(file)), [part for part in list_leaf_files(Path(home))]
        (True, ['train'])
    """
    return isinstance(thing, Mapping) and isinstance(thing.get("user_data"), Mapping)


def list_leaf_files(place: Path) -> dict[str, list[Path]]:
    """Returns a dict from each part of a data set to its JSON files in LEAF's format.

    Args:
        place: A file, a folder of files, or a folder with one folder of files for each part.
    """
    if place.is_file():
        return {"train": [place]} if _is_leaf_file(place) else {}
    found = [("train", _list_json(place))]
    found += [(find_part(at.name), _list_json(at)) for at in list_folders(place) if find_part(at.name)]
    return {part: files for part, files in found if files}


def load_json(file: Path) -> Any:
    """Returns the content of a JSON file in LEAF's format.

    Raises:
        BadInput: The file is no JSON, or is not in LEAF's format.
    """
    try:
        with gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb") as opened:
            found = json.load(opened)
    except (ValueError, OSError, EOFError) as error:
        raise BadInput(f"data.path = {file} cannot be read as JSON ({error}): correct it") from error
    if not is_leaf(found):
        raise BadInput(f"data.path = {file}: it has no user_data, as LEAF's JSON has: leave it out")
    return found


def _list_json(folder: Path) -> list[Path]:
    """Returns the files of a folder that hold JSON in LEAF's format."""
    return [file for file in list_files(folder, inside=False) if _is_leaf_file(file)]


def _is_leaf_file(file: Path) -> bool:
    """Returns whether a file has the name of a JSON file and begins with the keys of LEAF's format."""
    if not file.name.lower().endswith(ENDINGS):
        return False
    try:
        with gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb") as opened:
            begin = opened.read(BEGIN)
    except (OSError, EOFError):
        return False
    return any(key in begin for key in (b'"users"', b'"user_data"'))
