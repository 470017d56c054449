"""The commands about one scenario: `fedray run`, `fedray resume` and `fedray check`.

Example:
    >>> run_command.name
    'run'
"""

from __future__ import annotations

from pathlib import Path

import click

from fedray.cli import options
from fedray.core.user_modules import import_modules


@click.command(name="run")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.out
@options.address
@options.modules
def run_command(
    scenario: str, overrides: tuple[str, ...], *, out: Path | None, address: str | None, modules: tuple[str, ...]
) -> None:
    """Run a scenario file; KEY=VALUE changes a key of it, as in `rounds=20 method.name=fedavg`."""
    from fedray.scenario.loader import read_scenario

    import_modules(modules)
    path = Path(scenario)
    wanted = read_scenario(path, overrides)
    folder = out or Path("runs") / path.stem
    from fedray.assembly.user_objects import UserObjects
    from fedray.cli.live import watch_run
    from fedray.experiments.run import run_scenario

    with watch_run(f"{wanted.method.name} on {wanted.data.name}") as watch:
        run_scenario(wanted, folder, UserObjects(modules=modules), watch, address=address)
    _show_summary(folder)


@click.command(name="resume")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--rounds", type=click.IntRange(1, 10**7), help="Make the run longer: how many rounds there are in all.")
@options.address
@options.modules
def resume_command(folder: Path, rounds: int | None, address: str | None, modules: tuple[str, ...]) -> None:
    """Continue the run in FOLDER from its newest checkpoint; the result is that of a run without interruption."""
    import_modules(modules)
    from fedray.assembly.user_objects import UserObjects
    from fedray.cli.live import watch_run
    from fedray.experiments.run import resume_run

    with watch_run(f"resuming {folder}") as watch:
        resume_run(folder, UserObjects(modules=modules), watch, address=address, rounds=rounds)
    _show_summary(folder)


@click.command(name="check")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.address
@options.modules
def check_command(scenario: str, overrides: tuple[str, ...], address: str | None, modules: tuple[str, ...]) -> None:
    """Check a scenario without a run, and print what follows from it: tiers, actors, memory, bytes in a round."""
    from fedray.runtime.environment import refuse_unused_address
    from fedray.scenario.loader import read_cells, read_scenario

    import_modules(modules)
    wanted = read_scenario(Path(scenario), overrides)
    refuse_unused_address(wanted.runtime, address)
    from fedray.experiments.check import explain_scenario

    click.echo(explain_scenario(wanted, address))
    for cell in read_cells(wanted) if wanted.table else []:
        click.echo(f"cell {cell.name}: {cell.scenario.method.name}, {cell.scenario.rounds} rounds")


def _show_summary(folder: Path) -> None:
    """The result in a few lines."""
    from fedray.api import load
    from fedray.core.text import TOTALS, format_score, format_total, name_score

    summary = load(folder).summary
    totals = summary["totals"]
    worlds = max((value["n"] for value in summary["metrics"].values()), default=1)
    for name, value in summary["metrics"].items():
        click.echo(f"{name_score(name):38} {format_score(value, worlds) or 'not a number'}")
    costs = [f"{name_score(name)} {format_total(name, totals[name])}" for name in TOTALS]
    click.echo(f"{', '.join(costs)} (without start-up and report), model_hash {summary['model_hash'][:16]}")
    page = folder / "report.html"
    click.echo(str(page if page.is_file() else folder))
