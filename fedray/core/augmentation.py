"""Random changes of the inputs that clients train on, drawn anew in every step; models answer on rows as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

AugmentationForm = Literal["rows", "row", "batch"]


class Augmentation(NamedTuple):
    """A random change of rows.

    Attributes:
        function: What changes them. Inputs are as the data set has them, before they are standardized, and keep their
            shape; targets are classes, or in their own units.
        form: What the function takes: `rows`, (inputs `[n, ...]` of several clients and steps, uniform numbers
            `[n, numbers]`) -> inputs; `row`, one input -> the input; `batch`, (inputs `[B, ...]`, targets `[B]` or
            `[B, q]`) of one client and step -> inputs, or inputs and targets.
        name: What messages call it.
        numbers: How many uniform numbers a row of the form `rows` gets.
    """

    function: Callable[..., Any]
    form: AugmentationForm
    name: str
    numbers: int = 0
