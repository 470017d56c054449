"""Stacks: an ensemble of base networks of several architectures, and a meta model that reads their probabilities.

`Stack` describes one, and `stacked_net` makes it a network of its own, which runs like any other. The scenario of a
stack becomes a `Stack` in `fedray.assembly.stacking`; its training is in `fedray.simulation.stacking`.

Example:
    >>> net = voting_net("sklearn/decision_tree", classes=10)
    >>> net.outputs, net.layout.d
    (10, 0)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedray.core.errors import FedrayError
from fedray.core.types import Layout, Members, Net
from fedray.models.aggregators import combine_outputs, side_by_side
from fedray.models.net import layout_of

SIDE_BY_SIDE = "side_by_side"  # features that are the answers of all sub models, none averaged


class Voter(NamedTuple):
    """A scikit-learn classifier that every client fits on its own rows.

    Attributes:
        name: As in the scenario, such as `sklearn/decision_tree`.
        options: Of the classifier, by scikit-learn's names.
    """

    name: str
    options: Mapping[str, Any]


class Base(NamedTuple):
    """One architecture of a stack.

    Attributes:
        net: Its network.
        models: How many models of it an ensemble has.
        voter: A classifier instead of a trained network; `net` is then a `voting_net`. None for a network.
        members: The clients that have this architecture; None: all of them.
        answers: Whether it has a part in the mean that answers where there is no meta model.
    """

    net: Net
    models: int = 1
    voter: Voter | None = None
    members: Members | None = None
    answers: bool = True


class Stack(NamedTuple):
    """Several bases, each trained once for each fold without that fold's data, and the meta model on top.

    Attributes:
        bases: The architectures, n of them.
        meta: Network that reads the n * C probabilities of the bases; None averages them.
        folds: Number of folds, F; 1: nothing is left out.
        within: Whether fold f is a part of every client's rows; otherwise it is all data of client f.
        rounds: Rounds of the training of the bases.
        meta_rounds: Rounds of the training of the meta model.
        meta_lr: Learning rate of the meta model.
        meta_optimizer: Optimizer of the meta model.
        combine: None for stacking. Else the one base has a model for each client, which is that client's own; the meta
            model reads the logits of all of them, and without one they are joined in this way
            (`fedray.models.aggregators`).
        proxy: Share of each client's rows that the meta model is trained on, where each client has a model of its own.
            0: they train on all of them.
        features: What the meta model learns from: answers of sub models that have not seen the row (out_of_fold), the
            mean over all sub models of a base, as for a new row (all), or all sub models' answers side by side.
        pooled: Whether the clients upload these answers and their labels, and the server trains the meta model on them.
        at_server: Whether the server trains the meta model, on rows of its own.
        answers_at_once: Whether the meta model answers as it is drawn, before it was trained.
        name: What messages call the network.
    """

    bases: tuple[Base, ...]
    meta: Net | None
    folds: int
    within: bool
    rounds: int
    meta_rounds: int
    meta_lr: float
    meta_optimizer: str
    combine: str | None = None
    proxy: float = 0.0
    features: str = "out_of_fold"
    pooled: bool = False
    at_server: bool = False
    answers_at_once: bool = False
    name: str = "stacking"

    def count_features(self, classes: int) -> int:
        """Numbers that the meta model reads of each row."""
        if self.combine is not None:
            return classes * sum(base.models for base in self.bases)
        if self.features == SIDE_BY_SIDE:
            return classes * sum(self.models_of(i) for i in range(len(self.bases)))
        return classes * len(self.bases)

    def models_of(self, base: int) -> int:
        """Number of trained models of a base, over all folds."""
        return self.folds * self.bases[base].models


class StackModule(nn.Module):
    """The module of a stack: the meta model reads the mean probabilities of each base, side by side.

    Until the meta model has been trained, and without one, the bases that answer are averaged.

    Attributes:
        trained: Rounds in which the meta model was trained; a counter.
        bases: The models of each base.
        meta: The meta model, or None.
    """

    trained: Tensor

    def __init__(
        self,
        bases: list[list[nn.Module]],
        meta: nn.Module | None,
        combine: str | None = None,
        features: str = "out_of_fold",
        answers: Sequence[bool] = (),
    ) -> None:
        nn.Module.__init__(self)
        self.combine, self.features = combine, features
        self.answers = tuple(answers) or (True,) * len(bases)
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))
        self.bases = nn.ModuleList(nn.ModuleList(models) for models in bases)
        self.meta = meta

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, C]` of inputs `[B, *input]`."""
        if self.combine is not None:
            return self._join_clients(x, self.combine)
        answers = [[model(x).softmax(-1) for model in models] for models in self._models()]  # [B, C] each
        each = [torch.stack(one).mean(0) for one in answers]
        if self.meta is None or not bool(self.trained):
            return torch.stack([one for one, answers in zip(each, self.answers, strict=True) if answers]).mean(0).log()
        read = [model for one in answers for model in one] if self.features == SIDE_BY_SIDE else each
        logits: Tensor = self.meta(torch.cat(read, dim=-1))
        return logits

    def _join_clients(self, x: Tensor, combine: str) -> Tensor:
        """Returns the answer of models that are clients' own."""
        outputs = torch.stack([model(x) for models in self._models() for model in models])
        if self.meta is not None and bool(self.trained):
            logits: Tensor = self.meta(side_by_side(outputs))
            return logits
        if combine == "label_shares":
            raise FedrayError("a module does not know how many rows of each class clients have: use Run.predict")
        return combine_outputs(combine, outputs).to(outputs.dtype)

    def _models(self) -> Iterator[nn.ModuleList]:
        for models in self.bases:
            assert isinstance(models, nn.ModuleList)
            yield models


