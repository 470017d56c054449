"""Fed-ensemble (FE Alg. 1): K models from K random starts; in every round a client trains exactly one of them.

Compute and traffic equal FedAvg's. Source: Shi, Lai, Kontar, Chowdhury, *Fed-ensemble: Ensemble Models in Federated
Learning for Improved Generalization and Uncertainty Quantification*, IEEE T-ASE 2024, doi 10.1109/TASE.2023.3269639.

Deviations:
    1. The personal weights of eq. 4 are `softmax(-loss / gamma)`. The paper's printed closed form `exp(-gamma * loss)`
       and the sign in its objective contradict its own sentence that a large gamma tends to uniform weights.
    2. Under partial participation a row of the schedule may be a client, a slot or a stratum (`schedule.rows`).

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "fed_ensemble", "models": 3}, "rounds": 3, "clients": {"number": 10}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}, {len(run.models)} models")
    0.9, 3 models
"""

from __future__ import annotations

from fedray.methods import kit


def fed_ensemble(setting: kit.Setting) -> kit.Method:
    """K models `[K, d]` over N clients."""
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # lines 2-5: P_r is drawn anew at every age, then row r trains model P_r[t mod K]
        local=setting.local,  # line 7: local_update
        compress=kit.dense,  # line 8: the whole model is sent
        merge=kit.mean,  # line 9, Remark 1: the mean of the uploads that started from w_k; without any, w_k stays
    )
    return kit.Method("fed_ensemble", phase)
