"""Tries a network on a few samples before training, and checks that its outputs are what the loss needs."""

import copy
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedray.core import rng
from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import Layout, Net
from fedray.models.net import layout_of
from fedray.own_code.contract import contract
from fedray.own_code.user_code import blame_user_code, describe_exception, name_type

_REMEDIES = {  # networks for each kind of inputs
    "tokens": "choose lstm or a network that begins with an embedding, or give inputs as float32 if they are numbers",
    "features": "choose linear or mlp, or a network for such inputs",
    "images": "choose linear, mlp or cnn, or a network for such inputs",
}
MIXES = "the rows of a batch see each other (batch statistics, say), so that no batch may be padded"
_PLANES = "give pictures of real numbers as [n, 1, H, W], or "


def try_network(net: Net, rows: Tensor, kind: str) -> None:
    """Checks that a network runs on some samples, and that its outputs are what the loss needs.

    `rows` are the samples' inputs, `[n, ...]`. `kind` is the kind of the inputs: images, features or tokens.

    Raises:
        BadInput: The network fails on the samples, or its outputs have the wrong shape. The error is also raised if the
            outputs are probabilities, but the loss needs logits.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from fedray.models.net import net_of
        >>> net = net_of(lambda: nn.Linear(4, 5), "own", "cross_entropy", 2)
        >>> try_network(net, torch.zeros(3, 4), "features")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: model.name = own puts out shape [3, 5] for 3 rows: let it return 2 numbers for ...
    """
    module, training = net.module, net.module.training
    try:
        with torch.no_grad(), rng.torch_scope(0):
            out = module.eval()(rows)
    except Exception as error:
        shape = list(rows.shape[1:])
        raise BadInput(
            f"model.name = {net.name} cannot read the data, {kind} of shape {shape} ({describe_exception(error)}): "
            f"{_PLANES if kind == 'features' and len(shape) == 2 else ''}{_REMEDIES[kind]}"
        ) from error
    finally:
        module.train(training)
    check_outputs(net, out, len(rows))
    sums_to_one = bool(((out.double().sum(1) - 1.0).abs() < 1e-4).all() and (out >= 0).all())
    if net.objective == "cross_entropy" and out.shape[1] > 1 and sums_to_one:
        raise BadInput(
            f"model.name = {net.name} ends in a softmax, but its outputs are read as logits, of which the loss takes "
            "the softmax itself: leave the last layer out"
        )


def check_outputs(net: Net, out: Any, rows: int, when: str = "", *, heads: bool = False) -> None:
    """Checks that a network's outputs are a tensor of real numbers with the shape `[n, C]` for n = `rows` inputs.

    `when` is part of error messages. It says when the network was called, such as " in training". If `heads` is true,
    outputs of H output layers, `[n, H, C]`, are accepted, too.

    Raises:
        BadInput: The outputs are not a tensor, or have the wrong shape or type.
    """
    where = f"model.name = {net.name} puts out"
    if not isinstance(out, Tensor):
        raise BadInput(f"{where} {name_type(out)}{when}: let it return one tensor")
    shape = (*out.shape[:1], *out.shape[2:]) if heads and out.dim() == 3 else out.shape
    if shape != (rows, net.outputs):
        raise BadInput(
            f"{where} shape {list(out.shape)}{when} for {rows} rows: let it return {net.outputs} numbers for each row"
        )
    if out.dtype not in (torch.float32, torch.float64):
        kind = str(out.dtype).removeprefix("torch.")
        raise BadInput(f"{where} numbers of type {kind}{when}: let it return float32, logits or predictions")


def check_finite_outputs(net: Net, out: Tensor, when: str) -> None:
    """Checks that a network's outputs are finite. `when` says in the error message when the network was called.

    Raises:
        FedrayError: An output is NaN or infinite.
    """
    if not bool(torch.isfinite(out).all()):
        what = "NaN" if bool(torch.isnan(out).any()) else "infinite numbers"
        raise FedrayError(f"model.name = {net.name} puts out {what}{when}: look for a division, a logarithm or a root")


