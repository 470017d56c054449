"""Defines the networks that scenarios can name, and networks with early exits."""

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.errors import BadInput, suggest_nearest
from fedray.core.types import Net, Objective
from fedray.models.net import net_of

# ---------------------------------------------------------------------------------------------------------------------
# Normalization layers: batch or group normalization, in any network.

NORM_GROUPS = 2  # Hsieh et al. 2020, appendix; Reddi et al. 2021, ResNet-18 with group normalization


def norm_layer(norm: str, channels: int) -> nn.Module:
    """Returns a BatchNorm2d (`batch`) or a GroupNorm (`group`), as `norm` says.

    The GroupNorm has 2 groups, or 1 group if the number of channels is odd. Unlike BatchNorm, group normalization has
    no running statistics that a server would have to average.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    assert norm == "group", norm
    return nn.GroupNorm(math.gcd(NORM_GROUPS, channels), channels)


def replace_norms(module: nn.Module, norm: str) -> nn.Module:
    """Replaces every BatchNorm2d of a network by the normalization `norm`, in place, and returns the network.

    Example:
        >>> type(replace_norms(nn.Sequential(nn.BatchNorm2d(4)), "group")[0]).__name__
        'GroupNorm'
    """
    if norm != "batch":
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(parent, name, norm_layer(norm, child.num_features))
    return module


# ---------------------------------------------------------------------------------------------------------------------
# Linear models, multi-layer perceptrons, and linear models on radial features. All are plain `nn.Sequential`s.

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
NORMS_OF_ROWS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def linear(
    input_shape: tuple[int, ...], outputs: int, *, bias: bool = True, weight_sd: float | None = None
) -> nn.Sequential:
    """Returns a linear model `W x + b`, which consists of Flatten and Linear.

    Args:
        input_shape: Shape of one sample.
        outputs: Length of the output.
        bias: Whether the model has the bias b.
        weight_sd: Standard deviation of the initial parameters, which are drawn from N(0, weight_sd^2). None keeps
            torch's initialization.

    Example:
        >>> linear((1, 8, 8), 10)
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=64, out_features=10, bias=True)
        )
    """
    return _normal(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), outputs, bias=bias)), weight_sd)


def mlp(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Sequence[int] = (50,),
    activation: str = "relu",
    norm: str | None = None,
    weight_sd: float | None = None,
) -> nn.Sequential:
    """Returns a multi-layer perceptron.

    It consists of Flatten, then Linear, normalization and activation for each hidden layer, and a last Linear.

    Args:
        input_shape: Shape of one sample.
        outputs: Length of the output.
        hidden: Width of each hidden layer. The default is from FedAG.
        activation: Name of the activation, relu or tanh.
        norm: Name of the normalization, batch or layer. None means no normalization.
        weight_sd: Standard deviation of the initial parameters, see `linear`.
    """
    widths = [math.prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, outside in itertools.pairwise(widths):
        norms = [] if norm is None else [NORMS_OF_ROWS[norm](outside)]
        layers += [nn.Linear(inside, outside), *norms, ACTIVATIONS[activation]()]
    return _normal(nn.Sequential(*layers, nn.Linear(widths[-1], outputs)), weight_sd)


class RBF(nn.Module):
    """Computes radial features `phi_j(x) = exp(-|x - c_j|^2 / (2 width^2))`, `[B, J]`, of inputs `[B, p]`.

    Attributes:
        centers: The J centers c_j, `[J, p]`. They are constants of the network and are not trained.
        width: Width of the features in units of the inputs, above 0.
    """

    centers: Tensor

    def __init__(self, centers: Tensor, width: float) -> None:
        nn.Module.__init__(self)
        self.width = width
        self.register_buffer("centers", centers, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features `[B, J]` of inputs `[B, p]`."""
        squares = (x.unsqueeze(-2) - self.centers).square().sum(-1)  # [B, J]
        return torch.exp(squares * (-0.5 / self.width**2))


def rbf(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    features: int = 100,
    width: float = 0.08,
    seed: int = 0,
    bias: bool = False,
    weight_sd: float | None = None,
) -> nn.Sequential:
    """Returns a linear model on radial features phi. The model's neural tangent kernel is exactly `phi phi^T`.

    Source: Fed-ensemble, section V-A (100 features, width 0.08, centers drawn uniformly from [-1, 1]).

    Args:
        input_shape: Shape of one sample, `(p,)`.
        outputs: Length of the output.
        features: Number of centers, at least 1.
        width: Width of the features, above 0.
        seed: Seed of the centers. Networks with the same seed have the same centers.
        bias: Whether the linear layer has a bias.
        weight_sd: Standard deviation of the initial parameters, see `linear`.
    """
    if len(input_shape) != 1:
        raise BadInput(
            f"model.name = rbf: inputs of shape {list(input_shape)} are not vectors; choose linear, mlp or cnn"
        )
    drawn = 2.0 * rng.uniform(rng.keys(seed, "centres"), features * input_shape[0]) - 1.0
    centers = torch.from_numpy(drawn.reshape(features, input_shape[0])).float()
    return _normal(nn.Sequential(RBF(centers, width), nn.Linear(features, outputs, bias=bias)), weight_sd)


