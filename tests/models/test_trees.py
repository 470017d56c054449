"""Trees as numbers: they say exactly what scikit-learn's trees say."""

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier

from fedray.features.boosting import BoostedTrees, Ensemble, classify_rows, has_root, tree_nodes, vote, write_tree


def fit(seed: int, leaves: int, values: int = 0) -> tuple[DecisionTreeClassifier, np.ndarray]:
    """A tree on noise, whose classes are 1, 4 and 6; with `values` its features have few of them."""
    numbers = np.random.default_rng(seed)
    x = numbers.normal(size=(300, 4)) if not values else numbers.integers(values, size=(300, 4)) / 7
    y = numbers.choice([1, 4, 6], size=300)
    inputs = x.astype(np.float32)
    return DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=seed).fit(inputs, y), inputs


@pytest.mark.parametrize("leaves", [2, 10, 60])
@pytest.mark.parametrize("values", [0, 5])
def test_a_trees_numbers_say_what_scikit_learns_tree_says(leaves: int, values: int) -> None:
    """On its own rows, on others, and on both sides of every threshold, one float32 away."""
    for seed in range(5):
        tree, x = fit(seed, leaves, values)
        inner = tree.tree_
        splits = inner.feature >= 0
        near = [x, np.random.default_rng(99).normal(size=(500, 4)).astype(np.float32)]
        for feature, threshold in zip(inner.feature[splits], inner.threshold[splits], strict=True):
            at = np.float32(threshold)
            for value in (at, np.nextafter(at, np.float32(-9)), np.nextafter(at, np.float32(9))):
                row = x[:3].copy()
                row[:, feature] = value
                near.append(row)
        rows = np.concatenate(near)
        for room in (leaves, 2 * leaves):
            found = classify_rows(write_tree(tree, room)[None], torch.from_numpy(rows))[:, 0]
            np.testing.assert_array_equal(found.numpy(), tree.predict(rows))


def test_a_tree_of_one_leaf_and_an_absent_tree() -> None:
    leaf = DecisionTreeClassifier().fit(np.zeros((2, 1), np.float32), [3, 3])
    trees = torch.stack([write_tree(leaf, 4), torch.zeros(tree_nodes(4), 3)])
    assert has_root(trees).tolist() == [True, False]
    assert classify_rows(trees, torch.zeros(2, 1)).tolist() == [[3, -1], [3, -1]]
    damaged = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 7, 3), scale=50)).float()
    circle = torch.tensor([[[1.0, 0.0, 0.0]] * 7])
    assert classify_rows(torch.cat([damaged, circle]), torch.zeros(4, 2)).shape == (4, 10)  # some class, no error


def test_a_committee_has_one_vote_and_a_bag_has_as_many_as_learners() -> None:
    """Two learners say 0 and one says 1; in the second round one says 1 with three times the weight."""
    leaves = {c: write_tree(DecisionTreeClassifier().fit([[0.0]], [c]), 2) for c in (0, 1)}
    absent = torch.zeros_like(leaves[0])
    for committee, shares in ((True, [1 / 4, 3 / 4]), (False, [2 / 6, 4 / 6])):
        module = BoostedTrees(Ensemble(rounds=2, seats=3, leaves=2, classes=2, committee=committee))
        module.alpha[:] = torch.tensor([1.0, 3.0])
        module.trees[0] = torch.stack([leaves[0], leaves[0], leaves[1]])
        module.trees[1] = torch.stack([leaves[1], absent, absent])
        assert module(torch.zeros(1, 1)).exp()[0].tolist() == pytest.approx(shares)
    assert vote(torch.tensor([[1, 0]]), 2).tolist() == [0]  # the first of several


def test_an_empty_ensemble_knows_nothing() -> None:
    module = BoostedTrees(Ensemble(rounds=3, seats=1, leaves=2, classes=4))
    torch.testing.assert_close(module(torch.zeros(2, 5)).exp(), torch.full((2, 4), 0.25))
