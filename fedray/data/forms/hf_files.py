"""Hugging Face data sets on disk and in the user's cache; nothing is downloaded unless asked.

Example:
    >>> find_hf_files(None, path="no_such_data_set")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: data.path = no_such_data_set: no such folder, and no such name in ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from fedray.core.errors import BadInput
from fedray.core.text import show_line
from fedray.data.column_names import spell_columns
from fedray.data.forms.hugging_face import read_hugging_face
from fedray.data.forms.rows import ReadOptions
from fedray.data.types import Dataset
from fedray.files.plain import expand_user_path

BUILDERS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".arrow": "arrow",
    ".txt": "text",
}


def load_hf(
    _root: Path | None,
    *,
    path: str | None = None,
    config: str | None = None,
    split: str | None = None,
    test: str | None = None,
    input: str | list[str] | None = None,
    target: str | None = None,
    group: str | None = None,
    test_fraction: float = 0.2,
    task: Literal["auto", "classification", "regression"] = "auto",
    missing: Literal["refuse", "mean", "drop"] = "refuse",
    tokenizer: str | None = None,
    length: int | None = None,
    size: int | None = None,
    download: bool = False,
) -> Dataset:
    """A data set of the user's disk or of their Hugging Face cache.

    Args:
        path: A folder that `save_to_disk` wrote, a folder or file that `load_dataset` reads, or a name in the cache.
        config: Configuration of a named data set.
        split: The split of the training rows; None: `train`, or the only one.
        test: The split of the test rows; None: `test` or `validation` if there is one, else a share is drawn.
        input: The column of pictures, lists or text, or columns of numbers; None where there is one candidate.
        target: The column to predict; None where there is one column of classes.
        group: Column of the natural clients.
        test_fraction: Share of the rows that is drawn as test rows where none are given.
        task: As for tables.
        missing: As for tables.
        tokenizer: File of a tokenizer, or its name in the cache; makes tokens of text.
        length: Tokens of a row.
        size: Height and width that pictures are brought to.
        download: Whether a named data set may be downloaded.
    """
    target, input, group = (
        spell_columns(one, f"data.{key}") for key, one in (("target", target), ("input", input), ("group", group))
    )
    reading = ReadOptions(
        target, input, group, test, test_fraction, task, missing, tokenizer, length, size
    )  # in the order of its fields
    return read_hugging_face(_open(path, config, download=download), reading, split)


def find_hf_files(
    _root: Path | None, path: str | None = None, config: str | None = None, download: bool = False, **_: Any
) -> Path:
    """Where the files of a data set are: its folder or file, or its folder in the cache."""
    if not path:
        raise BadInput("data.path is missing: give a folder that save_to_disk wrote, or a name in the cache")
    place = expand_user_path("data.path", path)
    if place.exists():
        return place
    cache = _find_cache() / path.replace("/", "___")
    if not cache.is_dir():
        if not download:
            raise BadInput(
                f"data.path = {path}: no such folder, and no such name in {_find_cache()}: correct it, or write "
                "data.download: true"
            )
        _open(path, config, download=True)
    return cache if cache.is_dir() else _find_cache()


def open_saved(path: str) -> Any:
    """What `save_to_disk` wrote into a folder."""
    return _open(path, None, download=False)


def _find_cache() -> Path:
    """Where `datasets` keeps what it has prepared; asked without importing it, which takes a second."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets").expanduser()


def _open(path: str | None, config: str | None, *, download: bool) -> Any:
    """Opens a data set from disk or from the cache."""
    files = None if download else find_hf_files(None, path, config)
    try:
        import datasets
    except ImportError as error:
        raise BadInput("data.name = hf needs datasets: `pip install 'fedray[hf]'`") from error
    assert path is not None
    place = expand_user_path("data.path", path)
    try:
        if (place / "dataset_dict.json").is_file() or (place / "state.json").is_file():
            return datasets.load_from_disk(str(place))
        with _offline(not download):
            if place.is_file():
                kind = BUILDERS.get(place.suffix.lower(), "csv")
                more = {"sep": "\t"} if place.suffix.lower() == ".tsv" else {}
                return datasets.load_dataset(kind, data_files=str(place), **more)
            return datasets.load_dataset(str(place) if place.exists() else path, config)
    except Exception as error:  # `datasets` raises many kinds
        if isinstance(error, ConnectionError) and not download:
            raise BadInput(f"data.path = {path} is not in the cache: write data.download: true") from error
        why: BaseException = error
        while why.__cause__ is not None:  # the outer ones say that something went wrong
            why = why.__cause__
        raise BadInput(
            f"data.path = {files or place}: datasets cannot read it ({show_line(f'{type(why).__name__}: {why}')}): "
            "correct it, or read it by data.name: table if it is one"
        ) from error


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Keeps `datasets` from the network while the block runs."""
    modules: list[Any] = [sys.modules[name] for name in ("datasets.config", "huggingface_hub.constants")]
    before = [getattr(module, "HF_HUB_OFFLINE", False) for module in modules]
    try:
        for module in modules if wanted else []:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
