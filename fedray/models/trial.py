"""A network is tried on a few rows before it is trained: does it read them, and does it put out what the loss needs?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedray.core import rng
from fedray.core.errors import BadInput, FedrayError, warn_user
from fedray.core.types import Net
from fedray.models.net import layout_of
from fedray.own_code.contract import contract
from fedray.own_code.user_code import blame_user_code, describe_exception, name_type

_REMEDIES = {  # networks for each kind of inputs
    "tokens": "choose lstm or a network that begins with an embedding, or give inputs as float32 if they are numbers",
    "features": "choose linear or mlp, or a network for such inputs",
    "images": "choose linear, mlp or cnn, or a network for such inputs",
}
_OF_THEIR_OWN = "make it a buffer (register_buffer), of which each model has its own"
_PLANES = "give pictures of real numbers as [n, 1, H, W], or "


def try_network(net: Net, rows: Tensor, kind: str, targets: str) -> None:
    """Refuses a network that cannot be trained on such rows, or that would be trained wrongly in silence.

    Args:
        net: The network.
        rows: Some network inputs, `[n, ...]`.
        kind: What they are: images, features or tokens.
        targets: What the data ask for, in words: "2 classes".

    Raises:
        BadInput: The network fails on the rows, its outputs have another shape, or they are probabilities.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from fedray.models.net import net_of
        >>> net = net_of(lambda: nn.Linear(4, 5), "own", "cross_entropy", 2)
        >>> try_network(net, torch.zeros(3, 4), "features", "2 classes")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: model.name = own puts out 5 numbers for a row, but the data have 2 classes: ...
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
    if isinstance(out, Tensor) and out.shape != (len(rows), net.outputs):
        made = (
            f"{out.shape[1]:,} numbers" if out.dim() == 2 and len(out) == len(rows) else f"shape {list(out.shape[1:])}"
        )
        raise BadInput(
            f"model.name = {net.name} puts out {made} for a row, but the data have {targets}: make it {net.outputs}"
        )
    check_outputs(net, out, len(rows))
    if net.objective == "cross_entropy" and _is_probability(out):
        raise BadInput(
            f"model.name = {net.name} ends in a softmax, but its outputs are read as logits, of which the loss takes "
            "the softmax itself: leave the last layer out"
        )


def check_outputs(net: Net, out: Any, rows: int, when: str = "", *, heads: bool = False) -> None:
    """Refuses what a network puts out, if it is not one row of real numbers for each of some inputs.

    Args:
        net: The network.
        out: What its module returned.
        rows: How many inputs it was given.
        when: What it was doing, such as " in training".
        heads: Whether it may put out those of several heads, `[n, H, C]`.

    Raises:
        BadInput: Names the network, says what it puts out, and what is needed.
    """
    where = f"model.name = {net.name} puts out"
    if not isinstance(out, Tensor):
        raise BadInput(f"{where} {name_type(out)}{when}: let it return one tensor")
    shape = (*out.shape[:1], *out.shape[2:]) if heads and out.dim() == 3 else out.shape
    if shape != (rows, net.outputs):
        raise BadInput(
            f"{where} shape {list(out.shape)}{when} for {rows} rows: let it return {net.outputs} numbers for each row"
        )
    if not out.is_floating_point():
        kind = str(out.dtype).removeprefix("torch.")
        raise BadInput(f"{where} numbers of type {kind}{when}: let it return real numbers, logits or predictions")
    if out.dtype not in (torch.float32, torch.float64):
        kind = str(out.dtype).removeprefix("torch.")
        raise BadInput(
            f"{where} numbers of type {kind}{when}: let it return float32, with .float() behind mixed precision"
        )


def check_finite_outputs(net: Net, out: Tensor, when: str) -> None:
    """Refuses outputs that are NaN or infinite, which no score can be taken of.

    Args:
        net: The network.
        out: Its outputs, `[..., C]`.
        when: What it was doing, such as " in evaluation".

    Raises:
        FedrayError: Names the network.
    """
    if not bool(torch.isfinite(out).all()):
        what = "NaN" if bool(torch.isnan(out).any()) else "infinite numbers"
        raise FedrayError(f"model.name = {net.name} puts out {what}{when}: look for a division, a logarithm or a root")


