"""FENS and beta-Predictive Bayes: networks that are trained alone, and what puts their answers together."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from modules import load_module
from small import scenario, train_rounds

import fedray
from fedray.assembly.study import build_study
from fedray.core.method import Schedule
from fedray.core.types import Plan, State
from fedray.features.stacking import FeatureShards, ProxyShards, interpolate_answers
from fedray.runtime.stacking import StackWorkers, make_worker
from fedray.scenario.loader import read_scenario
from fedray.simulation.stacking import read_part
from fedray.simulation.study import Study

N, CLASSES = 6, 10


def fens(*changes: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return scenario({"rounds": 1, "method": {"name": "fens", **keys}}, *changes)


def proxies(study: Study) -> tuple[ProxyShards, ProxyShards]:
    """The two views of a study's rows: of the networks, and of the aggregator."""
    features = study.parts[1].study.shards
    assert isinstance(features, FeatureShards)
    left, right = study.parts[0].study.shards, features.whole
    assert isinstance(left, ProxyShards)
    assert isinstance(right, ProxyShards)
    return left, right


@pytest.mark.parametrize(
    "change",
    [{"replicates": 2}, {"compress": {"kind": "int8"}}, {"clients": {"tiers": {"a": {"share": 0.5}, "b": {}}}}],
    ids=["two replicates", "8 bits", "tiers"],
)
def test_fens_with_the_mean_is_the_ensemble_of_local_models(change: dict[str, Any]) -> None:
    """The same networks to the bit, the same bytes up, and the same answers."""
    ours = fens(change, aggregator="mean")
    local = fedray.run(scenario({"rounds": 1, "method": {"name": "local_only"}}, change))
    run = fedray.run(ours)
    state = run.progress.state
    assert torch.equal(state.models.view(-1, local.progress.state.models.shape[1]), local.progress.state.models)
    one, other = run.summary, local.summary
    assert one["metrics"]["accuracy"] == other["metrics"]["accuracy"]
    assert one["metrics"]["nll"]["mean"] == pytest.approx(other["metrics"]["nll"]["mean"], rel=1e-9)
    assert (one["totals"]["up_bytes"], one["totals"]["down_bytes"]) == (other["totals"]["up_bytes"], 0)
    assert other["totals"]["down_bytes"] == 0  # in either a client begins with a model of its own


def test_the_bytes_of_both_phases_are_counted() -> None:
    """N networks up; to each client of phase 2 once all N down; the aggregator both ways for each job."""
    run = fedray.run(fens({"participation": {"per_round": 2}}, meta_rounds=3))
    d, aggregator = (part.study.net.layout.d for part in run.study.parts)
    jobs = run.clients.to_pandas()
    assert (jobs["round"] == 1).sum() == N  # who takes part is about phase 2
    second = jobs[jobs["round"] > 1]
    assert set(second.groupby("round").size()) == {2}
    assert run.summary["totals"]["up_bytes"] == 4 * (N * d + len(second) * aggregator)
    assert run.summary["totals"]["down_bytes"] == 4 * (second["client"].nunique() * N * d + len(second) * aggregator)


def test_label_shares_cost_the_counts_of_the_classes() -> None:
    up = [fedray.run(fens(aggregator=kind)).summary["totals"]["up_bytes"] for kind in ("mean", "label_shares")]
    assert up[1] - up[0] == N * 8 * CLASSES


def test_proxy_rows_and_the_rows_of_the_networks_are_a_partition_of_every_client() -> None:
    study = build_study(read_scenario(fens({"replicates": 2}, proxy=0.25)))
    left, right = proxies(study)
    world, client = np.repeat([0, 1], N), np.tile(np.arange(N), 2)
    whole, one, other = (shards.fetch(world, client) for shards in (study.shards, left, right))
    assert (other.size == whole.size // 4).all()
    for job in range(len(world)):
        rows = [set(each.rows[job, : each.size[job]].tolist()) for each in (one, other, whole)]
        assert rows[0] | rows[1] == rows[2]
        assert not rows[0] & rows[1]


def test_features_are_the_logits_of_all_networks_on_the_proxy_rows() -> None:
    study = build_study(read_scenario(fens(proxy=0.25)))
    state, runtime = train_rounds(study, 1)
    parts = runtime.worker.parts
    assert isinstance(parts, StackWorkers)
    parts._use_state(state)
    own, shown = read_part(state, study.parts[0]).models, proxies(study)[1].fetch(np.array([0]), np.array([2]))
    x = study.shards.scaling.normalize(shown.x[shown.rows[0, : shown.size[0]]][None], torch.tensor([0]))[0]
    want = torch.cat([load_module(study.parts[0].study.net, row)(x) for row in own], dim=1).detach()
    torch.testing.assert_close(parts.features(0, 2), want, rtol=1e-4, atol=1e-5)


def test_the_second_phase_changes_the_aggregator_alone_by_its_own_steps() -> None:
    study = build_study(read_scenario(fens(meta_rounds=4, meta_steps=2, meta_batch=4)))
    before, _ = train_rounds(study, 1)
    after, _ = train_rounds(study, 4)
    for part, same in zip(study.parts, (True, False), strict=True):
        assert torch.equal(read_part(before, part).models, read_part(after, part).models) is same
    jobs = fedray.run(fens(meta_rounds=2, meta_steps=2, meta_batch=4)).clients.to_pandas()
    assert (jobs.loc[jobs["round"] == 1, "steps"] > 2).any()
    assert (jobs.loc[jobs["round"] > 1, "steps"] == 2).all()


def test_the_second_phase_weighed_all_clients_alike() -> None:
    """The authors' script weighs by rows: the upload of a client with all the weight is the mean of all."""
    keys = fens({"server": {"optimizer": "none", "lr": None}}, meta_rounds=1, meta_lr=0.1, proxy=0.5)
    runs = {w: fedray.run(scenario(keys, {"server": {"weighting": w}})) for w in (None, "examples", "uniform")}
    hashes = {w: run.summary["state_hash"] for w, run in runs.items()}
    assert hashes[None] == hashes["examples"] != hashes["uniform"]
    study = runs[None].study
    own = proxies(study)[1].sizes(np.zeros(N, np.int64), np.arange(N))
    begin = read_part(train_rounds(study, 1)[0], study.parts[1]).models[0].double()
    each = []
    for client in np.flatnonzero(own).tolist():
        alone = build_study(read_scenario(keys))
        phase = replace(alone.method.phase, schedule=partial(_of, alone.method.phase.schedule, client))
        state = train_rounds(replace(alone, method=replace(alone.method, phase=phase)), 2)[0]
        each.append(read_part(state, alone.parts[1]).models[0].double() - begin)
    wanted = (torch.stack(each) * torch.from_numpy(own[own > 0])[:, None]).sum(0) / own.sum()
    after = read_part(train_rounds(study, 2)[0], study.parts[1]).models[0].double() - begin
    torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-7)


