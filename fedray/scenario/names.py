"""Lists the names that scenarios may use, and explains unknown keys."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedray.core.errors import BadInput, quote_value, suggest_nearest
from fedray.core.options import MethodSpec, NameSpec, Option, flag, list_of, one_of, real, whole
from fedray.methods import METHOD_SPECS
from fedray.scenario.sections import DATA_SPECS, PARTITION_SPECS, SCHEDULE_SPECS, SELECTION_SPECS, DataSpec

# ---------------------------------------------------------------------------------------------------------------------
# The networks that a scenario may name, each with a description and its options.

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
    "resnet8": NameSpec("ResNet-8 for small images, 78,000 weights", {**_WIDTH, **_NORM}),
    "resnet18": NameSpec("ResNet-18 for small images", {**_WIDTH, **_NORM}),
    "resnet34": NameSpec("ResNet-34 for small images", {**_WIDTH, **_NORM}),
    "vgg11": NameSpec("VGG-11 for small images", {"norm": Option("batch", one_of("batch", "group", "none"))}),
    "densenet": NameSpec(
        "DenseNet for small images",
        {"blocks": Option([6, 12, 24, 16], list_of(whole(1, 1000), 10)), "growth": Option(32, whole(1, 1000)), **_NORM},
    ),
    "mobilenet_v2": NameSpec(
        "MobileNetV2, stem adapted to small images", {**_WIDTH, "dropout": Option(0.0, real("[0, 1)")), **_NORM}
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


# ---------------------------------------------------------------------------------------------------------------------
# The specifications of methods, both fedray's and those that users register.

UNKNOWN = MethodSpec("your own", splits=True, slices=METHOD_SPECS["heterofl"].slices)
OWN_SPECS: dict[str, MethodSpec] = {}  # users' registered methods with a specification


def method_spec_of(name: object) -> MethodSpec:
    """Returns the specification of a method.

    The result is a general specification if `name` is None or unknown, or if a user registered the method without one.
    """
    return (METHOD_SPECS.get(name) or OWN_SPECS.get(name, UNKNOWN)) if isinstance(name, str) else UNKNOWN


def trains_one_model(name: object) -> bool:
    """Returns whether a method trains a single model if a scenario does not set `method.models`."""
    return bool(method_spec_of(name).defaults.get("method", {}).get("models") == 1)


# ---------------------------------------------------------------------------------------------------------------------
# The kinds of things that have names. `fedray.assembly` finds the code for a name.


class Origin(NamedTuple):
    """The module and file in which a user registered a name.

    Attributes:
        module: The name of the module. It is `__main__` for a script or a notebook.
        file: The path of the module relative to the working directory, or only the file name, for messages.
    """

    module: str
    file: str


Spec = MethodSpec | DataSpec | NameSpec


class Kind(NamedTuple):
    """A kind of objects that scenarios can name and users can write, such as methods or metrics.

    Attributes:
        word: The word for the kind in `fedray.register`.
        key: The dotted key in which a scenario names an object of the kind.
        specs: The specifications of fedray's own objects of the kind, by name.
        text: The word for an object of the kind in messages.
        arguments: The arguments with which fedray calls a user's function of the kind.
        wants: The description of a valid object, for messages. `{}` stands for the arguments.
        default: The default name. It is empty if the kind has no section in which options stand next to the name.
        kept: The keys of the section that keep their values when the name changes.
        alone: Whether the name of a passed Python object (key `object`) replaces the key `name`.
        argument: The argument of `fedray.run` for the kind. If the text is empty, the argument is `word`.
        part: The part of `identity.json` to which the kind belongs. Several kinds share the part `training`.
        listed: The word for all objects of the kind in `fedray list`.
    """

    word: str
    key: str
    specs: Mapping[str, Spec]
    text: str
    arguments: str
    wants: str
    default: str = ""
    kept: tuple[str, ...] = ()
    alone: bool = False
    argument: str = ""
    part: str = "training"
    listed: str = ""

    @property
    def given(self) -> str:
        """Returns the argument of `fedray.run` with which a user passes an object of this kind."""
        return self.argument or self.word

    @property
    def section(self) -> str:
        """Returns the section of a scenario that holds `key`."""
        return self.key.rpartition(".")[0]

    @property
    def object_key(self) -> str:
        """Returns the dotted key under which a run directory holds the name of a Python object of this kind."""
        return f"own.{self.given}" if self.part == "training" else f"{self.section}.object"


_OPTIMIZERS = {
    "sgd": NameSpec("stochastic gradient descent, with `local.momentum`"),
    "adam": NameSpec("Adam (Kingma and Ba 2015), with its usual constants"),
    "adamw": NameSpec("Adam with decoupled weight decay (Loshchilov and Hutter 2019)"),
    "rmsprop": NameSpec("RMSprop with the constants of torch, without momentum"),
}
_AUGMENTATIONS = {
    "crop": NameSpec("a picture moves by up to an eighth of its side (4 pixels of 32); new pixels are 0"),
    "flip": NameSpec("a picture is mirrored, left to right, with probability 1/2"),
}
_ROWS = (
    Kind(
        "method", "method.name", METHOD_SPECS, "method",
        "setting", "a function ({}) that composes the method from a Setting",
        default="fed_ensemble", part="method", listed="methods",
    ),
    Kind(
        "model", "model.name", MODEL_SPECS, "model",
        "input_shape, outputs", "a function ({}) that makes the network",
        default="mlp", alone=True, kept=("objective",), part="network", listed="models",
    ),
    Kind(
        "data", "data.name", DATA_SPECS, "data set",
        "root", "a function ({}) that makes a fedray.data.types.Dataset",
        default="digits", alone=True,
        kept=("root", "fold", "hold_out", "test_clients", "standardize", "scale", "partition"),
        part="data", listed="datasets",
    ),
    Kind(
        "partition", "data.partition.name", PARTITION_SPECS, "partition",
        "labels, clients, generator, options", "a function ({}) that gives the rows of each client, or, passed to "
        "fedray.run, a partitioner of flwr_datasets",
        default="iid", alone=True, part="partition", listed="partitions",
    ),
    Kind(
        "selection", "participation.selection.name", SELECTION_SPECS, "client selection",
        "known, number, generator, options", "a function ({}) that chooses the participants of a round",
        default="uniform", alone=True, part="selection", listed="selections",
    ),
    Kind(
        "schedule", "schedule.kind", SCHEDULE_SPECS, "schedule",
        "models, rows", "a function ({}) that makes an assignment of models to participants",
        part="schedule", listed="schedules",
    ),
    Kind(
        "loss", "local.loss", {}, "loss",
        "outputs, targets, context",
        "a function ({}) -> the loss of each row, such as lambda outputs, targets, context: "
        "cross_entropy(outputs, targets, reduction='none'), or a fedray.methods.LocalLoss",
        listed="losses",
    ),
    Kind(
        "optimizer", "local.optimizer", _OPTIMIZERS, "optimizer",
        "parameters",
        "a fedray.methods.Transform, a function of options that makes one, or one ({}, lr=...) -> "
        "torch.optim.Optimizer",
        listed="optimizers",
    ),
    Kind(
        "augmentation", "local.augment", _AUGMENTATIONS, "augmentation",
        "inputs, targets",
        "a function of one input -> the changed input, such as a transform of torchvision, or of a batch, ({}) -> both",
        argument="augment", listed="augmentations",
    ),
    Kind(
        "metric", "evaluate.metrics", {}, "metric",
        "scored",
        "a function ({}) of a fedray.methods.Scored, or one (y_true, y_score) or (y_true, y_pred), -> a number",
        argument="metrics", listed="metrics",
    ),
    Kind(
        "callback", "callbacks", {}, "callback",
        "round, scores, models", "a function ({}) -> whether to stop",
        argument="callbacks", listed="callbacks",
    ),
)  # fmt: skip
KINDS: Mapping[str, Kind] = {kind.word: kind for kind in _ROWS}
NAMED: Mapping[tuple[str, ...], Kind] = {  # sections with a name and its options
    tuple(kind.section.split(".")): kind for kind in _ROWS if kind.default
}


class _Own(NamedTuple):
    """A name that a user added.

    Attributes:
        text: A one-line description, for `fedray list`.
        options: The options with their defaults. None means that no options are declared.
        origin: The module and file that registered the name. None means unknown.
        thing: The object that the name stands for.
    """

    text: str
    options: Mapping[str, Any] | None
    origin: Origin | None
    thing: Any


_OWN: dict[tuple[str, str], _Own] = {}  # kind and name
_UCI = re.compile(r"uci/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # one folder name, always inside data.root
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99})?")


def known_names(kind: str) -> dict[str, str]:
    """Returns every name of a kind with its description, in the order of `fedray list`."""
    own = {name: one.text for (other, name), one in _OWN.items() if other == kind}
    return {**{name: spec.text for name, spec in KINDS[kind].specs.items()}, **own}


def known_metrics() -> dict[str, str]:
    """Returns the names for `evaluate.metrics`. The first call imports scikit-learn, which takes half a second."""
    from sklearn.metrics import get_scorer_names

    scorers = dict.fromkeys(get_scorer_names(), "a scorer of scikit-learn")
    scorers.pop("max_error", None)  # an old name of neg_max_error
    return scorers | known_names("metric")


def is_known(kind: str, name: str) -> bool:
    """Returns whether a scenario may use a name of a kind.

    Example:
        >>> is_known("data", "uci/energy"), is_known("data", "uci/../energy"), is_known("method", "fedavgg")
        (True, False, False)
    """
    if kind == "data" and name.startswith("uci/"):
        return name != "uci/NAME" and _UCI.fullmatch(name) is not None
    return name in KINDS[kind].specs or is_own(kind, name)


def is_own(kind: str, name: str) -> bool:
    """Returns whether a name of a kind was added by `allow_name`."""
    return (kind, name) in _OWN


def find_thing(kind: str, name: str) -> Any:
    """Returns the object that a user registered under a name, or None if no user registered the name."""
    return _OWN[kind, name].thing if (kind, name) in _OWN else None


def declared_options(kind: str, name: str) -> Mapping[str, Any] | None:
    """Returns the options of a user's own name with their defaults, or None if no options are declared.

    If no options are declared, a scenario may set any option.

    Example:
        >>> allow_name("method", "noisy", options={"sigma": 0.05})
        >>> declared_options("method", "noisy"), declared_options("method", "quiet")
        ({'sigma': 0.05}, None)
    """
    return _OWN[kind, name].options if (kind, name) in _OWN else None


def list_own_rules(local: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists the kind and the name of the user's own loss, optimizer and augmentations in a section `local`.

    Example:
        >>> allow_name("augmentation", "blur", options={"radius": 2})
        >>> list_own_rules({"augment": ["crop", "blur"], "optimizer": "sgd"})
        [('augmentation', 'blur')]
    """
    return [
        (kind.word, name)
        for kind in _ROWS
        if kind.section == "local"
        for name in as_list(local.get(kind.given))
        if isinstance(name, str) and is_own(kind.word, name)
    ]


