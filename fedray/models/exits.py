"""Builds networks with early exits: blocks one after another, and a head after each block (DepthFL).

Example:
    >>> from fedray.models.nets import cnn
    >>> net = add_exits(cnn((1, 8, 8), 10, channels=(4, 6), hidden=(5,)), most=2, shape=(1, 8, 8), name="cnn", who="it")
    >>> [[type(part).__name__ for part in block] for block in net.blocks]
    [['Conv2d', 'ReLU', 'MaxPool2d', 'Conv2d', 'ReLU', 'MaxPool2d'], ['Flatten', 'Linear', 'ReLU']]
    >>> net.heads["0"][-1], net.heads["1"]  # of the mean of each channel, and the network's own
    (Linear(in_features=6, out_features=10, bias=True), Linear(in_features=5, out_features=10, bias=True))
    >>> x = torch.ones(3, 1, 8, 8)
    >>> net.eval()(x).shape, net.train()(x).shape
    (torch.Size([3, 10]), torch.Size([3, 2, 10]))
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedray.core.errors import BadInput
from fedray.core.types import Net
from fedray.models.net import net_of

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


class Exits(nn.Module):
    """A network of blocks one after another, with heads after some of the blocks.

    Attributes:
        blocks: The D blocks.
        heads: The H heads, each by the number of its block, from 0, as text.
    """

    def __init__(self, blocks: Sequence[nn.Module], heads: Mapping[str, nn.Module]) -> None:
        nn.Module.__init__(self)
        self.blocks, self.heads = nn.ModuleList(blocks), nn.ModuleDict(heads)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits of all heads, `[n, H, C]`, in training; otherwise their mean, `[n, C]`."""
        each = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if str(number) in self.heads:
                each.append(self.heads[str(number)](x))
        logits = torch.stack(each, dim=1)
        return logits if self.training else logits.mean(dim=1)


def add_exits(net: nn.Module, most: int, shape: tuple[int, ...], name: str, who: str) -> Exits:
    """Cuts a network into blocks, and gives each block a head; the last block has the network's own head.

    The network must call its layers one after another, as an `nn.Sequential` or a ResNet does, and end in a linear
    layer. Each layer with weights, except normalization, begins a stage; a Flatten just before such a layer belongs to
    the stage. The L stages are dealt to `D = min(most, L)` blocks in order, stage i to block `i D // L`. A new head is
    a linear layer; for pictures the mean of each channel comes before it.

    Args:
        net: The network, freshly initialized.
        most: The most blocks.
        shape: Shape of one input.
        name: Name of the network in messages.
        who: Who cuts the network, for messages.

    Raises:
        BadInput: The network does not have the required form.
    """
    refused = BadInput(
        f"model.name = {name} does not call its layers one after another, the last of them Linear, and {who} cuts such "
        "networks: choose mlp, cnn, vgg11, resnet18 or resnet34"
    )
    parts = list(net) if isinstance(net, nn.Sequential) else list(net.children())
    if len(parts) < 2 or not isinstance(parts[-1], nn.Linear):
        raise refused
    *parts, last = parts
    if not isinstance(net, nn.Sequential):  # torchvision's networks flatten between their layers
        parts.append(nn.Flatten())
    row, training = torch.linspace(-1.0, 1.0, math.prod(shape)).view(1, *shape), net.training
    starts = [
        i for i, part in enumerate(parts) if not isinstance(part, _NORMS) and any(True for _ in part.parameters())
    ]
    starts = [i - (i > 0 and isinstance(parts[i - 1], nn.Flatten)) for i in starts]
    known = [id(part) for part in net.parameters()]
    found = [id(value) for part in (*parts, last) for value in part.parameters()]
    if not starts or sorted(known) != sorted(found):
        raise refused
    number = min(most, len(starts))
    first = [0, *(starts[math.ceil(b * len(starts) / number)] for b in range(1, number)), len(parts)]
    blocks = [nn.Sequential(*parts[first[b] : first[b + 1]]) for b in range(number)]
    heads: dict[str, nn.Module] = {}
    with torch.no_grad():
        try:
            x, wanted = row, net.eval()(row)
            for b, block in enumerate(blocks):
                x = block.eval()(x)
                if b < number - 1:
                    if x.dim() not in (2, 4):
                        raise refused
                    mean = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if x.dim() == 4 else []
                    linear = nn.Linear(x.shape[1], wanted.shape[1])
                    heads[str(b)] = nn.Sequential(*mean, linear) if mean else linear
            out = last(x)
        except (RuntimeError, TypeError, ValueError, IndexError):
            raise refused from None
        finally:
            net.train(training)
    if out.shape != wanted.shape or not (row.is_meta or torch.equal(out, wanted)):
        raise refused
    return Exits(blocks, {**heads, str(number - 1): last}).train(training)


def keep_exits(net: Net, depth: int, heads: Sequence[int]) -> Net:
    """Returns the network of the first blocks, with some of the heads.

    Args:
        net: A network of `Exits`.
        depth: Number of blocks, at least 1.
        heads: Numbers of the blocks whose heads remain, from 0.
    """

    def build() -> nn.Module:
        module = net.module
        assert isinstance(module, Exits)
        kept = {str(head): copy.deepcopy(module.heads[str(head)]) for head in heads}
        return Exits([copy.deepcopy(block) for block in module.blocks[:depth]], kept)

    return net_of(build, f"{net.name} of {depth} blocks", net.objective, net.outputs)
