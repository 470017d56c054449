r"""DepthFL: weak clients train the first blocks of a network with a head after each block, and all heads predict.

Source: Kim, Yu, Kim, Moon, *DepthFL: Depthwise Federated Learning for Heterogeneous Clients*, ICLR 2023, Alg. 1. The
network is cut into D blocks. A head is an output layer. A tier of `clients.tiers` has a `width` r, which here is a
fraction of the blocks. Clients of the tier receive, train and send the first `ceil(r D)` blocks with their heads.

Formulas of depthfl:
    A client with $b$ blocks has heads $m = 1, \dots, b$ with logits $z_m$. The client minimizes the cross entropy of
    each head, and the divergence of each head's prediction from the predictions of the other heads:

    $$
    \sum_{m \le b} \mathrm{CE}(z_m, y) + \frac{c_t}{b - 1} \sum_{m \le b} \sum_{j \ne m}
    \mathrm{KL}\bigl(\mathrm{softmax}(z_j) \,\Vert\, \mathrm{softmax}(z_m)\bigr).
    $$

    No gradient flows through $z_j$. The weight $c_t = c \, \exp\bigl(-5 \, (1 - \min(1, t / T))^2\bigr)$ rises to $c$
    (`consistency`) in $T$ rounds (`ramp`). Every parameter $w_n$ is averaged over the set $S_n$ of participants that
    train it. If the key `alpha` is above 0, FedDyn's corrections $h_n$ (`feddyn`) are added to the mean of the uploads
    $u_i$:

    $$
    h_n \leftarrow h_n - \frac{\alpha}{N} \sum_{i \in S_n} (u_{i,n} - w_n), \qquad
    w_n \leftarrow \frac{1}{|S_n|} \sum_{i \in S_n} u_{i,n} - \frac{1}{\alpha} h_n .
    $$

    The prediction is the softmax of the mean of the heads' logits. A client of the run uses only the heads of its own
    blocks. With `extended: false` a client has only the last of these heads, as in the method InclusiveFL without
    momentum.

Deviations:
    1. `fedray.models.nets.add_exits` cuts the scenario's network. ResNet-18 is cut into the four stages of the paper. A
       `cnn` is cut before each of its layers with weights. An added head is a linear layer on the means of the
       channels. The paper's heads also have attention and convolutions.
    2. Batch normalization with running statistics is refused if a tier has only part of the network. The paper averages
       such statistics like weights. Use `model.norm: group` instead.
    3. Heads that no client trains do not predict. With `extended: false`, the trained heads predict together for new
       clients. A client of the run predicts with its own head.
    4. Local training follows the scenario's section `local`. The paper makes 5 epochs of SGD in batches of 50 for 1,000
       rounds, at a rate of 0.1 that is multiplied by 0.998 each round. The default T = 300 is from the authors' code.

Example:
    >>> import fedray
    >>> tiers = {"strong": {"share": 0.5}, "weak": {"share": 0.5, "width": 0.5}}
    >>> scenario = {"method": "depthfl", "rounds": 1, "clients": {"number": 10, "tiers": tiers}, "runtime": "inline"}
    >>> run = fedray.run(scenario, model__hidden=[50, 50], local__lr=0.1, report=False)
    >>> jobs = run.clients.to_pandas().groupby("tier")
    >>> jobs["up_bytes"].max().to_dict()  # 4 bytes a number: blocks of 3,250 and 2,550 numbers, and heads of 510
    {'strong': 27280, 'weak': 15040}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, flag, real, whole
from fedray.methods import kit
from fedray.methods.feddyn import correct_clients
from fedray.methods.heterofl import SPECS as HETEROFL


def add_heads(net: Any, options: Mapping[str, Any], shape: tuple[int, ...], name: str) -> Any:
    """Cuts a network into blocks, and adds a head (an output layer) after each block."""
    return kit.nets.add_exits(net, options["blocks"], shape, name, "depthfl")


def cut_blocks(
    net: Any, widths: Sequence[float], example: Any, options: Mapping[str, Any], name: str
) -> tuple[kit.TierNet, ...]:
    """Returns each tier's network: the first blocks of its layers, with all heads of these blocks or only the last."""
    blocks, whole_flops = len(net.module.blocks), kit.count_forward_flops(net, example)

    def cut(width: float) -> kit.TierNet:
        depth = max(1, math.ceil(width * blocks - 1e-9))
        heads = range(depth) if options["extended"] else [depth - 1]
        if len(heads) == blocks:
            return kit.TierNet(width, net, (), 1.0)
        if net.layout.counters:
            raise BadInput(
                f"model.name = {net.name} counts batches (BatchNorm), but {name} averages parts of networks: choose "
                "model.norm group, or none"
            )
        part = kit.nets.keep_exits(net, depth, heads)
        return kit.TierNet(width, part, (), kit.count_forward_flops(part, example) / whole_flops)

    made = {width: cut(width) for width in set(widths)}
    return tuple(made[width] for width in widths)