def try_training(net: Net, rows: Tensor) -> None:
    """Checks that the outputs of a user's own network in training mode fit the loss, and have a gradient.

    A copy of the module is checked, so that running statistics do not change. A module that cannot be copied is not
    checked. `rows` are some network inputs, `[n, ...]`.

    Raises:
        BadInput: The outputs are not what the loss needs.
        FedrayError: The initial values or the outputs of the network are not finite, or the network raised an
            exception.
    """
    where, row = f"model.name = {net.name}", net.init(0)
    try:
        module = copy.deepcopy(net.module).train()
    except Exception:  # the module cannot be copied, for example because it holds a lock or an open file
        return
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    tensors = {name: view.clone().requires_grad_(name in trained) for name, view in net.layout.views(row).items()}
    with blame_user_code(f"{where} in training"), rng.torch_scope(0), torch.enable_grad():
        out = functional_call(module, tensors, (rows,))
        check_outputs(net, out, len(rows), " in training", heads=True)
        check_finite_outputs(net, out, " in training")
        torch.autograd.grad(out.double().sum(), [tensors[name] for name in trained], allow_unused=True)


def guard_factory(make: Callable[[], Any], name: str) -> Callable[[], nn.Module]:
    """Adds a check to a user's function that makes modules: every call must return a module.

    `name` is the network's name in messages.

    Example:
        >>> guard_factory(lambda: None, "own")()
        Traceback (most recent call last):
        fedray.core.errors.BadInput: model.name = own: its function returned None: let it return an nn.Module
    """

    def returns(module: Any) -> str | None:
        return None if isinstance(module, nn.Module) else f"{name_type(module)}: let it return an nn.Module"

    return contract(f"model.name = {name}: its function", make, returns)


def try_factory(make: Callable[[], nn.Module], name: str, models: int) -> None:
    """Checks that every call of a user's function returns a new module, with initial values from torch's generator.

    `name` is the network's name in messages. If `models` is 1, the model may begin at fixed values.

    Raises:
        BadInput: Two calls return the same parameters, or two calls with the same random key return different values.
            There are several models, but all calls return the same values. Parameters have a wrong type, or are not
            finite.

    Example:
        >>> one = nn.Linear(4, 2)
        >>> try_factory(lambda: one, "own", 1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: model.name = own: its function returns parameters that an earlier call returned...
    """
    calls = []
    for address in (1, 1, 2):
        with rng.torch_scope(address):
            module = make()
        layout = layout_of(module, name)
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.dtype != torch.float32:
                kind = str(parameter.dtype).removeprefix("torch.")
                raise BadInput(f"model.name = {name} has parameters of type {kind}: make them float32, as torch does")
            if not bool(torch.isfinite(parameter).all()):
                raise BadInput(
                    f"model.name = {name} begins with parameters that are NaN or infinite: look at how it draws them"
                )
        named = dict(module.named_parameters()) | dict(module.named_buffers())
        calls.append([named[key] for key in layout.names])
    first, again, other = calls
    if any(p.numel() and p.data_ptr() == q.data_ptr() for p, q in product(first, again) if p.requires_grad):
        raise BadInput(
            f"model.name = {name}: its function returns parameters that an earlier call returned, so that all models "
            "would be one: make a new module in every call"
        )
    if not _same(first, again):
        raise BadInput(
            f"model.name = {name}: its first values are drawn outside torch (numpy or random, say), so that no run "
            "could be repeated: draw them with torch's generator"
        )
    if models > 1 and _same(first, other):
        raise BadInput(
            f"model.name = {name}: every call gives the same first values (what is frozen is the same in all models), "
            f"so that all {models} models begin as one: draw them with torch's generator, or set method.models to 1"
        )


