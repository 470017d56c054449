"""All cases of a user's own objects, and how one is run: through `fedray.run`, or by its name through the command line.

`python tests/hostile/own_objects.py [WORDS]` prints what each case says, those whose names have all of the words.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import yaml
from own_case import SCENARIO, Case, forget_calls, good_data, good_model
from own_data import DATA
from own_methods import METHODS
from own_models import MODELS

import fedray
from fedray.scenario.nested import merge_keys

CASES = [*DATA, *MODELS, *METHODS]


def scenario_of(case: Case) -> dict[str, Any]:
    """The small scenario with the keys of a case."""
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
    """The scenario that says the name of the object."""
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
    """A module that registers the object of a case, and a scenario that says its name, for the command line."""
    forget_calls()
    module, scenario = folder / f"mine_{case.name}.py", folder / "scenario.yaml"
    module.write_text(
        "from own_objects import CASES, register_case\n\n"
        f"register_case(next(case for case in CASES if case.name == {case.name!r}))\n"
    )
    scenario.write_text(yaml.safe_dump(named_scenario(case)))
    return module, scenario


def describe_case(case: Case, out: Path) -> str:
    """What a case says; it begins with !!! where that is not what it must say."""
    try:
        run_objects(case, out)
    except fedray.FedrayError as error:
        return f"{'' if fits_case(case, str(error)) else '!!! '}{type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"!!! traceback {type(error).__name__}: {error} {Path(place.filename).name}:{place.lineno}"
    return "works" if case.says is None else "!!! works"


def fits_case(case: Case, line: str) -> bool:
    """Whether a line says what it must: one line, what is wrong, and the line of the user's code where they raised."""
    if case.says is None or "\n" in line or not re.search(case.says, line):
        return False
    return not case.is_raised or re.search(r"\(\S*own_\w+\.py:\d+\)", line) is not None


def main() -> None:
    """Prints what each case says; with `-w` only those that are wrong."""
    words = [word for word in sys.argv[1:] if word != "-w"]
    for case in CASES:
        if all(word in case.name for word in words):
            began = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                said = describe_case(case, Path(folder) / "run")
            if "-w" not in sys.argv or said.startswith("!!!"):
                print(f"{case.name} [{time.perf_counter() - began:.1f} s]: {said}", flush=True)


if __name__ == "__main__":
    main()