SPECS = {
    "depthfl": MethodSpec(
        "DepthFL: a tier trains the first blocks with a head after each; all heads predict (Kim et al. 2023)",
        family="parts of a network",
        classes=True,
        options={
            "blocks": Option(
                4, whole(1, 100), "D, the number of blocks, at most one for each layer with weights except the last"
            ),
            "extended": Option(
                True, flag, "whether a client trains the heads of all its blocks; with `false` only the last one"
            ),
            "consistency": Option(1.0, real("[0, inf)"), "c, weight of the divergence between the heads of a client"),
            "ramp": Option(300, whole(0, 10**6), "T, rounds in which the weight rises from 0.007 c to c; 0 skips this"),
            "alpha": Option(0.1, real("[0, inf)"), "weight of FedDyn's corrections; 0 leaves them out"),
        },
        defaults={
            "method": {"models": 1},
            "predict": {"average": "logits"},
            "clients": HETEROFL["heterofl"].defaults["clients"],
        },
        fixed=("robust", "optimizer", "coefficients"),
        samples=True,
        in_rounds="averages what the clients of a round have trained, part by part",
        private="correction (none with `alpha: 0`)",
        network=add_heads,
        slices=cut_blocks,
    ),
}


def depthfl(setting: kit.Setting) -> kit.Method:
    """Composes K networks `[K, d]` of D blocks over clients in tiers. The paper has K = 1.

    Raises:
        BadInput: The scenario sets `local.loss`.
    """
    nets, layout, alpha = [tier.net for tier in setting.tier_nets], setting.layout, setting.options["alpha"]
    if setting.local.loss is not None:
        raise BadInput(f"local.loss = {setting.local.loss.name}, but depthfl is a loss by itself: leave it out")
    columns = [_find(layout, *_layers(net.layout)) for net in nets]
    share = kit.numpy.array([tier.work for tier in setting.tier_nets])
    slices = kit.Slices(tuple(nets), lambda _t, tier: columns[tier], share)  # blocks and heads 1..b
    loss = kit.LocalLoss(teach_heads(setting.options), reads=("heads",), name="depthfl")
    local = replace(setting.local, loss=loss)
    pieces = list[kit.Piece]()
    if alpha:
        local, correction = correct_clients(local, alpha, layout.trainable)
        pieces = [correction]
    phase = kit.federated_slices(
        setting,
        slices=slices,
        assign=kit.permutation,  # the participants of the round
        local=local,  # E epochs on the heads' losses, and what they teach each other
        compress=kit.dense,
        pieces=pieces,  # FedDyn's corrections at the clients
    )  # each parameter becomes its mean over the clients that have it
    if alpha:
        held, clients = kit.mark_columns(slices, layout.d), setting.clients.number
        server = kit.servers.feddyn_server(
            phase.server, setting.state_rows, clients, alpha, layout.trainable, held=held
        )
        phase = replace(phase, server=server)
    return kit.Method("depthfl", phase, answer_by_heads(setting, [_heads(net.layout) for net in nets]))


def teach_heads(options: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns the loss of a client, a function of the logits of the client's b heads (output layers).

    The logits are `[B, b, C]` for B samples and C classes.
    """
    c, ramp = options["consistency"], options["ramp"]

    def loss(logits: Any, targets: Any, context: kit.LossContext) -> Any:
        heads = logits.shape[1]
        own = sum(context.objective(logits[:, h], targets) for h in range(heads))
        if heads == 1 or c == 0:
            return own
        rise = math.exp(-5.0 * (1.0 - min(1.0, context.round / ramp)) ** 2) if ramp else 1.0
        told = logits.log_softmax(-1)
        teacher = told.detach()
        taught = sum(
            (teacher[:, j].exp() * (teacher[:, j] - told[:, h])).sum(-1)
            for h in range(heads)
            for j in range(heads)
            if j != h
        )
        return own + c * rise * taught / (heads - 1)

    return loss


def answer_by_heads(setting: kit.Setting, heads: Sequence[Sequence[int]]) -> Callable[[kit.State], kit.Answer]:
    """Returns a function that turns each trained head (output layer) into a model that predicts.

    A network returns the mean of its D heads. In the model for one head, the parameters of this head are multiplied by
    D, and all other heads are 0. The mean of this model's heads is then the output of the one head. `heads` lists the
    heads that each tier trains, numbered from 0. A tier may have no clients.
    """
    layout, models = setting.layout, setting.models
    filled = [each for each, tier in zip(heads, setting.clients.tiers, strict=True) if tier.number]
    every, trained = _heads(layout), sorted({head for each in filled for head in each})  # D of them, A of them
    factors = kit.torch.ones(len(trained), layout.d)
    for row, mine in zip(factors, trained, strict=True):
        for head in every:
            inside = [name for name in _layers(layout) if name.split(".")[:2] == ["heads", str(head)]]
            row[_find(layout, *inside)] = float(len(every)) if head == mine else 0.0
    weights = kit.numpy.array([[float(head in each) for head in trained] for each in heads])  # [T, A]
    tiers = kit.numpy.stack([kit.numpy.tile(weights, models)] * len(setting.seeds))  # [R, T, K A]

    def answer(state: kit.State) -> kit.Answer:
        each = (state.models[:, None] * factors.to(state.models)).flatten(0, 1)  # [R K A, d]
        counters = state.counters.repeat_interleave(len(trained), dim=0)
        state = state._replace(models=each, counters=counters)
        return kit.Answer(state, models * len(trained), tiers=tiers, networks=models)

    return answer


def _layers(layout: kit.Layout) -> list[str]:
    """Returns the name of the layer for each tensor of a network."""
    return [name.rpartition(".")[0] for name in layout.names]


def _heads(layout: kit.Layout) -> list[int]:
    """Returns the heads of a network, numbered from 0."""
    return sorted({int(name.split(".")[1]) for name in layout.names if name.startswith("heads.")})


def _find(layout: kit.Layout, *layers: str) -> Any:
    """Returns the indexes of the s parameters of some layers in a row of the state, `[s]`, in ascending order."""
    return kit.torch.from_numpy(kit.numpy.flatnonzero(layout.mask(layers)))
