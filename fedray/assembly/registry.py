"""Names for code of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedray import models
from fedray.core.errors import BadInput
from fedray.data import catalogue
from fedray.methods import METHODS
from fedray.scenario import names


def register(kind: str, name: str, thing: Callable[..., Any]) -> None:
    """Gives code of yours a name that scenario files can say, in every process that imports the module which calls this
    (`fedray run --import MODULE`, also with `tune` and `table` and on the nodes of a cluster).

    Args:
        kind: "method": thing is a function from `fedray.methods.Setting` to `fedray.core.method.Method`; "model":
            `thing(input_shape, outputs, **options)` makes an `nn.Module`; "data": `thing(root, **options)` makes a
            `fedray.data.types.Dataset`.
        name: not one that fedray has; yours may be given again (a data set with the same function).

    Raises:
        BadInput: the kind or the name cannot be.
    """
    if kind not in ("method", "model", "data"):
        raise BadInput(f"kind = {kind!r} cannot be registered: choose one of method, model, data")
    names.allow_name(kind, name)  # type: ignore[arg-type]
    if kind == "method":
        METHODS[name] = thing
    else:
        (models.register_model if kind == "model" else catalogue.register_data)(name, thing)
