"""Defines the commands that start, check or read runs, and the options that they share with other commands.

The commands are `run`, `resume`, `check` and `docs` for a scenario, and `report`, `compare`, `export` and `plot` for
finished runs. `fedray/cli/commands.py` has the other commands. A shared option is a decorator, such as `modules`, which
gives a command the option `--import`.

Example:
    >>> @click.command()
    ... @modules
    ... def try_command(modules):
    ...     click.echo(modules)
    >>> try_command.main(["--import", "math", "--import", "json"], standalone_mode=False)
    ('math', 'json')
"""

from __future__ import annotations

import dataclasses
import io
import logging
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fedray.core.errors import TOTALS, BadInput, format_score, format_total, name_score
from fedray.core.scores import drop_repeats
from fedray.experiments.live import ProgressPhase, log, watch_run
from fedray.files.plain import confirm_writable, expand_user_path, write_user_file
from fedray.own_code.user_code import import_modules
from fedray.process import import_quickly, silence
from fedray.runtime.environment import find_address, read_wait_for

if TYPE_CHECKING:  # torch and Optuna are slow to import
    from matplotlib.figure import Figure

    from fedray.experiments.results import Run
    from fedray.tuning.tune import SweepResult

# ---------------------------------------------------------------------------------------------------------------------
# The options that several commands share.


def path(text: str) -> Path:
    """Converts an argument or option to a path. Expands `~`, because shells do not expand it in `--out=~/run`."""
    return expand_user_path("the path", text)


def complete_path(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Returns the completions of a path for the key Tab. The shell itself finds the files."""
    return [CompletionItem(typed, type="file")]


def complete_file(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Returns the completions of a scenario or sweep for the key Tab: files, and names that come with fedray."""
    from fedray.scenario.shipped import list_shipped

    wanted = {"sweep": ("tune",), "scenario": ("run", "table")}.get(parameter.name or "", ("run", "table", "tune"))
    names = {name: file for name, file in list_shipped().items() if file.command in wanted and name.startswith(typed)}
    return complete_path(context, parameter, typed) + [CompletionItem(n, help=file.what) for n, file in names.items()]


as_path: dict[str, Any] = {"type": path, "shell_complete": complete_path}  # keywords of click for a path
scenario = click.argument("scenario", shell_complete=complete_file)
out = click.option(
    "--out",
    **as_path,
    help="Directory of the run (default: the first free one of runs/SCENARIO, runs/SCENARIO-2, ...).",
)
address = click.option(
    "--address", help="A running Ray cluster: auto, or HOST:PORT (default: where Ray is needed, one is started here)."
)
wait_for = click.option(
    "--wait-for",
    metavar="NAME=AMOUNT,...",
    callback=lambda _context, _parameter, text: None if text is None else read_wait_for(text),
    help="Begin when the cluster has this, as in hpc=32,lpc=8: its nodes are still starting.",
)
no_report = click.option(
    "--no-report", is_flag=True, help="Draw no report.html; `report: false` in a scenario does so too."
)
force = click.option("--force", is_flag=True, help="Replace the run that the directory holds; it is removed.")
modules = click.option(
    "--import", "modules", multiple=True, metavar="MODULE", help="Your own module (mine, or mine.py), imported first."
)
_Command = TypeVar("_Command", bound=Callable[..., Any])


_quiet = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=lambda _context, _parameter, wanted: log.setLevel(logging.WARNING) if wanted else None,
    help="Say nothing but warnings, errors and the result.",
)
_verbose = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=lambda _context, _parameter, wanted: log.setLevel(logging.DEBUG) if wanted else None,
    help="Show the traceback of an error too, and what your code prints in the actors of Ray.",
)


def loudness(command: _Command) -> _Command:
    """Gives a command the options `--quiet` and `--verbose`."""
    return _quiet(_verbose(command))


def training(command: _Command) -> _Command:
    """Gives a command the options of all commands that train."""
    return no_report(address(wait_for(modules(loudness(command)))))


def current_phase() -> ProgressPhase:
    """Returns the object that says what the running command is doing now, such as reading the data."""
    context = click.get_current_context(silent=True)
    return (context.find_object(ProgressPhase) if context else None) or ProgressPhase()


