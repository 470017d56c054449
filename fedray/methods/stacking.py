"""Parallel-ensemble stacking (Algs. 1-2): sub models that each leave one client out, and a meta model on their answers.

Source: Yu, Wu, Yu, Wei, Liu, Zhang, *A federated learning algorithm using parallel-ensemble method on non-IID
datasets*, Complex & Intelligent Systems 2023. n architectures ("bases"), m clients, C classes:

Phase 1: sub model (i, j) is trained by FedAvg (weighted by examples) on all clients except j; all n * m trainings are
jobs of the same rounds. Phase 2: client j applies (i, j) to its own rows, for every i: `[n_j, n * C]` probabilities,
out of fold, that stay with the client. Phase 3: a softmax layer `n * C -> C` is trained by FedAvg on those features.
Prediction: each base's sub models are averaged, put side by side, and the meta model reads them.

A known weakness: where clients hold disjoint classes, (i, j) has never seen client j's classes, so the meta model
learns "a tiny p_c means class c" and turns against the right answer; more mildly where each class has two holders
(docs/results/stacking.md shows both).

Deviations:
    1. `folds: within` (ours): every client deals its rows into F folds, (i, f) is trained on all clients without their
       fold f. No class is unseen, and the features are still out of fold.
    2. Features never leave the client, as the paper's text says; its Alg. 2 uploads them: `meta_data: pooled` does so,
       with the labels, and the server trains the meta model. `features: all` and `side_by_side` (readings) ask all sub
       models in training as for a new row, also those that have seen it (docs/how-to/stacking.md says what each leaks).
    3. The sub models of a base start from the same weights and differ only in what they leave out; a base may be an
       ensemble of x models under any schedule, and then answers with their average.
    4. The paper calls the meta model a linear regression but trains it with cross entropy: it is a softmax layer. Ours
       beside it: an MLP, and the plain average of the bases, which needs no training.
    5. Clients download the sub models they need when they first take part in phase 3; computing the features takes no
       virtual time.
    6. The paper wishes for traditional models: a base may be a scikit-learn classifier that each client fits on its own
       rows; (i, f) is then the vote of all clients' (with `folds: client` all others'), and its probabilities are the
       shares of the votes. Classifiers cost no bytes, rounds or virtual time here.

Example:
    >>> import fedray
    >>> bases = [{"name": "linear"}, {"name": "mlp", "hidden": 16}]
    >>> scenario = {"method": {"name": "stacking", "bases": bases}, "rounds": 5}
    >>> run = fedray.run(scenario, local={"lr": 0.01, "batch_size": 32}, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.methods import kit


def stacking(setting: kit.Setting) -> kit.Method:
    """One training `[F * x, d_i]` for each base, in worlds that leave a part of the data out, then the meta model's.

    `fedray.simulation.stacking` makes one study of these parts.
    """
    stack = setting.stack
    if stack is None:
        raise BadInput("method.name = stacking: it is composed from method.bases only: choose another method")
    seeds = tuple(seed for seed in setting.seeds for _ in range(stack.folds))

    def base(i: int) -> kit.Phase:  # Alg. 1: FedAvg of all (i, j) at once
        one = stack.bases[i] if stack.bases[i].voter is None else stack.bases[0]  # votes never train
        return kit.federated(replace(setting, models=one.models, layout=one.net.layout, seeds=seeds))

    phases = [base(i) for i in range(len(stack.bases))]
    if stack.meta is not None:  # Alg. 2: FedAvg of the meta model on the out-of-fold features
        kind: Any = stack.meta_optimizer
        local = replace(setting.local, optimizer=kind, lr=stack.meta_lr, augment=())
        top = replace(setting, models=1, layout=stack.meta.layout, local=local)
        phases.append(kit.federated(top))
    return kit.Method("stacking", phases[0], parts=tuple(phases))