def try_training(net: Net, rows: Tensor) -> None:
    """Refuses a user's own network that answers otherwise in training, or that has no gradient.

    A copy of the module is tried, so that no statistics of a batch are left in the template. What cannot be copied is
    not tried.

    Args:
        net: The network.
        rows: Some network inputs, `[n, ...]`.

    Raises:
        BadInput: Its outputs are not what the loss needs.
        FedrayError: Its first values or outputs are not finite, or it raised an exception.
    """
    where, row = f"model.name = {net.name}", net.init(0)
    try:
        module = copy.deepcopy(net.module).train()
    except Exception:  # a lock or an open file, say
        return
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    tensors = {name: view.clone().requires_grad_(name in trained) for name, view in net.layout.views(row).items()}
    with blame_user_code(f"{where} in training"), rng.torch_scope(0), torch.enable_grad():
        out = functional_call(module, tensors, (rows,))
        check_outputs(net, out, len(rows), " in training", heads=True)
        check_finite_outputs(net, out, " in training")
        if not out.requires_grad:
            raise BadInput(f"{where} puts out numbers without a gradient: leave out detach, no_grad and .data")
        torch.autograd.grad(out.double().sum(), [tensors[name] for name in trained], allow_unused=True)


def _is_probability(out: Tensor) -> bool:
    """Whether every row is a distribution over several classes."""
    whole = bool(((out.double().sum(1) - 1.0).abs() < 1e-4).all())
    return out.shape[1] > 1 and whole and bool((out >= 0).all())


WRAPPED = {  # modules that run with no other parameters than their own
    "ScriptModule": "of torch.jit",
    "DataParallel": "inside of DataParallel",
    "DistributedDataParallel": "inside of DistributedDataParallel",
}


def name_wrapper(module: nn.Module) -> str:
    """Names what wraps a module, or a part of it, so that no other parameters can take the place of its own."""
    kinds = {kind.__name__ for inner in module.modules() for kind in type(inner).__mro__}
    return next((text for name, text in WRAPPED.items() if name in kinds), "")


def guard_factory(make: Callable[[], Any], name: str) -> Callable[[], nn.Module]:
    """Returns a user's function that makes modules, with a check of every call.

    Args:
        make: The user's function.
        name: How messages call the network.

    Example:
        >>> guard_factory(lambda: None, "own")()
        Traceback (most recent call last):
        fedray.core.errors.BadInput: model.name = own: its function returned None: let it return an nn.Module
    """

    def returns(module: Any) -> str | None:
        if not isinstance(module, nn.Module):
            return f"{name_type(module)}: let it return an nn.Module"
        return f"a module {what}: return the module itself" if (what := name_wrapper(module)) else None

    return contract(f"model.name = {name}: its function", make, returns)


def try_factory(make: Callable[[], nn.Module], name: str, models: int, worlds: int = 1) -> None:
    """Refuses a function whose modules are not new, or whose first values are not drawn by address.

    It warns where what is frozen is drawn anew in each call, because all models then have the values of one call.

    Args:
        make: The user's function.
        name: How messages call the network.
        models: How many models have first values of their own; a single one may begin at fixed values.
        worlds: Replicates x folds, each with so many models.

    Raises:
        BadInput: Two calls share parameters, repeat nothing, or always give the same values.

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
        _check_first_values(module, name)
        trained = [p for p in module.parameters() if p.requires_grad and not nn.parameter.is_lazy(p)]
        calls.append((trained, *_split_untrained(module, layout.names)))
    (first, buffers, frozen), (again, *_), (other, other_buffers, other_frozen) = calls
    if {id(p) for p in first} & {id(p) for p in again} or any(
        p.numel() and p.data_ptr() == q.data_ptr() for p, q in product(first, again)
    ):
        raise BadInput(
            f"model.name = {name}: its function returns parameters that an earlier call returned, so that all models "
            "would be one: make a new module in every call"
        )
    if not _same(first, again):
        raise BadInput(
            f"model.name = {name}: its first values are drawn outside torch (numpy or random, say), so that no run "
            "could be repeated: draw them with torch's generator"
        )
    drawn = [key for key, value in frozen.items() if not _same([value], [other_frozen.get(key, value)])]
    if models > 1 and _same([*first, *buffers.values()], [*other, *other_buffers.values()]):
        raise BadInput(_say_all_equal(name, models, drawn))
    if drawn and models * worlds > 1:
        warn_user(
            f"model.name = {name}: every call draws {_list(drawn)} anew, but what is frozen has the values of one call "
            f"in all {models * worlds} models: load its values in the function, or {_OF_THEIR_OWN}"
        )


def _say_all_equal(name: str, models: int, drawn: list[str]) -> str:
    """Says that all models begin as one; `drawn` is what differs and is frozen."""
    if drawn:
        return (
            f"model.name = {name}: its calls differ in {_list(drawn)} only, and what is frozen has the values of one "
            f"call in all {models} models, so that they begin as one: draw trained values too, or {_OF_THEIR_OWN}"
        )
    return (
        f"model.name = {name}: every call gives the same first values, so that all {models} models begin as one: "
        "draw them with torch's generator, or set method.models to 1"
    )


def _list(names: list[str]) -> str:
    """Writes a few names, and that there are more."""
    return ", ".join([*names[:3], *["..."][: max(0, len(names) - 3)]])


def _split_untrained(module: nn.Module, in_row: tuple[str, ...]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Splits what is not trained, by name: the float buffers of each model, and what is the same for all models."""
    frozen = {key: p.detach() for key, p in module.named_parameters() if not p.requires_grad}
    buffers = dict(module.named_buffers())
    own = {key: value for key, value in buffers.items() if key in in_row}
    return own, frozen | {key: value for key, value in buffers.items() if key not in in_row and value.dim()}


