r"""FedExP: FedAvg whose server takes a longer step if the clients' updates point in different directions.

Source: Jhunjhunwala, Wang, Joshi, *FedExP: Speeding up Federated Averaging via Extrapolation*, ICLR 2023, Alg. 1.

Formulas of fedexp:
    The server multiplies the mean update $\bar\Delta$ by $\eta_g \ge 1$, which is large if updates differ:

    $$
    \Delta_i = \mathrm{Train}(w; F_i) - w, \qquad \bar\Delta = \sum_{i \in S} p_i \Delta_i, \qquad \eta_g = \max\Bigl(1,
    \frac{\sum_{i \in S} p_i \lVert \Delta_i \rVert^2} {2 \, (\lVert \bar\Delta \rVert^2 + \epsilon)}\Bigr), \qquad w
    \leftarrow w + \eta_g \, \bar\Delta.
    $$

    If all $\Delta_i$ are equal, $\eta_g = 1$ and FedExP is FedAvg. For $n$ orthogonal updates of equal length and
    weight, $\eta_g = n / 2$.

Deviations:
    1. The last model predicts. The paper reports the mean of the last two models.
    2. $\epsilon$ is the option `eps`. The paper tunes $\epsilon$ together with the learning rates.
    3. Float buffers (BatchNorm) are not trained by SGD. They are averaged, and are left out of the lengths of updates.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.03}, "runtime": "inline"}
    >>> run = fedray.run(scenario, method="fedexp", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from functools import partial

from fedray.core.options import MethodSpec, Option, real
from fedray.methods import kit

SPECS = {
    "fedexp": MethodSpec(
        "FedExP: the server's step is longer where clients' updates differ (Jhunjhunwala et al. 2023)",
        family="averaging",
        options={"eps": Option(1e-3, real("(0, inf)"), "what is added to the squared length of the mean update")},
        defaults={"method": {"models": 1}, "server": {"weighting": "examples"}},
        fixed=("robust", "coefficients"),
    ),
}


def fedexp(setting: kit.Setting) -> kit.Method:
    """Composes FedExP with K models, `[K, d]`."""
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # the clients that take part
        local=setting.local,  # tau steps of SGD
        compress=kit.dense,
        merge=partial(extrapolated_mean, eps=setting.options["eps"], trainable=setting.layout.trainable),  # eq. 8
    )
    return kit.Method("fedexp", phase)


def extrapolated_mean(rows: kit.Rows, weighting: kit.Weighting, eps: float, trainable: int) -> kit.Server:
    """Returns a server that adds to each model the mean update times `eta`, which is at least 1.

    `eta` is computed from the lengths of the updates. Only the first `trainable` values (parameters) enter a length.
    The other values (buffers) are averaged without `eta`. A model without uploads stays unchanged.
    """
    plain = kit.mean(rows, weighting)

    def reduce(uploads: kit.Uploads) -> kit.Stats:
        square = uploads.delta[:, :trainable].double().square().sum(1, keepdim=True)
        weight = kit.upload_weights(uploads, weighting)
        lengths = kit.exact_sum(square, rows.of(uploads), rows.number, weight, limbs=2)
        return {**plain.reduce(uploads), "lengths": lengths}

    def step(state: kit.State, stats: kit.Stats, _t: int) -> kit.State:
        total = stats["weight"].total.clamp(min=1)[:, None]
        delta = stats["sum"].value() / total
        most = stats["lengths"].value() / total / (2 * (delta[:, :trainable].square().sum(1, keepdim=True) + eps))
        delta[:, :trainable] *= most.clamp(min=1)  # eta
        return kit.apply_delta(state, delta, stats)

    return kit.Server(kit.no_extra, reduce, step)
