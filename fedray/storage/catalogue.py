"""Every column of every table that fedray writes, with its unit: for `fedray list columns` and the documentation.

Example:
    >>> columns = list_table_columns()
    >>> columns["rounds"]["accuracy"].unit, "accuracy" in columns["clients"]
    ('share', False)
"""

from __future__ import annotations

from fedray.files.columns import COLUMNS, Column
from fedray.metrics.catalogue import SCORES

TABLES_OF = {  # where a table is, and when
    "rounds": "`rounds.parquet` of a run: one row per evaluated round, replicate and fold",
    "clients": "`clients.parquet` of a run: one row per job, also those that did not count",
    "client_scores": "`client_scores.parquet` of a run with `evaluate.clients`: one row per evaluated round and client",
    "drift": "`drift.parquet` of a finished run with several models and at most 2,000 clients: one row per client",
    "partition": "`partition.parquet` of a run: one row per training row that a client holds",
    "trials": "`trials.parquet` of a sweep: one row per trial",
    "table": "`table.parquet` of `fedray table`: one row per cell and score",
}


def list_table_columns() -> dict[str, dict[str, Column]]:
    """The columns of all tables; the scores follow the other columns of `rounds`."""
    return {table: {**COLUMNS[table], **(SCORES if table == "rounds" else {})} for table in TABLES_OF}
