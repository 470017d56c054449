"""The options that several commands share.

Example:
    >>> @click.command()
    ... @modules
    ... def try_command(modules):
    ...     click.echo(modules)
    >>> try_command.main(["--import", "math", "--import", "json"], standalone_mode=False)
    ('math', 'json')
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fedray.experiments.live import Heard, log
from fedray.files.plain import expand_user_path
from fedray.runtime.environment import read_awaited


def path(text: str) -> Path:
    """Converts the text of an argument or option to a path; expands `~`, which no shell does in `--out=~/run`."""
    return expand_user_path("the path", text)


def complete_path(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Returns the completions of Tab for a path: the shell's own files."""
    return [CompletionItem(typed, type="file")]


def complete_file(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Returns the completions of Tab for a scenario or a sweep: files, and the names that come with fedray."""
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
    callback=lambda _context, _parameter, text: None if text is None else read_awaited(text),
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


def _set_level(level: int) -> Callable[[click.Context, click.Parameter, bool], None]:
    """Makes the callback of an option that sets the level of the log."""

    def act(_context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
        if wanted:
            log.setLevel(level)

    return act


_quiet = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_set_level(logging.WARNING),
    help="Say nothing but warnings, errors and the result.",
)
_verbose = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_set_level(logging.DEBUG),
    help="Show the traceback of an error too, and what your code prints in the actors of Ray.",
)


def loudness(command: _Command) -> _Command:
    """Gives a command the options `--quiet` and `--verbose`."""
    return _quiet(_verbose(command))


def current_phase() -> Heard:
    """Returns the current phase of the running command."""
    context = click.get_current_context(silent=True)
    return (context.find_object(Heard) if context else None) or Heard()


def say_line(text: str) -> None:
    """Prints a line about the progress to stderr; with `--quiet` prints nothing."""
    if log.level <= logging.INFO:
        current_phase().speak()
        click.echo(text, err=True)
