r"""A finished table as text: Markdown to read, LaTeX for a paper.

Example:
    >>> row = {"cell": "a_1", "metric": "accuracy", "mean": 0.9, "sd": 0.01, "n": 3, "published": 0.91, "rounds": 5,
    ...        "up_bytes": 6e6, "down_bytes": 3e7}
    >>> print(format_markdown([row], ["a_1"]), end="")
    | cell | accuracy | accuracy published | rounds | up MB, each | down MB, each |
    |---|---|---|---|---|---|
    | a_1 | 0.9000 +- 0.0100 (n = 3) | 0.91 | 5 | 2.0 | 10.0 |
    <BLANKLINE>
    Mean +- standard deviation over the n replicates and folds of a cell.
    >>> print(format_latex([row], ["a_1"]), end="")
    % \usepackage{booktabs}; Mean +- standard deviation over the n replicates and folds of a cell
    \begin{tabular}{lrrrrrr}
    \toprule
    cell & accuracy & published & $n$ & rounds & uplink (MB) & downlink (MB) \\
    \midrule
    a\_1 & $0.9000 \pm 0.0100$ & 0.91 & 3 & 5 & 2.0 & 10.0 \\
    \bottomrule
    \end{tabular}
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fedray.core.errors import BadInput
from fedray.core.scores import SCORES, find_score
from fedray.core.text import (
    TARGET_NAMES,
    format_mean,
    format_number,
    format_score,
    is_share,
    name_score,
    suggest_nearest,
)
from fedray.experiments.table_notes import find_first_score, list_table_notes, mark_row
from fedray.report.sheets import ScoreCell
from fedray.scenario.loader import NamedCell

Rows = list[dict[str, Any]]
FIRST_METRICS = (
    "accuracy", "accuracy_last3", "rounds_to_target", *TARGET_NAMES, "ood_auroc", "ood_auroc_knowledge", "ood_fpr95",
    "conformal_coverage", "conformal_coverage_client_worst", "conformal_size", "conformal_width", "accuracy_min",
    "accuracy_max", "personal_accuracy", "rmse", "personal_rmse", "nll", "nll_none", "nll_residual", "sharpness",
    "entropy",
)  # fmt: skip
BYTES = "bytes_to_target"
MOST_METRICS = 6  # that are shown, unless more are published; seconds and bytes to a target come on top
PUBLISHED_NOTE = "Published values are those of the papers, as the scenario names them; sd and n are those found here."
SPREAD_NOTE = "Mean +- standard deviation over the n replicates and folds of a cell"
LATEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


class TableView(NamedTuple):
    """What of a table is shown.

    Attributes:
        metrics: the columns in their order.
        published: the metrics that have published values.
        rows: by cell and metric.
        errors: the reason of each cell that failed, by its name.
    """

    metrics: list[str]
    published: list[str]
    rows: dict[tuple[str, str], dict[str, Any]]
    errors: dict[str, str]

    def of_metric(self, name: str) -> Rows:
        """The rows of a metric."""
        return [row for (_, metric), row in self.rows.items() if metric == name]

    def of_cell(self, name: str) -> Rows:
        """The rows of a cell."""
        return [row for (cell, _), row in self.rows.items() if cell == name]


def choose_metrics(rows: Rows, wanted: Sequence[str]) -> TableView:
    """Published metrics, and further ones in the order of their importance; or those that are asked for.

    Args:
        rows: one for each metric of each cell, as `table.parquet` has them, and one with the `error` of each cell that
            failed.
        wanted: names of metrics, or patterns such as `conformal_*`, in the order of the columns; none: chosen here.

    Raises:
        BadInput: a word of `wanted` fits no metric of these cells.
    """
    errors = {r["cell"]: r["error"] for r in rows if r.get("error") is not None}
    found = {(r["cell"], r["metric"]): r for r in rows if r["cell"] not in errors}
    published = list(dict.fromkeys(metric for (_, metric), r in found.items() if r["published"] is not None))
    known = list(dict.fromkeys(metric for _, metric in found))
    if wanted and known:
        return TableView(_match_metrics(known, wanted), published, found, errors)
    first = find_first_score(found)
    rest = [m for m in dict.fromkeys([*first, *FIRST_METRICS]) if m in known and m not in published]
    most = MOST_METRICS + len(TARGET_NAMES.keys() & set(rest))
    return TableView(published + rest[: max(0, most - len(published))], published, found, errors)


def refuse_unknown_metrics(wanted: Sequence[str], cells: Sequence[NamedCell]) -> None:
    """Refuses, before anything trains, a word that is no pattern and no score of fedray or of the cells.

    Args:
        wanted: names of metrics, or patterns.
        cells: of the table; where one has metrics of the user's own, these have any names.

    Raises:
        BadInput: names the word.
    """
    if any(cell.scenario.evaluate.metrics for cell in cells):
        return
    published = [name for cell in cells for name in cell.published]
    for word in wanted:
        if not (set("*?[") & set(word) or word in (*FIRST_METRICS, *published) or find_score(word)):
            known = (*FIRST_METRICS, *published, *SCORES)
            remedy = suggest_nearest(word, known, "give names such as accuracy, nll or conformal_size, or patterns")
            raise BadInput(f"--metrics {word}: there is no such score; {remedy}")


def _match_metrics(known: list[str], wanted: Sequence[str]) -> list[str]:
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in known):
            remedy = suggest_nearest(pattern, known, f"they have {', '.join(known)}")
            raise BadInput(f"--metrics {pattern}: the cells have no such score; {remedy}")
    return list(dict.fromkeys(name for pattern in wanted for name in known if fnmatchcase(name, pattern)))


def format_markdown(rows: Rows, names: list[str], wanted: Sequence[str] = ()) -> str:
    """The table as Markdown: one line for each cell, and a metric's published values beside those found.

    Args:
        rows: as in `choose_metrics`.
        names: of the cells, in their order.
        wanted: as in `choose_metrics`.

    Raises:
        BadInput: as in `choose_metrics`.
    """
    view = choose_metrics(rows, wanted)
    head = [c for m in view.metrics for c in ([m, f"{m} published"] if m in view.published else [m])]
    lines = [
        "| cell | " + " | ".join(head) + " | rounds | up MB, each | down MB, each |",
        "|---" * (len(head) + 4) + "|",
    ]
    largest = {name: max((r["mean"] or 0.0 for r in view.of_metric(name)), default=0.0) for name in TARGET_NAMES}
    for name in names:
        if name in view.errors:
            reason = view.errors[name].replace("|", "/")
            lines.append(f"| {_escape_bar(name)} | failed: {reason} |" + " |" * (len(head) + 2))
            continue
        texts, worlds = [_escape_bar(name)], max(r["n"] for r in view.of_cell(name))
        for metric in view.metrics:
            row = view.rows.get((name, metric))
            texts.append("" if row is None else mark_row(format_score(row, worlds, metric, largest.get(metric)), row))
            if metric in view.published:
                texts.append(_show_published(row))
        lines.append("| " + " | ".join([*texts, *_list_costs(view.of_cell(name)[0], worlds)]) + " |")
    spread = any(row["sd"] is not None for row in view.rows.values())
    notes = [*([f"{SPREAD_NOTE}."] if spread else []), *list_table_notes(view.rows)]
    return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in notes)


def format_latex(rows: Rows, names: list[str], wanted: Sequence[str] = ()) -> str:
    """The table as a LaTeX `tabular` in the style of booktabs, with the numbers of the Markdown.

    Args:
        rows: as in `choose_metrics`.
        names: of the cells, in their order.
        wanted: as in `choose_metrics`.

    Raises:
        BadInput: as in `choose_metrics`.
    """
    view = choose_metrics(rows, wanted)
    head = ["cell"]
    for metric in view.metrics:
        word = "uplink to target (MB)" if metric == BYTES else name_score(metric)
        head += [escape_latex(word), *(["published"] if metric in view.published else [])]
    head += ["$n$", "rounds", "uplink (MB)", "downlink (MB)"]
    lines = [r"% \usepackage{booktabs}; " + SPREAD_NOTE, *(f"% {note}" for note in list_table_notes(view.rows))]
    lines += [f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", f"{' & '.join(head)} \\\\", r"\midrule"]
    for name in names:
        cells = [escape_latex(name)]
        if name in view.errors:
            cells.append(f"\\multicolumn{{{len(head) - 1}}}{{l}}{{failed: {escape_latex(view.errors[name])}}}")
        else:
            worlds = max(r["n"] for r in view.of_cell(name))
            for metric in view.metrics:
                row = view.rows.get((name, metric))
                cells.append(mark_row(_show_latex(row, worlds), row, r"$^\dagger$"))
                cells += [_power_of_ten(_show_published(row))] if metric in view.published else []
            cells += [str(worlds), *_list_costs(view.of_cell(name)[0], worlds)]
        lines.append(f"{' & '.join(cells)} \\\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def list_published(rows: Rows) -> tuple[list[str], list[list[ScoreCell]]]:
    """Header and rows: every published value beside the mean that was found.

    Args:
        rows: as in `choose_metrics`.

    Example:
        >>> row = {"cell": "a", "metric": "accuracy", "mean": 0.9, "sd": 0.01, "n": 3, "published": 0.91}
        >>> [cell.text for cell in list_published([row])[1][0]]
        ['a', 'accuracy', '90.0 %', '1.0 %', '3', '91.0 %', '-1.0 points']
    """
    head = ["cell", "score", "found", "sd", "n", "published", "found less published"]
    found = []
    for row in rows:
        if row.get("published") is None:
            continue
        metric, mean = row["metric"], row["mean"]
        share = is_share(metric)
        less = "-" if mean is None else mean - row["published"]
        shown = "-" if mean is None else mark_row(format_number(mean, metric), row)
        cells = [row["cell"], name_score(metric), shown]
        cells.append("-" if row["sd"] is None else format_number(row["sd"], metric))
        cells += [str(row["n"]), format_number(row["published"], metric)]
        cells.append(less if isinstance(less, str) else f"{100 * less:+.1f} points" if share else f"{less:+.3g}")
        found.append([ScoreCell(text) for text in cells])
    return head, found


def escape_latex(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    Example:
        >>> print(escape_latex("50 % of a_b"))
        50 \% of a\_b
    """
    return "".join(LATEX.get(mark, mark) for mark in text)


