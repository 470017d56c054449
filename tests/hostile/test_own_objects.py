"""Own objects that go wrong are one line that names them, with the line of the user's code that raised.

`python -m pytest -q -m slow tests/hostile/test_own_objects.py` tries every case through `fedray.run` and through the
command line, and a few in the actors of Ray.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from own_case import SCENARIO, Case, good_data, good_model
from own_models import Mine
from own_objects import CASES, fits_case, run_objects, write_module
from small import run_command
from torch import Tensor, nn

import fedray
from fedray.core.errors import BadInput, FedrayError

SAMPLE = (
    "data_returns_none", "data_raises_valueerror", "data_nan_in_inputs", "model_raises", "model_answers_a_tuple",
    "model_fails_in_evaluation_skipped", "model_nan_in_evaluation", "method_returns_a_tuple", "method_plan_is_none",
    "method_step_returns_nan", "method_reduce_raises", "method_good",
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}


def find_fault(case: Case, out: Path) -> str:
    """Passes an object to `fedray.run`; what is wrong with what it says, empty where all is right."""
    try:
        rounds = run_objects(case, out).summary["rounds"]
    except FedrayError as error:
        said = str(error)
        return "" if fits_case(case, said) and case.kind in said else f"it says {said}"
    return "" if case.says is None and rounds == SCENARIO["rounds"] else f"it ran {rounds} rounds"


def find_fault_of_command(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same of an object that is used by its name on the command line."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    module, scenario = write_module(case, folder)
    done = run_command("run", scenario, "--out", folder / "run", "--import", module.stem)
    lines = [line for line in done.err.splitlines() if line.startswith("fedray: ") and "note: " not in line]
    if case.says is None:
        right = (done.status, lines) == (0, [])
    else:  # one line, the last one
        right = done.status in (1, 2) and len(lines) == 1 and done.err.splitlines()[-1] == lines[0]
        right = right and fits_case(case, lines[0])
    return "" if right and "Traceback" not in done.err + done.out else f"status {done.status}: {done.err}"


@pytest.mark.parametrize("name", SAMPLE)
def test_an_own_object_that_goes_wrong_is_one_line(name: str, tmp_path: Path) -> None:
    assert find_fault(BY_NAME[name], tmp_path / "run") == ""


@pytest.mark.parametrize("name", ["data_raises_valueerror", "model_fails_in_evaluation", "method_step_returns_none"])
def test_an_own_object_that_is_imported_and_goes_wrong_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_fault_of_command(BY_NAME[name], tmp_path, monkeypatch) == ""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_own_object(case: Case, tmp_path: Path) -> None:
    assert find_fault(case, tmp_path / "run") == ""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_own_object_on_the_command_line(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_fault_of_command(case, tmp_path, monkeypatch) == ""


def test_there_are_more_cases_than_the_day_of_breaking_had() -> None:
    assert len(CASES) > 106
    assert len(BY_NAME) == len(CASES)


def test_the_traceback_of_the_users_code_is_in_the_run_directory(tmp_path: Path) -> None:
    """One line is enough to know what failed, not always to correct it."""
    out = tmp_path / "run"
    with pytest.raises(FedrayError, match=r"\(traceback: .*error\.txt\)"):
        run_objects(BY_NAME["model_fails_in_evaluation"], out)
    text = (out / "error.txt").read_text()
    assert text.startswith("Traceback")
    assert "own_models.py" in text


def test_what_a_watcher_raises_reaches_the_user_as_it_is() -> None:
    class Enough(Exception):
        """A user's own way to end a run."""

    def watch(_snapshot: Any) -> None:
        raise Enough

    with pytest.raises(Enough):
        fedray.run(SCENARIO, data=good_data(), model=good_model, watch=watch)


def only_elsewhere(change: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    """A network that goes wrong in other processes than this one."""
    here = os.getpid()
    return lambda: Mine(lambda module, out: change(out) if os.getpid() != here and not module.training else out)


def raise_elsewhere(out: Tensor) -> Tensor:
    if len(out) > 8:
        raise ValueError("not in this process")
    return out


ON_RAY: list[tuple[str, dict[str, Any], str]] = [
    ("evaluation", {"model": only_elsewhere(raise_elsewhere)}, r"ValueError: not in this process \(\S+.py:\d+\)"),
    ("outputs", {"model": only_elsewhere(lambda out: out[:-1] if len(out) > 8 else out)}, "puts out shape"),
    ("training", {"model": BY_NAME["model_fails_later"].thing}, r"ValueError: my layer is broken \(\S+.py:\d+\)"),
    ("plan", {"method": BY_NAME["method_plan_is_none"].thing}, "schedule returned None"),
    ("step", {"method": BY_NAME["method_step_raises"].thing}, r"ValueError: my method is broken \(\S+.py:\d+\)"),
    ("reduce", {"method": BY_NAME["method_reduce_returns_none"].thing}, "server.reduce returned None"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("objects", "says"), [row[1:] for row in ON_RAY], ids=[row[0] for row in ON_RAY])
def test_own_objects_that_go_wrong_in_an_actor(objects: dict[str, Any], says: str, tmp_path: Path) -> None:
    mine: dict[str, Any] = {"data": good_data(), "model": good_model} | objects
    with pytest.raises(FedrayError, match=says) as caught:
        fedray.run(SCENARIO | {"runtime": "ray"}, out=tmp_path / "run", **mine)
    assert "\n" not in str(caught.value)


def test_a_network_that_no_other_process_can_have_is_refused(tmp_path: Path) -> None:
    lock = Lock()

    def locked() -> nn.Module:
        with lock:
            return good_model()

    with pytest.raises(BadInput, match=r"model = .*locked: it cannot be sent to the actors of Ray \(TypeError"):
        fedray.run(SCENARIO | {"runtime": "ray"}, out=tmp_path / "run", data=good_data(), model=locked)


def test_the_page_on_what_may_fail_counts_these_objects() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    for kind, row in {"data": "data sets", "model": "networks", "method": "methods"}.items():
        (counts,) = re.findall(rf"^\| {row}[^|]*\| (\d+) \| (\d+) \| 0 \|$", page, flags=re.M)
        works = [case.says is None for case in CASES if case.kind == kind]
        assert [int(count) for count in counts] == [works.count(False), works.count(True)], row
