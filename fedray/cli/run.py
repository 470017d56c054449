"""The commands about one scenario: `fedray run`, `fedray resume` and `fedray check`.

What can be said at once is said before torch is imported: a missing file, an unknown name or key, a directory that is
taken.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import click

from fedray.cli import options
from fedray.files.plain import confirm_writable
from fedray.own_code.user_modules import import_modules
from fedray.process.quickly import import_quickly
from fedray.process.streams import silence
from fedray.runtime.awaited import refuse_unused_wait


@click.command(name="run")
@options.scenario
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.out
@options.force
@options.no_report
@options.address
@options.wait_for
@options.modules
@options.loudness
def run_command(
    scenario: str,
    overrides: tuple[str, ...],
    *,
    out: Path | None,
    force: bool,
    no_report: bool,
    address: str | None,
    wait_for: dict[str, float] | None,
    modules: tuple[str, ...],
) -> None:
    """Run a scenario file; KEY=VALUE changes a key of it, as in `rounds=20 method=fedavg`.

    SCENARIO is a YAML file, or a name that `fedray scenarios` lists. `fedray check SCENARIO --all` prints its keys.
    """
    from fedray.runtime.addresses import find_address
    from fedray.scenario.loader import read_scenario
    from fedray.scenario.shipped import find_scenario_file
    from fedray.scenario.yaml_text import load_yaml
    from fedray.storage.places import claim_numbered, refuse_taken

    path = find_scenario_file(scenario)
    wanted_folder = out or Path("runs") / path.stem
    load_yaml(path)
    if out is not None or force:
        refuse_taken(wanted_folder, force=force)
    confirm_writable("--out", wanted_folder)
    import_modules(modules)
    wanted = read_scenario(path, overrides)
    address = find_address(wanted.runtime, address)
    refuse_unused_wait(wait_for, address)
    wanted = dataclasses.replace(wanted, report=wanted.report and not no_report)
    with nullcontext(wanted_folder) if out is not None or force else claim_numbered(wanted_folder) as folder:
        with import_quickly():
            from fedray.assembly.user_objects import UserObjects
            from fedray.experiments.live import watch_run
            from fedray.experiments.run import run_scenario

        note = "" if folder == wanted_folder else f"{wanted_folder} is taken: this run is written to {folder}"
        with watch_run(f"{wanted.method.name} on {wanted.data.name}", options.current_phase(), note) as watch:
            own = UserObjects(modules=modules)
            run_scenario(wanted, folder, own, watch, address=address, wait_for=wait_for, force=force)
    _show_summary(folder, drawn=wanted.report)


@click.command(name="resume")
@click.argument("folder", **options.as_path)
@click.option("--rounds", type=click.IntRange(1, 10**7), help="Make the run longer: how many rounds there are in all.")
@options.no_report
@options.address
@options.wait_for
@options.modules
@options.loudness
def resume_command(
    folder: Path,
    *,
    rounds: int | None,
    no_report: bool,
    address: str | None,
    wait_for: dict[str, float] | None,
    modules: tuple[str, ...],
) -> None:
    """Continue the run in FOLDER from its newest checkpoint; the result is that of a run without interruption."""
    from fedray.storage.places import require_run_directory

    require_run_directory(folder)
    confirm_writable("resume", folder)
    import_modules(modules)
    with import_quickly():
        from fedray.assembly.user_objects import UserObjects
        from fedray.experiments.live import watch_run
        from fedray.experiments.run import resume_run

    own = UserObjects(modules=modules)
    with watch_run(f"resuming {folder}", options.current_phase()) as watch:
        resume_run(folder, own, watch, address=address, wait_for=wait_for, rounds=rounds, report=not no_report)
    _show_summary(folder, drawn=not no_report)


@click.command(name="check")
@options.scenario
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.address
@options.modules
@click.option("--plot", **options.as_path, metavar="FILE.png", help="Draw the partition: class x client, and sizes.")
@click.option("--all", "every_key", is_flag=True, help="Print every key with its value instead, as YAML.")
def check_command(
    scenario: str,
    overrides: tuple[str, ...],
    address: str | None,
    modules: tuple[str, ...],
    *,
    plot: Path | None,
    every_key: bool,
) -> None:
    """Check a scenario without a run, and print what follows from it: tiers, actors, memory, bytes in a round.

    SCENARIO is a YAML file, or a name that `fedray scenarios` lists; KEY=VALUE changes a key of it.
    """
    from fedray.runtime.addresses import find_address
    from fedray.scenario.loader import dump_scenario, read_cells, read_scenario
    from fedray.scenario.shipped import find_scenario_file

    import_modules(modules)
    wanted = read_scenario(find_scenario_file(scenario), overrides)
    address = find_address(wanted.runtime, address)
    with import_quickly():
        from fedray.experiments.check import explain_scenario

    facts = explain_scenario(wanted, address, plot)
    if every_key:  # what a run writes into its `scenario.yaml`
        click.echo(dump_scenario(wanted), nl=False)
        return
    click.echo(facts)
    for cell in read_cells(wanted) if wanted.table else []:
        click.echo(f"cell {cell.name}: {cell.scenario.method.name}, {cell.scenario.rounds} rounds")


def _show_summary(folder: Path, *, drawn: bool) -> None:
    """Prints the result in a few lines.

    Where they cannot be written the status stays 0: what a run is for is in its directory, and a script that sees
    another status would train it again.
    """
    lines = _describe_summary(folder, drawn=drawn)
    try:
        click.echo("\n".join(lines))
    except OSError as error:
        silence(sys.stdout)
        line = f"fedray: the run is complete in {folder}; only its result could not be printed ({error.strerror})"
        click.echo(line, err=True)


def _describe_summary(folder: Path, *, drawn: bool) -> list[str]:
    """The result in a few lines."""
    from fedray.api import load
    from fedray.cli.clock import describe_clock, measure_process
    from fedray.core.scores import leave_out_repeats
    from fedray.core.text import TOTALS, format_score, format_total, name_score
    from fedray.files.sealed import read_sealed
    from fedray.report.choices import mark_score, tell_choices

    drawing = time.time() - (folder / "summary.json").stat().st_mtime if drawn else 0.0  # the last file before it
    summary = load(folder).summary
    totals, metrics = summary["totals"], leave_out_repeats(summary["metrics"])
    worlds = max((value["n"] for value in metrics.values()), default=1)
    names = {name: name_score(name) for name in metrics}
    width = max(38, *map(len, names.values()))
    scores = [
        f"{names[name]:{width}} {mark_score(format_score(value, worlds, name) or 'not a number', summary)}"
        for name, value in metrics.items()
    ]
    costs = [f"{name_score(name)} {format_total(name, totals[name])}" for name in TOTALS]
    timings, page = read_sealed(folder / "manifest.json")["timings"], folder / "report.html"
    return [
        *scores,
        *tell_choices(summary),
        f"{', '.join(costs)} (without start-up and report), model_hash {summary['model_hash'][:16]}",
        describe_clock(timings, drawing, measure_process()),
        str(page if drawn and page.is_file() else folder),
    ]
