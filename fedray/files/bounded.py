"""Readers of files that somebody else may have written: what is wrong is one line with the file's name.

There is one reader for each format: Parquet and NumPy archives. (JSON has its own in `files.sealed`, YAML in
`scenario.yaml_text`.) None of them follows a link, waits for a pipe, runs code, or opens a file of more than 1 GB.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pictures.npz"
    ...     np.savez(path, agreement=np.eye(2))
    ...     read_array_archive(path, ["agreement"])["agreement"].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import Damaged
from fedray.core.text import quote_value, show_line
from fedray.files.sealed import read_or_explain

if TYPE_CHECKING:
    import pyarrow as pa

RESTORE = "restore it, or run again"


def say_damaged(path: Path, why: object, remedy: str = RESTORE) -> Damaged:
    """The error of a file that cannot be what it should be.

    Args:
        path: the file.
        why: what is wrong, in a few words.
        remedy: what to do.
    """
    return Damaged(f"{name_file(path)} is damaged ({show_line(why, 160)})", remedy)


def name_file(path: Path) -> str:
    """A path for messages: printable, whatever bytes its name has."""
    return quote_value(str(path), 400)[1:-1]


def is_present(path: Path) -> bool:
    """Whether there is anything under this name, also a link that leads nowhere."""
    return os.path.lexists(path)


def read_parquet_files(
    paths: Iterable[Path], wanted: Collection[str] | None = None, remedy: str = RESTORE
) -> list[pa.Table]:
    """The tables of Parquet files.

    Args:
        paths: the files.
        wanted: names of the columns to read, where they are there; None means all.
        remedy: what to do where one is damaged.

    Raises:
        Damaged: a file is missing, or is no such file.
        FedrayError: one cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for path in paths:
        content = read_or_explain(path, remedy)
        try:
            file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, pre_buffer=False)
            names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
            # a thread that still has the bytes when Python ends would abort the process
            tables.append(file.read(columns=names, use_threads=False))
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
            raise say_damaged(path, error, remedy) from None
    return tables


def read_array_archive(path: Path, wanted: Collection[str], remedy: str = RESTORE) -> dict[str, NDArray[Any]]:
    """Arrays of a `.npz` file; nothing in it is unpickled.

    Args:
        path: the file.
        wanted: names of the arrays to read, where they are there.
        remedy: what to do where it is damaged.

    Raises:
        Damaged: it is no such file.
        FedrayError: it cannot be read.
    """
    content, found = read_or_explain(path, remedy), {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            there = packed.namelist()
            for name in (name for name in wanted if f"{name}.npy" in there):
                file = io.BytesIO(packed.read(f"{name}.npy"))  # whole, so that its checksum is compared
                found[name] = np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except Exception as error:  # zipfile, its decompressors and NumPy's header raise a dozen kinds
        raise say_damaged(path, str(error) or type(error).__name__, remedy) from None
    return found
