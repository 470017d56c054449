"""torchvision's networks, with the stem adapted to small images.

The stem of an ImageNet network shrinks the sides of an image to a quarter before the first block. For images with a
side below 64 a 3 x 3 convolution of stride 1 without pooling replaces it (He et al. 2016, section 4.2), as in all
papers on CIFAR. `norm: group` replaces every BatchNorm2d by GroupNorm. torchvision is imported only when one of these
networks is built.

Example:
    >>> resnet18((3, 32, 32), 10).conv1
    Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fedray.models.cnn import read_image_shape
from fedray.models.norm import replace_norms

SMALL_STEM_BELOW = 64  # pixels; images with a shorter side get the small stem


def resnet18(input_shape: tuple[int, ...], outputs: int, *, width: float = 1.0, norm: str = "batch") -> nn.Module:
    """ResNet-18 (He et al. 2016).

    Args:
        input_shape: `(channels, height, width)`.
        outputs: Number of classes.
        width: Factor on the channels: 64 in the first stage, twice as many in each further one.
        norm: batch or group.
    """
    return _resnet([2, 2, 2, 2], input_shape, outputs, width, norm)


def resnet34(input_shape: tuple[int, ...], outputs: int, *, width: float = 1.0, norm: str = "batch") -> nn.Module:
    """ResNet-34 (He et al. 2016).

    Args:
        input_shape: `(channels, height, width)`.
        outputs: Number of classes.
        width: Factor on the channels: 64 in the first stage, twice as many in each further one.
        norm: batch or group.
    """
    return _resnet([3, 4, 6, 3], input_shape, outputs, width, norm)


def densenet(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    blocks: Sequence[int] = (6, 12, 24, 16),
    growth: int = 32,
    norm: str = "batch",
) -> nn.Module:
    """DenseNet (Huang et al. 2017); the default is DenseNet-121.

    Args:
        input_shape: `(channels, height, width)`.
        outputs: Number of classes.
        blocks: Layers in each of the dense blocks.
        growth: Channels that each layer adds.
        norm: batch or group.
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
    """MobileNetV2 (Sandler et al. 2018). For small images the first two strides are 1, so 32 x 32 ends at 4 x 4.

    Args:
        input_shape: `(channels, height, width)`.
        outputs: Number of classes.
        width: Factor on the channels.
        dropout: Share of dropped inputs of the classifier (torchvision: 0.2).
        norm: batch or group.
    """
    from torchvision.models import MobileNetV2

    depth, small = _channels_and_stem("mobilenet_v2", input_shape)
    rows = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]]
    rows[1][3] = 1 if small else 2  # expansion, channels, repeats, stride: table 2 of the paper
    net: Any = MobileNetV2(outputs, width, inverted_residual_setting=rows, dropout=dropout)
    first = net.features[0]
    first[0] = _stem(depth, first[0].out_channels) if small else _match_channels(first[0], depth)
    return replace_norms(net, norm)


def shufflenet_v2(input_shape: tuple[int, ...], outputs: int, *, norm: str = "batch") -> nn.Module:
    """ShuffleNetV2 x1.0 (Ma et al. 2018).

    Args:
        input_shape: `(channels, height, width)`.
        outputs: Number of classes.
        norm: batch or group.
    """
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
    net: Any = ResNet(BasicBlock, layers, num_classes=outputs)
    if width != 1:
        _scale_stages(net, layers, max(1, round(64 * width)))
    net.conv1 = _stem(depth, net.conv1.out_channels) if small else _match_channels(net.conv1, depth)
    if small:
        net.maxpool = nn.Identity()
    return replace_norms(net, norm)


def _scale_stages(net: Any, layers: list[int], channels: int) -> None:
    """Give the first stage of a ResNet so many channels, and each further one twice as many; torchvision fixes 64."""
    from torchvision.models.resnet import BasicBlock

    net.inplanes = channels
    net.conv1, net.bn1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(channels)
    for stage, blocks in enumerate(layers):
        made = net._make_layer(BasicBlock, channels * 2**stage, blocks, stride=1 if stage == 0 else 2)
        setattr(net, f"layer{stage + 1}", made)
    net.fc = nn.Linear(net.inplanes, net.fc.out_features)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _stem(depth: int, channels: int) -> nn.Conv2d:
    """The stem for small images."""
    conv = nn.Conv2d(depth, channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _match_channels(conv: nn.Conv2d, depth: int) -> nn.Conv2d:
    """The original stem, with as many input channels as the images have."""
    if conv.in_channels == depth:
        return conv
    stride, padding = (conv.stride[0], conv.stride[1]), (int(conv.padding[0]), int(conv.padding[1]))
    new = nn.Conv2d(depth, conv.out_channels, (conv.kernel_size[0], conv.kernel_size[1]), stride, padding, bias=False)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new


def _channels_and_stem(name: str, input_shape: tuple[int, ...]) -> tuple[int, bool]:
    """The channels of an image, and whether the network gets the small stem."""
    channels, *sides = read_image_shape(name, input_shape)
    return channels, min(sides) < SMALL_STEM_BELOW
