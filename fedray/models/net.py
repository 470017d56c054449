"""Converts a torch module to a `Net`, and defines networks with distributions over their weights.

A model of a `Net` is a vector `[d]`: the module's trainable parameters and float buffers.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import EVALUATED_ROWS, VARIANCE_FLOOR, Layout, Net, Objective

# ---------------------------------------------------------------------------------------------------------------------
# How a module becomes a `Net`, which consists of a template, a layout of models, and an initialization by random key.
#
# A model holds the trainable parameters in the order of `named_parameters`, and then the persistent float buffers in
# the order of `named_buffers`. Persistent integer buffers with a single value (BatchNorm's `num_batches_tracked`) are
# counters and lie in a second matrix. All other tensors are constants of the template, such as frozen parameters and
# buffers that are not persistent. They are the same for every model, and are neither trained, nor sent, nor averaged.

TEMPLATE_KEY = 0  # random key of a template's constants


def net_of(module_factory: Callable[[], nn.Module], name: str, objective: Objective, outputs: int) -> Net:
    """Makes a `Net` from any torch module.

    Args:
        module_factory: A function that makes a new module with initial values. It may draw random numbers only from
            torch's global generator.
        name: Name of the network in messages and records.
        objective: Name of the loss in training. `per_sample` computes it.
        outputs: Length of the output for one sample. For `gaussian_nll`, it is twice the number of targets.

    Returns:
        The net. Its `init(key)` makes a new module with random numbers from `key`, and returns the module's values as a
        model, `[d]` float32.

    Example:
        >>> net = net_of(lambda: nn.Linear(3, 2), "mine", "cross_entropy", 2)
        >>> net.layout.names, net.layout.d, net.init(7).shape
        (('weight', 'bias'), 8, torch.Size([8]))
        >>> bool((net.init(7) == net.init(7)).all())
        True
    """
    with rng.torch_scope(TEMPLATE_KEY):
        template = _separate_shared_layers(module_factory(), set())
    layout = layout_of(template, name)
    for counter, value in _counters(template):
        if int(value) != 0:  # the buffer is probably a constant, and must not be changed like a counter
            raise BadInput(
                f"model.name = {name}: its integer buffer {counter} starts at {int(value)}, but counters start at 0: "
                "register a constant with persistent=False"
            )

    def init(seed_key: int) -> Tensor:
        with rng.torch_scope(int(seed_key)):
            module = module_factory()
        if layout_of(module, name) != layout:
            raise BadInput(
                f"model.name = {name}: its function made two different networks: let it make the same one in every call"
            )
        return torch.cat([tensor.detach().reshape(-1).to("cpu", torch.float32) for _, tensor in _in_row(module)])

    return Net(name, template, layout, objective, outputs, init)


def compute_raw_outputs(net: Net, models: Tensor, x: Tensor) -> Tensor:
    """Returns the raw outputs `[S, n, C]` of S models `[S, d]` for the same network inputs.

    The models are in evaluation mode. `x` are the inputs, `[n, ...]`. Gradients flow to the trainable
    parameters. Float buffers have the gradient 0.

    Example:
        >>> net = net_of(lambda: nn.Linear(3, 2), "mine", "cross_entropy", 2)
        >>> compute_raw_outputs(net, torch.stack([net.init(7), net.init(8)]), torch.ones(5, 3)).shape
        torch.Size([2, 5, 2])
    """
    net.module.eval()
    trained, parts = net.layout.names[: net.layout.trainable_tensors], torch.split(x, EVALUATED_ROWS)
    each = [
        {name: view if name in trained else view.detach() for name, view in net.layout.views(row).items()}
        for row in models
    ]
    return torch.stack([torch.cat([functional_call(net.module, one, (part,)) for part in parts]) for one in each])


def layout_of(module: nn.Module, name: str = "module") -> Layout:
    """Returns the order of a module's parameters and buffers in a vector. `name` is the network's name in messages.

    Example:
        >>> layout_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))).counters
        ('1.num_batches_tracked',)
    """
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    if trainable == 0:
        raise BadInput(
            f"model.name = {name}: it has no trainable parameter: keep layers as attributes or in an nn.ModuleList, "
            "where torch finds them, and set requires_grad on what is to be trained"
        )
    tensors = dict(_in_row(module))
    shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
    return Layout(tuple(tensors), shapes, trainable, tuple(counter for counter, _ in _counters(module)))


def state_dict(net: Net, row: Tensor, counters: Tensor | None = None) -> dict[str, Tensor]:
    """Converts one model `[d]` to a torch state dict, for `module.load_state_dict` or `torch.save`.

    The dict has all entries of the module, including frozen parameters. The tensors are copies. `counters` are the c
    integer buffers of the model, `[c]` int64. None means zeros.

    Example:
        >>> body = nn.Linear(3, 2).requires_grad_(False)
        >>> net = net_of(lambda: nn.Sequential(body, nn.Linear(2, 2)), "mine", "cross_entropy", 2)
        >>> list(state_dict(net, net.init(0))), net.layout.d
        (['0.weight', '0.bias', '1.weight', '1.bias'], 6)
    """
    values = torch.zeros(len(net.layout.counters), dtype=torch.int64) if counters is None else counters
    trained = net.layout.views(row) | dict(zip(net.layout.counters, values, strict=True))
    named = dict(net.module.named_parameters(remove_duplicate=False))
    first = {id(value): name for name, value in net.module.named_parameters()}  # the first name of a shared tensor
    found = {}
    for name, value in net.module.state_dict().items():
        known = first[id(named[name])] if name in named else name
        found[name] = trained[known].detach().clone() if known in trained else value.detach().cpu().clone()
    return found


def is_linear(module: nn.Module) -> bool:
    """Returns whether the last layer is linear, and no other layer has parameters.

    Example:
        >>> is_linear(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
        True
        >>> is_linear(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
        False
    """
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    before = any(True for part in parts[:-1] for _ in part.parameters())
    return bool(parts) and isinstance(parts[-1], nn.Linear) and not before


def last_layer_inputs(module: nn.Module, x: Tensor) -> Tensor:
    """Converts inputs x of a linear model, `[n, ...]`, to the p inputs of its last layer, `[n, p]`."""
    for part in list(module)[:-1] if isinstance(module, nn.Sequential) else []:
        x = part(x)
    return x.flatten(1)


def _separate_shared_layers(module: nn.Module, known: set[int]) -> nn.Module:
    """Replaces a layer that occurs twice in a module by two layers with the same parameters. Returns the module.

    Otherwise `functional_call` would leave its own tensors in such a layer. `known` holds the ids of earlier layers.
    """
    for name, child in module._modules.items():
        if child is None:
            continue
        if id(child) in known:
            twin = copy.copy(child)
            for part in ("_parameters", "_buffers", "_modules"):
                twin.__dict__[part] = dict(child.__dict__[part])
            module._modules[name] = child = twin
        known.add(id(child))
        _separate_shared_layers(child, known)
    return module


def _in_row(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and the tensor of each trainable parameter and float buffer, in the order of a model's vector."""
    yield from ((name, p) for name, p in module.named_parameters() if p.requires_grad)
    yield from ((name, b) for name, b in _persistent(module) if b.is_floating_point())


def _counters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and the tensor of each integer buffer with a single value."""
    for name, buffer in _persistent(module):
        is_integer = not (buffer.is_floating_point() or buffer.is_complex() or buffer.dtype == torch.bool)
        if is_integer and buffer.ndim == 0:
            yield name, buffer


def _persistent(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and the tensor of each buffer that is part of the state dict."""
    kept = module.state_dict().keys()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in kept)


# ---------------------------------------------------------------------------------------------------------------------
# Losses of each sample, computed from a network's raw outputs.

_LOG_2PI = math.log(2.0 * math.pi)


class Gaussian(NamedTuple):
    """A prediction that consists of a mean and a variance for each target.

    Attributes:
        mean: Mean of each target, `[..., B, outputs / 2]`.
        variance: Variance of each target, `[..., B, outputs / 2]`, above 0.
    """

    mean: Tensor
    variance: Tensor


MOST_IN_VECTOR = 16  # float32 numbers in a register of AVX-512


def per_sample(objective: Objective, outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the loss of each sample.

    `cross_entropy` is -log softmax(f)[y]. `half_mse` is 1/2 |f - y|^2 and `mse` is |f - y|^2, both summed over the
    outputs. `split_gaussian` gives the mean m and the variance v of each target. Then `gaussian_nll` is
    (log v + (m - y)^2 / v + log 2 pi) / 2, summed over the targets.

    Args:
        objective: Name of the loss.
        outputs: Raw outputs f, `[..., B, outputs]`.
        y: Class indices `[..., B]` int64, or targets `[..., B]` or `[..., B, targets]`.

    Returns:
        The loss of each sample, `[..., B]`.

    Example:
        >>> import torch
        >>> per_sample("half_mse", torch.tensor([[3.0], [1.0]]), torch.tensor([1.0, 1.0]))
        tensor([2., 0.])
        >>> per_sample("cross_entropy", torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([4.])
    """
    if objective == "cross_entropy":
        return -functional.log_softmax(outputs, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    if objective == "gaussian_nll":
        mean, variance = split_gaussian(outputs)
        return 0.5 * (variance.log() + (_like(y, mean) - mean).square() / variance + _LOG_2PI).sum(-1)
    squares = (outputs - _like(y, outputs)).square().sum(-1)
    return 0.5 * squares if objective == "half_mse" else squares


def measure_losses(objective: Objective, outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the result of `per_sample`, for outputs through which no gradient flows.

    With AVX-512, the softmax over few classes is six times as fast if the classes are the first axis. It then also has
    the same bits as with AVX2. A vector has at most 16 numbers, and the samples are filled up to whole vectors.
    """
    classes = outputs.shape[-1]
    if objective != "cross_entropy" or classes >= MOST_IN_VECTOR or outputs.device.type != "cpu":
        return per_sample(objective, outputs, y)
    columns = outputs.reshape(-1, classes).T  # [C, B]
    columns = functional.pad(columns, (0, -columns.shape[1] % MOST_IN_VECTOR)).contiguous()
    return -functional.log_softmax(columns, dim=0).gather(0, y.reshape(1, -1)).view(y.shape)


def factor_fisher(objective: Objective, outputs: Tensor) -> Tensor:
    """Returns j vectors `[j, outputs]` whose outer products add up to the Fisher matrix of one sample's outputs.

    `objective` names the loss. Up to a constant, the loss is the negative log-likelihood of a distribution whose
    parameters are the raw outputs of the sample, `[outputs]`. The Fisher matrix is `diag(p) - p p'` for `cross_entropy`
    with the probabilities p, the identity for `half_mse`, and twice the identity for `mse`. For `gaussian_nll`, the
    Fisher information about the mean is `1 / v`, and about the variance v it is `1 / (2 v^2)`.

    Example:
        >>> import torch
        >>> s = factor_fisher("cross_entropy", torch.tensor([0.0, 0.0]))
        >>> s.T @ s
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
    """
    one = torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device)
    if objective == "cross_entropy":
        p = outputs.softmax(-1)
        return p.sqrt()[:, None] * (one - p)
    if objective == "gaussian_nll":
        variance = split_gaussian(outputs).variance
        raw = outputs.chunk(2, dim=-1)[1]
        return one * torch.cat([variance.rsqrt(), raw.sigmoid() / (math.sqrt(2.0) * variance)])
    return one * (math.sqrt(2.0) if objective == "mse" else 1.0)


def split_gaussian(outputs: Tensor) -> Gaussian:
    """Splits raw outputs `[..., B, 2 targets]` into a mean and a variance of each target.

    The first half of the outputs are the means. The variances are the softplus of the second half, plus 1e-6.

    Source: Lakshminarayanan, Pritzel and Blundell 2017, section 2.2.1.
    """
    mean, raw = outputs.chunk(2, dim=-1)
    return Gaussian(mean, functional.softplus(raw) + VARIANCE_FLOOR)


def _like(y: Tensor, outputs: Tensor) -> Tensor:
    """Returns targets `[..., B]` or `[..., B, targets]` in the shape of the outputs, without broadcasting."""
    return y.reshape(outputs.shape).to(outputs.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# How many floating-point operations a network needs.

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # the layers whose operations are counted


def count_forward_flops(net: Net, example: Tensor) -> float:
    """Returns how many floating-point operations a forward pass of one sample takes in linear layers and convolutions.

    The result is at least two operations per parameter. For text, it is at least two operations per parameter and
    token. `example` is one network input, `[1, ...]`.

    Example:
        >>> from fedray.models.net import net_of
        >>> count_forward_flops(net_of(lambda: nn.Linear(4, 5), "own", "cross_entropy", 2), torch.zeros(1, 4))
        50.0
    """
    counted = 0.0

    def count(layer: Any, _inputs: Any, output: Tensor) -> None:
        nonlocal counted
        counted += 2.0 * layer.weight.numel() * output.numel() / layer.weight.shape[0]

    layers = [module for module in net.module.modules() if isinstance(module, _PRODUCTS)]
    hooks, training = [layer.register_forward_hook(count) for layer in layers], net.module.training
    try:
        with torch.no_grad():
            net.module.eval()(example)
    finally:
        net.module.train(training)
        for hook in hooks:
            hook.remove()
    tokens = 1 if example.is_floating_point() else example.numel()
    return max(counted, 2.0 * net.layout.d * tokens)


# ---------------------------------------------------------------------------------------------------------------------
# A network whose weights are removed from its layers. Every forward pass takes the weights from a vector.


class FlatWeights(NamedTuple):
    """Describes how the p trainable parameters of a network lie in a vector.

    Attributes:
        layout: The order of the trainable tensors in the vector.
        places: A pair of names for each parameter: its name in the network, and its name in `layout`. A parameter that
            several layers share has several pairs.
    """

    layout: Layout
    places: tuple[tuple[str, str], ...]

    def place(self, vector: Tensor) -> dict[str, Tensor]:
        """Splits a vector `[p]` into the network's tensors. Returns them by name, as `functional_call` needs them."""
        weights = self.layout.views(vector)
        return {place: weights[name] for place, name in self.places}

    def forward(self, net: nn.Module, vector: Tensor, x: Tensor) -> Tensor:
        """Returns the network's raw outputs `[n, C]` for inputs `[n, ...]`, with the weights of a vector `[p]`."""
        out: Tensor = functional_call(net, self.place(vector), (x,))
        return out


def take_out_weights(net: nn.Module, name: str = "module") -> tuple[Tensor, FlatWeights]:
    """Removes the p trainable parameters from a network. Returns them as a vector `[p]`, with their names and shapes.

    The network keeps its buffers and frozen parameters. `name` is the network's name in messages.

    Example:
        >>> net = nn.Linear(3, 2)
        >>> first, weights = take_out_weights(net)
        >>> first.shape, {name: tuple(part.shape) for name, part in weights.place(first).items()}
        (torch.Size([8]), {'weight': (2, 3), 'bias': (2,)})
        >>> weights.forward(net, first, torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """
    layout, known = layout_of(net, name).trained, dict(net.named_parameters())
    vector = torch.cat([known[one].detach().reshape(-1) for one in layout.names])
    first = {id(part): one for one, part in known.items() if part.requires_grad}
    every = net.named_parameters(remove_duplicate=False)  # shared weights have several names
    places = tuple((place, first[id(part)]) for place, part in every if id(part) in first)
    for module in net.modules():
        for own, part in list(module._parameters.items()):
            if part is not None and id(part) in first:
                del module._parameters[own]
                setattr(module, own, part.detach())
    return vector, FlatWeights(layout, places)


# ---------------------------------------------------------------------------------------------------------------------
# A network with a Gaussian over its weights, and a second Gaussian, which is the prior of the first one (pFedBayes).
#
# A model is `[own mean, own rho, prior mean, prior rho]`, each of length p, and the network's float buffers. The
# standard deviation is `softplus(rho)`. The network predicts with the mean of the first Gaussian (own mean).

OWN = "own"  # name of the layer that holds a client's posterior; the prior is the layer after it
PARTS = 4  # vectors of a model: own.mean, own.rho, prior.mean and prior.rho


class MeanField(nn.Module):
    """A network with two Gaussians over its p trainable parameters. The second Gaussian is the prior of the first.

    Attributes:
        own: The first Gaussian. The network predicts with the mean of this Gaussian.
        prior: The prior of `own`. Both are equal at first.
        net: The network, from which the trainable parameters were removed.

    Example:
        >>> pair = MeanField(nn.Linear(3, 2), rho=0.0)
        >>> {name: tuple(part.shape) for name, part in pair.named_parameters() if part.requires_grad}
        {'own.mean': (8,), 'own.rho': (8,), 'prior.mean': (8,), 'prior.rho': (8,)}
        >>> bool((pair.own.mean == pair.prior.mean).all()), pair(torch.ones(5, 3)).shape
        (True, torch.Size([5, 2]))
    """

    def __init__(self, net: nn.Module, rho: float, name: str = "module") -> None:
        """Makes two equal Gaussians. Their mean is the vector of the network's initial parameters.

        Every standard deviation is `softplus(rho)`. `name` is the network's name in messages.
        """
        nn.Module.__init__(self)
        mean, self._weights = take_out_weights(net, name)
        self.own, self.prior = make_gaussian(mean, rho), make_gaussian(mean, rho)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Returns raw outputs `[n, C]` for inputs `[n, ...]`. The weights are the mean of `own`."""
        return self._weights.forward(self.net, self.own["mean"], x)


def make_gaussian(mean: Tensor, rho: float) -> nn.ParameterDict:
    """Makes the parameters of a Gaussian with p means, `mean` `[p]`, and all standard deviations `softplus(rho)`."""
    return nn.ParameterDict({"mean": mean.clone(), "rho": torch.full_like(mean, rho)})


# ---------------------------------------------------------------------------------------------------------------------
# A network with a Gaussian over its weights, and with a client's factor of this Gaussian (PVI).
#
# A model is `[mean, rho, linear, precision, is_prior]` and the network's float buffers. The Gaussian has means and
# values of rho, `[p]` each, and its standard deviation is `softplus(rho)`. The factor `exp(linear w - precision w^2 /
# 2)` has linear terms and precisions, `[p]` each. `is_prior` is a single value. The network predicts with the mean.

SITE = "site"  # name of the layer that holds a client's factor


class Partitioned(nn.Module):
    """A network with a Gaussian over its p trainable parameters, and with a client's factor of this Gaussian (PVI).

    Attributes:
        posterior: The Gaussian. The network predicts with the mean of this Gaussian.
        site: Natural parameters of a client's factor. They are 0 at first, so that the factor is 1 everywhere.
        start: Holds `is_prior`, which is 1 until the Gaussian is learned from data. Until then the posterior is the
            prior, and `posterior` is only the start of training.
        net: The network, from which the trainable parameters were removed.

    Example:
        >>> one = Partitioned(nn.Linear(3, 2), rho=0.0)
        >>> {name: tuple(part.shape) for name, part in one.named_parameters() if "site" in name}
        {'site.linear': (8,), 'site.precision': (8,)}
        >>> one.start.is_prior.tolist(), one(torch.ones(5, 3)).shape
        ([1.0], torch.Size([5, 2]))
    """

    def __init__(self, net: nn.Module, rho: float, name: str = "module") -> None:
        """Makes the Gaussian. Its mean is the vector of the network's initial parameters.

        Every standard deviation is `softplus(rho)`. `name` is the network's name in messages.
        """
        nn.Module.__init__(self)
        mean, self._weights = take_out_weights(net, name)
        self.posterior = make_gaussian(mean, rho)
        self.site = nn.ParameterDict({"linear": torch.zeros_like(mean), "precision": torch.zeros_like(mean)})
        self.start = nn.ParameterDict({"is_prior": mean.new_ones(1)})
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Returns raw outputs `[n, C]` for inputs `[n, ...]`. The weights are the mean of the Gaussian."""
        return self._weights.forward(self.net, self.posterior["mean"], x)


# ---------------------------------------------------------------------------------------------------------------------
# A network with M samples of its weights. The last sample is trained, and the mean prediction of all samples predicts.
#
# A model is a vector of length M p, sample after sample. All samples are equal at first. In training the network has
# the weights of the last sample, which is the state of a Markov chain (`fedray.components.one_shot`). In evaluation the
# network returns the logarithm of the mean probabilities of all samples.


class Samples(nn.Module):
    """A classifier that averages its predictions over M samples of its p trainable parameters.

    Attributes:
        samples: The parameters of each sample, `[M, p]`.
        net: The network without its trainable parameters.

    Example:
        >>> several = Samples(nn.Linear(3, 2), number=4)
        >>> several.samples.shape, several.eval()(torch.ones(5, 3)).exp().sum(-1).round(decimals=4).tolist()
        (torch.Size([4, 8]), [1.0, 1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, net: nn.Module, number: int, name: str = "module") -> None:
        """Makes `number` samples. Each sample equals the initial parameters of the network."""
        nn.Module.__init__(self)
        first, self._weights = take_out_weights(net, name)
        self.samples = nn.Parameter(first.repeat(number, 1))
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits `[n, C]`.

        In training, the last sample computes the logits. In evaluation, the logits are `log 1/M sum_m p(y | x, w_m)`.
        """
        if self.training:
            return self._weights.forward(self.net, self.samples[-1], x)
        each = torch.stack([self._weights.forward(self.net, one, x) for one in self.samples])
        return each.log_softmax(-1).logsumexp(0) - math.log(len(each))


# ---------------------------------------------------------------------------------------------------------------------
# Dropout with reproducible masks, in training and in predictions of networks whose dropout stays on.
#
# In training the mask of a sample is a function of the client's random key in this round, the step, the sample's
# position in the batch and the layer. So every engine drops the same units. Predictions with dropout follow the public
# code of Fed-ensemble, which never calls `eval()`. In these predictions, the mask of a sample is a function of the
# seed, the index of the model, the layer and the sample's inputs. It does not depend on the other samples, their order,
# the round, or the runtime.

_TRAINING = -2  # makes the random keys of masks differ from the keys of permutations
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # they drop whole channels


def find_dropout(module: nn.Module) -> list[nn.Module]:
    """Returns a module's dropout layers with a probability above 0, in the module's order.

    Example:
        >>> len(find_dropout(nn.Sequential(nn.Dropout(0.0), nn.Dropout2d(0.5))))
        1
    """
    return [part for part in module.modules() if isinstance(part, (nn.Dropout, *CHANNELS)) and part.p > 0]


def key_batch(key: rng.Keys, step: int, rows: int) -> rng.Keys:
    """Returns a random key for each of the `rows` samples of a batch in training, `[rows]`.

    `key` is the random key of a client's local training. `step` is the index of the step, from 0.
    """
    return rng.fresh(rng.fresh(rng.fresh(key, _TRAINING), step), np.arange(rows))


def key_rows(key: rng.Keys, x: Tensor) -> rng.Keys:
    """Returns a random key for each of n samples, computed from `key` and the sample's raw inputs in x, `[n, ...]`."""
    flat = np.ascontiguousarray(x.cpu().numpy()).reshape(len(x), -1).view(np.uint8)
    words = np.zeros((len(flat), -(-flat.shape[1] // 8) * 8), np.uint8)
    words[:, : flat.shape[1]] = flat
    keys = np.full(len(flat), key)
    for column in words.view(np.int64).T:
        keys = rng.fresh(keys, column)
    return keys


@contextmanager
def dropping(module: nn.Module, keys: rng.Keys) -> Iterator[None]:
    """Returns a context in which the masks of a module's dropout layers are computed from `keys`.

    `keys` has one random key for each of the n samples in a forward pass. The module may be in training or evaluation
    mode.
    """
    parts = find_dropout(module)
    modes = [part.training for part in parts]
    handles = [part.eval().register_forward_hook(_make_hook(part, rng.fresh(keys, i))) for i, part in enumerate(parts)]
    try:
        yield
    finally:
        for part, mode, handle in zip(parts, modes, handles, strict=True):
            handle.remove()
            part.training = mode


def _make_hook(part: Any, keys: rng.Keys) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        shape = output.shape[1:]
        number = shape[0] if isinstance(part, CHANNELS) else shape.numel()
        kept = torch.from_numpy(rng.uniform(keys, number) >= part.p).to(output) / (1.0 - part.p)
        shaped: Tensor = kept.view(
            len(keys), *(shape if number == shape.numel() else (number, *[1] * (len(shape) - 1)))
        )
        dropped: Tensor = output * shaped
        return dropped

    return hook


def answer_with_dropout(module: nn.Module, keys: rng.Keys, models: int, answer: Callable[[int], Tensor]) -> Tensor:
    """Returns the raw outputs of M models with dropout, `[M, n, C]`. Each model has its own masks.

    `keys` holds a random key for each of n inputs. `answer` is a function that takes the index of a model, and returns
    the model's outputs, `[1, n, C]`.
    """
    out = []
    for m in range(models):
        with dropping(module, rng.fresh(keys, m)):
            out.append(answer(m))
    return torch.cat(out)
