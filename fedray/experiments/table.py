"""Runs every cell of a scenario's table and resumes unfinished cells, for `fedray table`.

A *cell* is the scenario with some changed keys. It has a name and a run directory of its own. *Published* values are
those that a paper reports for a cell.
"""

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fedray.assembly.registry import UserObjects
from fedray.core import errors
from fedray.core.errors import TARGET_NAMES, BadInput, FedrayError, format_number, name_score, quote_value
from fedray.core.scores import SCORES, find_score
from fedray.experiments.live import SILENCE, STILL
from fedray.experiments.run import reopen_study
from fedray.files import plain
from fedray.files.run_files import SUMMARY_FILE, read_summary, table_schema
from fedray.metrics.scores import is_fedrays
from fedray.process import NOTE, current_ending, follow_child, start_child, stop_children
from fedray.report.read import MARK, Table, is_chosen_on_test, list_score_notes
from fedray.runtime.environment import PARTS_VARIABLE, refuse_unused_address, refuse_unused_wait
from fedray.scenario.identity import UNSET, is_free
from fedray.scenario.loader import NamedCell, dump_scenario, read_cells, read_scenario, to_plain
from fedray.scenario.nested import flatten
from fedray.scenario.schema import Scenario
from fedray.scenario.shipped import answers_clients_apart
from fedray.storage.checkpoint import write_parquet
from fedray.storage.directory import make_move_check

# ---------------------------------------------------------------------------------------------------------------------
# Lines about cells that train.

SECONDS_BETWEEN_LINES = SILENCE - 1  # seconds between two lines of a cell; shorter than the time until a STILL line


def hear_line(
    heard: dict[str, tuple[str, float]], cell: str, line: str, say: Callable[[str], object], now: float
) -> None:
    """Takes a line of output from the process of a cell. Prints the line if no line of this cell was printed lately.

    A line that begins with "fedray: note:" becomes a warning. A line that only says "the cell still works" is dropped,
    because the table prints such lines itself.

    Args:
        heard: For each cell a pair, which this function updates: the cell's newest line, and the time at which a line
            of the cell was last printed. At first, this is the time of the cell's first line.
        cell: The name of the cell.
        line: The line.
        say: A function that prints a line.
        now: The present time in seconds.

    Example:
        >>> heard = {}
        >>> for second in (0, 2, 15):
        ...     hear_line(heard, "iid", f"round {second + 1}/20  accuracy 0.9000", print, float(second))
        cell iid: round 16/20  accuracy 0.9000
        >>> heard
        {'iid': ('round 16/20  accuracy 0.9000', 15.0)}
    """
    if line.startswith(NOTE):
        errors.warn_user(line.removeprefix(NOTE), errors.FedrayWarning)
    elif line.strip() and not line.startswith(STILL):
        spoke = heard.get(cell, ("", now))[1]
        due = now - spoke >= SECONDS_BETWEEN_LINES
        heard[cell] = (line.strip(), now if due else spoke)
        if due:
            say(f"cell {cell}: {line}")


# ---------------------------------------------------------------------------------------------------------------------
# The training of cells. Each cell is a run in a child process, which ends when the table's process ends.

log = logging.getLogger("fedray")


