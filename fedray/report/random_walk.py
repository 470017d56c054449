"""Pictures of a random walk: its graph, and how often each client held a model."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from fedray.core.types import FloatArray, IntArray
from fedray.report import pictures
from fedray.report.curves import read_job_column
from fedray.report.read import ReadRun

MOST_NODES = 300
MOST_NAMED_NODES = 40  # nodes up to which each shows its number


def count_visits(run: ReadRun) -> tuple[IntArray, IntArray] | None:
    """Returns the edges `[E, 2]` of the graph, and how often each client trained a model in the first world, `[N]`.

    None for a run without a graph or with a large one, and with `data.test_clients`, where clients have other numbers
    than nodes.
    """
    edges, table = run.pictures.get("graph_edges"), run.first_world()
    unseen = (run.scenario.get("data") or {}).get("test_clients")
    if edges is None or table is None or unseen is not None or (nodes := int(edges.max()) + 1) > MOST_NODES:
        return None
    return edges, np.bincount(read_job_column(table, "client"), minlength=nodes)


def figure_graph(run: ReadRun) -> Figure | None:
    """Draws the graph; a node is larger and darker the more often it trained a model."""
    found = count_visits(run)
    if found is None:
        return None
    edges, visits = found
    nodes = len(visits)
    most = int(visits.argmax())
    title = f"Client {most} trained most often: {visits[most]} of {visits.sum()} steps"
    title += f" ({100 * visits[most] / visits.sum():.1f} %; equal shares: {100 / nodes:.1f} %)"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.6))
    place = layout_graph(edges, nodes)
    axes.add_collection(LineCollection(list(place[edges]), colors=pictures.GRID, linewidths=1.0, zorder=1))
    share = visits / max(1, visits.max())
    area = (0.35 + 0.65 * share) * min(520.0, 9000.0 / nodes)
    axes.scatter(
        *place.T, s=area, c=share, cmap=pictures.make_colormap(), vmin=0, vmax=1, edgecolors=pictures.MUTED, zorder=2
    )
    if nodes <= MOST_NAMED_NODES:
        for i, (x, y) in enumerate(place):
            color = pictures.PAPER if share[i] > 0.55 else pictures.INK
            axes.text(x, y, str(i), ha="center", va="center", fontsize=8, color=color, zorder=3)
    axes.set_aspect("equal")
    axes.margins(0.08)
    axes.set_axis_off()
    return figure


def figure_visits(run: ReadRun) -> Figure | None:
    """Draws each client's share of the steps in which it trained, against the stationary distribution of the walk."""
    found = count_visits(run)
    if found is None:
        return None
    edges, visits = found
    nodes = len(visits)
    law = find_stationary_law(run, edges, nodes)
    share = visits / max(1, visits.sum())
    off = 0.5 * float(np.abs(share - law).sum())
    title = f"Visits are {100 * off:.0f} % of the steps away from the stationary law"
    figure, axes = pictures.make_canvas(title, size=(pictures.NARROW, 4.6))
    pictures.draw_bars(axes, np.arange(nodes) - 0.41, np.zeros(nodes), 0.82, share, facecolor=pictures.ACCENT)
    look: dict[str, Any] = {"drawstyle": "steps-mid", "color": pictures.INK, "linewidth": 1.4}
    axes.plot(np.arange(nodes), law, label="_stationary law", **look)
    axes.set(xlabel="client", ylabel="share of the steps", xlim=(-0.7, nodes - 0.3))
    axes.set_ylim(0, 1.1 * float(max(share.max(), law.max())))
    pictures.use_whole_numbers(axes.xaxis)
    pictures.use_percent(axes.yaxis)
    pictures.draw_key(axes, ["measured", "stationary law"], [pictures.ACCENT, pictures.INK])
    return figure


def layout_graph(edges: IntArray, nodes: int) -> FloatArray:
    """Computes positions of the nodes: on a circle if the graph is a ring or has many edges, else by springs.

    Args:
        edges: pairs of nodes, `[E, 2]`.
        nodes: the number N of nodes; each has an edge.

    Returns:
        The positions, `[N, 2]`, each coordinate between -1 and 1.
    """
    graph = nx.Graph(edges.tolist())
    degree = np.bincount(edges.ravel(), minlength=nodes)
    circular = bool((degree == 2).all()) or len(edges) > 3 * nodes
    placed = nx.circular_layout(sorted(graph)) if circular else nx.kamada_kawai_layout(graph)
    return np.array([placed[i] for i in range(nodes)])


def find_stationary_law(run: ReadRun, edges: IntArray, nodes: int) -> FloatArray:
    """Computes for each node the share of the steps that an endless walk spends there, `[N]`.

    The shares are equal for Metropolis steps, else proportional to the degree of the node.

    Args:
        run: a run whose scenario names the transition.
        edges: pairs of nodes, `[E, 2]`.
        nodes: the number N of nodes.

    Example:
        >>> run = ReadRun("star", {}, "", {}, {}, {}, None, None, {})
        >>> find_stationary_law(run, np.array([[0, 1], [0, 2]]), 3).tolist()
        [0.5, 0.25, 0.25]
    """
    graph = run.scenario.get("graph")
    if isinstance(graph, dict) and graph.get("transition") == "metropolis":
        return np.full(nodes, 1.0 / nodes)
    degree = np.bincount(edges.ravel(), minlength=nodes)
    law: FloatArray = degree / degree.sum()
    return law