def _normal(module: nn.Sequential, weight_sd: float | None) -> nn.Sequential:
    if weight_sd is not None:
        for parameter in (p for part in module if isinstance(part, nn.Linear) for p in part.parameters()):
            nn.init.normal_(parameter, std=weight_sd)
    return module


# ---------------------------------------------------------------------------------------------------------------------
# Convolutional networks as plain `nn.Sequential`s: the small networks of Fed-ensemble and SHEFL, and VGG-11.

SMALL_KERNEL_BELOW = 16  # pixels; images with a shorter side get padded 3 x 3 kernels
VGG11: tuple[tuple[int, ...], ...] = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # blocks between poolings


def cnn(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    channels: Sequence[int] = (10, 20),
    hidden: Sequence[int] = (50,),
    kernel: int | None = None,
    padding: int | None = None,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Returns a small convolutional network.

    Its layers are Conv2d, ReLU and MaxPool2d(2) for each entry of `channels`, then Flatten, then Linear and ReLU for
    each entry of `hidden`, and a last Linear. Dropout acts on whole channels of the last convolution, and on units of
    the hidden layers. McMahan et al. 2017 use channels (32, 64), hidden (512,) and padding 2. SHEFL uses two entries in
    `hidden`. The public code of Fed-ensemble uses the default settings and dropout 0.5.

    Args:
        input_shape: Shape of one sample, `(channels, height, width)`.
        outputs: Number of classes.
        channels: Number of output channels of each convolution.
        hidden: Width of each fully connected hidden layer.
        kernel: Side of the kernels in pixels. None means 5, or 3 for images with a side below 16.
        padding: Padding of the convolutions in pixels. None means 0, or `kernel // 2` for images with a side below 16.
        dropout: Probability of dropout, in [0, 1). 0 means no dropout layers.

    Example:
        >>> sum(parameter.numel() for parameter in cnn((1, 28, 28), 10).parameters())
        21840
    """
    depth, height, width = read_image_shape("cnn", input_shape)
    small = min(height, width) < SMALL_KERNEL_BELOW
    kernel = kernel if kernel is not None else 3 if small else 5
    padding = padding if padding is not None else kernel // 2 if small else 0
    layers: list[nn.Module] = []
    for out in channels:
        layers += [nn.Conv2d(depth, out, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        depth, height, width = out, *((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
        if min(height, width) < 1:
            raise BadInput(
                f"model.channels = {list(channels)}: images of {list(input_shape)} are too small for so many poolings "
                f"with kernel {kernel} and padding {padding}: use fewer, or padding {kernel // 2}"
            )
    if dropout and layers:
        layers.append(nn.Dropout2d(dropout))
    layers, inside = [*layers, nn.Flatten()], depth * height * width
    for out in hidden:
        layers += [nn.Linear(inside, out), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        inside = out
    return nn.Sequential(*layers, nn.Linear(inside, outputs))


def vgg11(input_shape: tuple[int, ...], outputs: int, *, norm: str = "batch") -> nn.Sequential:
    """Returns a VGG-11 (Simonyan and Zisserman 2015, column A) for images of any size.

    The classifier has one layer, as is usual for images of 32 x 32 pixels. Pooling halves the sides, and rounds up. The
    normalization after each convolution is batch, group or none.
    """
    depth, height, width = read_image_shape("vgg11", input_shape)
    layers: list[nn.Module] = []
    for block in VGG11:
        for out in block:
            conv = nn.Conv2d(depth, out, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            assert conv.bias is not None
            nn.init.zeros_(conv.bias)
            layers += [conv, *([] if norm == "none" else [norm_layer(norm, out)]), nn.ReLU()]
            depth = out
        layers.append(nn.MaxPool2d(2, ceil_mode=bool(height % 2 or width % 2)))
        height, width = (height + 1) // 2, (width + 1) // 2
    if (height, width) != (1, 1):
        layers.append(nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(depth, outputs))


def read_image_shape(name: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns channels, height and width of an image. `name` is the network's name in the message.

    Raises:
        BadInput: The shape is not the shape of an image.
    """
    if len(input_shape) != 3:
        plane = "give pictures of real numbers as [n, 1, H, W], or " if len(input_shape) == 2 else ""
        raise BadInput(
            f"model.name = {name}: inputs of shape {list(input_shape)} are not images: {plane}choose linear or mlp"
        )
    depth, height, width = input_shape
    return depth, height, width


# ---------------------------------------------------------------------------------------------------------------------
# A network for the next character of a text.


class NextCharacter(nn.Module):
    """A network for the next character of a text: an embedding, an LSTM, and a linear layer on the last position."""

    def __init__(self, vocabulary: int, outputs: int, *, embedding: int, hidden: int, layers: int) -> None:
        nn.Module.__init__(self)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns logits `[B, outputs]` of texts with L tokens each, `[B, L]` int64."""
        states, _ = self.lstm(self.embedding(tokens))  # [B, L, hidden]
        logits: Tensor = self.head(states[:, -1])
        return logits


def lstm(
    _input_shape: tuple[int, ...],
    outputs: int,
    *,
    vocabulary: int | None = None,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> nn.Module:
    """Returns the network of McMahan et al. 2017 for Shakespeare: embeddings of length 8, two LSTM layers of 256 units.

    Args:
        outputs: Number of characters to choose from.
        vocabulary: Number of different characters in the inputs. None means `outputs`.
        embedding: Length of a character's vector.
        hidden: Number of units of each LSTM layer.
        layers: Number of LSTM layers.

    Example:
        >>> lstm((80,), 90).embedding, lstm((80,), 90, vocabulary=91).embedding
        (Embedding(90, 8), Embedding(91, 8))
    """
    return NextCharacter(vocabulary or outputs, outputs, embedding=embedding, hidden=hidden, layers=layers)


# ---------------------------------------------------------------------------------------------------------------------
# torchvision's networks, with the stem adapted to small images.
#
# The stem of an ImageNet network shrinks the sides of an image to a quarter before the first block. For images with a
# side below 64 a 3 x 3 convolution of stride 1 without pooling replaces the stem (He et al. 2016, section 4.2).
# torchvision is imported only when one of these networks is built.

SMALL_STEM_BELOW = 64  # pixels; images with a shorter side get the small stem


def resnet8(input_shape: tuple[int, ...], outputs: int, *, width: float = 1.0, norm: str = "batch") -> nn.Module:
    """Returns a ResNet-8 (He et al. 2016, section 4.2 with n = 1), the small network of papers on CIFAR.

    The first stage has 16 times `width` channels, and each later stage twice as many as the one before. Where the
    number of channels changes, the shortcut is a 1 x 1 convolution, as in ResNet-18. The normalization is batch or
    group.

    Example:
        >>> sum(p.numel() for p in resnet8((3, 32, 32), 10).parameters())
        78042
    """
    return _resnet([1, 1, 1], input_shape, outputs, width / 4, norm)


def resnet18(input_shape: tuple[int, ...], outputs: int, *, width: float = 1.0, norm: str = "batch") -> nn.Module:
    """Returns a ResNet-18 (He et al. 2016).

    The first stage has 64 times `width` channels, and each later stage twice as many as the one before. The
    normalization is batch or group.

    Example:
        >>> resnet18((3, 32, 32), 10).conv1
        Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    return _resnet([2, 2, 2, 2], input_shape, outputs, width, norm)


def resnet34(input_shape: tuple[int, ...], outputs: int, *, width: float = 1.0, norm: str = "batch") -> nn.Module:
    """Returns a ResNet-34 (He et al. 2016), with the options of `resnet18`."""
    return _resnet([3, 4, 6, 3], input_shape, outputs, width, norm)


def densenet(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    blocks: Sequence[int] = (6, 12, 24, 16),
    growth: int = 32,
    norm: str = "batch",
) -> nn.Module:
    """Returns a DenseNet (Huang et al. 2017). The default is DenseNet-121.

    `blocks` is the number of layers in each dense block, and `growth` is the number of channels that each layer adds.
    The normalization is batch or group.
    """
    from torchvision.models import DenseNet

    depth, small = _channels_and_stem("densenet", input_shape)
    net: nn.Module = DenseNet(growth, tuple(blocks), 2 * growth, num_classes=outputs)
    features: Any = net.features
    features.conv0 = _stem(depth, 2 * growth) if small else _match_channels(features.conv0, depth)
    if small:
        features.pool0 = nn.Identity()
    return replace_norms(net, norm)


def mobilenet_v2(
    input_shape: tuple[int, ...], outputs: int, *, width: float = 1.0, dropout: float = 0.0, norm: str = "batch"
) -> nn.Module:
    """Returns a MobileNetV2 (Sandler et al. 2018).

    For images with a side below 64 pixels, the first two strides are 1, so that 32 x 32 pixels become 4 x 4. `width`
    multiplies the numbers of channels. `dropout` is the probability with which an input of the classifier is dropped
    (0.2 in torchvision). The normalization is batch or group.
    """
    from torchvision.models import MobileNetV2

    depth, small = _channels_and_stem("mobilenet_v2", input_shape)
    rows = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]]
    rows[1][3] = 1 if small else 2  # a row is (expansion, channels, repeats, stride), as in table 2 of the paper
    net: Any = MobileNetV2(outputs, width, inverted_residual_setting=rows, dropout=dropout)
    first = net.features[0]
    first[0] = _stem(depth, first[0].out_channels) if small else _match_channels(first[0], depth)
    return replace_norms(net, norm)


