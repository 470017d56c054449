"""How unlike the others a client's data are: its drift score, the z-score of the ensemble's disagreement on them.

Example:
    >>> name_anomalies(np.array([0.1, 3.5, -0.2, 5.0, np.nan]))
    'clients 3, 1'
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedray.core.types import FloatArray
from fedray.metrics.drift import ANOMALY_Z
from fedray.report import style
from fedray.report.clients import draw_sorted_bars, sort_clients
from fedray.report.read import ReadRun

MOST_NAMED_CLIENTS = 8


def figure_drift(run: ReadRun) -> Figure | None:
    """The drift score of each client, sorted; clients beyond the threshold are named."""
    scores = run.pictures.get("client_scores")
    found = sort_clients(scores)
    if scores is None or found is None:
        return None
    z, who = found
    anomaly = np.abs(z) > ANOMALY_Z
    number, beyond = int(anomaly.sum()), f"beyond {ANOMALY_Z:.0f} standard deviations"
    title = f"{number or 'None'} of {len(z)} clients {'has' if number <= 1 else 'have'} a drift score {beyond}"
    figure, axes = style.make_canvas(title, size=(style.NARROW, 3.4))
    draw_sorted_bars(axes, np.where(anomaly, z, 0.0), style.ORANGE)
    draw_sorted_bars(axes, np.where(anomaly, 0.0, z), style.PALETTE[8])
    for threshold in (ANOMALY_Z, -ANOMALY_Z):
        axes.axhline(threshold, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.axhline(0, color=style.GRID, linewidth=1)
    if number:
        axes.annotate(name_anomalies(scores), (0.08, 0.93), xycoords="axes fraction", color=style.ORANGE, fontsize=9)
    axes.set_xlim(-0.7, len(z) - 0.3)
    axes.set_ylim(min(float(z[-1]), -ANOMALY_Z) * 1.12, max(float(z[0]), ANOMALY_Z) * 1.25)
    style.name_places(axes.xaxis, who, whole="client ")
    axes.set_xlabel(f"{len(z)} clients, most unlike the others first")
    axes.set_ylabel("drift score (standard deviations)")
    style.draw_grid(axes)
    return figure


def name_anomalies(scores: FloatArray) -> str:
    """Names the clients whose score `[N]` is beyond the threshold, the farthest first; there is at least one."""
    distance = np.abs(np.nan_to_num(scores))
    number = int((distance > ANOMALY_Z).sum())
    names = ", ".join(str(client) for client in np.argsort(-distance, kind="stable")[: min(number, MOST_NAMED_CLIENTS)])
    return f"client{'s' if number > 1 else ''} {names}" + (", ..." if number > MOST_NAMED_CLIENTS else "")
