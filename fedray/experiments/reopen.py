"""Opens a run directory again: loads the scenario and the study, and refuses both if they changed after the start."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedray.assembly.registry import UserObjects, explain_own_objects, refuse_objects, require_objects
from fedray.assembly.study import build_study, describe_study
from fedray.core.errors import BadInput, FedrayError
from fedray.files.bounded import has_file
from fedray.files.plain import write_atomically
from fedray.runtime.session import Watch, note_errors
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import load_yaml
from fedray.scenario.schema import Scenario, section_fields
from fedray.simulation.study import Study
from fedray.storage.directory import forget_failure, record_failure, require_run_directory
from fedray.storage.summary import check_identity, check_scenario_file, read_identity, read_keys, refuse_missing_names


def read_run_scenario(out: Path, own: UserObjects) -> Scenario:
    """Returns the scenario of a run directory, and checks that the right Python objects are given.

    Args:
        out: the run directory.
        own: the Python objects of the user with which the run was started.

    Raises:
        BadInput: `out` is no run directory, an object of the run is missing, or an object was not part of the run.
    """
    require_run_directory(out)
    refuse_missing_names(out)
    scenario = read_scenario(read_keys(out), explicit=False)
    require_objects(scenario, own)
    if read_identity(out):
        refuse_objects(scenario, own)
    return scenario


def read_data_options(out: Path) -> dict[str, Any]:
    """Returns the options that were passed with the data object of a run; an empty dictionary if there are none.

    Args:
        out: the run directory, or any other path.
    """
    path = out / "scenario.yaml"
    tree = load_yaml(path) if has_file(out, path.name) else {}
    data = tree.get("data") if isinstance(tree, dict) else None
    if not isinstance(data, dict) or data.get("object") is None:
        return {}
    return {key: value for key, value in data.items() if key not in section_fields("data")}


def reopen_study(out: Path, own: UserObjects) -> Study:
    """Builds the study of a run directory again from the scenario, and returns it.

    Args:
        out: the run directory.
        own: the Python objects of the user with which the run was started.

    Raises:
        BadInput: the scenario, the data, the network or the method has changed since the run began.
    """
    scenario = read_run_scenario(out, own)
    check_scenario_file(out)
    study = build_study(scenario, own)
    if read_identity(out):
        check_identity(out, describe_study(scenario, own, study))
    return study


# ---------------------------------------------------------------------------------------------------------------------
# Errors in a user's own code during a run: one line with file and line number, and the traceback in `error.txt`.

TRACEBACK_FILE = "error.txt"  # in the run directory


@contextmanager
def explain_run(scenario: Scenario, out: Path, own: UserObjects) -> Iterator[Callable[[Watch], Watch]]:
    """Turns an exception of the user's own objects in the `with` block into an error of one line.

    The traceback is saved in `error.txt`. Any error that ends the run is also saved in the run directory, for
    `Run.error`.

    Args:
        scenario: the scenario of the run.
        out: the run directory.
        own: the user's Python objects.

    Yields:
        A function that wraps the user's watcher. An exception that the watcher raises reaches the user unchanged.

    Example:
        >>> import tempfile
        >>> from fedray.scenario.loader import read_scenario
        >>> with explain_run(read_scenario({}), Path(tempfile.mkdtemp()), UserObjects(method=dict)) as shield:
        ...     raise ValueError("no such model")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.FedrayError: method builtins.dict: ValueError: no such model (traceback: .../error.txt)
    """
    from_watch: list[Exception] = []

    (out / TRACEBACK_FILE).unlink(missing_ok=True)  # of an earlier session
    forget_failure(out)
    try:
        yield partial(note_errors, noted=from_watch)
    except BadInput:
        raise
    except Exception as error:
        known = any(error is one for one in from_watch)  # the watcher's exceptions pass unchanged
        told = None if known else explain_own_objects(error, scenario, own)
        if type(told) is FedrayError and told.__cause__ is not None:
            with suppress(FedrayError, OSError):  # a full disk must not hide the error
                text = "".join(traceback.format_exception(told.__cause__))
                write_atomically(out / TRACEBACK_FILE, text.encode(errors="replace"))
                told.args = (f"{told} (traceback: {out / TRACEBACK_FILE})",)
        if not isinstance(told, BadInput):
            record_failure(out, told or error)
        if told is None or told is error:
            raise
        raise told from told.__cause__
