r"""SCAFFOLD: control variates correct the drift of clients.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, *SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning*, ICML 2020, Alg. 1 with option II. A client receives and sends two vectors `[d]`. With K > 1 each model has
its own control variates c and c_i.

Formulas of scaffold:
    Client $i$ keeps a control variate $c_i$, and the server keeps $c$. Both start at 0. Client $i$ starts at $w$, takes
    $\tau_i$ steps $v \leftarrow v - \eta \, (g_i(v) - c_i + c)$, and ends at $u_i$. Here $g_i$ is the gradient of a
    batch. The client's new control variate $c_i^+$ is the mean gradient of these steps:

    $$
    \begin{aligned}
    c_i^+ &= c_i - c + \frac{w - u_i}{\tau_i \, \eta},\\
    w &\leftarrow w + \sum_{i \in S} p_i \, (u_i - w), \qquad
    c \leftarrow c + \frac{1}{N} \sum_{i \in S} (c_i^+ - c_i), \qquad c_i \leftarrow c_i^+ .
    \end{aligned}
    $$

Deviations:
    1. Option II divides by `lr` times the number of steps that the client really made.
    2. Control variates are sent whole, even if the change of the model is compressed.
    3. A control variate stays unchanged in a round whose learning rate is 0 (`local.schedule`).
    4. The paper has plain SGD. With `local.momentum` the momentum accumulates the corrections, too. Option II then
       divides by FedNova's $|a_i|_1$ instead of $\tau_i$, so that a control variate is still a mean gradient.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03}}
    >>> run = fedray.run({**scenario, "method": {"name": "scaffold"}}, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.options import MethodSpec
from fedray.methods import kit
from fedray.methods.feddyn import CORRECTED

SPECS = {
    "scaffold": MethodSpec(
        "SCAFFOLD: control variates against client drift (Karimireddy et al. 2020)",
        family="averaging",
        defaults={"method": {"models": 1}},
        in_rounds=CORRECTED,
        private="control variate",
    ),
}


def scaffold(setting: kit.Setting) -> kit.Method:
    """Composes SCAFFOLD with K models, `[K, d]`."""
    local, p = setting.local, setting.layout.trainable
    kit.base.require("SCAFFOLD", local__optimizer=(local.optimizer_name, "sgd"))

    def update(
        own: kit.torch.Tensor, shared: kit.torch.Tensor | None, delta: kit.torch.Tensor, rate: kit.torch.Tensor
    ) -> kit.torch.Tensor:
        assert shared is not None
        new = kit.servers.zero_buffers(own - shared - delta / rate, p)  # line 12, option II
        return kit.torch.where(rate > 0, new, own)  # at a learning rate of 0 the delta tells nothing about the gradient

    def offset(own: kit.torch.Tensor, shared: kit.torch.Tensor | None) -> kit.torch.Tensor:
        assert shared is not None
        return shared - own  # line 10

    phase = kit.federated(
        setting,
        assign=kit.permutation,  # line 4: the clients S that take part
        # lines 7-12; line 5: clients receive x and c; line 13: they send the changes of the model and of the variate
        pieces=[kit.Correction("control", offset, update, shared=kit.servers.CONTROL)],
    )
    # lines 16-17
    server = kit.servers.scaffold_server(
        kit.base.make_server(setting, kit.mean), setting.state_rows, setting.clients.number
    )
    return kit.Method("scaffold", replace(phase, server=server))
