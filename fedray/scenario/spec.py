"""What a name in a scenario stands for: a line of text, and the options that stand beside the name.

Example:
    >>> from fedray.scenario.validators import real
    >>> NameSpec("a partition", {"alpha": Option(0.5, real("(0, inf)"))}).options["alpha"].check("0.1")
    Traceback (most recent call last):
    ...
    ValueError: is not a number: give one in (0, inf)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedray.scenario.validators import Check

REQUIRED: Any = ...  # the default of an option that must be given


class Option(NamedTuple):
    """One option of a method, data set, model or partition.

    Attributes:
        default: its value where a scenario does not set it; None: the option is then absent; `REQUIRED`: it must be
            set.
        check: what its value may be (`fedray.scenario.validators`).
    """

    default: Any
    check: Check


OptionSpecs = Mapping[str, Option]


@dataclass(frozen=True)
class NameSpec:
    """A model or a partition, as scenarios know it.

    Attributes:
        text: one line for `fedray list`.
        options: its own keys, which stand beside its name.
    """

    text: str
    options: OptionSpecs = field(default_factory=dict)
