"""Turns Matplotlib figures into pictures of a page, as inline SVG and numbers for the page's script."""

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

# ---------------------------------------------------------------------------------------------------------------------
# Colors, sizes, units, and the conversion of a Matplotlib figure to inline SVG. Lines and text are drawn in four colors
# of a light page. These colors become CSS variables in the SVG, and so suit light pages, dark pages and paper. Text in
# the SVG can be selected, searched and read aloud.

INK, MUTED, GRID, PAPER = "#1b2530", "#55616d", "#d7dde3", "#fffffe"  # white itself stays white, see `to_svg`
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--card)"}
ACCENT, ORANGE, GREY = "#0072b2", "#d55e00", "#6b7683"
# The palette of Okabe and Ito 2008, without black, with a darker yellow for white pages, and with two more hues.
PALETTE = (ACCENT, "#e69f00", "#009e73", "#cc79a7", "#56b4e9", ORANGE, "#a89400", "#7a5fc0", "#8c8c8c", "#8a4b2d")
NARROW, WIDE = 5.4, 10.8  # inches: two figures side by side, or one across the page
MOST_VECTOR_MARKS = 400  # if there are more bars or dots, they become pixels within the SVG, with a tenth of the size
DASHED: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": (0, (4, 3))}  # style of a reference line
BAND = "_band"  # label of a band that belongs to the line drawn before the band
SHARES = "_shares"  # label of an image of shares, which the page shows in percent
FIGURE_SETTINGS: dict[Any, Any] = {
    **dict.fromkeys(("svg.fonttype", "axes.facecolor", "figure.facecolor"), "none"),
    **dict.fromkeys(("text.parse_math", "axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), GRID),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), MUTED),
    "svg.hashsalt": "fedray",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.axisbelow": True,
    "axes.linewidth": 1.0,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.handlelength": 1.3,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "image.interpolation": "none",  # a pixel for each cell, which browsers enlarge
    "path.simplify_threshold": 0.3,
}


def make_canvas(
    title: str, rows: int = 1, columns: int = 1, size: tuple[float, float] = (NARROW, 3.4), **options: Any
) -> tuple[Figure, Any]:
    """Makes an empty figure with its axes.

    Args:
        title: The label of the figure, which the page shows above the figure.
        rows: The number of rows of axes.
        columns: The number of columns of axes.
        size: The width and height in inches.
        options: Further options of Matplotlib's `Figure.subplots`.

    Returns:
        The figure, and its axes (a single object, or an array of axes).
    """
    figure = Figure(figsize=size, layout="constrained")
    figure.set_label(title)
    return figure, figure.subplots(rows, columns, **options)


def make_grid(title: str, number: int, columns: int, tall: float) -> tuple[Figure, list[Any]]:
    """Makes an empty figure with `number` axes in rows of `columns`. A row is `tall` inches high.

    Returns the figure, and its axes row by row. `number` is at least `columns`.
    """
    rows = -(-number // columns)
    size = (WIDE if columns > 1 else NARROW, tall * rows + 0.2)
    figure, grid = make_canvas(title, rows, columns, size=size, squeeze=False)
    for axes in grid.flat[number:]:
        axes.set_visible(False)
    return figure, list(grid.flat[:number])


def to_svg(figure: Figure, prefix: str) -> str:
    """Converts a figure to an `<svg>` element that scales with the page.

    Args:
        figure: A figure made by `make_canvas`.
        prefix: A text before every id, so that several figures on a page have different ids.
    """
    sink = io.StringIO()
    figure.dpi = 150  # resolution of parts drawn as pixels
    canvas: Any = FigureCanvasSVG(figure)  # `savefig` would draw twice, but a single drawing also makes the layout
    canvas.print_svg(sink, metadata={"Date": None, "Creator": None})
    text = sink.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="(?:patch|text|line2d|xtick|ytick|legend|figure|axes|matplotlib\.axis)_[^"]*"', "<g", text)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    # tags only, no text; an image is as wide as its scale says, times the number of its cells
    text = re.sub(r"<(?!image)[^>]+>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r'(?<=<svg)([^>]*?) width="([\d.]+)pt" height="[\d.]+pt"', r'\1 style="--wide:\2px"', text, count=1)
    text = re.sub(r"\n\s*", "\n", text)
    for color, variable in VARIABLES.items():
        text = text.replace(color, variable)
    return text


def use_figure_style() -> Any:
    """Returns a context manager with the settings under which all figures are made and written."""
    return matplotlib.rc_context(FIGURE_SETTINGS)


@contextmanager
def ignore_odd_numbers() -> Iterator[None]:
    """Silences Matplotlib's warnings of too large numbers and of missing characters in a `with` block."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def pick_color(place: int, number: int) -> str:
    """Picks the color of one of several models (or classes, or runs).

    `place` is the index of the model, from 0, and `number` is the number of models.
    """
    if number <= len(PALETTE):
        return PALETTE[place]
    return str(to_hex(matplotlib.colormaps["viridis"](0.16 + 0.81 * place / (number - 1))))


def pick_colors(number: int) -> list[str]:
    """Picks a color for each model (or class, or run) from the palette. If the palette is too short, uses viridis.

    Example:
        >>> pick_colors(2)
        ['#0072b2', '#e69f00']
    """
    return [pick_color(place, number) for place in range(number)]


def hide_frame(axes: Axes) -> None:
    """Removes frame, grid and ticks from axes that show cells."""
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def make_colormap() -> Colormap:
    """Makes a color map, from transparent to a full color, that suits light and dark pages."""
    return LinearSegmentedColormap.from_list("strength", [(*to_rgb(ACCENT), 0.04), (*to_rgb(ACCENT), 1.0)])


class Bars(PathPatch):
    """The rectangles that `draw_bars` draws.

    Attributes:
        sides: Left, bottom, width and height of the n rectangles, `[4, n]`.
        at: The place that the page tells of each rectangle, `[n]`.
        lying: Whether the widths are the values of the rectangles. Otherwise the heights are.
    """

    sides: NDArray[np.float64]
    at: NDArray[np.float64]
    lying: bool


def draw_bars(
    axes: Axes,
    left: ArrayLike,
    bottom: ArrayLike,
    width: ArrayLike,
    height: ArrayLike,
    *,
    at: ArrayLike | None = None,
    lying: bool = False,
    **look: Any,
) -> None:
    """Draws many rectangles as one path, so that a hundred clients need only one SVG element.

    `left`, `bottom`, `width` and `height` are `[n]`, or one number for all rectangles. `left` and `bottom` are the
    corner of a rectangle. A rectangle of width or height 0 is not drawn. `at` and `lying` are those of `Bars`; without
    `at` the page tells the middles.
    """
    x, y, w, h = np.broadcast_arrays(*(np.asarray(a, float) for a in (left, bottom, width, height)))
    place = np.asarray((y + h / 2 if lying else x + w / 2) if at is None else at, float)
    x, y, w, h, place = (a[(w != 0) & (h != 0)] for a in (x, y, w, h, place))
    if len(x) == 0:
        return
    points = np.stack([[x, y], [x + w, y], [x + w, y + h], [x, y + h], [x, y]]).transpose(2, 0, 1)
    codes = np.tile([Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY], len(x))
    bars = Bars(Outline(points.reshape(-1, 2), codes), **{"linewidth": 0, **look})
    bars.sides, bars.at, bars.lying = np.stack([x, y, w, h]), place, lying
    axes.add_patch(bars)
    axes.autoscale_view()


def draw_key(axes: Axes, names: Sequence[str], colors: Sequence[str], **options: Any) -> None:
    """Draws a legend of colored squares above the axes.

    There is one color per name.
    """
    marks = [PathPatch(Outline.unit_rectangle(), facecolor=color, linewidth=0) for color in colors]
    place = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "ncols": len(names), "columnspacing": 1.1}
    axes.legend(marks, names, handleheight=0.8, handlelength=0.9, handletextpad=0.5, **{**place, **options})


def use_whole_numbers(*axes: Any) -> None:
    """Puts ticks only at whole numbers, on the axes that show rounds, clients or models."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))


def use_percent(*axes: Any) -> None:
    """Writes the ticks of axes in percent. The axes have shares from 0 to 1."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(write_percent))


def write_percent(value: float, _place: int | None = None) -> str:
    """Formats a share as the text of a tick.

    Example:
        >>> write_percent(0.125)
        '12.5 %'
    """
    return f"{100 * value:.4g} %"


@dataclass(frozen=True)
class PlaceNames:
    """The names of the positions 0, 1, ... of an axis. The page shows them when a reader points at a position.

    Attributes:
        names: One name per position.
        whole: A text before each name on the page. If it is set, the ticks show numbers. None means that the ticks show
            as many names as fit.
        ticks: The text of each tick by its position, if the ticks show neither names nor numbers.
    """

    names: tuple[str, ...]
    whole: str | None = None
    ticks: Mapping[float, str] | None = None

    def __call__(self, value: float, _place: int | None = None) -> str:
        """Returns the text of a tick. Between two positions it is empty."""
        if self.ticks is not None:
            return self.ticks.get(value, "")
        place = round(value)
        if place != value or not 0 <= place < len(self.names):
            return ""
        return self.names[place] if self.whole is None else str(place)


def name_places(
    axis: Any, names: Sequence[object], *, whole: str | None = None, ticks: Mapping[float, str] | None = None
) -> None:
    """Names every position of an axis of whole numbers from 0. `whole` and `ticks` are those of `PlaceNames`."""
    if ticks is None:
        use_whole_numbers(axis)
    else:
        axis.set_ticks(list(ticks))
    axis.set_major_formatter(FuncFormatter(PlaceNames(tuple(str(name) for name in names), whole, ticks)))


# ---------------------------------------------------------------------------------------------------------------------
# Collects the numbers that a figure shows from what Matplotlib is about to draw. From these numbers the page's script
# shows values under the pointer, hides lines, redraws axes and writes CSV files. Functions that draw figures need no
# code for this.

MOST_NUMBERS = 6000  # numbers of the lines or dots of a figure; if there are more, every n-th number is kept
MOST_CELLS = 20_000  # cells of a map; a larger map has no numbers on the page
LOG_RATIO = {"x": 8.0, "y": 1.5}  # largest over smallest positive value that makes a logarithmic axis useful

Panel = dict[str, Any]
Trace = dict[str, Any]


def read_panels(figure: Figure) -> list[Panel]:
    """Collects the numbers of each panel, and sets the ids by which the page's script finds the drawn elements.

    Returns:
        A dict for each panel. `title` is the title, and `x` and `y` describe the axes (label, percent, names of
        positions, log). `traces` holds the drawn numbers. `scales` has the axes that may become logarithmic: "", "x",
        "y" or "xy". `every` is n if only every n-th number is kept. In a panel with artists drawn as pixels, which the
        script can neither hide nor draw anew, `scales` is empty and no trace is in the script's legend.

    Example:
        >>> figure, axes = make_canvas("Losses")
        >>> line = axes.plot([1, 2, 4], [0.9, 0.5, 0.25], label="model 0")
        >>> (panel,) = read_panels(figure)
        >>> panel["traces"][0]["name"], panel["traces"][0]["y"], panel["scales"]
        ('model 0', [0.9, 0.5, 0.25], 'y')
    """
    found: list[Panel] = []
    panels = _list_panels(figure)
    for index, axes in enumerate(panels):
        traces, every = _thin(_read_traces(axes, f"p{index}"), MOST_NUMBERS // len(panels))
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            axis.set_gid(f"p{index}{name}")
            axis.label.set_gid(f"p{index}{name}-label")
        if (legend := axes.get_legend()) is not None:
            legend.set_gid(f"p{index}-legend")
        scales = _find_scales(axes, traces)
        if any(artist.get_rasterized() for artist in axes.get_children()):
            scales, traces = "", [{**trace, "legend": False} for trace in traces]
        panel: Panel = {"title": axes.get_title(loc="left"), "x": _read_axis(axes.xaxis), "y": _read_axis(axes.yaxis)}
        found.append({**panel, "traces": traces, "scales": scales, "every": every})
    _complete_labels(found)
    return found


def _complete_labels(panels: list[Panel]) -> None:
    """Adds the labels and titles that panels lack, because panels side by side or one above the other share them.

    A panel without a title is named by the label of its x axis if these labels differ, and otherwise of its y axis.
    """
    first, last = (panels[0]["y"]["label"], panels[-1]["x"]["label"]) if panels else ("", "")
    for panel in panels:
        panel["x"]["label"] = panel["x"]["label"] or last
        panel["y"]["label"] = panel["y"]["label"] or first or panel["title"]
    apart = len({panel["x"]["label"] for panel in panels}) > 1
    for panel in panels:
        panel["title"] = panel["title"] or panel["x" if apart else "y"]["label"]


def read_frames(figure: Figure) -> list[dict[str, Any]]:
    """Returns the positions of the panels in the SVG of a written figure, in units of the view box."""
    width, height = (72.0 * float(inches) for inches in figure.get_size_inches())
    frames = []
    for axes in _list_panels(figure):
        box = axes.get_position()
        corners = (box.x0 * width, (1 - box.y0) * height, box.x1 * width, (1 - box.y1) * height)
        ends = [*axes.get_xlim(), *axes.get_ylim()]
        frames.append({"box": [round(c, 2) for c in corners], "ends": _pack(ends, digits=8)})
    return frames


def _list_panels(figure: Figure) -> list[Axes]:
    """Lists the axes that show numbers. Leaves out color bars, hidden axes and maps of nodes."""
    return [a for a in figure.axes if a.get_visible() and a.axison and a.get_label() != "<colorbar>"]


def _read_traces(axes: Axes, prefix: str) -> list[Trace]:
    bars = {c.lines[0]: c for c in axes.containers if isinstance(c, ErrorbarContainer) and c.lines[0] is not None}
    key = _read_key(axes)
    traces: list[Trace] = []
    for artist in axes.get_children():
        one: Trace | None = None
        if isinstance(artist, Line2D) and artist.get_transform() == axes.transData and len(_plain(artist.get_xdata())):
            one = _read_line(artist, bars.get(artist))
        elif isinstance(artist, PolyCollection) and traces and artist.get_label() == BAND:
            artist.set_gid(f"{prefix}t{len(traces) - 1}-band")
            traces[-1] |= _read_band(artist, traces[-1])
        elif isinstance(artist, PathCollection):
            places = np.ma.filled(np.ma.asarray(artist.get_offsets(), dtype=np.float64), np.nan)
            colors = artist.get_facecolor() if len(artist.get_facecolor()) else artist.get_edgecolor()
            color = _show_color(colors[0]) if len(colors) == 1 else VARIABLES[MUTED]
            one = {**_name(artist.get_label()), "kind": "points", "x": places[:, 0], "y": places[:, 1], "color": color}
        elif isinstance(artist, Bars):
            one = _read_bars(artist, key)
        elif isinstance(artist, AxesImage):
            one = _read_cells(artist)
        if one is not None:
            artist.set_gid(f"{prefix}t{len(traces)}")
            traces.append({"id": f"{prefix}t{len(traces)}", **one})
    return traces


def _read_line(line: Line2D, errors: ErrorbarContainer | None) -> Trace:
    x, y = _plain(line.get_xdata()), _plain(line.get_ydata())
    kind = "line" if line.get_linestyle() not in ("None", "none", "", " ") else "points"
    found = {**_name(line.get_label() if errors is None else errors.get_label()), "kind": kind, "x": x, "y": y}
    if line.get_drawstyle() == "steps-post":
        found["step"] = True
    if errors is not None and errors.lines[2]:
        ends = np.array([segment[:, 1] for segment in errors.lines[2][0].get_segments()])
        if len(ends) == len(y):
            found |= {"low": ends.min(axis=1), "high": ends.max(axis=1), "whiskers": True}
    return {**found, "color": _show_color(line.get_color())}


def _read_band(band: PolyCollection, of: Trace) -> Trace:
    """Returns the two ends of a band at the points of its line, or nothing if the band does not belong to the line."""
    vertices = np.asarray(band.get_paths()[0].vertices) if len(band.get_paths()) == 1 else np.empty((0, 2))
    x = of["x"]
    if len(vertices) != 2 * len(x) + 3 or not np.array_equal(vertices[1 : len(x) + 1, 0], x):
        return {}
    first, second = vertices[1 : len(x) + 1, 1], vertices[len(x) + 2 : 2 * len(x) + 2, 1][::-1]
    return {"low": np.minimum(first, second), "high": np.maximum(first, second)}


def _read_bars(bars: Bars, key: dict[str, str]) -> Trace:
    """Returns left, bottom, width and height of rectangles, their places, and which side is their value."""
    color, name = to_hex(bars.get_facecolor()), str(bars.get_label() or "")
    return {
        **_name(name if name and not name.startswith("_") else key.get(color, "")),
        "kind": "bars",
        **dict(zip(("x", "y", "w", "h", "at"), (*bars.sides, bars.at), strict=True)),
        "lying": bars.lying,
        "color": _show_color(color),
    }


def _read_cells(image: AxesImage) -> Trace | None:
    values = np.ma.filled(np.ma.asarray(image.get_array(), dtype=np.float64), np.nan)
    if values.ndim != 2 or values.size > MOST_CELLS:  # an image of colors has no numbers
        return None
    left, right, bottom, top = image.get_extent()
    (tall, wide), upper = values.shape, bool(image.origin == "upper")
    x = left + (np.arange(wide) + 0.5) * (right - left) / wide
    y = (top if upper else bottom) + (np.arange(tall) + 0.5) * (bottom - top if upper else top - bottom) / tall
    cells = [_pack(row, digits=3) for row in values]
    found = {"name": "", "legend": False, "kind": "cells", "x": x, "y": y, "cells": cells, "color": ACCENT}
    return {**found, "percent": image.get_label() == SHARES}


def _name(label: object) -> dict[str, Any]:
    """Returns the name of a trace (empty for Matplotlib's made-up names), and whether the legend shows the name."""
    text = str(label or "")
    made_up = text.startswith(("_child", "_nolegend", "_container")) or text == BAND
    return {"name": "" if made_up else text.removeprefix("_"), "legend": bool(text) and not text.startswith("_")}


def _read_key(axes: Axes) -> dict[str, str]:
    """Reads the names in a legend of colored squares, by color."""
    legend = axes.get_legend()
    if legend is None:
        return {}
    marks = [mark for mark in legend.legend_handles if isinstance(mark, PathPatch | Rectangle)]
    names = [text.get_text() for text in legend.get_texts()]
    return {to_hex(mark.get_facecolor()): name for mark, name in zip(marks, names, strict=False)}


def _read_axis(axis: Any) -> dict[str, Any]:
    formatter, locator = axis.get_major_formatter(), axis.get_major_locator()
    found: dict[str, Any] = {"label": axis.get_label_text().partition("\n")[0], "log": axis.get_scale() == "log"}
    write = formatter.func if isinstance(formatter, FuncFormatter) else None
    if write is write_percent:
        found["percent"] = True
    elif isinstance(write, PlaceNames):
        found |= {"names": list(write.names), "whole": write.whole}
    elif isinstance(locator, FixedLocator):
        found["names"] = {f"{place:g}": text for i, place in enumerate(locator()) if (text := formatter(place, i))}
    return found


def _find_scales(axes: Axes, traces: list[Trace]) -> str:
    """Returns the axes that the page's script may make logarithmic: "", "x", "y" or "xy".

    Only lines and dots, with numbers at the ticks, may have logarithmic axes.
    """
    drawn = {id(artist) for artist in (*axes.lines, *axes.collections)}
    others = len(axes.texts) + len(axes.patches) + len(axes.images) + sum("whiskers" in t for t in traces)
    counted = sum(1 + ("low" in t) for t in traces)
    if others or not traces or counted != len(drawn) or any(t["kind"] not in ("line", "points") for t in traces):
        return ""
    found = ""
    for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        values = [v for t in traces for v in t[side] if v is not None]
        positive = [v for v in values if v > 0]
        named = "names" in _read_axis(axis) or axis.get_scale() != "linear"
        enough = len(positive) > 1 and max(positive) >= LOG_RATIO[side] * min(positive)
        if not named and enough and (side == "x" or len(positive) == len(values)):
            found += side
    return found


def _thin(traces: list[Trace], most: int) -> tuple[list[Trace], int]:
    """Shortens the numbers of traces. Returns the traces, and the n with which every n-th point is kept.

    Numbers that are not whole keep five digits (seven on the x axis). n is 1 if there are at most `most` numbers,
    without the places of bars. The last point is kept, too. Traces of cells keep all points.
    """
    sides = ("x", "y", "w", "h", "low", "high")
    for bars in (trace for trace in traces if trace["kind"] == "bars"):
        bars.update({side: bars[side][:1] for side in ("y", "w", "h") if len(bars[side]) and np.ptp(bars[side]) == 0})
    long = sum(len(trace[side]) for trace in traces for side in sides if side in trace and trace["kind"] != "cells")
    every = math.ceil(long / most) or 1
    for trace in traces:
        number = len(trace["x"])
        places = np.arange(0, number, 1 if trace["kind"] == "cells" else every)
        kept = np.unique(np.append(places, number - 1)) if number else places
        for side in (side for side in (*sides, "at") if side in trace):
            values = trace[side][kept] if len(trace[side]) == number and trace["kind"] != "cells" else trace[side]
            trace[side] = _pack(values, digits=7 if side == "x" else 5)
    return traces, every


def _plain(values: ArrayLike) -> NDArray[np.float64]:
    return np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)


def _pack(values: Iterable[float] | Sequence[float], digits: int = 5) -> list[float | int | None]:
    """Prepares numbers for JSON. Whole numbers keep all digits, and numbers that are not finite become null."""
    found: list[float | int | None] = []
    for value in values:
        if not math.isfinite(value):
            found.append(None)
            continue
        short = float(value if float(value).is_integer() and abs(value) < 2**53 else f"{value:.{digits}g}")
        found.append(int(short) if short.is_integer() and abs(short) < 2**53 else short)
    return found


def _show_color(color: Any) -> str:
    """Returns a color as CSS. A placeholder color becomes its CSS variable."""
    text = str(to_hex(color))
    return VARIABLES.get(text, text)


# ---------------------------------------------------------------------------------------------------------------------
# Turns Matplotlib figures into pictures of a page: inline SVG, and numbers for the page's script.


class Picture(NamedTuple):
    """A figure drawn for the page.

    Attributes:
        title: The text above the figure.
        note: The sentence below the figure, which may be empty.
        svg: The figure as an `<svg>` element.
        place: The CSS class, which is `wide` (across the page) or `half` (two side by side).
        key: The name of the picture in the page, and in the names of downloaded files.
        numbers: The panels of the figure and their positions in the SVG, as data for the page's script.
    """

    title: str
    note: str
    svg: Markup
    place: str
    key: str = ""
    numbers: dict[str, Any] | None = None


class Section(NamedTuple):
    """A section of the page.

    Attributes:
        title: The heading of the section.
        pictures: The pictures, in their order.
    """

    title: str
    pictures: list[Picture]


def draw_picture(figure: Figure, note: str, key: str) -> Picture:
    """Turns a figure into a picture for the page.

    `figure` must come from `make_canvas`. `note` is the sentence below the picture. The ids in the SVG begin with the
    unique `key` of the picture.
    """
    numbers: dict[str, Any] = {"panels": read_panels(figure)}
    place = "wide" if float(figure.get_figwidth()) > NARROW else "half"
    svg = to_svg(figure, key)
    numbers["frames"] = read_frames(figure)
    return Picture(str(figure.get_label()), note, Markup(svg), place, key, numbers)
