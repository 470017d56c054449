"""FedDyn, SCAFFOLD, Ditto and LG-FedAvg: what their papers promise, and where they reduce to known methods."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import copied, no_report, scenario
from torch import nn

import fedray
from fedray.build import Own, build
from fedray.core import Plan, State
from fedray.data.split import Dataset, Split
from fedray.engine import begin, one_round
from fedray.known import best_pass, over_clients
from fedray.lanes import block as lanes
from fedray.methods.lg_fedavg import trained_layers
from fedray.runtime.inline import Inline
from fedray.runtime.personal import own_models
from fedray.scenario import read
from fedray.study import Study
from fedray.tree import digest

__all__ = ["no_report"]

D, N = 3, 6  # the quadratics: numbers of a model, clients


def quadratics() -> Dataset:
    """Client i's loss is `1/2 mean (x . w - y)^2` with its own curvature and optimum: rows are its own."""
    g = np.random.default_rng(0)
    each = 8
    scale = np.exp(0.5 * g.normal(size=(N, 1, D)))  # curvatures differ by client and direction
    x = (g.normal(size=(N, each, D)) * scale).astype(np.float32)
    y = (x @ (2.0 * g.normal(size=(N, D, 1)))).astype(np.float32)
    owner = np.repeat(np.arange(N), each)
    rows = Split(x.reshape(-1, D), y.reshape(-1, 1), owner)
    zero, one = np.zeros((1, D), np.float32), np.ones((1, D), np.float32)
    still = (np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32))
    return Dataset("quadratics", rows, rows, 0, (), zero, one, *still)


def quadratic_study(method: dict[str, Any], **local: Any) -> Study:
    tree = {
        "rounds": 1, "runtime": "inline", "method": method, "data": {"name": "table", "path": "x", "target": "y",
        "partition": {"name": "natural"}}, "model": {"name": "linear", "objective": "half_mse"},
        "clients": {"number": N}, "local": {"lr": 0.1, "lr_decay": 1.0, "batch_size": "full", "steps": 5, **local},
    }  # fmt: skip
    own = Own(quadratics(), lambda: nn.Linear(D, 1, bias=False))
    return replace(build(read(tree), own), dtype=torch.float64)


def trained(study: Study, rounds: int) -> tuple[State, Inline]:
    """The state after some rounds, and the runtime that holds the clients."""
    runtime, progress = Inline(study), begin(study, study.method.phases[0])
    for _ in range(rounds):
        progress.state = one_round(study, runtime, study.method.phases[0], progress)[2]
        progress.round += 1
    return progress.state, runtime


def minimiser() -> np.ndarray:
    """Of the mean of the clients' losses."""
    data = quadratics().train
    x, y = data.x.astype(np.float64), data.y.astype(np.float64)
    return np.linalg.solve(x.T @ x, x.T @ y)[:, 0]


def gap(state: State) -> float:
    return float(np.abs(state.models[0].numpy() - minimiser()).max())


def test_feddyn_ends_at_the_global_minimiser_and_fedavg_does_not() -> None:
    """Heterogeneous quadratics, five local steps: FedAvg stops short of the minimiser, FedDyn reaches it."""
    still, _ = trained(quadratic_study({"name": "fedavg"}), 60)
    more, _ = trained(quadratic_study({"name": "fedavg"}), 61)
    assert torch.allclose(still.models, more.models, atol=1e-6)  # FedAvg stands still,
    assert gap(still) > 0.3  # at the wrong place
    state, runtime = trained(quadratic_study({"name": "feddyn", "alpha": 1.0}), 80)
    assert gap(state) < 1e-6
    h = runtime.private()["dynamic/rows"]
    assert float(h.mean(0).abs().max()) < 1e-5  # the clients' gradients at the optimum cancel
    assert torch.allclose(h.mean(0), state.extra["dynamic"][0], atol=1e-9)  # the server's is their mean


def test_feddyn_ensemble_brings_every_model_to_the_minimiser() -> None:
    """Each model has its own corrections: K = 2 under the permutation schedule, each from its own start."""
    method = {"name": "feddyn_ensemble", "models": 2, "alpha": 1.0}
    state, runtime = trained(quadratic_study(method), 120)
    assert len(runtime.private()["dynamic/keys"]) == 2 * N
    assert float((state.models - torch.from_numpy(minimiser())).abs().max()) < 1e-4


