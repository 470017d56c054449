"""Colours, sizes, units and the way from a Matplotlib figure to inline SVG.

Lines and text are drawn in placeholder colours that become CSS variables, so one SVG is right on a light page, on a
dark page and on paper. Text stays text: it can be selected, searched and read aloud.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

INK, MUTED, GRID, PAPER = "#010a0b", "#020a0c", "#030a0d", "#040a0e"  # placeholders, see `to_svg`
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--card)"}
ACCENT, ORANGE, GREY = "#0072b2", "#d55e00", "#6b7683"
# Okabe and Ito 2008, without black, the yellow darkened for white pages, and two more hues
PALETTE = (ACCENT, "#e69f00", "#009e73", "#cc79a7", "#56b4e9", ORANGE, "#a89400", "#7a5fc0", "#8c8c8c", "#8a4b2d")
NARROW, WIDE = 5.4, 10.8  # inches: two figures side by side, or one across the page
MOST_VECTOR_MARKS = 400  # bars or dots; more are a picture of pixels within the SVG, a tenth of the size
BAND = "_band"  # label of the band that belongs to the line drawn before it
FIGURE_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedray",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 1.0,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.3,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "image.interpolation": "nearest",
    "path.simplify_threshold": 0.3,
}


def make_canvas(
    title: str, rows: int = 1, columns: int = 1, size: tuple[float, float] = (NARROW, 3.4), **options: Any
) -> tuple[Figure, Any]:
    """Makes an empty figure.

    Args:
        title: becomes the label of the figure; the page shows it above.
        rows: of axes.
        columns: of axes.
        size: width and height in inches.
        options: of Matplotlib's `Figure.subplots`.

    Returns:
        The figure, and its axes: one, or an array of them.
    """
    figure = Figure(figsize=size, layout="constrained")
    figure.set_label(title)
    return figure, figure.subplots(rows, columns, **options)


def to_svg(figure: Figure, prefix: str) -> str:
    """The figure as an `<svg>` element that scales with the page.

    Args:
        figure: made by `make_canvas`.
        prefix: put before every id, so that several figures share one page.
    """
    sink = io.StringIO()
    figure.dpi = 150  # of what is drawn as pixels
    canvas: Any = FigureCanvasSVG(figure)  # `savefig` would draw twice, for a layout that one drawing makes as well
    canvas.print_svg(sink, metadata={"Date": None, "Creator": None})
    text = sink.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="(?:patch|text|line2d|xtick|ytick|legend|figure|axes|matplotlib\.axis)_[^"]*"', "<g", text)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), text)  # not in what is read
    text = re.sub(r'(?<=<svg)([^>]*?) width="([\d.]+)pt" height="[\d.]+pt"', r'\1 style="--wide:\2px"', text, count=1)
    text = re.sub(r"\n\s*", "\n", text)
    for color, variable in VARIABLES.items():
        text = text.replace(color, variable)
    return text


def use_figure_style() -> Any:
    """The settings all figures are made and written under."""
    return matplotlib.rc_context(FIGURE_SETTINGS)


@contextmanager
def ignore_odd_numbers() -> Iterator[None]:
    """No warnings about numbers that are too large or about characters that a font lacks: the browser has others."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def pick_color(place: int, number: int) -> str:
    """The colour of one model (or class, or run) among so many.

    Args:
        place: its number, from 0.
        number: how many there are.
    """
    if number <= len(PALETTE):
        return PALETTE[place]
    return str(to_hex(colormaps["viridis"](0.16 + 0.81 * place / (number - 1))))


def pick_colors(number: int) -> list[str]:
    """One colour a model (or class, or run): the palette, or steps of viridis where it ends.

    Example:
        >>> pick_colors(2)
        ['#0072b2', '#e69f00']
    """
    return [pick_color(place, number) for place in range(number)]


def make_colormap() -> Colormap:
    """From nothing to a full colour: reads the same on light and dark pages."""
    return LinearSegmentedColormap.from_list("strength", [(*to_rgb(ACCENT), 0.04), (*to_rgb(ACCENT), 1.0)])


def draw_bars(axes: Axes, left: ArrayLike, bottom: ArrayLike, width: ArrayLike, height: ArrayLike, **look: Any) -> None:
    """Draws many rectangles as one path: a hundred clients cost one SVG element.

    Args:
        axes: where to draw.
        left: left end of each rectangle, `[n]` or one number, as the following.
        bottom: lower end.
        width: to the right.
        height: upwards; nothing is drawn where it is 0.
        look: of Matplotlib's `PathPatch`.
    """
    corners = np.broadcast_arrays(*(np.asarray(a, float) for a in (left, bottom, width, height)))
    x, y, w, h = (a[(corners[2] != 0) & (corners[3] != 0)] for a in corners)
    if len(x) == 0:
        return
    points = np.stack([[x, y], [x + w, y], [x + w, y + h], [x, y + h], [x, y]]).transpose(2, 0, 1)
    codes = np.tile([Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY], len(x))
    axes.add_patch(PathPatch(Outline(points.reshape(-1, 2), codes), **{"linewidth": 0, **look}))
    axes.autoscale_view()


def draw_key(axes: Axes, names: Sequence[str], colors: Sequence[str], **options: Any) -> None:
    """Draws a legend of coloured squares above the axes.

    Args:
        axes: where to draw.
        names: what each colour means.
        colors: one a name.
        options: of Matplotlib's `Axes.legend`.
    """
    marks = [PathPatch(Outline.unit_rectangle(), facecolor=color, linewidth=0) for color in colors]
    place = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "ncols": len(names), "columnspacing": 1.1}
    axes.legend(marks, names, handleheight=0.8, handlelength=0.9, handletextpad=0.5, **{**place, **options})


def draw_grid(axes: Axes, which: Literal["both", "x", "y"] = "y") -> None:
    """Draws the grid lines of one axis, or of both."""
    axes.grid(axis=which, visible=True)


def use_whole_numbers(axis: Any) -> None:
    """Puts ticks at whole numbers only, on an axis of rounds, clients or models."""
    axis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))


def use_percent(axis: Any) -> None:
    """Writes the shares of an axis, 0 to 1, in percent."""
    axis.set_major_formatter(FuncFormatter(write_percent))


def write_percent(value: float, _place: int | None = None) -> str:
    """A share as the text of a tick.

    Example:
        >>> write_percent(0.125)
        '12.5 %'
    """
    return f"{100 * value:.4g} %"


@dataclass(frozen=True)
class PlaceNames:
    """The names of the places 0, 1, ... of an axis, which the page tells of each place.

    Attributes:
        names: one a place.
        whole: stands before a name, which then says all of its place: the ticks show numbers; None where they show the
            names, those that there is room for.
    """

    names: tuple[str, ...]
    whole: str | None = None

    def __call__(self, value: float, _place: int | None = None) -> str:
        """The text of a tick; nothing between two places."""
        place = round(value)
        if place != value or not 0 <= place < len(self.names):
            return ""
        return self.names[place] if self.whole is None else str(place)


def name_places(axis: Any, names: Sequence[object], *, whole: str | None = None) -> None:
    """Names every place of an axis.

    Args:
        axis: of whole numbers from 0.
        names: one a place.
        whole: as in `PlaceNames`.
    """
    use_whole_numbers(axis)
    axis.set_major_formatter(FuncFormatter(PlaceNames(tuple(str(name) for name in names), whole)))
