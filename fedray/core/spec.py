"""What a name in a scenario stands for: a line of text, the options that stand beside the name, and more of a method.

Example:
    >>> from fedray.core.validators import real
    >>> NameSpec("a partition", {"alpha": Option(0.5, real("(0, inf)"))}).options["alpha"].check("0.1")
    Traceback (most recent call last):
    ...
    ValueError: is not a number: give one in (0, inf)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from fedray.core.validators import Check

REQUIRED: Any = ...  # the default of an option that must be given


class Needs(NamedTuple):
    """What a key needs to be read by anything.

    Attributes:
        key: another key, dotted.
        values: of that key, with which this one is read.
    """

    key: str
    values: tuple[Any, ...]


class Option(NamedTuple):
    """One option of a method, data set, model or partition.

    Attributes:
        default: its value where a scenario does not set it; None: the option is then absent; `REQUIRED`: it must be
            set.
        check: what its value may be (`fedray.core.validators`); of `sections` it takes a `ReadSections` beside it.
        text: what it means, of a method's option.
        needs: under which other key it is read; None: always.
        sections: whether its value is made of sections like `model`.
    """

    default: Any
    check: Callable[..., Any]
    text: str = ""
    needs: Needs | None = None
    sections: bool = False


class ReadSections(NamedTuple):
    """How sections in an option are read: the names of networks and classifiers belong to scenarios.

    Attributes:
        network: (dotted key, section like `model`, checks of its further keys) -> the section with its defaults.
        classifier: (dotted key, section) -> the section of a classifier of scikit-learn; None where it names none.
        classifiers: names of the classifiers.
    """

    network: Callable[[str, Mapping[str, Any], Mapping[str, Check]], dict[str, Any]]
    classifier: Callable[[str, Mapping[str, Any]], dict[str, Any] | None]
    classifiers: Collection[str]


class Section(NamedTuple):
    """A section of a scenario.

    Attributes:
        kind: the dataclass of its keys.
        many: a list of such sections, or a dict of them by name; None: it is one.
        example: the keys to write where somebody gave one value; what a number alone is meant for comes last.
    """

    kind: Any
    many: type | None = None
    example: Mapping[str, Any] = {}


def key(default: Any, check: Check, needs: Needs | None = None) -> Any:
    """Returns a field of a dataclass that is a key of a scenario; the arguments are fields of `Option`."""
    option = {"key": Option(default, check, needs=needs)}
    if default is REQUIRED:
        return field(metadata=option)
    if isinstance(default, list | dict):
        return field(default_factory=partial(copy, default), metadata=option)
    return field(default=default, metadata=option)


def section(kind: Any, default: Any = ..., *, example: Mapping[str, Any] = {}) -> Any:
    """Returns a field of a dataclass that is a section of a scenario.

    Args:
        kind: the dataclass of its keys.
        default: None: it may be absent; a list or dict: there may be several, listed or by name; else all its keys
            have their defaults.
        example: as in `Section`.
    """
    many = type(default) if isinstance(default, list | dict) else None
    made = {"section": Section(kind, many, example)}
    if default is None:
        return field(default=None, metadata=made)
    return field(default_factory=many or kind, metadata=made)


OptionSpecs = Mapping[str, Option]


@dataclass(frozen=True)
class NameSpec:
    """A model or a partition, as scenarios know it.

    Attributes:
        text: one line for `fedray list`.
        options: its own keys, which stand beside its name.
        more: whether further keys are handed on as they are, to what the name stands for.
    """

    text: str
    options: OptionSpecs = field(default_factory=dict)
    more: bool = False


@dataclass(frozen=True)
class MethodSpec:
    """What fedray knows of a method by its name; it stands in the method's file, `fedray/methods/`.

    Attributes:
        text: one line for `fedray list methods` and the table of all methods.
        family: the group of the table of methods in which it stands.
        models: how many models K it trains: `any` number, `one` by definition, or one for each of the `clients`.
        options: its own keys in the section `method`.
        defaults: what its paper sets, as a tree of scenario keys; a scenario's own keys win.
        clients: N where neither the scenario nor the data says it.
        robust: whether `server.robust` may take the place of its mean.
        optimizer: whether `server.optimizer` may act on its mean delta.
        pooled: whether one client holds all rows (references without a federation).
        walks: whether models walk over a graph of clients instead of meeting at a server.
        trains: whether clients train in rounds, so that `local`, `compress` and `server` act.
        averages: whether uploads of several clients meet in one mean, so that `server.weighting` acts.
        coefficients: whether `server.coefficients` may weigh the tiers in that mean.
        schedules: whether `schedule.kind` says who trains which model.
        downloads: whether clients download anything, so that `downlink` of `clients.tiers` acts.
        samples: whether an answer is an average even if there is one model.
        splits: whether layers of its network may stay with the clients (`local.private`).
        own_models: whether a known client answers with models of its own, so that `predict.gamma` weighs nothing.
        all_models: whether every participant trains all K models, whatever its tier says.
        in_rounds: why it cannot train without rounds, to be read behind its name; empty: it can, for all that is known.
        private: which state its clients keep for themselves between rounds, in words; empty: none.
        parts: whether its model is made of parts that train one after another.
        asks: whether its clients ask the models what they answer, and train by it.
        fits: of methods whose clients fit learners and do not descend: what a round adds to the ensemble, `one`
            learner, all as one `committee`, or `each` with a vote; empty: clients train a network.
        network: what it trains in place of the scenario's network, a function (network, options, shape of an input,
            name of the network) -> module; None: the network itself.
        slices: which part of the network a tier trains, so that `width` of `clients.tiers` acts, a function (network,
            widths of the tiers, a row of inputs, options, name of the method) -> a `TierNet` for each; None: all of it.
        mean_field: what a model has beside a Gaussian over the network's weights, whose first rho is an option: its
            `prior`, or a client's `site`; empty: it is a network.
        sparse: whether uploads may be sparse (`compress.kind` topk or randomk).
        sampled: whether a model is several samples of a client's posterior, whose number is an option.
        step: the option that is a step beside `local.lr`, with which training can diverge; empty: none.
    """

    text: str
    family: str = ""
    models: Literal["any", "one", "clients"] = "any"
    options: OptionSpecs = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 100
    robust: bool = True
    optimizer: bool = True
    pooled: bool = False
    walks: bool = False
    trains: bool = True
    averages: bool = True
    coefficients: bool = True
    schedules: bool = True
    downloads: bool = True
    samples: bool = False
    splits: bool = False
    own_models: bool = False
    all_models: bool = False
    in_rounds: str = ""
    private: str = ""
    parts: bool = False
    asks: bool = False
    fits: Literal["", "one", "committee", "each"] = ""
    network: Callable[..., Any] | None = None
    slices: Callable[..., Any] | None = None
    mean_field: Literal["", "prior", "site"] = ""
    sparse: bool = True
    sampled: bool = False
    step: str = ""
