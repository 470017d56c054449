"""Runs the command `fedray`, or `python -m fedray`.

Signal handlers are set before large modules are imported.
"""

import atexit
import signal
import sys
from contextlib import ExitStack

from fedray.process import end_on_signals, exit_quickly, flush_streams, list_signals


def main() -> None:
    """Runs the command line, and ends the process with its exit status."""
    contexts = ExitStack()
    contexts.enter_context(end_on_signals())

    def stop_watching() -> None:
        contexts.close()
        for number in list_signals():  # the work is finished, so a signal may now end the process without a message
            signal.signal(number, signal.SIG_DFL)

    atexit.register(stop_watching)  # the function that is registered first is called last
    from fedray.cli.commands import main as run_command_line

    status: int | str = 0
    try:
        run_command_line()
    except SystemExit as end:
        status = end.code or 0
    flush_streams()
    if isinstance(status, int):
        exit_quickly(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
