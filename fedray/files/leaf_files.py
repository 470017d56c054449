"""Files of LEAF's JSON, the data of users, as LEAF and FedProx write them: which they are, and what they hold.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     file = Path(home) / "users.json"
    ...     _ = file.write_text('{"users": ["ann"], "user_data": {"ann": {"x": [[0.5]], "y": [1]}}}')
    ...     is_leaf(load_json(file)), [part for part in list_leaf_files(Path(home))]
    (True, ['train'])
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput
from fedray.files.layout import find_part, list_files, list_folders

ENDINGS = (".json", ".json.gz")
BEGIN = 4096  # bytes of a file in which its first keys stand


def is_leaf(thing: Any) -> bool:
    """Whether a thing is what such a file holds."""
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
