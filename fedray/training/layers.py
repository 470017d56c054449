"""Trains linear layers and small convolutions of many clients at once, with a backward pass written by hand.

A lane is the local training of one client. The W lanes of a block are trained together.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.core.types import Net, Objective
from fedray.models.net import per_sample
from fedray.models.nets import RBF
from fedray.training.block import Block, Step, Trained, is_plain_sgd, join_rows, make_optimizer, train_lanes
from fedray.training.chain import find_changed_call

# ---------------------------------------------------------------------------------------------------------------------
# The parameters of linear layers, stacked over lanes for batched products.
#
# A weight is stored as `[W, out, in]`, as in the layout. If the layer has more outputs than inputs, the weight is
# stored as `[W, in, out]` instead, so that the longer side is contiguous in memory. Otherwise a matrix product would
# run at a third of the speed or less.

_ACTIVATIONS = (nn.ReLU, nn.Tanh)
_PREFIX = (nn.Flatten, nn.Identity, RBF)  # modules whose outputs for a sample do not depend on other samples


class LayerShape(NamedTuple):
    """The form of a sequence of linear layers.

    Attributes:
        prefix: Modules without parameters before the first layer.
        layers: For each linear layer, the activation after it (or None), and whether the layer has a bias.
    """

    prefix: tuple[nn.Module, ...]
    layers: tuple[tuple[type[nn.Module] | None, bool], ...]


class LayerStack(NamedTuple):
    """The parameters of the linear layers of W models.

    Attributes:
        weights: Weight of each layer, as a view `[W, in, out]`. The longer of the axes `in` and `out` is contiguous in
            memory.
        biases: Bias of each layer, `[W, 1, out]`. None means that the layer has no bias.
    """

    weights: list[Tensor]
    biases: list[Tensor | None]

    @property
    def tensors(self) -> list[Tensor]:
        """All weights and biases, layer after layer."""
        return [t for pair in zip(self.weights, self.biases, strict=True) for t in pair if t is not None]


@lru_cache(maxsize=16)  # it is called for every block
def read_shape(module: nn.Module) -> LayerShape | None:
    """Returns the form of a module that consists of linear layers with ReLU or Tanh between them.

    The result is None for any other module.

    Example:
        Two models have one layer with 3 inputs and 2 outputs. Each model receives one sample.

        >>> shape = read_shape(nn.Sequential(nn.Linear(3, 2)))
        >>> stack = stack_layers(shape, [torch.ones(2, 2, 3), torch.zeros(2, 2)])
        >>> run_layers(shape, stack, torch.ones(2, 1, 3), lanes=2)[-1].tolist()
        [[[3.0, 3.0]], [[3.0, 3.0]]]
    """
    if type(module) is not nn.Sequential:
        return None
    prefix: list[nn.Module] = []
    layers: list[tuple[type[nn.Module] | None, bool]] = []
    for part in module:
        if type(part) is nn.Linear:  # a subclass may compute anything
            layers.append((None, part.bias is not None))
        elif not layers and type(part) in _PREFIX:
            prefix.append(part)
        elif type(part) in _ACTIVATIONS and layers and layers[-1][0] is None:
            layers[-1] = (type(part), layers[-1][1])
        else:
            return None
    if not layers or layers[-1][0] is not None or any(a is None for a, _ in layers[:-1]):
        return None
    return LayerShape(tuple(prefix), tuple(layers))


def stack_layers(shape: LayerShape, views: Iterable[Tensor]) -> LayerStack:
    """Copies the parameters of the linear layers of W models, and returns the copies.

    `views` are weights `[W, out, in]` and biases `[W, out]`, layer after layer.
    """
    rest = iter(views)
    params = LayerStack([], [])
    for _, bias in shape.layers:
        w = next(rest)
        widens = w.shape[1] > w.shape[2]
        wide = (w.transpose(1, 2) if widens else w).clone(memory_format=torch.contiguous_format)  # always a copy
        params.weights.append(wide if widens else wide.transpose(1, 2))
        params.biases.append(next(rest)[:, None, :].clone() if bias else None)
    return params


def write_rows(params: LayerStack, out: Tensor, a: int, b: int) -> None:
    """Writes the parameters of models a to b (exclusive) into rows a to b of `out`, `[W, d]`."""
    at = 0
    for w, bias in zip(*params, strict=True):
        i, o = w.shape[1:]
        out[a:b, at : at + i * o].view(b - a, o, i).copy_(w[a:b].transpose(1, 2))
        at += i * o
        if bias is not None:
            out[a:b, at : at + o] = bias[a:b, 0]
            at += o


def run_layers(shape: LayerShape, params: LayerStack, x: Tensor, lanes: int) -> list[Tensor]:
    """Returns the inputs of every layer, and then the outputs of the last layer, `[lanes, B, .]` each.

    `x` are the inputs of the first layer. Only the first `lanes` models of `params` are computed.
    """
    activations = [x]
    for (activation, _), w, b in zip(shape.layers, *params, strict=True):
        x = activations[-1]
        z = torch.bmm(x, w[:lanes]) if b is None else torch.baddbmm(b[:lanes], x, w[:lanes])
        activations.append(z.relu_() if activation is nn.ReLU else z.tanh_() if activation is nn.Tanh else z)
    return activations


def has_plain_layers(net: Net) -> bool:
    """Returns whether a network's parameters are the weights and biases of Linear and Conv2d layers, layer after layer.

    In such a network no parameter is frozen, shared or reparametrized. It has no buffers, no hooks, and no layer whose
    `forward` was replaced.
    """
    wanted = [
        f"{name}.{kind}"
        for name, part in net.module._modules.items()
        if isinstance(part, nn.Linear | nn.Conv2d)
        for kind in ("weight", "bias")
        if getattr(part, kind, None) is not None
    ]
    plain = list(net.layout.names) == wanted and not net.layout.counters
    return plain and find_changed_call(net.module) is None


# ---------------------------------------------------------------------------------------------------------------------
# The backward pass through linear layers, together with the optimizer's step.
#
# With plain SGD the gradient of a weight is never stored. One matrix product computes the gradient and subtracts it
# from the weight: `w <- beta w - g^T h + shift`. Here h are the inputs of the layer, and g is the gradient in the
# layer's outputs, times the learning rate. beta contains weight decay and pull, and shift contains the constant terms
# of the local gradient. With momentum or Adam the gradients are computed first, and then the optimizer makes a step.

# (stack, activations of `run_layers`, gradient of the outputs, lanes) -> gradient of the inputs, if it is requested
Descent = Callable[[LayerStack, list[Tensor], Tensor, int], "Tensor | None"]


def output_gradient(objective: Objective, z: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient of a weighted loss with respect to the outputs, and the loss of each of W clients.

    `z` are the outputs, `[W, B, C]`. `y` are labels `[W, B]` or targets `[W, B, q]`. `weight` is the weight of each
    sample, `[W, B]`.

    Example:
        The gradient of half the squared error is the error. The loss of a lane is the weighted sum of its samples'
        losses.

        >>> outputs, targets = torch.tensor([[[3.0]], [[1.0]]]), torch.zeros(2, 1, 1)
        >>> gradient, loss = output_gradient("half_mse", outputs, targets, torch.ones(2, 1))
        >>> gradient.flatten().tolist(), loss.tolist()
        ([3.0, 1.0], [4.5, 0.5])
    """
    if objective == "cross_entropy":
        pick = y[..., None]
        z = z - z.amax(-1, keepdim=True)  # by hand: torch.log_softmax is 3 times slower on rows of a few classes
        right = z.gather(-1, pick)[..., 0]
        g = z.exp_()
        total = g.sum(-1, keepdim=True)
        loss = ((total[..., 0].log() - right) * weight).sum(-1)
        g.div_(total).scatter_add_(-1, pick, g.new_full((1, 1, 1), -1.0).expand(pick.shape))
        return g.mul_(weight[..., None]), loss
    if objective in ("half_mse", "mse"):
        g = z - y
        half = (g.square().sum(-1) * weight).sum(-1)
        if objective == "half_mse":
            return g.mul_(weight[..., None]), 0.5 * half
        return g.mul_(2.0 * weight[..., None]), half
    leaf = z.detach().requires_grad_()
    with torch.enable_grad():
        each = per_sample(objective, leaf.flatten(0, 1), y.flatten(0, 1)).view(weight.shape)
        (g,) = torch.autograd.grad((each * weight).sum(), leaf)
    return g, (each.detach() * weight).sum(-1)