def _same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Returns whether two modules have the same values.

    Modules with different shapes count as the same, because `net_of` reports them.
    """
    return [p.shape for p in a] != [q.shape for q in b] or all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Finds out whether the outputs for a sample depend on the other samples of the batch, as with batch statistics.
#
# If they do, a score depends on the batches into which test samples are cut, and training batches must not be padded.

_FEW, _ALL = 3, 8  # number of samples that are computed alone, and size of the batch that contains them


def find_mixing(net: Net, example: Tensor, *, training: bool) -> str | None:
    """Returns why the outputs for a sample may depend on the other samples of its batch. None means that they do not.

    The outputs for three samples are computed in a batch of these samples only, and in a batch with further samples. If
    `training` is True, gradients of these outputs are compared, too. The comparison is made with the initial
    parameters, and again with parameters near them. The initial parameters alone would not suffice: a gate that is
    closed at first would hide the layers after this gate. In training mode, the module computes in double precision if
    it can. `example` is one network input, whose values do not matter.

    Example:
        >>> from fedray.models.net import net_of
        >>> norm = nn.BatchNorm1d(2, track_running_stats=False)
        >>> net = net_of(lambda: nn.Sequential(nn.Linear(4, 2), norm), "own", "cross_entropy", 2)
        >>> plain = net_of(lambda: nn.Linear(4, 2), "own", "mse", 2)
        >>> find_mixing(net, torch.zeros(4), training=False) == MIXES, find_mixing(plain, torch.zeros(4), training=True)
        (True, None)
    """
    place, failure, first = next(net.module.parameters(), torch.zeros(0)).device, "", net.init(0)
    noise = torch.from_numpy(rng.normal(rng.keys(0, "padding"), min(len(first), 65_537))).to(first)
    moved = first + 0.3 * noise.repeat(1 + len(first) // 65_537)[: len(first)]  # repeated, because d may be millions
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-4))[0 if training else 1 :]:
        try:
            module = copy.deepcopy(net.module).to(dtype).train(training)
            for row in (first, moved):
                few, among = (_answer_rows(net, module, row.to(place, dtype), example, n) for n in (_FEW, _ALL))
                scale = 1.0 + torch.nan_to_num(few).abs().max()
                if not torch.allclose(few, among, rtol=0.0, atol=float(tolerance * scale), equal_nan=True):
                    return MIXES
        except Exception as error:  # single precision is tried next; if that fails, too, batches are not padded
            failure = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        else:
            return None
    return f"it could not be tried on a padded batch ({failure})"


def make_inputs(example: Tensor, number: int, *, like: Tensor, key: rng.Keys) -> Tensor:
    """Returns random network inputs for a trial, `[number, ...]`. `example` is one network input.

    If this input consists of tokens (integers), the random inputs are 0 or 1, because every vocabulary has these
    tokens. Other inputs are standard normal, with the type of `like`. All inputs are on the device of `like`.
    """
    numbers = torch.from_numpy(rng.normal(key, number * max(1, example.numel()))).view(number, *example.shape)
    return numbers.to(like) if example.is_floating_point() else (numbers > 0).to(like.device, example.dtype)


def _answer_rows(net: Net, module: nn.Module, row: Tensor, example: Tensor, n: int) -> Tensor:
    """Computes the outputs for n samples.

    Returns the outputs for the first 3 samples as a vector. In training mode, the gradient of a weighted sum of these
    outputs is appended.
    """
    x = make_inputs(example, _ALL, like=row, key=rng.keys(1, "padding"))[:n]
    with rng.torch_scope(0, row.device):
        if module.training:
            return torch.cat([p.flatten() for p in differentiate(module, net.layout, row, x, lambda out: out[:_FEW])])
        with torch.no_grad():
            out: Tensor = functional_call(module, net.layout.views(row), (x,))
    return out[:_FEW].flatten()


def differentiate(
    module: nn.Module, layout: Layout, row: Tensor, x: Tensor, finish: Callable[[Tensor], Tensor] = lambda out: out
) -> tuple[Tensor, Tensor]:
    """Returns the outputs of a model `row`, `[d]`, and the gradient of a weighted sum of these outputs.

    `finish` changes the outputs before they are weighted. Values of the model that are not used have no gradient.
    """
    tensors = {name: view.clone().requires_grad_() for name, view in layout.views(row).items()}
    out = finish(functional_call(module, tensors, (x,)))
    weights = torch.linspace(-1.0, 2.0, out.numel()).to(out).view(out.shape)
    grads = torch.autograd.grad((out * weights).sum(), list(tensors.values()), allow_unused=True)
    return out.detach(), torch.cat([g.flatten() for g in grads if g is not None])