def say_line(text: str, phase: ProgressPhase | None = None) -> None:
    """Prints a line about the progress to stderr, unless `--quiet` is set.

    `phase` is the result of `current_phase` in the main thread. Other threads must give it.
    """
    if log.level <= logging.INFO:
        (phase or current_phase()).record_line()
        click.echo(text, err=True)


# ---------------------------------------------------------------------------------------------------------------------
# The commands about one scenario: `fedray run`, `fedray resume`, `fedray check` and `fedray docs`.
#
# Some errors are reported before torch is imported: a missing file, an unknown name or key, a taken directory.


@click.command(name="run")
@scenario
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@out
@force
@training
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
    """Run a scenario file. KEY=VALUE changes a key of the scenario, as in `rounds=20 method=fedavg`.

    SCENARIO is a YAML file, or a name that `fedray scenarios` lists. `fedray check SCENARIO --all` prints all keys.
    """
    from fedray.scenario.loader import import_first, read_scenario
    from fedray.scenario.shipped import find_scenario_file
    from fedray.storage.directory import claim_numbered, refuse_taken

    path = find_scenario_file(scenario)
    wanted_folder = out or Path("runs") / path.stem
    if out is not None or force:
        refuse_taken(wanted_folder, force=force)
    confirm_writable(wanted_folder)
    modules = import_first(path, modules)
    wanted = read_scenario(path, overrides)
    wanted = dataclasses.replace(wanted, report=wanted.report and not no_report)
    with nullcontext(wanted_folder) if out is not None or force else claim_numbered(wanted_folder) as folder:
        with import_quickly():
            from fedray.assembly.registry import UserObjects
            from fedray.experiments.run import run_scenario

        note = "" if folder == wanted_folder else f"{wanted_folder} is taken: this run is written to {folder}"
        with watch_run(f"{wanted.method.name} on {wanted.data.name}", current_phase(), note) as watch:
            own = UserObjects(modules=modules)
            run_scenario(wanted, folder, own, watch, address=address, wait_for=wait_for, force=force)
    _show_summary(folder, drawn=wanted.report)


@click.command(name="resume")
@click.argument("folder", **as_path)
@click.option("--rounds", type=click.IntRange(1, 10**7), help="Make the run longer: how many rounds there are in all.")
@training
def resume_command(
    folder: Path,
    *,
    rounds: int | None,
    no_report: bool,
    address: str | None,
    wait_for: dict[str, float] | None,
    modules: tuple[str, ...],
) -> None:
    """Continue the run in FOLDER from its newest checkpoint. The result equals that of a run without interruption."""
    from fedray.scenario.loader import import_first
    from fedray.storage.directory import require_run_directory

    require_run_directory(folder)
    confirm_writable(folder)
    with import_quickly():
        from fedray.assembly.registry import UserObjects
        from fedray.experiments.run import resume_run
        from fedray.storage.summary import read_keys

    modules = import_first(read_keys(folder), modules)
    own = UserObjects(modules=modules)
    with watch_run(f"resuming {folder}", current_phase()) as watch:
        resume_run(folder, own, watch, address=address, wait_for=wait_for, rounds=rounds, report=not no_report)
    _show_summary(folder, drawn=not no_report and read_keys(folder).get("report") is not False)


@click.command(name="check")
@scenario
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@address
@modules
@click.option(
    "--plot", **as_path, help="Draw the training rows of each class at each client, to this .png, .svg or .pdf."
)
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
    """Check a scenario without a run, and print the tiers, actors, memory and bytes per round that it needs.

    SCENARIO is a YAML file, or a name that `fedray scenarios` lists. KEY=VALUE changes a key of the scenario.
    """
    from fedray.scenario.loader import dump_scenario, import_first, read_cells, read_scenario, warn_of_own_cells
    from fedray.scenario.shipped import find_scenario_file

    if plot is not None:
        _confirm_picture("--plot", plot)
    path = find_scenario_file(scenario)
    import_first(path, modules)
    wanted = read_scenario(path, overrides)
    warn_of_own_cells(wanted, overrides)
    address = find_address(wanted.runtime, address)
    with import_quickly():
        from fedray.experiments.check import explain_scenario

    facts = explain_scenario(wanted, address, None if plot is None else partial(_write_picture, out=plot, dpi=80))
    if every_key:  # the text that a run writes into its `scenario.yaml`
        click.echo(dump_scenario(wanted), nl=False)
        return
    click.echo(facts)
    for cell in read_cells(wanted) if wanted.table else []:
        click.echo(f"cell {cell.name}: {cell.scenario.method.name}, {cell.scenario.rounds} rounds")


