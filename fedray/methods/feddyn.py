r"""FedDyn adds a linear and a quadratic term to each client's loss.

With these terms a minimum of the global loss is also a minimum of every client's loss.

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, *Federated Learning Based on Dynamic Regularization*,
ICLR 2021, Alg. 1. FedDyn-ensemble is FedDyn under the schedule of Fed-ensemble (Table III of Fed-ensemble's paper). The
server keeps one vector per model.

Formulas of feddyn:
    Client $i$ keeps a vector $h_i$, and the server keeps $h$. Both start at 0. These vectors accumulate the changes of
    the models, multiplied by the key `alpha`:

    $$
    \begin{aligned}
    u_i &= \mathrm{Train}\Bigl(w;\; F_i(v) - \langle h_i, v \rangle + \frac{\alpha}{2} \lVert v - w \rVert^2\Bigr),\\
    h_i &\leftarrow h_i - \alpha \, (u_i - w),\\
    h &\leftarrow h - \frac{\alpha}{N} \sum_{i \in S} (u_i - w),\\
    w &\leftarrow \frac{1}{|S|} \sum_{i \in S} u_i - \frac{1}{\alpha} h .
    \end{aligned}
    $$

Formulas of feddyn_ensemble:
    FedDyn trains each of $K$ models under the schedule of Fed-ensemble, with one $h_{ik}$ for each client and model.

Deviations:
    1. As in the paper's experiments, clients train for some local epochs instead of minimizing exactly.
    2. If uploads are compressed, a client's correction uses the change that the client computed. The server's vector
       uses the change that was sent.
    3. If a scenario merges uploads by a rule other than the mean, the server's h uses the result of this rule.

Note:
    With alpha -> 0 FedDyn does not become FedAvg, because `h / alpha` does not vanish (h is proportional to alpha).

Example:
    >>> import fedray
    >>> scenario = {"method": "feddyn", "rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03}}
    >>> run = fedray.run({**scenario, "method": {"name": "feddyn", "alpha": 0.1}}, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, real
from fedray.methods import kit

_ALPHA = {"alpha": Option(0.01, real("(0, inf)"), "weight of the regularization")}
CORRECTED = "has corrections that clients and server update in the same round"
SPECS = {
    "feddyn": MethodSpec(
        "FedDyn: dynamic regularization, one linear correction for each client (Acar et al. 2021)",
        family="averaging",
        models="one",
        options=_ALPHA,
        defaults={"method": {"models": 1}},
        fixed=("optimizer",),
        in_rounds=CORRECTED,
        private="correction",
    ),
    "feddyn_ensemble": MethodSpec(
        "FedDyn under the schedule of Fed-ensemble, one correction for each client and model",
        family="ensembles",
        options=_ALPHA,
        fixed=("optimizer",),
        in_rounds=CORRECTED,
        private="correction",
    ),
}


def feddyn(setting: kit.Setting) -> kit.Method:
    """Composes FedDyn, which is FedDyn-ensemble with one model."""
    return replace(feddyn_ensemble(replace(setting, models=1)), name="feddyn")


def feddyn_ensemble(setting: kit.Setting) -> kit.Method:
    """Composes FedDyn-ensemble with K models, `[K, d]`."""
    alpha, p = setting.options["alpha"], setting.layout.trainable
    local, correction = correct_clients(setting.local, alpha, p)
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # line 3: the active devices P_t, each of which trains one of the K models
        local=local,
        pieces=[correction],  # lines 6-8
    )
    server = correct_server(setting, kit.base.merge_uploads(setting, kit.mean))  # lines 11-12
    return kit.Method("feddyn_ensemble", replace(phase, server=server))


def correct_clients(local: kit.Local, alpha: float, trainable: int) -> tuple[kit.Local, kit.Correction]:
    """Returns FedDyn's local training, and the addition to each job that updates `h_i <- h_i - alpha (u - w_start)`.

    Only the first `trainable` values of a model are trained.
    """
    correction = kit.Correction(
        name="dynamic",
        offset=lambda h, _shared: -h,  # line 7: the linear term
        # line 8
        update=lambda h, _shared, delta, _rate: h - alpha * kit.servers.zero_buffers(delta, trainable),
    )
    return replace(local, pull=local.pull + alpha), correction  # line 7: the quadratic term


def correct_server(setting: kit.Setting, base: kit.Server) -> kit.Server:
    """Returns FedDyn's server, `w <- mean of uploads - h / alpha` (lines 11-12). The server `base` computes the mean.

    Raises:
        BadInput: The scenario also sets a server optimizer.
    """
    if setting.optimizer.kind != "none":
        raise BadInput(
            f"server.optimizer = {setting.optimizer.kind}, but FedDyn's server has a step of its own: leave it at none"
        )
    rows, alpha, p = setting.state_rows, setting.options["alpha"], setting.layout.trainable
    return kit.servers.feddyn_server(base, rows, setting.clients.number, alpha, p)
