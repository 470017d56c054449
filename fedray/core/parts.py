"""What the parts of a stack exchange: they train side by side, and their servers may then learn from all uploads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedray.core.types import State, Stats

if TYPE_CHECKING:
    from torch import Tensor


class PartStep(NamedTuple):
    """What one part of a stack has gone through in a round.

    Attributes:
        before: Its state before the round.
        after: Its state behind its own server's step.
        stats: What its clients have sent; empty where none has trained.
    """

    before: State
    after: State
    stats: Stats


Join = Callable[[int, Sequence[PartStep]], "Sequence[Tensor]"]  # (round, each part's step) -> its models `[M, d]`