@click.command(name="docs")
@click.argument("key", required=False, metavar="[KEY]")
@modules
def docs_command(key: str | None, modules: tuple[str, ...]) -> None:
    """Print what a scenario key, a section, or all keys mean, with values and defaults.

    Examples are `fedray docs local.lr`, `fedray docs participation`, and `fedray docs method.mu` for an option of
    methods. With --import, the options of your module's objects are explained, too.
    """
    from fedray.scenario.keys import explain_keys

    import_modules(modules)
    click.echo(explain_keys(key, width=min(110, shutil.get_terminal_size().columns)))


def _show_summary(folder: Path, *, drawn: bool) -> None:
    """Prints the result of a run in a few lines.

    If the lines cannot be printed, the exit status stays 0. The result is in the run directory, and a script that sees
    a different status would train again.
    """
    from fedray.api import load
    from fedray.report.read import list_score_notes, mark_score

    summary = load(folder).summary
    totals, metrics = summary["totals"], drop_repeats(summary["metrics"])
    worlds = max((value["n"] for value in metrics.values()), default=1)
    names = {name: name_score(name) for name in metrics}
    width = max(38, *map(len, names.values()))
    scores = [
        f"{names[name]:{width}} {mark_score(format_score(value, worlds, name) or 'not a number', summary)}"
        for name, value in metrics.items()
    ]
    costs = [f"{name_score(name)} {format_total(name, totals[name])}" for name in TOTALS]
    several = f"; bytes of all {worlds} replicates and folds" if worlds > 1 else ""
    page = folder / "report.html"
    lines = [
        *scores,
        *list_score_notes(summary),
        f"{', '.join(costs)} (without start-up and report{several}), model_hash {summary['model_hash'][:16]}",
        str(page if drawn and page.is_file() else folder),
    ]
    try:
        click.echo("\n".join(lines))
    except OSError as error:
        silence(sys.stdout)
        line = f"fedray: the run is complete in {folder}; only its result could not be printed ({error.strerror})"
        click.echo(line, err=True)


# ---------------------------------------------------------------------------------------------------------------------
# The commands about finished runs: `fedray report`, `fedray compare`, `fedray plot` and `fedray export`.


@click.command(name="report")
@click.argument("folders", nargs=-1, required=True, **as_path)
@click.option("--out", **as_path, help="The HTML file to write (default: report.html in the first folder).")
@modules
def report_command(folders: tuple[Path, ...], out: Path | None, modules: tuple[str, ...]) -> None:
    """Write the HTML report of the run or the sweep in a folder, or a report that compares the runs in several folders.

    With several arguments, YAML files are skipped, because a table writes the file `cells/NAME.yaml` beside the folder
    `cells/NAME`.
    """
    from fedray.storage.directory import has_sweep, require_run_directory

    folders = _skip_files(folders)
    if len(folders) == 1 and has_sweep(folders[0]):
        confirm_writable((out or folders[0] / "report.html").parent)
        click.echo(str(_open_sweep(folders[0], modules).write_report(out)))
        return
    for folder in folders:
        require_run_directory(folder)  # before anything heavy is imported
    target = out or folders[0] / "report.html"
    confirm_writable(target.parent)
    log.info("drawing the report")
    with import_quickly():
        from fedray.report.page import write_report

    write_report(list(folders), target)
    click.echo(str(target))


def _open_sweep(folder: Path, modules: tuple[str, ...]) -> SweepResult:
    with import_quickly():
        from fedray.tuning.tune import SweepResult

    return SweepResult.from_path(folder, modules=modules)


