"""Defines the commands. Large modules are imported inside the commands, so that `fedray --help` prints at once."""

import errno
import logging
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedray import __version__
from fedray.cli import run
from fedray.core.errors import BadInput, FedrayError, format_bytes
from fedray.experiments.live import log, show_phases
from fedray.files import plain
from fedray.own_code.user_code import import_modules
from fedray.process import say_notes, silence, tolerate_stderr
from fedray.runtime import environment

# ---------------------------------------------------------------------------------------------------------------------
# The command `fedray bench`.


@click.command(name="bench")
@click.option("--quick", is_flag=True, help="Fewer and shorter measurements; takes minutes.")
@click.option("--only", multiple=True, metavar="ROW", help="A row to measure; may be repeated (default: all).")
@click.option("--out", **run.as_path, help="Markdown file to write the table to.")
def bench_command(quick: bool, only: tuple[str, ...], out: Path | None) -> None:
    """Measure how fast fedray trains, compared with a plain PyTorch loop."""
    from fedray.bench.rows import run_benchmark

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):  # reported before a long measurement
        raise BadInput(f"--out {out}: give a file in a directory that exists")
    table = run_benchmark(only, quick, click.echo)
    if out is not None:
        plain.write_atomically(out, table.encode())


# ---------------------------------------------------------------------------------------------------------------------
# The command `fedray clean`.


@click.command(name="clean")
@click.option("--yes", is_flag=True, help="Remove what is listed; without it nothing is changed.")
def clean_command(yes: bool) -> None:
    """List the temporary files that your runs have left, and remove them (--yes).

    The list has runs and sweeps that Python code started without `out`, and the folders of Ray clusters that fedray
    started. Folders that a process still uses are not removed. A cluster whose driver was just killed may still be
    ending. The command waits for it, and names it if it has not ended after 10 seconds.
    """
    places = environment.session_places()
    abandoned = [folder for folder in environment.find_sessions(places) if environment.is_abandoned(folder)]
    ending = environment.wait_for_ends(abandoned)
    found = [folder for folder in abandoned if folder not in ending]
    for folder in found:
        click.echo(f"{folder}: {format_bytes(environment.measure_size(folder))}{', removed' if yes else ''}")
        if yes:
            environment.remove_session(folder)
    for folder in ending:
        click.echo(f"{folder}: its run has ended, but processes of its Ray go on: try again when they have ended")
    free = list[bool]()  # for each folder of a run without `out`: whether no process uses it
    for folder in plain.find_temporary(places):
        free.append(not plain.is_in_use(folder))
        what = f"{format_bytes(environment.measure_size(folder))}, a run or a sweep without out="
        click.echo(f"{folder}: {what}{(', removed' if yes else '') if free[-1] else ', kept: its process goes on'}")
        if yes and free[-1]:
            shutil.rmtree(folder, ignore_errors=True)
    if not found and not ending and not free:
        click.echo(f"nothing is left of killed runs, nor of runs without out=, in {', '.join(map(str, places))}")
    elif (found or True in free) and not yes:
        click.echo("`fedray clean --yes` removes them")


# ---------------------------------------------------------------------------------------------------------------------
# The commands that list and fetch: `fedray list`, `fedray scenarios` and `fedray data`.

LISTS = (
    *("methods", "datasets", "models", "partitions", "selections", "schedules", "optimizers", "losses"),
    *("augmentations", "metrics", "callbacks", "classifiers", "columns"),
)


@click.command(name="list")
@click.argument("kind", type=click.Choice(LISTS), required=False)
@run.modules
def list_command(kind: str | None, modules: tuple[str, ...]) -> None:
    """List the names that a scenario may use.

    After each method comes the number of models that it trains: K (you choose), 1, or N (one per client).

    With --import, the names that your module registers are listed, too, with their options. `fedray list columns` shows
    the columns, and their units, of the tables that runs and sweeps write.
    """
    if kind == "columns":
        from fedray.storage.checkpoint import TABLES_OF, list_table_columns

        for table, columns in list_table_columns().items():
            click.echo(f"{TABLES_OF[table].replace('`', '')}:")
            for name, column in columns.items():
                click.echo(f"  {name:20} {column.unit:30} {column.text.replace('`', '')}")
        return
    from fedray.methods import METHOD_SPECS
    from fedray.scenario import names
    from fedray.scenario.options import CLASSIFIERS

    import_modules(modules)
    own = {name: text for name, text in names.known_names("method").items() if name not in METHOD_SPECS}
    models = {"any": "K", "one": "1", "clients": "N"}
    tables: dict[str, dict[str, str]] = {
        "methods": {name: f"{models[spec.models]}  {spec.text}" for name, spec in METHOD_SPECS.items()} | own,
        **{kind.listed: names.known_names(kind.word) for kind in names.KINDS.values() if kind.word != "method"},
        "classifiers": {name: text for name, (text, _) in CLASSIFIERS.items()},
    }
    if kind == "metrics":
        tables["metrics"] = names.known_metrics()
    for title, known in tables.items():
        if kind == title or (kind is None and known):
            click.echo(f"{title}:")
            for name, meaning in known.items():
                click.echo(f"  {name:18} {meaning}")
            if not known:
                click.echo("  none of your own: --import the module that registers them")


