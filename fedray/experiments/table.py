"""`fedray table`: every cell of a scenario's table, resumable; the form each published table takes here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fedray.assembly.devices import invited_per_tier
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput, FedrayError
from fedray.core.text import quote_value, suggest_nearest
from fedray.core.types import Clients
from fedray.experiments.cells import DONE, train_cells
from fedray.experiments.reopen import reopen_study
from fedray.experiments.table_text import (
    PUBLISHED_NOTE,
    Rows,
    format_latex,
    format_markdown,
    list_published,
    refuse_unknown_metrics,
)
from fedray.files import plain
from fedray.files.checksums import refuse_links
from fedray.files.columns import table_schema
from fedray.files.run_files import read_summary
from fedray.process.ending import current_ending
from fedray.report.choices import is_chosen, tell_choices
from fedray.runtime.addresses import refuse_unused_address
from fedray.runtime.awaited import refuse_unused_wait, write_awaited
from fedray.scenario.identity import UNSET, is_free
from fedray.scenario.loader import NamedCell, read_cells, read_scenario, to_plain
from fedray.scenario.nested import flatten
from fedray.scenario.reading import answers_clients_apart
from fedray.scenario.rules import tier_table
from fedray.scenario.schema import Scenario
from fedray.storage.tables import write_parquet

log = logging.getLogger("fedray")


class TableResult(NamedTuple):
    """A table, and what is missing in it.

    Attributes:
        text: Markdown.
        failed: the reason of each cell that failed, in one line, by its name.
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
    """Runs the cells that are not finished yet and returns the table; a cell that fails is marked in it.

    Args:
        scenario: the scenario, whose `table` lists the cells.
        out: holds `cells/NAME` (a run directory each), `table.md`, `table.tex`, `table.parquet`, and, unless the
            scenario says `report: false`, `report.html`, which compares the cells.
        only: names of cells, or patterns such as `dirichlet_*`: the others are not trained, and those of them that are
            finished stay in the table.
        metrics: names of scores, or patterns, that `table.md` and `table.tex` show, in this order; none: those with
            published values, and the most important others.
        jobs: cells at a time, each in a process of its own; with several the longest cells begin.
        address: of an existing Ray cluster; None starts one on this machine for each cell that runs on Ray.
        wait_for: what the cluster must have before a cell begins, by Ray's names.
        modules: names of your modules, which each cell's process imports first.
        say: called with a line about each cell that is finished, and now and then about how far a cell is.

    Raises:
        BadInput: the scenario has no table, a word of `only` fits none of its cells or one of `metrics` none of their
            scores, or `out` holds cells of another scenario, of other data or of other code.
    """
    if not scenario.table:
        raise BadInput("table is empty: give the scenario a `table:` list of cells, or use `fedray run`")
    cells = read_cells(scenario)
    chosen = choose_cells(cells, only)
    refuse_unknown_metrics(metrics, cells)
    wanted = [cell for cell in cells if cell in chosen or (out / "cells" / cell.name / DONE).is_file()]
    refuse_unused_address("ray" if any(cell.scenario.runtime != "inline" for cell in wanted) else "inline", address)
    refuse_unused_wait(wait_for, address)
    refuse_links(out)
    for cell in wanted:
        _check_cell(cell, out / "cells" / cell.name)
    current_ending().advise("the same command goes on, and finished cells are kept")
    options = {cell.name: _list_options(cell, address, modules, wait_for) for cell in wanted}
    order = sorted(chosen, key=_count_jobs, reverse=True) if jobs > 1 else chosen
    failed = train_cells(order, out / "cells", jobs, options, say)
    rows = _read_cells(wanted, out / "cells", failed)
    plain.make_parent(out / "table.parquet")
    write_parquet(out / "table.parquet", pa.Table.from_pylist(rows, schema=table_schema("table")))
    names = [cell.name for cell in wanted]
    text = format_markdown(rows, names, metrics) + _list_absent([cell for cell in cells if cell not in wanted], out)
    plain.write_atomically(out / "table.md", text.encode())
    plain.write_atomically(out / "table.tex", format_latex(rows, names, metrics).encode())
    if scenario.report and len(failed) < len(names):
        _write_page(rows, out, [name for name in names if name not in failed])
    return TableResult(text, failed)


def _list_absent(cells: Sequence[NamedCell], out: Path) -> str:
    """The lines of a table about its other cells: which have begun, and which have not."""
    begun = [cell.name for cell in cells if (out / "cells" / cell.name / "scenario.yaml").is_file()]
    fresh = [cell.name for cell in cells if cell.name not in begun]
    both = (("Not finished", begun), ("Not run", fresh))
    return "".join(f"\n{what}: {', '.join(names)}.\n" for what, names in both if names)


def _read_cells(cells: Sequence[NamedCell], folder: Path, failed: dict[str, str]) -> Rows:
    """The rows of finished cells, and one for each that failed, to which those with a damaged summary are added."""
    rows: Rows = []
    for cell in cells:
        try:
            rows += [] if cell.name in failed else _read_rows(cell, folder / cell.name)
        except FedrayError as error:
            failed[cell.name] = str(error)
    return rows + [{"cell": name, "error": reason} for name, reason in failed.items()]