def _skip_files(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Removes YAML files from a list of paths, unless all of them are YAML files.

    The pattern `cells/*` of a table matches such files, too.
    """
    return tuple(one for one in folders if not (one.suffix == ".yaml" and one.is_file())) or folders


@click.command(name="compare")
@click.argument("folders", nargs=-1, required=True, **as_path)
@click.option("--metrics", metavar="NAMES", help="The scores, as in accuracy,nll (default: the usual ones).")
@click.option(
    "--at-equal",
    type=click.Choice(["rounds", "uplink", "bytes", "seconds"]),
    default="rounds",
    show_default=True,
    help="What the runs have spent alike.",
)
@click.option("--latex", is_flag=True, help="Print a LaTeX table.")
@click.option(
    "--plot", **as_path, help="Draw the curves of all runs by round, of the first score, to this .png, .svg or .pdf."
)
def compare_command(
    folders: tuple[Path, ...], metrics: str | None, at_equal: str, *, latex: bool, plot: Path | None
) -> None:
    """Compare runs with the first run: differences of each seed, 95 % intervals, and p-values of paired t tests."""
    if plot is not None:
        _confirm_picture("--plot", plot)
    with import_quickly():
        from fedray.experiments.results import compare

    wanted = None if metrics is None else [word.strip() for word in metrics.split(",")]
    found = compare(_skip_files(folders), at_equal=at_equal, metrics=wanted)
    if plot is not None:
        _write_picture(found.plot(wanted[0] if wanted else None), plot)
    click.echo("\n".join([*(f"% {note}" for note in found.notes), found.to_latex()]) if latex else str(found))


def _confirm_picture(option: str, out: Path) -> None:
    """Checks a file name before any computation.

    The ending must be `.png`, `.svg` or `.pdf`, and the folder must be writable.
    """
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"{option} {out}: the picture is a .png, .svg or .pdf file: give a name that ends so")
    confirm_writable(out.parent)


def _write_picture(figure: Figure, out: Path, dpi: int = 110) -> None:
    """Writes a figure in the format that the name of the file says."""
    picture = io.BytesIO()
    figure.savefig(picture, format=out.suffix[1:], dpi=dpi, bbox_inches="tight")
    write_user_file(out, picture.getvalue())


@click.command(name="export")
@click.argument("folder", **as_path)
@click.option("--out", **as_path, help="Where the files go (default: FOLDER/export).")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "onnx", "pt2"]),
    default="safetensors",
    show_default=True,
    help="Plain state dicts, or programs for ONNX Runtime or torch.export.load.",
)
@modules
def export_command(folder: Path, out: Path | None, kind: str, modules: tuple[str, ...]) -> None:
    """Write the models of a run to files that work without fedray.

    A safetensors file has the parameters of one network, which takes standardized inputs. An onnx or pt2 file takes raw
    inputs and returns probabilities. There is such a file for each model and for the ensemble. Each file is checked
    against the run's predictions. models.json beside the files describes the inputs, the classes and the weights of the
    models.
    """
    from fedray.storage.directory import require_run_directory

    require_run_directory(folder)
    confirm_writable(out or folder)
    import_modules(modules)
    with import_quickly():
        from fedray.api import load

    for path in load(folder).export(out, kind):
        click.echo(str(path))


@click.command(name="plot")
@click.argument("folder", **as_path)
@click.argument("name", required=False)
@click.option("--out", **as_path, help="A .png, .svg or .pdf file (default: FOLDER/NAME.png).")
@click.option("--dpi", type=click.IntRange(20, 600), default=110, show_default=True, help="Pixels per inch of a PNG.")
@modules
def plot_command(folder: Path, name: str | None, out: Path | None, dpi: int, modules: tuple[str, ...]) -> None:
    """Draw one picture of the report: accuracy or rmse (the default), bytes, time, drift, or any score of a run.

    The curves of several runs are drawn by `fedray compare FOLDERS --plot FILE`.

    A sweep has other pictures. NAME is an objective, which is drawn over the trials (by default the first objective),
    or `trials` (the first objective against each parameter), `importance`, `pareto` or `curves`.
    """
    if out is not None:
        _confirm_picture("--out", out)
    from fedray.storage.directory import has_sweep, require_run_directory

    is_sweep = has_sweep(folder)
    if not is_sweep:
        require_run_directory(folder)
    if out is None:
        confirm_writable(folder)
    drawn: Run | SweepResult
    if is_sweep:
        drawn = _open_sweep(folder, modules)
        name = name or next(iter(drawn.get_best_result().metrics))
    else:
        with import_quickly():
            from fedray.api import load
            from fedray.report.read import read_run

        drawn, name = load(folder), name or read_run(folder).metric
    target = out or folder / f"{name}.png"
    _write_picture(drawn.plot(name), target, dpi)
    click.echo(str(target))
