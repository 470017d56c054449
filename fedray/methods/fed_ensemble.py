"""Fed-ensemble (FE Alg. 1): K models from K random starts; in every round a client trains exactly one of them.

Compute and traffic equal FedAvg's. Source: Shi, Lai, Kontar, Chowdhury, *Fed-ensemble: Ensemble Models in Federated
Learning for Improved Generalization and Uncertainty Quantification*, IEEE T-ASE 2024, doi 10.1109/TASE.2023.3269639.

Deviations:
    1. The personal weights of eq. 4 are `softmax(-loss / gamma)`. The paper's printed closed form `exp(-gamma * loss)`
       and the sign in its objective contradict its own sentence that a large gamma tends to uniform weights.
    2. Under partial participation a row of the schedule may be a client or a stratum (`schedule.rows`).
"""

from __future__ import annotations

from fedray.core.method import Method, Phase
from fedray.methods.setting import Setting


def fed_ensemble(setting: Setting) -> Method:
    """K models `[K, d]` over N clients."""
    return Method(
        "fed_ensemble",
        Phase(
            models=setting.models,
            schedule=setting.schedule(),  # lines 2-5: P_r at every age, then model P_r[t mod K]
            local=setting.local,  # line 7: local_update
            server=setting.server(),  # line 9, Remark 1: the mean of the uploads that started from w_k
            compress=setting.compressed(),
        ),
    )
