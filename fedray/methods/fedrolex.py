r"""FedRolex: HeteroFL whose slices roll over the channels, one channel further in every round.

Source: Alam, Liu, Yan, Zhang, *FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction*,
NeurIPS 2022, arXiv 2212.01548, Alg. 1. In round t a slice has the channels `t mod c, ..., t mod c + ceil(r c) - 1` of a
hidden layer of c channels, and goes on with channel 0 behind the last one: in c rounds every channel is trained equally
often, also where no client can train all of them. Server and client know t, so that no index is sent.

Formulas of fedrolex:
    HeteroFL with another slice in every round: in round $t$ a client of a tier of width $r$ gets of each hidden layer
    of $c$ channels

    $$
    \bigl\{ (t + i) \bmod c \; : \; 0 \le i < \lceil r c \rceil \bigr\},
    $$

    with the same $t$ in all layers. So every channel of a layer is in $\lceil r c \rceil$ of $c$ rounds. The server
    averages number by number, as HeteroFL does.

Deviations:
    1. As in HeteroFL, 1 to 5: networks without normalization and scaler, the plain loss, flattened channels, fixed
       tiers, and seconds. Only the whole network answers, as in the paper.
    2. Uploads weigh the same; the paper's mean weighs them by p_n (`server.weighting: examples` weighs them by their
       rows). In the authors' code those of convolutions weigh the same, and what belongs to the last layer or to a
       normalization weighs more the more often it was trained so far.
    3. The window moves up, as the paper says; in the authors' code it moves down, from channel `-t mod c` on.
    4. Channels of a slice keep their order in the layer, where the window wraps as well. What it computes is the same.

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
    """K models `[K, d]` (the paper: 1) over clients in tiers; each trains a window of every layer's channels."""
    phase = kit.federated_slices(
        setting,
        assign=kit.permutation,  # the participants of the round, and which model they train
        # channels t mod c and those behind it, the same t in all layers
        slices=kit.cut_slices(setting.tier_nets, rolling_channels),
        local=setting.local,  # local training of the sub-model
        compress=kit.dense,
    )  # each entry becomes its mean over the sub-models that have it
    return kit.Method("fedrolex", phase)


def rolling_channels(t: int, channels: int) -> int:
    """The first channel of the window of round t, `t mod c`."""
    return t % channels
