"""Reads a folder that has a folder of pictures for each class.

The folders of classes may lie in folders of parts or clients. A *part* is the training or test part of a data set.

The pixel values of a picture stay as they are in the file. If Pillow would change them, the picture is refused. Gray
values, colors and transparency of 8 bits become bytes. Gray values of more bits become integers, and floating-point
pixels become float32. Pictures in CMYK are refused, because Pillow would mix their colors. A picture is rotated as its
EXIF data say.

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
    >>> deep = Image.fromarray(np.array([[500, 60_000]], np.uint16))
    >>> decode_picture(deep, None, "the picture").pixels.tolist()
    [[[500, 60000]]]
"""

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.options import ReadOptions
from fedray.data.files import PIECE_BYTES, Spool, find_path, read_pieces
from fedray.data.forms.rows import CLIENT, RawRows, make_dataset
from fedray.data.types import Array, Dataset
from fedray.files.layout import PICTURES, PictureFolders, find_classes, list_files, remark_on_unread_files

OPTIONS = ("test", "test_fraction", "size")

# ---------------------------------------------------------------------------------------------------------------------
# Conversion of one picture to an array.

BYTES, WHOLE, REAL = "8 bits", "whole numbers of more than 8 bits", "real numbers"


class Decoded(NamedTuple):
    """The pixels of a picture.

    Attributes:
        pixels: Pixel values, `[C, H, W]` uint8, int32 or float32. C is 1 (gray), 3 (color), or 4 (color and
            transparency).
        levels: Kind of the values: `BYTES` (of 8 bits), `WHOLE` (integers of more bits) or `REAL` (floating-point
            numbers).
    """

    pixels: Array
    levels: str


def decode_picture(source: Any, size: int | None, where: str) -> Decoded:
    """Converts a picture to an array.

    `source` is a file, the bytes of a file, or a PIL image. `size` is the height and width in pixels to which the
    picture is resized. None means that the picture is not resized.

    Raises:
        BadInput: The picture cannot be read, or Pillow would change its pixel values.
    """
    from PIL import Image, ImageOps

    try:
        source = Path(source).read_bytes() if isinstance(source, str | Path) else source
        picture = source if isinstance(source, Image.Image) else Image.open(io.BytesIO(source))
        raw, most = _read_header(picture)
        if picture.mode in ("RGB", "RGBA", "LA") and (most > 255 or ";16" in raw):
            raise BadInput(
                f"data: {where} has 16 bits a color, of which 8 would be left: convert it, or give pictures as arrays"
            )
        with suppress(Exception):  # damaged EXIF data are ignored
            picture = ImageOps.exif_transpose(picture)
        levels = WHOLE if picture.mode.startswith("I") else REAL if picture.mode == "F" else BYTES
        if levels == BYTES:
            picture = _find_channels(picture, where)
        elif levels == WHOLE:
            picture = _read_levels(picture, raw, most, where)
        if size is not None and picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
        pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
        return Decoded(np.ascontiguousarray(pixels), levels)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"data: {where} cannot be read as a picture ({error}): replace or remove it") from error


def _read_header(picture: Any) -> tuple[str, int]:
    """Returns how an opened file stores pixel values, and the largest possible value. Reads no pixels.

    The largest possible value is 0 if it is unknown.
    """
    tiles = getattr(picture, "tile", ())
    if not tiles:
        return "", 0
    packed = tiles[0][3] if isinstance(tiles[0][3], tuple) else (tiles[0][3],)
    most = packed[1] if str(tiles[0][0]).startswith("ppm") and len(packed) > 1 else 0
    return str(packed[0]) if packed else "", int(most)


def _find_channels(picture: Any, where: str) -> Any:
    """Converts a picture of bytes to gray or color. If a pixel is transparent, adds a channel for transparency."""
    mode = picture.mode
    if mode in ("1", "L"):
        return picture.convert("L")
    if mode in ("RGB", "RGBX") or (mode == "P" and "transparency" not in picture.info):
        return picture.convert("RGB")
    if mode not in ("P", "PA", "LA", "La", "RGBA", "RGBa"):
        raise BadInput(f"data: {where} is in {mode}, whose numbers would change: convert it to gray or RGB")
    mixed = picture.convert({"La": "LA", "RGBa": "RGBA", "LA": "LA"}.get(mode, "RGBA"))
    opaque = mixed.getchannel("A").getextrema() == (255, 255)
    return mixed.convert(mixed.mode.removesuffix("A")) if opaque else mixed.convert("RGBA")


