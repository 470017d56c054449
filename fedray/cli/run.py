"""The commands about one scenario: `fedray run`, `fedray resume` and `fedray check`."""

from __future__ import annotations

import dataclasses
import io
import sys
from contextlib import nullcontext
from pathlib import Path

import click

from fedray.cli import options
from fedray.core.errors import BadInput
from fedray.experiments.live import log
from fedray.files.bounded import has_file
from fedray.files.plain import confirm_writable, make_parent, write_atomically
from fedray.own_code.user_code import import_modules
from fedray.process.session import import_quickly, silence
from fedray.runtime.environment import refuse_unused_wait

# ---------------------------------------------------------------------------------------------------------------------
# Some errors are reported before torch is imported: a missing file, an unknown name or key, a taken directory.


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
    from fedray.runtime.environment import find_address
    from fedray.scenario.loader import read_scenario
    from fedray.scenario.shipped import find_scenario_file
    from fedray.scenario.yaml_text import load_yaml
    from fedray.storage.directory import claim_numbered, refuse_taken

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
            from fedray.assembly.registry import UserObjects
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
    from fedray.storage.directory import require_run_directory

    require_run_directory(folder)
    confirm_writable("resume", folder)
    import_modules(modules)
    with import_quickly():
        from fedray.assembly.registry import UserObjects
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
    from fedray.runtime.environment import find_address
    from fedray.scenario.loader import dump_scenario, read_cells, read_scenario
    from fedray.scenario.shipped import find_scenario_file

    import_modules(modules)
    wanted = read_scenario(find_scenario_file(scenario), overrides)
    address = find_address(wanted.runtime, address)
    with import_quickly():
        from fedray.experiments.check import explain_scenario

    facts = explain_scenario(wanted, address, plot)
    if every_key:  # the text that a run writes into its `scenario.yaml`
        click.echo(dump_scenario(wanted), nl=False)
        return
    click.echo(facts)
    for cell in read_cells(wanted) if wanted.table else []:
        click.echo(f"cell {cell.name}: {cell.scenario.method.name}, {cell.scenario.rounds} rounds")


def _show_summary(folder: Path, *, drawn: bool) -> None:
    """Prints the result in a few lines.

    If the lines cannot be written, the exit status stays 0: the result is in the run directory, and a script that sees
    another status would train again.
    """
    lines = _describe_summary(folder, drawn=drawn)
    try:
        click.echo("\n".join(lines))
    except OSError as error:
        silence(sys.stdout)
        line = f"fedray: the run is complete in {folder}; only its result could not be printed ({error.strerror})"
        click.echo(line, err=True)


def _describe_summary(folder: Path, *, drawn: bool) -> list[str]:
    """Describes the result in a few lines."""
    from fedray.api import load
    from fedray.core.errors import TOTALS, format_score, format_total, name_score
    from fedray.core.scores import leave_out_repeats
    from fedray.report.read import mark_score, tell_choices

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
    page = folder / "report.html"
    return [
        *scores,
        *tell_choices(summary),
        f"{', '.join(costs)} (without start-up and report), model_hash {summary['model_hash'][:16]}",
        str(page if drawn and page.is_file() else folder),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# The commands about finished runs: `fedray report`, `fedray plot` and `fedray export`.


@click.command(name="report")
@click.argument("folders", nargs=-1, required=True, **options.as_path)
@click.option("--out", **options.as_path, help="The HTML file to write (default: report.html in the first folder).")
def report_command(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write the HTML report of the run in a folder, or one report that compares the runs of several.

    Among several, YAML files are passed over: a table leaves `cells/NAME.yaml` beside `cells/NAME`.
    """
    folders = tuple(one for one in folders if not (one.suffix == ".yaml" and one.is_file())) or folders
    for folder in folders:
        if not has_file(folder, "scenario.yaml"):  # reported before anything heavy is imported
            raise BadInput(
                f"report {folder}: no scenario.yaml there: give run directories, as `fedray run` writes them"
            )
    target = out or folders[0] / "report.html"
    confirm_writable("--out", target.parent)
    log.info("drawing the report")
    with import_quickly():
        from fedray.report.page import write_report

    write_report(list(folders), target)
    click.echo(str(target))


@click.command(name="export")
@click.argument("folder", **options.as_path)
@click.option("--out", **options.as_path, help="Where the files go (default: FOLDER/export).")
@options.modules
def export_command(folder: Path, out: Path | None, modules: tuple[str, ...]) -> None:
    """Write each model of a run to a safetensors file that PyTorch can load without fedray.

    The networks take standardized inputs: models.json beside them says how, names the classes, and says with which
    weights the models answer.
    """
    from fedray.storage.directory import require_run_directory

    require_run_directory(folder)
    confirm_writable("--out", out or folder)
    import_modules(modules)
    with import_quickly():
        from fedray.api import load

    for path in load(folder).export(out):
        click.echo(str(path))


@click.command(name="plot")
@click.argument("folder", type=options.path)
@click.argument("name", required=False)
@click.option("--out", type=options.path, help="A .png, .svg or .pdf file (default: FOLDER/NAME.png).")
@click.option("--dpi", type=click.IntRange(20, 600), default=110, show_default=True, help="Pixels per inch of a PNG.")
def plot_command(folder: Path, name: str | None, out: Path | None, dpi: int) -> None:
    """Draw one picture of the report: accuracy or rmse (the default), bytes, time, drift, or any score of a run."""
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"--out {out}: the picture is a .png, .svg or .pdf file: give a name that ends so")
    from fedray.storage.directory import require_run_directory

    require_run_directory(folder)
    confirm_writable("--out", folder if out is None else out.parent)
    with import_quickly():
        from fedray.api import load
        from fedray.report.read import read_run

    name = name or read_run(folder).metric
    target = out or folder / f"{name}.png"
    picture = io.BytesIO()
    load(folder).plot(name).savefig(picture, format=target.suffix[1:], dpi=dpi, bbox_inches="tight")
    make_parent(target)
    write_atomically(target, picture.getvalue())
    click.echo(str(target))
