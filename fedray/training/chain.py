"""A network as a chain of plain layers, built call by call while `trace.py` reads what a module does."""

from __future__ import annotations

import copy
import io
import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedray.core import rng
from fedray.models.dropout import find_dropout

# ---------------------------------------------------------------------------------------------------------------------
# The calls that are read as plain layers, in every form in which people write them: modules, functions and methods.


class Unread(Exception):
    """A module cannot be read as a chain of plain layers; the message completes the sentence "its forward ..."."""


class Link(NamedTuple):
    """What the chain has computed so far, at one place of a module's `forward`.

    Attributes:
        number: Counts the calls before it.
        sample: Shape of one sample.

    Example:
        A pooling to one pixel is an average over the whole image.

        >>> import torch.nn.functional as F
        >>> FUNCTIONS[F.adaptive_avg_pool2d](Link(0, (8, 6, 6)), 1)
        [AvgPool2d(kernel_size=(6, 6), stride=(6, 6), padding=0)]
    """

    number: int
    sample: tuple[int, ...]


class Named(NamedTuple):
    """A parameter that `forward` reads.

    Attributes:
        name: In the module.
        value: The parameter.
    """

    name: str
    value: Tensor


class Weighted(NamedTuple):
    """A layer with parameters.

    Attributes:
        layer: The layer, without values.
        parameters: Its weight and its bias.
    """

    layer: nn.Module
    parameters: tuple[Named | None, ...]


LayerStep = Weighted | list[nn.Module]
LOG_SOFTMAX: list[nn.Module] = []  # the step that ends a chain with a log-softmax


def _linear(_x: Link, weight: Named, bias: Named | None = None) -> Weighted:
    out, inside = weight.value.shape
    return Weighted(nn.Linear(inside, out, bias is not None, device="meta"), (weight, bias))


def _conv(  # noqa: PLR0917 - as torch has it
    _x: Link, weight: Named, bias: Named | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1, padding_mode: Any = "zeros",
) -> Weighted:  # fmt: skip
    out, inside, *kernel = weight.value.shape
    size: Any = tuple(kernel)  # of as many sides as torch's convolution takes
    layer = nn.Conv2d(
        inside * groups, out, size, stride, padding, dilation, groups, bias is not None, padding_mode, device="meta"
    )
    return Weighted(layer, (weight, bias))


def _relu(_x: Link, **_inplace: bool) -> LayerStep:
    return [nn.ReLU()]


def _tanh(_x: Link) -> LayerStep:
    return [nn.Tanh()]


