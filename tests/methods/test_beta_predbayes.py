"""β-Predictive Bayes as runs: its ends, one client, the fitted beta, bytes, whose rows are whose, refusals."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from modules import load_module
from small import scenario

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput, FedrayWarning, ScenarioWarning
from fedray.models.aggregators import interpolate_answers
from fedray.models.nets import build_net
from fedray.runtime.stacking import make_worker
from fedray.scenario.loader import read_scenario
from fedray.simulation.stacking import read_part

N, P = 6, 610  # clients, and numbers of the small network
LABELS: dict[str, Any] = {"data": {"partition": {"name": "classes", "classes": 4, "alpha": None}}}


def keys(*changes: dict[str, Any], **options: Any) -> dict[str, Any]:
    method = {"name": "beta_predbayes", "samples": 2, "cycles": 1, **options}
    return scenario({"rounds": 1, "local": {"epochs": 5}, "method": method}, *changes)


def run(*changes: dict[str, Any], **options: Any) -> fedray.Run:
    return fedray.run(keys(*changes, **options), report=False)


def find_samples(one: fedray.Run) -> torch.Tensor:
    """Of each client, `[R N, M, p]`."""
    return read_part(one.progress.state, one.study.parts[0]).models.view(-1, 2, P)


def ask(one: fedray.Run) -> tuple[torch.Tensor, torch.Tensor]:
    """What the run answers to the test rows, `[n, C]`, and the probabilities of its clients, `[N, n, C]`."""
    x = one.study.split("test", 0)[0].numpy()
    rows, counters = one.progress.state[:2]
    found = one.predict(x).probabilities
    assert found is not None
    outputs = make_worker(one.study).forward(rows, counters, 0, torch.from_numpy(x))
    return torch.from_numpy(found), outputs[1:].softmax(-1)


@pytest.fixture(scope="module")
def ends() -> dict[Any, fedray.Run]:
    return {beta: run(LABELS, beta=beta) for beta in (0, 0.4, 1, "fit")}


def test_all_values_of_beta_have_the_same_samples_to_the_bit(ends: dict[Any, fedray.Run]) -> None:
    first = find_samples(ends[0])
    assert all(torch.equal(find_samples(one), first) for one in ends.values())
    assert (first[:, 0] != first[:, 1]).any(dim=1).all()
    assert len({one.summary["metrics"]["nll"]["mean"] for one in ends.values()}) == len(ends)


def test_zero_is_the_mean_of_the_clients_and_one_their_normalized_product(ends: dict[Any, fedray.Run]) -> None:
    mixture, each = ask(ends[0])
    torch.testing.assert_close(mixture, each.mean(0), rtol=1e-4, atol=1e-6)
    product = each.prod(0)
    torch.testing.assert_close(ask(ends[1])[0], product / product.sum(-1, keepdim=True), rtol=1e-3, atol=1e-5)
    metrics = ends[0].summary["metrics"]
    assert metrics["accuracy"]["mean"] == pytest.approx(metrics["accuracy_average"]["mean"], abs=0.01)


def test_the_fitted_beta_has_the_least_log_loss_on_the_servers_rows() -> None:
    one = run(LABELS, beta_epochs=300, beta_batch=1000)
    beta = float(read_part(one.progress.state, one.study.parts[1]).models)
    x, y = one.study.shards.server(0)
    z = make_worker(one.study).forward(*one.progress.state[:2], 0, x)[1:]

    def lose(value: float) -> float:
        return float(-interpolate_answers(z, torch.tensor([value]))[torch.arange(len(y)), y].mean())

    losses = [lose(value) for value in np.linspace(0, 1, 201)]
    assert 0.01 < beta < 0.99
    assert lose(beta) < min(losses) + 1e-4
    assert lose(0.5) > min(losses) + 1e-3  # where it began


def test_a_network_module_of_the_run_answers_as_the_run(ends: dict[Any, fedray.Run]) -> None:
    one = ends[0.4]
    x = one.study.split("test", 0)[0]
    inputs = one.study.shards.normalize(x[None], torch.tensor([0]))[0]
    module = load_module(one.study.net, one.progress.state.models[0], one.progress.state.counters[0])
    torch.testing.assert_close(module(inputs).softmax(-1).double(), ask(one)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("beta", [0, 0.3, 1, "fit"])
def test_one_client_with_one_sample_answers_as_its_network_for_every_beta(beta: Any) -> None:
    one = run({"clients": {"number": 1}}, beta=beta, samples=1)
    row = read_part(one.progress.state, one.study.parts[0]).models[0]
    x = one.study.split("test", 0)[0]
    net = build_net("mlp", tuple(x.shape[1:]), 10, "cross_entropy", hidden=[8])
    inputs = one.study.shards.normalize(x[None], torch.tensor([0]))[0]
    wanted = load_module(net, row)(inputs).softmax(-1).double()
    torch.testing.assert_close(ask(one)[0], wanted, rtol=1e-4, atol=1e-6)


def test_one_step_without_temperature_is_that_of_clients_alone() -> None:
    """The first step has the whole rate and no velocity: weight decay and all, it is SGD's."""
    step: dict[str, Any] = {"local": {"epochs": None, "steps": 1, "weight_decay": 0.01}}
    one = run(step, temperature=0, beta=0.5, server_data=0, samples=1)
    alone = fedray.run(scenario({"rounds": 1, "method": {"name": "local_only"}}, step), report=False)
    wanted = alone.progress.state.models
    torch.testing.assert_close(read_part(one.progress.state, one.study.parts[0]).models, wanted, rtol=1e-5, atol=1e-6)
    warm = run(step, temperature=1, beta=0.5, server_data=0, samples=1, exploration=0)
    assert (read_part(warm.progress.state, warm.study.parts[0]).models - wanted).abs().max() > 1e-3


