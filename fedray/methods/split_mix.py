r"""Split-Mix: a device trains as many of K narrow base networks as its budget allows.

Each base network is trained by FedAvg. Source: Hong, Wang, Wang, Zhou, *Efficient Split-Mix Federated Learning for
On-Demand and In-Situ Customization*, ICLR 2022, Alg. 1.

Formulas of split_mix:
    A device of tier $b$ trains $m_b \le K$ base networks in a round. In $K$ rounds the device trains all base networks
    equally often. Each base network becomes the mean of its uploads. A device predicts with the first $m_b$ base
    networks:

    $$
    w_k \leftarrow w_k + \sum_{i \in S_k} p_i \, (u_{ik} - w_k), \qquad
    p(y \mid x) = \frac{1}{m_b} \sum_{k < m_b} p_{w_k}(y \mid x).
    $$

Deviations:
    1. The scenario's network is the base network (`model.hidden`, `model.width`), and a tier's `models_per_round` is
       the number of base networks that a device trains. The paper cuts a network of full width into K networks of width
       1/K. A device with the budget R (a fraction of the full width) trains R K of them, rounded down.
    2. A device predicts with the mean of probabilities, as all ensembles here do. The paper takes the mean of the
       logits.
    3. `accuracy` measures the predictions of new clients, which use all K base networks.

Example:
    >>> import fedray
    >>> tiers = {"strong": {"share": 0.5, "models_per_round": "all"}, "weak": {"share": 0.5}}
    >>> scenario = {"method": {"name": "split_mix", "models": 4}, "rounds": 4, "clients": {"number": 10}}
    >>> scenario["clients"]["tiers"] = tiers
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> jobs = run.clients.to_pandas().groupby("tier")["model"].count()
    >>> jobs.to_dict()  # of 5 devices each, in 4 rounds
    {'strong': 80, 'weak': 20}
"""

from __future__ import annotations

from fedray.core.options import MethodSpec
from fedray.methods import kit
from fedray.methods.shefl import SPECS as SHEFL

SPECS = {
    "split_mix": MethodSpec(
        "Split-Mix: a device trains as many of K narrow base networks as its budget allows (Hong et al. 2022)",
        family="parts of a network",
        defaults={
            "method": {"models": 8},
            "server": {"weighting": "examples"},
            "clients": SHEFL["shefl"].defaults["clients"],
        },
    ),
}


def split_mix(setting: kit.Setting) -> kit.Method:
    """Composes Split-Mix with K base networks, `[K, d]`. A device that trains m of them sends m d values."""
    phase = kit.federated(setting, assign=kit.permutation, compress=kit.dense, merge=kit.mean)
    can = kit.numpy.array([tier.models_per_round or setting.models for tier in setting.clients.tiers])
    first = (kit.numpy.arange(setting.models) < can[:, None]).astype(float)  # [T, K]: what a device of each tier holds
    tiers = kit.numpy.stack([first / first.sum(axis=1, keepdims=True)] * len(setting.seeds))
    return kit.Method("split_mix", phase, lambda state: kit.Answer(state, setting.models, tiers=tiers))
