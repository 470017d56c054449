r"""Parallel-ensemble stacking (Algs. 1-2): a meta model combines sub models, each trained without one client.

Source: Yu, Wu, Yu, Wei, Liu, Zhang, *A federated learning algorithm using parallel-ensemble method on non-IID
datasets*, Complex & Intelligent Systems 2023. There are B architectures ("bases"), N clients, C classes and three
phases:

1. FedAvg (weighted by examples) trains sub model (b, j) of base b on all clients except j. All B * N trainings share
   the same rounds.
2. Client j predicts its own n_j samples with the sub models (b, j) of all bases b. The results are out-of-fold
   probabilities, `[n_j, B * C]`, which stay with the client.
3. FedAvg trains the meta model, a softmax layer `B * C -> C`, on these probabilities. In a prediction the sub models of
   each base are averaged first. The averages of all bases are the input of the meta model.

If clients hold disjoint classes, sub model (b, j) has never seen the classes of client j, and gives them tiny
probabilities. So the meta model learns to choose a class with a tiny probability. For new samples this is wrong
(docs/results/stacking.md).

Formulas of stacking:
    FedAvg trains sub model $(b, j)$ of base $b$. With `folds: client` it trains on the samples of all clients except
    client $j$. With `folds: within` it trains on all samples except fold $j$ of every client. Let $x$ be a sample that
    was left out of the training of all sub models $(b, j)$. The features $z(x)$ of this sample are the probabilities
    that these sub models predict:

    $$
    z(x) = \bigl[p_{(1, j)}(x), \dots, p_{(B, j)}(x)\bigr] \in \mathbb{R}^{B C}.
    $$

    FedAvg trains the meta model $q(y \mid x) = \mathrm{softmax}(V z(x) + c)$ on these features.

Deviations:
    1. `folds: within` is not in the paper. Every client divides its samples into F folds, and sub model (b, f) is
       trained on all samples except fold f of every client. Every sub model then sees every class, and the features are
       still out of fold.
    2. Features never leave the client, as the paper's text says. In the paper's Alg. 2 clients upload the features.
       `meta_data: pooled` does this: clients send features and labels, and the server trains the meta model. The key
       `features` has two more values, `all` and `side_by_side`, for other readings of the paper. With either value, the
       meta model is also trained on predictions for samples that a sub model has seen. docs/how-to/stacking.md says
       what each reading leaks.
    3. The sub models of a base start from the same weights and differ only in the samples left out. A base may be an
       ensemble of several models under any schedule. It then predicts with their average.
    4. The paper calls the meta model a linear regression, but trains it with cross entropy. Here the meta model is
       therefore a softmax layer. For real targets (the paper's future work) the meta model is a linear layer, whose
       inputs are the bases' predictions. Two more choices are an MLP, and the plain average of the bases, which needs
       no training.
    5. When a client is first scheduled in phase 3, it downloads the sub models that it needs. If it drops out or is not
       available in this round, the download is never counted. Computing the features takes no virtual time.
    6. The paper recommends traditional models, too. A base may be a scikit-learn classifier that each client fits on
       its own samples. Sub model (b, j) is then a vote of the clients' classifiers. With `folds: client` the classifier
       of client j does not vote. The probabilities of a sub model are the shares of the votes. Classifiers cost no
       bytes, rounds or virtual time here.

Example:
    >>> import fedray
    >>> bases = [{"name": "linear"}, {"name": "mlp", "hidden": 16}]
    >>> scenario = {"method": {"name": "stacking", "bases": bases}, "rounds": 5}
    >>> run = fedray.run(scenario, local={"lr": 0.01, "batch_size": 32}, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Needs, Option, ReadSections, means, one_of, real, whole
from fedray.methods import kit


@means("list of sections", "like `model`, or a classifier")
def check_bases(value: Any, read: ReadSections) -> list[dict[str, Any]]:
    """Checks the list of base models. A base model is a classifier, or a section like `model`.

    Such a section may also have the key `models`, which is the base's number of models.

    Raises:
        ValueError: The value is not a list of sections.
        BadInput: A section is wrong. The message names the key.
    """
    if not isinstance(value, list | tuple) or len(value) > 100 or not all(isinstance(base, Mapping) for base in value):
        raise ValueError("is not a list of models: write it as [{name: mlp}, {name: cnn}]")
    places = [f"method.bases[{i}]" for i in range(len(value))]
    more = {"models": whole(1, 10**4)}
    if value and (first := read.classifier(places[0], value[0])):
        raise BadInput(
            f"method.bases[0].name = {first['name']}, but the first base must be a network: list one before it, as in "
            f"[{{name: mlp}}, {{name: {first['name']}}}]"
        )
    return [read.classifier(path, base) or read.network(path, base, more) for path, base in zip(places, value)]


_IS_TRAINED = Needs("method.meta", ("softmax", "mlp"))
SPECS = {
    "stacking": MethodSpec(
        "stacking: sub models that each leave one client (or fold) out, and a meta model (Yu et al. 2023)",
        family="stacking and boosting",
        options={
            "bases": Option(
                [],
                check_bases,
                "the base models, each a section like `model`; its key `models` makes it an ensemble",
                sections=True,
            ),
            "folds": Option(
                "client", one_of("client", "within"), "what a sub model leaves out: a client, or a fold of every client"
            ),
            "fold_number": Option(5, whole(2, 1000), "F, folds of every client", Needs("method.folds", ("within",))),
            "meta": Option("softmax", one_of("softmax", "mlp", "average"), "the meta model"),
            "features": Option(
                "out_of_fold",
                one_of("out_of_fold", "all", "side_by_side"),
                "what the meta model learns from: predictions of sub models that have not seen the row, the "
                "mean of all predictions, or all predictions side by side",
                _IS_TRAINED,
            ),
            "meta_data": Option(
                "federated",
                one_of("federated", "pooled"),
                "where the meta model learns: at the clients, or at the server (`pooled`), which then receives "
                "predictions and labels",
                _IS_TRAINED,
            ),
            "meta_rounds": Option(None, whole(0, 10**7), "rounds of the meta model; null takes `rounds`", _IS_TRAINED),
            "meta_lr": Option(
                None,
                real("(0, inf)"),
                "learning rate of the meta model, which `local.schedule` does not change; null takes `local.lr`",
                _IS_TRAINED,
            ),
            "meta_optimizer": Option(
                None, one_of("sgd", "adam"), "optimizer of the meta model; null takes `local.optimizer`", _IS_TRAINED
            ),
        },
        defaults={
            "method": {"models": 1},
            "local": {"optimizer": "adam", "lr": 0.001, "batch_size": 128, "epochs": 1},
            "server": {"weighting": "examples"},
        },
        clients=5,
        fixed=("robust", "optimizer"),
        in_rounds="trains its parts one after another, in rounds",
        parts=True,
        server_steps=True,
    ),
}


def stacking(setting: kit.Setting) -> kit.Method:
    """Composes the training of each base, `[F * K, d]`, and the training of the meta model.

    A base is K models of one architecture, of d values each. It is trained for each of F folds.
    `fedray.simulation.stacking` joins these trainings into one run.
    """
    stack = setting.stack
    assert stack is not None, "it is composed from method.bases"
    seeds = tuple(seed for seed in setting.seeds for _ in range(stack.folds))

    def base(i: int) -> kit.Phase:  # Alg. 1: FedAvg of all (i, j) at once
        one = stack.bases[i] if stack.bases[i].voter is None else stack.bases[0]  # classifiers that vote do not train
        return kit.federated(replace(setting, models=one.models, layout=one.net.layout, seeds=seeds))

    phases = [base(i) for i in range(len(stack.bases))]
    if stack.meta is not None:  # Alg. 2: FedAvg of the meta model on the out-of-fold features
        kind: Any = stack.meta_optimizer
        local = replace(setting.local, optimizer=kind, lr=stack.meta_lr, schedule=None, augment=())
        compress = None if stack.pooled else setting.compress  # the server sends nothing to itself
        top = replace(setting, models=1, layout=stack.meta.layout, local=local, compress=compress)
        phases.append(kit.federated(top))
    return kit.Method("stacking", phases[0], parts=tuple(phases))
