"""Errors of a user's own code in a run: one line with the place in their code, and the traceback in `error.txt`.

Example:
    >>> import tempfile
    >>> from fedray.scenario.loader import read_scenario
    >>> with explain_run(read_scenario({}), Path(tempfile.mkdtemp()), UserObjects(method=dict)) as shield:
    ...     raise ValueError("no such model")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.FedrayError: method builtins.dict: ValueError: no such model (traceback: .../error.txt)
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedray.assembly.user_objects import UserObjects, explain_own_objects
from fedray.core.errors import BadInput, FedrayError
from fedray.files.plain import write_atomically
from fedray.runtime.session import Snapshot, Watch
from fedray.scenario.schema import Scenario
from fedray.storage.failure import forget_failure, record_failure

TRACEBACK_FILE = "error.txt"  # in the run directory


@contextmanager
def explain_run(scenario: Scenario, out: Path, own: UserObjects) -> Iterator[Callable[[Watch], Watch]]:
    """Says in one line what the user's own objects raised in the block, and keeps the traceback as `error.txt`.

    Whatever ends the run is kept in the run directory too, for `Run.error`.

    Args:
        scenario: what is run.
        out: the run directory.
        own: the user's Python objects.

    Yields:
        A function that shields a watcher: what the user's watcher raises itself reaches them as it is.
    """
    from_watch: list[Exception] = []

    def shield(watch: Watch) -> Watch:
        def show(snapshot: Snapshot) -> None:
            try:
                watch(snapshot)
            except Exception as error:
                from_watch.append(error)
                raise

        return show

    (out / TRACEBACK_FILE).unlink(missing_ok=True)  # of an earlier session
    forget_failure(out)
    try:
        with _explain_own(scenario, out, own, from_watch):
            yield shield
    except BadInput:
        raise
    except Exception as error:
        record_failure(out, error)
        raise


@contextmanager
def _explain_own(scenario: Scenario, out: Path, own: UserObjects, from_watch: list[Exception]) -> Iterator[None]:
    """One line for what the user's own objects raise; what their watcher raises passes as it is."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if any(error is one for one in from_watch):
            raise
        told = explain_own_objects(error, scenario, own)
        if told is None:
            raise
        if type(told) is FedrayError and told.__cause__ is not None:
            told.args = (f"{told}{_keep_traceback(told.__cause__, out)}",)
        if told is error:
            raise
        raise told from told.__cause__


def _keep_traceback(cause: BaseException, out: Path) -> str:
    """Writes a traceback to the run directory and says where it is; a full disk must not hide the error."""
    path = out / TRACEBACK_FILE
    with suppress(FedrayError, OSError):
        write_atomically(path, "".join(traceback.format_exception(cause)).encode(errors="replace"))
        return f" (traceback: {path})"
    return ""
