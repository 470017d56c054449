"""A network as a chain of plain layers, built call by call while `trace.py` reads what a module does.

Example:
    >>> first = nn.Linear(4, 3)
    >>> builder = ChainBuilder((4,), {"first": first}, {"first.weight": first.weight, "first.bias": first.bias})
    >>> value = builder.add_function(torch.relu, "relu", (builder.add_module("first", builder.start()),), {})
    >>> builder.finish(value).layers
    (Linear(in_features=4, out_features=3, bias=True), ReLU())
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedray.models.dropout import find_dropout
from fedray.training.drops import DROPOUT
from fedray.training.known_layers import (
    FUNCTIONS,
    LOG_SOFTMAX,
    METHODS,
    MODULES,
    LayerStep,
    Link,
    Named,
    Unread,
    Weighted,
)


class Chain(NamedTuple):
    """What a module computes.

    Attributes:
        layers: Plain layers without values, and those that drop, in the order in which they are applied.
        names: Names of their parameters in the module, in the same order.
        log_softmax: Whether the outputs are the logarithms of a softmax of what the last layer gives.
    """

    layers: tuple[nn.Module, ...]
    names: tuple[str, ...]
    log_softmax: bool


@dataclass
class ChainBuilder:
    """Adds layers to a chain.

    Attributes:
        inputs: Shape of one input.
        modules: The parts of the module, by name.
        parameters: Its parameters, by name.
        layers: The layers so far.
        names: The names of their parameters.
        dropping: The modules that drop, in the order in which they were called.
        link: What they compute; None before the inputs are known.
        log_softmax: Whether a log-softmax ends the chain.
    """

    inputs: tuple[int, ...]
    modules: Mapping[str, nn.Module]
    parameters: Mapping[str, Tensor]
    layers: list[nn.Module] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    dropping: list[nn.Module] = field(default_factory=list)
    link: Link | None = None
    log_softmax: bool = False

    def start(self) -> Link:
        """The inputs of the network."""
        if self.link is not None:
            raise Unread("takes more than one input")
        self.link = Link(0, self.inputs)
        return self.link

    def finish(self, value: Any) -> Chain:
        """The whole chain, where `value` is what the module returns."""
        if value is not self.link:
            raise Unread("returns something other than what its last layer gives")
        if self.dropping != [part for part in self.modules.values() if find_dropout(part) == [part]]:
            raise Unread("calls its dropout layers in another order than it holds them")
        return Chain(tuple(self.layers), tuple(self.names), self.log_softmax)

    def read_parameter(self, name: str) -> Named:
        """A tensor of the module that `forward` reads by itself."""
        if name not in self.parameters:
            raise Unread(f"reads {name}, which is no parameter")
        return Named(name, self.parameters[name])

    def add_module(self, name: str, *args: Any, **kwargs: Any) -> Link:
        """The chain behind a module that is called by its name."""
        part = self.modules[name]
        if type(part) not in MODULES or len(args) != 1 or kwargs:
            raise Unread(f"uses {type(part).__name__}")
        if type(part) in DROPOUT and part.p:
            self.dropping.append(part)
        held = {kind: self.read_parameter(f"{name}.{kind}") for kind, p in part._parameters.items() if p is not None}
        return self._extend(f"uses {part}", args[0], lambda x: MODULES[type(part)](x, part, **held))

    def add_function(self, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Link:
        """The chain behind a function or a method that is called on what it has computed."""
        known = METHODS.get(target) if isinstance(target, str) else FUNCTIONS.get(target)
        first, rest = (args[0], args[1:]) if args else (kwargs.pop("input", None), ())
        if known is None:
            raise Unread(f"calls {name}")
        return self._extend(f"calls {name} in another form", first, lambda x: known(x, *rest, **kwargs))

    def reshape(self, value: Link, samples: int | None, sample: tuple[int, ...]) -> Link:
        """The chain behind a reshape to `[samples, *sample]`; None: as many samples as the module was asked about.

        The only reshapes that are read are those that flatten every sample, or change nothing.
        """
        rest, whole = list(sample), math.prod(value.sample)
        if rest.count(-1) > 1 or (samples == -1 and -1 in rest) or samples not in (None, -1):
            raise Unread("reshapes a batch to a fixed number of samples")
        if -1 in rest:
            rest[rest.index(-1)] = whole // max(1, -math.prod(rest))
        if tuple(rest) == value.sample:
            return self._extend("", value, lambda _x: [])
        if rest != [whole]:
            raise Unread(f"reshapes {list(value.sample)} to {rest}")
        return self._extend("", value, lambda _x: [nn.Flatten()])

    def _extend(self, what: str, value: Any, make: Callable[[Link], LayerStep]) -> Link:
        """The chain with the layers that `make` gives, which are applied to `value`."""
        if value is not self.link or self.link is None or self.log_softmax:
            raise Unread(f"{what.split('(')[0]} beside its chain of layers" if what else "is not one chain of layers")
        try:
            step = make(self.link)
        except TypeError:
            raise Unread(what) from None
        sample = self.link.sample
        if isinstance(step, Weighted):
            self.names += [one.name for one in step.parameters if one is not None]
        self.log_softmax = step is LOG_SOFTMAX
        for layer in [step.layer] if isinstance(step, Weighted) else step:
            if type(layer) is nn.Flatten and len(sample) == 1:
                continue
            after_flatten = bool(self.layers) and type(self.layers[-1]) is nn.Flatten
            behind = len(self.layers) - (type(layer) in (nn.ReLU, nn.Tanh) and after_flatten)
            self.layers.insert(behind, layer)
            sample = _find_shape(layer, sample)
        self.link = Link(self.link.number + 1, sample)
        return self.link


def _find_shape(layer: nn.Module, sample: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of one output of a layer, from that of one input."""
    if type(layer) in DROPOUT:
        return sample
    axes = {nn.Linear: 1, nn.Conv2d: 3, nn.MaxPool2d: 3, nn.AvgPool2d: 3}.get(type(layer))
    if axes is not None and len(sample) != axes:
        raise Unread(f"applies {type(layer).__name__} to samples of shape {list(sample)}")
    try:
        return tuple(layer(torch.empty(2, *sample, device="meta")).shape[1:])
    except Exception as error:
        raise Unread(f"does not fit its inputs ({' '.join(str(error).split())[:80]})") from None