def test_scaffold_removes_client_drift_and_c_is_the_mean_of_the_clients_controls() -> None:
    state, runtime = trained(quadratic_study({"name": "scaffold"}), 50)
    assert gap(state) < 1e-6
    controls = runtime.private()["control/rows"]
    assert len(controls) == N
    assert torch.allclose(controls.mean(0), state.extra["broadcast/control"][0], atol=1e-10)
    assert float(controls.abs().max()) > 0.1  # they are not zero: clients really differ


def test_scaffold_with_partial_participation_keeps_c_the_mean_of_all_clients() -> None:
    study = quadratic_study({"name": "scaffold"})
    phase = study.method.phases[0]
    whole = phase.schedule
    study = replace(study, method=replace(study.method, phases=(
        replace(phase, schedule=lambda t, state: whole(t, state).take(np.arange(N) % 3 == t % 3)),)))  # fmt: skip
    state, runtime = trained(study, 7)
    controls = runtime.private()["control/rows"]
    assert torch.allclose(controls.mean(0), state.extra["broadcast/control"][0], atol=1e-10)


def test_feddyn_is_its_box() -> None:
    """Three rounds against NumPy, line by line (Acar et al. 2021, Alg. 1)."""
    alpha, lr, steps = 0.2, 0.1, 5
    study = quadratic_study({"name": "feddyn", "alpha": alpha}, steps=steps, lr=lr)
    state, runtime = trained(study, 3)
    data = quadratics().train
    x, y = data.x.astype(np.float64).reshape(N, -1, D), data.y.astype(np.float64).reshape(N, -1)
    w = begin(study, study.method.phases[0]).state.models[0].numpy().copy()
    h, server = np.zeros((N, D)), np.zeros(D)
    for _ in range(3):
        ends = []
        for i in range(N):
            u = w.copy()
            for _ in range(steps):
                u -= lr * (x[i].T @ (x[i] @ u - y[i]) / len(y[i]) - h[i] + alpha * (u - w))
            h[i] -= alpha * (u - w)
            ends.append(u)
        server = server - alpha / N * sum(u - w for u in ends)
        w = np.mean(ends, axis=0) - server / alpha
    np.testing.assert_allclose(state.models[0].numpy(), w, rtol=1e-9)
    np.testing.assert_allclose(runtime.private()["dynamic/rows"].numpy(), h, rtol=1e-9, atol=1e-12)


SMALL = {"rounds": 3, "evaluate": {"personal": True}}


def finished(method: dict[str, Any], *changes: dict[str, Any]) -> fedray.Run:
    return fedray.run(scenario(SMALL, {"method": method}, *changes))


def test_dittos_global_model_is_fedavgs_bit_for_bit(no_report: None) -> None:
    """And costs the same bytes: the personal models never leave the clients."""
    fedavg, ditto = finished({"name": "fedavg"}), finished({"name": "ditto", "lambda": 0.5})
    assert ditto.summary["model_hash"] == fedavg.summary["model_hash"]
    assert ditto.summary["state_hash"] != fedavg.summary["state_hash"]
    for name in ("up_bytes", "down_bytes"):
        assert ditto.summary["totals"][name] == fedavg.summary["totals"][name]
    steps = [np.array(run.clients["steps"].to_pylist()) for run in (fedavg, ditto)]
    assert (steps[1] == 2 * steps[0]).all()