def make_descent(
    shape: LayerShape,
    block: Block,
    to_stack: Callable[[Tensor], LayerStack],
    *,
    inputs: bool = False,
    scaled: bool = False,
) -> Descent:
    """Returns a function that makes the backward pass and the optimizer's step, and changes the parameters in place.

    The function takes the parameters, the result of `run_layers`, the gradient of the outputs, and the number of lanes.

    Args:
        shape: The form of the layers.
        block: The lanes, with learning rate, anchor and offset.
        to_stack: A function that takes models `[W, d]` and returns their parameters as a `LayerStack`.
        inputs: Whether the returned function also computes the gradient with respect to the first layer's inputs.
        scaled: Whether the gradients of the outputs are already multiplied by the learning rate. Only plain SGD allows
            this.
    """
    local = block.local
    if not is_plain_sgd(local):
        terms = block.terms(lambda rows: to_stack(rows).tensors)
        return _make_two_pass(shape, make_optimizer(local, block.lr, *terms), inputs)
    lr, decay, pull = block.lr, local.weight_decay, local.pull
    constant = block.center * (lr * pull) if pull else None
    if block.offset is not None:
        added = block.offset * lr
        constant = -added if constant is None else constant - added
    beta = 1.0 - lr * (decay + pull) if decay + pull else None
    shift, rate = None if constant is None else to_stack(constant), 1.0 if scaled else lr

    def descend(params: LayerStack, activations: list[Tensor], g: Tensor, lanes: int) -> Tensor | None:
        for k in reversed(range(len(params.weights))):
            w, bias, h = params.weights[k][:lanes], params.biases[k], activations[k]
            below = torch.bmm(g, w.transpose(1, 2)) if k or inputs else None  # before the weight changes
            if beta is not None:
                w.mul_(beta)
            if w.is_contiguous():
                w.baddbmm_(h.transpose(1, 2), g, alpha=-rate)
            else:
                w.transpose(1, 2).baddbmm_(g.transpose(1, 2), h, alpha=-rate)
            if shift is not None:
                w += shift.weights[k][:lanes]
            if bias is not None:
                b = bias[:lanes]
                if beta is not None:
                    b.mul_(beta)
                b.add_(g.sum(1, keepdim=True), alpha=-rate)
                if shift is not None and (moved := shift.biases[k]) is not None:
                    b += moved[:lanes]
            if not k:
                return below
            assert below is not None
            g = _backward_activation(shape.layers[k - 1][0], below, h)
        return None

    return descend


