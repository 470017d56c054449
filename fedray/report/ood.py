"""How uncertain the answers to out-of-distribution inputs are, beside those to the test rows.

Example:
    >>> pictures = {"ood_entropies": np.array([[0.0, 0.9, 0.2], [0.5, 0.1, 0.8]]), "ood_auroc": np.array([0.91])}
    >>> figure_ood(ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)).get_label()
    'By the entropy of the answers 91.0 % of the pairs of a test row and an unknown input are told apart'
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedray.report import style
from fedray.report.read import ReadRun


def figure_ood(run: ReadRun) -> Figure | None:
    """Histograms of the entropy of the answers: to the test rows, and to the out-of-distribution inputs."""
    table, area = run.pictures.get("ood_entropies"), run.pictures.get("ood_auroc")
    if table is None or area is None or len(table) < 2 or not np.isfinite(table).all():
        return None
    left, *shares = np.asarray(table, dtype=np.float64).T
    width = float(left[1] - left[0])
    title = (
        f"By the entropy of the answers {100 * float(area[0]):.1f} % of the pairs of a test row and an unknown input "
    )
    figure, axes = style.make_canvas(f"{title}are told apart", size=(style.NARROW, 3.4))
    colors = (style.ACCENT, style.ORANGE)
    for place, (share, color) in enumerate(zip(shares, colors, strict=True)):
        style.draw_bars(axes, left + (0.08 + 0.42 * place) * width, 0.0, 0.42 * width, share, facecolor=color)
    axes.set_xlim(0.0, left[-1] + width)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("entropy of the answer (nats)")
    axes.set_ylabel("share of the inputs")
    style.use_percent(axes.yaxis)
    style.draw_key(axes, ["test rows", "out-of-distribution inputs"], colors)
    style.draw_grid(axes)
    return figure