def train_cells(
    cells: Sequence[NamedCell], folder: Path, jobs: int, options: dict[str, list[str]], say: Callable[[str], None]
) -> dict[str, str]:
    """Trains the unfinished cells. Returns the names of cells that failed, each with the reason.

    Args:
        cells: The cells, in the order in which they begin.
        folder: The folder of the cells' run directories, which have the names of the cells.
        jobs: The largest number of cells that train at the same time.
        options: The command line options of each cell, by the name of the cell.
        say: A function that prints a line. It is called when a cell ends, and from time to time with a cell's progress.

    Raises:
        FedrayError: The folder cannot be written, or a different process trains one of the cells.
    """
    failed: dict[str, str] = {}
    children: list[subprocess.Popen[str]] = []
    plain.make_parent(folder / "cell")
    confirm_directory = make_move_check(folder)
    at_once = max(1, min(jobs, len(cells)))
    began = time.monotonic()
    at_work: list[str] = []
    ended: list[str] = []
    heard: dict[str, tuple[str, float]] = {}  # by cell, for `hear_line`

    def train_cell(cell: NamedCell) -> str | None:
        """Runs or resumes one cell. Returns the reason if the cell failed, or None if it is finished."""
        place = folder / cell.name
        busy = FedrayError(f"another `fedray table` trains {place}: let it finish, or stop it")
        with plain.hold_lock(folder / f".{cell.name}.lock", busy) as lock:  # the cell's process also holds the lock
            given = place / "scenario.yaml"
            if (place / SUMMARY_FILE).is_file():
                return None
            if given.is_file():
                command = ["resume", str(place)]
                found = replace(read_scenario(given, explicit=False), report=cell.scenario.report)
                if found != cell.scenario:  # the keys that differ change no result
                    plain.write_atomically(given, dump_scenario(cell.scenario).encode())
            else:
                source = folder / f"{cell.name}.yaml"
                plain.write_atomically(source, dump_scenario(cell.scenario).encode())
                command = ["run", str(source), "--out", str(place)]
            variables = {PARTS_VARIABLE: str(at_once)}  # cells share the cluster or this machine
            child = start_child([*command, *options[cell.name]], keep=[lock], variables=variables)
            children.append(child)
            status = follow_child(child, lambda line: hear_line(heard, cell.name, line, say, time.monotonic()))
            children.remove(child)
        if status < 0:
            return f"its process was ended by {signal.Signals(-status).name}"
        return None if status == 0 else heard.get(cell.name, ("no message", 0.0))[0].removeprefix("fedray: ")

    def train(cell: NamedCell) -> None:
        confirm_directory()
        at_work.append(cell.name)
        log.info("training %s; %s of %s cells have ended", ", ".join(at_work), len(ended), len(cells))
        reason = train_cell(cell)
        at_work.remove(cell.name)
        ended.append(cell.name)
        if reason is not None:
            failed[cell.name] = reason
        state = "is done" if reason is None else f"failed ({reason})"
        took = errors.format_seconds(time.monotonic() - began)
        say(f"cell {cell.name} {state}: {len(ended)} of {len(cells)}, {took}")

    with ThreadPoolExecutor(at_once) as pool:

        def stop() -> None:
            """Ends the cells that train, and prevents other cells from beginning."""
            pool.shutdown(wait=False, cancel_futures=True)
            stop_children(list(children))

        with current_ending().call(stop):
            list(pool.map(train, cells))
    confirm_directory()
    return {cell.name: failed[cell.name] for cell in cells if cell.name in failed}


# ---------------------------------------------------------------------------------------------------------------------
# Notes below a table.

CellRows = Mapping[tuple[str, str], Mapping[str, Any]]  # (cell, score) -> row
PERSONAL = ("personal_accuracy", "personal_rmse")  # scores of clients with their own models or weights


def _find_personal(rows: CellRows) -> tuple[str, list[str], list[str]]:
    """Finds the cells whose clients predict with their own models or weights, and the score of these predictions.

    Returns the name of the score (`personal_accuracy` or `personal_rmse`), the names of these cells, and the names of
    all cells without this score. If none of these cells has such a score, the name is empty.
    """
    apart = list(dict.fromkeys(cell for (cell, _), row in rows.items() if row.get("apart")))
    name = next((name for name in PERSONAL if any((cell, name) in rows for cell in apart)), "")
    return name, apart, [cell for cell in dict.fromkeys(cell for cell, _ in rows) if (cell, name) not in rows]


def list_table_notes(rows: CellRows) -> list[str]:
    """Returns the notes below a table, one per line.

    Args:
        rows: The rows of the table, by cell and metric. The field `apart` of a row says whether the cell's clients
            predict with their own models or weights. The field `chosen` is a note, if the last round of the cell was
            chosen with a score on test samples.

    Example:
        >>> rows = {("a", name): {"mean": 0.9, "apart": True} for name in ("accuracy", "personal_accuracy")}
        >>> list_table_notes(rows)
        ['Clients of a answer by themselves: `personal_accuracy` is theirs, and `accuracy` that of a common answer.']
    """
    chosen = list(dict.fromkeys(row["chosen"] for row in rows.values() if row.get("chosen")))
    name, apart, lacking = _find_personal(rows)
    if not name:
        return chosen
    more = (
        f" Without it: {', '.join(lacking)} (evaluate.personal=true records it, but not for pooled data)."
        if lacking
        else ""
    )
    common = f"`{name}` is theirs, and `{name.removeprefix('personal_')}` that of a common answer."
    return [f"Clients of {', '.join(apart)} answer by themselves: {common}{more}", *chosen]


