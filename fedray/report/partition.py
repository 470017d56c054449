"""The picture of a partition: who has how many rows of each class, and how many rows clients have."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedray.core.types import IntArray
from fedray.report import pictures

MOST_CLIENTS, MOST_CLASSES = 100, 40  # rows and columns that a picture shows one by one
LIGHT = {pictures.INK: "#1a2026", pictures.MUTED: "#4a545e", pictures.GRID: "#c9d0d6", pictures.PAPER: "#ffffff"}


def draw_partition(title: str, counts: IntArray, sizes: IntArray, names: Sequence[str]) -> Figure:
    """Rows of each class at each client, and the sizes of the clients.

    Args:
        title: Above the picture.
        counts: Rows of each class at the first clients, `[n, C]`; C is 0 for a regression.
        sizes: Rows of each client, `[N]`.
        names: Of the classes.
    """
    counts = counts[:MOST_CLIENTS]
    figure = Figure(figsize=(pictures.WIDE, 3.6), layout="constrained")
    figure.suptitle(title)
    if counts.shape[1]:
        table, bars = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_counts(figure, table, counts, names)
    else:
        bars = figure.subplots()
    _draw_sizes(bars, sizes)
    return figure


def _draw_counts(figure: Figure, axes: matplotlib.axes.Axes, counts: IntArray, names: Sequence[str]) -> None:
    """A cell for each client and class, darker for more rows; no rows are blank."""
    shown = np.where(counts > 0, counts, np.nan).T[:MOST_CLASSES]
    image = axes.imshow(shown, aspect="auto", origin="lower", cmap="viridis_r", vmin=0)
    axes.set_xlabel("client" if len(counts) < MOST_CLIENTS else f"client (the first {MOST_CLIENTS})")
    axes.set_ylabel("class")
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(10, integer=True))
    if len(shown) <= 12:
        axes.set_yticks(range(len(shown)), [str(name)[:12] for name in names[: len(shown)]])
    figure.colorbar(image, ax=axes, label="rows", pad=0.02)


def _draw_sizes(axes: matplotlib.axes.Axes, sizes: IntArray) -> None:
    """The sizes of the clients, the largest first."""
    order = np.sort(sizes)[::-1]
    if len(order) <= 60:
        axes.bar(np.arange(len(order)), order, color=pictures.ACCENT)
    else:  # an outline: a million bars are as many shapes
        place = np.unique(np.linspace(0, len(order) - 1, 2000).astype(np.int64))
        axes.fill_between(place, order[place], color=pictures.ACCENT, step="mid")
        axes.set_ylim(bottom=0)
    axes.set_xlabel("clients, the largest first")
    axes.set_ylabel("rows")
    axes.set_title(f"{order.min():,} to {order.max():,} rows, {int(np.median(order)):,} in the middle", fontsize=9.5)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(8, integer=True))


def draw_png(title: str, counts: IntArray, sizes: IntArray, names: Sequence[str]) -> bytes:
    """The picture of `draw_partition` as a PNG on white.

    Args:
        title: Above the picture.
        counts: Rows of each class at the first clients, `[n, C]`.
        sizes: Rows of each client, `[N]`.
        names: Of the classes.
    """
    light = {key: LIGHT.get(value, value) for key, value in pictures.FIGURE_SETTINGS.items() if isinstance(value, str)}
    sink = io.BytesIO()
    with pictures.use_figure_style(), matplotlib.rc_context({**light, "figure.facecolor": "#ffffff"}):
        draw_partition(title, counts, sizes, names).savefig(sink, format="png", dpi=80, metadata={"Software": None})
    return sink.getvalue()
