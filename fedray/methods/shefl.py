r"""SHEFL: in a round strong clients train all K models, and weak clients train one model. Uploads are sparse (top-k).

Source: *Resource-Aware Aggregation and Sparsification for Heterogeneous Ensemble Federated Learning*, Alg. 1, eqs. 1-2.
SHEFL is Fed-ensemble with three more ingredients: two tiers of clients (`clients.tiers`), an uplink budget for each
tier, and an average over tiers instead of over clients. The paper's HPC are strong clients, and LPC are weak ones.

Formulas of shefl:
    In a round strong clients $H$ train all $K$ models. Weak clients $L$ train one model, which changes from round to
    round as in Fed-ensemble. An upload keeps only the $q$ entries of largest magnitude:

    $$
    \tilde\Delta_i = \mathrm{top}_{q}(u_i - w_k), \qquad q_L = \rho \, d, \qquad q_H = \frac{\rho \, r \, d}{K}
    \text{ for each of its } K \text{ models}.
    $$

    $\rho$ is `compress.ratio`, and $r$ is `compress.resource_ratio`. Without `compress.resource_ratio`, $r = K$ and
    $q_H = q_L$. At most $d$ entries are sent. $C_k$ are the tiers that sent an upload of model $k$. The server averages
    the changes of each tier, and then the tiers' means:

    $$
    w_k \leftarrow w_k + \frac{1}{|C_k|} \sum_{c \in C_k} \sum_{i \in S_k \cap c} \frac{\tilde\Delta_i}{|S_k \cap c|}.
    $$

Deviations:
    1. Aggregation follows the text of section 3.3, `w <- w + 1/2 mean_HPC(delta) + 1/2 mean_LPC(delta)`. Tiers without
       uploads of a model are skipped, and all other tiers have equal weights (`server.coefficients: equal_groups`). The
       printed eq. 2 is available as `paper_eq2`. Both formulas agree if and only if the round has K LPC clients and one
       of them trained the model.
    2. The server applies the tiers' weights after compression. The order does not matter, because scaling commutes with
       top-k.
    3. The paper says "10 local iterations". Here a local training has 10 *epochs*. Iterations and epochs are compared
       in `docs/results/shefl.md`.
    4. There may be any number of tiers.
    5. `mu` > 0 adds FedProx's proximal term. `alpha` > 0 adds FedDyn's corrections (a private vector `[d]` for each
       client and model) and the step of FedDyn's server.
    6. Participants are drawn uniformly within their tier. The paper draws one participant from each of ten strata
       (`schedule.rows: stratum`, as in the scenario files of the paper's results).

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "shefl", "models": 3}, "rounds": 3, "clients": {"number": 10}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
    >>> jobs = run.clients.to_pandas().groupby("tier")
    >>> (jobs["up_bytes"].mean() / 1000).round(1).to_dict()  # kB for each trained model; a dense one takes 15.0
    {'hpc': 2.0, 'lpc': 2.0}
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.options import MethodSpec, Option, real
from fedray.methods import kit
from fedray.methods.fedavg import add_proximal_term
from fedray.methods.feddyn import correct_clients, correct_server

RATIO = 0.1  # section 4: the fraction of entries that an upload keeps by default
SPECS = {
    "shefl": MethodSpec(
        "SHEFL: strong devices train all models, weak devices one; top-k uploads; tiers have equal weights",
        family="ensembles",
        options={
            "mu": Option(0.0, real("[0, inf)"), "weight of the proximal term `mu / 2 |w - w_start|^2`"),
            "alpha": Option(0.0, real("[0, inf)"), "weight of FedDyn's corrections; 0 leaves them out"),
        },
        defaults={
            "clients": {
                "tiers": {
                    "hpc": {"share": 0.5, "models_per_round": "all", "seconds_per_step": 0.002, "uplink": 12.5e6},
                    "lpc": {"share": 0.5, "seconds_per_step": 0.01, "uplink": 1.25e6},
                }
            },
            "compress": {"kind": "topk", "ratio": RATIO},
            "server": {"coefficients": "equal_groups"},
        },
        splits=True,
        private="correction, if `alpha` > 0",
    ),
}


def shefl(setting: kit.Setting) -> kit.Method:
    """Composes SHEFL with K models, `[K, d]`."""
    tiers, alpha = setting.clients.tiers, setting.options["alpha"]  # HPC: m = K, LPC: m = 1 (`models_per_round`)

    def compress(layout: kit.Layout) -> kit.Compress:  # section 3.2: k = ratio d of each trained model
        return kit.compression.top_k(layout, kit.compression.keep_by_tier(layout, tiers, setting.models, RATIO))

    def merge(rows: kit.Rows, weighting: kit.Weighting) -> kit.Server:  # section 3.3: mean over tiers of their means
        return kit.servers.by_tier(rows, len(tiers), weighting)

    local, pieces = add_proximal_term(setting.local, setting.options["mu"]), list[kit.Piece]()
    if alpha:
        local, correction = correct_clients(local, alpha, setting.layout.trainable)
        pieces = [correction]
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # Alg. 1, lines 4-7: entries P[(t + j) mod K], j < m, of the client's row P
        local=local,
        pieces=pieces,  # line 8
        compress=compress,  # line 9
        merge=merge,  # lines 11-13
    )
    if alpha:
        phase = replace(phase, server=correct_server(setting, kit.base.merge_uploads(setting, merge)))
    return kit.Method("shefl", phase)
