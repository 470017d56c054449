"""The numbers that a figure shows, read from what Matplotlib is about to draw.

The page's script shows them under the pointer, hides a line of the legend, draws axes anew and writes CSV files from
them. A figure function knows nothing of this: whatever it plots is found.

Example:
    >>> figure, axes = style.make_canvas("Losses")
    >>> line = axes.plot([1, 2, 4], [0.9, 0.5, 0.25], label="model 0")
    >>> (panel,) = read_panels(figure)
    >>> panel["traces"][0]["name"], panel["traces"][0]["y"], panel["scales"]
    ('model 0', [0.9, 0.5, 0.25], 'y')
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import ArrayLike, NDArray

from fedray.report import style

MOST_NUMBERS = 6000  # of the lines or dots of a figure; every n-th is kept where there are more
MOST_CELLS = 20_000  # of a map; a larger one has no numbers on the page
LOG_RATIO = {"x": 8.0, "y": 1.5}  # largest to smallest positive value from which a logarithmic axis shows anything new

Panel = dict[str, Any]
Trace = dict[str, Any]


def read_panels(figure: Figure) -> list[Panel]:
    """Reads the numbers of each panel, and gives what is drawn the ids by which the script finds it.

    Args:
        figure: before it is written as SVG.

    Returns:
        For each panel its `title`, the axes `x` and `y` (label, percent, names of places, log), its `traces`, `scales`
        (which axes may become logarithmic: "", "x", "y" or "xy"), and `every` (n where only each n-th number is kept).
    """
    found = []
    panels = _list_panels(figure)
    for index, axes in enumerate(panels):
        traces, every = _thin(_merge_bars(_read_traces(axes, f"p{index}")), MOST_NUMBERS // len(panels))
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            axis.set_gid(f"p{index}{name}")
            axis.label.set_gid(f"p{index}{name}-label")
        if (legend := axes.get_legend()) is not None:
            legend.set_gid(f"p{index}-legend")
        panel: Panel = {"title": axes.get_title(loc="left"), "x": _read_axis(axes.xaxis), "y": _read_axis(axes.yaxis)}
        found.append({**panel, "traces": traces, "scales": _find_scales(axes, traces), "every": every})
    return found


def read_frames(figure: Figure) -> dict[str, Any]:
    """Where the panels of a figure lie in its SVG, once it was written, in the units of its view box."""
    width, height = (72.0 * float(inches) for inches in figure.get_size_inches())
    frames = []
    for axes in _list_panels(figure):
        box = axes.get_position()
        corners = (box.x0 * width, (1 - box.y0) * height, box.x1 * width, (1 - box.y1) * height)
        ends = [*axes.get_xlim(), *axes.get_ylim()]
        frames.append({"box": [round(c, 2) for c in corners], "ends": _pack(ends, digits=8)})
    return {"size": [width, height], "frames": frames}


def _list_panels(figure: Figure) -> list[Axes]:
    """The axes with numbers: those of a colour bar, hidden ones and those of a map of nodes have none."""
    return [a for a in figure.axes if a.get_visible() and a.axison and a.get_label() != "<colorbar>"]


def _read_traces(axes: Axes, prefix: str) -> list[Trace]:
    bars = {c.lines[0]: c for c in axes.containers if isinstance(c, ErrorbarContainer) and c.lines[0] is not None}
    key = _read_key(axes)
    traces: list[Trace] = []
    for artist in axes.get_children():
        one: Trace | None = None
        if isinstance(artist, Line2D) and artist.get_transform() == axes.transData and len(_plain(artist.get_xdata())):
            one = _read_line(artist, bars.get(artist))
        elif isinstance(artist, PolyCollection) and traces and artist.get_label() == style.BAND:
            artist.set_gid(f"{prefix}t{len(traces) - 1}-band")
            traces[-1] |= _read_band(artist, traces[-1])
        elif isinstance(artist, PathCollection):
            one = _read_dots(artist)
        elif isinstance(artist, PathPatch | Rectangle) and artist is not axes.patch:
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
    """The ends of the band that follows a line, at the places of the line; nothing where they do not match."""
    vertices = np.asarray(band.get_paths()[0].vertices) if len(band.get_paths()) == 1 else np.empty((0, 2))
    x = of["x"]
    if len(vertices) != 2 * len(x) + 3 or not np.array_equal(vertices[1 : len(x) + 1, 0], x):
        return {}
    first, second = vertices[1 : len(x) + 1, 1], vertices[len(x) + 2 : 2 * len(x) + 2, 1][::-1]
    return {"low": np.minimum(first, second), "high": np.maximum(first, second)}


def _read_dots(dots: PathCollection) -> Trace:
    places = np.ma.filled(np.ma.asarray(dots.get_offsets(), dtype=np.float64), np.nan)
    colors = dots.get_facecolor() if len(dots.get_facecolor()) else dots.get_edgecolor()
    color = _show_color(colors[0]) if len(colors) == 1 else style.VARIABLES[style.MUTED]
    return {**_name(dots.get_label()), "kind": "points", "x": places[:, 0], "y": places[:, 1], "color": color}


def _read_bars(patch: PathPatch | Rectangle, key: dict[str, str]) -> Trace | None:
    """Rectangles as `style.draw_bars` draws them, or one of Matplotlib's: left, bottom, width and height."""
    if isinstance(patch, Rectangle):
        sides = np.array([[patch.get_x(), patch.get_y(), patch.get_width(), patch.get_height()]])
    else:
        corners = np.asarray(patch.get_path().vertices)
        if len(corners) % 5 or not len(corners):
            return None
        corners = corners.reshape(-1, 5, 2)
        sides = np.concatenate([corners[:, 0], corners[:, 2] - corners[:, 0]], axis=1)
    color = to_hex(patch.get_facecolor())
    name = str(patch.get_label() or "")
    return {
        **_name(name if name and not name.startswith("_") else key.get(color, "")),
        "kind": "bars",
        **dict(zip(("x", "y", "w", "h"), sides.T, strict=True)),
        "color": _show_color(color),
    }


