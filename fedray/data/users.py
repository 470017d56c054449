"""The data set `leaf` of scenarios: the rows of users in LEAF's JSON.

Example:
    >>> load_leaf(None)
    Traceback (most recent call last):
    fedray.core.errors.BadInput: data.path is missing: give a file of LEAF's JSON, or a folder of them; a path ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from fedray.core.errors import BadInput
from fedray.data.files import find_data_root
from fedray.data.forms.leaf import read_leaf_files
from fedray.data.forms.recognition import read_raw_parts
from fedray.data.forms.rows import ReadOptions
from fedray.data.types import Dataset
from fedray.files.leaf_files import list_leaf_files
from fedray.files.plain import expand_user_path, explain_missing_path


def load_leaf(
    root: Path | None,
    *,
    path: str | None = None,
    test: str | None = None,
    test_fraction: float = 0.2,
    task: Literal["auto", "classification", "regression"] = "auto",
    missing: Literal["refuse", "mean", "drop"] = "refuse",
    tokenizer: str | None = None,
    length: int | None = None,
) -> Dataset:
    """LEAF's JSON: a client for each user.

    Args:
        root: Folder of data files; None for the usual one.
        path: A file, a folder of files, or a folder with folders `train` and `test` of files.
        test: Another file or folder with the test rows; None: those of the folder `test`, or a share that is drawn.
        test_fraction: This share.
        task: As for tables.
        missing: As for tables.
        tokenizer: File of a tokenizer, or its name in the cache; makes tokens of text.
        length: Tokens of a row.
    """
    place = find_leaf_place(root, path)
    other = None if test is None else find_leaf_place(root, test, "test")
    options: dict[str, Any] = {"test_fraction": test_fraction, "task": task, "missing": missing}
    reading = ReadOptions(test=other, tokenizer=tokenizer, length=length, **options)
    return read_leaf_files(place, reading, read_raw_parts)


def find_leaf_place(root: Path | None, path: str | None = None, key: str = "path", **_: Any) -> Path:
    """The file or the folder of `data.path`; a relative path may begin in the folder of data files, too."""
    home = find_data_root(root)
    if not path:
        raise BadInput(
            f"data.{key} is missing: give a file of LEAF's JSON, or a folder of them; a path may begin in {home} "
            "(data.root or FEDRAY_DATA)"
        )
    place = expand_user_path(f"data.{key}", path)
    if not place.exists() and (home / place).exists():
        return find_leaf_place(None, str(home / place), key)
    if not place.exists():
        raise BadInput(f"data.{key} = {path}: {explain_missing_path(place, 'file or folder')}")
    if not list_leaf_files(place):
        raise BadInput(f"data.{key} = {path}: it has no JSON of users: give a file of LEAF's JSON, or a folder of them")
    return place