def shufflenet_v2(input_shape: tuple[int, ...], outputs: int, *, norm: str = "batch") -> nn.Module:
    """Returns a ShuffleNetV2 x1.0 (Ma et al. 2018) with batch or group normalization."""
    from torchvision.models import ShuffleNetV2

    depth, small = _channels_and_stem("shufflenet_v2", input_shape)
    net: Any = ShuffleNetV2([4, 8, 4], [24, 116, 232, 464, 1024], num_classes=outputs)
    net.conv1[0] = _stem(depth, 24) if small else _match_channels(net.conv1[0], depth)
    if small:
        net.maxpool = nn.Identity()
    return replace_norms(net, norm)


def _resnet(layers: list[int], input_shape: tuple[int, ...], outputs: int, width: float, norm: str) -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    depth, small = _channels_and_stem("resnet", input_shape)
    net: Any = ResNet(BasicBlock, [*layers, 1][:4], num_classes=outputs)
    if len(layers) == 3:
        net.layer4 = nn.Identity()
    if width != 1 or len(layers) == 3:
        net.inplanes = channels = max(1, round(64 * width))  # of the first stage; in torchvision it is always 64
        net.conv1, net.bn1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(channels)
        for stage, blocks in enumerate(layers):
            made = net._make_layer(BasicBlock, channels * 2**stage, blocks, stride=1 if stage == 0 else 2)
            setattr(net, f"layer{stage + 1}", made)
        net.fc = nn.Linear(net.inplanes, net.fc.out_features)
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    net.conv1 = _stem(depth, net.conv1.out_channels) if small else _match_channels(net.conv1, depth)
    if small:
        net.maxpool = nn.Identity()
    return replace_norms(net, norm)