def _make_two_pass(shape: LayerShape, update: Step, inputs: bool) -> Descent:
    """Returns the function of `make_descent` for all optimizers except plain SGD.

    The function first computes the gradients of all layers, and then makes the optimizer's step by `update`.
    """

    def descend(params: LayerStack, activations: list[Tensor], g: Tensor, lanes: int) -> Tensor | None:
        grads: list[Tensor] = []
        below = None
        for k in reversed(range(len(params.weights))):
            h = activations[k]
            if params.biases[k] is not None:
                grads.append(g.sum(1, keepdim=True))
            grads.append(torch.bmm(h.transpose(1, 2), g))
            if k or inputs:
                below = torch.bmm(g, params.weights[k][:lanes].transpose(1, 2))
                g = _backward_activation(shape.layers[k - 1][0], below, h) if k else g
        update(params.tensors, grads[::-1], lanes)
        return below if inputs else None

    return descend


def _backward_activation(activation: type[nn.Module] | None, g: Tensor, h: Tensor) -> Tensor:
    """Returns the gradient with respect to the inputs of an activation.

    `h` are the outputs of the activation, and `g` is the gradient with respect to these outputs.
    """
    relu = activation is nn.ReLU
    before: Tensor = torch.ops.aten.threshold_backward(g, h, 0) if relu else torch.ops.aten.tanh_backward(g, h)
    return before


# ---------------------------------------------------------------------------------------------------------------------
# The engine `mlp`, for linear layers with ReLU or Tanh between them.


