"""A partition as a file: who holds which rows, as Parquet that any tool reads, written by every run and read back.

It has the columns `replicate`, `fold`, `row` (of the training rows, from 0), `client` and `split`: `train`, `hold_out`,
or `server` for rows that the server holds in the client's place. Where the true clusters of the clients are known,
`cluster` says the one of the row's client; nothing reads it back. Rows of a client stand in the order in which it has
them. The metadata say which data set it is of. A file of another tool needs `row` and `client` alone.

Example:
    >>> import tempfile
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.data.cut import gather_cut
    >>> data = load_data("digits")
    >>> cut = gather_cut(np.arange(len(data.train.y)), np.arange(len(data.train.y)) % 3, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / FILE_NAME
    ...     _ = path.write_bytes(pack_partition(data, Dealt([cut], [cut], [], []), folds=[0]))
    ...     np.array_equal(read_partition(path, data, [(0, 0)]).kept[0].rows, cut.rows)
    True
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import IntArray
from fedray.data.cut import Dealt, gather_cut
from fedray.data.shards import hash_array
from fedray.data.types import Dataset
from fedray.files.bounded import read_parquet_files

if TYPE_CHECKING:
    import pyarrow as pa

FILE_NAME = "partition.parquet"  # in a run directory
MOST_ROWS = 50_000_000  # of all worlds together; a larger partition is not written
SPLITS = ("train", "hold_out", "server")
REMEDY = "restore it, or let the run that wrote it write it again"


def pack_partition(
    data: Dataset, dealt: Dealt, folds: list[int], clusters: Sequence[IntArray | None] = (None,)
) -> bytes:
    """Returns the bytes of a partition's file: `row` counts the training rows, `given_row` the rows that the user gave.

    Args:
        data: The data set.
        dealt: Who holds which rows.
        folds: Fold of each world; the replicate of a world is `world // number of folds`.
        clusters: The true cluster of each client, `[N]`, in each world; None where they are not known.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    each = len(set(folds))
    worlds = [_list_rows(dealt, world) for world in range(len(folds))]
    sizes = [len(rows) for rows, _, _ in worlds]
    row, client, split = (np.concatenate(column) for column in zip(*worlds, strict=True))
    known = [of for of in clusters if of is not None]
    more = {}
    if known:
        each_row = [of[who] for of, (_, who, _) in zip(known, worlds, strict=True)]
        more["cluster"] = np.concatenate(each_row).astype(np.int32)
    given = data.columns.get("row", np.empty(0))
    if given.dtype.kind == "i" and len(given) == len(data.train.y):
        more["given_row"] = given[row]
    table = pa.table(
        {
            "replicate": np.repeat(np.arange(len(folds)) // each, sizes).astype(np.int32),
            "fold": np.repeat(folds, sizes).astype(np.int32),
            "row": row,
            "client": client.astype(np.int32),
            "split": pa.DictionaryArray.from_arrays(pa.array(split, pa.int8()), pa.array(SPLITS)),
            **more,
        }
    )
    facts = {**_describe_data(data), "clients": str(dealt.owned[0].clients), "digest": _digest(row, client, split)}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(facts), sink, write_page_checksum=True)
    return bytes(sink.getvalue().to_pybytes())


def _list_rows(dealt: Dealt, world: int) -> tuple[IntArray, IntArray, IntArray]:
    """Rows, clients and splits of a world, `[n]` each: training rows first, client after client."""
    cuts = [dealt.kept[world], *([dealt.held[world]] if dealt.held else [])]
    rows, owners = [cut.rows for cut in cuts], [cut.owner for cut in cuts]
    splits = [np.full(len(cut.rows), number) for number, cut in enumerate(cuts)]
    if dealt.server:
        taken, owned = dealt.server[world], dealt.owned[world]
        order = np.argsort(owned.rows, kind="stable")
        rows.append(taken)
        owners.append(owned.owner[order[np.searchsorted(owned.rows[order], taken)]])
        splits.append(np.full(len(taken), SPLITS.index("server")))
    return np.concatenate(rows), np.concatenate(owners), np.concatenate(splits).astype(np.int8)


