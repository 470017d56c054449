"""Convolutional networks as plain `nn.Sequential`s: the small ones of FE and SHEFL, and VGG-11."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedray.core.errors import BadInput
from fedray.models.mlp import check_widths
from fedray.models.norm import norm_layer

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
    """Conv2d, ReLU, MaxPool2d(2) for each of `channels`; Flatten; Linear, ReLU for each of `hidden`; Linear.

    The network of McMahan et al. 2017 has channels (32, 64), hidden (512,) and padding 2. That of SHEFL (2 convolutions
    and 2 hidden layers) has two entries in `hidden`. That of the public code of Fed-ensemble is the default one with
    dropout 0.5: whole channels of the last convolution, and units of the hidden layers.

    Args:
        input_shape: `(channels, height, width)`.
        outputs: Number of classes.
        channels: Channels of the convolutions.
        hidden: Widths of the fully connected layers.
        kernel: Side of the kernels; None means 5, or 3 for images with a side below 16.
        padding: None means 0, or `kernel // 2` for images with a side below 16.
        dropout: Probability, in [0, 1), with which training drops a channel of the last convolution, and a unit of a
            hidden layer; 0: there are no such layers.

    Example:
        >>> sum(parameter.numel() for parameter in cnn((1, 28, 28), 10).parameters())
        21840
    """
    small = min(read_image_shape("cnn", input_shape)[1:]) < SMALL_KERNEL_BELOW
    kernel = kernel if kernel is not None else 3 if small else 5
    padding = padding if padding is not None else kernel // 2 if small else 0
    layers, inside = _convolutions(input_shape, check_widths("channels", channels), kernel, padding)
    if dropout and len(layers) > 1:
        layers.insert(-1, nn.Dropout2d(dropout))  # before Flatten
    for out in check_widths("hidden", hidden):
        layers += [nn.Linear(inside, out), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        inside = out
    return nn.Sequential(*layers, nn.Linear(inside, outputs))


def _convolutions(
    input_shape: tuple[int, ...], channels: list[int], kernel: int, padding: int
) -> tuple[list[nn.Module], int]:
    """The convolutional part with its Flatten, and the length of its output."""
    depth, height, width = read_image_shape("cnn", input_shape)
    layers: list[nn.Module] = []
    for out in channels:
        layers += [nn.Conv2d(depth, out, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        depth, height, width = out, *((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
        if min(height, width) < 1:
            raise BadInput(
                f"model.channels = {channels}: images of {list(input_shape)} are too small for so many poolings "
                f"with kernel {kernel} and padding {padding}: use fewer, or padding {kernel // 2}"
            )
    return [*layers, nn.Flatten()], depth * height * width


def vgg11(input_shape: tuple[int, ...], outputs: int, *, norm: str = "batch") -> nn.Sequential:
    """VGG-11 (Simonyan and Zisserman 2015, column A) with the one-layer classifier usual for 32 x 32 images.

    Poolings round an odd side up, so that images may have any size (28: 14, 7, 4, 2, 1).

    Args:
        input_shape: `(channels, height, width)`.
        outputs: Number of classes.
        norm: Normalization after each convolution: batch, group or none.
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
    """Channels, height and width of an image.

    Args:
        name: Of the network, for the message.
        input_shape: Of one sample.

    Raises:
        BadInput: The shape is not that of an image.
    """
    if len(input_shape) != 3:
        plane = "give pictures of real numbers as [n, 1, H, W], or " if len(input_shape) == 2 else ""
        raise BadInput(
            f"model.name = {name}: inputs of shape {list(input_shape)} are not images: {plane}choose linear or mlp"
        )
    depth, height, width = input_shape
    return depth, height, width
