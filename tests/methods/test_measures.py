"""What clients measure beside their training, curvature, and the methods that use it on quadratic losses."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from modules import Apply, Residual, load_module
from plain import rows_of
from small import models, scenario, spell_out, train
from small_data import LINEAR, fit_line, lines, numbers
from torch import Tensor, nn
from torch.func import functional_call

import fedray
from fedray.core.types import FloatArray, Net, State, Stats, Uploads
from fedray.data.types import Dataset
from fedray.features import measure
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
from fedray.models.net import net_of, per_sample
from fedray.models.nets import build_net
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


def test_curvature_of_some_rows_is_their_mean() -> None:
    study, sent = measured(Curvature(rows=1))
    for client, (start, delta, found) in sent.items():
        x, y = rows_of(study, 0, client)
        rows = [(x[i : i + 1].float(), y[i : i + 1]) for i in range(len(y))]
        each = [sum_curvature(study.net, start + delta, *row, "model") for row in rows]
        assert min((one - found.double()).abs().max() for one in each) < 1e-6


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
    noisy, seen = ClientSums(lambda _rows: torch.randn(10) + np.random.rand(), 10), list[list[Uploads]]([[], []])
    for uploads in seen:
        train(scenario(SMALL, ONE, TWO), method=measuring(noisy, seen=uploads))
    found = [torch.cat([one.beside for one in uploads if one.beside is not None]).flatten() for uploads in seen]
    assert torch.equal(*found) and len(set(found[0].tolist())) == 6 * 2 * 10  # no two jobs draw the same


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


# The diagonal of the Fisher information: a loop of autograd, row by row and class by class, says the same


class Backwards(torch.autograd.Function):
    """The identity, which torch cannot map over rows."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, g: Tensor) -> Tensor:
        return g


NETS: dict[str, tuple[Net, tuple[int, ...]]] = {
    "linear": (build_net("linear", (5,), 3, "cross_entropy"), (5,)),
    "mlp": (build_net("mlp", (5,), 3, "cross_entropy", hidden=[7]), (5,)),
    "cnn": (build_net("cnn", (1, 12, 12), 4, "cross_entropy", channels=[2, 3], hidden=[5], dropout=0.5), (1, 12, 12)),
    "batch norm": (
        net_of(lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "own", "cross_entropy", 3),
        (5,),
    ),
    "recurrent": (build_net("lstm", (6,), 5, "cross_entropy", vocabulary=5, hidden=4, layers=1), (6,)),
    "not mapped": (
        net_of(lambda: nn.Sequential(nn.Linear(5, 3), Apply(Backwards.apply)), "own", "cross_entropy", 3),
        (5,),
    ),
}


def loop(net: Net, row: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """By definition: the mean over labels of the squared gradient of the loss, summed over rows, `[p]`."""
    net.module.eval()
    p, total = net.layout.trainable, torch.zeros(net.layout.trainable, dtype=torch.float64)
    for one, label in zip(x, y, strict=True):
        views = {name: view.clone() for name, view in net.layout.views(row).items()}
        leaves = [views[name].requires_grad_() for name in net.layout.names[: net.layout.trainable_tensors]]
        out = functional_call(net.module, views, (one[None],))
        odds = out[0].detach().softmax(-1).double() if kind == "model" else torch.eye(net.outputs)[label]
        for c, odd in enumerate(odds):
            loss = per_sample(net.objective, out, torch.tensor([c])).sum()
            g = torch.autograd.grad(loss, leaves, retain_graph=True)
            total += odd * torch.cat([part.reshape(-1) for part in g]).double().square()
    assert len(total) == p
    return total


@pytest.mark.parametrize("kind", ["model", "empirical"])
@pytest.mark.parametrize("name", NETS)
def test_it_is_that_of_a_loop_over_rows_and_labels(name: str, kind: str) -> None:
    """To float precision; float buffers have none; a layer that torch cannot map is no obstacle."""
    net, shape = NETS[name]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, *shape, generator=generator), torch.arange(6) % net.outputs
    x = x.mul(2).long() % 5 if name == "recurrent" else x  # tokens
    found = sum_curvature(net, net.init(3), x, y, kind)
    wanted = loop(net, net.init(3), x, y, kind)
    torch.testing.assert_close(found[: net.layout.trainable], wanted, rtol=1e-4, atol=1e-7 * float(wanted.max()))
    assert bool((found[net.layout.trainable :] == 0).all())
    assert float(wanted.max()) > 1e-3