def mark_row(text: str, row: Mapping[str, Any] | None) -> str:
    """Marks a score if the last round of its cell was chosen with a score on test samples.

    An empty text gets no mark.

    Example:
        >>> mark_row("0.9", {"chosen": "a line"}), mark_row("0.9", {})
        ('0.9 †', '0.9')
    """
    return f"{text} {MARK}" if text and row is not None and row.get("chosen") else text


# ---------------------------------------------------------------------------------------------------------------------
# Tables as text: Markdown to read, and LaTeX for a paper.

Rows = list[dict[str, Any]]
FIRST_METRICS = (
    "accuracy", "accuracy_last3", "rounds_to_target", *TARGET_NAMES, "ood_auroc", "ood_auroc_knowledge", "ood_fpr95",
    "conformal_coverage", "conformal_coverage_client_worst", "conformal_size", "conformal_width", "accuracy_min",
    "accuracy_max", "personal_accuracy", "rmse", "personal_rmse", "nll", "nll_none", "nll_residual", "sharpness",
    "entropy",
)  # fmt: skip
BYTES = "bytes_to_target"
MOST_METRICS = 6  # most metrics, besides published ones and seconds and bytes to a target
PUBLISHED_NOTE = "Published values are those of the papers, as the scenario names them; sd and n are those found here."
BAR = r"\|"  # `|` inside a cell of Markdown
SPREAD_NOTE = "Mean +- standard deviation over the n replicates and folds of a cell"


def refuse_unknown_metrics(wanted: Sequence[str], cells: Sequence[NamedCell]) -> None:
    """Checks requested metrics, and the names of published values, before anything trains.

    A metric must be a pattern or a score. If a cell has metrics of the user, any name is accepted.

    Raises:
        BadInput: A metric is unknown.
    """
    if any(cell.scenario.evaluate.metrics for cell in cells):
        return
    published = [(f"published of {cell.name}:", name) for cell in cells for name in cell.scenario.published]
    for place, word in [*(("--metrics", word) for word in wanted), *published]:
        if not (set("*?[") & set(word) or word in FIRST_METRICS or find_score(word)):
            names = "give names such as accuracy, nll or conformal_size, or patterns"
            remedy = errors.suggest_nearest(word, (*FIRST_METRICS, *SCORES), names)
            raise BadInput(f"{place} {word}: there is no such score; {remedy}")


def format_markdown(rows: Rows, names: list[str], wanted: Sequence[str] = ()) -> str:
    r"""Writes the table as Markdown, with one line per cell and published values beside measured values.

    Args:
        rows: The rows of `table.parquet`: one per cell and metric, and one with the `error` of each cell that failed.
        names: The names of the cells, in the order of the lines.
        wanted: The requested metrics, as names or patterns such as `conformal_*`, in the order of the columns. If the
            rows have none of these, the table shows published metrics, then accuracy or RMSE, then the metrics of
            `evaluate.metrics`, and then other metrics by importance.

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
        % \usepackage{booktabs}
        % Mean +- standard deviation over the n replicates and folds of a cell.
        \begin{tabular}{lrrrrr}
        \toprule
        cell & accuracy & accuracy published & rounds & up MB, each & down MB, each \\
        \midrule
        a\_1 & 0.9000 $\pm$ 0.0100 (n = 3) & 0.91 & 5 & 2.0 & 10.0 \\
        \bottomrule
        \end{tabular}
    """
    head, lines, notes = _write_cells(rows, names, wanted)
    text = [f"| {' | '.join(cell.replace('|', BAR) for cell in line)} |\n" for line in (head, *lines)]
    text.insert(1, f"{'|---' * len(head)}|\n")
    return "".join([*text, *(f"\n{note}\n" for note in notes)])