def _merge_bars(traces: list[Trace]) -> list[Trace]:
    """Single rectangles of one colour, as `Axes.barh` makes them, as one trace."""
    merged: list[Trace] = []
    for trace in traces:
        same = [t for t in merged if t["kind"] == trace["kind"] == "bars" and t["color"] == trace["color"]]
        if same and same[0]["name"] == trace["name"]:
            for side in ("x", "y", "w", "h"):
                same[0][side] = np.concatenate([same[0][side], trace[side]])
            same[0].setdefault("ids", [same[0]["id"]]).append(trace["id"])
        else:
            merged.append(trace)
    return merged


def _read_cells(image: AxesImage) -> Trace | None:
    values = np.ma.filled(np.ma.asarray(image.get_array(), dtype=np.float64), np.nan)
    if values.ndim != 2 or values.size > MOST_CELLS:  # three colours a cell are no numbers
        return None
    left, right, bottom, top = image.get_extent()
    (tall, wide), upper = values.shape, bool(image.origin == "upper")
    x = left + (np.arange(wide) + 0.5) * (right - left) / wide
    y = (top if upper else bottom) + (np.arange(tall) + 0.5) * (bottom - top if upper else top - bottom) / tall
    cells = [_pack(row, digits=3) for row in values]
    return {"name": "", "legend": False, "kind": "cells", "x": x, "y": y, "cells": cells, "color": style.ACCENT}


def _name(label: object) -> dict[str, Any]:
    """A name that begins with `_` is not in the legend; those that Matplotlib made up are none."""
    text = str(label or "")
    made_up = text.startswith(("_child", "_nolegend", "_container")) or text == style.BAND
    return {"name": "" if made_up else text.removeprefix("_"), "legend": bool(text) and not text.startswith("_")}


def _read_key(axes: Axes) -> dict[str, str]:
    """The names in a key of coloured squares, by colour."""
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
    if write is style.write_percent:
        found["percent"] = True
    elif isinstance(write, style.PlaceNames):
        found |= {"names": list(write.names), "whole": write.whole}
    elif isinstance(locator, FixedLocator):
        found["names"] = {f"{place:g}": text for i, place in enumerate(locator()) if (text := formatter(place, i))}
    return found


def _find_scales(axes: Axes, traces: list[Trace]) -> str:
    """Which axes the script may draw anew: of lines and dots alone, without words among them."""
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
    """Numbers as short as they may be: five digits, what all bars share once, of long lines every n-th and the last."""
    sides = ("x", "y", "w", "h", "low", "high")
    for bars in (trace for trace in traces if trace["kind"] == "bars"):
        bars.update({side: bars[side][:1] for side in ("y", "w", "h") if len(bars[side]) and np.ptp(bars[side]) == 0})
    long = sum(len(trace[side]) for trace in traces for side in sides if side in trace and trace["kind"] != "cells")
    every = math.ceil(long / most) or 1
    for trace in traces:
        number = len(trace["x"])
        places = np.arange(0, number, 1 if trace["kind"] == "cells" else every)
        kept = np.unique(np.append(places, number - 1)) if number else places
        for side in (side for side in sides if side in trace):
            values = trace[side][kept] if len(trace[side]) == number and trace["kind"] != "cells" else trace[side]
            trace[side] = _pack(values, digits=7 if side == "x" else 5)
    return traces, every


def _plain(values: ArrayLike) -> NDArray[np.float64]:
    return np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)


def _pack(values: Iterable[float] | Sequence[float], digits: int = 5) -> list[float | int | None]:
    """Numbers as they stand in JSON: whole ones without a point, those that are not finite as null."""
    found: list[float | int | None] = []
    for value in values:
        if not math.isfinite(value):
            found.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        found.append(int(short) if short.is_integer() and abs(short) < 1e15 else short)
    return found


def _show_color(color: Any) -> str:
    """A colour as CSS; a placeholder becomes its variable."""
    text = str(to_hex(color))
    return style.VARIABLES.get(text, text)
