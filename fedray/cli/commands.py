"""The command line. Heavy modules load inside the commands, so that `fedray --help` answers at once."""

from __future__ import annotations

import errno
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import click

from fedray import __version__
from fedray.cli.bench import bench_command
from fedray.cli.catalogue import data_group, list_command, scenarios_group
from fedray.cli.clean import clean_command
from fedray.cli.options import loudness
from fedray.cli.run import (
    check_command,
    export_command,
    plot_command,
    report_command,
    resume_command,
    run_command,
)
from fedray.cli.table import table_command
from fedray.cli.tune import tune_command
from fedray.core.errors import BadInput, FedrayError
from fedray.experiments.live import log, show_phases
from fedray.process.session import show_notes, silence, tolerate_stderr

# ---------------------------------------------------------------------------------------------------------------------
# The command line. Heavy modules load inside the commands, so that `fedray --help` answers at once.

_WRONG_PATH = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


@contextmanager
def exit_with_one_line() -> Iterator[None]:
    """Ends the program with one line instead of a traceback, and exit status 2 for bad input, 1 for other failures."""
    try:
        yield
    except FedrayError as error:
        if log.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        click.echo(f"fedray: {error}", err=True)
        sys.exit(2 if isinstance(error, BadInput) else 1)
    except (KeyboardInterrupt, click.Abort):  # click makes the second of the first
        click.echo("fedray: interrupted; `fedray resume DIR` continues from the newest checkpoint", err=True)
        sys.exit(1)
    except BrokenPipeError:  # the reader of the output, `head` say, has closed it
        silence(sys.stdout)
        sys.exit(1)
    except OSError as error:  # a path of somebody else, a disk that is gone
        is_path = error.filename is not None and error.errno in _WRONG_PATH
        click.echo(f"fedray: {error.filename or 'the system'}: {error.strerror or error}", err=True)
        sys.exit(2 if is_path else 1)
    except MemoryError as error:
        click.echo(f"fedray: out of memory ({error}): lower method.models, replicates or the model's size", err=True)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@loudness
@click.version_option(__version__, prog_name="fedray")
def commands() -> None:
    """Simulate ensemble federated learning on one machine or a Ray cluster.

    To begin: `fedray run quickstart` trains five models over 100 clients, and writes a report below this folder.
    `fedray scenarios` lists more, `fedray check quickstart --all` prints every key, `fedray list methods` the methods.
    """


for _command in (
    run_command,
    resume_command,
    check_command,
    report_command,
    plot_command,
    table_command,
    tune_command,
    list_command,
    scenarios_group,
    bench_command,
    data_group,
    export_command,
    clean_command,
):
    _command.short_help = (_command.help or "").partition("\n\n")[0]  # whole: click cuts what it makes itself
    commands.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """The program; what is wrong with its arguments is one line too.

    Example:
        >>> main(["list", "partitions"])  # doctest: +ELLIPSIS
        partitions:
        ...
    """
    say = partial(click.echo, err=True)
    with tolerate_stderr(), show_phases(say) as heard, exit_with_one_line(), show_notes(say):
        try:
            commands.main(arguments, prog_name="fedray", standalone_mode=False, obj=heard)
        except click.UsageError as error:
            text = error.format_message()
            if "\n" in text:  # a group without a command: its help
                click.echo(text, err=True)
                sys.exit(2)
            command = error.ctx.command_path if error.ctx else "fedray"
            raise BadInput(f"{text.rstrip('.')}: see `{command} --help`") from None


if __name__ == "__main__":
    main()