def train_mlp(net: Net, block: Block) -> Trained:
    """Trains every lane (client) of a block. `read_shape` must return a form for the network.

    Example:
        Each of two lanes makes one step of plain SGD on two samples.

        >>> import numpy as np
        >>> from fedray.core.method import Local
        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
        >>> start = torch.stack([net.init(0), net.init(1)])
        >>> x, y = torch.ones(1, 2, 2, 3), torch.zeros(1, 2, 2, dtype=torch.int64)
        >>> block = Block(
        ...     start, torch.zeros(2, 0), lambda lo, hi: (x[lo:hi], y[lo:hi]), weight=torch.full((1, 2, 2), 0.5),
        ...     steps=np.ones(2, int), local=Local(lr=0.1), lr=0.1, keys=np.arange(2), sample=3,
        ... )
        >>> trained = train_mlp(net, block)
        >>> trained.final.shape == start.shape, trained.loss.shape
        (True, torch.Size([2]))
    """
    shape = read_shape(net.module)
    assert shape is not None

    def to_stack(rows: Tensor) -> LayerStack:
        return stack_layers(shape, net.layout.views(rows).values())

    scaled = is_plain_sgd(block.local) and block.lr != 0  # losses are scaled, too, and divided by the rate at the end
    lr = block.lr if scaled else 1.0

    def prepare(x: Tensor, lanes: int) -> Tensor:
        for part in shape.prefix:
            x = part(x.flatten(0, 2)).unflatten(0, x.shape[:3])
        return x[:, :lanes]

    def take_step(x: Tensor, y: Tensor, weight: Tensor, _step: int, lanes: int) -> Tensor:
        activations = run_layers(shape, params, x, lanes)
        g, cost = output_gradient(net.objective, activations[-1], y, weight)
        descend(params, activations, g, lanes)
        return cost

    with torch.no_grad():
        params, descend = to_stack(block.start), make_descent(shape, block, to_stack, scaled=scaled)
        weighted = block._replace(weight=block.weight * lr) if scaled else block
        trained = train_lanes(weighted, take_step, lambda final, a, b, _: write_rows(params, final, a, b), prepare)
        # torch rounds a division by a plain number differently from a division by a tensor
        return trained._replace(loss=trained.loss / torch.full_like(trained.loss, lr))


def mlp_outputs(net: Net, rows: Tensor, _counters: Tensor, x: Tensor) -> Tensor:
    """Returns the raw outputs `[M, n, C]` of M models of linear layers. Each model has its own inputs, `[M, n, ...]`.

    `read_shape` must return a form for the network. `rows` are the models, `[M, d]`.
    """
    shape = read_shape(net.module)
    assert shape is not None
    with torch.no_grad():
        params = stack_layers(shape, net.layout.views(rows).values())
        x = x[:1] if x.stride(0) == 0 else x  # if all models have the same inputs, the prefix is computed once
        lead = x.shape[:2]
        for part in shape.prefix:
            x = part(x.flatten(0, 1)).unflatten(0, lead)
        return run_layers(shape, params, x.expand(len(rows), *x.shape[1:]), len(rows))[-1]


# ---------------------------------------------------------------------------------------------------------------------
# Grouped convolutions whose results do not depend on the number of groups, which is the number of lanes.
#
# On processors without AVX-512, oneDNN uses different loops for an odd number of groups, and sums differ in the last
# bit. On such processors torch computes the convolutions of lanes without oneDNN, one group after another. torch has
# one switch of oneDNN for the whole process, so oneDNN stays off until the last thread has left the context.


_LOCK = threading.Lock()
_OUTSIDE: list[bool] = []  # one entry per open context: whether oneDNN was on before the first context was opened


@contextmanager
def invariant_convolutions(device: torch.device) -> Iterator[None]:
    """Returns a context in which the bits that a group of a convolution computes do not depend on the number of groups.

    On a GPU the context has no effect.

    Example:
        >>> with invariant_convolutions(torch.device("cpu")):
        ...     torch.backends.mkldnn.enabled == (torch.backends.cpu.get_cpu_capability() == "AVX512")
        True
    """
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() == "AVX512":
        yield
        return
    with _LOCK:
        _OUTSIDE.append(_OUTSIDE[0] if _OUTSIDE else bool(torch._C._get_mkldnn_enabled()))
        torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        with _LOCK:
            outside = _OUTSIDE.pop()
            torch._C._set_mkldnn_enabled(outside and not _OUTSIDE)


# ---------------------------------------------------------------------------------------------------------------------
# The engine `conv`, for small networks of convolutions: one grouped convolution computes a layer of all lanes.
#
# The channels of all lanes are side by side. Activations are `[B, W * C, H, V]` with channels last in memory, and each
# lane is one group. The linear layers after the convolutions are trained as in the engine `mlp`, with its hand-written
# backward pass. Autograd differentiates only the convolutions.

