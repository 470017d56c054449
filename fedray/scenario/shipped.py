"""Finds by name the scenarios and sweeps that come with the package, such as `quickstart` or `tune/quick`."""

import math
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from fedray.core.errors import BadInput, find_nearest, show_line
from fedray.core.options import MethodSpec
from fedray.files.plain import expand_user_path, write_user_file
from fedray.methods.beta_predbayes import FIT
from fedray.scenario.names import UNKNOWN, method_spec_of

# ---------------------------------------------------------------------------------------------------------------------
# Facts about a method that decide how its scores are compared with those of other methods.
#
# All functions take the plain keys of a resolved scenario, as in the `scenario.yaml` of a run directory.


def find_last_phase_start(keys: Mapping[str, Any]) -> int:
    """Returns the round after which the last phase of a method begins.

    Scores of earlier phases are not scores of the method. The round is 0 for a method with a single phase, and for a
    method that fedray does not know.

    Example:
        >>> stack = {"name": "stacking", "meta": "softmax"}
        >>> [find_last_phase_start({"rounds": 10, "method": each}) for each in (stack, stack | {"meta": "average"})]
        [10, 0]
        >>> find_last_phase_start({"rounds": 10, "method": {"name": "fedpa", "burn_in": 4}})
        4
        >>> keys = {"rounds": 1, "method": {"name": "fens", "aggregator": "neural", "meta_rounds": 500}}
        >>> find_last_phase_start(keys), has_own_rounds(keys)  # clients train alone, then they train the aggregator
        (1, True)
        >>> [answers_clients_apart({"method": {"name": each}}) for each in ("fedper", "fedavg", "bayesian_linear")]
        [True, False, False]
    """
    spec, options = _read_method(keys)
    if not spec.parts:
        return int(options.get("burn_in", 0))
    return int(keys.get("rounds", 0)) if count_last_phase_rounds(keys) else 0


def count_last_phase_rounds(keys: Mapping[str, Any]) -> int:
    """Returns the number of rounds in the last phase of a method, or 0 if the method has a single phase."""
    spec, options = _read_method(keys)
    if not spec.parts:
        return 0
    if spec.sampled:
        return int(options.get("beta", FIT) == FIT)
    needs = spec.options["meta_rounds"].needs
    assert needs is not None
    chosen = options.get(needs.key.partition(".")[2], needs.values[0])
    given = options.get("meta_rounds", spec.options["meta_rounds"].default)
    return (int(keys.get("rounds", 0)) if given is None else int(given)) if chosen in needs.values else 0


def has_own_rounds(keys: Mapping[str, Any]) -> bool:
    """Returns whether a method has several phases or no rounds.

    The rounds of such a method cannot be compared with the rounds of other methods.
    """
    spec, _ = _read_method(keys)
    return spec.parts or not spec.trains


def begins_untrained(keys: Mapping[str, Any]) -> bool:
    """Returns whether the models at round 0 are untrained. Closed-form methods have their final models at round 0."""
    return _read_method(keys)[0].trains


def answers_clients_apart(keys: Mapping[str, Any]) -> bool:
    """Returns whether each client of the run predicts with its own models or weights.

    For a user's own method, this depends only on `local.private`, `evaluate.personal_steps` and `predict.gamma`.
    """
    spec, _ = _read_method(keys)
    local, predict, evaluate = (keys.get(name) or {} for name in ("local", "predict", "evaluate"))
    tuned = evaluate.get("personal_steps") and spec.trains and not spec.pooled
    models = (spec.own_models and spec.trains) or local.get("private") or tuned
    weights = spec.defaults.get("evaluate", {}).get("personal") or math.isfinite(predict.get("gamma", math.inf))
    return bool(models or weights)


def _read_method(keys: Mapping[str, Any]) -> tuple[MethodSpec, Mapping[str, Any]]:
    """Returns the specification of the method, and the section `method`."""
    options: Mapping[str, Any] = keys.get("method") or {}
    return (UNKNOWN if options.get("object") else method_spec_of(options.get("name"))), options


# ---------------------------------------------------------------------------------------------------------------------
# A wheel holds copies of `scenarios/` and `tune/`. In a checkout the folders themselves are used.

_PACKAGE = Path(__file__).parents[1]
FOLDERS = {"": "scenarios", "tune/": "tune"}  # beginning of a name -> folder of the file


class Shipped(NamedTuple):
    """A file that comes with the package.

    Attributes:
        path: The path of the file.
        command: The command of fedray that uses the file: `run`, `table` or `tune`.
        what: The first sentence of the file, which describes the content.
    """

    path: Path
    command: str
    what: str


def list_shipped() -> dict[str, Shipped]:
    """Returns the files that come with the package, by name.

    Example:
        >>> list_shipped()["quickstart"].what
        'Five models over 100 clients of real handwriting, two classes a client.'
    """
    root = _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parent
    found = {}
    for begin, folder in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            command = "tune" if begin else "table" if "\ntable:" in text else "run"
            name = begin + path.relative_to(root / folder).with_suffix("").as_posix()
            found[name] = Shipped(path, command, _read_first_sentence(text))
    return found


def _read_first_sentence(text: str) -> str:
    """Returns the first sentence of the comment at the beginning of a file."""
    lines = takewhile(lambda line: line.startswith("#") and line.strip("# "), text.splitlines())
    return re.split(r"(?<!Fig)\.\s", " ".join(line.strip("# ") for line in lines))[0].rstrip(".") + "."


def find_scenario_file(given: str, key: str = "scenario", folder: Path = Path()) -> Path:
    """Finds a scenario file by its path, or by its name if it comes with the package. Returns the path.

    Args:
        given: The path or name that the user typed.
        key: The word for the path in messages.
        folder: The folder to which a path is relative.

    Raises:
        BadInput: `given` is neither the path nor the name of such a file.

    Example:
        >>> find_scenario_file("quickstart").name
        'quickstart.yaml'
    """
    path = folder / expand_user_path(key, given)
    if path.exists() or path.suffix:
        return path
    known = list_shipped()
    if given in known:
        return known[given].path
    near = find_nearest(given, tuple(known))
    hint = f"did you mean {near}? " if near else ""
    raise BadInput(f"{show_line(given)}: {hint}there is no such file, and `fedray scenarios` lists no such name")


def copy_shipped(name: str, out: Path) -> None:
    """Copies a file that comes with the package, so that a user can edit it.

    In the copy of a sweep, the name of the scenario replaces the path of the scenario.

    Raises:
        BadInput: There is no file of this name, or the new file exists already.
    """
    text = find_scenario_file(name).read_text(encoding="utf-8")
    if out.exists():
        raise BadInput(f"{out} is there already: remove it, or give another --out")
    write_user_file(out, re.sub(r"^scenario: \.\./scenarios/(\S+)\.yaml", r"scenario: \1", text, flags=re.M).encode())