def format_latex(rows: Rows, names: list[str], wanted: Sequence[str] = ()) -> str:
    """Writes the table as a LaTeX `tabular` in the style of booktabs, with the content of the Markdown table.

    The arguments are those of `format_markdown`.
    """
    import pandas as pd  # slow to import

    head, lines, notes = _write_cells(rows, names, wanted)
    frame = pd.DataFrame(lines, columns=head)
    text = str(frame.to_latex(index=False, escape=True, column_format=f"l{'r' * (len(head) - 1)}"))
    return "".join(f"% {note}\n" for note in (r"\usepackage{booktabs}", *notes)) + text.replace(" +- ", r" $\pm$ ")


def _write_cells(rows: Rows, names: list[str], wanted: Sequence[str]) -> tuple[list[str], list[list[str]], list[str]]:
    """Returns the head, the lines (one per cell) and the notes of a table, as for `format_markdown`."""
    failed = {r["cell"]: r["error"] for r in rows if r.get("error") is not None}
    found = {(r["cell"], r["metric"]): r for r in rows if r["cell"] not in failed}
    published = list(dict.fromkeys(metric for (_, metric), r in found.items() if r["published"] is not None))
    metrics = _choose_metrics(found, published, wanted)
    head = ["cell", *(c for m in metrics for c in ([m, f"{m} published"] if m in published else [m]))]
    head += ["rounds", "up MB, each", "down MB, each"]
    largest = {
        name: max((r["mean"] or 0.0 for (_, metric), r in found.items() if metric == name), default=0.0)
        for name in TARGET_NAMES
    }
    lines = []
    for name in names:
        cells = [f"failed: {failed.get(name)}", *[""] * (len(head) - 2)]
        if name not in failed:
            mine = [row for (cell, _), row in found.items() if cell == name]
            cells, worlds = [], max(row["n"] for row in mine)
            for metric in metrics:
                row = found.get((name, metric))
                score = "" if row is None else errors.format_score(row, worlds, metric, largest.get(metric))
                cells.append(mark_row(score, row))
                if metric in published:
                    cells.append("" if row is None or row["published"] is None else f"{row['published']:g}")
            each = [mine[0][key] / max(worlds, 1) / 1e6 for key in ("up_bytes", "down_bytes")]
            cells += [str(mine[0]["rounds"]), *(f"{size:.1f}" if size >= 1 else f"{size:.2g}" for size in each)]
        lines.append([name, *cells])
    spread = any(row["sd"] is not None for row in found.values())
    return head, lines, [*([f"{SPREAD_NOTE}."] if spread else []), *list_table_notes(found)]


def _choose_metrics(
    found: Mapping[tuple[str, str], Mapping[str, Any]], published: list[str], wanted: Sequence[str]
) -> list[str]:
    """Chooses the scores of a table, in the order of its columns.

    Args:
        found: The rows of the table by cell and score.
        published: Scores with published values.
        wanted: Names or patterns of scores. If none has a match, the published and the most important scores are
            chosen.
    """
    known = list(dict.fromkeys(metric for _, metric in found))
    metrics = list(dict.fromkeys(name for pattern in wanted for name in known if fnmatchcase(name, pattern)))
    if metrics:
        return metrics
    ranges = {f"{name}_{end}" for name in known for end in ("min", "mean", "max")}
    asked = [m for m in known if not is_fedrays(m) and m not in ranges and "personal_" not in m]
    name, _, lacking = _find_personal(found)
    own = [name] if name and not lacking else []  # first, if all cells have this score
    first = dict.fromkeys([*own, "accuracy", "rmse", *asked, *FIRST_METRICS])
    rest = [m for m in first if m in known and m not in published]
    most = MOST_METRICS + len({*TARGET_NAMES, *asked} & set(rest))
    return published + rest[: max(0, most - len(published))]


def list_published(rows: Rows) -> Table:
    """Returns the head and the lines of a table of published values and measured means.

    `rows` has the rows of `table.parquet`, one for each cell and metric.

    Example:
        >>> row = {"cell": "a", "metric": "accuracy", "mean": 0.9, "sd": 0.01, "n": 3, "published": 0.91}
        >>> list_published([row])[1][0]
        ['a', 'accuracy', '90.0 %', '1.0 %', '3', '91.0 %', '-1.0 points']
    """
    from fedray.report.compare import show_score  # matplotlib is slow to import

    head = ["cell", "score", "found", "sd", "n", "published", "found less published"]
    found = []
    for row in (row for row in rows if row.get("published") is not None):
        metric, mean, published = row["metric"], row["mean"], row["published"]
        shown = "-" if mean is None else mark_row(format_number(mean, metric), row)
        sd = "-" if row["sd"] is None else format_number(row["sd"], metric)
        less = "-" if mean is None else show_score(metric, mean - published, True)
        told = [shown, sd, str(row["n"]), format_number(published, metric), less]
        found.append([row["cell"], name_score(metric), *told])
    return head, found


