"""The command `fedray table`.

Example:
    >>> table_command.name
    'table'
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from fedray.cli import options
from fedray.core.user_modules import import_modules


@click.command(name="table")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory; finished cells are kept.")
@click.option("--jobs", type=int, default=1, show_default=True, help="How many cells run at the same time.")
@options.address
@options.modules
def table_command(
    scenario: str, overrides: tuple[str, ...], *, out: Path, jobs: int, address: str | None, modules: tuple[str, ...]
) -> None:
    """Run every cell of a scenario's table, and write table.md and table.parquet."""
    from fedray.scenario.loader import read_scenario

    import_modules(modules)
    wanted = read_scenario(Path(scenario), overrides)
    from fedray.experiments.table import run_table

    click.echo(run_table(wanted, out, jobs=jobs, address=address, modules=modules, say=partial(click.echo, err=True)))
