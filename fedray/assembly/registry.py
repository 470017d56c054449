"""Names for your own code, so that scenario files can use it.

Example:
    >>> register("method", "my_method", lambda setting: ..., options={"sigma": 0.05})  # doctest: +SKIP
    >>> register("layer", "my_layer", print)
    Traceback (most recent call last):
    fedray.core.errors.BadInput: kind = 'layer' cannot be registered: choose one of method, model, data
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedray import models
from fedray.core.errors import BadInput
from fedray.data import catalogue
from fedray.methods import METHODS
from fedray.scenario import names


def register(kind: str, name: str, thing: Callable[..., Any], *, options: Mapping[str, Any] | None = None) -> None:
    """Gives your code a name, which scenario files can then use.

    The name is known in every process that imports the module which calls this: with `fedray run --import MODULE`, also
    with `tune` and `table`, and on the nodes of a cluster.

    Args:
        kind: "method", "model" or "data".
        name: a name that fedray does not have. One of yours may be given again: the newest function counts.
        thing: for a method, a function from `fedray.methods.Setting` to `fedray.core.method.Method`; for a model,
            `thing(input_shape, outputs, **options)` makes an `nn.Module`; for data, `thing(root, **options)` makes a
            `fedray.data.types.Dataset`.
        options: the options of the name with their defaults, such as `{"sigma": 0.05}`; a scenario that sets another
            one is refused. None: they are not declared, and of a method those are refused that it does not read while
            it is composed.

    Raises:
        BadInput: there is no such kind, or the name cannot be used.
    """
    if kind not in ("method", "model", "data"):
        raise BadInput(f"kind = {kind!r} cannot be registered: choose one of method, model, data")
    names.allow_name(kind, name, options=options)  # type: ignore[arg-type]
    if kind == "method":
        METHODS[name] = thing
    else:
        (models.register_model if kind == "model" else catalogue.register_data)(name, thing)
