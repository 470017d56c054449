"""pFedBayes: what stays with the clients, what is sent and averaged, and where it is a known method."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small import copy_run, scenario, train_rounds
from torch import Tensor

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import ScenarioWarning
from fedray.methods import pfedbayes
from fedray.runtime.worker import Worker
from fedray.scenario.loader import read_scenario

CALM: dict[str, Any] = {"local": {"lr": 0.01}}
ALONE: dict[str, Any] = {"clients": {"number": 1}, "local": {"lr": 0.01, "optimizer": "adam", "batch_size": 20}}


def keys(*changes: dict[str, Any], name: str = "pfedbayes", **options: Any) -> dict[str, Any]:
    return scenario({"method": {"name": name, **options}}, CALM, *changes)


class Trained(NamedTuple):
    """What rounds of training leave: the server's models `[K, d]`, the clients' rows `[n, d]`, and whose they are."""

    models: Tensor
    own: Tensor
    clients: list[int]


def train(rounds: int, *changes: dict[str, Any], name: str = "pfedbayes", **options: Any) -> Trained:
    state, runtime = train_rounds(build_study(read_scenario(keys(*changes, name=name, **options))), rounds)
    private = runtime.private()
    if "layers/rows" not in private:
        return Trained(state.models, state.models[:0], [])
    return Trained(state.models, private["layers/rows"], private["layers/keys"][:, 1].tolist())


@pytest.mark.filterwarnings("ignore::fedray.core.errors.ScenarioWarning")  # zeta = 0 is told
def test_a_narrow_gaussian_that_is_near_nothing_is_plain_local_training() -> None:
    """With zeta -> 0 and sigma -> 0, over all rounds: a lone client's own mean is what FedAvg makes of it."""
    start, average = (train(rounds, ALONE, name="fedavg").models for rounds in (0, 3))
    p = average.shape[1]
    assert (average - start).abs().max() > 0.05
    torch.testing.assert_close(train(3, ALONE, zeta=0.0, rho=-20.0).own[:, :p], average, rtol=0, atol=1e-4)
    for zeta in (0.0, 50.0):
        assert (train(3, ALONE, zeta=zeta, rho=-2.0).own[:, :p] - average).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore::fedray.core.errors.ScenarioWarning")
def test_without_the_divergence_nothing_is_learned_from_others() -> None:
    """With zeta = 0 the global Gaussian stays where it began to the bit, and so the server changes nothing."""
    begun, alone = train(0, zeta=0.0), train(3, zeta=0.0)
    assert torch.equal(alone.models, begun.models)
    half = {"server": {"optimizer": "momentum", "lr": 0.1}}
    assert torch.equal(alone.own, train(3, half, zeta=0.0).own)
    assert not torch.equal(train(3, zeta=1.0).models, begun.models)


def test_the_more_the_divergence_weighs_the_nearer_clients_stay_to_the_global_gaussian() -> None:
    """With SGD and all rows in a step; Adam divides the size of a gradient out."""
    local = {"local": {"optimizer": "sgd", "lr": 0.002, "batch_size": "full", "epochs": 20}}
    near = []
    for zeta in (0.01, 0.3, 3.0):
        found = train(2, local, zeta=zeta)
        p = found.models.shape[1] // 4
        near.append(float((found.own - found.models)[:, :p].norm(dim=1).mean()))
    assert near[0] > near[1] > near[2]
    assert near[2] < 0.8 * near[0]


def test_the_server_with_beta_1_is_the_mean_and_with_beta_half_it_goes_half_the_way() -> None:
    """The step is w <- (1 - beta) w + beta mean w_i, on means and rhos; the server's own Gaussian is w."""
    start, whole = train(0).models, train(1).models
    half = {"server": {"optimizer": "momentum", "momentum": 0, "lr": 0.5}}
    torch.testing.assert_close(train(1, half).models, (start + whole) / 2, rtol=0, atol=1e-6)
    for found in (start, whole):
        mine, prior = found.chunk(2, dim=1)
        assert torch.equal(mine, prior)
    moved = (whole - start).abs().chunk(4, dim=1)
    assert min(float(part.max()) for part in moved) > 1e-3


