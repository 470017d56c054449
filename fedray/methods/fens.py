"""FENS: the clients' own networks as a frozen ensemble, and a small network that learns, federated, how to join them.

Source: Allouah, Dhasade, Guerraoui, Gupta, Kermarrec, Pinot, Pires, Sharma, *Revisiting Ensembling in One-Shot
Federated Learning*, NeurIPS 2024, arXiv 2411.07182.

Phase 1: client i keeps back a share of its rows (`proxy`), trains a network of its own on the others, and sends it.
Phase 2: the server sends all N networks to the clients, who read their proxy rows with them, `[n_i, N * C]` logits, and
train an aggregator on these by federated learning with FedAdam, in which a client weighs by its rows, as in the
authors' script. `aggregator`: `neural` is `W2 relu(W1 z)`, `client_weights` and `class_weights` are one weight a
client, or a client and class. `mean`, `label_shares` (for each class clients weigh by their shares of its rows) and
`voting` (shares of first choices) need no training: there is no phase 2, and no row is kept back.

Deviations:
    1. `mean` and `label_shares` average probabilities; a published copy of the authors' code (mattduerrmeier/fens,
       `flamby/aggs.py`) averages logits of several classes. Its voting is not the count of first choices that `voting`
       is here: it asks how often each network says what it says on proxy rows of each class, and takes the class with
       the largest product of these shares over all networks. This is left out. Its neural aggregator has biases, and
       its weights of clients start at 1, with one more number that all classes get.
    2. Every client takes part in phase 1; `participation` is about phase 2.
    3. A client downloads all N networks when it first takes part in phase 2, its own among them. Reading the proxy rows
       takes no virtual time.
    4. A client whose training fails, that drops out, or that has no rows, is in the ensemble with its first network. In
       `label_shares` it weighs by its rows, though it has not sent how many it has.
    5. The gate of experts is left out. The last phase, distillation into one network, is `Run.distil`, for any method.

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

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.methods import kit
from fedray.methods.references import assign_own_model


def fens(setting: kit.Setting) -> kit.Method:
    """N networks `[N, d]`, client i trains network i; then one aggregator `[1, d']` on what they all say.

    `fedray.simulation.stacking` makes one study of the two.
    """
    stack = setting.stack
    if stack is None:
        raise BadInput("method.name = fens: its networks and its aggregator come from a scenario: run it by fedray.run")
    number, everyone = setting.clients.number, kit.schedule.invite_all(setting.clients)
    alone = replace(
        setting, models=number, optimizer=kit.setting.Optimizer(), robust=kit.setting.Robust(), coefficients=None
    )
    own = kit.schedule.schedule(setting.clients, 1, setting.seeds, everyone, assign_own_model)
    parts = [replace(kit.federated(alone), schedule=own)]  # phase 1: no two clients train the same network
    if stack.meta is not None:
        local = kit.Local(lr=stack.meta_lr, batch_size=setting.options["meta_batch"], epochs=None)
        steps = replace(local, steps=setting.options["meta_steps"])
        # phase 2: FedAdam
        parts.append(kit.federated(replace(setting, models=1, layout=stack.meta.layout), local=steps))
    return kit.Method("fens", parts[0], parts=tuple(parts))
