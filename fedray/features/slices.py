"""Lets clients train slices of the network. The server averages the slices (HeteroFL).

A slice of a network has the same layers with fewer hidden channels. Its parameters are a part of the whole network's
parameters. All clients of a tier (class of devices) have slices of the same width.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.components.compression import compress_columns
from fedray.components.servers import Rows, apply_delta, group_totals, no_extra, upload_weights
from fedray.core.errors import BadInput
from fedray.core.method import Compress, Compressed, Piece, Server
from fedray.core.sums import exact_sum
from fedray.core.types import FloatArray, IntArray, Net, Plan, State, Stats, Uploads, Weighting
from fedray.models.net import count_forward_flops, net_of
from fedray.training.block import Block, Trained
from fedray.training.choice import Engine
from fedray.training.update import Site

# ---------------------------------------------------------------------------------------------------------------------
# Slices of a network, and the positions of their parameters in the whole model.
#
# A slice of width r keeps `ceil(r c)` of the c channels of every hidden layer. It keeps all inputs and outputs. A
# Flatten layer turns each channel of a convolution into several features; a slice keeps or drops them together.

# takes the number c of channels of a hidden layer; returns the slice's first channel; others follow, modulo c
First = Callable[[int], int]
_UNIT = (nn.ReLU, nn.Tanh, nn.Identity, nn.Dropout)  # layers that act on each activation separately
_CHANNEL = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout2d)  # layers that act on each channel alone


class Scaler(nn.Module):
    """Divides activations by r, the width of a slice of a network, in training and in prediction.

    Sums over a slice's channels then become as large as sums over all channels.

    Attributes:
        width: r, in (0, 1].
    """

    def __init__(self, width: float) -> None:
        nn.Module.__init__(self)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Returns `x / r`."""
        return x / self.width


class SlicedLayer(NamedTuple):
    """A layer with weights, in a network that is sliced.

    Attributes:
        shape: Shape of the weights, `(out, in, ...)`.
        bias: Whether the layer has biases. They follow the weights in a model's parameters.
        channels: Number of channels of the previous hidden layer. It is 0 for the first layer, because slices keep all
            inputs.
        last: Whether the layer is the last. Slices keep all of its outputs.
    """

    shape: tuple[int, ...]
    bias: bool
    channels: int
    last: bool


class TierNet(NamedTuple):
    """The network that the clients of one tier (class of devices) train: a slice of the whole network.

    Attributes:
        width: Width of the slice, r, in (0, 1].
        net: The network of the slice. If r is 1, it is the whole network.
        layers: The layers of the whole network.
        work: Operations in the slice, as a fraction of the operations in the whole network.
        scaler: Whether the slice has a `Scaler` after each hidden layer.
    """

    width: float
    net: Net
    layers: tuple[SlicedLayer, ...]
    work: float
    scaler: bool = False


def make_tier_nets(
    net: Net, widths: Sequence[float], example: Tensor, *, scaler: bool, who: str
) -> tuple[TierNet, ...]:
    """Returns the network of each tier (class of devices).

    Args:
        net: The whole network.
        widths: Width of each tier's slice.
        example: The input of one sample, `[1, ...]`.
        scaler: Whether slices have a `Scaler` after each hidden layer.
        who: Name of the method that slices the network, for messages.

    Raises:
        BadInput: A width is below 1, but the network has layers that cannot be sliced.
    """
    if all(width == 1 for width in widths):
        return tuple(TierNet(1.0, net, (), 1.0) for _ in widths)
    layers, whole = read_layers(net, who), count_forward_flops(net, example)
    nets = {width: slice_net(net, width, scaler=scaler) for width in set(widths)}
    work = {width: count_forward_flops(one, example) / whole for width, one in nets.items()}
    return tuple(TierNet(width, nets[width], layers, work[width], scaler and width < 1) for width in widths)


def keep_channels(width: float, channels: int) -> int:
    """Returns how many of c channels a slice of width r has: `ceil(r c)`, at least 1.

    Example:
        >>> keep_channels(0.1, 30), keep_channels(0.1, 31)
        (3, 4)
    """
    return max(1, math.ceil(width * channels - 1e-9))


