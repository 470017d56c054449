"""Shows a run, or a comparison of runs, in a notebook: tables of scores, and a curve as inline SVG."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from html import escape

import numpy as np
from matplotlib.figure import Figure

from fedray.core.errors import (
    TOTALS,
    BadInput,
    FedrayError,
    format_number,
    format_total,
    name_score,
    quote_value,
    suggest_nearest,
)
from fedray.report import curves, pictures
from fedray.report.compare import RunPair, find_differences, format_cell, list_compared_metrics, make_difference_table
from fedray.report.page import SECTIONS, list_run_facts
from fedray.report.read import CONTEXT, Best, ReadRun, tell_choices

# ---------------------------------------------------------------------------------------------------------------------
# The HTML for a notebook: tables of scores, and a curve as inline SVG.

# The colors of the figures follow the dark or light theme of JupyterLab, if it sets one.
_COLORS = (
    "--ink:var(--jp-content-font-color1,#1b2530);--muted:var(--jp-content-font-color2,#55616d);"
    "--grid:var(--jp-border-color2,#d7dde3);--card:var(--jp-layout-color1,#ffffff)"
)


def show_run(run: ReadRun, error: Exception | None) -> str:
    r"""Shows a run as HTML: a description, its scores and totals, and its headline curve.

    Args:
        run: the content of the run directory.
        error: the error that ended the run; None if the run is finished or still goes on.

    Example:
        >>> score = {"accuracy": {"mean": 0.9, "sd": 0.01, "n": 3}}
        >>> html = show_run(ReadRun("one", {}, "", {}, {"metrics": score, "rounds": 5}, {}, None, None, {}), None)
        >>> "90.0 \u00b1 1.0 %" in html, "<svg" in html, "<script" in html
        (True, False, False)
    """
    facts = ", ".join(f"{key} {value}" for key, value in list_run_facts(run))
    parts = [f"<div style='max-width:760px'><p><b>{escape(run.name)}</b>: {escape(facts)}</p>"]
    if error is not None:
        parts.append(f"<p><b>Not finished.</b> {escape(str(error))}</p>")
    parts.append(_table(["", "mean \u00b1 sd", "n"], _list_scores(run)))
    parts += [f"<p>{escape(line)}</p>" for line in tell_choices(run.summary)]
    with pictures.use_figure_style(), pictures.ignore_odd_numbers():
        figure = curves.figure_rounds(run)
        if figure is not None:
            key = zlib.crc32(f"{run.name} {run.scenario_text} {run.summary.get('model_hash')}".encode())
            parts.append(f"<div style='{_COLORS}'>{pictures.to_svg(figure, f'run{key}')}</div>")
    if figure is not None:
        parts.append(f"<p>{escape(curves.BAND_NOTE)}</p>" if run.worlds > 1 else "")
    return "".join(parts) + "</div>"


def show_comparison(runs: Sequence[ReadRun], pairs: Sequence[RunPair], notes: Sequence[str]) -> str:
    """Shows a comparison of runs as HTML: the keys that differ, the notes, and the paired differences.

    Args:
        runs: the runs; the first is the baseline of all others.
        pairs: the comparisons of each run with the first one.
        notes: the notes that a reader must know first.
    """
    keys = [[key, *values] for key, values in find_differences(list(runs))]
    shown = [*notes, "Differences over shared seeds; bold: the 95 % interval leaves zero out."]
    text = "".join(f"<p>{escape(note)}</p>" for note in shown)
    first = _table(["key", *(run.name for run in runs)], keys) if keys else ""
    return f"<div>{first}{_table(*make_difference_table(runs, pairs))}{text}</div>"


def _list_scores(run: ReadRun) -> list[list[str]]:
    """Lists the rows of the table of scores: name, mean with deviation, number; if interrupted, of the last round."""
    rows = []
    metrics, known = run.summary.get("metrics", {}), list_compared_metrics([run])
    for name in (name for name in known if name in metrics):
        rows.append([name_score(name, unit=True), format_cell(run, name), str(metrics[name].get("n", ""))])
    if not metrics:
        for name in known:
            curve = run.curve(name)
            if curve is not None:
                text = f"{format_number(float(curve.mean[-1]), name)} after round {curve.round[-1]:.0f}"
                rows.append([name_score(name, unit=True), text, str(len(curve.values))])
    totals = run.summary.get("totals", {})
    rows += [[name_score(key), format_total(key, totals[key]), ""] for key in TOTALS if totals.get(key) is not None]
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str | Best]]) -> str:
    left = " style='text-align:left'"
    cells = "".join(f"<th{left}>{escape(cell)}</th>" for cell in head)
    texts = [[f"<b>{escape(cell.text)}</b>" if isinstance(cell, Best) else escape(cell) for cell in r] for r in rows]
    body = "".join(f"<tr>{''.join(f'<td{left}>{text}</td>' for text in row)}</tr>" for row in texts)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


# ---------------------------------------------------------------------------------------------------------------------
# Single pictures of the report, for notebooks: the same figures, in colors that need no page.

Draw = Callable[[ReadRun], Figure | None]


def list_draws(run: ReadRun) -> dict[str, Draw]:
    """Lists what `draw_plot` can draw, by name: pictures of the report, also by short names, and scores of the run."""
    drawn: dict[str, Draw] = {draw.__name__.removeprefix("figure_"): draw for _, draws in SECTIONS for draw, _ in draws}
    short = {run.metric: "rounds", "time": "seconds"}
    scores = [name for name in run.rounds if name not in CONTEXT and np.isfinite(run.rounds[name]).any()]
    plain = {name: partial(figure_score, name=name) for name in scores}
    return {**plain, **{name: drawn[of] for name, of in short.items()}, **drawn}


def draw_plot(run: ReadRun, name: str | None = None) -> Figure:
    """Draws one picture of a run.

    Args:
        run: the run.
        name: `accuracy`, `calibration`, `drift`, `clients`, `time` ..., or any score of `rounds.parquet`; None means
            the headline score, `accuracy` or `rmse`.

    Raises:
        BadInput: there is no picture of this name.
        FedrayError: the run has no numbers for the picture.

    Example:
        >>> rounds = {"round": np.array([0.0, 5.0]), "nll": np.array([2.0, 1.0])}
        >>> rounds["replicate"] = rounds["fold"] = np.zeros(2)
        >>> run = ReadRun("one", {}, "", {}, {}, rounds, None, None, {})
        >>> draw_plot(run, "nll").axes[0].get_ylabel()
        'NLL (nats)'
    """
    name, known = name or run.metric, list_draws(run)
    if name not in known:
        remedy = suggest_nearest(name, known, "choose one of those")
        raise BadInput(f"plot {quote_value(name)}: there is no such picture: {remedy} ({', '.join(sorted(known))})")
    figure = draw_alone(partial(known[name], run))
    if figure is None:
        raise FedrayError(f"plot {name}: this run has no numbers for it: choose another of {', '.join(sorted(known))}")
    return figure


def draw_alone(draw: Callable[[], Figure | None]) -> Figure | None:
    """Draws a figure of the report for use without the page: with its title, in the colors of a light page.

    Args:
        draw: a function that makes the figure, or returns None if there is nothing to draw.
    """
    with pictures.use_figure_style(), pictures.ignore_odd_numbers():
        figure = draw()
        if figure is not None:
            figure.set_facecolor(pictures.PAPER)
            figure.suptitle(str(figure.get_label()), fontsize=10.5, x=0.01, ha="left", wrap=True)
            if any(artist.get_gid() == curves.WORLDS_BAND for artist in figure.findobj()):
                figure.supxlabel(curves.BAND_NOTE, fontsize=8, x=0.01, ha="left", color=pictures.MUTED, wrap=True)
            figure.draw_without_rendering()  # makes all ticks, in this style
    # by default, a notebook shows only figures that `pyplot` made
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell and not any(Figure in one.type_printers for one in shell.display_formatter.formatters.values()):
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})  # type: ignore[no-untyped-call]  # without types
    return figure


def figure_score(run: ReadRun, name: str) -> Figure | None:
    """Draws any score over the rounds."""
    curve = run.curve(name)
    if curve is None:
        return None
    end = format_number(float(curve.mean[-1]), name)
    figure, axes = pictures.make_canvas(f"{name_score(name)} is {end} after {curve.round[-1]:.0f} rounds")
    curves.draw_mean_line(axes, curve.round, curve, color=pictures.ACCENT, width=2.0)
    axes.set_xlabel("rounds completed")
    pictures.use_whole_numbers(axes.xaxis)
    curves.label_headline(axes, name)
    return figure
