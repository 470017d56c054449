"""The open parts of a scenario: which options a method, data set, model or partition has, and defaults per method.

To give a name an option, add a line to its table: key -> (default, kind). The default None means that the option is
left out unless it is given; `REQUIRED` that it must be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.text import find_nearest, quote_value
from fedray.scenario import names
from fedray.scenario.classifiers import read_classifier
from fedray.scenario.validators import Check, either, flag, list_of, one_of, real, text, whole

Table = Mapping[str, tuple[Any, Check]]
REQUIRED: Any = ...


def _bases(value: Any) -> Any:
    """Base models of stacking: a list of model sections, each with its own `models` (K) beside its options, or not."""
    if not isinstance(value, list | tuple) or len(value) > 100 or not all(isinstance(base, Mapping) for base in value):
        raise ValueError("is not a list of models: write it as [{name: mlp}, {name: cnn}]")
    return [read_classifier(f"method.bases[{i}]", base) or _base(i, base) for i, base in enumerate(value)]


def _base(i: int, base: Mapping[str, Any]) -> dict[str, Any]:
    path = f"method.bases[{i}]"
    number = base.get("models")
    folded = fold_options(
        "model", path, {"name": "mlp", **{k: v for k, v in base.items() if k != "models"}}, ("models",)
    )
    try:
        own = {} if number is None else {"models": whole(1, 10**4)(number)}
        return {"name": folded["name"], **own, **folded["options"]}
    except ValueError as wrong:
        raise BadInput(f"{path}.models = {quote_value(number)} {wrong}") from None


_widths = list_of(whole(1, 65_536), 100, scalar=True)
_norm: Table = {"norm": ("batch", one_of("batch", "group"))}
_sd: Table = {"weight_sd": (None, real("(0, inf)"))}
_limit: Table = {"limit": (None, whole(1, 10**9))}
_METHOD: dict[str, Table] = {
    "fedprox": {"mu": (0.01, real("[0, inf)"))},
    "feddyn": {"alpha": (0.01, real("(0, inf)"))},
    "feddyn_ensemble": {"alpha": (0.01, real("(0, inf)"))},
    "shefl": {"mu": (0.0, real("[0, inf)")), "alpha": (0.0, real("[0, inf)"))},
    "fedag": {
        "sampling": ("bootstrap", one_of("bootstrap", "omc")),
        "samples": ("clients", either("clients", whole(1, 10**4))),
        "beta": ("target", one_of("target", "residual")),
    },
    "fedbe": {
        "sampler": ("gaussian", one_of("gaussian", "dirichlet")),
        "samples": (10, whole(1, 10**4)),
        "temperature": (0.5, real("(0, inf)")),
        "server_data": (0.1, real("(0, 1)")),
        "distil_epochs": (20, whole(0, 10**6)),
        "distil_lr": (0.01, real("(0, inf)")),
        "distil_batch": (32, whole(1, 10**6)),
    },
    "fedbe_nokd": {"sampler": ("gaussian", one_of("gaussian", "dirichlet")), "samples": (10, whole(1, 10**4))},
    "ditto": {"lambda": ([0.1], list_of(real("[0, inf)"), 20, scalar=True))},
    "lg_fedavg": {"shared_layers": (2, whole(0, 1000))},
    "stacking": {
        "bases": ([], _bases),
        "folds": ("client", one_of("client", "within")),
        "fold_number": (5, whole(2, 1000)),
        "meta": ("softmax", one_of("softmax", "mlp", "average")),
        "meta_rounds": (None, whole(0, 10**7)),  # default: rounds
        "meta_lr": (None, real("(0, inf)")),  # default: local.lr
        "meta_optimizer": (None, one_of("sgd", "adam")),  # default: local.optimizer
    },
    "bayesian_linear": {"precisions": ("unit", one_of("unit", "evidence"))},
}
_toy: Table = {"seed": (0, whole(0, 2**62)), "clients": (None, whole(1, 10**6)), "samples": (None, whole(1, 10**6))}
_DATA: dict[str, Table] = {
    **dict.fromkeys(("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn", "femnist"), _limit),
    "shakespeare": {
        "source": ("mit_plays", one_of("mit_plays", "tiny", "complete")),
        "stride": (1, whole(1, 10_000)),
        "train": (0.8, real("(0, 1)")),
        **_limit,
    },
    "printers": {"speed": ("nominal", one_of("nominal", "measured")), "test_speed": (30, whole(1, 1000))},
    "sine": _toy,
    "interval": _toy,
    "cubic": {**_toy, "standardise": (True, flag)},
    "synthetic": {
        "samples": (20, whole(1, 10**6)),
        "features": (64, whole(1, 65_536)),
        "classes": (10, whole(2, 65_536)),
        "separation": (0.5, real("[0, inf)")),
        "spread": (0.0, real("[0, 10]")),
        "per_client": (0, whole(0, 65_536)),
        "test": (2000, whole(1, 10**7)),
        "seed": (0, whole(0, 2**62)),
    },
    "table": {
        "path": (REQUIRED, text),
        "target": (REQUIRED, list_of(text, 1000, scalar=True)),
        "features": (None, list_of(text, 65_536)),
        "group": (None, text),
        "test": (None, text),
        "test_fraction": (0.2, real("(0, 1)")),
        "task": ("auto", one_of("auto", "classification", "regression")),
        **_limit,
    },
}
_MODEL: dict[str, Table] = {
    "linear": {"bias": (True, flag), **_sd},
    "rbf": {
        "features": (100, whole(1, 10**6)),
        "width": (0.08, real("(0, inf)")),
        "seed": (0, whole(0, 2**62)),
        "bias": (False, flag),
        **_sd,
    },
    "mlp": {"hidden": ([50], _widths), "activation": ("relu", one_of("relu", "tanh")), **_sd},
    "cnn": {
        "channels": ([10, 20], _widths),
        "hidden": ([50], _widths),
        "kernel": (None, whole(1, 100)),
        "padding": (None, whole(0, 100)),
    },
    "vgg11": {"norm": ("batch", one_of("batch", "group", "none"))},
    "resnet18": _norm,
    "resnet34": _norm,
    "densenet": {"blocks": ([6, 12, 24, 16], list_of(whole(1, 1000), 10)), "growth": (32, whole(1, 1000)), **_norm},
    "mobilenet_v2": {"width": (1.0, real("(0, 16]")), "dropout": (0.0, real("[0, 1)")), **_norm},
    "shufflenet_v2": _norm,
    "lstm": {
        "vocabulary": (None, whole(1, 10**6)),
        "embedding": (8, whole(1, 65_536)),
        "hidden": (256, whole(1, 65_536)),
        "layers": (2, whole(1, 100)),
    },
}
_wrong: Table = {"flipped": (None, real("[0, 1]")), "noisy": (None, real("[0, 1]"))}  # shares of mislabelled clients
_PARTITION: dict[str, Table] = {
    "iid": _wrong,
    "shards": {"shards": (2, whole(1, 10**6)), **_wrong},
    "classes": {"classes": (2, whole(1, 10**6)), **_wrong},
    "dirichlet": {"alpha": (0.5, real("(0, inf)")), "allow_empty": (False, flag), **_wrong},
    "natural": _wrong,
    "column": {"column": (REQUIRED, text), **_wrong},
}
OPTIONS: dict[names.Kind, dict[str, Table]] = {
    "method": _METHOD,
    "data": _DATA,
    "model": _MODEL,
    "partition": _PARTITION,
}


def fold_options(kind: names.Kind, path: str, section: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """A flat section as `{fields..., "options": {...}}`, its options checked and their defaults filled in.

    Args:
        kind: what the section names.
        path: dotted key of the section.
        section: has a `name`.
        fields: the section's keys beside its options.
    """
    name = section["name"]
    if not isinstance(name, str) or not names.is_known(kind, name):
        near = find_nearest(name, names.known_names(kind)) if isinstance(name, str) else None
        remedy = f"did you mean {near}?" if near else f"choose one of {', '.join(names.known_names(kind))}"
        raise BadInput(f"{path}.name = {quote_value(name)} is not a known {_WORD[kind]}: {remedy}")
    given = {key: value for key, value in section.items() if key not in ("name", *fields)}
    out = {key: value for key, value in section.items() if key == "name" or key in fields}
    if names.is_own(kind, name):
        return {**out, "options": given}
    table = OPTIONS[kind].get(name, {})
    for key in given:
        if key not in table:
            raise BadInput(explain_unknown_key(path, key, ("name", *fields, *table), (kind, name)))
    options = {key: _option(path, key, given, *entry) for key, entry in table.items()}
    return {**out, "options": {key: value for key, value in options.items() if value is not None}}


_WORD = {"method": "method", "data": "data set", "model": "model", "partition": "partition"}


def _option(path: str, key: str, given: Mapping[str, Any], default: Any, check: Check) -> Any:
    if given.get(key) is None:
        if default is REQUIRED:
            raise BadInput(f"{path}.{key} is missing: give it a value")
        return list(default) if isinstance(default, list) else default
    try:
        return check(given[key])
    except ValueError as wrong:
        raise BadInput(f"{path}.{key} = {quote_value(given[key])} {wrong}") from None


_ALIAS = {
    "learning_rate": "local.lr",
    "eta": "local.lr",
    "batch": "local.batch_size",
    "bs": "local.batch_size",
    "wd": "local.weight_decay",
    "e": "local.epochs",
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
    "replications": "replicates",
    "repetitions": "replicates",
    "seeds": "replicates",
    "gpus": "num_gpus",
    "cpus": "num_cpus",
    "count": "number",
    "temperature": "predict.gamma",
    "network": "model",
    "lr": "local.lr",
    "epochs": "local.epochs",
    "steps": "local.steps",
    "batch_size": "local.batch_size",
    "optimizer": "local.optimizer",
    "partition": "data.partition",
    "alpha": "data.partition.alpha",
    "gamma": "predict.gamma",
    "tiers": "clients.tiers",
    "per_round": "participation.per_round",
    "fraction": "participation.fraction",
    "hidden": "model.hidden",
    "channels": "model.channels",
    "backend": "runtime",
}


def explain_unknown_key(path: str, key: str, keys: tuple[str, ...], owner: tuple[names.Kind, str] | None = None) -> str:
    """The line for a key that a section does not have, with the nearest one it has."""
    word = key if key.isprintable() and 0 < len(key) <= 60 else quote_value(key)
    lead = f"{path}." if path else ""
    where = path or "a scenario"
    if owner is not None:
        where = f"{_WORD[owner[0]]} {owner[1]}"
        users = [name for name, table in OPTIONS[owner[0]].items() if key in table]
        if users:
            return f"{lead}{word} is not a key of {where}: it belongs to {', '.join(users)}"
    alias = _ALIAS.get(key.lower().replace("-", "_"))
    last = alias.split(".")[-1] if alias else None
    if last in keys:
        remedy = f"did you mean {lead}{last}?"
    elif alias:
        remedy = f"did you mean {alias}?"
    else:
        near = find_nearest(key, keys)
        remedy = f"did you mean {lead}{near}?" if near else f"it has {', '.join(keys)}"
    return f"{lead}{word} is not a key of {where}: {remedy}"
