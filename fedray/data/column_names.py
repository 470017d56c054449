"""The names of columns, which are text wherever fedray keeps them: those of a pandas table may be numbers, or dates.

Example:
    >>> spell_columns(3, "data.target"), spell_columns([0, "age"], "data.input"), spell_columns(None, "data.group")
    ('3', ['0', 'age'], None)
    >>> refuse_twins(["a", "b", "a"], "the table")
    Traceback (most recent call last):
    fedray.core.errors.BadInput: data: the table has two columns a: rename one
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fedray.core.errors import BadInput
from fedray.data.forms.arrays import list_classes
from fedray.own_code.user_code import name_type


def spell_columns(given: Any, key: str) -> Any:
    """The name of a column, or a list of names, as text.

    Args:
        given: What the user gave: one name, several, or None.
        key: Of the option, for messages.

    Raises:
        BadInput: It is a column itself, or another table.
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping) or list_classes(given) & {"pandas.Series", "pandas.DataFrame", "polars.Series"}:
        raise BadInput(
            f"{key} is {name_type(given)}: name a column, or give labels beside the table, data=(table, labels)"
        )
    if isinstance(given, Collection):
        return [str(name) for name in given]
    return str(given)


def refuse_twins(names: Iterable[str], where: str) -> None:
    """Refuses a table in which two columns have one name.

    Args:
        names: Of its columns.
        where: What messages call the table.

    Raises:
        BadInput: Names the first one.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadInput(f"data: {where} has two columns {name}: rename one")
        seen.add(name)
