"""Every column of every table that fedray writes, with its unit: for `fedray list columns` and the documentation.

Example:
    >>> find_column("rounds", "accuracy").unit, find_column("clients", "accuracy")
    ('share', None)
"""

from __future__ import annotations

from fedray.files.columns import COLUMNS, Column
from fedray.metrics.catalogue import SCORES, describe_score

TABLES_OF = {  # where a table is, and when
    "rounds": "`rounds.parquet` of a run: one row per evaluated round, replicate and fold",
    "clients": "`clients.parquet` of a run: one row per job, also those that did not count",
    "client_scores": "`client_scores.parquet` of a run with `evaluate.clients`: one row per evaluated round and client",
    "drift": "`drift.parquet` of a finished run with several models and at most 2,000 clients: one row per client",
    "partition": "`partition.parquet` of a run: one row per training row that a client holds",
    "trials": "`trials.parquet` of a sweep: one row per trial",
    "table": "`table.parquet` of `fedray table`: one row per cell and score",
}


def find_column(table: str, name: str) -> Column | None:
    """A column of a table; None where the catalogue does not have it.

    Args:
        table: one of `TABLES_OF`.
        name: of the column; in `rounds` also that of a score.
    """
    found = COLUMNS[table].get(name)
    return describe_score(name) if found is None and table == "rounds" else found


def list_table_columns() -> dict[str, dict[str, Column]]:
    """The columns of all tables; the scores follow the other columns of `rounds`."""
    return {table: {**COLUMNS[table], **(SCORES if table == "rounds" else {})} for table in TABLES_OF}


def columns_markdown() -> str:
    """All tables as Markdown, for `docs/reference/run_directory.md`."""
    parts = []
    for table, columns in list_table_columns().items():
        rows = [f"| `{name}` | {one.kind} | {one.unit} | {one.text} |" for name, one in columns.items()]
        head = ["| column | kind | unit | what it is |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([f"### {table}", f"{TABLES_OF[table]}.", "", *head, *rows]))
    return "\n\n".join(parts) + "\n"