def test_ditto_without_pull_is_local_training() -> None:
    """lambda = 0: each personal model is what the client gets by training alone from the first model."""
    study = build(read(scenario({"method": {"name": "ditto", "lambda": 0}})))
    phase = study.method.phases[0]
    state, runtime = trained(study, 3)
    host, start = runtime.host, begin(study, phase).state.models[0]
    for client in range(6):
        alone = start[None].expand(2, -1)
        for t in range(3):
            plan = Plan(np.full(2, client), np.zeros(2, int), np.zeros(2, int))
            size = study.shards.sizes(plan.replicate, plan.client)
            steps = lanes.steps_of(size, phase.local)
            key = fedray.rng.keys(study.seeds[plan.replicate], "personal", t, plan.client, plan.model)
            fetched = study.shards.fetch(plan.replicate, plan.client)
            width = int(lanes.padded_batch(size, phase.local.batch_size)[0])
            index, weight = lanes.batches(fetched.rows.numpy(), size, steps, width, key)

            def batch(lo: int, hi: int, index: Any = index, fetched: Any = fetched) -> tuple[torch.Tensor, torch.Tensor]:
                return study.shards.normalise(fetched.x[index[lo:hi]], torch.zeros(2)), fetched.y[index[lo:hi]]

            counters = torch.zeros(2, 0, dtype=torch.int64)
            local = replace(phase.local, pull=0.0)
            one = lanes.Block(alone, counters, batch, weight, steps, local, local.lr_at(t), key, 64)
            alone = host.engine.train(study.net, one).final
        mine = own_models(host.private, study.net.layout, phase, state, 0, client)
        assert torch.equal(mine[0], alone[0])


def test_a_strong_pull_keeps_the_personal_model_at_the_global_one() -> None:
    weak, strong = (
        trained(build(read(scenario({"method": {"name": "ditto", "lambda": pull}, "local": {"lr": 0.01}}))), 3)
        for pull in (0.0, 60.0)
    )
    distance = [
        float((runtime.private()["personal/0/rows"] - state.models).norm(dim=1).mean()) for state, runtime in (weak, strong)
    ]
    assert distance[1] < 0.3 * distance[0]


def test_of_several_lambdas_each_client_answers_with_its_best_on_held_out_rows(no_report: None) -> None:
    several = {"data": {"hold_out": 0.25}}
    run = finished({"name": "ditto", "lambda": [0.0, 1.0]}, several)
    singles = [finished({"name": "ditto", "lambda": pull}, several) for pull in (0.0, 1.0)]
    score = [float(one.summary["metrics"]["hold_out_personal_accuracy"]["mean"]) for one in (run, *singles)]
    assert score[0] >= max(score[1:])
    test = np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    held = np.array([[1.0, 0.5], [0.5, 0.6], [np.nan, np.nan]])
    assert best_pass(test, held).tolist() == [0.1, 0.8, 0.3]
    with pytest.raises(fedray.BadInput, match="hold_out"):
        finished({"name": "ditto", "lambda": [0.0, 1.0]})


def test_lg_fedavg_with_nothing_private_is_fedavg_bit_for_bit(no_report: None) -> None:
    fedavg, lg = finished({"name": "fedavg"}), finished({"name": "lg_fedavg", "shared_layers": 2})
    for name in ("model_hash", "state_hash", "metrics"):
        if name != "metrics":
            assert lg.summary[name] == fedavg.summary[name]
    assert lg.summary["metrics"] == fedavg.summary["metrics"]
    assert lg.summary["totals"]["up_bytes"] == fedavg.summary["totals"]["up_bytes"]


LG = {"method": {"name": "lg_fedavg", "shared_layers": 1}}


@pytest.mark.parametrize("compress", [{}, {"kind": "topk", "ratio": 0.5, "error_feedback": True}, {"kind": "int8"}])
def test_private_layers_never_leave_the_client(compress: dict[str, Any]) -> None:
    """Bytes count the shared layer only, the server's copy of the others never moves, and nobody reads it again."""
    study = build(read(scenario(LG, {"compress": compress})))
    phase, layout = study.method.phases[0], study.net.layout
    mask = torch.from_numpy(layout.mask(phase.private))
    assert phase.private == trained_layers(layout)[:1]
    assert int((~mask).sum()) == 8 * 10 + 10
    progress, runtime = begin(study, phase), Inline(study)
    first = progress.state.models.clone()
    plan, table, state, _ = one_round(study, runtime, phase, progress)
    assert (table.down_bytes == 4 * 90).all()
    assert (table.up_bytes <= 4 * 90).all()
    assert torch.equal(state.models[:, mask], first[:, mask])
    assert not torch.equal(state.models[:, ~mask], first[:, ~mask])
    assert set(runtime.private()) >= {"layers/keys", "layers/rows"}
    assert not torch.equal(runtime.private()["layers/rows"][:, mask], first[:, mask].expand(6, -1))
    nonsense = state.models.clone()
    nonsense[:, mask] = 1e3  # whatever the server holds there
    ends = []
    for models in (state.models, nonsense):
        other = Inline(study)
        other.restore(runtime.private())
        stats, _ = other.train(1, plan, state._replace(models=models), phase)
        assert float(stats["sum"].value()[:, mask].abs().max()) == 0.0
        ends.append(digest({str(k): v for k, v in stats["sum"].limbs.items()}))
    assert ends[0] == ends[1]