def _check_first_values(module: nn.Module, name: str) -> None:
    """Refuses parameters that are not float32, or not finite from the beginning."""
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise BadInput(f"model.name = {name} has parameters of type {kind}: make them float32, as torch does")
        if not bool(torch.isfinite(parameter).all()):
            raise BadInput(
                f"model.name = {name} begins with parameters that are NaN or infinite: look at how it draws them"
            )


def _same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether two modules have the same values; another structure is found elsewhere."""
    return [p.shape for p in a] != [q.shape for q in b] or all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Whether the answer to a row depends on the rows beside it: batch statistics that are taken in evaluation too.
#
# Such a network has no score of its own: it depends on how the test rows are cut into pieces, and on their order.

FEW, ALL = 3, 8  # rows that are answered alone, and among others
TOLERANCE = 1e-4  # of single precision


def mixes_rows(net: Net, example: Tensor) -> bool:
    """Tries whether a network in evaluation answers three rows differently when they stand among further ones.

    Args:
        net: The network; it is tried with its first parameters, and with others nearby.
        example: One network input; its values do not matter.

    Returns:
        Also False where the network cannot be tried.

    Example:
        >>> from torch import nn
        >>> from fedray.models.net import net_of
        >>> norm = nn.BatchNorm1d(2, track_running_stats=False)
        >>> net = net_of(lambda: nn.Sequential(nn.Linear(4, 2), norm), "own", "cross_entropy", 2)
        >>> plain = net_of(lambda: nn.Linear(4, 2), "own", "mse", 2)
        >>> mixes_rows(net, torch.zeros(4)), mixes_rows(plain, torch.zeros(4))
        (True, False)
    """
    numbers = torch.from_numpy(rng.normal(rng.keys(1, "mixing"), ALL * max(1, example.numel())))
    x = numbers.view(ALL, *example.shape).to(example.dtype if example.is_floating_point() else torch.float32)
    if not example.is_floating_point():  # tokens 0 and 1: every vocabulary has them
        x = (x > 0).to(example.dtype)
    first = net.init(0)
    moved = first + 0.3 * torch.from_numpy(rng.normal(rng.keys(0, "mixing"), len(first))).to(first)
    training = net.module.training
    try:
        net.module.eval()
        return any(_differs(net, row, x) for row in (first, moved))
    except Exception:  # what is wrong with the network is found where it is tried to train
        return False
    finally:
        net.module.train(training)


def _differs(net: Net, row: Tensor, x: Tensor) -> bool:
    views = net.layout.views(row)
    with torch.no_grad(), rng.torch_scope(0):
        few: Tensor = functional_call(net.module, views, (x[:FEW],))
        among: Tensor = functional_call(net.module, views, (x,))[:FEW]
    scale = 1.0 + float(torch.nan_to_num(few).abs().max())
    return not torch.allclose(few, among, rtol=0.0, atol=TOLERANCE * scale, equal_nan=True)
