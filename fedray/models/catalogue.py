"""Networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fedray.core.errors import BadInput
from fedray.core.text import suggest_nearest
from fedray.core.types import Net, Objective
from fedray.models.net import net_of
from fedray.models.nets import (
    cnn,
    densenet,
    linear,
    lstm,
    mlp,
    mobilenet_v2,
    rbf,
    resnet18,
    resnet34,
    shufflenet_v2,
    vgg11,
)

Builder = Callable[..., nn.Module]  # (input_shape, outputs, **options) -> a freshly initialized module
_BUILDERS: dict[str, Builder] = {
    "linear": linear,
    "mlp": mlp,
    "rbf": rbf,
    "cnn": cnn,
    "vgg11": vgg11,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "densenet": densenet,
    "mobilenet_v2": mobilenet_v2,
    "shufflenet_v2": shufflenet_v2,
    "lstm": lstm,
}
MODEL_NAMES = tuple(_BUILDERS)  # the built-in ones; `model_names` has the registered ones, too


def model_names() -> tuple[str, ...]:
    """All names that `build_net` knows, those that users registered included."""
    return tuple(_BUILDERS)


def register_model(name: str, builder: Builder) -> None:
    """Gives a network of your own a name for scenarios.

    A built-in name cannot be taken. A name of your own may be registered again, as when a module is imported twice.

    Args:
        name: For `model.name`.
        builder: Makes the network, `builder(input_shape, outputs, **options)`, freshly initialized.

    Example:
        >>> register_model("tiny", lambda input_shape, outputs: nn.Linear(input_shape[0], outputs))
        >>> build_net("tiny", (4,), 3, "cross_entropy").layout.d
        15
    """
    if name in MODEL_NAMES:
        raise BadInput(f"model.name = {name} is taken: register your network under another name")
    _BUILDERS[name] = builder


def build_net(name: str, input_shape: tuple[int, ...], outputs: int, objective: Objective, **options: Any) -> Net:
    """Builds a network by name.

    Args:
        name: One of `model_names()`.
        input_shape: Shape of one sample.
        outputs: Length of the output; twice the number of targets for `gaussian_nll`.
        objective: The loss it is trained with.
        options: Of the network, see its builder.

    Example:
        >>> build_net("mlp", (13,), 1, "half_mse", hidden=[50]).layout.d
        751
    """
    return net_of(model_maker(name, input_shape, outputs, **options), name, objective, outputs)


def model_maker(name: str, input_shape: tuple[int, ...], outputs: int, **options: Any) -> Callable[[], nn.Module]:
    """A function that makes a network by name, freshly initialized.

    Args:
        name: One of `model_names()`.
        input_shape: Shape of one sample.
        outputs: Length of the output.
        options: Of the network, see its builder.

    Raises:
        BadInput: There is no such network, or it has no such option.
    """
    if name not in _BUILDERS:
        raise BadInput(f"model.name = {name} is not known: {_remedy(name, model_names())}")
    builder = _BUILDERS[name]
    signature = list(inspect.signature(builder).parameters.values())[2:]
    allowed = tuple(p.name for p in signature)
    if not any(p.kind is p.VAR_KEYWORD for p in signature):
        for option, value in options.items():
            if option not in allowed:
                raise BadInput(f"model.{option} = {value} is not an option of {name}: {_remedy(option, allowed)}")
    for p in signature:
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in options:
            raise BadInput(f"model.{p.name} is missing: {name} needs it: give it a value")
    return partial(builder, tuple(input_shape), outputs, **options)


def _remedy(word: str, known: tuple[str, ...]) -> str:
    return suggest_nearest(word, known, f"choose one of {', '.join(known)}" if known else "it has none")
