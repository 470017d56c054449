"""Which engine trains a network, and with how many lanes: one rule on shapes, the same in every process.

Users' networks need not know about lanes. A network that is not exactly what an engine computes, or that cannot be
mapped over lanes, takes the next engine: `mlp`, `conv`, `vmap`, and last `loop`, which runs every module.

Example:
    >>> from fedray.models.catalogue import build_net
    >>> engine = choose_engine(build_net("mlp", (4,), 3, "cross_entropy", hidden=[8]))
    >>> engine.name, engine.width, engine.why
    ('mlp', 256, 'linear layers only, 67 parameters')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from fedray.core.method import Local
from fedray.core.types import Net
from fedray.training import conv, loop, mlp, vmap
from fedray.training.block import MIN_LANES, Block, Trained
from fedray.training.layers import read_shape
from fedray.training.optimizer import is_plain_sgd

LANE_FLOATS = {"cpu": 600_000, "cuda": 1 << 28}  # parameters side by side: about 2.4 MB stays in a core's cache
MOST_LANES = {"cpu": 256, "cuda": 4096}
VMAP_FLOATS = 50_000  # above this autograd over lanes loses to one lane after another
MLP_FLOATS = 400_000


@dataclass(frozen=True)
class Engine:
    """An engine as chosen for one network.

    Attributes:
        name: "mlp", "conv", "vmap" or "loop".
        width: The most lanes of a block.
        why: Why it was chosen, for `fedray check` and the manifest.
        train: A function (network, block) -> trained block.
        outputs: A function (network, models `[M, d]`, counters `[M, c]`, inputs `[M, n, ...]`) -> outputs `[M, n, C]`.
    """

    name: str
    width: int
    why: str
    train: Callable[[Net, Block], Trained]
    outputs: Callable[[Net, Tensor, Tensor, Tensor], Tensor]


def choose_engine(net: Net, device: str = "cpu", example: Tensor | None = None) -> Engine:
    """The engine for a network.

    Args:
        net: The network.
        device: Kind of the device, "cpu" or "cuda".
        example: One network input, on which a user's module is tried; None: such a module is trusted.
    """
    d, plain = net.layout.d, _has_plain_layers(net)
    wide = max(MIN_LANES, min(MOST_LANES[device], LANE_FLOATS[device] // max(1, d)))
    if plain and read_shape(net.module) is not None and d <= MLP_FLOATS * (1 if device == "cpu" else 64):
        return Engine("mlp", wide, f"linear layers only, {d:,} parameters", mlp.train_mlp, mlp.mlp_outputs)
    if plain and conv.split_net(net.module) is not None:
        channels = conv.find_max_channels(net.module)
        width, why = conv.choose_lanes(channels, device), f"plain convolutions of at most {channels} channels"
        if width == 1:
            why = f"convolutions of {channels} channels fill the processor by themselves: one lane at a time"
        return Engine("conv", width, why, conv.train_conv, conv.conv_outputs)
    obstacle = _find_obstacle(net)
    if obstacle is None and d <= VMAP_FLOATS * (1 if device == "cpu" else 64):
        refused = None if example is None else vmap.find_refusal(net, example)
        if refused is not None:
            return _loop_engine(f"it cannot be mapped over lanes ({refused})")
        mixing = None if example is None else vmap.find_mixing(net, example)
        if mixing is not None:
            return _loop_engine(mixing)
        return Engine("vmap", wide, f"a functional module of {d:,} parameters", vmap.train_vmap, loop.loop_outputs)
    return _loop_engine(obstacle or f"{d:,} parameters a lane are too many to stack")


def is_shareable(engine: Engine) -> bool:
    """Whether several threads may train with one network at once: the engine never writes into its module."""
    return engine.name in ("mlp", "conv")


def can_mix_rates(engine: Engine, local: Local) -> bool:
    """Whether lanes of one block may have learning rates, weight decays and pulls of their own, to the same bits."""
    return engine.name == "mlp" and is_plain_sgd(local)


def _loop_engine(why: str) -> Engine:
    """The engine that runs every module, and why no other one does."""
    return Engine("loop", 1, why, loop.train_loop, loop.loop_outputs)


def _has_plain_layers(net: Net) -> bool:
    """Whether a row holds exactly the layers' weights and biases, in order and once each.

    Nothing is frozen, shared or reparametrised, there are no buffers, and no hook changes what a layer computes.
    """
    named = [(name, part) for name, part in net.module._modules.items() if part is not None]
    wanted = [
        f"{name}.{kind}"
        for name, part in named
        if isinstance(part, nn.Linear | nn.Conv2d)
        for kind in ("weight", "bias")
        if getattr(part, kind, None) is not None
    ]
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in net.module.modules())
    return list(net.layout.names) == wanted and not net.layout.counters and not hooked


def _find_obstacle(net: Net) -> str | None:
    """Why a module cannot be mapped over lanes, or None."""
    if net.layout.counters or net.layout.trainable < net.layout.d:
        return "it keeps buffers (BatchNorm's running statistics, say)"
    for part in net.module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            return "it draws random numbers (dropout)"
        if isinstance(part, nn.RNNBase):
            return "recurrent layers have no batched form over lanes"
    return None
