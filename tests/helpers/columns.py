"""Columns that a table has and the catalogue has not, and the catalogue as the documentation prints it."""

from collections.abc import Mapping

import pyarrow as pa

from fedray.core.scores import cut_split, find_score
from fedray.files.run_files import COLUMNS, Column, arrow_type
from fedray.metrics.scores import SCORES
from fedray.storage.checkpoint import TABLES_OF, list_table_columns

NARROW = {"partition"}  # whose numbers are as narrow as they can be


def find_column(table: str, name: str) -> Column | None:
    """Returns a column of a table, or a score in `rounds`. Returns None if the catalog does not have it."""
    if name in COLUMNS[table] or table != "rounds":
        return COLUMNS[table].get(name)
    whole = cut_split(name)[1]
    inner = whole.removeprefix("member_")
    if (found := find_score(inner)) is None:
        return None
    listed = whole != inner or (inner in SCORES and SCORES[inner].kind == "numbers")
    return Column("numbers" if listed else "number", found.unit, found.text)


def find_uncatalogued(tables: Mapping[str, pa.Schema]) -> list[str]:
    """Columns of tables (name -> schema) that the catalogue does not have, or has with another type."""
    found = []
    for table, schema in tables.items():
        for field in schema:
            column = find_column(table, field.name)
            if column is None:
                found.append(f"{table}.{field.name} is not in the catalogue")
            elif column.kind == "record" or table in NARROW:
                continue
            elif field.type != arrow_type(column.kind):
                found.append(f"{table}.{field.name} is {field.type}, and {column.kind} in the catalogue")
    return found


def columns_markdown() -> str:
    """Returns all tables as Markdown, for `docs/reference/run_directory.md`."""
    parts = []
    for table, columns in list_table_columns().items():
        rows = [f"| `{name}` | {one.kind} | {one.unit} | {one.text} |" for name, one in columns.items()]
        head = ["| column | kind | unit | what it is |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([f"### {table}", f"{TABLES_OF[table]}.", "", *head, *rows]))
    return "\n\n".join(parts) + "\n"