def _read_levels(picture: Any, raw: str, most: int, where: str) -> Any:
    """Converts a gray picture of more than 8 bits to a 32-bit image with the same pixel values."""
    from PIL import Image

    numbers = np.asarray(picture)
    if raw == "I;32N" and numbers.min() < 0:  # unsigned in the file, but signed in Pillow
        raise BadInput(f"data: {where} has levels above 2,147,483,647: give pictures as arrays")
    if most not in (0, 65_535):  # Pillow scaled the levels to 16 bits
        numbers = np.rint(numbers * (most / 65_535))
    return Image.fromarray(numbers.astype(np.int32))


# ---------------------------------------------------------------------------------------------------------------------
# Conversion of many pictures to an array, and folders of pictures.


class PictureRows:
    """Joins pictures to an array `[n, C, H, W]`, in order. All pictures must have the same size and kind of values.

    All pictures get as many channels as the picture with the most channels. A gray picture gets three equal channels if
    there are colored pictures. An opaque picture gets a fourth channel of 255 if there are transparent pictures.
    """

    def __init__(self) -> None:
        """Makes an empty collection."""
        self._spool, self._waiting = Spool(), list[Array]()
        self._first: tuple[Decoded, str] | None = None
        self._counts = Counter[int]()  # pictures by their channels

    def append(self, picture: Decoded, where: str) -> None:
        """Adds a picture. `where` is the name of the picture in messages.

        Raises:
            BadInput: The picture differs from the first picture in its size or in the kind of its values.
        """
        first, name = self._first = self._first or (picture, where)
        if picture.levels != first.levels:
            raise BadInput(f"data: {where} is of {picture.levels}, but {name} of {first.levels}: convert one of them")
        if picture.pixels.shape[1:] != first.pixels.shape[1:]:
            one, other = (" x ".join(map(str, p.pixels.shape[:0:-1])) for p in (picture, first))
            raise BadInput(f"data: {where} is {one} pixels, but {name} is {other}: write data.size, to bring all to it")
        before, own = max(self._counts, default=0), len(picture.pixels)
        if 0 < before < own:
            self._flush()
            narrow, self._spool = self._spool.finish(), Spool()
            for piece in read_pieces(narrow):
                self._spool.append(_widen(piece, own))
        self._counts[own] += 1
        self._waiting.append(_widen(picture.pixels[None], max(before, own)))
        if len(self._waiting) * self._waiting[0].nbytes >= PIECE_BYTES:
            self._flush()

    @property
    def number(self) -> int:
        """Number of pictures in the collection."""
        return self._counts.total()

    def finish(self) -> Array:
        """Returns all pictures, `[n, C, H, W]`."""
        self._flush()
        return self._spool.finish()

    def remarks(self) -> tuple[str, ...]:
        """Returns a tuple with a remark if some pictures got more channels. Otherwise the tuple is empty."""
        words, most = {1: "gray", 3: "in color", 4: "transparent"}, max(self._counts, default=0)
        few = " and ".join(f"{count:,} are {words[c]}" for c, count in sorted(self._counts.items()) if c < most)
        more = {3: "color, with three equal channels", 4: "color with a fourth channel for transparency"}
        said = f"data: of {self.number:,} pictures {few}, and read as {more[most]}, as others have it" if few else ""
        return (said,) if few else ()

    def _flush(self) -> None:
        if self._waiting:
            self._spool.append(np.concatenate(self._waiting))
            self._waiting.clear()


def stack_pictures(pictures: Iterable[tuple[Any, str]], size: int | None) -> tuple[Array, tuple[str, ...]]:
    """Converts pictures to an array `[n, C, H, W]`. Returns the array, and remarks about changed pictures.

    Args:
        pictures: Pairs of a picture (a file, bytes or a PIL image) and its name in messages.
        size: Height and width in pixels to which pictures are resized. None means that all pictures must have the same
            size.
    """
    rows = PictureRows()
    for source, where in pictures:
        rows.append(decode_picture(source, size, where), where)
    return rows.finish(), rows.remarks()


