"""What a worker gets from its driver: environment variables, import path, working directory, the user's modules.

A worker starts in another directory than the driver, with the variables of the Ray that starts it, and maybe on a
machine that has none of the user's files. So the paths among the variables are sent in full, the coordinator works in
the driver's directory, and the user's modules travel through Ray (`py_modules`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray._private.runtime_env.packaging import pin_runtime_env_uri
from ray._private.runtime_env.py_modules import upload_py_modules_if_needed

import fedray
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import FedrayWarning, warn_user
from fedray.own_code.user_modules import find_module_places
from fedray.runtime import environment
from fedray.runtime.ray.connection import Connection

PLACES = ("FEDRAY_DATA", "FEDRAY_CACHE", "HF_HOME", "HF_DATASETS_CACHE")  # variables of the driver that hold a path
KEPT_SECONDS = 30 * 24 * 3600  # for which a cluster keeps modules that nobody uses: a run may have pauses


def worker_environment(modules: Sequence[str] = ()) -> dict[str, Any]:
    """The runtime environment of a worker; workers that it starts have the same.

    A class from a user's own folder is sent by its name, so the worker must find its module where the driver does.

    Args:
        modules: Those that were sent to the cluster (`send_modules`).
    """
    paths = [path or str(Path.cwd()) for path in sys.path]  # an empty entry is the working directory
    own = [path for path in paths if Path(path).is_dir() and not Path(path).is_relative_to(sys.prefix)]
    own = [path for path in own if not Path(path).is_relative_to(sys.base_prefix)]
    here = Path(fedray.__file__).parents[1]
    if any(Path(path, "fedray").is_dir() and not here.samefile(path) for path in own):
        own.insert(0, str(here))  # a checkout's folder `fedray` does not replace the package that the driver runs
    variables = environment.WORKER | _list_variables() | {"PYTHONPATH": os.pathsep.join(own)}
    return {"env_vars": variables, **({"py_modules": list(modules)} if modules else {})}


def _list_variables() -> dict[str, str]:
    """The variables of the driver that every worker gets; paths are made absolute."""
    numbers = environment.PATIENCE_VARIABLE, environment.PARTS_VARIABLE
    given = {name: os.environ[name] for name in numbers if name in os.environ}
    return given | {
        name: str(Path(os.environ[name]).expanduser().absolute()) for name in PLACES if os.environ.get(name)
    }


def send_modules(own: UserObjects, connection: Connection) -> list[str]:
    """Sends the user's own modules to a cluster whose nodes may lack them, once for each content.

    Args:
        own: The user's objects, with the modules that they come from.
        connection: To a cluster; a Ray that fedray started has this machine's files.

    Returns:
        What `worker_environment` takes.
    """
    places = (
        [] if connection.folder is not None else find_module_places(own.modules, [thing for _, thing in own.things()])
    )
    if not places:
        return []
    wanted = {"py_modules": [str(place) for place in places], "excludes": ["__pycache__", ".git"]}
    try:
        with tempfile.TemporaryDirectory(prefix="fedray-modules-") as scratch:
            sent = upload_py_modules_if_needed(wanted, include_gitignore=False, scratch_dir=scratch)["py_modules"]
        for each in sent:
            pin_runtime_env_uri(each, expiration_s=KEPT_SECONDS)
    except Exception as error:  # whatever Ray says: a folder that is too large, a file that cannot be read
        why = " ".join(str(error).split())[:200]
        names = ", ".join(place.name for place in places)
        text = f"{names} cannot be sent to the nodes ({why}): install it on each of them"
        warn_user(text, FedrayWarning)
        return []
    return [str(each) for each in sent]