def _stem(depth: int, channels: int) -> nn.Conv2d:
    """Returns the first convolution of a network for small images."""
    conv = nn.Conv2d(depth, channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _match_channels(conv: nn.Conv2d, depth: int) -> nn.Conv2d:
    """Returns a convolution like `conv`, the first convolution of a network, but with `depth` input channels."""
    if conv.in_channels == depth:
        return conv
    stride, padding = (conv.stride[0], conv.stride[1]), (int(conv.padding[0]), int(conv.padding[1]))
    new = nn.Conv2d(depth, conv.out_channels, (conv.kernel_size[0], conv.kernel_size[1]), stride, padding, bias=False)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new


def _channels_and_stem(name: str, input_shape: tuple[int, ...]) -> tuple[int, bool]:
    """Returns the number of channels of an image, and whether the network begins with layers for small images."""
    channels, *sides = read_image_shape(name, input_shape)
    return channels, min(sides) < SMALL_STEM_BELOW


# ---------------------------------------------------------------------------------------------------------------------
# Networks by name.

Builder = Callable[..., nn.Module]  # (input_shape, outputs, **options) -> a freshly initialized module
BUILDERS: dict[str, Builder] = {  # a user's registered networks are added
    "linear": linear,
    "mlp": mlp,
    "rbf": rbf,
    "cnn": cnn,
    "vgg11": vgg11,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "densenet": densenet,
    "mobilenet_v2": mobilenet_v2,
    "shufflenet_v2": shufflenet_v2,
    "lstm": lstm,
}
MODEL_NAMES = tuple(BUILDERS)  # names of built-in networks


def build_net(name: str, input_shape: tuple[int, ...], outputs: int, objective: Objective, **options: Any) -> Net:
    """Builds a network by name.

    Args:
        name: Name of the network, one of `MODEL_NAMES` or a registered name.
        input_shape: Shape of one sample.
        outputs: Length of the output. For `gaussian_nll`, it is twice the number of targets.
        objective: Name of the loss in training.
        options: Keyword arguments of the function that builds the network.

    Example:
        >>> build_net("mlp", (13,), 1, "half_mse", hidden=[50]).layout.d
        751
    """
    return net_of(model_maker(name, input_shape, outputs, **options), name, objective, outputs)


def model_maker(name: str, input_shape: tuple[int, ...], outputs: int, **options: Any) -> Callable[[], nn.Module]:
    """Returns a function without arguments that makes a new network. `model_maker` takes the arguments of `build_net`.

    Raises:
        BadInput: There is no network of this name, the network does not have one of the options, or a required option
            is missing.
    """
    if name not in BUILDERS:
        known = suggest_nearest(name, BUILDERS, f"choose one of {', '.join(BUILDERS)}")
        raise BadInput(f"model.name = {name} is not known: {known}")
    builder = BUILDERS[name]
    try:
        inspect.signature(builder).bind(input_shape, outputs, **options)
    except TypeError as error:  # the network does not have an option, or a required option is missing
        allowed = ", ".join(list(inspect.signature(builder).parameters)[2:]) or "none"
        raise BadInput(f"model.name = {name}: {error}: its options are {allowed}") from None
    return partial(builder, tuple(input_shape), outputs, **options)


# ---------------------------------------------------------------------------------------------------------------------
# Networks with early exits (DepthFL): a network is cut into blocks, with a head (an output layer) after each block.

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


class Exits(nn.Module):
    """A network of blocks, one after another, with heads (output layers) after some of the blocks.

    Attributes:
        blocks: The D blocks.
        heads: The H heads. The key of a head is the index of its block as a string, from "0".
    """

    def __init__(self, blocks: Sequence[nn.Module], heads: Mapping[str, nn.Module]) -> None:
        nn.Module.__init__(self)
        self.blocks, self.heads = nn.ModuleList(blocks), nn.ModuleDict(heads)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits: in training the logits of each head, `[n, H, C]`, and in evaluation their mean, `[n, C]`."""
        each = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if str(number) in self.heads:
                each.append(self.heads[str(number)](x))
        logits = torch.stack(each, dim=1)
        return logits if self.training else logits.mean(dim=1)


def add_exits(net: nn.Module, most: int, shape: tuple[int, ...], name: str, who: str) -> Exits:
    """Cuts a network into blocks, and puts a head (output layer) after each block.

    The last head is the network's own last layer. The network must call its layers one after another, as an
    `nn.Sequential` or a ResNet does, and end in a linear layer. Each layer with weights, except normalization, begins a
    stage. A Flatten just before such a layer belongs to the same stage. There are `D = min(most, L)` blocks for L
    stages, and stage i becomes part of block `i D // L`. An added head is a linear layer. For images, its inputs are
    the means of the channels.

    `shape` is the shape of one input. In messages, `name` is the name of the network, and `who` is the name of the
    method that needs the blocks.

    Raises:
        BadInput: The network does not have the required form.

    Example:
        >>> from fedray.models.nets import cnn
        >>> net = cnn((1, 8, 8), 10, channels=(4, 6), hidden=(5,))
        >>> net = add_exits(net, most=2, shape=(1, 8, 8), name="cnn", who="it")
        >>> [[type(part).__name__ for part in block] for block in net.blocks]
        [['Conv2d', 'ReLU', 'MaxPool2d', 'Conv2d', 'ReLU', 'MaxPool2d'], ['Flatten', 'Linear', 'ReLU']]
        >>> net.heads["0"][-1], net.heads["1"]  # of the mean of each channel, and the network's own
        (Linear(in_features=6, out_features=10, bias=True), Linear(in_features=5, out_features=10, bias=True))
        >>> x = torch.ones(3, 1, 8, 8)
        >>> net.eval()(x).shape, net.train()(x).shape
        (torch.Size([3, 10]), torch.Size([3, 2, 10]))
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
    """Returns a network of the first `depth` blocks of `net`, whose module is an `Exits` (blocks with heads).

    `heads` lists the indices of the blocks that keep their heads (output layers).
    """

    def build() -> nn.Module:
        module = net.module
        assert isinstance(module, Exits)
        kept = {str(head): copy.deepcopy(module.heads[str(head)]) for head in heads}
        return Exits([copy.deepcopy(block) for block in module.blocks[:depth]], kept)

    return net_of(build, f"{net.name} of {depth} blocks", net.objective, net.outputs)
