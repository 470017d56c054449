"""A boosted ensemble as a network: its numbers are trees and their weights; it answers with shares of their votes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core.types import Layout, Net

# ---------------------------------------------------------------------------------------------------------------------
# Decision trees as plain numbers: three float32 for each node, which predict exactly what scikit-learn's tree does.
#
# A node is (kind, value, child):
#
# - an inner node has kind = feature + 1, value = threshold and child = its left child; the right one is the next
# node. A row goes left where its feature is at most the threshold. - a leaf has kind = -1 and value = its class. -
# zeros stand where there is no node; a tree whose root is zeros is *absent*.
#
# A tree of L leaves has 2 L - 1 nodes. scikit-learn compares float32 features with float64 thresholds. The threshold
# is rounded down to float32 here: no float32 lies between the two, so every row goes the same way.

NUMBERS = 3  # of a node
LEAF = -1.0


def tree_nodes(leaves: int) -> int:
    """Nodes of a tree of some leaves."""
    return 2 * leaves - 1


def write_tree(tree: Any, leaves: int) -> Tensor:
    """Returns a fitted tree as numbers.

    Args:
        tree: A fitted `sklearn.tree.DecisionTreeClassifier` of at most so many leaves, on float32 inputs.
        leaves: L; room for them is left.

    Returns:
        Its nodes, `[2 L - 1, 3]` float32. The class of a leaf is its most frequent one, the first of several.

    Example:
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> tree = DecisionTreeClassifier().fit([[0.0], [1.0], [2.0]], [3, 5, 5])
        >>> write_tree(tree, leaves=2).tolist()
        [[1.0, 0.5, 1.0], [-1.0, 3.0, 0.0], [-1.0, 5.0, 0.0]]
        >>> classify_rows(write_tree(tree, leaves=2)[None], torch.tensor([[0.4], [0.6]])).tolist()
        [[3], [5]]
    """
    inner, classes = tree.tree_, tree.classes_
    nodes = np.zeros((tree_nodes(leaves), NUMBERS), dtype=np.float32)
    old = [0]  # scikit-learn's number of each node; children get neighbouring numbers
    for new in range(inner.node_count):
        at = old[new]
        left, right = int(inner.children_left[at]), int(inner.children_right[at])
        if left < 0:
            nodes[new] = LEAF, classes[inner.value[at, 0].argmax()], 0.0
            continue
        threshold, near = float(inner.threshold[at]), np.float32(inner.threshold[at])
        below = near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf))  # or equal, as a float32
        nodes[new] = inner.feature[at] + 1, below, len(old)
        old += [left, right]
    return torch.from_numpy(nodes)


def has_root(trees: Tensor) -> Tensor:
    """Returns which entries of `[..., n, 3]` hold a tree, `[...]`."""
    return trees[..., 0, 0] != 0


def classify_rows(trees: Tensor, x: Tensor) -> Tensor:
    """Returns the classes that trees predict.

    Args:
        trees: M trees, `[M, n, 3]`.
        x: Inputs, `[B, f]`.

    Returns:
        Classes `[B, M]`, int64; -1 for an absent tree.
    """
    number, n = trees.shape[:2]
    kind, value, child = trees.reshape(-1, NUMBERS).unbind(-1)
    step, first = child.long().clamp(0, n - 1), torch.arange(number) * n
    at = first.expand(len(x), number)  # [B, M]
    for _ in range(n // 2):  # the depth of the deepest tree of so many nodes
        split = kind[at]
        is_inner = split > 0
        if not bool(is_inner.any()):
            break
        feature = (split - 1).long().clamp(0, x.shape[1] - 1)
        right = (x.gather(1, feature) > value[at]).long()
        at = torch.where(is_inner, first + (step[at] + right).clamp(max=n - 1), at)
    return torch.where(kind[at] == 0, -1, value[at].long())


def vote(classes: Tensor, number: int) -> Tensor:
    """Returns the choice of committees: the class with the most votes, the first in a tie; -1 without votes.

    Args:
        classes: Of each member, `[..., S]`, -1 where it is absent.
        number: C.

    Example:
        >>> vote(torch.tensor([[2, 0, 2], [1, 0, -1], [-1, -1, -1]]), 3).tolist()
        [2, 0, -1]
    """
    if classes.shape[-1] == 1:
        return classes[..., 0]
    votes = torch.stack([(classes == c).sum(-1) for c in range(number)], dim=-1)  # [..., C]
    return torch.where(votes.sum(-1) > 0, votes.argmax(-1), -1)


# ---------------------------------------------------------------------------------------------------------------------
# So the trees of a run are a row of the state like the weights of any model: checkpoints, hashes, exports, evaluation
# and `Run.predict` need not know what they are, and nothing is ever unpickled.

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
        trees: Learners of each round, `[T, S, n, 3]` (`fedray.models.boosting`).
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
    """Returns the network of a boosted ensemble; at first it is empty.

    Example:
        >>> net = boosted_net(Ensemble(rounds=2, seats=1, leaves=2, classes=3))
        >>> net.layout.names, net.layout.shapes, net.layout.trainable
        (('alpha', 'scale', 'trees'), ((2,), (2,), (2, 1, 3, 3)), 0)
    """
    module = BoostedTrees(size)
    named = dict(module.named_buffers())
    layout = Layout(tuple(named), tuple(tuple(value.shape) for value in named.values()), 0)
    return Net("trees", module, layout, "cross_entropy", size.classes, lambda _key: torch.zeros(layout.d))