def test_the_samples_go_up_once_and_beta_nowhere(ends: dict[Any, fedray.Run]) -> None:
    for beta, one in ends.items():
        jobs = one.clients.to_pandas()
        assert one.summary["totals"]["up_bytes"] == 4 * N * 2 * P
        assert one.summary["totals"]["down_bytes"] == 0
        assert (jobs["up_bytes"] > 0).sum() == N
        assert one.summary["rounds"] == (2 if beta == "fit" else 1)
    last = ends["fit"].clients.to_pandas().iloc[-1]
    assert (last["round"], last["client"], last["samples"], last["up_bytes"]) == (2, 0, 48, 0)  # a fifth of 240 rows


def test_the_server_takes_its_rows_from_the_clients() -> None:
    study = build_study(read_scenario(keys(server_data=0.25)))
    held = study.shards.sizes(np.zeros(N, dtype=int), np.arange(N)).sum()
    assert (held, len(study.shards.server(0)[1])) == (180, 60)
    fit = study.parts[1].study.shards
    assert fit.sizes(np.zeros(N, dtype=int), np.arange(N)).tolist() == [60, 0, 0, 0, 0, 0]


REAL: dict[str, Any] = {"data": {"name": "cubic", "limit": None, "partition": {"name": "iid"}}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "real targets": (REAL, "method.name = beta_predbayes, but cubic has real targets"),
    "another optimizer": ({"local": {"optimizer": "adam"}}, "local.optimizer = adam, but beta_predbayes samples"),
    "running statistics": (
        {"model": {"name": "resnet18", "hidden": None}}, "running statistics, of which each sample would need its own",
    ),
    "more samples than are taken": (
        {"method": {"samples": 7, "cycles": 3}}, "method.samples = 7, but 3 x 2 are taken",
    ),
    "no rows of the server": ({"method": {"server_data": 0}}, "method.server_data = 0, but method.beta = fit"),
    "a fit of a fixed beta": ({"method": {"beta": 0.5, "beta_lr": 0.1}}, "method.beta_lr = 0.1 cannot act"),
    "a few participants": ({"participation": {"per_round": 2}}, "participation.per_round = 2 cannot act"),
    "clients that drop out": ({"participation": {"dropout": 0.2}}, "participation.dropout = 0.2, but with method.beta"),
    "clients that sleep": ({"clients": {"availability": "diurnal"}}, "clients.availability = diurnal, but with"),
    "a server's mean": ({"server": {"weighting": "examples"}}, "server.weighting = 'examples' cannot act"),
    "a server's optimizer": ({"server": {"optimizer": "adam"}}, "server.optimizer"),
    "no rounds": ({"participation": {"mode": "async"}}, "participation.mode = async, but beta_predbayes trains"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_act_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        run(change)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("steps", "line"),
    [(4, "every client makes so few steps that some of its 2 samples are equal"), (5, "")],
)
def test_samples_that_are_the_same_are_named(steps: int, line: str) -> None:
    """Two samples at 4/5 and at the end of a cycle take five steps."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ScenarioWarning)
        one = run({"local": {"epochs": None, "steps": steps}}, beta=0.5)
    assert [line in str(each.message) for each in said] == [True] * bool(line)
    samples = find_samples(one)
    assert torch.equal(samples[:, 0], samples[:, 1]) is bool(line)


def test_with_a_fixed_beta_clients_may_drop_out() -> None:
    with pytest.warns(FedrayWarning, match="models that took no upload"):
        one = run({"participation": {"dropout": 0.4}}, beta=0.5)
    jobs = one.clients.to_pandas()
    assert set(jobs["status"]) == {"ok", "dropped"}
    samples = find_samples(one)
    lost = jobs.loc[jobs["status"] == "dropped", "client"].tolist()
    assert all(torch.equal(samples[i, 0], samples[i, 1]) for i in lost)  # its first network
