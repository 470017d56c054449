"""One picture as numbers: those that its file has, whatever their width, or one line that says why not.

Gray, color and transparency of 8 bits are bytes; gray of more bits is whole numbers, and real numbers stay real. What
Pillow would round (16 bits a color) or mix (CMYK) is refused. A picture lies as its EXIF says.

Example:
    >>> from PIL import Image
    >>> deep = Image.fromarray(np.array([[500, 60_000]], np.uint16))
    >>> decode_picture(deep, None, "the picture").pixels.tolist()
    [[[500, 60000]]]
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.data.types import Array

ORIENTATION = 0x0112  # the tag of EXIF; 1 is upright
BYTES, WHOLE, REAL = "8 bits", "whole numbers of more than 8 bits", "real numbers"


class Decoded(NamedTuple):
    """A picture.

    Attributes:
        pixels: `[C, H, W]`: uint8, int32 or float32; C is 1 (gray), 3 (color) or 4 (color with transparency).
        levels: What its numbers are: `BYTES`, `WHOLE` or `REAL`.
        lies: Whether its EXIF says another orientation than it has: an object in memory, which may be turned already.
    """

    pixels: Array
    levels: str
    lies: bool


def decode_picture(source: Any, size: int | None, where: str) -> Decoded:
    """A picture as numbers.

    Args:
        source: A file, its bytes, or a PIL image.
        size: Height and width that it is brought to; None: it stays as it is.
        where: What messages call it.

    Raises:
        BadInput: It cannot be read, or not without changing its numbers.
    """
    from PIL import Image, ImageOps

    try:
        known = any(kind.__module__.startswith("PIL.") for kind in type(source).__mro__)
        source = Path(source).read_bytes() if isinstance(source, str | Path) else source
        picture = source if known else Image.open(io.BytesIO(source))
        raw, most = _read_header(picture)
        if picture.mode in ("RGB", "RGBA", "LA") and (most > 255 or ";16" in raw):
            raise BadInput(
                f"data: {where} has 16 bits a color, of which 8 would be left: convert it, or give pictures as arrays"
            )
        turned = _find_orientation(picture) != 1
        from_file = picture.format is not None
        picture = ImageOps.exif_transpose(picture) if turned and from_file else picture
        levels = WHOLE if picture.mode.startswith("I") else REAL if picture.mode == "F" else BYTES
        if levels == BYTES:
            picture = _find_channels(picture, where)
        elif levels == WHOLE:
            picture = _read_levels(picture, raw, most, where)
        if size is not None and picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
        pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
        return Decoded(np.ascontiguousarray(pixels), levels, turned and not from_file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"data: {where} cannot be read as a picture ({error}): replace or remove it") from error


def _read_header(picture: Any) -> tuple[str, int]:
    """How a file that is opened and not yet read packs its numbers, and its largest level; 0 where it says none."""
    tiles = getattr(picture, "tile", ())
    if not tiles:
        return "", 0
    packed = tiles[0][3] if isinstance(tiles[0][3], tuple) else (tiles[0][3],)
    most = packed[1] if str(tiles[0][0]).startswith("ppm") and len(packed) > 1 else 0
    return str(packed[0]) if packed else "", int(most)


def _find_orientation(picture: Any) -> int:
    """How a picture lies by its EXIF; 1, which is upright, where it says nothing or is damaged."""
    try:
        return int(picture.getexif().get(ORIENTATION, 1))
    except Exception:
        return 1


def _find_channels(picture: Any, where: str) -> Any:
    """A picture of bytes in gray, color, or color with transparency, where there is some."""
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
    """A gray picture of more than 8 bits, as an image of 32 bits with the numbers of its file."""
    from PIL import Image

    numbers = np.asarray(picture)
    if raw == "I;32N" and numbers.min() < 0:  # they are unsigned, and Pillow has signed ones
        raise BadInput(f"data: {where} has levels above 2,147,483,647: give pictures as arrays")
    if most not in (0, 65_535):  # Pillow raised them to 16 bits
        numbers = np.rint(numbers * (most / 65_535))
    return Image.fromarray(numbers.astype(np.int32))
