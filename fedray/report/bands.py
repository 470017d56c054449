"""Rows of clients in bands: by their true clusters, where these are known, else by their tiers.

Example:
    >>> bands = Bands(np.array([1, 3, 0, 2]), ("left", "right"), (2, 2))
    >>> bands.order.tolist()
    [1, 3, 0, 2]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes

from fedray.core.types import IntArray
from fedray.report import style
from fedray.report.read import ReadRun

MOST_BANDS = 12  # more names do not fit beside a picture


class Bands(NamedTuple):
    """How the rows of clients are grouped.

    Attributes:
        order: Which client stands in each row, as places among those shown, `[n]`.
        names: Of the bands, from top to bottom.
        sizes: Rows of each.
    """

    order: IntArray
    names: tuple[str, ...]
    sizes: tuple[int, ...]


def group_rows(run: ReadRun, table: pa.Table, shown: IntArray) -> Bands:
    """The bands of the clients that are shown: clusters, or tiers, whose clients have consecutive ids.

    Args:
        run: What is drawn.
        table: Its jobs.
        shown: Ids of the clients, `[n]`, rising.
    """
    clusters = run.pictures.get("clusters")
    if clusters is not None and len(shown) and shown.max() < len(clusters):
        label = clusters[shown]
        known, sizes = np.unique(label, return_counts=True)
        if 1 < len(known) <= MOST_BANDS:
            names = tuple(f"cluster {k}" for k in known.tolist())
            return Bands(np.argsort(label, kind="stable"), names, tuple(sizes.tolist()))
    of = dict(zip(table["client"].to_pylist(), table["tier"].to_pylist(), strict=True))
    tiers = [tier for tier in run.tiers if tier in {of[i] for i in shown.tolist()}]
    sizes_of = [sum(of[i] == tier for i in shown.tolist()) for tier in tiers]
    return Bands(np.arange(len(shown)), tuple(tiers) if len(run.tiers) > 1 else (), tuple(sizes_of))


def mark_bands(axes: Axes, bands: Bands) -> None:
    """The bands' names along the right side, a line where one ends.

    Args:
        axes: A row for each client, from 0 at the top.
        bands: What is marked.
    """
    number, first = len(bands.order), 0
    look: dict[str, Any] = {"transform": axes.transAxes, "va": "center", "rotation": 0, "color": style.INK}
    for name, size in zip(bands.names, bands.sizes, strict=False):
        axes.text(1.008, 1 - (first + size / 2) / number, name, **look)
        if first > 0:
            axes.axhline(first - 0.5, color=style.INK, linewidth=1.2, linestyle=(0, (4, 3)))
        first += size