class VotingModule(nn.Module):
    """Takes the place of classifiers that clients fit: it has no parameters and cannot predict by itself."""

    def forward(self, _x: Tensor) -> Tensor:
        """Raises an error: only the clients' classifiers can predict."""
        raise FedrayError("a stack's module has only networks, and no classifiers: use Run.predict")


def voting_net(name: str, classes: int) -> Net:
    """Returns a network without parameters, instead of a base whose classifiers vote."""
    return Net(name, VotingModule(), Layout((), (), 0), "cross_entropy", classes, lambda _key: torch.zeros(0))


def stacked_net(stack: Stack) -> Net:
    """Returns the network of a stack.

    Its `init` gives zeros, because `fedray.simulation.stacking` draws the first models of each part by themselves.
    """
    with torch.no_grad():
        bases = [
            [copy.deepcopy(base.net.module) for _ in range(stack.models_of(i))] for i, base in enumerate(stack.bases)
        ]
        meta = None if stack.meta is None else copy.deepcopy(stack.meta.module)
    module = StackModule(bases, meta, stack.combine, stack.features, [base.answers for base in stack.bases])
    layout = layout_of(module, stack.name)
    first = stack.bases[0].net
    return Net(stack.name, module, layout, first.objective, first.outputs, lambda _key: torch.zeros(layout.d))


def make_classifier(name: str, options: Mapping[str, Any], seed: int) -> Any:
    """Returns a classifier of scikit-learn that is not fitted yet.

    Args:
        name: As in the scenario, such as `sklearn/decision_tree`.
        options: By scikit-learn's names.
        seed: Seed of its random numbers, below 2^32.
    """
    from sklearn import ensemble, linear_model, naive_bayes, tree

    kinds: dict[str, Any] = {
        "sklearn/decision_tree": tree.DecisionTreeClassifier,
        "sklearn/gaussian_nb": naive_bayes.GaussianNB,
        "sklearn/logistic_regression": linear_model.LogisticRegression,
        "sklearn/random_forest": ensemble.RandomForestClassifier,
    }
    seeds = {} if name == "sklearn/gaussian_nb" else {"random_state": seed}
    return kinds[name](**options, **seeds)
