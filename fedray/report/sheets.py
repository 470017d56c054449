"""Tables of the page: on the screen one box each, which scrolls; on paper as many parts as fit the page.

The first column says what a row is, and stays where it is: where its texts repeat, the second one joins it. Numbers end
on the right with their decimal points under each other, words begin on the left.

Example:
    >>> head, rows = ["run", *(f"score {i}" for i in range(30))], [[ScoreCell(str(i)) for i in range(31)]]
    >>> layout = lay_out(head, rows)
    >>> len(layout.whole.head), [len(part.head) for part in layout.parts]
    (31, [16, 16])
"""

from __future__ import annotations

import re
from typing import NamedTuple

WIDTH = 1060  # pixels of the page's content, less the frame of a table
LETTER, PADDING = 7.6, 24  # pixels
MOST_LETTERS = 30  # of a cell that is not broken into lines
NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?![\w.])")
NO_NUMBER = ("", "-", "infinite")
FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit, and as a point


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
    """A table, or some columns of one.

    Attributes:
        head: of the columns.
        rows: of cells, one a column.
        words: whether a column is text, which begins on the left.
    """

    head: list[str]
    rows: list[list[ScoreCell]]
    words: list[bool]


class LaidOut(NamedTuple):
    """A table on the screen and on paper.

    Attributes:
        whole: all columns.
        parts: the same in several parts, each with the first column, where it is wider than the page; else empty.
    """

    whole: Sheet
    parts: list[Sheet]


def lay_out(head: list[str], rows: list[list[ScoreCell]]) -> LaidOut | None:
    """Lays out a table; None where it has no rows.

    Args:
        head: of the columns.
        rows: of cells, one a column.
    """
    if not rows:
        return None
    head, rows = _join_names(head, rows)
    columns = [[row[i].text for row in rows] for i in range(len(head))]
    words = [i == 0 or not _are_numbers(texts) for i, texts in enumerate(columns)]
    texts = [each if word else align_numbers(each) for each, word in zip(columns, words, strict=True)]
    cells = [[cell._replace(text=texts[i][j]) for i, cell in enumerate(row)] for j, row in enumerate(rows)]
    parts = _cut_columns([_measure_column(word, each) for word, each in zip(head, columns, strict=True)])

    def take(part: list[int]) -> Sheet:
        return Sheet([head[i] for i in part], [[row[i] for i in part] for row in cells], [words[i] for i in part])

    return LaidOut(take(list(range(len(head)))), [take(part) for part in parts] if len(parts) > 1 else [])


def align_numbers(texts: list[str]) -> list[str]:
    """Numbers of a column with spaces as wide as digits, so that their points lie under each other.

    Args:
        texts: each a number or several, with the same words between them; others are left as they are.

    Example:
        >>> [text.replace(FIGURE_SPACE, "_") for text in align_numbers(["0.65 \u00b1 0.025", "1.5 \u00b1 0.1", "-"])]
        ['0.65 \u00b1 0.025', '1.5_ \u00b1 0.1__', '-']
    """
    split = [None if text in NO_NUMBER else (NUMBER.findall(text), NUMBER.split(text)) for text in texts]
    known = [each for each in split if each is not None]
    if len({tuple(between) for _, between in known}) != 1:
        return texts
    decimals = [
        max(len(number.partition(".")[2]) for number in each) for each in zip(*(n for n, _ in known), strict=True)
    ]
    found = []
    for text, each in zip(texts, split, strict=True):
        numbers = [] if each is None else [_fill(n, d) for n, d in zip(each[0], decimals, strict=True)]
        words = [text] if each is None else each[1]
        found.append(words[0] + "".join(number + word for number, word in zip(numbers, words[1:], strict=True)))
    return found


def _fill(number: str, decimals: int) -> str:
    """A number with spaces instead of the decimals that it lacks."""
    point, lacks = "." in number, decimals - len(number.partition(".")[2])
    return number + ("" if point or not decimals else POINT_SPACE) + FIGURE_SPACE * lacks


def _are_numbers(texts: list[str]) -> bool:
    """Whether a column is one of numbers: something in it begins with one, and nothing else is a word."""
    said = [text for text in texts if text not in NO_NUMBER and not text.startswith("none: ")]
    return bool(said) and all(NUMBER.match(text) for text in said)


def _join_names(head: list[str], rows: list[list[ScoreCell]]) -> tuple[list[str], list[list[ScoreCell]]]:
    """The second column joins the first one, where only both together say what a row is."""
    alone, both = ({tuple(cell.text for cell in row[:n]) for row in rows} for n in (1, 2))
    if len(alone) == len(rows) or len(both) < len(rows) or len(head) < 3:
        return head, rows
    joined = [[ScoreCell(f"{row[0].text}, {row[1].text}"), *row[2:]] for row in rows]
    return [f"{head[0]}, {head[1]}", *head[2:]], joined


def _cut_columns(widths: list[float]) -> list[list[int]]:
    """Which columns are in each part of a table that is wider than the page; the first one is in all of them."""
    parts = _split_widths(widths, WIDTH)
    for narrower in range(20, 0, -1):  # as many parts, but of about the same width
        even = _split_widths(widths, max(widths[0], WIDTH * (1 - narrower / 40)))
        if len(even) == len(parts) > 1:
            return even
    return parts


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