# ---------------------------------------------------------------------------------------------------------------------
# `fedray table`.


class TableResult(NamedTuple):
    """The text of a table, and the cells that failed.

    Attributes:
        text: The table as Markdown.
        failed: For each cell that failed, the reason in one line, by the name of the cell.
    """

    text: str
    failed: dict[str, str]


def run_table(
    scenario: Scenario,
    out: Path,
    *,
    only: Sequence[str] = (),
    metrics: Sequence[str] = (),
    jobs: int = 1,
    address: str | None = None,
    wait_for: Mapping[str, float] | None = None,
    modules: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda _line: None,
) -> TableResult:
    """Runs the unfinished cells. Returns the table, and the names of the cells that failed.

    Args:
        scenario: The scenario, whose key `table` lists the cells.
        out: The folder for the run directories `cells/NAME` and the files `table.md`, `table.tex` and `table.parquet`.
            Unless the scenario has `report: false`, a page `report.html` compares the cells.
        only: The cells to train, as names or patterns such as `dirichlet_*`. Empty means all cells. Other cells are in
            the table if they are finished.
        metrics: The scores in `table.md` and `table.tex`, as names or patterns, in the order of the columns. Empty
            means scores with published values, and the most important other scores.
        jobs: The number of cells that train at the same time, each in its own process.
        address: The address of an existing Ray cluster. None means that each cell on Ray starts a cluster on this
            machine.
        wait_for: The resources that the cluster must have before a cell begins, by Ray's names.
        modules: The names of your modules, which the process of each cell imports first.
        say: A function that prints a line. It is called when a cell ends, and from time to time with a cell's progress.

    Raises:
        BadInput: An entry of `only` or `metrics` has no match, or `out` has cells of a different scenario, different
            data or different code.
    """
    cells = read_cells(scenario)
    chosen = choose_cells(cells, only)
    refuse_unknown_metrics(metrics, cells)
    wanted = [cell for cell in cells if cell in chosen or (out / "cells" / cell.name / SUMMARY_FILE).is_file()]
    refuse_unused_address("ray" if any(cell.scenario.runtime != "inline" for cell in wanted) else "inline", address)
    refuse_unused_wait(wait_for, address)
    for cell in wanted:
        _check_cell(cell, out / "cells" / cell.name)
    current_ending().advise("the same command goes on, and finished cells are kept")
    shared = [f"--import={name}" for name in modules]
    waits = ",".join(f"{name}={amount:g}" for name, amount in (wait_for or {}).items())
    on_cluster = [f"--address={address}", *([f"--wait-for={waits}"] if waits else [])]
    options = {
        cell.name: [*shared, *(on_cluster if address and cell.scenario.runtime != "inline" else [])]
        + ([] if cell.scenario.report else ["--no-report"])
        for cell in wanted
    }
    failed = train_cells(chosen, out / "cells", jobs, options, say)
    rows: Rows = []
    for cell in wanted:
        try:
            rows += [] if cell.name in failed else _read_rows(cell, out / "cells" / cell.name)
        except FedrayError as error:  # a damaged summary
            failed[cell.name] = str(error)
    rows += [{"cell": name, "error": reason} for name, reason in failed.items()]
    plain.make_parent(out / "table.parquet")
    write_parquet(out / "table.parquet", pa.Table.from_pylist(rows, schema=table_schema("table")))
    names = [cell.name for cell in wanted]
    text, left = format_markdown(rows, names, metrics), [cell.name for cell in cells if cell not in wanted]
    begun = [name for name in left if (out / "cells" / name / "scenario.yaml").is_file()]
    for what, absent in (("Not finished", begun), ("Not run", [name for name in left if name not in begun])):
        text += f"\n{what}: {', '.join(absent)}.\n" if absent else ""
    plain.write_atomically(out / "table.md", text.encode())
    plain.write_atomically(out / "table.tex", format_latex(rows, names, metrics).encode())
    if scenario.report and len(failed) < len(names):
        from fedray.report.page import write_report  # matplotlib is slow to import

        log.info("drawing the report")
        published = list_published(rows)
        tables = [("Published and found", published, PUBLISHED_NOTE)] if published[1] else []
        folders = [out / "cells" / name for name in names if name not in failed]
        write_report(folders, out / "report.html", title=f"Table of {len(folders)} cells", tables=tables)
    return TableResult(text, failed)


