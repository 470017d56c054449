"""The command `fedray table`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedray.cli import options
from fedray.core.errors import BadInput, FedrayError
from fedray.files.plain import confirm_writable
from fedray.own_code.user_code import import_modules


@click.command(name="table")
@options.scenario
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", **options.as_path, required=True, help="Directory; finished cells are kept.")
@click.option(
    "--cells",
    metavar="NAMES",
    default="",
    help="Train these cells alone, as in dirichlet_*,path_fedavg; finished ones stay in the table.",
)
@click.option(
    "--metrics",
    metavar="NAMES",
    default="",
    help="The scores that table.md and table.tex show, as in accuracy,nll,conformal_*; the file table.parquet has all.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many cells run at the same time."
)
@options.no_report
@options.address
@options.wait_for
@options.modules
@options.loudness
def table_command(
    scenario: str,
    overrides: tuple[str, ...],
    *,
    out: Path,
    cells: str,
    metrics: str,
    jobs: int,
    no_report: bool,
    address: str | None,
    wait_for: dict[str, float] | None,
    modules: tuple[str, ...],
) -> None:
    """Run every cell of a scenario's table, and write table.md, table.tex, table.parquet and report.html."""
    from fedray.scenario.loader import read_scenario
    from fedray.scenario.shipped import find_scenario_file

    confirm_writable("--out", out)
    import_modules(modules)
    wanted = read_scenario(find_scenario_file(scenario), overrides)
    if not wanted.table:
        raise BadInput("table is empty: give the scenario a `table:` list of cells, or use `fedray run`")
    if no_report:
        wanted = read_scenario(find_scenario_file(scenario), [*overrides, "report=false"])
    from fedray.experiments.table import run_table

    where: dict[str, Any] = {"address": address, "wait_for": wait_for, "modules": modules}
    only, shown = ([word.strip() for word in words.split(",") if word.strip()] for words in (cells, metrics))
    result = run_table(wanted, out, only=only, metrics=shown, jobs=jobs, say=options.say_line, **where)
    click.echo(result.text)
    if result.failed:
        many = f"{len(result.failed)} of {len(wanted.table)} cells failed"
        raise FedrayError(
            f"{many} ({', '.join(result.failed)}): {out / 'table.md'} says why; the same command tries them again"
        )
