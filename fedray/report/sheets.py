"""Tables of the page: cut into as many as it takes for none to be wider than the page.

Example:
    >>> head, rows = ["run", *(f"score {i}" for i in range(30))], [[ScoreCell(str(i)) for i in range(31)]]
    >>> sheet, second, *_ = fit_columns(head, rows)
    >>> sheet.head[:3], second.head[:2], len(sheet.head) - len(second.head)
    (['run', 'score 0', 'score 1'], ['run', 'score 15'], 0)
"""

from __future__ import annotations

from typing import NamedTuple

WIDTH = 1060  # pixels of the page's content, less the frame of a table
LETTER, PADDING = 7.6, 24  # pixels
MOST_LETTERS = 30  # of a cell that is not broken into lines


class ScoreCell(NamedTuple):
    """One cell of a table.

    Attributes:
        text: what it shows.
        best: whether it stands out.
    """

    text: str
    best: bool = False

    @property
    def is_long(self) -> bool:
        """Whether the text may be broken into lines."""
        return len(self.text) > MOST_LETTERS


PageTable = tuple[str, tuple[list[str], list[list[ScoreCell]]], str]  # heading, (header, rows), note


class Sheet(NamedTuple):
    """A table that is no wider than the page.

    Attributes:
        head: of the columns.
        rows: of cells, one a column.
    """

    head: list[str]
    rows: list[list[ScoreCell]]


def fit_columns(head: list[str], rows: list[list[ScoreCell]]) -> list[Sheet]:
    """Cuts a table between its columns where it is wider than the page; each part begins with the first column.

    Args:
        head: of the columns.
        rows: of cells, one a column.
    """
    if not rows:
        return []
    widths = [_measure_column(word, [row[i].text for row in rows]) for i, word in enumerate(head)]
    parts = _split_widths(widths, WIDTH)
    for narrower in range(20, 0, -1):  # as many parts, but of about the same width
        even = _split_widths(widths, max(widths[0], WIDTH * (1 - narrower / 40)))
        if len(even) == len(parts) > 1:
            parts = even
            break
    return [Sheet([head[i] for i in part], [[row[i] for i in part] for row in rows]) for part in parts]


def _split_widths(widths: list[float], most: float) -> list[list[int]]:
    """Columns of each part, the first column in all of them."""
    parts: list[list[int]] = [[0]]
    room = most - widths[0]
    for column in range(1, len(widths)):
        if widths[column] > room and len(parts[-1]) > 1:
            parts.append([0])
            room = most - widths[0]
        parts[-1].append(column)
        room -= widths[column]
    return parts


def _measure_column(word: str, texts: list[str]) -> float:
    """The width of a column in pixels: its head may be broken between words."""
    longest = max((len(text) for text in texts), default=0)
    letters = max(max(map(len, word.split()), default=0), min(longest, MOST_LETTERS))
    return LETTER * letters + PADDING