def choose_cells(cells: Sequence[NamedCell], only: Sequence[str]) -> list[NamedCell]:
    """Returns the cells that match one of the patterns, in the order of the table.

    Without patterns, all cells are returned.

    Raises:
        BadInput: A pattern fits no cell.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> text = {"method": "fedavg", "data": "digits", "clients": {"number": 2}, "model": "linear"}
        >>> table = [{"name": "iid_a"}, {"name": "iid_b"}, {"name": "path"}]
        >>> cells = read_cells(read_scenario({**text, "table": table}))
        >>> [cell.name for cell in choose_cells(cells, ["path", "iid_*"])]
        ['iid_a', 'iid_b', 'path']
    """
    names = [cell.name for cell in cells]
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            remedy = errors.suggest_nearest(pattern, names, f"the cells are {', '.join(names)}")
            raise BadInput(f"--cells {pattern}: the table has no such cell; {remedy}")
    return [cell for cell in cells if not only or any(fnmatchcase(cell.name, pattern) for pattern in only)]


def _check_cell(cell: NamedCell, folder: Path) -> None:
    """Checks that the run of a cell, if it has begun, has the same scenario, data and code as now.

    Keys that change no result may differ. So a table that began in one process may continue on a cluster. But a
    finished cell must have the same keys for saving and logging, because it is not run again.

    Raises:
        BadInput: The scenario, the data or the code has changed.
    """
    given = folder / "scenario.yaml"
    if not given.is_file():
        return
    finished = (folder / SUMMARY_FILE).is_file()
    changed = _list_changes(to_plain(read_scenario(given, explicit=False)), to_plain(cell.scenario), finished=finished)
    if changed:
        raise BadInput(
            f"{folder} holds a run of another scenario ({changed}): remove it, and the cell runs again, or choose "
            "another directory"
        )
    try:
        reopen_study(folder, UserObjects())
    except BadInput as error:
        raise BadInput(f"cell {cell.name}: {error}; or remove {folder}, and the cell runs again") from None


def _list_changes(found: dict[str, Any], wanted: dict[str, Any], *, finished: bool) -> str:
    """Describes the keys of a cell that have changed since its training, with their old and new values.

    Keys that change no result are left out. If the cell is `finished`, its keys for saving and logging count, too. At
    most three keys are named.
    """
    old, new = flatten(found), flatten(wanted)
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key, UNSET) != new.get(key, UNSET)]
    keys = [key for key in keys if not is_free(key) or (finished and key.startswith(("checkpoint.", "loggers")))]
    each = [f"{key} {quote_value(old.get(key, UNSET))}, now {quote_value(new.get(key, UNSET))}" for key in keys[:3]]
    return "; ".join(each) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _read_rows(cell: NamedCell, folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of `table.parquet` for a finished cell, one for each metric."""
    summary, apart = read_summary(folder), answers_clients_apart(to_plain(cell.scenario))
    chosen = " ".join(list_score_notes(summary, cell.name)) if is_chosen_on_test(summary) else ""
    costs = {name: summary["totals"][name] for name in ("up_bytes", "down_bytes", "sim_seconds", "wall_seconds")}
    costs |= {f"answer_{name}": summary.get("answer", {}).get(name) for name in ("bytes", "passes")}
    facts = {"cell": cell.name, "method": summary["method"], "apart": apart, "chosen": chosen, **costs}
    rows, published = [], cell.scenario.published
    for name in dict.fromkeys([*summary["metrics"], *published]):
        score = {key: summary["metrics"].get(name, {"n": 0}).get(key) for key in ("mean", "sd", "n")}
        score |= {"published": float(published[name]) if name in published else None, "rounds": summary["rounds"]}
        rows.append({**facts, "metric": name, **score})
    return rows
