"""Pieces of Markdown that the pages of the reference are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Returns a Markdown table, or an empty text if there are no rows.

    Example:
        >>> print(write_table(["a", "b"], [["1", "x | y"]]))
        | a | b |
        | --- | --- |
        | 1 | x \| y |
    """
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines]) if lines else ""


def write_value(value: Any) -> str:
    """Returns a value as a scenario file writes it.

    Example:
        >>> write_value(None), write_value(float("inf")), write_value([10, 20]), write_value(True)
        ('none', '`inf`', '`[10, 20]`', '`true`')
    """
    if value is None:
        return "none"
    if value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"`{int(value):,}`" if abs(value) < 10_000 else f"`{value:g}`"
    if isinstance(value, dict):
        return f"`{{{', '.join(f'{key}: {entry}' for key, entry in value.items())}}}`"
    return f"`{value}`"


def cut_docstring(text: str) -> dict[str, str]:
    """Splits a docstring in Google's style into its sections. The text before the first section has the name ''.

    Example:
        >>> text = "One line." + chr(10) + "Deviations:" + chr(10) + "    1. This."
        >>> cut_docstring(text)
        {'': 'One line.', 'Deviations': '1. This.'}
    """
    found = {"": ""}
    name = ""
    for line in inspect.cleandoc(text).splitlines():
        if start := re.fullmatch(r"(Formulas of \w+|Deviations|Example|Note|Args|Attributes|Raises|Returns):", line):
            name = start[1]
            found[name] = ""
        else:
            found[name] += f"{line}\n"
    return {key: inspect.cleandoc(value).strip() for key, value in found.items()}


def begin_sentence(text: str) -> str:
    """Returns the text with a capital letter and a full stop. Code at its start is not changed.

    Example:
        >>> begin_sentence("learning rate"), begin_sentence("`auto` decides.")
        ('Learning rate.', '`auto` decides.')
    """
    text = text.strip()
    return text[:1].upper() + text[1:].removesuffix(".") + "."