def test_of_squared_losses_it_is_the_hessian_of_a_linear_model() -> None:
    """`half_mse` is the negative log likelihood of unit variance, `mse` that of half of it; targets do not matter."""
    x = torch.tensor([[1.0, 2.0], [0.0, 3.0], [2.0, -1.0]])
    for objective, times in (("half_mse", 1.0), ("mse", 2.0)):
        net = net_of(lambda: nn.Linear(2, 1), "own", objective, 1)  # type: ignore[arg-type]
        one, other = (sum_curvature(net, net.init(0), x, y, "model") for y in (torch.zeros(3), torch.ones(3)))
        assert one.tolist() == pytest.approx([times * 5.0, times * 14.0, times * 3.0])
        assert torch.equal(one, other)


def test_pieces_of_the_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, shape = NETS["cnn"]
    x, y = torch.randn(7, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(7) % 4
    whole = sum_curvature(net, net.init(0), x, y, "model")
    monkeypatch.setattr(measure, "MAPPED_NUMBERS", 2 * net.outputs * net.layout.d)
    torch.testing.assert_close(sum_curvature(net, net.init(0), x, y, "model"), whole, rtol=1e-5, atol=1e-9)


# FedPA: its formula, and where it ends on quadratic losses


def test_two_samples_have_the_formula() -> None:
    """`(1 + rho) (I + rho / 2 (x_2 - x_1) (x_2 - x_1)')^-1 (mean - w)`, where the samples are iterates of FedAvg."""
    one: dict[str, Any] = {"rounds": 1, "clients": {"number": 1}}
    steps = [{"local": {"epochs": None, "steps": s, "lr": 0.5}} for s in (1, 2)]
    start = models(run_known("fedavg", one, {"rounds": 0}))[0].double()
    first, second = (models(run_known("fedavg", one, each))[0].double() for each in steps)
    sent = models(run_known("fedpa", one, steps[1], samples=2, mixing=0.0, rho=3.0))[0].double() - start
    apart, way = second - first, (first + second) / 2 - start
    wanted = 4.0 * (way - apart * (1.5 * apart @ way / (1 + 1.5 * apart @ apart)))
    assert 1.5 * apart @ apart > 0.1  # the covariance counts
    torch.testing.assert_close(sent, wanted, rtol=0, atol=1e-5)


def squares() -> tuple[Dataset, FloatArray]:
    """Four clients whose inputs and whose best lines differ, and the best line of all rows `[3]`."""
    generator = np.random.default_rng(0)
    spreads = ((1.8, 0.6), (0.6, 1.8), (1.4, 0.8), (0.8, 1.4))
    lines = ((9.0, 0.0), (0.0, 9.0), (-6.0, 3.0), (3.0, -6.0))
    x = np.concatenate([generator.normal(size=(400, 2)) * spread for spread in spreads])
    y = (x * np.repeat(lines, 400, axis=0)).sum(1, keepdims=True) + 2.0 * generator.normal(size=(1600, 1))
    best = np.linalg.lstsq(np.column_stack([x, np.ones(1600)]), y[:, 0], rcond=None)[0]
    return numbers(x, y, np.repeat(np.arange(4), 400)), best


def test_on_quadratic_losses_it_ends_nearer_the_global_optimum_than_fedavg() -> None:
    """Heterogeneous least squares, many local steps: three repetitions, and their less noisy mean."""
    data, best = squares()
    keys = {
        **LINEAR, "replicates": 3, "clients": {"number": 4}, "local": {"lr": 0.1, "batch_size": 5, "steps": 200},
    }  # fmt: skip
    average = fedray.run({**keys, "method": "fedavg", "rounds": 5}, data=data)
    method = {"name": "fedpa", "samples": 10, "rho": 100.0, "mixing": 0.2}
    server = {"optimizer": "momentum", "momentum": 0, "lr": 0.002}
    sampled = fedray.run({**keys, "method": method, "server": server, "rounds": 30}, data=data)
    found = [one.progress.state.models.double().numpy() for one in (average, sampled)]
    single = [np.linalg.norm(one - best, axis=1).mean() for one in found]
    mean = [np.linalg.norm(one.mean(0) - best) for one in found]
    assert single[1] < 0.8 * single[0]
    assert mean[1] < 0.7 * mean[0]