def _show_latex(row: dict[str, Any] | None, worlds: int) -> str:
    if row is None or row["mean"] is None:
        return ""
    size = 1e6 if row["metric"] == BYTES else 1
    scaled = [None if value is None else value / size for value in (row["mean"], row["sd"])]
    mean, sd = (_power_of_ten(text) for text in format_mean(scaled[0] or 0.0, scaled[1], row["metric"]))
    spread = f" \\pm {sd}" if sd else ""
    count = f"\\ (n = {row['n']})" if row["n"] < worlds else ""  # only some replicates have it
    return f"${mean}{spread}{count}$"


def _power_of_ten(text: str) -> str:
    r"""A number as LaTeX prints it, within or without `$`.

    Example:
        >>> print(_power_of_ten("4.5e-05"), _power_of_ten("0.91"))
        \ensuremath{4.5 \cdot 10^{-5}} 0.91
    """
    digits, mark, power = text.partition("e")
    return rf"\ensuremath{{{digits} \cdot 10^{{{int(power)}}}}}" if mark else text


def _escape_bar(name: str) -> str:
    r"""A name as a cell of a Markdown table.

    Example:
        >>> print(_escape_bar("a|b"))
        a\|b
    """
    return name.replace("|", r"\|")


def _show_published(row: dict[str, Any] | None) -> str:
    return "" if row is None or row["published"] is None else f"{row['published']:g}"


def _list_costs(row: dict[str, Any], worlds: int) -> list[str]:
    """Rounds, and the uplink and the downlink of one replicate in MB."""
    each = [row[key] / max(worlds, 1) / 1e6 for key in ("up_bytes", "down_bytes")]
    return [str(row["rounds"]), *(f"{size:.1f}" if size >= 1 else f"{size:.2g}" for size in each)]
