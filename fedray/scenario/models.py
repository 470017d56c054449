"""The networks that a scenario may name: text and options."""

from __future__ import annotations

from fedray.core.options import NameSpec, Option, flag, list_of, one_of, real, whole

_WIDTHS = list_of(whole(1, 65_536), 100, scalar=True)
_NORM = {"norm": Option("batch", one_of("batch", "group"))}
_WIDTH = {"width": Option(1.0, real("(0, 16]"))}
_WEIGHT_SD = {"weight_sd": Option(None, real("(0, inf)"))}

MODEL_SPECS: dict[str, NameSpec] = {
    "linear": NameSpec("one linear layer", {"bias": Option(True, flag), **_WEIGHT_SD}),
    "rbf": NameSpec(
        "a linear layer on fixed radial basis functions",
        {
            "features": Option(100, whole(1, 10**6)),
            "width": Option(0.08, real("(0, inf)")),
            "seed": Option(0, whole(0, 2**62)),
            "bias": Option(False, flag),
            **_WEIGHT_SD,
        },
    ),
    "mlp": NameSpec(
        "fully connected layers",
        {
            "hidden": Option([50], _WIDTHS),
            "activation": Option("relu", one_of("relu", "tanh")),
            "norm": Option(None, one_of("batch", "layer")),
            **_WEIGHT_SD,
        },
    ),
    "cnn": NameSpec(
        "small convolutional network, 2 layers by default",
        {
            "channels": Option([10, 20], _WIDTHS),
            "hidden": Option([50], _WIDTHS),
            "kernel": Option(None, whole(1, 100)),
            "padding": Option(None, whole(0, 100)),
            "dropout": Option(0.0, real("[0, 1)")),
        },
    ),
    "resnet18": NameSpec("ResNet-18 for small images", {**_WIDTH, **_NORM}),
    "resnet34": NameSpec("ResNet-34 for small images", {**_WIDTH, **_NORM}),
    "vgg11": NameSpec("VGG-11 for small images", {"norm": Option("batch", one_of("batch", "group", "none"))}),
    "densenet": NameSpec(
        "DenseNet for small images",
        {
            "blocks": Option([6, 12, 24, 16], list_of(whole(1, 1000), 10)),
            "growth": Option(32, whole(1, 1000)),
            **_NORM,
        },
    ),
    "mobilenet_v2": NameSpec(
        "MobileNetV2, stem adapted to small images",
        {**_WIDTH, "dropout": Option(0.0, real("[0, 1)")), **_NORM},
    ),
    "shufflenet_v2": NameSpec("ShuffleNetV2, stem adapted to small images", _NORM),
    "lstm": NameSpec(
        "2-layer LSTM over characters",
        {
            "vocabulary": Option(None, whole(1, 10**6)),
            "embedding": Option(8, whole(1, 65_536)),
            "hidden": Option(256, whole(1, 65_536)),
            "layers": Option(2, whole(1, 100)),
        },
    ),
}
