"""The loss on the plane through three members: how far apart they lie, and what is between them.

Example:
    >>> pictures = {"loss_plane": np.array([[1.0, 2.0], [3.0, 4.0]])}
    >>> list_loss_plane(ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)).rows[1]
    [1.0, 0.0, 2.0]
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedray.core.types import FloatArray
from fedray.report import style
from fedray.report.pictures import NumberTable
from fedray.report.read import ReadRun


def figure_loss_plane(run: ReadRun) -> Figure | None:
    """The log loss on the plane through three members, which are marked."""
    plane = run.pictures.get("loss_plane")
    if plane is None or plane.ndim != 2 or min(plane.shape) < 2:
        return None
    points = run.pictures.get("loss_plane_points", np.empty((0, 2)))
    x, y = _read_places(run, plane)
    figure, axes = style.make_canvas(_plane_title(len(points)), size=(style.NARROW, 4.2))
    shown = axes.contourf(x, y, plane, levels=14, cmap="cividis")
    _mark_members(axes, points)
    axes.set_xlabel("first direction of the plane (distance between weights)")
    axes.set_ylabel("second direction")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    bar = figure.colorbar(shown, label="log loss", ticks=MaxNLocator(5))
    bar.outline.set_visible(False)
    return figure


def list_loss_plane(run: ReadRun) -> NumberTable | None:
    """The numbers of the picture: the loss at each place of the plane."""
    plane = run.pictures.get("loss_plane")
    if plane is None or plane.ndim != 2 or min(plane.shape) < 2:
        return None
    x, y = _read_places(run, plane)
    rows = [
        [float(f"{v:.5g}") for v in (x[j], y[i], loss)] for (i, j), loss in np.ndenumerate(plane) if np.isfinite(loss)
    ]
    return NumberTable(["first direction", "second direction", "log loss"], rows)


def _read_places(run: ReadRun, plane: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where the columns and rows of the plane lie."""
    high, wide = plane.shape
    extent = run.pictures.get("loss_plane_extent", np.array([0, wide - 1, 0, high - 1]))
    left, right, bottom, top = (float(end) for end in extent)
    return np.linspace(left, right, wide), np.linspace(bottom, top, high)


def _mark_members(axes: Axes, points: FloatArray) -> None:
    """Each member and its name, on the side where the picture has room for it."""
    middle = sum(axes.get_xlim()) / 2
    for k, (x, y) in enumerate(points):
        axes.plot(x, y, "o", color="#ffffff", markersize=8, markeredgecolor="#000000")
        way, side = (7, "left") if x <= middle else (-7, "right")
        axes.annotate(
            f"model {k}", (x, y), (way, 5), textcoords="offset points", color="#ffffff", fontweight="bold", ha=side
        )


def _plane_title(points: int) -> str:
    return "The loss on the plane through models 0, 1 and 2" if points == 3 else "The loss on a plane of weights"
