"""DepthFL: where it is FedAvg and FedDyn, what heads teach each other, who averages what, and how they answer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small import of_method
from torch import nn

import fedray
from fedray.components.servers import Rows, feddyn_server
from fedray.core.method import LossContext
from fedray.core.types import State, Uploads
from fedray.features.slices import mean_of_slices
from fedray.methods.depthfl import teach_heads
from fedray.models.net import state_dict
from fedray.models.nets import add_exits

MODEL = {"name": "mlp", "hidden": [8, 6]}
ALL = {"all": {"number": 6}}
BOTH = {"strong": {"number": 3}, "weak": {"number": 3, "width": 0.5}}


def run(tiers: dict[str, Any], *changes: dict[str, Any], **options: Any) -> fedray.Run:
    keys = {"model": MODEL, "method": options, "clients": {"number": None, "tiers": tiers}}
    return fedray.run(of_method("depthfl", keys, *changes))


def plain(name: str, network: Any = None, **options: Any) -> fedray.Run:
    keys = {"method": options, "clients": {"number": None, "tiers": ALL}, "server": {"weighting": "uniform"}}
    return fedray.run(of_method(name, {} if network else {"model": MODEL}, keys), model=network)


def truncated() -> nn.Module:
    """The first block of the network, with its head."""
    hidden, out = nn.Linear(64, 8), nn.Linear(6, 10)
    net = nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), out)
    exits = add_exits(net, 2, (1, 8, 8), "mlp", "it")
    return nn.Sequential(exits.blocks[0], exits.heads["0"])


@pytest.mark.parametrize(("depth", "alpha"), [(1, 0.0), (2, 0.0), (2, 0.1)])
def test_where_all_have_one_depth_and_one_head_it_is_fedavg_or_feddyn(depth: int, alpha: float) -> None:
    """At depth 1 of the truncated network, and what nobody trains does not answer; else the last head is alone."""
    wanted = plain(
        "feddyn" if alpha else "fedavg", truncated if depth == 1 else None, **{"alpha": alpha} if alpha else {}
    )
    tiers = {"weak": {"number": 6, "width": 0.5}} if depth == 1 else ALL
    found = run(tiers, alpha=alpha, extended=depth == 1)
    layers = found.study.net.layout.views(found.progress.state.models[0])
    trained = [n for n in layers if (n.split(".")[1] == "0" if depth == 1 else not n.startswith("heads.0."))]
    mine = torch.cat([layers[name].flatten() for name in trained])
    torch.testing.assert_close(mine, wanted.progress.state.models[0], rtol=1e-4, atol=1e-6)
    x = found.study.split("test", 0)[0][:20].numpy()
    np.testing.assert_allclose(found.predict(x).mean, wanted.predict(x).mean, rtol=1e-4, atol=1e-6)
    assert len(found.predict(x).members) == 1


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(("t", "rise"), [(0, np.exp(-5.0)), (15, np.exp(-1.25)), (30, 1.0), (99, 1.0)])
def test_the_loss_is_that_of_loops_over_heads_in_numpy(heads: int, t: int, rise: float) -> None:
    """And its gradient in a teacher is 0: that of a head is softmax - label + c (softmax - mean of the others)."""
    generator = np.random.default_rng(heads)
    z, y = generator.normal(size=(7, heads, 5)), generator.integers(0, 5, size=7)
    logits = torch.from_numpy(z).requires_grad_()
    objective = partial(nn.functional.cross_entropy, reduction="none")
    context = LossContext(objective, t, torch.tensor(0), torch.tensor(0))
    loss = teach_heads({"consistency": 0.6, "ramp": 30})(logits, torch.from_numpy(y), context)
    c, p = 0.6 * rise, np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    for n in range(7):
        wanted = -sum(np.log(p[n, h, y[n]]) for h in range(heads))
        for h in range(heads):
            for j in set(range(heads)) - {h}:
                wanted += c * sum(p[n, j, k] * np.log(p[n, j, k] / p[n, h, k]) for k in range(5)) / (heads - 1)
        assert loss[n].item() == pytest.approx(wanted)
    loss.sum().backward()
    others = (p.sum(1, keepdims=True) - p) / max(1, heads - 1)
    wanted_gradient = p - np.eye(5)[y][:, None] + (c * (p - others) if heads > 1 else 0.0)
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad.numpy(), wanted_gradient, atol=1e-12)


def test_every_number_is_averaged_and_corrected_over_those_who_have_it() -> None:
    """Against loops over models, numbers and clients."""
    generator, alpha, clients, p = np.random.default_rng(0), 0.3, 9, 6
    held = torch.tensor([[1.0, 1, 1, 1, 1, 0, 1], [1, 1, 0, 0, 0, 0, 1]]).double()  # number 5 is nobody's, 6 a buffer
    model, tier = generator.integers(0, 2, size=8), np.array([0, 1, 1, 1, 0, 1, 1, 1])
    model[:5] = 0
    delta = torch.from_numpy(generator.normal(size=(8, 7))).float() * held[tier].float()
    who = np.arange(8)
    uploads = Uploads(delta, who, model, 0 * who, tier, 1 + who)
    start = torch.from_numpy(generator.normal(size=(2, 7))).float()
    h = torch.from_numpy(generator.normal(size=(2, p)))
    rows = Rows(1, 2)
    server = feddyn_server(
        mean_of_slices(rows, "uniform", lambda _t: held), rows, clients, alpha, p, held=lambda _t: held
    )
    state = State(start, torch.zeros(2, 0, dtype=torch.int64), {"dynamic": h})
    after = server.step(state, server.reduce(uploads), 0)
    for k in range(2):
        for n in range(7):
            mine = [j for j in range(8) if model[j] == k and held[tier[j], n]]
            mean = delta[mine, n].double().mean().item() if mine else 0.0
            if n < p:
                corrected = h[k, n].item() - alpha * len(mine) / clients * mean
                assert after.extra["dynamic"][k, n].item() == pytest.approx(corrected, abs=1e-6)
                mean -= corrected / alpha if mine else 0.0
            assert after.models[k, n].item() == pytest.approx(start[k, n].item() + mean, abs=1e-6)


@pytest.mark.parametrize(("extended", "strong"), [(True, 520 + 90 + 54 + 70), (False, 520 + 54 + 70)])
def test_a_device_costs_the_numbers_of_its_blocks_and_heads(extended: bool, strong: int) -> None:
    jobs = run(BOTH, {"rounds": 1}, extended=extended).clients.to_pandas().groupby("tier")
    for column in ("up_bytes", "down_bytes"):
        assert jobs[column].unique().to_dict() == {"strong": 4 * strong, "weak": 4 * (520 + 90)}
    steps = jobs["steps"].sum() * 0.01
    transfer = jobs["up_bytes"].sum() * (1e-6 + 1e-7)
    share = {"strong": 1.0 if extended else 2 * strong / (520 + 90 + 54 + 70) / 2, "weak": 610 / 734}
    found = ((jobs["sim_seconds"].sum() - transfer) / steps).to_dict()
    assert found == pytest.approx(share, rel=0.02)  # of the multiplications, which are about the numbers


@pytest.mark.parametrize("extended", [True, False])
def test_heads_answer_as_members_by_the_mean_of_their_logits(extended: bool) -> None:
    """A new client has all of them, a known one those of its depth, or its last."""
    done = run(BOTH, {"method": {"models": 2}}, extended=extended)
    net, x = done.study.net, done.study.split("test", 0)[0][:20]
    scaled = done.study.shards.normalize(x[None], torch.tensor([0]))[0]
    logits = []
    for row in done.progress.state.models:
        net.module.load_state_dict(state_dict(net.layout, row))
        logits.append(net.module.train()(scaled).detach())  # [n, 2, C]
    each = torch.stack(logits, dim=1)  # [n, K, 2, C]
    for client, heads in ((None, [0, 1]), (5, [0]), (0, [0, 1] if extended else [1])):
        wanted = each[:, :, heads].mean((1, 2)).softmax(-1).numpy()
        np.testing.assert_allclose(done.predict(x.numpy(), client=client).mean, wanted, rtol=1e-4, atol=1e-6)
    every = done.predict(x.numpy())
    np.testing.assert_allclose(every.members, each.flatten(1, 2).softmax(-1).transpose(0, 1), rtol=1e-4, atol=1e-6)