def test_a_clients_private_layer_changes_no_other_upload() -> None:
    """And a private layer that the loss does not read changes no upload at all."""
    study = build(read(scenario(LG, {"server": {"robust": "median"}})))  # this server keeps each upload
    phase, mask = study.method.phases[0], torch.from_numpy(study.net.layout.mask(study.method.phases[0].private))
    state, runtime = trained(study, 1)
    plan = phase.schedule(1, state)
    kept = runtime.private()
    uploads = []
    for shift in (0.0, 1.0):
        other, changed = Inline(study), {name: value.clone() for name, value in kept.items()}
        changed["layers/rows"][2, mask] += shift
        other.restore(changed)
        uploads.append(other.train(1, plan, state, phase)[0]["each"].rows)
    same = [torch.equal(uploads[0][0, 0, i], uploads[1][0, 0, i]) for i in range(6)]
    assert same == [True, True, False, True, True, True]


class Idle(nn.Module):
    """A linear layer behind one that is never read, with BatchNorm between them."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.idle = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.norm(x.flatten(1))) + 0.0 * self.idle.weight.sum()
        return answer


def test_private_batchnorm_stays_private_with_its_statistics_and_counters() -> None:
    study = build(read(scenario(LG)), Own(model=Idle))
    phase, layout = study.method.phases[0], study.net.layout
    assert phase.private == ("idle", "norm")
    mask = torch.from_numpy(layout.mask(phase.private))
    assert int(mask.sum()) == 20 + 4 * 64
    state, runtime = trained(study, 2)
    first = begin(study, phase).state
    assert torch.equal(state.models[:, mask], first.models[:, mask])
    assert int(state.counters.max()) == 0
    variance = layout.views(runtime.private()["layers/rows"])["norm.running_var"]
    assert bool((variance > 0).all())
    kept, plan = runtime.private(), phase.schedule(2, state)
    sums = []
    for shift in (0.0, 3.0):
        other, changed = Inline(study), {name: value.clone() for name, value in kept.items()}
        layout.views(changed["layers/rows"])["idle.weight"][...] += shift
        other.restore(changed)
        sums.append(other.train(2, plan, state, phase)[0]["sum"].value())
    assert torch.equal(*sums)


PRIVATE = {
    "feddyn": {"name": "feddyn"},
    "feddyn_ensemble": {"name": "feddyn_ensemble", "models": 3},
    "ditto": {"name": "ditto", "models": 2, "lambda": [0.1, 1.0]},
    "lg_fedavg": {"name": "lg_fedavg", "shared_layers": 1},
    "scaffold": {"name": "scaffold"},
}


@pytest.mark.parametrize("method", PRIVATE)
def test_private_state_resumes(method: str, tmp_path: Path, no_report: None) -> None:
    """With sparse uploads and their residuals, too: same models, same private state."""
    tree = scenario({"method": PRIVATE[method], "data": {"hold_out": 0.2},
                     "compress": {"kind": "topk", "error_feedback": True}})  # fmt: skip
    run = fedray.run(tree, out=tmp_path / "run")
    again = fedray.resume(copied(run, tmp_path / "copy", 2))
    for name in ("model_hash", "state_hash", "metrics"):
        assert again.summary[name] == run.summary[name]


@pytest.mark.parametrize("kind", ["permutation", "random", "balanced", "adaptive"])
@pytest.mark.parametrize("method", PRIVATE)
def test_every_method_under_every_schedule(method: str, kind: str, no_report: None) -> None:
    """With partial participation: finite, repeatable, and private rows only of those who trained."""
    tree = scenario({"method": PRIVATE[method], "schedule": {"kind": kind}, "data": {"hold_out": 0.2},
                     "participation": {"fraction": 0.5}, "rounds": 2})  # fmt: skip
    study = build(read(tree))
    state, runtime = trained(study, 2)
    assert bool(torch.isfinite(state.models).all())
    met = set()
    for t in range(2):
        plan = study.method.phases[0].schedule(t, state)
        met |= set(zip(plan.replicate.tolist(), plan.client.tolist(), plan.model.tolist(), strict=True))
    private = runtime.private()
    for name in study.method.phases[0].own:
        held = {tuple(key) for key in private[f"{name}/keys"].tolist()}
        assert held == met if kind != "adaptive" else len(held) <= 6 * 3  # adaptive plans read the state of their round
    assert len({digest({"models": trained(study, 2)[0].models}) for _ in range(2)}) == 1


@pytest.mark.parametrize("method", ["feddyn_ensemble", "ditto", "lg_fedavg", "scaffold"])
def test_two_client_actors_give_the_bits_of_one_process(method: str, no_report: None) -> None:
    """Private vectors live with their clients' actors; personal evaluation happens there."""
    tree = scenario({"method": PRIVATE[method], "data": {"hold_out": 0.2}, "rounds": 2})
    inline = fedray.run(tree)
    ray = fedray.run(tree, runtime="ray", clients__actors=2)
    for name in ("model_hash", "state_hash", "metrics"):
        assert ray.summary[name] == inline.summary[name]


