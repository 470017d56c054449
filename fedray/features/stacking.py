"""Builds stacks. A stack is an ensemble of base models, whose predictions a meta model or a fixed rule combines.

A *base* is one architecture of a stack, and a *sub model* is one trained model of a base. *Shards* are the data of all
clients (`fedray.data.shards`). A *world* is one combination of a seed and a fold.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.types import BoolArray, IntArray, Layout, Members, Net
from fedray.data.partition import count_withheld
from fedray.data.shards import Fetched, ServerShards, Shards, WrappedShards
from fedray.data.types import Split
from fedray.models.net import layout_of, net_of

# ---------------------------------------------------------------------------------------------------------------------
# The data that stacking trains on.
#
# A base network is trained once for each fold, without the samples of that fold (`LeaveOutShards`). The meta model is
# trained on the bases' predictions for samples that the bases were not trained on. `FeatureShards` returns these
# predictions as the clients' inputs. Both classes wrap other shards and have the same methods as shards.

Compute = Callable[[int, int], Tensor]  # (world, client) -> features of the client's training samples, `[n, F]` float32


class FeatureShards(WrappedShards):
    """Shards (the clients' data) whose training inputs are features: the predictions of other models.

    Features are computed when they are needed. Test samples and withheld samples come from the wrapped shards.
    """

    def __init__(self, whole: Shards, width: int, compute: Compute, pooled: bool = False) -> None:
        """Wraps other shards.

        Args:
            whole: The wrapped shards, which have the labels and all samples that are not used for training.
            width: Number of features, F.
            compute: A function that takes a world and a client, and returns the features of the client's training
                samples, `[n, F]`.
            pooled: Whether client 0 stands for a server with the features of all clients. Other clients then have no
                samples.
        """
        super().__init__(whole)
        self.width, self.compute, self.pooled = width, compute, pooled
        none = Split(np.zeros((0, width), np.float32), np.zeros(0, np.int64))
        self.data = whole.data._replace(train=none, test=none, population=None)
        self.scaling = self.scaling._replace(kind="features", plain=(True, self.scaling.plain[1]))  # not standardized

    @property
    def at_server(self) -> bool:
        """Returns whether client 0 stands for a server with the samples of all clients."""
        return self.pooled or isinstance(self.whole, ServerShards)

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Returns how many samples each of J jobs has. If client 0 stands for a server, it has all samples."""
        if not self.pooled:
            return self.whole.sizes(world, client)
        everyone = np.arange(self.number)
        each = self.whole.sizes(np.repeat(world, self.number), np.tile(everyone, len(world))).reshape(-1, self.number)
        return np.where(client == 0, each.sum(axis=1), 0)

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Computes the features of the jobs' samples, and returns them with the labels."""
        if not self.pooled:
            return self._fetch(world, client)
        each = self._fetch(np.repeat(world, self.number), np.tile(np.arange(self.number), len(world)))
        total = each.size.reshape(-1, self.number).sum(axis=1)
        start, size = np.cumsum(total) - total, np.where(client == 0, total, 0)
        place = np.arange(size.max(initial=0))  # the samples of a world are adjacent, client after client
        rows = np.where(place < size[:, None], start[:, None] + place, 0)
        return each._replace(rows=torch.from_numpy(rows), size=size)

    def _fetch(self, world: IntArray, client: IntArray) -> Fetched:
        raw = self.whole.fetch(world, client)
        jobs = zip(world.tolist(), client.tolist(), raw.size.tolist(), strict=True)
        x = [torch.zeros(0, self.width), *(self.compute(w, c) for w, c, size in jobs if size)]
        place = np.arange(raw.rows.shape[1])
        inside = place < raw.size[:, None]
        job = torch.from_numpy(np.repeat(np.arange(len(client)), raw.size))
        y = raw.labels(raw.rows[torch.from_numpy(inside)], job)
        start = np.cumsum(raw.size) - raw.size
        rows = np.where(inside, start[:, None] + place, 0)
        return Fetched(torch.cat(x), y, torch.from_numpy(rows), raw.size)


def mask_rows(fetched: Fetched, masks: list[BoolArray]) -> Fetched:
    """Keeps only the samples of each job at which the job's mask is true. `masks` holds a mask `[n]` for each job."""
    kept = [rows[: len(mask)][torch.from_numpy(mask)] for rows, mask in zip(fetched.rows, masks, strict=True)]
    size = np.array([len(rows) for rows in kept], dtype=np.int64)
    rows = torch.zeros(len(kept), int(size.max(initial=0)), dtype=torch.int64)
    for padded, own in zip(rows, kept, strict=True):
        padded[: len(own)] = own
    return fetched._replace(rows=rows, size=size)


class LeaveOutShards(WrappedShards):
    """Shards (the clients' data) in which each world lacks the samples of one fold.

    World w of the wrapped shards becomes `folds` worlds. World `w * folds + f` lacks fold f.

    Example:
        >>> from fedray.data.store import load_data
        >>> from fedray.data.deal import PartitionSettings, build_shards
        >>> whole = build_shards(load_data("digits"), PartitionSettings("iid", clients=4), [0])
        >>> part = LeaveOutShards(whole, seeds=(0,), folds=4, within=False)
        >>> part.sizes(np.array([2, 2]), np.array([1, 2])).tolist()  # client 2 has no rows in world 2
        [360, 0]
    """

    def __init__(self, whole: Shards, seeds: tuple[int, ...], folds: int, within: bool) -> None:
        """Wraps shards that hold all samples. `seeds` holds the seed of each world of the wrapped shards.

        If `within` is true, fold f is a part of every client's samples. Otherwise fold f consists of all samples of
        client f.
        """
        super().__init__(whole, folds)
        self.seeds, self.within = seeds, within

    def fold_of(self, world: int, client: int, size: int) -> IntArray:
        """Returns the fold of each of the n samples of a client, `[n]`. `world` is a world of the wrapped shards."""
        if not self.within:
            return np.full(size, client)
        order = rng.stream(self.seeds[world], "within", client).permutation(size)
        return np.asarray(order % self.folds, dtype=np.int64)

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Returns how many samples each of J jobs has. Samples of the world's fold do not count."""
        size, fold = self.whole.sizes(world // self.folds, client), world % self.folds
        if not self.within:
            return np.where(client == fold, 0, size)
        return np.asarray(size - (size - fold + self.folds - 1) // self.folds)

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Returns each job's samples, except the samples of the world's fold."""
        fetched, masks = self.whole.fetch(world // self.folds, client), []
        for j, (w, c) in enumerate(zip(world.tolist(), client.tolist(), strict=True)):
            masks.append(self.fold_of(w // self.folds, c, int(fetched.size[j])) != w % self.folds)
        return mask_rows(fetched, masks)


# ---------------------------------------------------------------------------------------------------------------------
# Proxy samples: training samples that every client withholds from the first training and uses in a second training.


class ProxyShards(WrappedShards):
    """Shards (the clients' data) with only the proxy samples, or with all other samples.

    Proxy samples are the samples of a client on which a meta model is trained.

    Example:
        >>> from fedray.data.store import load_data
        >>> from fedray.data.deal import PartitionSettings, build_shards
        >>> whole = build_shards(load_data("digits"), PartitionSettings("iid", clients=4), [0])
        >>> both = [ProxyShards(whole, (0,), 0.1, shows=shows) for shows in (False, True)]
        >>> [each.sizes(np.array([0]), np.array([2])).tolist() for each in both]  # of 359 rows
        [[324], [35]]
    """

    def __init__(self, whole: Shards, seeds: tuple[int, ...], share: float, *, shows: bool) -> None:
        """Wraps shards that hold all samples. `seeds` holds the seed of each world.

        The proxy samples are the fraction `share` of a client's samples, rounded down. If `shows` is true, the shards
        have only proxy samples. Otherwise they have all other samples.
        """
        super().__init__(whole)
        self._seeds, self._share, self._shows = seeds, share, shows

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Returns how many samples each of J jobs has."""
        size = self.whole.sizes(world, client)
        proxy = count_withheld(size, self._share)
        return proxy if self._shows else size - proxy

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Returns the samples of each job."""
        fetched = self.whole.fetch(world, client)
        jobs = zip(world.tolist(), client.tolist(), fetched.size.tolist(), strict=True)
        return mask_rows(fetched, [self._mask(*job) for job in jobs])

    def _mask(self, world: int, client: int, size: int) -> BoolArray:
        """Returns which of a client's n samples the shards have, `[n]`."""
        place = rng.stream(self._seeds[world], "proxy", client).permutation(size)
        is_proxy: BoolArray = place < count_withheld(np.array(size), self._share)
        return is_proxy if self._shows else ~is_proxy


# ---------------------------------------------------------------------------------------------------------------------
# Ways to combine the predictions of N clients' networks, by a fixed rule or by a small network that gets the logits.
#
# `combine_outputs` computes the fixed rules `mean`, `label_shares` and `voting`. `build_aggregator` makes the small
# networks: `client_weights` (one weight per client), `class_weights` (one weight per client and class) and `neural`
# (`W2 relu(W1 z)`, hidden width N * d). The first two start as the plain mean of the logits. `build_interpolation`
# makes the network of β-Predictive Bayes.
#
# Source: Allouah et al., *Revisiting Ensembling in One-Shot Federated Learning*, NeurIPS 2024, section 3.

TINY = torch.finfo(torch.float64).tiny  # replaces 0 in a logarithm


class WeightedLogits(nn.Module):
    """A network that returns a weighted sum of the clients' logits.

    Attributes:
        weight: Weight of each client, `[N, 1]`, or of each client and class, `[N, C]`.
    """

    def __init__(self, clients: int, classes: int, *, by_class: bool) -> None:
        nn.Module.__init__(self)
        self.classes = classes
        self.weight = nn.Parameter(torch.full((clients, classes if by_class else 1), 1.0 / clients))

    def forward(self, z: Tensor) -> Tensor:
        """Returns the weighted sum of N clients' logits, `[B, C]`.

        `z` has the logits side by side, `[B, N * C]`.
        """
        return (z.reshape(len(z), z.shape[1] // self.classes, self.classes) * self.weight).sum(1)


def build_aggregator(kind: str, clients: int, classes: int, width: int) -> Net:
    """Returns a network that combines the logits of N clients' networks, `[B, N * C]`, into logits `[B, C]`.

    `kind` is `neural`, `client_weights` or `class_weights`. A `neural` network has `width` hidden units for each
    client.

    Example:
        >>> net = build_aggregator("client_weights", clients=3, classes=2, width=2)
        >>> net.layout.d, net.module(torch.arange(6.0).view(1, 6)).tolist()  # the means of 0, 2, 4 and of 1, 3, 5
        (3, [[2.0, 3.0]])
    """

    def make() -> nn.Module:
        if kind == "neural":
            hidden = clients * width
            wide, narrow = nn.Linear(clients * classes, hidden, bias=False), nn.Linear(hidden, classes, bias=False)
            return nn.Sequential(wide, nn.ReLU(), narrow)
        return WeightedLogits(clients, classes, by_class=kind == "class_weights")

    return net_of(make, kind, "cross_entropy", classes)


def combine_outputs(kind: str, outputs: Tensor, shares: Tensor | None = None) -> Tensor:
    """Combines the predictions of N clients' networks. Returns the logarithms of class probabilities, `[n, C]` float64.

    Args:
        kind: The rule. `mean` takes the mean of the clients' probabilities. `label_shares` weights a client's
            probability of a class by `shares`, and normalizes the sums. With `voting`, the probability of a class is
            the fraction of clients whose largest logit belongs to this class.
        outputs: Raw outputs of the clients' networks, `[N, n, C]`.
        shares: Fraction of each class's samples that a client has, `[N, C]`. Only `label_shares` uses it.

    Example:
        >>> outputs = torch.tensor([[[0.0, 9.0]], [[1.0, 0.0]], [[1.0, 0.0]]])
        >>> combine_outputs("voting", outputs).exp().tolist()
        [[0.6666666666666666, 0.3333333333333333]]
    """
    each = outputs.double().softmax(-1)
    if kind == "voting":
        each = nn.functional.one_hot(each.argmax(-1), each.shape[-1]).double()
    if kind == "label_shares":
        assert shares is not None
        joint = (each * shares.double()[:, None]).sum(0)
        joint = joint / joint.sum(-1, keepdim=True).clamp(min=TINY)
    else:
        joint = each.mean(0)
    return joint.clamp(min=TINY).log()


def side_by_side(outputs: Tensor) -> Tensor:
    """Puts the outputs of N clients' networks, `[N, n, C]`, side by side, `[n, N * C]` float32."""
    return outputs.permute(1, 0, 2).flatten(1).float()


class ProductAndMixture(nn.Module):
    """A network whose prediction lies between the product and the mixture of the clients' predictions.

    `interpolate_answers` has the formula.

    Attributes:
        beta: The position between mixture (0) and product (1), `[1]`.
    """

    def __init__(self, classes: int, beta: float) -> None:
        nn.Module.__init__(self)
        self.classes = classes
        self.beta = nn.Parameter(torch.full((1,), beta))

    def forward(self, z: Tensor) -> Tensor:
        """Returns log-probabilities, `[B, C]`. `z` has the logits of N clients side by side, `[B, N * C]`."""
        return interpolate_answers(
            z.reshape(len(z), z.shape[1] // self.classes, self.classes).transpose(0, 1), self.beta
        )


def build_interpolation(classes: int, beta: float) -> Net:
    """Returns a network of `ProductAndMixture`, whose only parameter is beta."""
    return net_of(lambda: ProductAndMixture(classes, beta), "product_and_mixture", "cross_entropy", classes)


def interpolate_answers(outputs: Tensor, beta: Tensor) -> Tensor:
    """Returns log-probabilities between the product and the mixture of the clients' probabilities, `[n, C]`.

    The result is `beta log P + (1 - beta) log Q`, normalized over the classes. A negative beta or 1 - beta is replaced
    by 0. P is the normalized product of the clients' probabilities (a Bayesian committee machine with a uniform prior
    over the classes). Q is the mean of the clients' probabilities. `outputs` are the raw outputs of N clients'
    networks, `[N, n, C]`.

    Source: Hasan et al., *Calibrated One Round Federated Learning with Bayesian Inference in the Predictive Space*,
    AAAI 2024.

    Example:
        >>> outputs = torch.tensor([[[0.8, 0.2]], [[0.8, 0.2]]]).log()
        >>> [round(interpolate_answers(outputs, torch.tensor([beta])).exp().max().item(), 2) for beta in (0.0, 1.0)]
        [0.8, 0.94]
    """
    each = outputs.log_softmax(-1)
    product, mixture = each.sum(0).log_softmax(-1), each.logsumexp(0) - math.log(len(each))
    return (beta.clamp(min=0.0) * product + (1.0 - beta).clamp(min=0.0) * mixture).log_softmax(-1)


# ---------------------------------------------------------------------------------------------------------------------
# `Stack` describes a stack, and `stacked_net` makes one network of it, which runs like any other network.
# `fedray.assembly.features` makes a `Stack` from a scenario. `fedray.simulation.stacking` trains it.

SIDE_BY_SIDE = "side_by_side"  # the meta model's inputs are the predictions of all sub models, without averaging


class Voter(NamedTuple):
    """A scikit-learn classifier that every client fits on its own samples.

    Attributes:
        name: Name of the classifier in the scenario, such as `sklearn/decision_tree`.
        options: Options of the classifier, by scikit-learn's names.
    """

    name: str
    options: Mapping[str, Any]


class Base(NamedTuple):
    """One architecture of a stack (an ensemble whose predictions a meta model or a rule combines).

    Attributes:
        net: The network of this architecture.
        models: Number of models of this architecture in the stack.
        voter: A classifier that clients fit. `net` is then a `voting_net`. None means that clients train `net`.
        members: A function that takes clients, and returns whether each has this architecture. None means all clients.
        answers: Whether this architecture takes part in the prediction if no meta model is trained.
    """

    net: Net
    models: int = 1
    voter: Voter | None = None
    members: Members | None = None
    answers: bool = True


class Stack(NamedTuple):
    """Several architectures (bases), and a meta model that combines their predictions.

    Attributes:
        bases: The n architectures.
        meta: The meta model. Its inputs are the bases' predictions: n * C probabilities, or n values of a target.
            None means that these predictions are averaged.
        rounds: Number of rounds in which the bases are trained.
        folds: Number of folds, F. Each base is trained F times, each time without one fold. 1 means that no samples are
            left out.
        within: Whether fold f is a part of every client's samples. Otherwise fold f has all samples of client f.
        meta_rounds: Number of rounds in which the meta model is trained.
        meta_lr: Learning rate of the meta model.
        meta_optimizer: Optimizer of the meta model.
        combine: None means ordinary stacking. Otherwise each client has a model of its own, and the meta model gets the
            logits of all these models. Without a meta model, `combine` names the rule of `combine_outputs`.
        proxy: With `combine`, the fraction of each client's samples on which only the meta model is trained. With 0,
            all models are trained on all samples.
        features: Predictions from which the meta model learns. A base has a sub model for each fold. `out_of_fold`
            takes the sub models that were not trained on the sample. `all` takes the mean over a base's sub models.
            `side_by_side` takes all sub models side by side.
        pooled: Whether the server trains the meta model. If so, clients upload the inputs of the meta model and the
            labels of their samples.
        at_server: Whether the server trains the meta model on its own samples.
        answers_at_once: Whether the meta model also predicts before its training.
        name: Name of the network in messages.
    """

    bases: tuple[Base, ...]
    meta: Net | None
    rounds: int
    folds: int = 1
    within: bool = False
    meta_rounds: int = 0
    meta_lr: float = 0.0
    meta_optimizer: str = "sgd"
    combine: str | None = None
    proxy: float = 0.0
    features: str = "out_of_fold"
    pooled: bool = False
    at_server: bool = False
    answers_at_once: bool = False
    name: str = "stacking"

    def count_features(self) -> int:
        """Returns the number of inputs of the meta model for each sample."""
        outputs = self.bases[0].net.outputs
        if self.combine is not None:
            return outputs * sum(base.models for base in self.bases)
        if self.features == SIDE_BY_SIDE:
            return outputs * sum(self.models_of(i) for i in range(len(self.bases)))
        return outputs * len(self.bases)

    def models_of(self, base: int) -> int:
        """Returns the number of trained models of a base, over all folds."""
        return self.folds * self.bases[base].models


class StackModule(nn.Module):
    """The module of a stack: several architectures (bases), and a meta model that combines their predictions.

    Without a trained meta model, it averages the predictions of the bases for which `Base.answers` is true.

    Attributes:
        trained: Number of rounds in which the meta model was trained, an integer buffer.
        bases: The models of each base.
        meta: The meta model. None means that there is no meta model.
    """

    trained: Tensor

    def __init__(self, stack: Stack) -> None:
        """Makes a copy of each base's network for each of the base's models."""
        nn.Module.__init__(self)
        self.combine, self.features, self.objective = stack.combine, stack.features, stack.bases[0].net.objective
        self.answers = tuple(base.answers for base in stack.bases)
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))
        copies = [
            nn.ModuleList(copy.deepcopy(base.net.module) for _ in range(stack.models_of(i)))
            for i, base in enumerate(stack.bases)
        ]
        self.bases = nn.ModuleList(copies)
        self.meta = None if stack.meta is None else copy.deepcopy(stack.meta.module)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits `[B, C]`, or T predicted targets `[B, T]`, of inputs `[B, *input]`."""
        if self.combine is not None:
            return self._join_clients(x, self.combine)
        answers = [[model(x) for model in models] for models in self._models()]
        if self.objective == "cross_entropy":
            answers = [[outputs.softmax(-1) for outputs in one] for one in answers]
        each = [torch.stack(one).mean(0) for one in answers]
        if self.meta is None or not bool(self.trained):
            heard = torch.stack([one for one, answers in zip(each, self.answers, strict=True) if answers]).mean(0)
            return heard.log() if self.objective == "cross_entropy" else heard
        read = [model for one in answers for model in one] if self.features == SIDE_BY_SIDE else each
        logits: Tensor = self.meta(torch.cat(read, dim=-1))
        return logits

    def _join_clients(self, x: Tensor, combine: str) -> Tensor:
        """Combines the predictions of the clients' own models, and returns logits."""
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
    """A module without parameters, for a `voting_net`."""

    def forward(self, _x: Tensor) -> Tensor:
        """Raises an error, because only the clients' classifiers can predict."""
        raise FedrayError("a stack's module has only networks, and no classifiers: use Run.predict")


def voting_net(name: str, classes: int) -> Net:
    """Returns a network without parameters, which cannot predict. It stands for classifiers that clients fit.

    Example:
        >>> net = voting_net("sklearn/decision_tree", classes=10)
        >>> net.outputs, net.layout.d
        (10, 0)
    """
    return Net(name, VotingModule(), Layout((), (), 0), "cross_entropy", classes, lambda _key: torch.zeros(0))


def stacked_net(stack: Stack) -> Net:
    """Returns the network of a stack.

    Its `init` returns zeros, because `fedray.simulation.stacking` draws the initial models of each architecture.
    """
    with torch.no_grad():
        module = StackModule(stack)
    first, layout = stack.bases[0].net, layout_of(module, stack.name)
    return Net(stack.name, module, layout, first.objective, first.outputs, lambda _key: torch.zeros(layout.d))


def make_classifier(name: str, options: Mapping[str, Any], seed: int) -> Any:
    """Returns a classifier of scikit-learn that is not fitted yet. `seed` is below 2^32."""
    from sklearn import ensemble, linear_model, naive_bayes, tree

    kinds: dict[str, Any] = {
        "sklearn/decision_tree": tree.DecisionTreeClassifier,
        "sklearn/gaussian_nb": naive_bayes.GaussianNB,
        "sklearn/logistic_regression": linear_model.LogisticRegression,
        "sklearn/random_forest": ensemble.RandomForestClassifier,
    }
    seeds = {} if name == "sklearn/gaussian_nb" else {"random_state": seed}
    return kinds[name](**options, **seeds)