@click.group(name="data")
def data_group() -> None:
    """Download data sets."""


@data_group.command(name="get")
@click.argument("name")
@click.option("--root", **run.as_path, help="Where files go (default: $FEDRAY_DATA, or a cache).")
def data_get_command(name: str, root: Path | None) -> None:
    """Download a data set by its name from torchvision or the UCI repository."""
    from fedray.data.store import download_data

    click.echo(str(download_data(name, root)))


@click.group(name="scenarios", invoke_without_command=True)
@click.pass_context
def scenarios_group(context: click.Context) -> None:
    """List the scenario files and sweeps that come with fedray.

    `run`, `table`, `check` and `tune` accept their names.
    """
    if context.invoked_subcommand is None:
        from fedray.scenario.shipped import list_shipped

        for name, file in sorted(list_shipped().items(), key=lambda item: item[1].command):  # plain runs first
            click.echo(f"{file.command:6} {name:42} {file.what}")


@scenarios_group.command(name="copy")
@click.argument("name", shell_complete=run.complete_file)
@click.option("--out", **run.as_path, help="The new file (default: NAME.yaml in this folder).")
def scenarios_copy_command(name: str, out: Path | None) -> None:
    """Copy a file that comes with fedray, so that you can change it."""
    from fedray.scenario.shipped import copy_shipped

    wanted = out or Path(f"{Path(name).name}.yaml")
    copy_shipped(name, wanted)
    click.echo(str(wanted))


# ---------------------------------------------------------------------------------------------------------------------
# The command `fedray table`.


@click.command(name="table")
@run.scenario
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", **run.as_path, required=True, help="Directory; finished cells are kept.")
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
@click.option("--latex", is_flag=True, help="Print the table in LaTeX, as in table.tex.")
@run.training
def table_command(
    scenario: str,
    overrides: tuple[str, ...],
    *,
    out: Path,
    cells: str,
    metrics: str,
    jobs: int,
    latex: bool,
    no_report: bool,
    address: str | None,
    wait_for: dict[str, float] | None,
    modules: tuple[str, ...],
) -> None:
    """Run every cell of a scenario's table, and write table.md, table.tex, table.parquet and report.html."""
    from fedray.scenario.loader import import_first, read_scenario, warn_of_own_cells
    from fedray.scenario.shipped import find_scenario_file

    plain.confirm_writable(out)
    modules = import_first(find_scenario_file(scenario), modules)
    wanted = read_scenario(find_scenario_file(scenario), [*overrides, *["report=false"] * no_report])
    if not wanted.table:
        raise BadInput("table is empty: give the scenario a `table:` list of cells, or use `fedray run`")
    only, shown = ([word.strip() for word in text.split(",") if word.strip()] for text in (cells, metrics))
    warn_of_own_cells(wanted, overrides, only)
    from fedray.experiments.table import run_table

    where: dict[str, Any] = {"address": address, "wait_for": wait_for, "modules": modules}
    say = partial(run.say_line, phase=run.current_phase())  # cells speak in other threads
    result = run_table(wanted, out, only=only, metrics=shown, jobs=jobs, say=say, **where)
    click.echo((out / "table.tex").read_text(encoding="utf-8") if latex else result.text)
    if result.failed:
        many = f"{len(result.failed)} of {len(wanted.table)} cells failed"
        raise FedrayError(
            f"{many} ({', '.join(result.failed)}): {out / 'table.md'} says why; the same command tries them again"
        )


# ---------------------------------------------------------------------------------------------------------------------
# The command `fedray tune`.


