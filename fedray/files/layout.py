"""What a user's folders and files are by their names: parts, clients, or classes. Hidden ones are nothing."""

from __future__ import annotations

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
# Names that say part (`PARTS`, in capitals too) are parts wherever all names do: keys of a mapping, files of tables,
# folders. A folder that holds pictures is a class; one that holds only folders is a part or a client.

PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
}
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")  # endings that are read
TABLES = {".csv": "csv", ".gz": "csv", ".txt": "csv", ".data": "csv", ".tsv": "tsv", ".parquet": "parquet"}
TABLES |= {".pq": "parquet", ".feather": "feather", ".arrow": "feather"}
NOTICES = ("README", "LICENSE", "LICENCE", "CHANGELOG", "NOTICE", "CITATION")  # text about a folder, in capitals


class Parts(NamedTuple):
    """Which of several names are the parts of a data set.

    Attributes:
        train: The name of the training rows.
        test: That of the test rows: a validation part, where no part is called test; None: they are drawn.
        remarks: What is said of the other ones.
    """

    train: str
    test: str | None
    remarks: tuple[str, ...] = ()


class ClassFolder(NamedTuple):
    """A folder that holds the pictures of one class.

    Attributes:
        part: `train` or `test`.
        client: Whose pictures they are; empty where the folders name no clients.
        name: Of the class.
        path: The folder.
    """

    part: str
    client: str
    name: str
    path: Path


class PictureFolders(NamedTuple):
    """The folders of a data set of pictures.

    Attributes:
        classes: Those of classes: training part first, client after client.
        remarks: What the user should know of them, a sentence each.
    """

    classes: list[ClassFolder]
    remarks: list[str]


def find_parts(names: Iterable[str], where: str = "data", test: str | None = None) -> Parts | None:
    """Returns the parts, where names say so: all of them, or one that says train and one that says test or validation.

    Args:
        names: Of keys, splits, files or folders.
        where: What has them, for messages.
        test: The one that the user names for the test rows; None: the names say it.

    Returns:
        None where no name says part.

    Raises:
        BadInput: Only some names do, there is no training part, or there are two of a kind.
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
    """Returns the folders in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def list_files(folder: Path, *, inside: bool = True) -> list[Path]:
    """Returns the files of a folder, sorted by path; `inside` takes those of its folders, too."""
    return sorted(_walk_files(folder, inside=inside))


def list_tables(folder: Path) -> list[Path]:
    """The tables in a folder, sorted by name; none where it has folders of pictures, beside which tables only tell."""
    if sum(_has_pictures(at, inside=True) for at in list_folders(folder)) > 1:
        return []
    files = [path for path in list_files(folder, inside=False) if path.suffix.lower() in TABLES]
    return [path for path in files if path.name.partition(".")[0].upper() not in NOTICES]


def find_table_parts(files: Sequence[Path], test: str | None = None) -> Parts | None:
    """The parts of a folder of tables, by the names of its files without their endings; None: each is a client's."""
    return find_parts([file.name.partition(".")[0] for file in files], "data.path", test)


def tell_endings(folder: Path, files: Iterable[Path]) -> list[str]:
    """Returns what is said of files that are not read: how many there are of each ending.

    Args:
        folder: That has them.
        files: Not read.
    """
    counts = Counter(path.suffix.lower() or "without an ending" for path in files)
    if not counts:
        return []
    each = ", ".join(f"{number:,} {ending}" for ending, number in sorted(counts.items(), key=lambda c: (-c[1], c[0])))
    return [f"data: files of {folder.name or folder} left out: {each[:300]}"]


def holds_clients(name: str, path: object) -> bool:
    """Whether a folder of tables or of pictures holds the data of each client by itself.

    Args:
        name: Of the data set: `table` or `folder`; all others hold none.
        path: The folder, as the user writes it.
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
    except (BadInput, OSError):  # whoever reads the folder says so
        return False


def find_classes(folder: Path, test: str | None = None) -> PictureFolders:
    """Finds the folders of classes: in the folder, in those of parts or clients, or one level deeper.

    Args:
        folder: Has them.
        test: The folder of the test part, in it or a path; None: the names say it.

    Raises:
        BadInput: The folders are of several kinds, or there are none.

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
    """Adds the folders of classes of a folder, which is the whole, or a part or a client of it."""
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
    """Whether a folder holds pictures itself, or `inside` it."""
    return any(path.suffix.lower() in PICTURES for path in _walk_files(folder, inside=inside))


def _walk_files(folder: Path, *, inside: bool) -> Iterator[Path]:
    """Returns the files of a folder in no order, but hidden ones and those of hidden folders."""
    for path in folder.rglob("*") if inside else folder.iterdir():
        if not any(part.startswith(".") for part in path.relative_to(folder).parts) and path.is_file():
            yield path


def find_part(name: str) -> str:
    """The part that a name says, also that of a file of several (`train-00000-of-00002`); empty where it says none."""
    return PARTS.get(re.sub(r"-\d+-of-\d+$", "", name).casefold(), "")


# ---------------------------------------------------------------------------------------------------------------------
# Files of LEAF's JSON, the data of users, as LEAF and FedProx write them: which they are, and what they hold.

ENDINGS = (".json", ".json.gz")
BEGIN = 4096  # bytes of a file in which its first keys stand


def is_leaf(thing: Any) -> bool:
    """Whether a thing is what such a file holds.

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
    """Returns the files of each part of a file or a folder, by the part's name; none where there is no such file.

    Args:
        place: A file, a folder of files, or one with folders of parts that have them.
    """
    if place.is_file():
        return {"train": [place]} if _is_leaf_file(place) else {}
    found = [("train", _list_json(place))]
    found += [(find_part(at.name), _list_json(at)) for at in list_folders(place) if find_part(at.name)]
    return {part: files for part, files in found if files}


def load_json(file: Path) -> Any:
    """Returns what a JSON file of users holds.

    Raises:
        BadInput: It is no JSON, or other JSON.
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
    """Returns the files of users in a folder."""
    return [file for file in list_files(folder, inside=False) if _is_leaf_file(file)]


def _is_leaf_file(file: Path) -> bool:
    """Whether a file is JSON whose first keys are those of LEAF."""
    if not file.name.lower().endswith(ENDINGS):
        return False
    try:
        with gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb") as opened:
            begin = opened.read(BEGIN)
    except (OSError, EOFError):
        return False
    return any(key in begin for key in (b'"users"', b'"user_data"'))
