"""HeteroFL, FedRolex, Split-Mix and DepthFL: what a device trains, sends and answers with."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from modules import ask_modules
from small import of_method, scenario, train_rounds
from torch import Tensor, nn
from torch.nn import functional as F

import fedray
from fedray.assembly.study import build_study
from fedray.components.compression import error_feedback, top_k
from fedray.components.servers import Rows, feddyn_server
from fedray.core.method import Local, LocalLoss, LossContext, Method
from fedray.core.types import State, Uploads
from fedray.evaluation.answers import own_test_rows
from fedray.features.slices import compress_slices, cut_block, mean_of_slices
from fedray.methods import Setting, cut_slices, federated_slices
from fedray.methods.depthfl import teach_heads
from fedray.methods.fedrolex import rolling_channels
from fedray.models.net import state_dict
from fedray.models.nets import add_exits, build_net
from fedray.scenario.loader import read_scenario
from fedray.simulation.study import Study
from fedray.training.client_code import make_trial

BOTH = pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
CNN: dict[str, Any] = {"model": {"name": "cnn", "channels": [3, 4], "hidden": [8]}, "rounds": 2}
THREE: dict[str, dict[str, Any]] = {
    "strong": {"number": 2},
    "middle": {"number": 2, "width": 0.5},
    "weak": {"number": 2, "width": 0.25},
}


def of(name: str, tiers: dict[str, Any], *changes: dict[str, Any], **options: Any) -> dict[str, Any]:
    return of_method(name, {"method": options, "clients": {"number": None, "tiers": tiers}}, *changes)


def study_of(*arguments: Any, **options: Any) -> Study:
    return build_study(read_scenario(of(*arguments, **options), explicit=False))


@pytest.mark.parametrize("width", [0.1, 0.25, 0.5, 0.9])
def test_fedrolex_trains_every_channel_equally_often(width: float) -> None:
    """In c rounds each of c channels is in ceil(r c) windows, and with it its weights, in every layer by itself."""
    study = study_of("fedrolex", {"weak": {"number": 6, "width": width}}, {"model": {"hidden": [8, 4]}})
    slices, layout = study.method.phase, study.net.layout
    assert slices.nets
    times = torch.zeros(layout.d)
    for t in range(8):
        times[slices.columns(t, 0)] += 1
    shares = layout.views(times)
    assert shares["1.bias"].tolist() == [math.ceil(width * 8 - 1e-9)] * 8
    assert shares["3.bias"].tolist() == [2 * math.ceil(width * 4 - 1e-9)] * 4  # 8 rounds are twice 4
    assert torch.equal(shares["1.weight"], shares["1.bias"][:, None].expand(8, 64))
    assert set(shares["5.bias"].tolist()) == {8}  # the outputs are in every slice
    assert torch.equal(slices.columns(3, 0), slices.columns(11, 0))
    assert [rolling_channels(t, 4) for t in range(6)] == [0, 1, 2, 3, 0, 1]


class Divide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@BOTH
@pytest.mark.parametrize("scaler", [True, False])
@pytest.mark.parametrize(("kind", "lanes"), [("mlp", "auto"), ("cnn", "torch")])
def test_a_slice_is_trained_as_a_small_module_is(name: str, scaler: bool, kind: str, lanes: str) -> None:
    """The second round of FedRolex: its window is not that of HeteroFL. The other numbers stay."""
    model = {"name": kind, "hidden": [6], **({"channels": [4]} if kind == "cnn" else {})}
    local = {"batch_size": "full", "steps": 3, "epochs": None, "momentum": 0.9}
    keys = {"model": model, "local": local, "data": {"partition": {"name": "iid"}}, "lanes": lanes}
    study = study_of(name, {"weak": {"number": 1, "width": 0.5}}, keys, scaler=scaler)
    (before, _), (after, _) = train_rounds(study, 1), train_rounds(study, 2)
    begin = 1 if name == "fedrolex" else 0
    scale = [Divide()] if scaler else []
    units, layer = [begin, begin + 1, begin + 2], study.net.layout.views(before.models[0])
    if kind == "mlp":
        small = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), *scale, nn.ReLU(), nn.Linear(3, 10))
        parts = [layer["1.weight"][units], layer["1.bias"][units], layer["3.weight"][:, units], layer["3.bias"]]
    else:
        small = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), *scale, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                              nn.Linear(32, 3), *scale, nn.ReLU(), nn.Linear(3, 10))  # fmt: skip
        flat = layer["4.weight"].view(6, 4, 16)[units][:, units[:2]].reshape(3, 32)
        parts = [layer["0.weight"][units[:2]], layer["0.bias"][units[:2]], flat, layer["4.bias"][units],
                 layer["6.weight"][:, units], layer["6.bias"]]  # fmt: skip
    small.load_state_dict(dict(zip(small.state_dict(), parts, strict=True)))
    x, y = study.pool_rows(0)
    optimizer = torch.optim.SGD(small.train().parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(small(x), y))
        optimizer.step()
    wanted = torch.cat([value.flatten() for value in small.state_dict().values()])
    assert study.method.phase.nets
    columns = study.method.phase.columns(1, 0)
    torch.testing.assert_close(after.models[0][columns], wanted, rtol=1e-4, atol=1e-5)
    others = torch.ones(study.net.layout.d, dtype=torch.bool).index_fill(0, columns, False)
    assert torch.equal(after.models[0][others], before.models[0][others])
    assert (wanted - torch.cat([part.flatten() for part in parts])).abs().max() > 1e-3


@BOTH
def test_a_slice_costs_its_numbers_and_its_work(name: str) -> None:
    """4 bytes a number up and down, and the seconds of its share of the multiplications."""
    tiers = {tier: {**keys, "seconds_per_step": 2.0, "uplink": 1e3, "downlink": 1e4} for tier, keys in THREE.items()}
    run = fedray.run(of(name, tiers, {"model": {"hidden": [8]}}))
    numbers = {tier: 64 * c + c + c * 10 + 10 for tier, c in (("strong", 8), ("middle", 4), ("weak", 2))}
    jobs = run.clients.to_pandas()
    assert len(jobs) == 24
    for tier, mine in jobs.groupby("tier"):
        assert set(mine["up_bytes"]) == set(mine["down_bytes"]) == {4 * numbers[tier]}
        seconds = mine["steps"] * 2.0 * numbers[tier] / numbers["strong"] + 4 * numbers[tier] * (1e-3 + 1e-4)
        np.testing.assert_allclose(mine["sim_seconds"], seconds)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_server_averages_entry_by_entry(weighting: Any) -> None:
    """Against loops over models, entries and clients."""
    generator = np.random.default_rng(0)
    held = torch.from_numpy(generator.integers(0, 2, size=(3, 7))).double()
    held[:, 0] = 0  # nobody's
    client, model = np.arange(40), generator.integers(0, 3, size=40)
    tier, size = generator.integers(0, 3, size=40), generator.integers(1, 30, size=40)
    delta = torch.from_numpy(generator.normal(size=(40, 7))).float() * held[tier].float()
    uploads = Uploads(delta, client, model, np.zeros(40, dtype=np.int64), tier, size)
    start = State(torch.from_numpy(generator.normal(size=(4, 7))).float(), torch.zeros(4, 0, dtype=torch.int64), {})
    server = mean_of_slices(Rows(1, 4), weighting, lambda _t: held)
    found = server.step(start, server.reduce(uploads), 0).models
    wanted = start.models.double().numpy().copy()
    for k in range(4):
        for entry in range(7):
            who = [j for j in range(40) if model[j] == k and held[tier[j], entry]]
            weight = size[who] if weighting == "examples" else np.ones(len(who))
            if who:
                wanted[k, entry] += (weight * delta[who, entry].double().numpy()).sum() / weight.sum()
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(found[:, 0], start.models[:, 0]) and torch.equal(found[3], start.models[3])


def test_what_error_feedback_keeps_waits_until_the_window_is_there_again() -> None:
    """Sent + kept = delta + kept before, of every number; and nothing is sent outside of the slice."""
    study = study_of("fedrolex", {"weak": {"number": 2, "width": 0.5}})
    slices = study.method.phase
    assert slices.nets
    layout = slices.nets[0].layout
    compress = compress_slices([error_feedback(top_k(layout, lambda client, _tier: np.full(len(client), 5)))])
    kept = torch.zeros(2, study.net.layout.d)
    for t in range(4):
        columns, who = slices.columns(t, 0), np.arange(2)
        delta = torch.zeros_like(kept).index_copy(1, columns, torch.randn(2, len(columns)))
        uploads = Uploads(delta, who, 0 * who, 0 * who, 0 * who, 1 + who, own={"residual": kept}, columns=columns)
        sent = compress.apply(uploads)
        outside = torch.ones(kept.shape[1], dtype=torch.bool).index_fill(0, columns, False)
        torch.testing.assert_close(sent.delta + sent.own["residual"], delta + kept)
        assert not sent.delta[:, outside].any() and torch.equal(sent.own["residual"][:, outside], kept[:, outside])
        assert (sent.delta != 0).sum(1).tolist() == [5, 5]
        kept = sent.own["residual"]


@BOTH
@pytest.mark.parametrize("kind", ["topk", "randomk", "int8"])
def test_a_compressed_upload_is_that_of_the_small_network(name: str, kind: str) -> None:
    """Bytes of a weak client are those of a client of FedAvg with the small network."""
    compress = {"compress": {"kind": kind, **({} if kind == "int8" else {"ratio": 0.25})}}
    cut = fedray.run(of(name, {"weak": {"number": 6, "width": 0.5}}, compress, scaler=False))
    small = fedray.run(of_method("fedavg", compress, {"model": {"hidden": [4]}}))
    assert set(cut.clients["up_bytes"].to_pylist()) == set(small.clients["up_bytes"].to_pylist())
    assert torch.isfinite(cut.progress.state.models).all()


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("engine", [{}, CNN], ids=["mlp", "conv"])
def test_a_weak_client_of_heterofl_answers_as_the_small_network_does(engine: dict[str, Any], scaler: bool) -> None:
    """In predictions and in its score; a new client has the whole network, as all clients of FedRolex have."""
    keys = [engine, {"evaluate": {"clients": "all"}, "local": {"lr": 0.03 if scaler else 0.1}, "rounds": 3}]
    run, rolled = (fedray.run(of(name, THREE, *keys, models=2, scaler=scaler)) for name in ("heterofl", "fedrolex"))
    slices, (x, y) = run.study.method.phase, run.study.split("test", 0)
    assert slices.nets
    each = []
    for tier, net in enumerate(slices.nets):
        votes = ask_modules(run.study, x, run.progress.state.models[:, slices.columns(0, tier)], net).softmax(-1)
        each.append(votes.mean(0).numpy())
        np.testing.assert_allclose(run.predict(x, client=2 * tier).mean, each[-1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(run.predict(x).mean, each[0], rtol=1e-4, atol=1e-6)
    last = run.client_scores.to_pandas().query("round == 3")
    find = own_test_rows(run.study, 0)
    for client, score in zip(last["client"], last["accuracy"], strict=True):
        own = find(client)
        assert score == own.mean((each[client // 2].argmax(1) == y.numpy())[own.rows])
    assert run.summary["metrics"]["personal_accuracy"]["mean"] == pytest.approx(last["accuracy"].mean())
    assert np.array_equal(rolled.predict(x, client=5).mean, rolled.predict(x).mean)
    assert "personal_accuracy" not in rolled.summary["metrics"]


def test_the_loss_of_a_slice_did_not_get_what_the_server_sends_for_it() -> None:
    net = build_net("linear", (3,), 2, "cross_entropy")
    loss = LocalLoss(lambda outputs, _y, _context: outputs.sum(-1), shared="broadcast/means", example=torch.ones(5))
    reading = cut_block(make_trial(net, torch.zeros(3), Local(loss=loss), [0]), torch.arange(4)).reading
    assert reading is not None and reading.shared is not None and reading.shared.tolist() == [[1.0] * 5]


def test_a_method_of_ones_own_slices_with_another_window() -> None:
    """The last channels."""

    def last_channels(setting: Setting) -> Method:
        return Method(
            "last_channels", federated_slices(setting, slices=cut_slices(setting.tier_nets, lambda _t, c: c // 2))
        )

    keys = scenario({"clients": {"tiers": {"weak": {"number": 6, "width": 0.5}}}, "rounds": 1})
    run = fedray.run(keys, method=last_channels)
    start = fedray.run({**keys, "rounds": 0}, method=last_channels)
    moved = (run.progress.state.models != start.progress.state.models)[0]
    bias = run.study.net.layout.views(moved)["1.bias"]
    assert not bias[:4].any() and bias[4:].any()


TIERS = {"strong": {"number": 3, "models_per_round": 3}, "weak": {"number": 3, "models_per_round": 1}}


def run(method: dict[str, Any], **keys: Any) -> fedray.Run:
    return fedray.run(scenario({"rounds": 4, "method": method, "clients": {"number": 6, "tiers": TIERS}, **keys}))


def test_a_device_trains_as_many_as_it_holds_all_equally_often_and_sends_those() -> None:
    done = run({"name": "split_mix", "models": 4})
    jobs, dense = done.clients.to_pandas(), 4 * done.study.net.layout.d
    assert jobs.groupby(["client", "round"]).size().groupby("client").unique().tolist() == [[3]] * 3 + [[1]] * 3
    assert jobs.groupby(["client", "model"]).size().tolist() == [3] * 12 + [1] * 12  # in K rounds
    assert set(jobs["up_bytes"]) == set(jobs["down_bytes"]) == {dense}


def test_a_known_client_answers_with_the_first_that_it_holds_and_a_new_one_with_all() -> None:
    done = run({"name": "split_mix", "models": 4})
    x = done.study.split("test", 0)[0][:20]
    votes = ask_modules(done.study, x, done.progress.state.models).softmax(-1)
    for client, held in ((0, 3), (5, 1), (None, 4)):
        found = done.predict(x.numpy(), client=client).probabilities
        assert found is not None
        np.testing.assert_allclose(found, votes[:held].mean(0), rtol=1e-5, atol=1e-6)


# DepthFL: where it is FedAvg and FedDyn, what heads teach each other, who averages what, and how they answer


MODEL = {"name": "mlp", "hidden": [8, 6]}
WHOLE = {"all": {"number": 6}}
TWO_DEPTHS = {"strong": {"number": 3}, "weak": {"number": 3, "width": 0.5}}


def run_depths(tiers: dict[str, Any], *changes: dict[str, Any], **options: Any) -> fedray.Run:
    keys = {"model": MODEL, "method": options, "clients": {"number": None, "tiers": tiers}}
    return fedray.run(of_method("depthfl", keys, *changes))


def truncated() -> nn.Module:
    """The first block of the network, with its head."""
    hidden, out = nn.Linear(64, 8), nn.Linear(6, 10)
    net = nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), out)
    exits = add_exits(net, 2, (1, 8, 8), "mlp", "it")
    return nn.Sequential(exits.blocks[0], exits.heads["0"])


@pytest.mark.parametrize(("depth", "alpha"), [(1, 0.0), (2, 0.0), (2, 0.1)])
def test_where_all_have_one_depth_and_one_head_it_is_fedavg_or_feddyn(depth: int, alpha: float) -> None:
    """At depth 1 of the truncated network, and what nobody trains does not answer; else the last head is alone."""
    name, options = ("feddyn", {"alpha": alpha}) if alpha else ("fedavg", {})
    keys = {"method": options, "clients": {"number": None, "tiers": WHOLE}, "server": {"weighting": "uniform"}}
    given = of_method(name, {} if depth == 1 else {"model": MODEL}, keys)
    wanted = fedray.run(given, model=truncated if depth == 1 else None)
    tiers = {"none": {"number": 0}, "weak": {"number": 6, "width": 0.5}} if depth == 1 else WHOLE
    found = run_depths(tiers, alpha=alpha, extended=depth == 1)
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
    who, rows = np.arange(8), Rows(1, 2)
    uploads = Uploads(delta, who, model, 0 * who, tier, 1 + who)
    start = torch.from_numpy(generator.normal(size=(2, 7))).float()
    h = torch.from_numpy(generator.normal(size=(2, p)))
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
    jobs = run_depths(TWO_DEPTHS, {"rounds": 1}, extended=extended).clients.to_pandas().groupby("tier")
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
    done = run_depths(TWO_DEPTHS, {"method": {"models": 2}}, extended=extended)
    net, x = done.study.net, done.study.split("test", 0)[0][:20]
    scaled = done.study.shards.scaling.normalize(x[None], torch.tensor([0]))[0]
    logits = []
    for row in done.progress.state.models:
        net.module.load_state_dict(state_dict(net, row))
        logits.append(net.module.train()(scaled).detach())  # [n, 2, C]
    each = torch.stack(logits, dim=1)  # [n, K, 2, C]
    for client, heads in ((None, [0, 1]), (5, [0]), (0, [0, 1] if extended else [1])):
        wanted = each[:, :, heads].mean((1, 2)).softmax(-1).numpy()
        np.testing.assert_allclose(done.predict(x.numpy(), client=client).mean, wanted, rtol=1e-4, atol=1e-6)
    every = done.predict(x.numpy())
    np.testing.assert_allclose(every.members, each.flatten(1, 2).softmax(-1).transpose(0, 1), rtol=1e-4, atol=1e-6)
