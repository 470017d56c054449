"""Converts a user's module to a chain of plain layers with the same outputs, which faster engines can train.

Plain layers are linear layers, convolutions, activations and poolings. A chain applies them one after another.
"""

import copy
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedray.core import rng
from fedray.core.types import Layout, Net
from fedray.models.net import dropping
from fedray.models.network_checks import differentiate
from fedray.own_code.contract import is_alike

# ---------------------------------------------------------------------------------------------------------------------
# The chain is found by calling a module once, and recording the operations that torch runs as layers.

ROWS = 7  # samples in the traced batch; hardly any module contains this number in its code
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_RANDOM = ("native_dropout", "empty_like", "bernoulli")  # first operation of a dropout function


class Unread(Exception):
    """Says why a module is not a chain of plain layers. The message completes the sentence "its forward ..."."""


class Chain(NamedTuple):
    """The layers that a module applies one after another.

    Attributes:
        layers: The layers, dropout included, in the order in which the module applies them. The parameters of these
            layers have no values.
        names: Names that the parameters of these layers have in the module, in the order of the layers.
        log_softmax: Whether the module's outputs are the log-softmax of the last layer's outputs.
    """

    layers: tuple[nn.Module, ...]
    names: tuple[str, ...]
    log_softmax: bool


def trace_chain(module: nn.Module, sample: tuple[int, ...]) -> Chain:
    """Finds the chain of layers that a module applies in training, for inputs of the shape `sample`.

    Raises:
        Unread: The module is not a chain of plain layers, or its outputs depend on something other than inputs and
            parameters.

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
    if (changed := find_changed_call(module)) is not None:
        raise Unread(changed)
    try:
        reader = _Reader(copy.deepcopy(module).train(), sample)
    except Exception as error:
        raise Unread(f"belongs to a module that cannot be copied ({type(error).__name__})") from None
    with rng.watch_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return reader.read()
        except Unread:
            raise
        except Exception as error:  # a broken module fails with the same error in training
            raise Unread(f"cannot be traced ({' '.join(str(error).split())[:100]})") from None


class _Reader(TorchDispatchMode):
    """Records the operations that a module applies one after another, and converts each operation to layers.

    Attributes:
        module: The module. It is called once.
        value: The result of the newest operation on a batch of 7 samples (`ROWS`), `[7, ...]`.
        layers: The layers found so far.
        names: Names of the parameters of `layers`.
        log_softmax: Whether a log-softmax ends the chain.
    """

    def __init__(self, module: nn.Module, sample: tuple[int, ...]) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.module = module
        like = next(module.parameters(), torch.empty(0))
        self.value = torch.zeros(ROWS, *sample, dtype=like.dtype, device=like.device)
        self.layers, self.names, self.log_softmax = list[nn.Module](), list[str](), False
        self._held = {p.data_ptr(): name for name, p in module.named_parameters()}
        self._words = {  # paddings that are words ("same"), which torch replaces by numbers before it computes
            part.weight.data_ptr(): part.padding
            for part in module.modules()
            if isinstance(part, nn.Conv2d) and isinstance(part.padding, str)
        }
        self._turned: dict[int, Tensor] = {}  # weights, by the id of the transposed weight
        self._kept: list[Any] = []  # results that are kept alive, so that torch does not reuse their addresses and ids

    def read(self) -> Chain:
        """Calls the module, and returns the chain of its layers."""
        dropping = [part for part in self.module.modules() if type(part) in DROPOUT and part.p]
        order: list[nn.Module] = []

        def drop(part: Any, inputs: tuple[Any, ...]) -> None:
            image = type(part) is not nn.Dropout2d or inputs[0].dim() == 4
            if inputs[0] is not self.value or not image or part.p == 1:
                raise Unread(f"uses {part} in another form")
            order.append(part)
            self.layers.append(type(part)(part.p))

        handles = [part.eval().register_forward_pre_hook(drop) for part in dropping]
        with self:
            found = self.module(self.value)
        for part, handle in zip(dropping, handles, strict=True):
            handle.remove()
            part.train()
        if found is not self.value:
            raise Unread("returns something other than what its last layer gives")
        if order != dropping:
            raise Unread("calls its dropout layers in another order than it holds them")
        return Chain(tuple(self.layers), tuple(self.names), self.log_softmax)

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self._kept.append(out)
        name = function._schema.name.removeprefix("aten::").rstrip("_")
        if name == "t" and args[0].data_ptr() in self._held:
            self._turned[id(out)] = args[0]
            return out
        if name == "detach":  # autograd detaches tensors that it saves; using such a tensor raises an error below
            return out
        if name == "_to_copy":
            raise Unread("changes the type of its numbers")
        place = 1 if name == "addmm" else 0
        if self.log_softmax or len(args) <= place or args[place] is not self.value:
            raise Unread(f"calls {_name(name)} beside its chain of layers")
        given = zip(function._schema.arguments, (*args, *[None] * 20), strict=False)
        asked = {one.name: one.default_value if i >= len(args) else value for i, (one, value) in enumerate(given)}
        result = out[0] if isinstance(out, tuple) else out
        for layer in self._find_layers(name, asked | (kwargs or {}), result):
            flat = bool(self.layers) and type(self.layers[-1]) is nn.Flatten
            self.layers.insert(len(self.layers) - (type(layer) in (nn.ReLU, nn.Tanh) and flat), layer)
        self.value = result
        return out

    def _find_layers(self, name: str, asked: dict[str, Any], out: Tensor) -> list[nn.Module]:
        """Returns the layers that compute an operation.

        `out` is the operation's result. `asked` holds the operation's arguments by the names that torch gives them.
        """
        x = self.value
        if name in ("addmm", "mm") and id(asked["mat2"]) in self._turned:
            weight, bias = self._turned[id(asked["mat2"])], asked["self"] if name == "addmm" else None
            self._add_names(weight, bias)
            return [nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")]
        if name == "convolution" and x.dim() == 4 and not asked["transposed"]:
            weight, bias, groups = asked["weight"], asked["bias"], asked["groups"]
            self._add_names(weight, bias)
            wide, inside, *size = weight.shape
            form: dict[str, Any] = {key: tuple(asked[key]) for key in ("stride", "padding", "dilation")}
            form |= {"kernel_size": tuple(size), "padding": self._words.get(weight.data_ptr(), form["padding"])}
            return [nn.Conv2d(inside * groups, wide, groups=groups, bias=bias is not None, device="meta", **form)]
        if name in ("relu", "tanh"):
            return [nn.ReLU() if name == "relu" else nn.Tanh()]
        if name in ("max_pool2d_with_indices", "avg_pool2d"):
            return [_make_pool(name, asked)]
        if name == "mean" and x.dim() == 4 and sorted(axis % 4 for axis in asked["dim"] or ()) == [2, 3]:
            return [nn.AvgPool2d((x.shape[2], x.shape[3])), *([] if out.dim() == 4 else [nn.Flatten()])]
        if name == "_adaptive_avg_pool2d":
            (high, wide), (rows, columns) = x.shape[2:], out.shape[2:]
            return [nn.AvgPool2d((high // rows, wide // columns))]
        if name in ("view", "_unsafe_view", "clone"):
            if out.shape == x.shape:
                return []
            if out.shape != (ROWS, x[0].numel()):
                raise Unread("reshapes a batch to a fixed number of samples, or samples to another form")
            return [nn.Flatten()]
        if name == "_log_softmax" and x.dim() == 2 and asked["dim"] in (1, -1):
            self.log_softmax = True
            return []
        raise Unread("calls dropout as a function, and not as a module" if name in _RANDOM else f"calls {_name(name)}")

    def _add_names(self, *tensors: Tensor | None) -> None:
        for tensor in tensors:
            if tensor is not None and tensor.data_ptr() not in self._held:
                raise Unread("reads a tensor that is no parameter")
            if tensor is not None:
                self.names.append(self._held[tensor.data_ptr()])


def _name(operation: str) -> str:
    """Returns the usual name of an operation, such as `group_norm` for `native_group_norm`."""
    return operation.removeprefix("native_").removeprefix("_")


def _make_pool(name: str, asked: dict[str, Any]) -> nn.Module:
    form: dict[str, Any] = {"kernel_size": tuple(asked["kernel_size"]), "stride": tuple(asked["stride"]) or None}
    form |= {"ceil_mode": asked["ceil_mode"], "padding": _join(asked["padding"])}
    if name == "avg_pool2d":
        return nn.AvgPool2d(**form, **{key: asked[key] for key in ("count_include_pad", "divisor_override")})
    return nn.MaxPool2d(**form, dilation=_join(asked["dilation"]))


def _join(sides: Sequence[int]) -> Any:
    """Returns the numbers `sides` as a tuple. If they are all equal, returns one number."""
    return sides[0] if len(set(sides)) == 1 else tuple(sides)


def find_changed_call(module: nn.Module) -> str | None:
    """Returns why a call of a module may differ from the `forward` of its class. None means that both are the same.

    The reason completes the sentence "its forward ...".
    """
    if any(getattr(part, hooks, None) for part in module.modules() for hooks in _HOOKS):
        return "has hooks"
    if any("forward" in vars(part) for part in module.modules()):
        return "was replaced on an object"
    return None


def has_changed(before: nn.Module, after: nn.Module) -> bool:
    """Returns whether a module has changed its attributes or buffers. `before` is an older copy of the module."""

    def list_values(module: nn.Module) -> list[dict[str, Any]]:
        left_out = ("_parameters", "_buffers", "_modules")
        parts = module.modules()
        return [{k: v for k, v in vars(part).items() if k not in left_out} | part._buffers for part in parts]

    return not is_alike(list_values(before), list_values(after))


# ---------------------------------------------------------------------------------------------------------------------
# Dropout in a chain of plain layers. Dropout and Dropout2d are replaced by dropping inputs of the next linear layer.
#
# A dropout mask multiplies by 0 or by 1 / (1 - p) > 0. The mask and ReLU may therefore be applied in either order. The
# same holds for the mask of a whole channel and a pooling. If there are only such layers between a dropout layer and
# the next linear layer, dropping inputs of the linear layer gives the same result. Every engine computes the masks from
# the keys of `fedray.models.net`.

DROPOUT = (nn.Dropout, nn.Dropout2d)
_PASSED = {nn.Dropout: (nn.ReLU, nn.Flatten), nn.Dropout2d: (nn.ReLU, nn.Flatten, nn.MaxPool2d, nn.AvgPool2d)}


class Drop(NamedTuple):
    """A rule that replaces a dropout layer. It drops inputs of a linear layer in training.

    Attributes:
        layer: Index of the linear layer among the chain's linear layers.
        p: Probability with which each input, or channel, is dropped, between 0 and 1.
        channels: Whether whole channels of the convolutions' outputs are dropped.
    """

    layer: int
    p: float
    channels: bool


def split_drops(chain: Sequence[nn.Module]) -> tuple[tuple[nn.Module, ...], tuple[Drop, ...]]:
    """Separates a chain's dropout layers from its other layers, and replaces each dropout layer by a rule (`Drop`).

    Raises:
        Unread: A dropout layer drops something other than inputs of a linear layer.

    Example:
        >>> layers, drops = split_drops([nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3)])
        >>> [type(layer).__name__ for layer in layers], drops
        (['Linear', 'ReLU', 'Linear'], (Drop(layer=1, p=0.2, channels=False),))
    """
    layers = [part for part in chain if not isinstance(part, DROPOUT)]
    drops: list[Drop] = []
    for i, part in enumerate(chain):
        if not isinstance(part, DROPOUT):
            continue
        behind = next((j for j in range(i + 1, len(chain)) if isinstance(chain[j], nn.Linear | nn.Conv2d)), None)
        between = chain[i + 1 : behind]
        if behind is None or type(chain[behind]) is not nn.Linear:
            raise Unread("drops what no linear layer reads")
        before = [type(one) for one in chain[:i] if type(one) in (nn.ReLU, nn.Tanh, nn.Linear, nn.Conv2d)]
        follows_tanh = before[-1:] == [nn.Tanh]  # kernels compute the slope of tanh from its outputs before dropout
        if follows_tanh or any(type(one) not in _PASSED[type(part)] for one in between):
            raise Unread("has other layers than ReLU around its dropout")
        linear = sum(type(one) is nn.Linear for one in chain[:behind])
        drops.append(Drop(linear, part.p, type(part) is nn.Dropout2d))
    return tuple(layers), tuple(drops)


# ---------------------------------------------------------------------------------------------------------------------
# Recognition of networks that users write as classes. Recognized networks are trained by the engines of plain layers.
#
# The code above converts a module's `forward` to a chain of plain layers. The code here makes a network of the chain. A
# model of this network has the parameters of the module, in the order in which the layers are applied. Outputs and
# gradients of the network and of the module are compared on random batches, in double precision. A module that is not
# recognized is trained as it is, and the run's manifest gives the reason.

_TOLERANCE = 1e-9  # largest relative difference, in double precision


class Recognized(NamedTuple):
    """A user's module, converted to a sequence of plain layers (linear layers, convolutions, activations, poolings).

    Attributes:
        net: The sequence of plain layers. Its models `[d]` hold the parameters in the order of the layers.
        order: For each parameter of `net`, the position of the same parameter in a model of the module, `[d]`. None
            means that both orders are the same.
        log_softmax: Whether the module's outputs are the log-softmax of the outputs of `net`.
        drops: The rules that replace dropout layers. They say which inputs of linear layers are dropped in training.
    """

    net: Net
    order: Tensor | None
    log_softmax: bool
    drops: tuple[Drop, ...] = ()

    def to_plain(self, rows: Tensor) -> Tensor:
        """Converts models `[..., d]` of the module to models of `net`."""
        return rows if self.order is None else rows.index_select(-1, self.order.to(rows.device))

    def from_plain(self, rows: Tensor) -> Tensor:
        """Converts models `[..., d]` of `net` to models of the module."""
        if self.order is None:
            return rows
        return torch.empty_like(rows).index_copy_(-1, self.order.to(rows.device), rows)

    def finish_outputs(self, outputs: Tensor) -> Tensor:
        """Converts outputs of `net` to outputs of the module."""
        return F.log_softmax(outputs, dim=-1) if self.log_softmax else outputs


@lru_cache(maxsize=16)  # it is called in every choice of an engine
def recognize(net: Net, sample: tuple[int, ...], dtype: torch.dtype) -> Recognized | str:
    """Converts a network to a sequence of plain layers. If this is impossible, returns the reason.

    The reason completes the sentence "its forward ...". `sample` is the shape of one input, and `dtype` is the inputs'
    type.

    Example:
        >>> from fedray.models.net import net_of
        >>> class Network(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
        ...
        ...     def forward(self, x):
        ...         return self.b(self.a(x).relu())
        >>> found = recognize(net_of(Network, "own", "cross_entropy", 3), (4,), torch.float32)
        >>> found.net.module
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=3, bias=True)
        )
    """
    try:
        if not dtype.is_floating_point:
            raise Unread("reads tokens")
        chain, layout = trace_chain(net.module, sample), net.layout
        if layout.counters or layout.trainable < layout.d:
            raise Unread("belongs to a module with buffers")
        if len(set(chain.names)) < len(chain.names):
            raise Unread("uses a layer twice")
        if other := set(chain.names) ^ set(layout.names):  # frozen, shared or unused parameters
            raise Unread(f"does not read each trained parameter once: {min(other)}")
        if chain.log_softmax and net.objective != "cross_entropy":
            raise Unread("ends in a log-softmax")
        layers, drops = split_drops(chain.layers)
        module = nn.Sequential(*layers)
        places = dict(zip(layout.names, torch.split(torch.arange(layout.d), list(layout.sizes)), strict=True))
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        order = torch.cat([places[name] for name in chain.names])
        names = tuple(name for name, _ in module.named_parameters())
        own = Layout(names, tuple(shapes[name] for name in chain.names), layout.d)
        plain = Net(net.name, module, own, net.objective, net.outputs, lambda key: net.init(key)[order])
        found = Recognized(plain, None if chain.names == layout.names else order, chain.log_softmax, drops)
        _compare(net, found, chain, sample)
    except Unread as reason:
        return str(reason)
    return found


def _compare(net: Net, found: Recognized, chain: Chain, sample: tuple[int, ...]) -> None:
    """Checks that a chain and its module have equal outputs and gradients, in training mode and in evaluation mode.

    Raises:
        Unread: Outputs or gradients differ, or the module draws random numbers or changes itself.
    """
    place = next(net.module.parameters()).device
    first = net.init(0).double()
    row = (first + 0.3 * torch.from_numpy(rng.normal(rng.keys(0, "recognize"), len(first)))).to(place)
    module, untouched = (copy.deepcopy(net.module).double() for _ in range(2))
    layers, plain = nn.Sequential(*chain.layers), found.net.layout
    layout = Layout(tuple(name for name, _ in layers.named_parameters()), plain.shapes, plain.trainable)
    with rng.watch_generators() as have_changed, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (n, training) in enumerate(((5, True), (1, False), (3, False), (8, True))):
            x = torch.from_numpy(rng.normal(rng.keys(number, "recognize"), n * max(1, torch.Size(sample).numel())))
            x = x.view(n, *sample).to(place)
            for one in (module, untouched, layers):
                one.train(training)
            try:
                with ExitStack() as masks:
                    for one in (module, layers) if training else ():
                        masks.enter_context(dropping(one, rng.keys(number, "dropout", np.arange(n))))
                    want = differentiate(module, net.layout, row, x.clone())
                    outputs, gradient = differentiate(layers, layout, found.to_plain(row), x, found.finish_outputs)
            except Exception as error:
                raise Unread(f"could not be compared with its layers ({' '.join(str(error).split())[:100]})") from None
            for ours, theirs in ((outputs, want[0]), (found.from_plain(gradient), want[1])):
                scale = 1.0 + float(theirs.abs().max())
                if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=0.0, atol=_TOLERANCE * scale):
                    other = "gives other numbers than its layers one after another"
                    raise Unread("draws random numbers" if have_changed() else other)
        if have_changed():
            raise Unread("draws random numbers")
    if has_changed(untouched, module):
        raise Unread("changes the module")
