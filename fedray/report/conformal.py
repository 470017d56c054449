"""The conformal sets of the known clients: how often they hold the right answer, and how large they are.

Example:
    >>> pictures = {"conformal_clients": np.array([[0.95, 2.0], [0.8, 3.0]]), "conformal_alpha": np.array([0.1])}
    >>> figure_conformal(ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)).get_label()
    'Sets hold the answer for 80.0 % of the rows of client 1, the least; 90 % is wanted over all clients'
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedray.report import style
from fedray.report.clients import draw_sorted_bars
from fedray.report.read import ReadRun


def figure_conformal(run: ReadRun) -> Figure | None:
    """Coverage of each client, sorted, above the mean size of its sets."""
    table, alpha = run.pictures.get("conformal_clients"), run.pictures.get("conformal_alpha")
    if table is None or alpha is None:
        return None
    known = np.flatnonzero(np.isfinite(table).all(axis=1))
    if len(known) < 2:
        return None
    order = known[np.argsort(-table[known, 0], kind="stable")]
    coverage, size = np.asarray(table[order], dtype=np.float64).T
    wanted, is_class = 1.0 - float(alpha[0]), run.metric == "accuracy"
    what = "Sets hold the answer" if is_class else "Intervals hold the target"
    title = f"{what} for {100 * coverage[-1]:.1f} % of the rows of client {order[-1]}, the least; "
    title += f"{100 * wanted:.3g} % is wanted over all clients"
    figure, (top, low) = style.make_canvas(title, 2, 1, size=(style.WIDE, 4.2), sharex=True)
    draw_sorted_bars(top, coverage, style.ACCENT)
    top.axhline(wanted, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    top.set_ylabel("coverage for the client")
    top.set_ylim(0, 1.04)
    style.use_percent(top.yaxis)
    draw_sorted_bars(low, size, style.PALETTE[4])
    low.set_ylabel("labels in a set" if is_class else "width (target units)")
    low.set_ylim(bottom=0)
    low.set_xlim(-0.7, len(order) - 0.3)
    low.set_xlabel(f"{len(order)} clients, best covered first")
    style.name_places(low.xaxis, order.tolist(), whole="client ")
    for axes in (top, low):
        style.draw_grid(axes)
    return figure
