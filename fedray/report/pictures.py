"""From Matplotlib figures to the pictures of a page: inline SVG, and the numbers behind it for the page's script.

Example:
    >>> half, wide = (Picture("", "", Markup(""), place) for place in ("half", "wide"))
    >>> [picture.place for picture in pair_figures([half, half, wide, half])]
    ['half', 'half', 'wide', 'alone']
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from fedray.report import style
from fedray.report.traces import read_frames, read_panels

MOST_TABLE_ROWS = 4000  # of the numbers that a figure function lists itself


class NumberTable(NamedTuple):
    """The numbers of a picture that does not show them as lines, bars or cells.

    Attributes:
        head: names of the columns.
        rows: numbers and texts; None is an empty cell.
    """

    head: list[str]
    rows: list[list[Any]]


class Picture(NamedTuple):
    """A drawn figure.

    Attributes:
        title: stands above it.
        note: the sentence below it; may be empty.
        svg: the figure itself.
        place: CSS class: `wide` (across the page), `half`, or `alone` (a half without a neighbour).
        small: the same figure for a phone, where it can be drawn narrow.
        key: what it is called in the page, and in the names of downloaded files.
        numbers: for the script: its panels, where they lie in each SVG, and the table of its numbers, if it has one.
    """

    title: str
    note: str
    svg: Markup
    place: str
    small: Markup | None = None
    key: str = ""
    numbers: dict[str, Any] | None = None


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        title: its heading.
        pictures: in their order.
    """

    title: str
    pictures: list[Picture]


def draw_picture(figure: Figure, note: str, key: str, table: NumberTable | None = None) -> Picture:
    """Draws a figure.

    Args:
        figure: made by `style.make_canvas`.
        note: the sentence below it.
        key: unique in the page; the ids of its SVG begin with it.
        table: its numbers, where they cannot be read from what is drawn.
    """
    numbers: dict[str, Any] = {"panels": read_panels(figure)}
    if table is not None:
        every = -(-len(table.rows) // MOST_TABLE_ROWS) or 1
        numbers["table"] = {"head": table.head, "rows": table.rows[::every], "every": every}
    place = "wide" if float(figure.get_figwidth()) > style.NARROW else "half"
    svg = style.to_svg(figure, key)
    numbers["views"] = {key: read_frames(figure)}
    small = None
    if place == "wide" and _has_only_curves(figure):
        figure.set_size_inches(style.NARROW, 4.0)
        small = Markup(style.to_svg(figure, f"{key}-small"))
        numbers["views"][f"{key}-small"] = read_frames(figure)
    return Picture(str(figure.get_label()), note, Markup(svg), place, small, key, numbers)


def draw_pictures(
    figures: Iterable[tuple[Figure | None, str]], key: str, table: NumberTable | None = None
) -> Iterable[Picture]:
    """Draws figures; those that are None are left out.

    Args:
        figures: each with the note below it.
        key: what the keys of the pictures begin with.
        table: the numbers of each of them, where they show the same ones.
    """
    for i, (figure, note) in enumerate(figures):
        if figure is not None:
            yield draw_picture(figure, note, f"{key}-{i}", table)


def pair_figures(pictures: Iterable[Picture]) -> list[Picture]:
    """Halves that follow each other share a line; one that is left over stands alone."""
    paired: list[Picture] = []
    waiting = False  # for a neighbour
    for picture in pictures:
        half = picture.place == "half"
        if waiting and not half:
            paired[-1] = paired[-1]._replace(place="alone")
        waiting = half and not waiting
        paired.append(picture)
    if waiting:
        paired[-1] = paired[-1]._replace(place="alone")
    return paired


def _has_only_curves(figure: Figure) -> bool:
    """Whether the figure can be drawn narrow: maps and charts of many clients cannot, a phone scrolls them."""
    axes = figure.axes
    return len(axes) == 1 and bool(axes[0].lines) and not axes[0].patches and not axes[0].images
