"""The specification of stacking, and the sections of networks in its options and in those of FedDF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.spec import MethodSpec, Needs, Option
from fedray.core.text import quote_value
from fedray.core.validators import Check, means, one_of, real, whole


@means("list of sections", "like `model`, or a classifier")
def check_bases(value: Any) -> Any:
    """The base models of stacking, each a section like `model` that may also have `models` (its K) or be a classifier.

    Example:
        >>> check_bases([{"name": "linear"}, {"name": "mlp", "hidden": 8, "models": 2}])[1]
        {'name': 'mlp', 'models': 2, 'hidden': [8], 'activation': 'relu'}

    Raises:
        ValueError: the value is no list of sections.
        BadInput: a section is wrong; the line names its key.
    """
    from fedray.scenario.classifiers import read_classifier  # these read this module's method in their tables

    if not isinstance(value, list | tuple) or len(value) > 100 or not all(isinstance(base, Mapping) for base in value):
        raise ValueError("is not a list of models: write it as [{name: mlp}, {name: cnn}]")
    more = {"models": whole(1, 10**4)}
    return [
        read_classifier(f"method.bases[{i}]", base) or check_network(f"method.bases[{i}]", base, more)
        for i, base in enumerate(value)
    ]


def check_network(path: str, section: Mapping[str, Any], more: Mapping[str, Check]) -> dict[str, Any]:
    """A section like `model` in a list of networks, with keys of its own.

    Args:
        path: of the section, such as `method.bases[0]`.
        section: what a user writes.
        more: its further keys, and what their values may be.

    Raises:
        BadInput: a key is wrong; the line names it.
    """
    from fedray.scenario.options import fold_options

    plain = {"name": "mlp", **{key: value for key, value in section.items() if key not in more}}
    folded, own = fold_options("model", path, plain, tuple(more)), {}
    for key, check in more.items():
        if section.get(key) is not None:
            try:
                own[key] = check(section[key])
            except ValueError as wrong:
                raise BadInput(f"{path}.{key} = {quote_value(section[key])} {wrong}") from None
    return {"name": folded["name"], **own, **folded["options"]}


_META = Needs("method.meta", ("softmax", "mlp"))
_OPTIONS = {
    "bases": Option([], check_bases),
    "folds": Option("client", one_of("client", "within")),
    "fold_number": Option(5, whole(2, 1000), Needs("method.folds", ("within",))),
    "meta": Option("softmax", one_of("softmax", "mlp", "average")),
    "features": Option("out_of_fold", one_of("out_of_fold", "all", "side_by_side"), _META),
    "meta_data": Option("federated", one_of("federated", "pooled"), _META),
    "meta_rounds": Option(None, whole(0, 10**7), _META),  # None: rounds
    "meta_lr": Option(None, real("(0, inf)"), _META),  # None: local.lr
    "meta_optimizer": Option(None, one_of("sgd", "adam"), _META),  # None: local.optimizer
}
STACKING_SPECS = {
    "stacking": MethodSpec(
        "stacking: sub models that each leave one client (or fold) out, and a meta model (Yu et al. 2023)",
        options=_OPTIONS,
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.001, "batch_size": 128, "epochs": 1},
            "server": {"weighting": "examples"},
        },
        clients=5,
        robust=False,
        optimizer=False,
        in_rounds="trains its parts one after another, in rounds",
        parts=True,
    ),
}