@click.command(name="tune")
@click.argument("sweep", shell_complete=run.complete_file)
@click.option("--trials", type=int, help="How many trials in all (default: as SWEEP says).")
@click.option("--out", **run.as_path, help="Directory of the sweep (default: runs/SWEEP).")
@click.option("--resume", is_flag=True, help="Continue an interrupted sweep; finished trials are kept.")
@click.option("--storage", metavar="URL", help="Where Optuna keeps the trials (default: a file in the directory).")
@run.training
def tune_command(
    sweep: str, *, out: Path | None, resume: bool, no_report: bool, modules: tuple[str, ...], **others: Any
) -> None:
    """Search for the best values of a scenario's keys with Optuna, as in `fedray tune tune/quick.yaml`."""
    from fedray.scenario.loader import refuse_scenario
    from fedray.scenario.nested import load_yaml
    from fedray.scenario.shipped import find_scenario_file
    from fedray.storage.directory import refuse_taken_sweep

    path = find_scenario_file(sweep, "sweep")
    folder = out or Path("runs") / path.stem
    refuse_scenario(str(path), load_yaml(path))
    refuse_taken_sweep(folder, resume=resume)
    plain.confirm_writable(folder)
    import_modules(modules)
    from fedray.tuning.tune import describe_summary, run_sweep

    report = not no_report
    summary = run_sweep(path, folder, resume=resume, modules=modules, report=report, say=run.say_line, **others)
    click.echo(describe_summary(summary))
    for winner in summary["winners"][:1]:
        what = summary.get("first_winner", "best")
        click.echo(
            f"{what}: trial {winner['number']}, " + ", ".join(f"{k} {v:.4g}" for k, v in winner["values"].items())
        )
    click.echo(str(folder / "best.yaml"))
    if report:
        click.echo(str(folder / "report.html"))


# ---------------------------------------------------------------------------------------------------------------------
# The command line. Large modules are imported inside the commands, so `fedray --help` prints at once.

_WRONG_PATH = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


@contextmanager
def exit_with_one_line() -> Iterator[None]:
    """If the `with` block fails, ends the program with one line instead of a traceback.

    The exit status is 2 for bad input, and 1 for other failures.
    """
    try:
        yield
    except FedrayError as error:
        if log.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        click.echo(f"fedray: {error}", err=True)
        sys.exit(2 if isinstance(error, BadInput) else 1)
    except BrokenPipeError:  # the program that reads the output, such as `head`, has closed it
        silence(sys.stdout)
        sys.exit(1)
    except OSError as error:  # another user's path, or a lost disk
        is_path = error.filename is not None and error.errno in _WRONG_PATH
        click.echo(f"fedray: {error.filename or 'the system'}: {error.strerror or error}", err=True)
        sys.exit(2 if is_path else 1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@run.loudness
@click.version_option(__version__, prog_name="fedray")
def commands() -> None:
    """Simulate ensemble federated learning on one machine or a Ray cluster.

    To begin: `fedray run quickstart` trains five models over 100 clients, and writes a report below the current folder.
    `fedray scenarios` lists more scenarios, and `fedray list methods` lists the methods. `fedray check quickstart
    --all` prints every key, and `fedray docs KEY` explains one.
    """


for _command in (  # in the order of `fedray --help`
    *(run.run_command, run.resume_command, run.check_command, run.docs_command, run.report_command),
    *(run.compare_command, run.plot_command, table_command, tune_command, list_command, scenarios_group),
    *(bench_command, data_group, run.export_command, clean_command),
):
    _command.short_help = (_command.help or "").partition("\n\n")[0]  # the whole text: click would shorten its own
    commands.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line. Errors of the user, such as wrong arguments, are reported in one line.

    Example:
        >>> main(["list", "partitions"])  # doctest: +ELLIPSIS
        partitions:
        ...
    """
    say = partial(click.echo, err=True)
    with tolerate_stderr(), show_phases(say) as progress, exit_with_one_line(), warnings.catch_warnings():
        say_notes(say)
        try:
            commands.main(arguments, prog_name="fedray", standalone_mode=False, obj=progress)
        except click.UsageError as error:
            text = error.format_message()
            if "\n" in text:  # the help of a group without a command
                click.echo(text, err=True)
                sys.exit(2)
            command = error.ctx.command_path if error.ctx else "fedray"
            raise BadInput(f"{text.rstrip('.')}: see `{command} --help`") from None
