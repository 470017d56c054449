"""What a notebook shows of a run, or of runs compared: tables of scores, and a curve as inline SVG."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.colors import to_hex, to_rgb, to_rgba_array
from matplotlib.figure import Figure

from fedray.core.errors import BadInput, FedrayError
from fedray.core.text import (
    TOTALS,
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
# What a notebook shows: tables of scores, and a curve as inline SVG.

# The colours of the figures follow those of JupyterLab where it sets them, dark or light.
_COLORS = (
    "--ink:var(--jp-content-font-color1,#1b2530);--muted:var(--jp-content-font-color2,#55616d);"
    "--grid:var(--jp-border-color2,#d7dde3);--card:var(--jp-layout-color1,#ffffff)"
)


def show_run(run: ReadRun, error: Exception | None) -> str:
    r"""A run as HTML: what it is, its scores and totals, and its headline curve.

    Args:
        run: what its directory says.
        error: what ended it; None where it is finished or goes on.

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
    svg = _draw_curve(run)
    if svg:
        parts.append(f"<div style='{_COLORS}'>{svg}</div>")
        parts.append(f"<p>{escape(curves.BAND_NOTE)}</p>" if run.worlds > 1 else "")
    return "".join(parts) + "</div>"


def show_comparison(runs: Sequence[ReadRun], pairs: Sequence[RunPair], notes: Sequence[str]) -> str:
    """Runs compared as HTML: their keys that differ, what must be known, and the paired differences.

    Args:
        runs: the runs; every other one was compared with the first.
        pairs: the differences.
        notes: what must be known first.
    """
    keys = [[key, *values] for key, values in find_differences(list(runs))]
    shown = [*notes, "Differences over shared seeds; bold: the 95 % interval leaves zero out."]
    text = "".join(f"<p>{escape(note)}</p>" for note in shown)
    first = _table(["key", *(run.name for run in runs)], keys) if keys else ""
    return f"<div>{first}{_table(*make_difference_table(runs, pairs))}{text}</div>"


def _list_scores(run: ReadRun) -> list[list[str]]:
    """Rows of the table of a run: name, mean with deviation, number; an interrupted run shows its last round."""
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


def _draw_curve(run: ReadRun) -> str:
    """The headline curve as SVG; empty where there is none."""
    with pictures.use_figure_style(), pictures.ignore_odd_numbers():
        figure = curves.figure_rounds(run)
        key = zlib.crc32(f"{run.name} {run.scenario_text} {run.summary.get('model_hash')}".encode())
        return "" if figure is None else pictures.to_svg(figure, f"run{key}")


