r"""What a notebook shows of a run, or of runs compared: tables of scores, and a curve as inline SVG.

Example:
    >>> score = {"accuracy": {"mean": 0.9, "sd": 0.01, "n": 3}}
    >>> html = show_run(ReadRun("one", {}, "", {}, {"metrics": score, "rounds": 5}, {}, None, None, {}), None)
    >>> "90.0 \u00b1 1.0 %" in html, "<svg" in html, "<script" in html
    (True, False, False)
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from html import escape

from fedray.core.text import TOTALS, format_number, format_total, is_share, name_score
from fedray.report import curves, style
from fedray.report.choices import tell_choices
from fedray.report.compare import find_differences, format_cell, list_compared_metrics
from fedray.report.page import list_run_facts
from fedray.report.pairs import RunPair
from fedray.report.read import ReadRun

# The colours of the figures follow those of JupyterLab where it sets them, dark or light.
_COLORS = (
    "--ink:var(--jp-content-font-color1,#1b2530);--muted:var(--jp-content-font-color2,#55616d);"
    "--grid:var(--jp-border-color2,#d7dde3);--card:var(--jp-layout-color1,#ffffff)"
)


def show_run(run: ReadRun, error: Exception | None) -> str:
    """A run as HTML: what it is, its scores and totals, and its headline curve.

    Args:
        run: what its directory says.
        error: what ended it; None where it is finished or goes on.
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
    names = [run.name for run in runs]
    keys = [[key, *values] for key, values in find_differences(list(runs))]
    rows = []
    for pair in pairs:
        found = pair.difference
        means = [_format(pair.metric, value) for value in (pair.run_mean, pair.baseline_mean)]
        if found is None:
            rows.append([name_score(pair.metric, unit=True), f"{pair.run} - {pair.baseline}", *means, "-", "-", "0"])
            continue
        low, high = (_format(pair.metric, value, signed=True) for value in (found.low, found.high))
        interval = f"none: {found.missing_interval}" if found.missing_interval else f"{low} to {high}"
        mean = _format(pair.metric, found.mean, signed=True) + (" *" if found.differs else "")
        pairs_of = f"{found.n} {found.over}"
        rows.append(
            [name_score(pair.metric, unit=True), f"{pair.run} - {pair.baseline}", *means, mean, interval, pairs_of]
        )
    shown = [*notes, "Differences over shared seeds; *: the 95 % interval leaves zero out."]
    head = ["score", "runs", "mean", "mean of the other", "difference", "95 % interval", "pairs"]
    text = "".join(f"<p>{escape(note)}</p>" for note in shown)
    return f"<div>{_table(['key', *names], keys) if keys else ''}{_table(head, rows)}{text}</div>"


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
                text = f"{_format(name, float(curve.mean[-1]))} after round {curve.round[-1]:.0f}"
                rows.append([name_score(name, unit=True), text, str(len(curve.values))])
    totals = run.summary.get("totals", {})
    rows += [[name_score(key), format_total(key, totals[key]), ""] for key in TOTALS if totals.get(key) is not None]
    return rows


def _draw_curve(run: ReadRun) -> str:
    """The headline curve as SVG; empty where there is none."""
    with style.use_figure_style(), style.ignore_odd_numbers():
        figure = curves.figure_rounds(run)
        key = zlib.crc32(f"{run.name} {run.scenario_text} {run.summary.get('model_hash')}".encode())
        return "" if figure is None else style.to_svg(figure, f"run{key}")


def _format(name: str, value: float, *, signed: bool = False) -> str:
    """A score, or a difference of scores with its sign."""
    if value != value:
        return "-"
    sign = "+" if signed and value > 0 else ""
    return sign + (f"{100 * value:.2f} %" if signed and is_share(name) else format_number(value, name))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th style='text-align:left'>{escape(cell)}</th>" for cell in head)
    lines = ["".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
