"""What a module's `forward` computes, as a plain `nn.Sequential`: so that the way a network is written does not matter.

`torch.fx` runs `forward` once with a placeholder in place of the inputs and records what is called. A network that is a
chain of linear layers, convolutions, poolings and activations, in whatever form (modules, functions, methods, nested
modules), is read into the same layers in the order in which they are applied. Everything else is refused with a reason.

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

from __future__ import annotations

import copy
import io
import operator
import warnings
from contextlib import redirect_stdout
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from fedray.core import rng
from fedray.training.chain import Chain, ChainBuilder
from fedray.training.known_layers import Link, Unread

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
