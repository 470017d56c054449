"""Which engine runs a network, and how wide: one static rule on shapes, so that the choice is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from fedray.core import Net
from fedray.lanes import conv, loop, mlp, vmap
from fedray.lanes.block import MIN_LANES, Block, Trained

LANE_FLOATS = {"cpu": 600_000, "cuda": 1 << 28}  # parameters side by side: about 2.4 MB stays in a core's cache
MOST_LANES = {"cpu": 256, "cuda": 4096}
CONV_CHANNELS = 32  # wider convolutions fill the core by themselves (measured, docs/design.md)
CONV_LANES = {"cpu": 8, "cuda": 256}
VMAP_FLOATS = 50_000  # above this autograd over lanes loses to one lane after another
MLP_FLOATS = 400_000


@dataclass(frozen=True)
class Engine:
    """An engine as chosen for one network. `width` is the most lanes of a block."""

    name: str
    width: int
    why: str
    train: Callable[[Net, Block], Trained]
    outputs: Callable[[Net, Tensor, Tensor, Tensor], Tensor]


def choose(net: Net, device: str = "cpu") -> Engine:
    """The engine for a network on a kind of device ("cpu" or "cuda")."""
    d = net.layout.d
    wide = max(MIN_LANES, min(MOST_LANES[device], LANE_FLOATS[device] // max(1, d)))
    if mlp.shape_of(net.module) is not None and d <= MLP_FLOATS * (1 if device == "cpu" else 64):
        return Engine("mlp", wide, f"linear layers only, {d:,} parameters", mlp.train, mlp.outputs)
    if conv.cut_of(net.module) is not None:
        channels = max(part.out_channels for part in net.module.modules() if isinstance(part, nn.Conv2d))
        if channels <= CONV_CHANNELS or device == "cuda":
            why = f"plain convolutions of at most {channels} channels"
            return Engine("conv", CONV_LANES[device], why, conv.train, loop.outputs)
        why = f"convolutions of {channels} channels fill the processor by themselves: one lane at a time"
        return Engine("conv", 1, why, conv.train, loop.outputs)
    obstacle = _obstacle(net)
    if obstacle is None and d <= VMAP_FLOATS * (1 if device == "cpu" else 64):
        return Engine("vmap", wide, f"a functional module of {d:,} parameters", vmap.train, loop.outputs)
    return _loop(obstacle or f"{d:,} parameters a lane are too many to stack")


def _loop(why: str) -> Engine:
    return Engine("loop", 1, why, loop.train, loop.outputs)


def _obstacle(net: Net) -> str | None:
    """Why a module cannot be mapped over lanes, or None."""
    if net.layout.counters or net.layout.trainable < net.layout.d:
        return "it keeps running statistics (BatchNorm)"
    for part in net.module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            return "it draws random numbers (dropout)"
        if isinstance(part, nn.RNNBase):
            return "recurrent layers have no batched form over lanes"
    return None