def choose_cells(cells: Sequence[NamedCell], only: Sequence[str]) -> list[NamedCell]:
    """The cells whose names fit one of the patterns, in their order; without patterns all of them.

    Raises:
        BadInput: a pattern fits no cell.

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
            remedy = suggest_nearest(pattern, names, f"the cells are {', '.join(names)}")
            raise BadInput(f"--cells {pattern}: the table has no such cell; {remedy}")
    return [cell for cell in cells if not only or any(fnmatchcase(cell.name, pattern) for pattern in only)]


def _write_page(rows: Rows, out: Path, names: list[str]) -> None:
    """`report.html` of the table: its finished cells compared, and the published values beside those found."""
    from fedray.report.write import write_report  # matplotlib is slow to import

    log.info("drawing the report")
    published = list_published(rows)
    tables = [("Published and found", published, PUBLISHED_NOTE)] if published[1] else []
    folders = [out / "cells" / name for name in names]
    write_report(folders, out / "report.html", title=f"Table of {len(names)} cells", tables=tables)


def _count_jobs(cell: NamedCell) -> float:
    """How many jobs a cell trains."""
    scenario, number = cell.scenario, cell.scenario.clients.number
    if number is None:  # the data will say
        return float(scenario.rounds * scenario.replicates)
    clients = Clients(tier_table(scenario, number))
    each = [scenario.method.models if one.models_per_round is None else one.models_per_round for one in clients.tiers]
    jobs = sum(n * m for n, m in zip(invited_per_tier(scenario, clients), each, strict=True))
    return float(jobs * scenario.rounds * scenario.replicates)


def _check_cell(cell: NamedCell, folder: Path) -> None:
    """Refuses a cell that was trained with another scenario, with other data, or with other code of the user's.

    Keys that change no result may differ: a table that began in one process goes on on a cluster. What a finished cell
    has saved and logged stays as it is, so that those keys may not.

    Raises:
        BadInput: names what was changed.
    """
    given = folder / "scenario.yaml"
    if not given.is_file():
        return
    finished = (folder / DONE).is_file()
    changed = _list_changes(to_plain(read_scenario(given, explicit=False)), to_plain(cell.scenario), finished=finished)
    if changed:
        raise BadInput(
            f"{folder} holds a run of another scenario ({changed}): remove it, and the cell runs again, or choose "
            "another --out"
        )
    try:
        reopen_study(folder, UserObjects())
    except BadInput as error:
        raise BadInput(f"cell {cell.name}: {error}; or remove {folder}, and the cell runs again") from None


def _list_changes(found: dict[str, Any], wanted: dict[str, Any], *, finished: bool) -> str:
    """The keys of a cell that decide what it holds and were changed since it was trained, with both values."""
    old, new = flatten(found), flatten(wanted)
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key, UNSET) != new.get(key, UNSET)]
    keys = [key for key in keys if not is_free(key) or (finished and key.startswith(("checkpoint.", "loggers")))]
    each = [f"{key} {quote_value(old.get(key, UNSET))}, now {quote_value(new.get(key, UNSET))}" for key in keys[:3]]
    return "; ".join(each) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _list_options(
    cell: NamedCell, address: str | None, modules: tuple[str, ...], wait_for: Mapping[str, float] | None
) -> list[str]:
    """The options of the command that runs or resumes a cell."""
    shared = [f"--import={name}" for name in modules]
    waits = [f"--wait-for={write_awaited(wait_for)}"] if wait_for else []
    on_cluster = [f"--address={address}", *waits] if address and cell.scenario.runtime != "inline" else []
    return [*shared, *on_cluster, *([] if cell.scenario.report else ["--no-report"])]


def _read_rows(cell: NamedCell, folder: Path) -> list[dict[str, Any]]:
    """One row a metric of a finished cell."""
    summary, apart = read_summary(folder), answers_clients_apart(to_plain(cell.scenario))
    chosen = " ".join(tell_choices(summary, cell.name)) if is_chosen(summary) else ""
    names = list(dict.fromkeys([*summary["metrics"], *cell.published]))
    rows = []
    for name in names:
        value = summary["metrics"].get(name, {"mean": None, "sd": None, "n": 0})
        published = cell.published.get(name)
        rows.append(
            {
                "cell": cell.name,
                "method": summary["method"],
                "apart": apart,
                "chosen": chosen,
                "metric": name,
                "mean": value["mean"],
                "sd": value["sd"],
                "n": value["n"],
                "published": None if published is None else float(published),
                "rounds": summary["rounds"],
                "up_bytes": summary["totals"]["up_bytes"],
                "down_bytes": summary["totals"]["down_bytes"],
                "sim_seconds": summary["totals"]["sim_seconds"],
                "wall_seconds": summary["totals"]["wall_seconds"],
            }
        )
    return rows
