"""Picture files as arrays, and a folder of them with a folder for each class, as torchvision's `ImageFolder` reads it.

Example:
    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for kind in ("cat", "dog"):
    ...         for i in range(5):
    ...             (Path(home) / kind).mkdir(exist_ok=True)
    ...             Image.new("L", (9, 8)).save(Path(home) / kind / f"{i}.png")
    ...     data = read_folder(Path(home), ReadOptions())
    >>> data.class_names, data.train.x.shape, len(data.test.y)
    (('cat', 'dog'), (8, 1, 8, 9), 2)
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.data.forms.rows import RawRows, ReadOptions, make_dataset
from fedray.data.spool import PIECE_BYTES, Spool
from fedray.data.types import Array, Dataset
from fedray.files.plain import expand_user_path, explain_missing_path

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
TEST_PARTS = ("test", "val", "valid", "validation")


class PictureKind(NamedTuple):
    """What all pictures of a data set have in common.

    Attributes:
        mode: `L` (gray) or `RGB`.
        size: Width and height.
        first: Where the first one is, for messages.
    """

    mode: str
    size: tuple[int, int]
    first: str


def find_picture_folder(path: str | Path | None) -> Path:
    """The folder of `data.path`, which holds a folder for each class, or `train` and `test` with these."""
    if not path:
        raise BadInput("data.path is missing: give a folder that has a folder of pictures for each class")
    folder = expand_user_path("data.path", str(path))
    if not folder.is_dir():
        raise BadInput(f"data.path = {path}: {explain_missing_path(folder, 'folder')}")
    return folder


def read_folder(folder: Path, reading: ReadOptions) -> Dataset:
    """The pictures of a folder, in the order of classes and names.

    Args:
        folder: Has a folder for each class; or a folder `train`, and perhaps `test` or `val`, that have them.
        reading: How they are read; `reading.test` names the part, or another folder, that has the test rows.

    Raises:
        BadInput: There are no such folders, or the pictures are of several sizes.
    """
    train, test = _find_parts(folder, reading.test)
    classes = _list_folders(train)
    if not classes:
        raise BadInput(f"data.path = {folder}: it has no folders: put the pictures of each class into a folder")
    names = tuple(path.name for path in classes)
    kind, rows = _read_classes(train, names, reading, None)
    other = None
    if test is not None:
        if unknown := {path.name for path in _list_folders(test)} - set(names):
            raise BadInput(f"data.test: {test} has the class {min(unknown)}, but {train} has not: remove it")
        other = _read_classes(test, names, reading, kind)[1]
    return make_dataset("folder", rows, other, reading._replace(task="classification"))


def load_folder(
    _root: Path | None,
    *,
    path: str | None = None,
    test: str | None = None,
    test_fraction: float = 0.2,
    size: int | None = None,
) -> Dataset:
    """A folder with a folder of pictures for each class.

    Args:
        path: The folder; or one that has `train`, and perhaps `test` or `val`, with the folders of the classes.
        test: The part, or another folder, that has the test rows; None: `test` or `val`, or a share is drawn.
        test_fraction: This share.
        size: Height and width that pictures are brought to; None: they are of one size.
    """
    reading = ReadOptions(test=test, test_fraction=test_fraction, size=size)
    return read_folder(find_picture_folder(path), reading)


def decode_picture(
    source: Any, reading: ReadOptions, kind: PictureKind | None, where: str
) -> tuple[Array, PictureKind]:
    """A picture `[H, W]` (gray) or `[H, W, 3]`, uint8.

    Args:
        source: A file, its bytes, or a PIL image.
        reading: `size` is what it is brought to.
        kind: What the pictures before it were; None: it is the first one.
        where: What messages call it.

    Raises:
        BadInput: It cannot be read, or is of another size than those before.
    """
    from PIL import Image

    try:
        picture = (
            Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) if not _is_pil(source) else source
        )
        mode = kind.mode if kind else "L" if picture.mode in ("1", "L", "I", "I;16", "F") else "RGB"
        if kind and kind.mode == "L" and picture.mode not in ("1", "L", "I", "I;16", "F"):
            raise BadInput(f"data: {where} is in color, but {kind.first} is gray: convert one of them")
        picture = picture if picture.mode == mode else picture.convert(mode)
        if reading.size is not None and picture.size != (reading.size, reading.size):
            picture = picture.resize((reading.size, reading.size), Image.Resampling.BILINEAR)
        found = kind or PictureKind(mode, picture.size, where)
        if picture.size != found.size:
            one, other = (" x ".join(map(str, size)) for size in (picture.size, found.size))
            raise BadInput(
                f"data: {where} is {one} pixels, but {found.first} is {other}: write data.size, to bring all to it"
            )
        return np.asarray(picture, dtype=np.uint8), found
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"data: {where} cannot be read as a picture ({error}): replace or remove it") from error


def stack_pictures(pictures: Iterable[tuple[Any, str]], reading: ReadOptions, kind: PictureKind | None = None) -> Any:
    """Pictures `[n, C, H, W]` uint8, and their kind.

    Args:
        pictures: Each a file, bytes or a PIL image, and what messages call it.
        reading: How they are read.
        kind: What they have to be like; None: like the first one.
    """
    spool, waiting = Spool(), list[Array]()

    def flush() -> None:
        if waiting:
            stacked = np.stack(waiting)
            spool.append(np.ascontiguousarray(stacked.transpose(0, 3, 1, 2)) if stacked.ndim == 4 else stacked[:, None])
            waiting.clear()

    for source, where in pictures:
        array, kind = decode_picture(source, reading, kind, where)
        waiting.append(array)
        if len(waiting) * array.nbytes >= PIECE_BYTES:
            flush()
    flush()
    return kind, spool.finish()


def _is_pil(thing: Any) -> bool:
    return any(kind.__module__.startswith("PIL.") for kind in type(thing).__mro__)


def _find_parts(folder: Path, test: Any) -> tuple[Path, Path | None]:
    """The folders of the training and of the test part; None: it is drawn."""
    train = folder / "train" if (folder / "train").is_dir() else folder
    if test is not None:
        other = folder / str(test) if (folder / str(test)).is_dir() else expand_user_path("data.test", str(test))
        if not other.is_dir():
            raise BadInput(
                f"data.test = {test}: there is no such folder, neither in {folder} nor as a path: correct it"
            )
        return train, other
    if train == folder:
        return folder, None
    return train, next((folder / part for part in TEST_PARTS if (folder / part).is_dir()), None)


def _list_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _read_classes(
    folder: Path, names: tuple[str, ...], reading: ReadOptions, kind: PictureKind | None
) -> tuple[PictureKind | None, RawRows]:
    """The pictures of all classes of a part."""
    counts: list[int] = []

    def walk() -> Iterator[tuple[Path, str]]:
        for name in names:
            found = sorted((folder / name).rglob("*")) if (folder / name).is_dir() else []
            files = [path for path in found if path.suffix.lower() in ENDINGS and path.is_file()]
            counts.append(len(files))
            yield from ((file, str(file.relative_to(folder))) for file in files)

    kind, x = stack_pictures(walk(), reading, kind)
    if not len(x):
        raise BadInput(
            f"data.path = {folder}: the folders hold no pictures ({', '.join(ENDINGS[:4])}, ...): put some in"
        )
    y = np.repeat(np.arange(len(names)), counts).astype(np.int64)
    return kind, RawRows(x, y, names=names)
