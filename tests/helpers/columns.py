"""Columns that a table has and the catalogue has not."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from fedray.files.columns import arrow_type
from fedray.storage.catalogue import find_column

NARROW = {"partition"}  # whose numbers are as narrow as they can be


def find_uncatalogued(tables: Mapping[str, pa.Schema]) -> list[str]:
    """Columns that the catalogue does not have, or has with another type.

    Args:
        tables: name of a table -> its schema.
    """
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