NARROW_CHANNELS = 32  # a wider convolution of a single lane keeps a core busy (measured)
CONV_LANES = {"cpu": 12, "cuda": 256}  # the most lanes that are trained together
_EVALUATED_NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 26}  # activations of a layer that are computed at a time


class SplitNet(NamedTuple):
    """A network cut into convolutions and linear layers.

    Attributes:
        features: The convolutions, with their activations and poolings.
        dense: The linear layers after the convolutions.
        tensors: Number of parameter tensors in `features`. These tensors come first in the layout of a model.
    """

    features: tuple[nn.Module, ...]
    dense: LayerShape
    tensors: int


@lru_cache(maxsize=16)  # it is called for every block
def split_net(module: nn.Module) -> SplitNet | None:
    """Cuts a network into convolutions and linear layers. Returns None if this is impossible.

    A network must consist of convolutions with pooling, ReLU or Tanh, then Flatten, then linear layers.
    """
    if type(module) is not nn.Sequential or not len(module) or type(module[0]) is not nn.Conv2d:
        return None
    flat = [i for i, part in enumerate(module) if type(part) is nn.Flatten]
    features = tuple(module)[: flat[0]] if flat else ()
    dense = read_shape(nn.Sequential(*tuple(module)[flat[0] + 1 :])) if flat else None
    if dense is None or dense.prefix:
        return None
    for part in features:  # only what this engine computes exactly
        if type(part) is nn.Conv2d:
            if part.groups != 1 or part.padding_mode != "zeros" or isinstance(part.padding, str):
                return None
        elif type(part) not in (nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d):
            return None
    return SplitNet(_move_relu(features), dense, sum(1 for part in features for _ in part.parameters()))


def find_max_channels(module: nn.Module) -> int:
    """Returns the largest number of output channels of a convolution in a network."""
    return max(part.out_channels for part in module.modules() if isinstance(part, nn.Conv2d))


def choose_lanes(channels: int, device: str) -> int:
    """Returns how many models are trained together on a device, "cpu" or "cuda".

    `channels` is the largest number of output channels of a convolution.
    """
    return CONV_LANES[device] if channels <= NARROW_CHANNELS or device == "cuda" else 1


def train_conv(net: Net, block: Block) -> Trained:
    """Trains every lane (client) of a block. `split_net` must be able to cut the network."""
    cut = split_net(net.module)
    assert cut is not None

    def read_kernels(rows: Tensor) -> list[Tensor]:
        return [_kernel(view) for view in list(net.layout.views(rows).values())[: cut.tensors]]

    def read_stack(rows: Tensor) -> LayerStack:
        return stack_layers(cut.dense, list(net.layout.views(rows).values())[cut.tensors :])

    move = make_optimizer(block.local, block.lr, *block.terms(read_kernels))
    descend = make_descent(cut.dense, block, read_stack, inputs=True)
    kernels, params = read_kernels(block.start), read_stack(block.start)
    width = sum(net.layout.sizes[: cut.tensors])

    def take_step(x: Tensor, y: Tensor, weight: Tensor, _step: int, lanes: int) -> Tensor:
        if len(kernels[0]) > lanes or not kernels[0].requires_grad:
            kernels[:] = [t[:lanes].detach().clone().requires_grad_() for t in kernels]
        z = conv_features(cut, kernels, x, lanes)
        with torch.no_grad():
            activations = run_layers(cut.dense, params, _flat(z, lanes), lanes)
            g, cost = output_gradient(net.objective, activations[-1], y, weight)
            below = descend(params, activations, g, lanes)
            assert below is not None
            b, _, h, v = z.shape
            below = below.view(lanes, b, -1, h, v).transpose(0, 1).flatten(1, 2)  # like z, with channels last
        grads = torch.autograd.grad(z, kernels, below.contiguous(memory_format=torch.channels_last))
        with torch.no_grad():
            move(kernels, grads, lanes)
        return cost

    def write(final: Tensor, a: int, b: int, lanes: int) -> None:
        final[a:b, :width] = join_rows([t.detach() for t in kernels], lanes)[a:b]
        write_rows(params, final[:, width:], a, b)

    with invariant_convolutions(block.start.device):
        return train_lanes(block, take_step, write, lambda x, lanes: _fold(x[:, :lanes]))