def read_layers(net: Net, who: str) -> tuple[SlicedLayer, ...]:
    """Returns the layers of a network that have weights, from the first to the last.

    `who` is the name of the method that slices the network, for messages.

    Raises:
        BadInput: The network has layers that cannot be cut by channels.

    Example:
        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (2,), 1, "mse", hidden=[4])
        >>> layers = read_layers(net, "a slice")
        >>> find_columns(layers, 0.5, lambda channels: 0).tolist()  # 4 x 2 weights, 4 biases, 1 x 4 weights, 1 bias
        [0, 1, 2, 3, 8, 9, 12, 13, 16]
        >>> slice_net(net, 0.5, scaler=True).module
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=2, out_features=2, bias=True)
          (2): Scaler()
          (3): ReLU()
          (4): Linear(in_features=2, out_features=1, bias=True)
        )
    """
    begin = f"model.name = {net.name}"
    if type(net.module) is not nn.Sequential:
        raise BadInput(f"{begin} is no nn.Sequential of plain layers, which is what {who} cuts: choose mlp or cnn")
    for part in net.module:
        can = type(part) in (nn.Linear, nn.Conv2d, nn.Flatten, *_UNIT, *_CHANNEL)
        if isinstance(part, nn.Flatten):  # it flattens all dimensions of a sample
            can = (part.start_dim, part.end_dim) == (1, -1)
        if not can or (isinstance(part, nn.Conv2d) and part.groups != 1):
            raise BadInput(
                f"{begin} has {type(part).__name__}, but {who} cuts Linear and Conv2d (groups=1), with ReLU, Tanh, "
                "pooling, Flatten and dropout between them: choose mlp, cnn or vgg11, and no normalization (model.norm)"
            )
    named = [name for name, _ in net.module.named_parameters(remove_duplicate=False)]
    if net.layout.counters or tuple(named) != net.layout.names:
        raise BadInput(f"{begin} has frozen or shared layers, but {who} cuts plain ones: choose mlp or cnn")
    weighted = [(i, part) for i, part in enumerate(net.module) if isinstance(part, nn.Linear | nn.Conv2d)]
    found: list[SlicedLayer] = []
    for (start, before), (end, part) in zip([(-1, None), *weighted], weighted, strict=False):
        shape, channels = tuple(part.weight.shape), 0 if before is None else before.weight.shape[0]
        flattens = any(type(one) is nn.Flatten for one in list(net.module)[start + 1 : end])
        several = isinstance(before, nn.Conv2d) and isinstance(part, nn.Linear)  # a channel gives several features
        if channels and not (shape[1] == channels if not several else flattens and shape[1] % channels == 0):
            raise BadInput(f"{begin} has a {type(part).__name__} that reads no whole channels, but {who} cuts channels")
        found.append(SlicedLayer(shape, part.bias is not None, channels, end == weighted[-1][0]))
    return tuple(found)


def find_columns(layers: Sequence[SlicedLayer], width: float, first: First) -> Tensor:
    """Returns the positions of a slice's s parameters in the whole model, `[s]`, in ascending order.

    `first` is a function that takes the number of channels of a hidden layer, and returns the index of the slice's
    first channel.
    """
    begin, places = 0, []
    for (out, inputs, *kernel), bias, channels, last in layers:
        size = math.prod(kernel)
        rows = np.arange(out) if last else _channels(out, width, first)
        columns = np.arange(inputs)
        if channels:
            each = inputs // channels  # features of a channel after a Flatten layer, otherwise 1
            columns = (_channels(channels, width, first)[:, None] * each + np.arange(each)).flatten()
        places_of_weights = ((rows[:, None] * inputs + columns)[..., None] * size + np.arange(size)).flatten()
        ends = out * inputs * size
        places.append(begin + np.concatenate([places_of_weights, ends + rows if bias else rows[:0]]))
        begin += ends + out * bias
    return torch.from_numpy(np.concatenate(places))


def scale_hidden(layers: Sequence[SlicedLayer], width: float) -> Tensor:
    """Returns multipliers of the whole model's parameters, which replace a slice's `Scaler` layers, `[d]`.

    For a slice of width r, the multipliers of the last layer are 1, and the multipliers of all other layers are 1 / r.
    """
    sizes = [math.prod(shape) + shape[0] * bias for shape, bias, _, _ in layers]
    each = torch.tensor([1.0 if layer.last else 1.0 / width for layer in layers])
    return each.repeat_interleave(torch.tensor(sizes))


def _channels(channels: int, width: float, first: First) -> IntArray:
    """Returns the channels of a hidden layer that belong to the slice, in ascending order."""
    return np.sort((first(channels) + np.arange(keep_channels(width, channels))) % channels)


