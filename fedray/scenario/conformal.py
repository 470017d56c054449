"""The keys of conformal prediction sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fedray.core.spec import Needs, key
from fedray.core.types import QuantileKind, ScoreKind
from fedray.core.validators import one_of, real, whole

_RAPS = Needs("predict.conformal.score", ("raps",))


@dataclass(frozen=True)
class ConformalKeys:
    """Sets of labels, or intervals, that hold the right answer with probability 1 - alpha.

    Attributes:
        alpha: share of the answers that may be outside of their sets.
        score: how badly a label fits an answer; `auto`: `lac` for classes, `regression` for real targets.
        quantile: how clients find the threshold: from all their scores (`exact`), or from one number each (`qq`,
            FedCP-QQ).
        penalty: of `raps`, added for each rank beyond `k_reg` (lambda of its paper).
        k_reg: of `raps`, how many ranks have no penalty.
    """

    alpha: float = key(0.1, real("(0, 1)"))
    score: Literal["auto"] | ScoreKind = key("auto", one_of("auto", *get_args(ScoreKind)))
    quantile: QuantileKind = key("exact", one_of(*get_args(QuantileKind)))
    penalty: float = key(0.01, real("[0, inf)"), _RAPS)
    k_reg: int = key(1, whole(0, 10**6), _RAPS)
