"""The Python API: `fedray.run`, `fedray.load` and `fedray.resume`; what they return is in `experiments/results.py`.

Example:
    >>> import fedray
    >>> done = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline", method="fedavg")
    >>> done.summary["rounds"], len(done.models)
    (1, 1)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput
from fedray.data.types import Dataset
from fedray.experiments.live import show_if_wanted
from fedray.experiments.predict import Prediction
from fedray.experiments.results import Run
from fedray.experiments.run import resume_run, run_scenario
from fedray.files.parts import refuse_links
from fedray.files.plain import expand_user_path
from fedray.own_code.user_modules import import_modules
from fedray.runtime.session import Watch
from fedray.scenario.loader import read_scenario

__all__ = ["Prediction", "Run", "load", "resume", "run"]


def load(
    path: str | Path, *, data: Any = None, model: Any = None, method: Any = None, modules: Sequence[str] = ()
) -> Run:
    """Opens a run directory.

    Args:
        path: the directory, the `out` of a run.
        data: the data set object the run was started with, if any.
        model: the function that makes its network, if it was given as an object.
        method: the function that composes its method, if it was given as an object.
        modules: your modules that register names it uses, to import first: `["mine"]`, or `["mine.py"]`.

    Raises:
        BadInput: this is no run directory, or a module cannot be imported.
    """
    import_modules(modules)
    folder = expand_user_path("path", str(path))
    if not (folder / "scenario.yaml").is_file():
        raise BadInput(f"{folder} is no run directory (it has no scenario.yaml): give the --out of a run")
    refuse_links(folder)
    return Run(folder, _check_objects(data, model, method, tuple(modules)))


def _check_objects(data: Any, model: Any, method: Any, modules: tuple[str, ...] = ()) -> UserObjects:
    """The user's objects, each of the kind that is needed."""
    if data is not None and not isinstance(data, Dataset):
        raise BadInput(
            f"data is a {type(data).__name__}: give what fedray.data.types.classification makes, or data__name"
        )
    for key, value in (("model", model), ("method", method)):
        if value is not None and not callable(value):
            made = "makes the network" if key == "model" else "composes the method from a Setting"
            raise BadInput(f"{key} is a {type(value).__name__}: give a function that {made}, or {key}__name")
    return UserObjects(data, model, method, modules)


def run(
    scenario: Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    data: Any = None,
    model: Any = None,
    method: Any = None,
    address: str | None = None,
    watch: Watch | None = None,
    modules: Sequence[str] = (),
    progress: bool | None = None,
    **overrides: Any,
) -> Run:
    """Runs a scenario and returns the finished run.

    Args:
        scenario: a dict, a YAML file, or YAML text.
        out: the run directory (a fresh one); None means a temporary directory.
        data: a `fedray.data.types.Dataset` instead of the scenario's; a name or a mapping is an override.
        model: a function that makes an `nn.Module`; a name or a mapping is an override.
        method: a function from `fedray.methods.Setting` to `fedray.core.method.Method`; a name or a mapping is an
            override.
        address: of an existing Ray cluster; None starts one on this machine where the scenario runs on Ray.
        watch: called with a snapshot after each evaluated round.
        modules: your modules that register names, imported first, by the workers of Ray too: `["mine"]`, or files.
        progress: whether phases and rounds are printed to stderr; None means in a notebook only.
        overrides: scenario keys, nested or with `__` for the dots: `rounds=3`, `method__name="fedavg"`.

    Raises:
        BadInput: one line with the key, its value and the remedy.
        FedrayError: the run failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedray-")) / "run" if out is None else expand_user_path("out", str(out))
    objects = {"data": data, "model": model, "method": method}
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    for key, value in objects.items():
        if isinstance(value, str | Mapping):  # keys of the scenario, as any other override
            dotted[key], objects[key] = value, None
    import_modules(modules)
    own = _check_objects(**objects, modules=tuple(modules))
    mine = [kind for kind, thing in objects.items() if thing is not None]
    wanted = read_scenario(scenario, dotted, own=mine)
    with show_if_wanted(progress, wanted.method.name, watch) as show:
        run_scenario(wanted, folder, own, show, address=address)
    return Run(folder, own)


def resume(
    path: str | Path,
    *,
    data: Any = None,
    model: Any = None,
    method: Any = None,
    modules: Sequence[str] = (),
    rounds: int | None = None,
    progress: bool | None = None,
) -> Run:
    """Continues a run from its newest checkpoint.

    Args:
        path: the run directory.
        data: the data set object the run was started with, if any.
        model: the function that makes its network, if it was given as an object.
        method: the function that composes its method, if it was given as an object.
        modules: your modules that register names it uses, which the workers of Ray import too.
        rounds: how many rounds there are in all, where the run is made longer, also one that is finished.
        progress: whether phases and rounds are printed to stderr; None means in a notebook only.

    Raises:
        BadInput: this is no run directory, or its scenario, its data or an object is not what the run began with.
        FedrayError: the run failed.
    """
    import_modules(modules)
    own, folder = _check_objects(data, model, method, tuple(modules)), expand_user_path("path", str(path))
    with show_if_wanted(progress, str(folder), None) as show:
        resume_run(folder, own, show, rounds=rounds)
    return Run(folder, own)
