"""How a user's own objects and the names that they registered reach the actors of Ray.

Example:
    >>> from threading import Lock
    >>> lock = Lock()
    >>> check_sendable(UserObjects(model=lambda: lock))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: model = ...: it cannot be sent to the actors of Ray (TypeError: cannot pickle ...
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import cloudpickle as untyped

from fedray.assembly.identity import list_own_names
from fedray.assembly.own_training import name_thing
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput
from fedray.own_code.user_code import describe_exception
from fedray.scenario.names import list_origins
from fedray.scenario.schema import Scenario

cloudpickle: Any = untyped  # it has no annotations


def prepare_objects(scenario: Scenario, own: UserObjects) -> UserObjects:
    """The user's own objects, with every module that registered a name which the scenario uses.

    Args:
        scenario: What is run.
        own: The user's own objects.

    Raises:
        BadInput: An object holds what no other process can have, or a name was registered where no actor can import it.
    """
    check_sendable(own)
    modules, known = list(own.modules), {Path(name).stem if name.endswith(".py") else name for name in own.modules}
    for kind, name in list_own_names(scenario, own.training):
        origin = list_origins()[kind, name]
        if origin.module == "__main__" and not own.modules:
            raise BadInput(
                f"{kind} {name!r} was registered in {origin.file}, which the actors of Ray cannot import: register it "
                'in a module and give --import MODULE, or modules=["MODULE"] in Python'
            )
        if origin.module not in {"__main__", *known}:
            modules.append(origin.module)
            known.add(origin.module)
    return replace(own, modules=tuple(modules))


def check_sendable(own: UserObjects) -> None:
    """Refuses a function that holds what no other process can have.

    Args:
        own: The user's own objects.

    Raises:
        BadInput: Names the object and says what it holds.
    """
    for kind, thing in own.things():
        try:
            cloudpickle.dumps(thing)
        except Exception as error:
            raise BadInput(
                f"{kind} = {own.named().get(kind) or name_thing(thing)}: it cannot be sent to the actors of Ray "
                f"({describe_exception(error)}): open files, locks and loggers inside the function, or set runtime: "
                "inline"
            ) from None
