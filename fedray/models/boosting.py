"""A boosted ensemble as a network: its numbers are trees and their weights, and it answers with shares of their votes.

So the trees of a run are a row of the state like the weights of any model: checkpoints, hashes, exports, evaluation and
`Run.predict` need not know what they are, and nothing is ever unpickled.

Example:
    >>> net = boosted_net(Ensemble(rounds=2, seats=1, leaves=2, classes=3))
    >>> net.layout.names, net.layout.shapes, net.layout.trainable
    (('alpha', 'scale', 'trees'), ((2,), (2,), (2, 1, 3, 3)), 0)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedray.core.types import Layout, Net
from fedray.models.trees import NUMBERS, classify_rows, tree_nodes, vote

CHUNK = 256  # trees that classify together: [500 rows, 256 trees] int64 are 1 MB
NO_VOTE = torch.finfo(torch.float32).eps  # stands for a share of 0: smaller ones add nothing to 1


class Ensemble(NamedTuple):
    """What a boosted ensemble has room for.

    Attributes:
        rounds: T, rounds of boosting.
        seats: S, the most learners that a round adds.
        leaves: L, the most leaves of a tree.
        classes: C.
        committee: Whether the learners of a round have one vote together; otherwise each has its own.
    """

    rounds: int
    seats: int
    leaves: int
    classes: int
    committee: bool = False

    @property
    def tree_numbers(self) -> int:
        """Numbers of one tree."""
        return NUMBERS * tree_nodes(self.leaves)


class BoostedTrees(nn.Module):
    """The module of a boosted ensemble.

    Attributes:
        classes: C.
        committee: Whether the learners of a round have one vote together.
        alpha: Weight of each round's vote, `[T]`; 0 for a round that added nothing.
        scale: Logarithm of the sum of all weights of rows before round t's are normalized, `[T]`.
        trees: Learners of each round, `[T, S, n, 3]` (`fedray.models.trees`).
    """

    alpha: Tensor
    scale: Tensor
    trees: Tensor

    def __init__(self, size: Ensemble) -> None:
        nn.Module.__init__(self)
        self.classes, self.committee = size.classes, size.committee
        self.register_buffer("alpha", torch.zeros(size.rounds))
        self.register_buffer("scale", torch.zeros(size.rounds))
        self.register_buffer("trees", torch.zeros(size.rounds, size.seats, tree_nodes(size.leaves), NUMBERS))

    def forward(self, x: Tensor) -> Tensor:
        """Logarithms of the shares of the votes, `[B, C]`, for inputs `[B, *input]`; all alike before round 1."""
        inputs, votes = x.flatten(1), torch.zeros(len(x), self.classes, dtype=torch.float64)
        filled = torch.nonzero(self.alpha)[:, 0]
        for some in torch.split(filled, max(1, CHUNK // self.trees.shape[1])):
            trees, alpha = self.trees[some], self.alpha[some].double()
            chosen = classify_rows(trees.flatten(0, 1), inputs).view(len(x), *trees.shape[:2])  # [B, t, S]
            if self.committee:
                chosen = vote(chosen, self.classes)[..., None]
            for c in range(self.classes):
                votes[:, c] += ((chosen == c).sum(-1) * alpha).sum(-1)
        total = votes.sum(1, keepdim=True)
        shares = torch.where(total > 0, votes / total, 1 / self.classes)
        return shares.float().clamp(min=NO_VOTE).log()


def boosted_net(size: Ensemble) -> Net:
    """The network of a boosted ensemble; at first it is empty."""
    module = BoostedTrees(size)
    named = dict(module.named_buffers())
    layout = Layout(tuple(named), tuple(tuple(value.shape) for value in named.values()), 0)
    return Net("trees", module, layout, "cross_entropy", size.classes, lambda _key: torch.zeros(layout.d))