def test_the_mean_is_that_of_the_clients_own_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the clients upload, averaged by hand; of their own Gaussians nothing leaves them."""
    sent: list[Tensor] = []
    pack = Worker._pack_uploads

    def watch(self: Worker, *arguments: Any) -> Any:
        uploads = pack(self, *arguments)
        sent.append(uploads.delta.clone())
        return uploads

    monkeypatch.setattr(Worker, "_pack_uploads", watch)
    found, start = train(1).models, train(0).models
    delta = torch.cat(sent)
    assert len(delta) == 6
    half = delta.shape[1] // 2
    assert (delta[:, :half] == 0).all() and (delta[:, half:] != 0).any(1).all()
    torch.testing.assert_close(found[0, half:], start[0, half:] + delta[:, half:].mean(0), rtol=0, atol=1e-6)


def test_a_client_that_sits_out_keeps_its_gaussian_and_one_that_acts_goes_on_from_its_own() -> None:
    few: dict[str, Any] = {"participation": {"per_round": 2}}
    rounds = [train(n, few) for n in range(6)]
    kept = 0
    for before, after in itertools.pairwise(rounds):
        same = [torch.equal(row, after.own[after.clients.index(c)]) for c, row in zip(before.clients, before.own)]
        assert sum(not one for one in same) + len(after.clients) - len(before.clients) == 2
        kept += sum(same)
    assert kept > 0


def test_half_of_a_row_travels_in_both_directions() -> None:
    """2 p numbers of four bytes: means and rhos of the global Gaussian."""
    found = fedray.run(keys({"rounds": 2}), report=False)
    p = train(0, name="fedavg").models.shape[1]
    for name in ("up_bytes", "down_bytes"):
        assert set(found.clients[name].to_pylist()) == {4 * 2 * p}


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"models": 2}, "participation": {"per_round": 3}},
        {"compress": {"kind": "topk", "ratio": 0.3, "error_feedback": True}},
        {"server": {"robust": "median"}},
        {"server": {"optimizer": "adam", "lr": 0.01}},
        {"participation": {"mode": "async", "concurrency": 3}, "rounds": 12},
        {"model": {"norm": "batch"}, "local": {"batch_size": 9}},
        {
            "data": {"name": "cubic", "partition": {"name": "iid"}},
            "model": {"objective": "gaussian_nll"},
            "clients": {"number": 3},
        },
    ],
    ids=["ensemble", "top-k", "median", "adam", "async", "batch norm", "regression"],
)
def test_it_combines_and_resumes_in_the_same_bits(change: dict[str, Any], tmp_path: Path) -> None:
    """The clients' Gaussians go into checkpoints, and the own Gaussian of the server is always its prior."""
    whole = fedray.run(keys(change), report=False, out=tmp_path / "whole")
    again = fedray.resume(copy_run(whole, tmp_path / "again", 2))
    assert again.summary["state_hash"] == whole.summary["state_hash"]
    assert again.summary["metrics"] == whole.summary["metrics"]
    p, models = whole.study.net.layout.trainable // 4, whole.progress.state.models
    assert torch.equal(models[:, : 2 * p], models[:, 2 * p : 4 * p])
    assert models.isfinite().all()


def test_known_clients_answer_better_with_their_own_gaussian() -> None:
    """On clients of two classes each; new clients get the global one."""
    two: dict[str, Any] = {"data": {"partition": {"name": "classes", "classes": 2}}, "local": {"epochs": 5}}
    found = fedray.run(keys(two, {"rounds": 5}), report=False).summary["metrics"]
    assert found["personal_accuracy"]["mean"] > found["accuracy"]["mean"] + 0.2


def test_what_does_not_combine_is_refused_in_one_line() -> None:
    with pytest.raises(fedray.BadInput, match=r"local\.weight_decay = 0\.1, but pFedBayes has its own .* set it to 0"):
        fedray.run(keys({"local": {"weight_decay": 0.1}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"local\.pull = 0\.1, but pFedBayes has its own"):
        fedray.run(keys({"local": {"pull": 0.1}}), report=False)
    with pytest.raises(fedray.BadInput, match=r"no Gaussians over their weights: set method\.name = pfedbayes"):
        fedray.run(scenario(), method=pfedbayes, report=False)
    with pytest.raises(fedray.BadInput, match=r"method\.rho = -30.* \[-20, 20\]"):
        fedray.run(keys(rho=-30.0), report=False)
    with pytest.raises(fedray.BadInput, match=r"local\.optimizer = SGD, but pFedBayes trains with adam or sgd"):
        fedray.run(scenario({"method": {"name": "pfedbayes"}}), optimizer=torch.optim.SGD, report=False)
    with pytest.warns(ScenarioWarning, match=r"personal_steps = 99, but every client makes fewer steps in a round"):
        fedray.run(keys({"rounds": 1}, personal_steps=99), report=False)
    with pytest.warns(ScenarioWarning, match=r"method\.zeta = 0 makes it local training"):
        fedray.run(keys({"rounds": 1}, zeta=0.0), report=False)