def _table(head: Sequence[str], rows: Sequence[Sequence[str | Best]]) -> str:
    cells = "".join(f"<th style='text-align:left'>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(map(_show_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _show_cell(cell: str | Best) -> str:
    shown = f"<b>{escape(cell.text)}</b>" if isinstance(cell, Best) else escape(cell)
    return f"<td style='text-align:left'>{shown}</td>"


# ---------------------------------------------------------------------------------------------------------------------
# The pictures of the report one by one, for notebooks: the same figures, in colours that need no page.

Draw = Callable[[ReadRun], Figure | None]
SHORT = {  # short names, and the pictures of the report that they stand for: the first that a run has
    "accuracy": ("rounds",),
    "rmse": ("rounds",),
    "time": ("seconds",),
    "clients": ("client_accuracy", "client_rmse"),
}
SHOWN = {pictures.INK: "#1b2530", pictures.MUTED: "#55616d", pictures.GRID: "#d7dde3", pictures.PAPER: "#ffffff"}


def list_plots(run: ReadRun) -> list[str]:
    """The names of what `draw_plot` can draw of a run: short ones, those of the report's pictures, and its scores."""
    scores = [name for name in run.rounds if name not in CONTEXT and np.isfinite(run.rounds[name]).any()]
    drawn = [name for name, draw in _report_pictures().items() if _can_draw(run, draw)]
    short = [name for name, pictures in SHORT.items() if not set(drawn).isdisjoint(pictures)]
    short = [name for name in short if name not in ("accuracy", "rmse") or name == run.metric]
    return list(dict.fromkeys([*short, *drawn, *scores]))


def _can_draw(run: ReadRun, draw: Draw) -> bool:
    """Whether a run has numbers for a picture of the report, which is drawn."""
    try:
        with pictures.use_figure_style(), pictures.ignore_odd_numbers():
            return draw(run) is not None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # damaged numbers, as in the report
        return False


def draw_plot(run: ReadRun, name: str | None = None) -> Figure:
    """One picture of a run.

    Args:
        run: the run.
        name: `accuracy`, `calibration`, `drift`, `clients`, `time` ..., or any score of `rounds.parquet`; None: the
            first score, `accuracy` or `rmse`.

    Raises:
        BadInput: there is no such picture.
        FedrayError: the run has no numbers for it.

    Example:
        >>> rounds = {"round": np.array([0.0, 5.0]), "nll": np.array([2.0, 1.0])}
        >>> rounds["replicate"] = rounds["fold"] = np.zeros(2)
        >>> run = ReadRun("one", {}, "", {}, {}, rounds, None, None, {})
        >>> draw_plot(run, "nll").axes[0].get_ylabel()
        'NLL (nats)'
    """
    name = run.metric if name is None else name
    known = _report_pictures()
    draws: list[Draw] = [known[one] for one in SHORT.get(name, (name,)) if one in known]
    if name in SHORT and name in ("accuracy", "rmse") and name != run.metric:
        draws = []
    if not draws and run.curve(name) is not None and name not in CONTEXT:
        draws = [lambda one: _figure_score(one, name)]
    if not draws:
        names = list_plots(run)
        remedy = suggest_nearest(name, names, "choose one of those")
        raise BadInput(f"plot {quote_value(name)}: there is no such picture: {remedy} ({', '.join(names)})")
    figure = draw_alone(lambda: next((one for draw in draws if (one := draw(run)) is not None), None))
    if figure is None:
        drawable = ", ".join(list_plots(run))
        raise FedrayError(f"plot {name}: this run has no numbers for it: choose one of {drawable}")
    return figure


def draw_alone(draw: Callable[[], Figure | None]) -> Figure | None:
    """A figure of the report as it stands without its page.

    Args:
        draw: makes it, or says with None that there is nothing to draw.
    """
    plain: Any = {key: _show_color(value) for key, value in pictures.FIGURE_SETTINGS.items()}
    with rc_context(plain), pictures.ignore_odd_numbers():
        figure = draw()
        if figure is not None:
            _use_own_colors(figure)
    show_figures()
    return figure


def _show_color(value: Any) -> Any:
    """The colour that a placeholder stands for; whatever else it is stays."""
    return SHOWN.get(value, value) if isinstance(value, str) else value


def _use_own_colors(figure: Figure) -> None:
    """Gives a figure of the report the colours of a light page, and its title; the report's page sets them itself.

    Args:
        figure: made by `style.make_canvas`.
    """
    figure.set_facecolor(SHOWN[pictures.PAPER])
    title = str(figure.get_label())
    if title:
        figure.suptitle(title, fontsize=10.5, x=0.01, ha="left", wrap=True)
    if any(artist.get_gid() == curves.WORLDS_BAND for artist in figure.findobj()):
        figure.supxlabel(curves.BAND_NOTE, fontsize=8, x=0.01, ha="left", color=pictures.MUTED, wrap=True)
    figure.draw_without_rendering()  # so that all ticks are there
    for artist in figure.findobj():
        for what in ("color", "facecolor", "edgecolor"):
            _replace_color(artist, what)


def _replace_color(artist: Artist, what: str) -> None:
    """Replaces a placeholder as the colour of a part of a figure; its transparency stays."""
    read, write = getattr(artist, f"get_{what}", None), getattr(artist, f"set_{what}", None)
    if read is None or write is None:
        return
    try:
        found = to_rgba_array(read())
    except (TypeError, ValueError):  # no colours: the states of a hatch, say
        return
    if len(found) == 1 and to_hex(found[0]) in SHOWN:
        write((*to_rgb(SHOWN[to_hex(found[0])]), float(found[0, 3])))


def show_figures() -> None:
    """Lets the notebook that runs this show figures that no `pyplot` made, unless it can already."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return
    known = shell.display_formatter.formatters.values()
    if not any(Figure in one.type_printers for one in known):
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})  # type: ignore[no-untyped-call]  # without types


def _report_pictures() -> dict[str, Draw]:
    return {draw.__name__.removeprefix("figure_"): draw for _, draws in SECTIONS for draw, *_ in draws}


def _figure_score(run: ReadRun, name: str) -> Figure | None:
    """Any score over the rounds."""
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