def conv_outputs(net: Net, rows: Tensor, _counters: Tensor, x: Tensor) -> Tensor:
    """Returns the raw outputs `[M, n, C]` of M models with convolutions. Each model has its own inputs.

    `rows` are the models, `[M, d]`, and `x` are the inputs, `[M, n, channels, height, width]`. `split_net` must be able
    to cut the network. To save memory, only some models and some inputs are computed at a time.
    """
    cut = split_net(net.module)
    assert cut is not None
    channels, kind, out = find_max_channels(net.module), rows.device.type, []
    width = choose_lanes(channels, kind)
    shares = -(-len(rows) // width)  # groups of even size, because torch has different kernels for a single model
    with torch.no_grad(), invariant_convolutions(rows.device):
        for models, inputs in zip(rows.tensor_split(shares), x.tensor_split(shares), strict=True):
            views, n = list(net.layout.views(models).values()), len(models)
            kernels = [_kernel(view) for view in views[: cut.tensors]]
            params = stack_layers(cut.dense, views[cut.tensors :])
            answers = []
            batch = max(1, _EVALUATED_NUMBERS[kind] // (n * channels * x.shape[-2:].numel()))
            for part in torch.split(inputs, batch, dim=1):
                z = conv_features(cut, kernels, _fold(part[None])[0], n)
                answers.append(run_layers(cut.dense, params, _flat(z, n), n)[-1])
            out.append(torch.cat(answers, dim=1))
    return torch.cat(out)


def _kernel(view: Tensor) -> Tensor:
    """Copies biases `[W, out]` or weights `[W, out, in, h, v]` of convolutions, with input channels last in memory."""
    if view.dim() != 5:
        return view.contiguous().clone()
    return view.permute(0, 1, 3, 4, 2).contiguous().clone().permute(0, 1, 4, 2, 3)


def _flat(z: Tensor, lanes: int) -> Tensor:
    """Reshapes outputs of convolutions, `[B, W * C, H, V]`, to inputs of linear layers, `[W, B, C * H * V]`.

    W is `lanes`. H and V are the height and width of the outputs.
    """
    b, _, h, v = z.shape
    return z.view(b, lanes, -1, h, v).transpose(0, 1).reshape(lanes, b, -1)


def _fold(x: Tensor) -> Tensor:
    """Reshapes images `[s, W, B, C, H, V]` to `[s, B, W * C, H, V]`, with channels last in memory.

    There are s steps, W lanes, and B images of H x V pixels in a batch. If there is only one channel, the strides are
    set as if there were several.
    """
    s, w, b, c, h, v = x.shape
    n = w * c
    rows = x.permute(0, 2, 4, 5, 1, 3).reshape(s, b, h, v, n).contiguous()
    return rows.as_strided((s, b, n, h, v), (b * h * v * n, h * v * n, 1, v * n, n))


def conv_features(cut: SplitNet, kernels: list[Tensor], x: Tensor, lanes: int) -> Tensor:
    """Returns the outputs of the convolutions of W = `lanes` models, `[B, W * C', H', V']`.

    `kernels` are weights and biases of the convolutions, `[W, ...]` each. `x` are images of height H and width V, `[B,
    W * C, H, V]`.
    """
    rest = iter(kernels)
    for part in cut.features:
        if isinstance(part, nn.Conv2d):
            w = next(rest).flatten(0, 1)
            b = next(rest).flatten() if part.bias is not None else None
            x = F.conv2d(x, w, b, part.stride, part.padding, part.dilation, groups=lanes)
        elif type(part) is nn.MaxPool2d:
            x = F.max_pool2d(x, part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode)
        else:
            x = part(x)
    return x


def _move_relu(parts: tuple[nn.Module, ...]) -> tuple[nn.Module, ...]:
    """Moves each ReLU behind the max pooling that directly follows it, if the pooling has no padding.

    The results are the same, but ReLU has fewer values to compute (a quarter for windows of 2 x 2).
    """
    out = list(parts)
    for i in range(len(out) - 1):
        if type(out[i]) is nn.ReLU and type(out[i + 1]) is nn.MaxPool2d and out[i + 1].padding in (0, (0, 0)):
            out[i], out[i + 1] = out[i + 1], out[i]
    return tuple(out)
