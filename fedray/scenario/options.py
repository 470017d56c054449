"""Checks the options beside the `name` of a section (`{name: mlp, hidden: 8}`), and collects them in `options`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedray.core import options as opt
from fedray.core.errors import BadInput, find_nearest, quote_value, suggest_nearest
from fedray.methods import METHOD_SPECS
from fedray.scenario import names
from fedray.scenario.sections import CLIENT_KINDS

# ---------------------------------------------------------------------------------------------------------------------
# Classifiers of scikit-learn, with scikit-learn's names of options. Stacking uses them as bases, boosting as learners.

_VOTE = "for each client; all of them vote"
_TREE: Mapping[str, opt.Check] = {
    "max_depth": opt.whole(1, 1000),
    "max_leaf_nodes": opt.whole(2, 1000),
    "min_samples_leaf": opt.whole(1, 10**6),
}
CLASSIFIERS: Mapping[
    str, tuple[str, Mapping[str, opt.Check]]
] = {  # name -> text, options (absent: scikit-learn's default)
    "sklearn/decision_tree": (f"a decision tree {_VOTE}", _TREE),
    "sklearn/gaussian_nb": (f"a Gaussian naive Bayes classifier {_VOTE}", {"var_smoothing": opt.real("(0, 1]")}),
    "sklearn/logistic_regression": (
        f"a logistic regression {_VOTE}",
        {"C": opt.real("(0, inf)"), "max_iter": opt.whole(1, 10**6)},
    ),
    "sklearn/random_forest": (f"a random forest {_VOTE}", {"n_estimators": opt.whole(1, 10_000), **_TREE}),
}


def read_classifier(path: str, base: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the checked section of a base model that is a classifier, or None for a network.

    A name that is nearly the name of a classifier raises `BadInput`.

    Example:
        >>> read_classifier("method.bases[1]", {"name": "sklearn/random_forest", "n_estimators": 10})
        {'name': 'sklearn/random_forest', 'n_estimators': 10}
        >>> read_classifier("method.bases[0]", {"name": "mlp"})
    """
    name = base.get("name")
    if not isinstance(name, str) or names.is_known("model", name):
        return None
    near = find_nearest(name, (*names.known_names("model"), *CLASSIFIERS))
    if not name.startswith("sklearn/") and near not in CLASSIFIERS:
        return None
    if name not in CLASSIFIERS:
        remedy = f"did you mean {near}?" if near else f"choose one of {', '.join(CLASSIFIERS)}"
        raise BadInput(f"{path}.name = {quote_value(name)} is not a known classifier: {remedy}")
    given = {key: value for key, value in base.items() if key != "name" and value is not None}
    table = CLASSIFIERS[name][1]
    for key in given.keys() - table.keys():
        raise BadInput(names.explain_unknown_key(path, key, tuple(table), what=f"classifier {name}"))
    return {"name": name, **{key: opt.check_value(f"{path}.{key}", one, table[key]) for key, one in given.items()}}


# ---------------------------------------------------------------------------------------------------------------------
# The options beside the name in a section are checked and collected in `options`.