def _of(schedule: Schedule, client: int, t: int, state: State | None) -> Plan:
    """The first round's jobs; of later ones those of one client."""
    plan = schedule(t, state)
    return plan if t == 0 else plan.take(plan.client == client)


def test_a_class_that_no_network_votes_for_costs_the_floor_of_the_log_loss() -> None:
    """The log loss of votes is infinite without it; what the reference says of `voting` is that number."""
    run = fedray.run(fens(aggregator="voting"), report=False)
    x, y = run.study.split("test", 0)
    found = run.predict(x.numpy()).probabilities
    assert found is not None
    given = found[np.arange(len(y)), y.numpy()]
    voted = given > 0.5 / N
    assert 0 < voted.sum() < len(y)
    np.testing.assert_allclose(given[voted] * N, np.rint(given[voted] * N))
    nats = np.where(voted, -np.log(np.where(voted, given, 1.0)), 52 * np.log(2))  # 36.04
    assert run.summary["metrics"]["nll"]["mean"] == pytest.approx(nats.mean(), rel=1e-9)


BAYES_N, P = 6, 610  # clients, and numbers of the small network
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
    inputs = one.study.shards.scaling.normalize(x[None], torch.tensor([0]))[0]
    module = load_module(one.study.net, one.progress.state.models[0], one.progress.state.counters[0])
    torch.testing.assert_close(module(inputs).softmax(-1).double(), ask(one)[0], rtol=1e-4, atol=1e-5)


def test_one_step_without_temperature_is_that_of_clients_alone() -> None:
    """The first step has the whole rate and no velocity: weight decay and all, it is SGD's."""
    step: dict[str, Any] = {"local": {"epochs": None, "steps": 1, "weight_decay": 0.01}}
    one = run(step, temperature=0, beta=0.5, server_data=0, samples=1)
    alone = fedray.run(scenario({"rounds": 1, "method": {"name": "local_only"}}, step), report=False)
    wanted = alone.progress.state.models
    torch.testing.assert_close(read_part(one.progress.state, one.study.parts[0]).models, wanted, rtol=1e-5, atol=1e-6)
    warm = run(step, temperature=1, beta=0.5, server_data=0, samples=1, exploration=0)
    assert (read_part(warm.progress.state, warm.study.parts[0]).models - wanted).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:.*took no upload")
def test_with_a_fixed_beta_clients_may_drop_out() -> None:
    jobs = (one := run({"participation": {"dropout": 0.4}}, beta=0.5)).clients.to_pandas()
    lost = jobs.loc[jobs["status"] == "dropped", "client"].unique()
    samples = find_samples(one)[lost]
    assert len(lost) and torch.equal(samples[:, 0], samples[:, 1])  # its first network


def test_the_samples_go_up_once_and_beta_nowhere(ends: dict[Any, fedray.Run]) -> None:
    for beta, one in ends.items():
        jobs = one.clients.to_pandas()
        assert one.summary["totals"]["up_bytes"] == 4 * BAYES_N * 2 * P
        assert one.summary["totals"]["down_bytes"] == 0
        assert (jobs["up_bytes"] > 0).sum() == BAYES_N
        assert one.summary["rounds"] == (2 if beta == "fit" else 1)
    last = ends["fit"].clients.to_pandas().iloc[-1]
    assert (last["round"], last["client"], last["samples"], last["up_bytes"]) == (2, 0, 48, 0)  # a fifth of 240 rows


def test_the_work_of_tiers_is_not_that_of_what_joins_the_networks() -> None:
    """A tier had decided the steps of FENS's aggregator, and client 0's tier those of the server."""
    tiers = {"a": {"number": 2, "epochs": 3}, "b": {"number": 2, "epochs": 9}}
    pooled = {"name": "stacking", "bases": [{"name": "linear"}], "meta_data": "pooled"}
    for method in ("fens", "beta_predbayes", pooled):
        parts = build_study(read_scenario({"rounds": 1, "method": method, "clients": {"tiers": tiers}})).parts
        assert [[tier.epochs for tier in part.study.clients.tiers] for part in parts] == [[3, 9], [None, None]]
