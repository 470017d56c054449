r"""q-FFL by q-FedAvg: clients with a large loss have more influence, so that clients' accuracies become more similar.

Source: Li, Sanjabi, Beirami, Smith, *Fair Resource Allocation in Federated Learning*, ICLR 2020, Alg. 2. The objective
is `sum F_i^(q + 1) / (q + 1)`. With q = 0 this is the objective of FedAvg with equal weights. With a large q only the
client with the largest loss matters.

Formulas of qffl:
    Participant $i$ reports its loss $F_i$ at the broadcast model $w$, and trains $w$ to $u_i$. Let $L = 1 / \eta$
    (`local.lr`). $\Delta_i$ is the update, weighted by a power of the loss, and $h_i$ bounds the curvature. The
    server's step is the sum of all $\Delta_i$, divided by the sum of all $h_i$:

    $$
    \Delta_i = F_i^q \, L \, (w - u_i), \qquad
    h_i = q \, F_i^{q - 1} \, \lVert L \, (w - u_i) \rVert^2 + L \, F_i^q, \qquad
    w \leftarrow w - \frac{\sum_{i \in S} \Delta_i}{\sum_{i \in S} h_i}.
    $$

Deviations:
    1. Participants are drawn uniformly, and a client's number of samples has no effect.
    2. $L$ is 1 / `local.lr`, even if a schedule lowers the rate. The paper uses the rate that is best for q = 0.
    3. A loss below 1e-10 counts as 1e-10.
    4. Float buffers (BatchNorm) are not trained by SGD. They are averaged with the weights $h_i$.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03}, "runtime": "inline"}
    >>> run = fedray.run(scenario, method={"name": "qffl", "q": 0.01}, report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fedray.core.options import MethodSpec, Option, real
from fedray.methods import kit

SPECS = {
    "qffl": MethodSpec(
        "q-FFL: clients with a large loss count more, so that accuracies become similar (Li et al. 2020)",
        family="averaging",
        models="one",
        options={
            "q": Option(1.0, real("[0, inf)"), "how much more a large loss counts: a client has the weight loss^q")
        },
        defaults={"method": {"models": 1}},
        fixed=("robust", "averages", "coefficients"),
        in_rounds="asks the clients of a round for the loss of its model",
        asks=True,
    ),
}


def qffl(setting: kit.Setting) -> kit.Method:
    """Composes q-FedAvg, which trains one model, `[1, d]`.

    Raises:
        BadInput: Clients train with an optimizer other than SGD.
    """
    local, q = setting.local, setting.options["q"]
    kit.base.require("q-FFL", local__optimizer=(local.optimizer_name, "sgd"))  # the learning rate is 1 / L
    phase = kit.federated(
        replace(setting, models=1),
        assign=kit.permutation,  # line 3: the clients that take part, who all train w
        local=local,  # line 5: E epochs of SGD
        compress=kit.dense,
        merge=partial(fair_mean, q=q, lr=local.lr, trainable=setting.layout.trainable),  # lines 6-8
    )
    return kit.Method("qffl", replace(phase, choose=lambda plan, _losses: plan))  # so that clients report F_i


def fair_mean(rows: kit.Rows, _weighting: kit.Weighting, q: float, lr: float, trainable: int) -> kit.Server:
    """Returns the server of q-FedAvg. A model without uploads stays unchanged.

    The step is `-sum_i Delta_i / sum_i h_i`. The common factor L = 1 / `lr` of both sums cancels, and is left out. The
    first `trainable` values of a model are its parameters. The other values (buffers) are averaged with the weights
    h_i.
    """

    def reduce(uploads: kit.Uploads) -> kit.Stats:
        assert uploads.losses is not None, "`Phase.choose` asks for them"
        group, one = rows.of(uploads), kit.torch.ones(len(uploads.client), dtype=kit.torch.int64)
        loss = kit.torch.from_numpy(uploads.losses[kit.numpy.arange(len(one)), uploads.model]).clamp(min=1e-10)[:, None]
        delta = uploads.delta.double()
        h = q * loss ** (q - 1) * delta[:, :trainable].square().sum(1, keepdim=True) / lr + loss**q
        change = kit.torch.cat([loss**q * delta[:, :trainable], h * delta[:, trainable:]], dim=1)
        return {
            "change": kit.exact_sum(change, group, rows.number, one, limbs=4),  # F^q is tiny where q is large
            "h": kit.exact_sum(h, group, rows.number, one, limbs=4),
            **kit.group_totals(uploads, group, one, rows.number),
        }

    def step(state: kit.State, stats: kit.Stats, _t: int) -> kit.State:
        h = stats["h"].value()
        return kit.apply_delta(state, kit.torch.where(h > 0, stats["change"].value() / h, 0.0), stats)

    return kit.Server(kit.no_extra, reduce, step)
