"""The command line. Heavy modules load inside the commands, so that `fedray --help` answers at once.

Example:
    >>> main(["list", "partitions"])  # doctest: +ELLIPSIS
    partitions:
    ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from fedray import __version__
from fedray.cli.notes import show_notes
from fedray.core.errors import BadInput, FedrayError
from fedray.core.user_modules import import_modules


@contextmanager
def exit_with_one_line() -> Iterator[None]:
    """Ends the program with one line instead of a traceback, and exit status 2 for bad input, 1 for other failures."""
    try:
        yield
    except FedrayError as error:
        click.echo(f"fedray: {error}", err=True)
        sys.exit(2 if isinstance(error, BadInput) else 1)
    except (KeyboardInterrupt, click.Abort):  # click makes the second of the first
        click.echo("fedray: interrupted; `fedray resume DIR` continues from the newest checkpoint", err=True)
        sys.exit(1)
    except BrokenPipeError:  # the reader of the output, `head` say, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a name too long for the file system, a disk that is gone
        click.echo(f"fedray: {error.filename or 'the system'}: {error.strerror or error}", err=True)
        sys.exit(1)
    except MemoryError as error:
        click.echo(f"fedray: out of memory ({error}): lower method.models, replicates or the model's size", err=True)
        sys.exit(1)


_out = click.option("--out", type=click.Path(path_type=Path), help="Directory of the run (default: runs/SCENARIO).")
_address = click.option("--address", help="A running Ray cluster (default: one is started here for the run).")
_import = click.option("--import", "modules", multiple=True, metavar="MODULE", help="Your own module, imported first.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fedray")
def commands() -> None:
    """Simulate ensemble federated learning on one machine or a Ray cluster."""


@commands.command(name="run")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@_out
@_address
@_import
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


@commands.command(name="resume")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--rounds", type=click.IntRange(1, 10**7), help="Make the run longer: how many rounds there are in all.")
@_address
@_import
def resume_command(folder: Path, rounds: int | None, address: str | None, modules: tuple[str, ...]) -> None:
    """Continue the run in FOLDER from its newest checkpoint; the result is that of a run without interruption."""
    import_modules(modules)
    from fedray.assembly.user_objects import UserObjects
    from fedray.cli.live import watch_run
    from fedray.experiments.run import resume_run

    with watch_run(f"resuming {folder}") as watch:
        resume_run(folder, UserObjects(modules=modules), watch, address=address, rounds=rounds)
    _show_summary(folder)


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


@commands.command(name="check")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@_address
@_import
def check_command(scenario: str, overrides: tuple[str, ...], address: str | None, modules: tuple[str, ...]) -> None:
    """Check a scenario without a run, and print what follows from it: tiers, actors, memory, bytes in a round."""
    from fedray.scenario.loader import read_cells, read_scenario

    import_modules(modules)
    wanted = read_scenario(Path(scenario), overrides)
    from fedray.experiments.check import explain_scenario

    click.echo(explain_scenario(wanted, address))
    for cell in read_cells(wanted) if wanted.table else []:
        click.echo(f"cell {cell.name}: {cell.scenario.method.name}, {cell.scenario.rounds} rounds")


@commands.command(name="report")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The HTML file to write (default: report.html in the first folder)."
)
def report_command(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write the HTML report of the run in a folder, or one report that compares the runs of several."""
    from fedray.report.write import write_report

    target = out or folders[0] / "report.html"
    write_report(list(folders), target)
    click.echo(str(target))


@commands.command(name="table")
@click.argument("scenario")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory; finished cells are kept.")
@click.option("--jobs", type=int, default=1, show_default=True, help="How many cells run at the same time.")
@_address
@_import
def table_command(
    scenario: str, overrides: tuple[str, ...], *, out: Path, jobs: int, address: str | None, modules: tuple[str, ...]
) -> None:
    """Run every cell of a scenario's table, and write table.md and table.parquet."""
    from fedray.scenario.loader import read_scenario

    import_modules(modules)
    wanted = read_scenario(Path(scenario), overrides)
    from fedray.experiments.table import run_table

    click.echo(run_table(wanted, out, jobs=jobs, address=address, modules=modules, say=partial(click.echo, err=True)))


