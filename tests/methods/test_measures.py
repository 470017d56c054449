"""What clients measure beside their training: sums of one's own, and the curvature of FedFisher and FedBEns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conjugate import fit_line, lines
from modules import Residual, load_module
from plain import rows_of
from small import models, scenario, spell_out, train
from small_data import LINEAR
from torch import Tensor

import fedray
from fedray.core.types import FloatArray, State, Stats, Uploads
from fedray.data.types import Dataset
from fedray.features.measure import sum_curvature
from fedray.methods import (
    ClientSums,
    Curvature,
    LocalLoss,
    LossContext,
    Method,
    SeenRows,
    Setting,
    Transform,
    federated,
)
from fedray.simulation.study import Study

Keys = dict[str, Any]
Compose = Callable[[Setting], Method]
SMALL: Keys = {"rounds": 2, "method": {"name": "fedavg"}, "data": {"limit": 120}, "report": False}
ONE: Keys = {"rounds": 1, "local": {"momentum": 0.5}}  # the default of FedAvg is none
NAME = "broadcast/scale"
OUTPUTS = ClientSums(lambda rows: rows.outputs.sum(0), 10)


def run(compose: Compose, *changes: Keys, **given: Any) -> fedray.Run:
    return fedray.run(spell_out(scenario(SMALL, *changes)), method=compose, **given)


def run_known(name: str, *changes: Keys, **options: Any) -> fedray.Run:
    return fedray.run(scenario({"method": {"name": name, **options}}, *changes), report=False)


def measuring(piece: Any = None, private: tuple[str, ...] = (), seen: list[Uploads] | None = None) -> Compose:
    """FedAvg whose clients measure something, and whose server writes what it gets into `seen`."""

    def compose(setting: Setting) -> Method:
        phase = federated(replace(setting, private=private or setting.private))
        base = phase.server

        def reduce(uploads: Uploads) -> Stats:
            if seen is not None:
                seen.append(uploads)
            return base.reduce(uploads)

        phase = phase if piece is None else phase.add(piece)
        return Method("own", replace(phase, server=base._replace(reduce=reduce)))

    return compose


def measured(piece: Any, *changes: Keys, private: tuple[str, ...] = ()) -> tuple[Study, dict[int, tuple[Tensor, ...]]]:
    """One round: the study, and of each client the first model, what it sent, and what it measured."""
    seen: list[Uploads] = []
    keys = scenario(SMALL, ONE, *changes)
    study = train(keys, method=measuring(piece, private, seen))[0]
    start = train({**keys, "rounds": 0}, method=measuring())[1].state.models
    sent: dict[int, tuple[Tensor, ...]] = {}
    for one in seen:
        assert one.beside is not None
        for j, client in enumerate(one.client):
            sent[int(client)] = (start[one.model[j]], one.delta[j], one.beside[j])
    return study, sent


def by_class(seen: SeenRows) -> Tensor:
    """Of each class the sum of features and of outputs, and the rows."""
    each = (seen.targets[:, None] == torch.arange(10)).to(seen.outputs)
    return torch.cat([(each.T @ seen.features).flatten(), (each.T @ seen.outputs).flatten(), each.sum(0)])


@pytest.mark.parametrize("private", [(), ("1",)])
def test_sums_are_those_of_the_trained_model_over_all_rows_of_its_client(private: tuple[str, ...]) -> None:
    study, sent = measured(ClientSums(by_class, 10 * (8 + 10 + 1)), private=private)
    assert len(sent) == 6
    for client, (start, delta, found) in sent.items():
        x, y = rows_of(study, 0, client)
        assert torch.equal(found[-10:], torch.bincount(y, minlength=10).float())
        if private:  # what is sent is no delta of the private layer, in which the model was measured none the less
            continue
        module = load_module(study.net, start + delta)
        assert isinstance(module, torch.nn.Sequential)
        wanted = by_class(SeenRows(x.float(), module[:-1](x.float()).detach(), module(x.float()).detach(), y))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_private_layers_are_the_clients_own_where_they_measure() -> None:
    """With the last layer private or not, one client alone measures the same in its first round."""
    alone = {"clients": {"number": 1}}
    one, other = (measured(OUTPUTS, alone, private=private)[1][0][2] for private in ((), ("3",)))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_clients_measure_curvature_at_the_models_that_they_have_trained_by_all_of_their_rows() -> None:
    study, sent = measured(Curvature())
    assert len(sent) == 6
    for client, (start, delta, found) in sent.items():
        x, y = rows_of(study, 0, client)
        wanted, other = (sum_curvature(study.net, w, x.float(), y, "model") / len(y) for w in (start + delta, start))
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-8)
        assert (other - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("piece", [OUTPUTS, Curvature("empirical", 3)], ids=["sums", "curvature"])
def test_what_is_measured_changes_nothing_but_the_bytes(piece: Any) -> None:
    (study, found, _), (_, plain, _) = (train(scenario(SMALL), method=measuring(one)) for one in (piece, None))
    assert torch.equal(found.state.models, plain.state.models)
    jobs = 2 * 6
    numbers = 10 if piece is OUTPUTS else study.net.layout.d
    assert (found.up_bytes - plain.up_bytes).tolist() == [4 * numbers * jobs]
    assert found.down_bytes.tolist() == plain.down_bytes.tolist()


def test_what_the_sums_draw_is_the_same_in_every_run() -> None:
    """Noise for privacy, say: it differed from run to run, and with it all that the server makes of the sums."""
    noisy = ClientSums(lambda rows: rows.outputs.sum(0) + torch.randn(10) + np.random.rand(), 10)
    found = [torch.cat([one[2] for one in measured(noisy)[1].values()]) for _ in range(2)]
    assert torch.equal(*found)
    assert len(set(found[0].tolist())) == found[0].numel()  # no two jobs draw the same


def scaled(factors: list[float], read: bool = True) -> Compose:
    """A method whose server sends each model a factor of its loss, twice as large in each round."""

    def loss(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        return context.objective(outputs, targets) * (context.shared[0] if read else 1.0)

    def compose(setting: Setting) -> Method:
        local = replace(setting.local, loss=LocalLoss(loss, shared=NAME))
        phase = federated(setting, local=local)
        base = phase.server

        def init(models: Tensor) -> dict[str, Tensor]:
            return {**base.init(models), NAME: torch.tensor(factors)[:, None]}

        def step(state: State, stats: Stats, t: int) -> State:
            after = base.step(state, stats, t)
            return after._replace(extra={**after.extra, NAME: 2 * state.extra[NAME]})

        return Method("own", replace(phase, server=base._replace(init=init, step=step)))

    return compose


TWO: Keys = {
    "method": {"name": "fed_ensemble", "models": 2},
    "clients": {"tiers": {"all": {"share": 1.0, "models_per_round": "all"}}},
}


@pytest.mark.parametrize("model", [None, Residual], ids=["compiled", "vmap"])
def test_each_model_has_its_row_and_the_row_of_the_round(model: Any) -> None:
    """A factor of the loss is one of the rate: 1 and 2 in the rounds, and a model whose factor is 0 stays."""
    given = {} if model is None else {"model": model}

    def growing(setting: Setting) -> Method:
        def update(gradient: Tensor, state: Any, _parameters: Tensor, context: Any) -> Any:
            return gradient * 2**context.round, state

        rule = Transform(lambda _parameters: (), update)
        return Method("own", federated(setting, local=replace(setting.local, gradient=rule)))

    own, first = models(run(scaled([0.0, 1.0]), TWO, **given)), models(run(measuring(), TWO, {"rounds": 0}, **given))
    assert torch.equal(own[0], first[0])
    torch.testing.assert_close(own[1], models(run(growing, TWO, **given))[1], rtol=1e-4, atol=1e-5)


def test_what_the_loss_does_not_use_changes_nothing_but_the_bytes() -> None:
    read, without = run(scaled([5.0, 5.0], read=False), TWO), run(measuring(), TWO, {"lanes": "torch"})
    torch.testing.assert_close(models(read), models(without), rtol=1e-4, atol=1e-5)
    down = [one.rounds.to_pylist()[-1]["down_bytes"] for one in (read, without)]
    assert down[0] - down[1] == 4 * without.clients.num_rows


@pytest.mark.slow
def test_bits_do_not_depend_on_actors() -> None:
    def compose(setting: Setting) -> Method:
        method = scaled([1.0, 3.0])(setting)
        return replace(method, phase=method.phase.add(OUTPUTS))

    apart = {"runtime": "ray", "clients": {"actors": 2}}
    assert torch.equal(models(run(compose, TWO)), models(run(compose, TWO, apart)))


# FedFisher and FedBEns


def mean_of_lines(data: Dataset) -> FloatArray:
    """The mean of the best lines of the clients, weighted by their rows, which is where FedAvg ends."""
    owner = data.train.group
    assert owner is not None
    return np.average([fit_line(data, owner == i) for i in range(3)], axis=0, weights=np.bincount(owner))


def fit(data: Dataset, method: Any, **more: Any) -> FloatArray:
    """One round in which every client comes to its own optimum."""
    keys: Keys = {
        **LINEAR, "rounds": 1, "method": method, "clients": {"number": 3}, "server": {"weighting": "examples"},
        "local": {"lr": 0.4, "batch_size": "full", "epochs": 150, "momentum": 0},
    }  # fmt: skip
    found: FloatArray = train({**keys, **more}, data=data)[1].state.models.double().numpy()
    return found


@pytest.mark.parametrize(
    ("method", "options"), [("fedfisher", {"damping": 0}), ("fedbens", {"precision": 1e-9, "prior": 0, "models": 2})]
)
def test_on_quadratic_losses_with_diagonal_hessians_it_is_the_pooled_optimum(method: str, options: Keys) -> None:
    """Least squares of clients with other inputs, targets and sizes; FedAvg ends elsewhere."""
    data = lines()
    pooled, average = fit_line(data), mean_of_lines(data)
    found = fit(data, {"name": method, **options})
    np.testing.assert_allclose(found, np.broadcast_to(pooled, found.shape), atol=2e-6)
    np.testing.assert_allclose(fit(data, {"name": "fedavg"})[0], average, atol=2e-6)
    assert np.abs(average - pooled).max() > 0.05


def test_where_the_fishers_of_all_clients_are_equal_one_round_is_fedavgs() -> None:
    """The Fisher of least squares is about inputs alone, which are the same for all; targets are not."""
    data = lines(same=True)
    pooled, average = fit_line(data), mean_of_lines(data)
    few: Keys = {"lr": 0.1, "batch_size": 2, "epochs": 3, "momentum": 0}
    one, other = (fit(data, {"name": name}, local=few)[0] for name in ("fedfisher", "fedavg"))
    np.testing.assert_allclose(one, other, atol=1e-6)
    np.testing.assert_allclose(average, pooled, atol=1e-6)  # then the mean of the optima is the optimum
    assert np.abs(one - pooled).max() > 1e-2


@pytest.mark.parametrize(("method", "jobs"), [("fedfisher", 6), ("fedbens", 18)])
def test_an_upload_has_two_vectors_and_a_download_one(method: str, jobs: int) -> None:
    def traffic(name: str, *changes: Keys) -> tuple[int, int, int]:
        study, found, _ = train(scenario({"method": {"name": name}}, ONE, *changes))
        return int(found.up_bytes[0]), int(found.down_bytes[0]), 4 * study.net.layout.d

    sparse: Keys = {"compress": {"kind": "topk", "ratio": 0.1}}
    up, down, dense = traffic(method)
    assert (up, down) == (2 * dense * jobs, dense * jobs)
    assert traffic(method, sparse)[0] == (dense + traffic("fedavg", sparse)[0] // 6) * jobs


def ends(name: str, *changes: Keys, **options: Any) -> Tensor:
    return train(scenario({"method": {"name": name, **options}}, *changes))[1].state.models


def test_more_rows_than_a_client_has_are_all_of_them() -> None:
    assert torch.equal(ends("fedfisher", ONE, fisher_rows=10**6), ends("fedfisher", ONE))


def test_the_server_has_rows_of_its_own_only_where_it_descends() -> None:
    """With rows it stays at least as good on them as the mean; without them it makes all of its steps."""
    descent: Keys = {"solver": "descent", "validation": 0}
    runs = [run_known("fedfisher", ONE, **how) for how in ({}, {**descent, "validation": 0.25}, descent)]
    assert [sum(one.clients["samples"].to_pylist()) for one in runs] == [240, 180, 240]
    whole, _, free = map(models, runs)
    apart, first = ((free - one).norm() for one in (whole, ends("fedavg", ONE)))
    assert 0 < float(apart) < 0.5 * float(first)  # nearer the optimum than where it began
    assert not torch.equal(free, ends("fedfisher", ONE, **descent, solver_steps=1))
