"""Boosting as scenarios know it: the specifications of its methods, its learner, and what it does not combine with.

Example:
    >>> check_learner({"max_depth": 3})
    {'name': 'sklearn/decision_tree', 'max_leaf_nodes': 10, 'max_depth': 3}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedray.core.errors import BadInput
from fedray.core.spec import MethodSpec, Option
from fedray.core.validators import means, one_of

if TYPE_CHECKING:
    from fedray.scenario.schema import Scenario

TREE = "sklearn/decision_tree"
LEARNER: dict[str, Any] = {"name": TREE, "max_leaf_nodes": 10}  # as in the papers
UNREAD = {  # sections that act on gradients, networks or deltas -> why they do not act here
    "local.": "clients fit method.learner, and nothing descends",
    "model.": "clients fit method.learner, and no network",
    "compress.": "a learner is no delta: it travels whole",
    "server.": "learners are not averaged",
    "predict.average": "the learners vote",
    "predict.gamma": "the learners vote, with weights of their own",
    "lanes": "clients fit method.learner, and no network",
    "clients.tf32": "clients fit method.learner, and trees multiply no matrices",
    "vary": "an ensemble of learners begins empty, and has no first models",
}


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


def explain_unread(key: str) -> str:
    """Why a key cannot act where clients fit learners; empty where it can."""
    return next((why for start, why in UNREAD.items() if key.startswith(start)), "")


def check_boosting(scenario: Scenario) -> None:
    """Raises `BadInput` for the first key that has no meaning where clients fit learners."""
    from fedray.scenario.methods import method_spec_of

    name, selection = scenario.method.name, scenario.participation.selection
    if not method_spec_of(name).fits:
        return
    if not scenario.rounds:
        raise BadInput(f"rounds = 0, but {name} adds its learners in rounds: give at least 1")
    if selection.name != "uniform" or selection.object is not None:
        raise BadInput(
            f"participation.selection.name = {selection.name}, but {name} counts the bytes of clients that come back, "
            "and must know who took part before: leave it at uniform"
        )


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
