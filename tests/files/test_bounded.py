"""Parquet files that somebody may have damaged: what is read is what was written, a small file at little cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.files.bounded import read_parquet_files


def test_a_small_part_is_opened_once_and_not_as_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 10,000 rounds has thousands of parts; a data set of one file takes longer than all its columns."""
    table = pa.table({"tier": ["a", None, "b"], "member.nll": [[0.5], [], [1.0, 2.0]], "round": [1, 2, 3]})
    pq.write_table(table, tmp_path / "part.parquet")
    opened, init = list[int](), pq.ParquetFile.__init__

    def count(*arguments: Any, **how: Any) -> None:
        opened.append(1)
        init(*arguments, **how)

    monkeypatch.setattr(pq.ParquetFile, "__init__", count)
    monkeypatch.setattr(pq, "read_table", lambda *_a, **_how: pytest.fail("it is read as a data set"))
    assert read_parquet_files([tmp_path / "part.parquet"]) == [table]
    some = read_parquet_files([tmp_path / "part.parquet"], ("round", "absent"))
    assert some == [table.select(["round"])]
    assert len(opened) == 2