def slice_net(net: Net, width: float, *, scaler: bool) -> Net:
    """Returns the network of a slice of width r in (0, 1]. If r is 1, this is the whole network.

    All layers of the network must be sliceable (`read_layers`).
    """
    if width == 1:
        return net

    def build() -> nn.Module:
        module = net.module
        assert isinstance(module, nn.Sequential)
        last = [part for part in module if isinstance(part, nn.Linear | nn.Conv2d)][-1]
        made: list[nn.Module] = []
        channels = 0
        for part in module:
            made.append(_slice_part(part, width, channels, is_last=part is last))
            if isinstance(part, nn.Linear | nn.Conv2d):
                channels = part.weight.shape[0]
                made += [Scaler(width)] if scaler and part is not last else []
        return nn.Sequential(*made)

    return net_of(build, f"{net.name} of width {width:g}", net.objective, net.outputs)


def _slice_part(part: nn.Module, width: float, channels: int, *, is_last: bool) -> nn.Module:
    """Cuts one layer to a slice.

    `channels` is the number of channels of the hidden layer before it, or 0 for the first layer.
    """
    if not isinstance(part, nn.Linear | nn.Conv2d):
        return copy.deepcopy(part)
    out, inside = part.weight.shape[:2]
    out = out if is_last else keep_channels(width, out)
    inside = inside // channels * keep_channels(width, channels) if channels else inside
    if isinstance(part, nn.Linear):
        return nn.Linear(inside, out, bias=part.bias is not None)
    same = {key: getattr(part, key) for key in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
    return nn.Conv2d(inside, out, bias=part.bias is not None, **same)


# ---------------------------------------------------------------------------------------------------------------------
# Training of a slice. The slice's parameters are copied from the whole models, trained, and written back.


def for_slice(engine: Engine, net: Net, columns: Tensor) -> Engine:
    """Returns an engine that takes models of the whole network, and trains only a slice of each.

    `engine` trains `net`, the network of the slice. `columns` are the positions of the slice's s parameters in the
    whole model, `[s]`.
    """

    def train(_whole: Net, block: Block) -> Trained:
        places = columns.to(block.start.device)
        trained = engine.train(net, cut_block(block, places))
        final = torch.zeros_like(block.start) if block.wants_change else block.start.clone()
        return trained._replace(final=final.contiguous().index_copy_(1, places, trained.final))

    return replace(engine, train=train)


def cut_block(block: Block, columns: Tensor) -> Block:
    """Returns a block (clients that train together) in which each model is cut to its slice.

    `columns` are the positions of the slice's s parameters in a whole model, `[s]`.
    """

    def cut(rows: Tensor | None) -> Tensor | None:
        if rows is None:
            return None
        if rows.dim() == 2 and rows.stride(0) == 0:  # one row, which is not copied for each lane
            return rows[:1].index_select(1, columns).expand(len(rows), -1)
        return rows.index_select(-1, columns)

    start, anchor, offset = cut(block.start), cut(block.anchor), cut(block.offset)
    assert start is not None
    reading = block.reading
    if reading is not None:
        broadcast = cut(reading.broadcast)
        assert broadcast is not None
        reading = reading._replace(broadcast=broadcast, previous=cut(reading.previous), ensemble=cut(reading.ensemble))
    return block._replace(start=start, anchor=anchor, offset=offset, reading=reading)


# ---------------------------------------------------------------------------------------------------------------------
# Slices of a network that the clients of each tier train, and the mean of their uploads (HeteroFL).

# (round, channels c of a hidden layer) -> the slice's first channel, 0 to c - 1
FirstChannel = Callable[[int, int], int]
_KEPT = 64  # pairs of round and tier for which the positions of the slice are cached


@dataclass(frozen=True)
class Slices(Piece):
    """Lets the clients of each of T tiers train their tier's slice of the network.

    Attributes:
        tier_nets: The network of each tier (class of devices). It may be the whole network.
        places: A function that takes a round and a tier. It returns the positions of the slice's s parameters in the
            whole model, `[s]`, in ascending order.
        share: Operations in each tier's network, `[T]`, as a fraction of the whole network's operations, in (0, 1].
        answers: Whether clients of the run predict with their tier's slice instead of the whole model. The slice must
            then be the same in every round.
        factors: For each tier, multipliers of the whole model's parameters, `[d]`. They are applied when a whole model
            predicts for the tier's clients, and replace the `Scaler` layers, which only slices have. None for a tier,
            or an empty tuple, means no multipliers.
    """

    tier_nets: tuple[Net, ...]
    places: Callable[[int, int], Tensor]
    share: FloatArray
    answers: bool = False
    factors: tuple[Tensor | None, ...] = ()

    @property
    def nets(self) -> tuple[Net, ...]:
        return self.tier_nets

    def columns(self, t: int, tier: int) -> Tensor:
        return self.places(t, tier)

    def work(self, tier: IntArray) -> FloatArray:
        return self.share[tier]

    def own_models(self, site: Site, plan: Plan, broadcast: Tensor, tier: int) -> Tensor:
        """Returns whole models that predict as a tier's slice. All parameters outside of the slice are 0."""
        columns, factor = self.columns(0, tier), self.factors[tier] if self.factors else None
        kept = torch.zeros_like(broadcast).index_copy_(1, columns, broadcast[:, columns])
        return kept if factor is None else kept * factor.to(kept)


def cut_slices(nets: Sequence[TierNet], window: FirstChannel, *, answers: bool = False) -> Slices:
    """Returns a piece by which each tier (class of devices) trains its slice of the network.

    Args:
        nets: The network of each tier.
        window: A function that takes the round and the number of channels of a hidden layer, and returns the index
            of the slices' first channel.
        answers: Whether clients of the run predict with their tier's slice. The window must then be the same in every
            round.

    Raises:
        BadInput: `nets` is empty.
    """
    if not nets:
        raise BadInput(
            "setting.tier_nets is empty, because the method slices no network: call federated(setting) there"
        )

    @lru_cache(_KEPT)
    def columns(t: int, tier: int) -> Tensor:
        width, net, layers, *_ = nets[tier]
        if width == 1:
            return torch.arange(net.layout.d)
        return find_columns(layers, width, lambda channels: window(t, channels))

    narrow = any(tier.width < 1 for tier in nets)
    work = np.array([tier.work for tier in nets])
    factors = tuple(scale_hidden(tier.layers, tier.width) if tier.scaler else None for tier in nets)
    return Slices(tuple(tier.net for tier in nets), columns, work, answers and narrow, factors)


def mark_columns(slices: Slices, d: int) -> Callable[[int], Tensor]:
    """Returns a function that marks the parameters that each of T tiers (classes of devices) trains.

    The function takes a round. It returns 1 for a trained parameter and 0 for any other parameter, `[T, d]` float64.
    """

    def marks(t: int) -> Tensor:
        held = torch.zeros(len(slices.nets), d, dtype=torch.float64)
        for tier, row in enumerate(held):
            row[slices.columns(t, tier)] = 1.0
        return held

    return marks


def mean_of_slices(rows: Rows, weighting: Weighting, held: Callable[[int], Tensor]) -> Server:
    """Returns a server that averages each parameter over the uploads whose slices contain it.

    Parameters that no upload contains do not change. `held` is a function that `mark_columns` has returned.

    Example:
        There are two clients. The second client has trained only the first parameter.

        >>> server = mean_of_slices(Rows(1, 1), "uniform", lambda _t: torch.tensor([[1.0, 1.0], [1.0, 0.0]]).double())
        >>> delta, one = torch.tensor([[1.0, 5.0], [3.0, 0.0]]), np.array([0, 1])
        >>> uploads = Uploads(delta, client=one, model=0 * one, world=0 * one, tier=one, size=1 + one)
        >>> start = State(torch.zeros(1, 2), torch.zeros(1, 0, dtype=torch.int64), {})
        >>> server.step(start, server.reduce(uploads), 0).models.tolist()
        [[2.0, 5.0]]
    """
    tiers = len(held(0))

    def reduce(uploads: Uploads) -> Stats:
        row, weight = rows.of(uploads), upload_weights(uploads, weighting)
        totals = group_totals(uploads, row * tiers + torch.from_numpy(uploads.tier), weight, rows.number * tiers)
        return {"sum": exact_sum(uploads.delta, row, rows.number, weight), **totals}  # 0 outside of a slice

    def step(state: State, stats: Stats, t: int) -> State:
        weight = stats["weight"].total.view(rows.number, tiers).double() @ held(t)  # of each parameter, [M, d]
        return apply_delta(state, stats["sum"].value() / weight.clamp(min=1.0), stats)

    return Server(no_extra, reduce, step)


def compress_slices(each: Sequence[Compress]) -> Compress:
    """Returns a compression that sends only the slice of the model that the client has trained.

    `each` holds the compression for each tier (class of devices). The rest of the delta arrives at the server as 0.
    With error feedback, the residual of a parameter waits until the client's slice contains the parameter again.
    """

    def size(client: IntArray, tier: IntArray) -> IntArray:
        out = np.zeros(len(client), dtype=np.int64)
        for i, one in enumerate(each):
            out[tier == i] = one.bytes(client[tier == i], tier[tier == i])
        return out

    def apply(uploads: Uploads) -> Compressed:
        compress = each[int(uploads.tier[0])]  # all clients of a block have the same tier
        columns = uploads.columns
        return compress.apply(uploads) if columns is None else compress_columns(compress, uploads, columns)

    return Compress(size, apply, each[0].own)