def as_list(value: Any) -> list[Any]:
    """Converts one value or several values to a list. None becomes an empty list.

    Example:
        >>> as_list(None), as_list("crop"), as_list(("crop", "flip"))
        ([], ['crop'], ['crop', 'flip'])
    """
    return [] if value is None else list(value) if type(value) in (list, tuple) else [value]


def list_origins() -> dict[tuple[str, str], Origin]:
    """Returns the origin of each name that a user registered."""
    return {key: one.origin for key, one in _OWN.items() if one.origin is not None}


def allow_name(
    kind: str,
    name: str,
    text: str = "your own",
    *,
    options: Mapping[str, Any] | None = None,
    origin: Origin | None = None,
    thing: Any = None,
) -> None:
    """Allows scenarios to use a name of your own.

    Args:
        kind: The kind of the name, such as "method" or "metric".
        name: The name, which consists of letters, digits, `.`, `_`, `-`, and at most one `/`. A name of fedray's own is
            refused.
        text: A one-line description, for `fedray list`.
        options: The options of the name with their defaults. None allows any options with plain values.
        origin: The module and file that registered the name. None means unknown.
        thing: The function or object that the name stands for.

    Raises:
        BadInput: The name cannot be used.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("uci/"):
        raise BadInput(f"{kind}.name = {name!r} cannot be a name: use letters, digits, '.', '_' and '-'")
    if name in KINDS[kind].specs:
        raise BadInput(f"{kind}.name = {name!r} is fedray's own: choose another name")
    _OWN[kind, name] = _Own(text, None if options is None else dict(options), origin, thing)


# ---------------------------------------------------------------------------------------------------------------------
# The error for a key that a section does not have, which names the key that was probably meant.

MOST_PLACES = 3  # keys that a message suggests, at most
_ALIAS = {  # words of other tools, with fedray's keys
    "learning_rate": "local.lr",
    "eta": "local.lr",
    "batch": "local.batch_size",
    "bs": "local.batch_size",
    "wd": "local.weight_decay",
    "k": "method.models",
    "members": "method.models",
    "ensemble_size": "method.models",
    "n": "clients.number",
    "num_clients": "clients.number",
    "clients_per_round": "participation.per_round",
    "num_rounds": "rounds",
    "dataset": "data",
    "algorithm": "method",
    "strategy": "method",
    "network": "model",
    "repetitions": "replicates",
    "seeds": "replicates",
    "gpus": "clients.tiers.NAME.num_gpus",
    "backend": "runtime",
}


def explain_unknown_key(
    path: str,
    key: str,
    keys: tuple[str, ...],
    owner: tuple[str, str] | None = None,
    sections: Mapping[str, tuple[str, ...]] | None = None,
    *,
    what: str = "",
) -> str:
    """Returns the line of an error about a key that a section does not have. The line suggests a remedy.

    `keys` has the keys of the section. `owner` is the kind and the name of the section's object, such as a method. It
    is None for a section without an object. `sections` maps other sections to their keys. It is None if no key of
    another section shall be suggested. `what` is the name of a section of a sweep. It is empty for scenarios.

    Example:
        >>> explain_unknown_key("local", "learning_rate", ("lr", "epochs"))
        'local.learning_rate is not a key of local: did you mean local.lr?'
    """
    word = key if key.isprintable() and 0 < len(key) <= 60 else quote_value(key)
    lead = f"{path}." if path else ""
    where = what or path or "a scenario"
    if owner is not None:
        where = f"{KINDS[owner[0]].text} {owner[1]}"
        users = _list_users(owner[0], key)
        if users:
            return f"{lead}{word} is not a key of {where}, but of {', '.join(users)}: choose one of these"
    if not what and (alias := _ALIAS.get(key.lower().replace("-", "_"))):
        last = alias.rpartition(".")[2]
        remedy = f"did you mean {lead}{last}?" if last in keys else f"did you mean {alias}?"
    elif not what and 0 < len(elsewhere := _find_elsewhere(key, path, sections or {})) <= MOST_PLACES:
        remedy = f"did you mean {' or '.join(elsewhere)}?"
    else:
        remedy = suggest_nearest(key, keys, f"choose one of {', '.join(keys)}", prefix=lead)
    return f"{lead}{word} is not a key of {where}: {remedy}"


def _find_elsewhere(key: str, path: str, sections: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Returns the dotted keys of other sections that end in `key`.

    Options of objects, such as methods, are included.

    Example:
        >>> _find_elsewhere("ratio", "", {"local": ("lr",), "compress": ("kind", "ratio")})
        ['compress.ratio']
        >>> _find_elsewhere("mu", "local", {}), _find_elsewhere("color", "local", {})
        (['method.mu (of fedprox, moon, shefl)'], [])
    """
    found = [f"{section}.{key}" for section, keys in sections.items() if key in keys and section not in ("", path)]
    for kind in NAMED.values():
        users = _list_users(kind.word, key)
        if users and kind.section != path:
            found.append(
                f"{kind.section}.{key} (of {', '.join(users[:MOST_PLACES])}{', ...' * (len(users) > MOST_PLACES)})"
            )
    return found


def _list_users(kind: str, key: str) -> list[str]:
    """Returns the names of the objects of a kind (such as methods) that have an option with this key."""
    return [name for name, spec in KINDS[kind].specs.items() if key in spec.options]