def fold_options(kind: str, path: str, section: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Collects the options of a section under its key `options`. Checks them, and adds defaults.

    `fields` has the keys of the section that are no options.

    Example:
        >>> fold_options("model", "model", {"name": "mlp", "hidden": 8}, ())
        {'name': 'mlp', 'options': {'hidden': [8], 'activation': 'relu'}}
    """
    name = section["name"]
    is_object = names.KINDS[kind].alone and section.get("object") is not None
    if not is_object and (not isinstance(name, str) or not names.is_known(kind, name)):
        raise BadInput(_explain_unknown_name(kind, path, name))
    given = {key: value for key, value in section.items() if key not in ("name", *fields)}
    out = {key: value for key, value in section.items() if key == "name" or key in fields}
    if is_object or (names.is_own(kind, name) and names.declared_options(kind, name) is None):
        return {**out, "options": given}
    table, takes_more = list_options(kind, name)
    known = ("name", *(field for field in fields if field not in ("name", "object")), *table)
    for key in given:
        if not takes_more and key not in known:
            raise BadInput(names.explain_unknown_key(path, key, known, (kind, name)))
    options = {key: _read_option(path, key, given, option) for key, option in table.items()}
    options |= {key: value for key, value in given.items() if key not in table}
    return {**out, "options": {key: value for key, value in options.items() if value is not None}}


def _explain_unknown_name(kind: str, path: str, name: Any) -> str:
    """Returns the line of the error for an unknown name. The line suggests the name that the user probably means."""
    if kind == "method" and isinstance(name, str) and name.lower().replace("_", "") in _SERVER_OPTIMIZERS:
        remedy = _SERVER_OPTIMIZERS[name.lower().replace("_", "")]
        return f"method.name = {name} is FedAvg with an optimizer at the server: {remedy}"
    known = names.known_names(kind)
    otherwise = f"choose one of {', '.join(known)}, or --import the module that registers it"
    remedy = suggest_nearest(name, known, otherwise)
    remedy += "" if remedy == otherwise else " (or --import the module that registers it)"
    return f"{path}.name = {quote_value(name)} is not a known {names.KINDS[kind].text}: {remedy}"


def list_options(kind: str, name: str) -> tuple[Mapping[str, opt.Option], bool]:
    """Returns the options that a name has, and whether a scenario may set further options."""
    spec = names.KINDS[kind].specs.get(name)
    if spec is not None:
        return spec.options, isinstance(spec, opt.NameSpec) and spec.more
    declared = names.declared_options(kind, name) or {}
    own = {key: opt.Option(default, _alike(default)) for key, default in declared.items()}
    if kind == "method" and declared:
        own |= names.method_spec_of(name).options
    return {**own, **(CLIENT_KINDS if kind == "partition" else {})}, False


def fold_local_options(section: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Moves the options of the user's loss, optimizer and augmentations in the section `local` to `options`.

    If the user's objects have no options, unknown keys stay in the section, and a later check refuses them.

    Example:
        >>> names.allow_name("loss", "smooth", options={"smoothing": 0.1})
        >>> fold_local_options({"lr": 0.1, "loss": "smooth", "smoothing": 0.2}, ("lr", "loss", "optimizer"))
        {'lr': 0.1, 'loss': 'smooth', 'options': {'smoothing': 0.2}}

    Raises:
        BadInput: An option is unknown or wrong, or two of the user's objects have an option of the same name.
    """
    declared: dict[str, Any] = {}
    for kind, name in dict.fromkeys(names.list_own_rules(section)):
        options = names.declared_options(kind, name) or {}
        for key in sorted(options.keys() & declared.keys()):
            raise BadInput(f"local.{key} is an option of {kind} {name} and of another: give it another name in one")
        declared |= options
    table = {key: opt.Option(default, _alike(default)) for key, default in declared.items() if key not in fields}
    options = {key: _read_option("local", key, section, option) for key, option in table.items()}
    rest = {key: value for key, value in section.items() if key not in table}
    for key in rest if table else ():
        if key not in (*fields, "options"):
            raise BadInput(names.explain_unknown_key("local", key, (*fields, *table)))
    kept = {key: value for key, value in options.items() if value is not None}
    return {**rest, "options": kept} if kept else rest


_SERVER_OPTIMIZERS = {
    "fedadam": "write method.name=fedavg server.optimizer=adam",
    "fedyogi": "write method.name=fedavg server.optimizer=yogi",
    "fedadagrad": "write method.name=fedavg, and of the adaptive ones server.optimizer=adam or yogi",
    "fedavgm": "write method.name=fedavg server.optimizer=momentum",
    "fedopt": "write method.name=fedavg server.optimizer=adam, yogi or momentum",
}


def _read_option(path: str, key: str, given: Mapping[str, Any], option: opt.Option) -> Any:
    default = option.default
    if given.get(key) is None:
        if default is opt.REQUIRED:
            raise BadInput(f"{path}.{key} is missing: give it a value")
        return list(default) if isinstance(default, list) else default
    check = (lambda value: option.check(value, SECTIONS)) if option.sections else option.check
    return opt.check_value(f"{path}.{key}", given[key], check)


def _alike(default: Any) -> opt.Check:
    """Returns a check that the value of a user's own option has the type of the default.

    If the default is None or a list, any value is accepted.
    """

    @opt.means("number")
    def number(value: Any) -> Any:
        found = float(opt.real("(-inf, inf)")(value))
        return value if isinstance(value, int) else found

    if isinstance(default, bool):
        return opt.flag
    return number if isinstance(default, int | float) else opt.text if isinstance(default, str) else lambda value: value


def _read_network(path: str, section: Mapping[str, Any], more: Mapping[str, opt.Check]) -> dict[str, Any]:
    """Checks and returns one entry of a list of networks.

    An entry has the same keys as the section `model`, and further keys. `path` is the dotted key of the entry, such as
    `method.bases[0]`.

    Raises:
        BadInput: A key is wrong.
    """
    plain = {"name": "mlp", **{key: value for key, value in section.items() if key not in more}}
    folded = fold_options("model", path, plain, tuple(more))
    given = [key for key in more if section.get(key) is not None]
    own = {key: opt.check_value(f"{path}.{key}", section[key], more[key]) for key in given}
    return {"name": folded["name"], **own, **folded["options"]}


SECTIONS = opt.ReadSections(_read_network, read_classifier, CLASSIFIERS)


def describe_method(
    name: str, models: int | None = None, options: Mapping[str, Any] | None = None, spec: opt.MethodSpec | None = None
) -> None:
    """Stores the specification of a user's registered method.

    Args:
        name: The name of the method.
        models: The number of models that the method trains by default. None means the general default.
        options: The options of the method with their defaults. An option `networks` must be a list of networks as in
            FedDF.
        spec: The whole specification. None means that the specification is made from `models` and `options`.

    Raises:
        BadInput: A network is wrong.

    Example:
        >>> describe_method("single", models=1)
        >>> names.OWN_SPECS["single"].defaults
        {'method': {'models': 1}}
        >>> describe_method("single")
    """
    names.OWN_SPECS.pop(name, None)
    if spec is not None:
        names.OWN_SPECS[name] = spec
        return
    one = METHOD_SPECS["feddf"].options["networks"]
    defaults = {} if models is None else {"method": {"models": models}}
    given = {"networks": options["networks"]} if options and "networks" in options else {}
    networks = {key: one._replace(default=_read_option("method", key, given, one)) for key in given}
    if defaults or networks:
        names.OWN_SPECS[name] = replace(names.UNKNOWN, defaults=defaults, options=networks)
