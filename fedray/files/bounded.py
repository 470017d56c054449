"""Readers of files that somebody else may have written: bounded, and what is wrong is one line with the file's name.

There is one reader for each format: Parquet and NumPy archives. (JSON has its own in `files.sealed`, YAML in
`scenario.yaml_text`.) None of them follows a link, waits for a pipe, runs code, or takes much more memory than the
file has bytes.

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
import math
import os
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import Damaged
from fedray.core.text import quote_value, show_line
from fedray.files.plain import MOST_FILE_BYTES
from fedray.files.sealed import read_or_explain

if TYPE_CHECKING:
    import pyarrow as pa

MOST_FREE_ROWS = 1_000_000  # of a table, however small its files are: beyond them a row takes a byte or more
MOST_ARRAY_BYTES = 1 << 28  # of the arrays of one archive, unpacked
MOST_COLUMNS = 2_000
RESTORE = "restore it, or run again"
_READING: dict[str, Any] = {"page_checksum_verification": True, "pre_buffer": False}


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
    """The tables of Parquet files, which together have no more rows than their size allows.

    Args:
        paths: the files.
        wanted: names of the columns to read, where they are there; None means all.
        remedy: what to do where one is damaged.

    Raises:
        Damaged: a file is missing, is no such file, or unpacks to far more than its size.
        FedrayError: one cannot be read.
    """
    import pyarrow as pa

    tables, most, values = [], MOST_FREE_ROWS, 0
    for path in paths:
        content = read_or_explain(path, remedy)
        most += len(content)
        try:
            table, more = _read_parquet(content, wanted, most - values)
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
            raise say_damaged(path, error, remedy) from None
        values += more
        tables.append(table)
    return tables


def _read_parquet(content: bytes, wanted: Collection[str] | None, most: int) -> tuple[pa.Table, int]:
    """The table of one file, and how many values its longest column has; nothing is unpacked before it is counted."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(content), **_READING)
    schema, groups = file.schema_arrow, range(file.metadata.num_row_groups)
    names = [name for name in schema.names if wanted is None or name in wanted]
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have one name")
    if len(names) > MOST_COLUMNS or file.metadata.num_columns > 2 * MOST_COLUMNS:
        raise ValueError(f"it has more than {MOST_COLUMNS} columns")
    chunks = [file.metadata.row_group(g).column(c) for g in groups for c in range(file.metadata.num_columns)]
    columns = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in names]
    counted: dict[str, int] = {}
    for chunk in columns:
        counted[chunk.path_in_schema] = counted.get(chunk.path_in_schema, 0) + chunk.num_values
    rows = max([file.metadata.num_rows, *counted.values()])
    if rows > most:
        raise ValueError(f"{rows:,} rows do not fit into {len(content):,} bytes")
    if sum(chunk.total_uncompressed_size for chunk in columns) > MOST_FILE_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_FILE_BYTES >> 20} MB")
    texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
    if texts:
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts, **_READING)
    table = file.read(columns=names, use_threads=False)
    return _unfold_texts(table), rows  # a thread that still has the bytes when Python ends would abort the process


def _unfold_texts(table: pa.Table) -> pa.Table:
    """Texts as plain columns, after their length is counted: one long text may stand in a million rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            column = table.column(place)
            size = 0
            for chunk in column.chunks:
                lengths = pc.binary_length(chunk.dictionary).fill_null(0)
                size += pc.sum(lengths.take(chunk.indices.drop_null())).as_py() or 0
            if size > MOST_FILE_BYTES:
                raise ValueError(f"the texts of {field.name} unpack to more than {MOST_FILE_BYTES >> 20} MB")
            plain = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], field.type.value_type)
            table = table.set_column(place, field.name, plain)
    return table


def read_array_archive(path: Path, wanted: Collection[str], remedy: str = RESTORE) -> dict[str, NDArray[Any]]:
    """Arrays of a `.npz` file; nothing in it is unpickled, and nothing is unpacked before its size is known.

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
            members = {one.filename.removesuffix(".npy"): one for one in packed.infolist()}
            kept = {name: members[name] for name in wanted if name in members}
            if sum(one.file_size for one in kept.values()) > MOST_ARRAY_BYTES:
                raise ValueError(f"it unpacks to more than {MOST_ARRAY_BYTES >> 20} MB")
            for name, member in kept.items():
                with packed.open(member) as file:
                    found[name] = _read_array(name, file.read(member.file_size + 1))
    except Exception as error:  # zipfile, its decompressors and NumPy's header raise a dozen kinds
        raise say_damaged(path, str(error) or type(error).__name__, remedy) from None
    return found


def _read_array(name: str, content: bytes) -> NDArray[Any]:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.kind not in "biufU":
        raise ValueError(f"{name} holds neither numbers nor texts")
    if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"{name} is not as large as it says")
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
