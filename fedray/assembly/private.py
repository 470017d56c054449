"""Which layers of a network stay with the clients (`local.private`).

Example:
    >>> from fedray.models.nets import build_net
    >>> net = build_net("mlp", (4,), 3, "cross_entropy", hidden=[8])
    >>> find_private_layers(net, ["head"]), find_private_layers(net, ["*"])
    (('3',), ('1', '3'))
    >>> find_private_layers(net, ["conv*"])
    Traceback (most recent call last):
    fedray.core.errors.BadInput: local.private = conv*: the network mlp has no such layer: its layers are 1, 3
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from fedray.core.errors import BadInput
from fedray.core.types import Net
from fedray.features.private import trained_layers

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm)


def find_private_layers(net: Net, wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns the layers of a network that some words name.

    Args:
        net: the network.
        wanted: `norm`: normalization layers; `head`: the last layer; else patterns of the layers' names, such as `fc*`.

    Raises:
        BadInput: a word names no layer.
    """
    layers = tuple(dict.fromkeys(name.rpartition(".")[0] for name in net.layout.names))
    found: set[str] = set()
    for word in wanted:
        if word == "norm":
            mine = {name for name in layers if isinstance(net.module.get_submodule(name), NORMS)}
        elif word == "head":
            mine = {_find_head(net)}
        else:
            mine = {name for name in layers if fnmatchcase(name, word)}
        if not mine:
            what = "no normalization layers" if word == "norm" else "no such layer"
            raise BadInput(
                f"local.private = {word}: the network {net.name} has {what}: its layers are {', '.join(layers)[:300]}"
            )
        found |= mine
    return tuple(name for name in layers if name in found)


def _find_head(net: Net) -> str:
    """The last layer, which must have trained parameters of its own: beside them it may have frozen ones inside."""
    last = [name for name, part in net.module.named_modules() if any(True for _ in part.parameters(False))][-1]
    head = trained_layers(net.layout)[-1]
    if head != last and not last.startswith(f"{head}."):
        raise BadInput(
            f"local.private = head: the last layer of the network {net.name}, {last}, has no trained parameters of its "
            f"own (they are shared or frozen): name what stays with the clients, {head} say"
        )
    return head