@commands.command(name="tune")
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("--trials", type=int, help="How many trials in all (default: as SWEEP says).")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the sweep (default: runs/SWEEP).")
@click.option("--resume", is_flag=True, help="Continue an interrupted sweep; finished trials are kept.")
@click.option("--storage", metavar="URL", help="Where Optuna keeps the trials (default: a file in the directory).")
@_address
@_import
def tune_command(
    sweep: Path,
    *,
    trials: int | None,
    out: Path | None,
    resume: bool,
    storage: str | None,
    address: str | None,
    modules: tuple[str, ...],
) -> None:
    """Search for the best values of a scenario's keys with Optuna, as in `fedray tune tune/quick.yaml`."""
    import_modules(modules)
    from fedray.tuning.results import describe_summary
    from fedray.tuning.tune import run_sweep

    folder = out or Path("runs") / sweep.stem
    summary = run_sweep(
        sweep,
        folder,
        trials=trials,
        resume=resume,
        storage=storage,
        address=address,
        modules=modules,
        say=partial(click.echo, err=True),
    )
    click.echo(describe_summary(summary))
    for winner in summary["winners"][:1]:
        click.echo(f"best: trial {winner['number']}, " + ", ".join(f"{k} {v:.4g}" for k, v in winner["values"].items()))
    click.echo(f"{folder / 'best.yaml'}\n{folder / 'report.html'}")


@commands.command(name="list")
@click.argument(
    "kind", type=click.Choice(["methods", "datasets", "models", "partitions", "classifiers"]), required=False
)
def list_command(kind: str | None) -> None:
    """List the names that a scenario may use; a method trains K (as you choose), 1 or N (one a client) models."""
    from fedray.scenario import names
    from fedray.scenario.classifiers import CLASSIFIERS
    from fedray.scenario.methods import METHOD_SPECS

    models = {"any": "K", "one": "1", "clients": "N"}
    tables: dict[str, dict[str, str]] = {
        "methods": {name: f"{models[spec.models]}  {spec.text}" for name, spec in METHOD_SPECS.items()},
        "datasets": names.known_names("data"),
        "models": names.known_names("model"),
        "partitions": names.known_names("partition"),
        "classifiers": {name: text for name, (text, _) in CLASSIFIERS.items()},
    }
    for title, known in tables.items():
        if kind in (None, title):
            click.echo(f"{title}:")
            for name, meaning in known.items():
                click.echo(f"  {name:18} {meaning}")


@commands.command(name="bench")
@click.option("--quick", is_flag=True, help="Fewer and shorter measurements; takes minutes.")
@click.option("--only", multiple=True, metavar="ROW", help="A row to measure; may be repeated (default: all).")
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file to write the table to.")
def bench_command(quick: bool, only: tuple[str, ...], out: Path | None) -> None:
    """Measure how fast fedray trains, beside a plain PyTorch loop."""
    from fedray.bench.rows import run_benchmark
    from fedray.core.files import write_atomically

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):  # said before minutes of measuring
        raise BadInput(f"--out {out}: give a file in a directory that exists")
    table = run_benchmark(only, quick, click.echo)
    if out is not None:
        write_atomically(out, table.encode())


@commands.group(name="data")
def data_group() -> None:
    """Download data sets."""


@data_group.command(name="get")
@click.argument("name")
@click.option("--root", type=click.Path(path_type=Path), help="Where files go (default: $FEDRAY_DATA, or a cache).")
def data_get_command(name: str, root: Path | None) -> None:
    """Download a data set by its name; torchvision and the UCI repository have them."""
    from fedray.data.catalogue import download_data

    click.echo(str(download_data(name, root)))


@commands.command(name="export")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Where the files go (default: FOLDER/export).")
@_import
def export_command(folder: Path, out: Path | None, modules: tuple[str, ...]) -> None:
    """Write each model of a run to a safetensors file that PyTorch can load without fedray."""
    import_modules(modules)
    from fedray.api import load

    for path in load(folder).export(out):
        click.echo(str(path))


def main(arguments: list[str] | None = None) -> None:
    """The program; what is wrong with its arguments is one line too."""
    with exit_with_one_line(), show_notes(partial(click.echo, err=True)):
        try:
            commands.main(arguments, prog_name="fedray", standalone_mode=False)
        except click.UsageError as error:
            text = error.format_message()
            if "\n" in text:  # a group without a command: its help
                click.echo(text, err=True)
                sys.exit(2)
            raise BadInput(
                f"{text.rstrip('.')}: see `{error.ctx.command_path if error.ctx else 'fedray'} --help`"
            ) from None


if __name__ == "__main__":
    main()