def _max_pool(  # noqa: PLR0917 - as torch has it
    _x: Link, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> LayerStep:  # fmt: skip
    if return_indices:
        raise Unread("asks max_pool2d for places")
    return [nn.MaxPool2d(kernel_size, stride or None, padding, dilation, ceil_mode=ceil_mode)]


def _avg_pool(  # noqa: PLR0917 - as torch has it
    _x: Link, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> LayerStep:  # fmt: skip
    return [nn.AvgPool2d(kernel_size, stride or None, padding, ceil_mode, count_include_pad, divisor_override)]


def _adaptive_pool(x: Link, output_size: Any) -> LayerStep:
    """Pooling to a given size, where the windows are equal and do not overlap."""
    sizes = output_size if isinstance(output_size, tuple | list) else (output_size, output_size)
    asked = [side if one is None else one for one, side in zip(sizes, x.sample[1:], strict=True)]
    if len(x.sample) != 3 or any(side % one for one, side in zip(asked, x.sample[1:], strict=True)):
        raise Unread("pools to a size that does not divide its inputs")
    return [nn.AvgPool2d((x.sample[1] // asked[0], x.sample[2] // asked[1]))]


def _mean(x: Link, dim: Any = None, keepdim: bool = False) -> LayerStep:
    """The mean over height and width."""
    if len(x.sample) != 3 or not isinstance(dim, tuple | list) or sorted(one % 4 for one in dim) != [2, 3]:
        raise Unread("calls mean over other axes than height and width")
    return [nn.AvgPool2d((x.sample[1], x.sample[2])), *([] if keepdim else [nn.Flatten()])]


def _flatten(x: Link, start_dim: int = 0, end_dim: int = -1) -> LayerStep:
    if start_dim != 1 or end_dim not in (-1, len(x.sample)):
        raise Unread("flattens other axes than those of a sample")
    return [nn.Flatten()]


def _same(_x: Link) -> LayerStep:
    return []


def _dropout(_x: Link, p: float = 0.5, training: bool = True, **_inplace: bool) -> LayerStep:
    if p and training:
        raise Unread("calls dropout as a function, and not as a module")
    return []


def _log_softmax(x: Link, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> LayerStep:
    if dim not in (1, -1) or len(x.sample) != 1 or dtype is not None:
        raise Unread("calls log_softmax over another axis than the classes")
    return LOG_SOFTMAX


def _conv_module(x: Link, part: Any, **held: Named) -> LayerStep:
    return _conv(
        x, held["weight"], held.get("bias"), part.stride, part.padding, part.dilation, part.groups, part.padding_mode
    )


def _max_pool_module(x: Link, part: Any) -> LayerStep:
    return _max_pool(x, part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode, part.return_indices)


def _avg_pool_module(x: Link, part: Any) -> LayerStep:
    return _avg_pool(
        x, part.kernel_size, part.stride, part.padding, part.ceil_mode, part.count_include_pad, part.divisor_override
    )


def _dropout_module(x: Link, part: Any) -> LayerStep:
    if part.p == 1 or (type(part) is nn.Dropout2d and len(x.sample) != 3):
        raise Unread(f"uses {part} in another form")
    return [type(part)(part.p)] if part.p else []


MODULES: dict[type[nn.Module], Callable[..., LayerStep]] = {
    nn.Linear: lambda x, _part, **held: _linear(x, held["weight"], held.get("bias")),
    nn.Conv2d: _conv_module,
    nn.ReLU: lambda x, _part: _relu(x),
    nn.Tanh: lambda x, _part: _tanh(x),
    nn.MaxPool2d: _max_pool_module,
    nn.AvgPool2d: _avg_pool_module,
    nn.AdaptiveAvgPool2d: lambda x, part: _adaptive_pool(x, part.output_size),
    nn.Flatten: lambda x, part: _flatten(x, part.start_dim, part.end_dim),
    nn.Identity: lambda x, _part: _same(x),
    nn.Dropout: _dropout_module,
    nn.Dropout2d: _dropout_module,
    nn.LogSoftmax: lambda x, part: _log_softmax(x, part.dim),
}
METHODS: dict[str, Callable[..., LayerStep]] = {
    "relu": _relu, "relu_": _relu, "tanh": _tanh, "tanh_": _tanh, "flatten": _flatten, "mean": _mean,
    "log_softmax": _log_softmax, "contiguous": _same,
}  # fmt: skip
FUNCTIONS: dict[Any, Callable[..., LayerStep]] = {
    F.linear: _linear, F.conv2d: _conv, torch.conv2d: _conv,
    F.relu: _relu, F.relu_: _relu, torch.relu: _relu, torch.relu_: _relu,
    F.tanh: _tanh, torch.tanh: _tanh, torch.tanh_: _tanh,
    F.max_pool2d: _max_pool, torch.max_pool2d: _max_pool, F.avg_pool2d: _avg_pool,
    F.adaptive_avg_pool2d: _adaptive_pool, torch.flatten: _flatten, torch.mean: _mean,
    F.dropout: _dropout, F.dropout2d: _dropout, torch.dropout: _dropout,
    F.log_softmax: _log_softmax, torch.log_softmax: _log_softmax,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# What training drops in a chain of plain layers: Dropout and Dropout2d become dropped inputs of linear layers.
#
# A mask multiplies by 0 or by 1 / (1 - p) > 0, and so commutes with ReLU; the mask of a whole channel commutes with
# poolings, too. Where nothing else lies between a dropout layer and the next linear one, dropping that layer's inputs
# is the same. The masks have the addresses that `fedray.models.dropout` gives them, in every engine.

DROPOUT = (nn.Dropout, nn.Dropout2d)
_PASSED = {nn.Dropout: (nn.ReLU, nn.Flatten), nn.Dropout2d: (nn.ReLU, nn.Flatten, nn.MaxPool2d, nn.AvgPool2d)}


class Drop(NamedTuple):
    """Inputs of a linear layer that training drops.

    Attributes:
        layer: Number of the linear layer, from 0.
        p: Probability of each input, or channel, to be dropped, in (0, 1).
        channels: Whether whole channels of what the convolutions give are dropped.
    """

    layer: int
    p: float
    channels: bool


def split_drops(chain: Sequence[nn.Module]) -> tuple[tuple[nn.Module, ...], tuple[Drop, ...]]:
    """The layers of a chain without those that drop, and what these drop, in their order.

    Args:
        chain: Plain layers in the order in which they are applied.

    Raises:
        Unread: A layer drops something other than inputs of a linear layer.

    Example:
        >>> layers, drops = split_drops([nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3)])
        >>> [type(layer).__name__ for layer in layers], drops
        (['Linear', 'ReLU', 'Linear'], (Drop(layer=1, p=0.2, channels=False),))
    """
    layers = [part for part in chain if type(part) not in DROPOUT]
    drops: list[Drop] = []
    for i, part in enumerate(chain):
        if type(part) not in DROPOUT:
            continue
        assert isinstance(part, DROPOUT)
        behind = next((j for j in range(i + 1, len(chain)) if isinstance(chain[j], nn.Linear | nn.Conv2d)), None)
        between = chain[i + 1 : behind]
        if behind is None or type(chain[behind]) is not nn.Linear:
            raise Unread("drops what no linear layer reads")
        if any(type(one) not in _PASSED[type(part)] for one in between) or _follows_tanh(chain[:i]):
            raise Unread("has other layers than ReLU around its dropout")
        linear = sum(type(one) is nn.Linear for one in chain[:behind])
        drops.append(Drop(linear, part.p, type(part) is nn.Dropout2d))
    return tuple(layers), tuple(drops)


def _follows_tanh(chain: Sequence[nn.Module]) -> bool:
    """Whether the activation before a place is Tanh, whose slope kernels find from what was not dropped."""
    found = [type(one) for one in chain if type(one) in (nn.ReLU, nn.Tanh, nn.Linear, nn.Conv2d)]
    return bool(found) and found[-1] is nn.Tanh


# ---------------------------------------------------------------------------------------------------------------------
# A network as a chain of plain layers, built call by call while `trace.py` reads what a module does.


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

    Example:
        >>> first = nn.Linear(4, 3)
        >>> builder = ChainBuilder((4,), {"first": first}, {"first.weight": first.weight, "first.bias": first.bias})
        >>> value = builder.add_function(torch.relu, "relu", (builder.add_module("first", builder.start()),), {})
        >>> builder.finish(value).layers
        (Linear(in_features=4, out_features=3, bias=True), ReLU())
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


# ---------------------------------------------------------------------------------------------------------------------
# What a module's `forward` computes, as a plain `nn.Sequential`: so that the way a network is written does not
# matter.
#
# `torch.fx` runs `forward` once with a placeholder in place of the inputs and records what is called. A network that
# is a chain of linear layers, convolutions, poolings and activations, in whatever form (modules, functions, methods,
# nested modules), is read into the same layers in the order in which they are applied. Everything else is refused
# with a reason.

_SIZES = (operator.mul, operator.add, operator.sub, operator.floordiv)  # what is done with the numbers of a shape
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Batch(NamedTuple):
    """The number of samples of a batch, which is not known while a module is traced."""


class Shape(NamedTuple):
    """What `x.shape` is: the number of samples, then the numbers of a sample.

    Attributes:
        sample: Shape of one sample.
    """

    sample: tuple[int, ...]


def trace_chain(module: nn.Module, sample: tuple[int, ...]) -> Chain:
    """The chain of layers that a module applies in training.

    Args:
        module: The module; it is left as it is.
        sample: Shape of one input.

    Raises:
        Unread: The module is no such chain, or what it computes depends on more than its inputs and parameters; the
            message completes the sentence "its forward ...".

    Example:
        >>> import torch.nn.functional as F
        >>> class Network(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.last, self.first = nn.Linear(8, 3), nn.Linear(4, 8)
        ...
        ...     def forward(self, x):
        ...         return self.last(F.relu(self.first(x.view(x.size(0), -1))))
        >>> chain = trace_chain(Network(), (4,))
        >>> [type(layer).__name__ for layer in chain.layers], chain.names
        (['Linear', 'ReLU', 'Linear'], ('first.weight', 'first.bias', 'last.weight', 'last.bias'))
    """
    changed = find_changed_call(module)
    if changed is not None:
        raise Unread(changed)
    builder = ChainBuilder(sample, dict(module.named_modules()), dict(module.named_parameters(remove_duplicate=False)))
    values: dict[fx.Node, Any] = {}
    for node in _trace(module).nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            values[node] = builder.start()
        elif node.op == "output":
            return builder.finish(args[0])
        else:
            values[node] = _read_node(builder, node, args, kwargs)
    raise Unread("returns nothing")


def find_changed_call(module: nn.Module) -> str | None:
    """Why calling a module is not what the classes of its parts say, None if it is.

    The text completes the sentence "its forward ...".
    """
    if any(getattr(part, hooks, None) for part in module.modules() for hooks in _HOOKS):
        return "has hooks"
    if any("forward" in vars(part) for part in module.modules()):
        return "was replaced on an object"
    return None


def _trace(module: nn.Module) -> fx.Graph:
    """What a copy of the module calls in training; refuses modules that change themselves or draw random numbers."""
    shared = {id(p): p for p in module.parameters()}
    try:
        twin = copy.deepcopy(module, shared).train()
        mode = copy.deepcopy(module, shared).train()
    except Exception as error:
        raise Unread(f"belongs to a module that cannot be copied ({type(error).__name__})") from None
    with rng.watch_generators() as have_changed, warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            graph = fx.Tracer().trace(twin)
        except Exception as error:  # whatever a module does: if it is broken, training meets the same error
            raise Unread(f"cannot be traced ({' '.join(str(error).split())[:100]})") from None
        if have_changed():
            raise Unread("draws random numbers")
    if has_changed(mode, twin):
        raise Unread("changes the module")
    return graph


def has_changed(before: nn.Module, after: nn.Module) -> bool:
    """Whether two copies of a module differ in their attributes or buffers."""
    own = ("_parameters", "_buffers", "_modules")
    for a, b in zip(before.modules(), after.modules(), strict=False):
        x, y = ({k: v for k, v in vars(m).items() if k not in own} | dict(m._buffers) for m in (a, b))
        if x.keys() != y.keys() or not all(_is_same(x[k], y[k]) for k in x):
            return True
    return len(list(before.modules())) != len(list(after.modules()))


def _is_same(a: Any, b: Any) -> bool:
    """Whether two attributes are equal, as far as Python can say: objects without an equality count as equal."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return type(a) is type(b) and torch.equal(a, b)
    if isinstance(a, list | tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if isinstance(a, dict) and type(a) is type(b):
        return a.keys() == b.keys() and all(_is_same(a[k], b[k]) for k in a)
    if type(a) is not type(b) or isinstance(a, fx.Proxy):
        return False
    return not isinstance(a, int | float | str) or a == b


def _read_node(builder: ChainBuilder, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives: the chain with one more layer, or a number of a shape."""
    if node.op == "get_attr":
        return builder.read_parameter(str(node.target))
    if node.op == "call_module":
        return builder.add_module(str(node.target), *args, **kwargs)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    if args and isinstance(args[0], Link) and not kwargs:
        shape = Shape(args[0].sample)
        if name == "size":
            return _pick(shape, *args[1:])
        if name == "getattr" and args[1:] == ("shape",):
            return shape
        if name in ("view", "reshape"):
            return builder.reshape(args[0], *_read_sizes(args[1:]))
    if name == "getitem" and isinstance(args[0], Shape):
        return _pick(*args)
    if node.target in _SIZES and all(isinstance(one, int) for one in args):
        return node.target(*args)
    return builder.add_function(node.target, name, args, dict(kwargs))


def _pick(shape: Shape, place: int | None = None) -> Shape | Batch | int:
    """A number of a shape."""
    if place is None:
        return shape
    if not isinstance(place, int):
        raise Unread("takes a part of a shape")
    place %= 1 + len(shape.sample)
    return Batch() if place == 0 else shape.sample[place - 1]


def _read_sizes(args: tuple[Any, ...]) -> tuple[int | None, tuple[int, ...]]:
    """What a batch is reshaped to: the number of samples, None where the module asked for it, and a sample's shape."""
    sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args
    if not sizes or not all(isinstance(one, int | Batch) for one in sizes) or not isinstance(sizes[0], Batch | int):
        raise Unread("reshapes by something other than numbers")
    if any(isinstance(one, Batch) for one in sizes[1:]):
        raise Unread("moves the samples of a batch")
    return None if isinstance(sizes[0], Batch) else sizes[0], tuple(sizes[1:])
