"""Classifiers of scikit-learn, with its option names: bases of stacking that are no networks, and learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.core.errors import BadInput, find_nearest, quote_value, suggest_nearest
from fedray.core.options import Check, real, whole
from fedray.scenario import names

_VOTE = "for each client; all of them vote"
_TREE: Mapping[str, Check] = {
    "max_depth": whole(1, 1000),
    "max_leaf_nodes": whole(2, 1000),
    "min_samples_leaf": whole(1, 10**6),
}
CLASSIFIERS: Mapping[str, tuple[str, Mapping[str, Check]]] = {  # name -> text, options (absent: scikit-learn's default)
    "sklearn/decision_tree": (f"a decision tree {_VOTE}", _TREE),
    "sklearn/gaussian_nb": (f"a Gaussian naive Bayes classifier {_VOTE}", {"var_smoothing": real("(0, 1]")}),
    "sklearn/logistic_regression": (
        f"a logistic regression {_VOTE}",
        {"C": real("(0, inf)"), "max_iter": whole(1, 10**6)},
    ),
    "sklearn/random_forest": (f"a random forest {_VOTE}", {"n_estimators": whole(1, 10_000), **_TREE}),
}


def read_classifier(path: str, base: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the checked section of a base that names a classifier, or nearly so; None for any other base.

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
    return {"name": name, **{key: _option(path, name, key, value) for key, value in given.items()}}


def _option(path: str, name: str, key: str, value: Any) -> Any:
    table = CLASSIFIERS[name][1]
    if key not in table:
        remedy = suggest_nearest(str(key), table, f"choose one of {', '.join(table)}", prefix=f"{path}.")
        word = quote_value(key).strip("'")
        raise BadInput(f"{path}.{word} is not a key of classifier {name}: {remedy}")
    try:
        return table[key](value)
    except ValueError as wrong:
        raise BadInput(f"{path}.{key} = {quote_value(value)} {wrong}") from None
