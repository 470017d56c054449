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
        check: what its value may be (`fedray.scenario.validators`).
        needs: under which other key it is read; None: always.
    """

    default: Any
    check: Check
    needs: Needs | None = None


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
