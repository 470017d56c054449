r"""FedRolex: HeteroFL whose slices roll over the channels, one channel further in every round.

Source: Alam, Liu, Yan, Zhang, *FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction*,
NeurIPS 2022, arXiv 2212.01548, Alg. 1. In c rounds every channel of a layer of c channels is trained equally often,
even if no client can train all channels. Server and client know the round, so no index is sent.

Formulas of fedrolex:
    FedRolex is HeteroFL with a different slice in every round. In round $t$ a client of a tier of width $r$ trains
    these channels of each hidden layer of $c$ channels:

    $$
    \bigl\{ (t + i) \bmod c \; : \; 0 \le i < \lceil r c \rceil \bigr\}.
    $$

    The round $t$ is the same in all layers. The server averages each parameter separately, as HeteroFL does.

Deviations:
    1. Deviations 1 to 5 of HeteroFL hold here, too. Only the whole network predicts, as in the paper.
    2. All uploads have the same weight. The paper's mean has client weights p_n. With `server.weighting: examples` the
       weight is the number of the client's samples. In the authors' code the convolutions of all uploads have equal
       weights, too. But the weight of an upload's last layer and normalization layers grows with the number of earlier
       rounds that trained these layers.
    3. The window moves up, as the paper says. In the authors' code it moves down, and begins at channel `-t mod c`.
    4. Channels of a slice keep their order in the layer, even if the window wraps. This does not change the results.

Example:
    >>> import fedray
    >>> scenario = {"method": "fedrolex", "rounds": 3, "clients": {"number": 10}, "runtime": "inline"}
    >>> run = fedray.run(scenario, local__lr=0.03, report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
    >>> [rolling_channels(t, 50) for t in (0, 1, 49, 50)]
    [0, 1, 49, 0]
"""

from __future__ import annotations

from dataclasses import replace

from fedray.methods import kit
from fedray.methods.heterofl import SPECS as HETEROFL

SPECS = {
    "fedrolex": replace(
        HETEROFL["heterofl"],
        text="FedRolex: HeteroFL whose slices roll over the channels (Alam et al. 2022)",
        own_models=False,
    ),
}


def fedrolex(setting: kit.Setting) -> kit.Method:
    """Composes FedRolex with K models, `[K, d]`. The paper has K = 1."""
    phase = kit.federated_slices(
        setting,
        assign=kit.permutation,  # the participants of the round, and which model they train
        # the channels from t mod c on, with the same t in all layers
        slices=kit.cut_slices(setting.tier_nets, rolling_channels),
        local=setting.local,  # local training of the sub-model
        compress=kit.dense,
    )  # each entry becomes its mean over the sub-models that have it
    return kit.Method("fedrolex", phase)


def rolling_channels(t: int, channels: int) -> int:
    """Returns the first channel that clients train in round t. In a layer of c channels it is `t mod c`."""
    return t % channels