def test_the_report_shows_how_clients_differ(tmp_path: Path) -> None:
    """The distribution over clients is that of the clients' own models."""
    run = fedray.run(scenario({"method": {"name": "ditto", "lambda": 1.0}}), out=tmp_path / "run")
    with np.load(run.path / "pictures.npz") as pictures:
        each = pictures["client_accuracy"]
    last = run.rounds.to_pylist()[-1]
    assert each.shape == (6,)
    for name, value in over_clients(each).items():
        assert last[name] == pytest.approx(value)
    assert "One client in ten stays below" in (run.path / "report.html").read_text()


@pytest.mark.skipif("FEDRAY_DATA" not in os.environ, reason="the data sets' files are not here")
@pytest.mark.parametrize(
    ("data", "model", "clients"),
    [
        ({"name": "femnist", "partition": {"name": "natural"}}, {"name": "cnn", "channels": [4, 8], "hidden": [16]}, 105),
        ({"name": "shakespeare", "stride": 80, "partition": {"name": "natural"}}, {"name": "lstm", "hidden": 8}, 156),
        ({"name": "shakespeare", "stride": 80, "partition": {"name": "iid"}}, {"name": "lstm", "hidden": 8}, 10),
    ],
    ids=["femnist by writer", "shakespeare by role", "shakespeare iid"],
)
def test_natural_clients_are_tested_on_their_own_rows(
    data: dict[str, Any], model: dict[str, Any], clients: int
) -> None:
    """Train and test lie inside each client; where they do not (IID) the test set follows its label shares."""
    natural = data["partition"]["name"] == "natural"
    tree = scenario({"method": {"name": "ditto"}, "data": data, "model": model, "clients": {"number": clients},
                     "local": {"epochs": None, "steps": 1}, "participation": {"per_round": 4}})  # fmt: skip
    study = build(read(tree))
    assert study.clients.number == clients
    shards, group = study.shards, study.shards.data.test.group
    for client in range(0, clients, 9):
        own = shards.client_test(0, client)
        assert (own is not None) == natural
        if own is not None and group is not None and len(own):
            fetched = shards.fetch(np.zeros(1, int), np.array([client]))
            rows = fetched.rows[0].numpy()
            assert len(set(group[own])) == 1
            assert set(shards.data.train.group[rows]) == set(group[own])
    state, runtime = trained(study, 1)
    own = runtime.host.known(state, [(0, client) for client in range(0, clients, 13)])
    assert all(0.0 <= float(value[0, 0]) <= 1.0 or value[0, 0].isnan() for value in own.values())
