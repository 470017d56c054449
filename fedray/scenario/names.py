"""The names that scenarios may use, with one line each for `fedray list`.

Only text: what a name means in code is said in `build.py`. `allow_name` adds names for objects of your own.
"""

from __future__ import annotations

import re
from typing import Literal

from fedray.core.errors import BadInput

Kind = Literal["method", "data", "model", "partition"]
METHOD_TEXTS = {
    "fed_ensemble": "Fed-ensemble: K models, each client trains one of them in a round (Shi et al. 2024)",
    "fedavg": "federated averaging: one model, everyone trains it (McMahan et al. 2017)",
    "fedprox": "FedAvg with a proximal term mu / 2 |w - w_start|^2 (Li et al. 2020)",
    "shefl": "ensemble over strong and weak devices, top-k uplink, equal weight for each tier",
    "fedag": "FedAvg whose server keeps a Gaussian over the weights (Thorgeirsson and Gauterin 2021)",
    "fedbe": "Bayesian ensemble at the server, distilled into the next model (Chen and Chao 2021)",
    "fedbe_nokd": "FedBE without distillation: the next model is a random sample",
    "feddyn": "dynamic regularisation: per-client linear corrections (Acar et al. 2021)",
    "feddyn_ensemble": "FedDyn under the permutation schedule, one correction per client and model",
    "ditto": "FedAvg and a personal model per client that is pulled towards it (Li et al. 2021)",
    "lg_fedavg": "only the last layers are averaged, the others stay private (Liang et al. 2020)",
    "scaffold": "control variates against client drift (Karimireddy et al. 2020)",
    "random_walk": "no server: K models walk over a graph of clients (Shi et al. 2024, section V-H)",
    "stacking": "stacking: sub models that each leave a client out, and a meta model (Yu et al. 2023)",
    "centralized": "one model on the pooled data: the upper reference",
    "local_only": "one model per client, nothing is shared: the lower reference",
    "bayesian_linear": "Bayesian linear regression on the pooled data, closed form",
    "deep_ensemble": "independent networks with a Gaussian head on the pooled data",
}
DATA_TEXTS = {
    "digits": "scikit-learn's handwritten digits, 1,797 images of 8 x 8, 10 classes (bundled)",
    "mnist": "MNIST, 70,000 images of 28 x 28, 10 classes",
    "fashion_mnist": "FashionMNIST, 70,000 images of 28 x 28, 10 classes",
    "cifar10": "CIFAR-10, 60,000 colour images of 32 x 32, 10 classes",
    "cifar100": "CIFAR-100, 60,000 colour images of 32 x 32, 100 classes",
    "svhn": "street view house numbers, 99,289 colour images of 32 x 32, 10 classes",
    "femnist": "handwriting by writer in LEAF JSON, 62 classes",
    "shakespeare": "next-character prediction, by role or IID",
    "printers": "vibration of six 3D printers against print speed",
    "sine": "toy of Fed-ensemble: y = a sin(2 pi x) + noise, an amplitude per client",
    "interval": "the sine toy with inputs in [-1, -0.5] and [0.5, 1] only",
    "cubic": "toy of FedAG: y = x^3 + noise",
    "synthetic": "a population generated client by client from its address, of any size",
    "table": "your own Parquet or CSV table (data.path, data.target)",
    "uci/NAME": "a UCI regression set in the standard split layout: uci/energy, uci/kin8nm, ...",
}
MODEL_TEXTS = {
    "linear": "one linear layer",
    "rbf": "a linear layer on fixed radial basis functions",
    "mlp": "fully connected layers",
    "cnn": "small convolutional network, 2 layers by default",
    "resnet18": "ResNet-18 for small images",
    "resnet34": "ResNet-34 for small images",
    "vgg11": "VGG-11 for small images",
    "densenet": "DenseNet for small images",
    "mobilenet_v2": "MobileNetV2, stem adapted to small images",
    "shufflenet_v2": "ShuffleNetV2, stem adapted to small images",
    "lstm": "2-layer LSTM over characters",
}
CLASSIFIER_TEXTS = {  # bases of stacking beside MODELS
    "sklearn/decision_tree": "a decision tree a client; they vote",
    "sklearn/gaussian_nb": "a Gaussian naive Bayes classifier a client; they vote",
    "sklearn/logistic_regression": "a logistic regression a client; they vote",
    "sklearn/random_forest": "a random forest a client; they vote",
}
PARTITION_TEXTS = {
    "iid": "shuffled and dealt evenly",
    "shards": "sorted by label, cut into shards, `shards` of them per client",
    "classes": "each client holds exactly `classes` classes",
    "dirichlet": "class shares of each client drawn from Dirichlet(alpha)",
    "natural": "as the data comes: by writer, role, device or generated client",
    "column": "by the values of a column",
}
_KNOWN: dict[Kind, dict[str, str]] = {
    "method": METHOD_TEXTS,
    "data": DATA_TEXTS,
    "model": MODEL_TEXTS,
    "partition": PARTITION_TEXTS,
}
_OWN: dict[Kind, dict[str, str]] = {"method": {}, "data": {}, "model": {}, "partition": {}}
_UCI = re.compile(r"uci/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # one folder name: no way out of data.root
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99})?")


def known_names(kind: Kind) -> dict[str, str]:
    """Every name of a kind with its description, in the order to list them."""
    return {**_KNOWN[kind], **_OWN[kind]}


def is_known(kind: Kind, name: str) -> bool:
    """Whether a scenario may use the name.

    Example:
        >>> is_known("data", "uci/energy"), is_known("data", "uci/../energy"), is_known("method", "fedavgg")
        (True, False, False)
    """
    if kind == "data" and name.startswith("uci/"):
        return name != "uci/NAME" and _UCI.fullmatch(name) is not None
    return name in _KNOWN[kind] or name in _OWN[kind]


def is_own(kind: Kind, name: str) -> bool:
    """Whether the name was added by `allow_name`: its options are not checked here."""
    return name in _OWN[kind]


def allow_name(kind: Kind, name: str, text: str = "your own") -> None:
    """Lets scenarios use a name of yours; its options may then be any plain values.

    Args:
        kind: method, data, model or partition.
        name: letters, digits, `.`, `_`, `-`, and one `/` at most; not a name that fedray has.
        text: one line for `fedray list`.
    """
    if kind not in _KNOWN:
        raise BadInput(f"kind = {kind!r} is not one of {', '.join(_KNOWN)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("uci/"):
        raise BadInput(f"{kind}.name = {name!r} cannot be a name: use letters, digits, '.', '_' and '-'")
    if name in _KNOWN[kind]:
        raise BadInput(f"{kind}.name = {name!r} is fedray's own: choose another name")
    _OWN[kind][name] = text
