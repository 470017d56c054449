"""All cases of a user's own objects: through `fedray.run`, by their names on the command line, some in actors of Ray.

`python tools/hostile/own_objects.py [WORDS]` prints what each case says (those whose names have all of the words), and
where that is wrong. A case that goes wrong is one line, with the line of the user's code that raised.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

import yaml
from own_case import SCENARIO, Case, forget_calls, good_data, good_model
from own_data import DATA
from own_methods import METHODS
from own_models import MODELS, Mine
from own_names import forgetting_names
from small import run_command
from torch import Tensor, nn

import fedray
from fedray.core.errors import FedrayError
from fedray.scenario.nested import merge_keys

CASES = [*DATA, *MODELS, *METHODS]


def scenario_of(case: Case) -> dict[str, Any]:
    """Returns the small scenario with the keys of a case."""
    return merge_keys(dict(SCENARIO), case.keys)


def register_case(case: Case) -> None:
    """Gives the object of a case its name, and the good ones theirs."""
    fedray.register("data", "good_data", lambda _root: good_data())
    fedray.register("model", "good_model", lambda _shape, _outputs: good_model())
    if case.kind == "data" and case.title != "takes two arguments":
        fedray.register("data", case.name, lambda _root: case.thing())
    elif case.kind == "model" and case.title != "wants an argument":
        fedray.register("model", case.name, lambda _shape, _outputs: case.thing())
    else:
        fedray.register(case.kind, case.name, case.thing)


def named_scenario(case: Case) -> dict[str, Any]:
    """Returns a scenario that uses the object of a case by its name."""
    keys = merge_keys(scenario_of(case), {"data": {"name": "good_data"}, "model": {"name": "good_model"}})
    return merge_keys(keys, {case.kind: {"name": case.name}})


def run_objects(case: Case, out: Path) -> fedray.Run:
    """Runs a case with its object passed to `fedray.run`; a data set comes from its registered loader."""
    forget_calls()
    if case.kind == "data":
        register_case(case)
        return fedray.run(named_scenario(case), out=out)
    mine: dict[str, Any] = {"data": good_data(), "model": good_model, case.kind: case.thing}
    return fedray.run(scenario_of(case), out=out, **mine)


def write_module(case: Case, folder: Path) -> tuple[Path, Path]:
    """Writes a module that registers the object of a case, and a scenario that uses it, for the command line."""
    forget_calls()
    module, scenario = folder / f"mine_{case.name}.py", folder / "scenario.yaml"
    module.write_text(
        "from own_objects import CASES, register_case\n\n"
        f"register_case(next(case for case in CASES if case.name == {case.name!r}))\n"
    )
    scenario.write_text(yaml.safe_dump(named_scenario(case)))
    return module, scenario


def fits_case(case: Case, line: str) -> bool:
    """Returns whether a message is one line, says what is wrong, and names the line of the user's code that raised."""
    if case.says is None or "\n" in line or not re.search(case.says, line):
        return False
    return not case.is_raised or re.search(r"\(\S*own_\w+\.py:\d+\)", line) is not None


def find_fault(case: Case, out: Path) -> str:
    """Passes an object to `fedray.run`; what is wrong with what it says, empty where all is right."""
    try:
        rounds = run_objects(case, out).summary["rounds"]
    except FedrayError as error:
        said = str(error)
        return "" if fits_case(case, said) and case.kind in said else f"it says {said}"
    return "" if case.says is None and rounds == SCENARIO["rounds"] else f"it ran {rounds} rounds"


def find_fault_of_command(case: Case, folder: Path) -> str:
    """Uses an object by its name on the command line. Returns what is wrong with the messages, or an empty text."""
    module, scenario = write_module(case, folder)
    with contextlib.chdir(folder):
        done = run_command("run", scenario, "--out", folder / "run", "--import", module.stem)
    lines = [line for line in done.err.splitlines() if line.startswith("fedray: ") and "note: " not in line]
    if case.says is None:
        right = (done.status, lines) == (0, [])
    else:  # one line, the last one
        right = done.status in (1, 2) and len(lines) == 1 and done.err.splitlines()[-1] == lines[0]
        right = right and fits_case(case, lines[0])
    return "" if right and "Traceback" not in done.err + done.out else f"status {done.status}: {done.err}"


def only_elsewhere(change: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    """Returns a factory of networks that have wrong outputs only in other processes."""
    here = os.getpid()
    return lambda: Mine(lambda module, out: change(out) if os.getpid() != here and not module.training else out)


def raise_elsewhere(out: Tensor) -> Tensor:
    if len(out) > 8:
        raise ValueError("not in this process")
    return out


BY_NAME = {case.name: case for case in CASES}
ON_RAY: dict[str, tuple[dict[str, Any], str]] = {
    "evaluation": ({"model": only_elsewhere(raise_elsewhere)}, r"ValueError: not in this process \(\S+.py:\d+\)"),
    "outputs": ({"model": only_elsewhere(lambda out: out[:-1] if len(out) > 8 else out)}, "puts out shape"),
    "training": ({"model": BY_NAME["model_fails_later"].thing}, r"ValueError: my layer is broken \(\S+.py:\d+\)"),
    "plan": ({"method": BY_NAME["method_plan_is_none"].thing}, "schedule returned None"),
    "step": ({"method": BY_NAME["method_step_raises"].thing}, r"ValueError: my method is broken \(\S+.py:\d+\)"),
    "reduce": ({"method": BY_NAME["method_reduce_returns_none"].thing}, "server.reduce returned None"),
}


def find_fault_on_ray(name: str, out: Path) -> str:
    """Runs an object that fails in an actor. Returns what is wrong with its message, or an empty text."""
    objects, says = ON_RAY[name]
    mine: dict[str, Any] = {"data": good_data(), "model": good_model} | objects
    try:
        fedray.run(SCENARIO | {"runtime": "ray"}, out=out, **mine)
    except FedrayError as error:
        return "" if re.search(says, str(error)) and "\n" not in str(error) else f"it says {error}"
    return "it ran to its end"


def try_case(name: str, find: Callable[[], str]) -> bool:
    """Prints a line about a case; returns whether it is right."""
    began = time.perf_counter()
    try:
        fault = find()
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"traceback {type(error).__name__}: {error} {Path(place.filename).name}:{place.lineno}"
    print(f"{name} [{time.perf_counter() - began:.1f} s]: {fault or 'right'}", flush=True)
    return not fault


def main(words: list[str]) -> None:
    """Tries each case in each way; ends with status 1 where one is wrong."""
    right: list[bool] = []
    for case in CASES:
        if all(word in case.name for word in words):
            with tempfile.TemporaryDirectory() as folder, forgetting_names():
                right.append(try_case(case.name, lambda: find_fault(case, Path(folder) / "out")))  # noqa: B023
            with tempfile.TemporaryDirectory() as folder, forgetting_names():
                right.append(try_case(f"{case.name} by name", lambda: find_fault_of_command(case, Path(folder))))  # noqa: B023
    for name in ON_RAY:
        if not words:
            with tempfile.TemporaryDirectory() as folder:
                right.append(try_case(f"{name} on Ray", lambda: find_fault_on_ray(name, Path(folder) / "out")))  # noqa: B023
    for kind in ("data", "model", "method"):
        works = [case.says is None for case in CASES if case.kind == kind]
        print(f"{kind}: {works.count(False)} go wrong, {works.count(True)} work")
    print(f"{right.count(False)} of {len(right)} are wrong")
    sys.exit(not all(right))


if __name__ == "__main__":
    main(sys.argv[1:])
