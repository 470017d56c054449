r"""HeteroFL: weak clients train only the first channels of each hidden layer.

Source: Diao, Ding, Tarokh, *HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients*, ICLR 2021, arXiv 2010.01264, Alg. 1. A tier of `clients.tiers` has a `width` r, by default 1. The slice of a
client is the part of the network that the client receives, trains and sends. A slice of width 1/2 has about a quarter
of the parameters. With several models (Fed-ensemble's schedule) each model is sliced in the same way.

Formulas of heterofl:
    A client of a tier of width $r$ trains a network with only $\lceil r c \rceil$ of the $c$ channels of each hidden
    layer. The client receives the first rows and columns of each weight matrix or kernel: $w_r = w[1 : \lceil r
    c_{\mathrm{out}} \rceil, \, 1 : \lceil r c_{\mathrm{in}} \rceil]$. Inputs and outputs stay whole. With
    `scaler: true` the slice divides each hidden layer by $r$ before the activation, in training and in prediction.

    The server averages every parameter $w_j$ over the set $S_j$ of participants whose slices contain this parameter. A
    parameter that no slice contains stays unchanged:

    $$
    w_j \leftarrow \sum_{i \in S_j} \frac{p_i}{\sum_{k \in S_j} p_k} \, u_{i,j}
    \quad \text{where } S_j \neq \emptyset .
    $$

    A training step takes the tier's seconds per step, times the share of the network's operations that the slice needs.
    If $r = 1$ in every tier, HeteroFL equals FedAvg bit for bit.

Deviations:
    1. Networks are `mlp`, `cnn`, `vgg11` without normalization, or your own `nn.Sequential` of such layers. The paper
       normalizes batches without running statistics, and asks all clients for the statistics at the end (static
       BatchNorm). Such networks are refused here. The paper's scaler divides hidden layers by r only in training. The
       paper's networks need no scaler in prediction, because they normalize afterwards. Without normalization, training
       with the scaler can diverge.
    2. The loss runs over all classes, and the last layer is averaged over all uploads. The paper's loss sets a logit to
       0 if the client does not have this class. The paper's code averages a class's parameters in the last layer only
       over the clients that have this class.
    3. After a Flatten layer, a channel of a convolution has one value for each pixel. The paper's convolutions end in a
       global pooling, after which a channel has a single value.
    4. A client stays in its tier (the paper's "fix"). The paper's variant "dynamic" draws widths in every round.
    5. The paper counts operations but no time.
    6. A client of the run predicts with its own slice (`personal_accuracy`), and a new client with the whole network.
    7. All uploads have the same weight, as in the paper. With `server.weighting: examples`, an upload's weight is the
       client's number of samples.

Example:
    >>> import fedray
    >>> scenario = {"method": "heterofl", "rounds": 3, "clients": {"number": 10}, "runtime": "inline"}
    >>> run = fedray.run(scenario, local__lr=0.03, report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
    >>> jobs = run.clients.to_pandas().groupby("tier")
    >>> jobs["up_bytes"].max().to_dict()  # 4 bytes a number: 50 hidden units, and 13
    {'hpc': 15040, 'lpc': 3940}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedray.core.options import MethodSpec, Option, flag
from fedray.methods import kit


def cut_channels(
    net: Any, widths: Sequence[float], example: Any, options: Mapping[str, Any], name: str
) -> tuple[kit.TierNet, ...]:
    """Returns for each tier a network with only the first channels of each hidden layer."""
    return kit.make_tier_nets(net, widths, example, scaler=options.get("scaler", False), who=name)


SPECS = {
    "heterofl": MethodSpec(
        "HeteroFL: a weak tier trains only the first channels of each hidden layer (Diao et al. 2021)",
        family="parts of a network",
        options={
            "scaler": Option(
                False,
                flag,
                "whether the hidden layers of a slice are divided by its width, in training (as in the paper) "
                "and in prediction",
            ),
        },
        defaults={
            "method": {"models": 1},
            "clients": {
                "tiers": {
                    "hpc": {"share": 0.5, "seconds_per_step": 0.002, "uplink": 12.5e6},
                    "lpc": {"share": 0.5, "width": 0.25, "seconds_per_step": 0.01, "uplink": 1.25e6},
                }
            },
        },
        fixed=("robust", "optimizer", "coefficients"),
        own_models=True,
        in_rounds="averages what the clients of a round have trained, part by part",
        slices=cut_channels,
    ),
}


def heterofl(setting: kit.Setting) -> kit.Method:
    """Composes HeteroFL with K models, `[K, d]`. The paper has K = 1."""
    phase = kit.federated_slices(
        setting,
        assign=kit.permutation,  # the participants of the round, and which model they train
        slices=kit.cut_slices(  # W^l = W_g[: d^l, : k^l], the same slice in every round
            setting.tier_nets,
            lambda _t, _channels: 0,  # the first channel
            answers=True,  # a client keeps, and is scored with, the slice that it has
        ),
        local=setting.local,  # E epochs of SGD on the slice, hidden layers divided by r with `scaler`
        compress=kit.dense,
    )  # each part of W_g becomes its mean over the slices that have it
    return kit.Method("heterofl", phase)