def find_picture_folder(_root: Path | None, path: str | None = None, **_: Any) -> Path:
    """Returns the folder `data.path`, which holds folders of classes.

    The folders of classes may lie in folders of parts or clients.
    """
    return find_path("data.path", path, "folder", "a folder that has a folder of pictures for each class")


def read_folder(folder: Path | Mapping[str, Path], reading: ReadOptions) -> Dataset:
    """Reads the pictures of a folder, client after client. A client's pictures are sorted by class and file name.

    Args:
        folder: A folder, or a mapping from clients to folders. Each folder holds a folder for each class, directly or
            inside folders for clients or for the training and test part (`fedray.files.layout`).
        reading: The options for reading. `reading.test` is the name of the test part, or a folder with the test
            pictures.

    Raises:
        BadInput: There are no folders of classes, or the pictures have different sizes or kinds of values.
    """
    given = folder
    if isinstance(folder, Mapping):
        layout, folder = _join_layouts(folder), next(iter(folder.values())).parent
    else:
        layout = find_classes(folder, None if reading.test is None else str(reading.test))
    rows = [(one, file) for one in layout.classes for file in list_files(one.path) if file.suffix.lower() in PICTURES]
    trained = [one for one in layout.classes if one.part == "train"]
    names, clients = sorted({one.name for one in trained}), list(dict.fromkeys(one.client for one in trained))
    if unknown := sorted({one.name for one in layout.classes} - set(names)):
        raise BadInput(f"data.test: {folder} has the class {unknown[0]} in the test part alone: remove it")
    x, said = stack_pictures(((file, str(file.relative_to(one.path.parent))) for one, file in rows), reading.size)
    label, number = ({name: i for i, name in enumerate(each)} for each in (names, clients))
    y, owner = np.array([(label[one.name], number.get(one.client, -1)) for one, _ in rows]).T
    n = sum(one.part == "train" for one, _ in rows)  # the training pictures come first
    train, test = RawRows(x[:n], y[:n], names=names), RawRows(x[n:], y[n:])
    if clients != [""]:
        columns = {CLIENT: np.array(clients)[owner[:n]]}
        train, test = train._replace(group=owner[:n], columns=columns), test._replace(group=owner[n:])
    known = set(clients) | {one.client for one in layout.classes}
    if known != {""}:
        each = ", ".join(sorted(known))[:200]
        said = (f"data: {each} are clients with the classes {', '.join(names)[:200]}", *said)
    mapped = isinstance(given, Mapping)
    unread = [] if mapped else [file for file in list_files(folder) if file.suffix.lower() not in PICTURES]
    remarks = (*layout.remarks, *said, *remark_on_unread_files(folder, unread))
    return make_dataset("folder", train, test, reading._replace(task="classification"), remarks)


def _join_layouts(folders: Mapping[str, Path]) -> PictureFolders:
    """Joins the folders of several clients. The folder of each client holds a folder for each class."""
    each = {client: find_classes(folder) for client, folder in folders.items()}
    classes = [one._replace(client=client) for client, layout in each.items() for one in layout.classes]
    remarks = [f"{remark} (client {client})" for client, layout in each.items() for remark in layout.remarks]
    return PictureFolders(sorted(classes, key=lambda one: one.part == "test"), remarks)


def load_folder(root: Path | None, reading: ReadOptions, *, path: str | None = None) -> Dataset:
    """Loads a folder with a folder of pictures for each class.

    The folders of classes may lie in folders of parts or clients. `root` is not used.
    """
    return read_folder(find_picture_folder(root, path), reading)


def _widen(x: Array, channels: int) -> Array:
    """Extends pictures `[n, C, H, W]` to `channels` channels. Repeats a gray channel. A new alpha channel is 255."""
    if x.shape[1] == channels:
        return x
    color = x if x.shape[1] == 3 else np.repeat(x, 3, axis=1)
    return color if channels == 3 else np.concatenate([color, np.full_like(color[:, :1], 255)], axis=1)
