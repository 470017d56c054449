"""The names that scenarios may use: fedray's own, and those that a user adds with `allow_name`.

What a name stands for in code is decided in `fedray.assembly`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from fedray.core.errors import BadInput
from fedray.core.spec import MethodSpec, NameSpec
from fedray.methods import METHOD_SPECS
from fedray.scenario.data import DATA_SPECS, PARTITION_SPECS, DataSpec
from fedray.scenario.models import MODEL_SPECS
from fedray.scenario.selection import SCHEDULE_SPECS, SELECTION_SPECS

NameKind = Literal[
    "method", "data", "model", "partition", "selection", "schedule", "optimizer", "loss", "augmentation", "metric",
    "callback",
]  # fmt: skip


class Origin(NamedTuple):
    """Where a name of a user's own was registered.

    Attributes:
        module: the name of the module; `__main__` for a script or a notebook.
        file: what messages call its file: relative to the working directory, or its name alone.
    """

    module: str
    file: str


Spec = MethodSpec | DataSpec | NameSpec

SPECS: Mapping[NameKind, Mapping[str, Spec]] = {
    "method": METHOD_SPECS,
    "data": DATA_SPECS,
    "model": MODEL_SPECS,
    "partition": PARTITION_SPECS,
    "selection": SELECTION_SPECS,
    "schedule": SCHEDULE_SPECS,
    "optimizer": {
        "sgd": NameSpec("stochastic gradient descent, with `local.momentum`"),
        "adam": NameSpec("Adam (Kingma and Ba 2015), with its usual constants"),
    },
    "loss": {},
    "augmentation": {
        "crop": NameSpec("a picture moves by up to an eighth of its side (4 pixels of 32); what comes in is 0"),
        "flip": NameSpec("a picture is mirrored, left to right, with probability 1/2"),
    },
    "metric": {},
    "callback": {},
}
_OWN: dict[NameKind, dict[str, str]] = {kind: {} for kind in SPECS}
_DECLARED: dict[tuple[NameKind, str], dict[str, Any]] = {}  # options of own names, with their defaults
_ORIGINS: dict[tuple[NameKind, str], Origin] = {}  # of own names, where it is known
_UCI = re.compile(r"uci/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # one folder name: no way out of data.root
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99})?")


def known_names(kind: NameKind) -> dict[str, str]:
    """Every name of a kind with its description, in the order to list them."""
    return {**{name: spec.text for name, spec in SPECS[kind].items()}, **_OWN[kind]}


def is_known(kind: NameKind, name: str) -> bool:
    """Whether a scenario may use the name.

    Example:
        >>> is_known("data", "uci/energy"), is_known("data", "uci/../energy"), is_known("method", "fedavgg")
        (True, False, False)
    """
    if kind == "data" and name.startswith("uci/"):
        return name != "uci/NAME" and _UCI.fullmatch(name) is not None
    return name in SPECS[kind] or name in _OWN[kind]


def is_own(kind: NameKind, name: str) -> bool:
    """Whether the name was added by `allow_name`."""
    return name in _OWN[kind]


def declared_options(kind: NameKind, name: str) -> Mapping[str, Any] | None:
    """The options of an own name with their defaults; None where it declares none, so that any are taken.

    Example:
        >>> allow_name("method", "noisy", options={"sigma": 0.05})
        >>> declared_options("method", "noisy"), declared_options("method", "quiet")
        ({'sigma': 0.05}, None)
    """
    return _DECLARED.get((kind, name))


def list_unset(kind: NameKind, name: str) -> dict[str, None]:
    """The options of an own name whose default is None: a scenario without them has nothing in their place."""
    return {key: None for key, default in (_DECLARED.get((kind, name)) or {}).items() if default is None}


def list_own_rules(local: Mapping[str, Any]) -> list[tuple[NameKind, str]]:
    """Kinds and names of the user's loss, optimizer and augmentations in a section `local`, whose options stand there.

    Example:
        >>> allow_name("augmentation", "blur", options={"radius": 2})
        >>> list_own_rules({"augment": ["crop", "blur"], "optimizer": "sgd"})
        [('augmentation', 'blur')]
    """
    augment = local.get("augment")
    each: list[tuple[NameKind, Any]] = [("loss", local.get("loss")), ("optimizer", local.get("optimizer"))]
    each += [("augmentation", one) for one in (augment if isinstance(augment, list | tuple) else [augment])]
    return [(kind, name) for kind, name in each if isinstance(name, str) and is_own(kind, name)]


def list_origins() -> dict[tuple[NameKind, str], Origin]:
    """Where each name of a user's own was registered."""
    return dict(_ORIGINS)


def allow_name(
    kind: NameKind,
    name: str,
    text: str = "your own",
    options: Mapping[str, Any] | None = None,
    origin: Origin | None = None,
) -> None:
    """Lets scenarios use a name of yours.

    Args:
        kind: one of `NameKind`.
        name: letters, digits, `.`, `_`, `-`, and one `/` at most; not a name that fedray has.
        text: one line for `fedray list`.
        options: its options with their defaults; None: any plain values are taken.
        origin: where it was registered, if that is known.

    Raises:
        BadInput: the kind, the name or the options cannot be used.
    """
    if kind not in SPECS:
        raise BadInput(f"kind = {kind!r} is not one of {', '.join(SPECS)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("uci/"):
        raise BadInput(f"{kind}.name = {name!r} cannot be a name: use letters, digits, '.', '_' and '-'")
    if name in SPECS[kind]:
        raise BadInput(f"{kind}.name = {name!r} is fedray's own: choose another name")
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise BadInput(
            f"{kind}.name = {name!r}: options = {options!r}: give a dict of names and default values, or None"
        )
    _OWN[kind][name] = text
    _DECLARED.pop((kind, name), None)
    if origin is not None:
        _ORIGINS[kind, name] = origin
    if options is not None:
        _DECLARED[kind, name] = dict(options)
