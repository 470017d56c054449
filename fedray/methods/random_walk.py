r"""Random walk: K models walk from client to client over a graph. Each client trains the models that it gets.

Source: Shi, Lai, Kontar, Chowdhury, *Fed-ensemble*, IEEE T-ASE 2024, doi 10.1109/TASE.2023.3269639, section V-H. There
is no server. One round is one step of all K walks. K = 1 is the paper's "FedAvg random walk". The mean of the K models'
predictions is the prediction.

Formulas of random_walk:
    Clients are the nodes of a graph. In step $t$ model $k$ is at client $i_k(t)$. This client trains the model and
    sends it to a neighbor:

    $$
    w_k \leftarrow \mathrm{Train}(w_k; F_{i_k(t)}), \qquad i_k(t + 1) \sim Q(i_k(t), \cdot).
    $$

    Client $i$ has $d_i$ neighbors. The key `graph.transition` sets the probability $Q(i, j)$ of neighbor $j$:

    $$
    Q(i, j) = \begin{cases}
    1 / d_i & \texttt{uniform},\\
    1 / (2 d_i) \text{ and } Q(i, i) = 1 / 2 & \texttt{lazy},\\
    \min(1 / d_i, 1 / d_j) \text{ and } Q(i, i) = 1 - \sum_{j \ne i} Q(i, j) & \texttt{metropolis}.
    \end{cases}
    $$

Deviations:
    1. The paper has only the `uniform` transition.
    2. The model may be compressed when it moves (`fedray.components.random_walk`). The paper sends the model whole.
    3. A client that has failed keeps the models that it holds. A model also stays where it is if the link to the
       drawn neighbor has failed, or if this neighbor fails in the next step. No other neighbor is drawn.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "random_walk", "models": 3}, "rounds": 20, "clients": {"number": 10}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> run.clients.num_rows  # 20 steps of 3 walks
    60
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec
from fedray.methods import kit

SPECS = {
    "random_walk": MethodSpec(
        "no server: K models walk over a graph of clients (Shi et al. 2024, section V-H)",
        family="ensembles",
        defaults={"rounds": 100, "schedule": {"kind": "walk"}, "local": {"epochs": 1}},
        clients=10,
        fixed=("robust", "optimizer", "averages", "coefficients", "schedules"),
        walks=True,
    ),
}


def random_walk(setting: kit.Setting) -> kit.Method:
    """Composes K models `[K, d]` that walk from client to client. The N clients are the nodes of a graph."""
    if setting.walk is None:
        raise BadInput("method.name = random_walk walks over a graph: set schedule.kind to walk")
    whole = kit.base.make_compressor(setting)
    if kit.compression.RESIDUAL in whole.own:
        raise BadInput(
            "compress.error_feedback = true, but a client of a random walk meets a model again only when what it kept "
            "back is long out of date: set it to false"
        )
    lossy = None if whole.lossless else whole
    compress = kit.Compress(whole.bytes)
    server = kit.random_walk.handover_server(setting.state_rows, setting.walk, setting.clients, setting.seeds, lossy)
    return kit.Method(
        "random_walk",
        kit.Phase(
            models=setting.models,
            schedule=kit.random_walk.walk_schedule(setting.walk),  # the holder of each model
            local=setting.local,
            server=server,  # the model moves on without a merge
            compress=compress,
            walk=setting.walk,
            traffic=kit.random_walk.walk_traffic(setting.walk, setting.clients, compress),  # from client to client
        ),
    )
