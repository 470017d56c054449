"""Boosting as scenarios know it: the specifications of its methods, and its learner.

Example:
    >>> check_learner({"max_depth": 3})
    {'name': 'sklearn/decision_tree', 'max_leaf_nodes': 10, 'max_depth': 3}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedray.core.errors import BadInput
from fedray.scenario.spec import MethodSpec, Option
from fedray.scenario.validators import means, one_of

if TYPE_CHECKING:
    pass

TREE = "sklearn/decision_tree"
LEARNER: dict[str, Any] = {"name": TREE, "max_leaf_nodes": 10}  # as in the papers


@means("word or section", "`sklearn/decision_tree`, with its options")
def check_learner(value: Any) -> dict[str, Any]:
    """The learner, by name or as a section; only what has a form in plain numbers that predicts the same.

    Raises:
        ValueError: the value is neither.
        BadInput: the learner has no such form, or an option is wrong; the line names its key.
    """
    from fedray.scenario.classifiers import CLASSIFIERS, read_classifier  # it reads this module's methods in its tables

    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise ValueError(f"is no learner: write it as {{name: {TREE}, max_leaf_nodes: 10}}")
    section = {**LEARNER, **given}
    name = section["name"]
    if name in CLASSIFIERS and name != TREE:
        raise BadInput(
            f"method.learner.name = {name}: only a tree has a form in plain numbers that predicts exactly what "
            f"scikit-learn's does, and nothing is sent or saved as a pickle: choose {TREE}"
        )
    read = read_classifier("method.learner", section)
    if read is None:
        raise BadInput(f"method.learner.name = {name} is a network, but clients fit learners: choose {TREE}")
    if "max_leaf_nodes" not in read:
        raise BadInput("method.learner.max_leaf_nodes is missing: give 2 to 1000, so that a learner has a size")
    return read


_COMMON: dict[str, Any] = {  # of every method whose clients fit learners
    "module": "boosting",
    "models": "one",
    "defaults": {"method": {"models": 1}, "rounds": 300},
    "clients": 10,
    "robust": False,
    "optimizer": False,
    "averages": False,
    "coefficients": False,
    "schedules": False,
    "in_rounds": "asks all clients of a round about each other's learners",
}
_LEARNER = Option(LEARNER, check_learner)
_BOOST: dict[str, Any] = {
    **_COMMON,
    "options": {"learner": _LEARNER, "draw": Option("rows", one_of("rows", "weights"))},
}
BOOSTING_SPECS: dict[str, MethodSpec] = {
    "adaboost_f": MethodSpec(
        "AdaBoost.F: each round's best weak learner joins the ensemble; no gradients (Polato et al. 2022)",
        fits="one",
        **_BOOST,
    ),
    "distboost_f": MethodSpec(
        "DistBoost.F: each round's weak learners join the ensemble as one committee (Polato et al. 2022)",
        fits="committee",
        **_BOOST,
    ),
    "preweak_f": MethodSpec(
        "PreWeak.F: clients boost by themselves, then each round takes the best learner (Polato et al. 2022)",
        fits="one",
        **_BOOST,
    ),
    "federated_bagging": MethodSpec(
        "federated bagging: every round's weak learners vote, without weights",
        fits="each",
        downloads=False,
        options={"learner": _LEARNER},
        **{**_COMMON, "in_rounds": "adds the learners of a whole round at once"},
    ),
}
