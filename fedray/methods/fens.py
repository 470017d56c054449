r"""FENS: the clients' networks stay fixed, and a small network learns by federated learning how to combine them.

Source: Allouah, Dhasade, Guerraoui, Gupta, Kermarrec, Pinot, Pires, Sharma, *Revisiting Ensembling in One-Shot
Federated Learning*, NeurIPS 2024, arXiv 2411.07182.

In phase 1 each client trains its own network. In phase 2 the clients train an aggregator with FedAdam. The aggregators
`mean`, `label_shares` and `voting` have no parameters. They need no phase 2 and no withheld samples. In FedAdam's mean
a client's weight is the number of its withheld samples.

Formulas of fens:
    Client $i$ withholds a random share `proxy` of its samples (their number is rounded down). It trains its own network
    $w_i$ on the other samples, and sends $w_i$ once. The server sends all networks to the clients. The clients then
    train an aggregator $g_\theta$ of the networks' outputs on the withheld samples:

    $$
    z(x) = \bigl[f_{w_1}(x), \dots, f_{w_N}(x)\bigr] \in \mathbb{R}^{N C}, \qquad
    \theta \to \operatorname*{argmin}_\theta \sum_i p_i \, \frac{1}{\lvert \text{proxy}_i \rvert}
    \sum_{(x, y) \in \text{proxy}_i} \ell\bigl(g_\theta(z(x)), y\bigr).
    $$

    $p_i$ is proportional to $\lvert \text{proxy}_i \rvert$. With `server.weighting: uniform` all $p_i$ are equal. $f$
    are logits, and $\ell$ is the cross-entropy of $\mathrm{softmax}(g_\theta(z))$. There are `meta_rounds` rounds.
    In each round a client with proxy samples makes `meta_steps` steps of SGD from $\theta$ to $u_i$, at the rate
    `meta_lr` and with batches of `meta_batch` samples. The server averages the changes $u_i - \theta$, and steps by
    FedAdam without correction of bias. At first $m = 0$ and $v = \tau^2$:

    $$
    \Delta = \sum_i p_i \, (u_i - \theta), \quad m \leftarrow \beta_1 m + (1 - \beta_1) \Delta, \quad v \leftarrow 0.99
    \, v + 0.01 \, \Delta^2, \quad
    \theta \leftarrow \theta + \eta_s \frac{m}{\sqrt{v} + \tau}, \qquad \tau = 10^{-3}.
    $$

    $\eta_s$ is `server.lr` (0.001) and $\beta_1$ is `server.momentum` (0.9).

    | `aggregator` | $g_\theta(z)$ | first $\theta$ |
    | --- | --- | --- |
    | `neural` | $W_2 \, \mathrm{relu}(W_1 z)$, $N \cdot$ `width` hidden units, no biases | as in `torch.nn.Linear` |
    | `client_weights` | $\sum_i \theta_i z_i$ | $1 / N$ |
    | `class_weights` | $\sum_i \theta_i \odot z_i$, one weight for each client and class | $1 / N$ |

    The other aggregators have no $\theta$, and return probabilities. Here $q_i(c \mid x)$ is the softmax of $z_i =
    f_{w_i}(x)$, and $s_{ic}$ is the share of client $i$ in the training samples of class $c$:

    | `aggregator` | $P(c \mid x)$ |
    | --- | --- |
    | `mean` | $\frac1N \sum_i q_i(c \mid x)$ |
    | `label_shares` | $\propto \sum_i s_{ic} \, q_i(c \mid x)$, normalized over $c$ |
    | `voting` | $\frac1N \sum_i \bigl[c = \operatorname{argmax}_{c'} z_{ic'}(x)\bigr]$; in a tie the first class |


    Until a client has trained $\theta$, the rule `mean` predicts. With `voting` a class that no network chooses has the
    probability zero. The log loss of a sample of this class counts as 36.04 (the bound of [`nll`](../metrics.md)).
    Therefore compare the accuracy or the Brier score of `voting`, and not its `nll`.

Deviations:
    1. `mean` and `label_shares` average probabilities. A published copy of the authors' code (mattduerrmeier/fens,
       `flamby/aggs.py`) averages logits if there are several classes. The code's voting is left out, because this
       voting does not count first choices. The code's neural aggregator has biases. The code's `client_weights` start
       at 1, and one more parameter is added to the outputs of all classes.
    2. Every client takes part in phase 1; the section `participation` applies only to phase 2.
    3. A client downloads all N networks, including its own, when it is first scheduled in phase 2. If it drops out or
       is not available in this round, the download is never counted. Computing the outputs for the proxy samples takes
       no virtual time.
    4. If a client drops out, has no samples, or fails in training, the ensemble has the client's initial network. In
       `label_shares` such a client still counts with the number of its samples.
    5. The paper's mixture of experts is left out. The paper's last phase distils the result into one network.
       `Run.distil` does this for any method.

Example:
    >>> import fedray
    >>> scenario = {"data": {"partition": {"name": "classes", "classes": 2}}, "clients": {"number": 5}}
    >>> scenario |= {"local": {"lr": 0.05, "epochs": 10}, "server": {"lr": 0.01}, "evaluate": {"every": 60}}
    >>> method = {"name": "fens", "aggregator": "class_weights", "meta_rounds": 60}
    >>> found = fedray.run(scenario, method=method, runtime="inline", report=False).summary["metrics"]
    >>> print(*(f"{found[name]['mean']:.1f}" for name in ("accuracy_mean", "accuracy_average", "accuracy")))
    0.2 0.7 0.9
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedray.core.options import MethodSpec, Needs, Option, one_of, real, whole
from fedray.methods import kit
from fedray.methods.references import own_model, set_alone

_TRAINED = ("neural", "client_weights", "class_weights")  # aggregators with parameters, which clients train
FIXED = ("mean", "label_shares", "voting")
_IS_TRAINED = Needs("method.aggregator", _TRAINED)


def join_networks(net: kit.types.Net, clients: int, classes: int, rounds: int, options: Mapping[str, Any]) -> Any:
    """Returns the stack (two layers of models) of FENS.

    The first layer has each client's network. The meta model is the aggregator of the networks' outputs.
    """
    kind, fixed = options["aggregator"], options["aggregator"] in FIXED
    return kit.stacking.Stack(
        bases=(kit.stacking.Base(net, clients),),
        meta=None if fixed else kit.stacking.build_aggregator(kind, clients, classes, options["width"]),
        rounds=rounds,
        meta_rounds=options["meta_rounds"],
        meta_lr=options["meta_lr"],
        combine=kind if fixed else "mean",
        proxy=0.0 if fixed else options["proxy"],
        name="fens",
    )


SPECS = {
    "fens": MethodSpec(
        "FENS: clients send networks that they trained alone, and then train an aggregator (Allouah et al. 2024)",
        family="one shot",
        models="clients",
        classes=True,
        options={
            "aggregator": Option(
                "neural", one_of(*_TRAINED, *FIXED), "how the answers of the clients' networks become one"
            ),
            "proxy": Option(
                0.1,
                real("(0, 1)"),
                "share of a client's rows that train the aggregator, and not the client's network",
                _IS_TRAINED,
            ),
            "width": Option(
                2,
                whole(1, 1000),
                "hidden units of the neural aggregator for each network",
                Needs("method.aggregator", ("neural",)),
            ),
            "meta_rounds": Option(500, whole(1, 10**7), "rounds of the aggregator", _IS_TRAINED),
            "meta_lr": Option(1.0, real("(0, inf)"), "learning rate of the aggregator at the clients", _IS_TRAINED),
            "meta_batch": Option(128, whole(1, 10**6), "rows of a batch of the aggregator", _IS_TRAINED),
            "meta_steps": Option(1, whole(1, 10**6), "local steps of the aggregator in a round", _IS_TRAINED),
        },
        defaults={
            "method": {"models": 1},
            "rounds": 1,
            "server": {"optimizer": "adam", "lr": 0.001, "weighting": "examples"},
        },
        clients=20,
        fixed=("schedules",),
        in_rounds="trains its parts one after another, in rounds",
        parts=True,
        stack=join_networks,
    ),
}


def fens(setting: kit.Setting) -> kit.Method:
    """Composes N networks `[N, d]`, one for each client, and an aggregator `[1, d']` that reads all their outputs.

    `fedray.simulation.stacking` joins the two trainings into one run.
    """
    stack = setting.stack
    assert stack is not None, "its networks and its aggregator come from a scenario"
    alone = set_alone(setting)
    parts = [kit.federated(alone, assign=own_model)]  # phase 1: no two clients train the same network
    if stack.meta is not None:
        local = kit.Local(lr=stack.meta_lr, batch_size=setting.options["meta_batch"], epochs=None)
        steps = replace(local, steps=setting.options["meta_steps"])
        # phase 2: FedAdam
        parts.append(kit.federated(replace(setting, models=1, layout=stack.meta.layout), local=steps))
    return kit.Method("fens", parts[0], parts=tuple(parts))