def read_partition(path: Path, data: Dataset, worlds: list[tuple[int, int]]) -> Dealt:
    """Who holds which rows, as a file says.

    Args:
        path: Of the file.
        data: The data set that is dealt.
        worlds: (number of the replicate, fold) of each world; a file with one replicate deals all of them so.

    Raises:
        BadInput: It is the file of another data set, or does not fit this one.
        FedrayError: It cannot be read.
    """
    key = f"data.partition.file = {path}"
    try:
        table = read_parquet_files([path], ("replicate", "fold", "row", "client", "split"), REMEDY)[0]
    except FedrayError as error:
        raise BadInput(f"data.partition.file: {error}") from None
    missing = [name for name in ("row", "client") if name not in table.column_names]
    if missing:
        raise BadInput(f"{key}: it has no column {missing[0]}: write the columns row, client and split")
    known = {name.decode(): value.decode(errors="replace") for name, value in (table.schema.metadata or {}).items()}
    _refuse_other_data(key, known, data)
    columns = {name: _read_ids(key, table, name) for name in ("replicate", "fold", "row", "client")}
    texts = np.asarray(table["split"].to_pylist() if "split" in table.column_names else ["train"] * len(table))
    split = np.select([texts == name for name in SPLITS], range(len(SPLITS)), -1)  # all are training rows without it
    if (split < 0).any():
        raise BadInput(
            f"{key}: its column split has {str(texts[np.argmin(split)])!r}: the splits are {', '.join(SPLITS)}"
        )
    if "digest" in known and known["digest"] != _digest(columns["row"], columns["client"], split):
        raise BadInput(f"{key}: its rows are not those that were written: {REMEDY}")
    clients = max(int(columns["client"].max(initial=-1)) + 1, int(known.get("clients", 0)))
    several = len(np.unique(columns["replicate"])) > 1
    parts = []
    for replicate, fold in worlds:
        inside = (columns["replicate"] == (replicate if several else columns["replicate"][:1])) & (
            (columns["fold"] == fold) | ("fold" not in table.column_names)
        )
        if not inside.any():
            there = ", ".join(map(str, np.unique(columns["fold"]).tolist()))
            raise BadInput(
                f"{key}: it has no rows of replicate {replicate} and fold {fold}, but of "
                f"{len(np.unique(columns['replicate']))} replicates and fold {there}: give the file of these"
            )
        rows, owner, kind = columns["row"][inside], columns["client"][inside], split[inside]
        n = len(data.train.y)
        if rows.max() >= n or (count := np.bincount(rows, minlength=n)).max() > 1 or not (kind == 0).any():
            raise BadInput(
                f"{key}: it deals rows twice, none to train, or more than the {n} of {data.name}: correct it"
            )
        if data.folds and count[data.folds[fold][1]].any():
            raise BadInput(f"{key}: it deals test rows of fold {fold}: give the file of this fold")
        parts.append([gather_cut(rows[which], owner[which], clients) for which in (kind >= 0, kind == 0, kind == 1)]
                     + [rows[kind == 2]])  # fmt: skip
    owned, kept, held, server = (list(column) for column in zip(*parts, strict=True))
    return Dealt(owned, kept, held if (split == 1).any() else [], server if (split == 2).any() else [])


def _describe_data(data: Dataset) -> dict[str, str]:
    """Returns what the metadata say of a data set."""
    return {
        "data": data.name,
        "rows": str(len(data.train.y)),
        "labels": hash_array(data.train.y, exact=False),
        "inputs": hash_array(data.train.x[:1000], exact=False),
    }


def _refuse_other_data(key: str, known: dict[str, str], data: Dataset) -> None:
    """Refuses a file that was written of other rows; the name of a data set may differ."""
    for name, value in _describe_data(data).items():
        if name != "data" and known.get(name, value) != value:
            raise BadInput(f"{key}: it deals other {name} than those of {data.name}: give the file of this data set")


def _read_ids(key: str, table: pa.Table, name: str) -> IntArray:
    """Returns a column of whole numbers from 0; 0 where there is none."""
    import pyarrow as pa

    if name not in table.column_names:
        return np.zeros(len(table), np.int64)
    column = table[name]
    if not pa.types.is_integer(column.type) or column.null_count:
        raise BadInput(f"{key}: its column {name} holds no whole numbers: correct it")
    values: IntArray = column.to_numpy().astype(np.int64)
    if values.min(initial=0) < 0 or values.max(initial=0) >= 10**9:
        raise BadInput(f"{key}: its column {name} has values out of 0 to 999999999: correct it")
    return values


def _digest(row: IntArray, client: IntArray, split: IntArray) -> str:
    parts = (np.ascontiguousarray(part, dtype="<i8").tobytes() for part in (row, client, split))
    return hashlib.sha256(b"".join(parts)).hexdigest()
