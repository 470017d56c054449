r"""FedNova: normalized averaging, so that a client with more local steps does not have more influence.

Source: Wang, Liu, Liang, Joshi, Poor, *Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization*, NeurIPS 2020, eq. 7 with SGD.

Formulas of fednova:
    Client $i$ takes $\tau_i$ local steps of SGD. The server averages the mean step of each client, not the sum of the
    client's steps:

    $$
    w \leftarrow w + \tau_{\mathrm{eff}} \sum_{i \in S} p_i \, \frac{u_i - w}{\tau_i}, \qquad
    \tau_{\mathrm{eff}} = \sum_{i \in S} p_i \, \tau_i .
    $$

    With `local.momentum` $\rho$ the paper's $|a_i|_1$ replaces $\tau_i$ in both formulas:

    $$
    |a_i|_1 = \frac{1}{1 - \rho} \Big( \tau_i - \frac{\rho (1 - \rho^{\tau_i})}{1 - \rho} \Big) .
    $$

Deviations:
    1. The sums run over the clients that took part in a round and trained the model. The weights `p_i` of these clients
       add up to 1.
    2. Adam and the proximal term would need a different `a_i`, and are refused. Weight decay is part of the loss. The
       paper does not have `local.nesterov`. With this key, $|a_i|_1$ is $\tau_i$ plus $\rho$ times the formula above.
    3. Float buffers (BatchNorm) are not trained by SGD. They are averaged with `p_i`, as in FedAvg.
    4. The default of `server.weighting` is `examples`. With `uniform` all `p_i` are equal.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03}}
    >>> run = fedray.run({**scenario, "method": {"name": "fednova"}}, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from functools import partial

from fedray.core.options import MethodSpec
from fedray.methods import kit

SPECS = {
    "fednova": MethodSpec(
        "FedNova: each client's delta is divided by its local steps before the mean (Wang et al. 2020)",
        family="averaging",
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        fixed=("robust", "coefficients"),
        splits=True,
    ),
}


SCALE = 2.0**24  # of tau_i, so that an exact sum takes it times a large client's number of samples


def fednova(setting: kit.Setting) -> kit.Method:
    """Composes FedNova with K models, `[K, d]`.

    Raises:
        BadInput: Clients do not train with plain SGD.
    """
    local = setting.local
    kit.base.require("FedNova", local__optimizer=(local.optimizer_name, "sgd"), local__pull=(local.pull, 0))
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # the clients that take part
        local=local,  # tau_i steps of SGD
        compress=kit.dense,
        merge=partial(normalized_mean, local=local, trainable=setting.layout.trainable),  # eq. 7
    )
    return kit.Method("fednova", phase)


def normalized_mean(rows: kit.Rows, weighting: kit.Weighting, local: kit.Local, trainable: int) -> kit.Server:
    """Returns a server that steps `w <- w + tau_eff sum_i p_i delta_i / tau_i`, where `tau_eff = sum_i p_i tau_i`.

    tau_i is client i's number of steps. With momentum, `|a_i|_1` replaces tau_i. A model without uploads stays
    unchanged. The first `trainable` values of a model are its parameters. The other values (buffers) are averaged
    without tau.
    """

    def reduce(uploads: kit.Uploads) -> kit.Stats:
        group, weight = rows.of(uploads), kit.upload_weights(uploads, weighting)
        assert uploads.steps is not None, "training gives them"
        tau = kit.torch.from_numpy(kit.block.weigh_gradients(uploads.steps, local))[:, None]
        delta = uploads.delta.to(kit.torch.float64, copy=True)
        delta[:, :trainable] /= tau.clamp(min=1)  # -d_i
        return {
            "sum": kit.exact_sum(delta, group, rows.number, weight, limbs=2),  # d_i is small where tau_i is large
            "steps": kit.exact_sum(tau / SCALE, group, rows.number, weight, limbs=3),
            **kit.group_totals(uploads, group, weight, rows.number),
        }

    def step(state: kit.State, stats: kit.Stats, _t: int) -> kit.State:
        total = stats["weight"].total.clamp(min=1)[:, None]
        delta = stats["sum"].value() / total
        delta[:, :trainable] *= stats["steps"].value() * SCALE / total  # tau_eff
        return kit.apply_delta(state, delta, stats)

    return kit.Server(kit.no_extra, reduce, step)
