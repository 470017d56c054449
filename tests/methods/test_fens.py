"""FENS: its networks are local training's, its bytes are those of two phases, its aggregator sees proxy rows only."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from modules import load_module
from small import of_method, scenario, train_rounds

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput, ScenarioWarning
from fedray.core.method import Schedule
from fedray.core.types import Plan, State
from fedray.data.stacking import FeatureShards, ProxyShards
from fedray.runtime.stacking import StackWorkers
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
    x = study.shards.normalize(shown.x[shown.rows[0, : shown.size[0]]][None], torch.tensor([0]))[0]
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


def test_an_aggregator_that_learns_beats_the_mean_where_clients_share_no_class() -> None:
    apart = {"data": {"limit": 800, "partition": {"name": "classes", "classes": 2, "alpha": None}}}
    longer = {"clients": {"number": 5}, "server": {"lr": 0.02}, "local": {"epochs": 5}, "evaluate": {"every": 30}}
    tree = fens(apart, longer)
    found = fedray.run({**tree, "method": {"name": "fens", "aggregator": "class_weights", "meta_rounds": 30}}).summary
    assert found["metrics"]["accuracy"]["mean"] > found["metrics"]["accuracy_average"]["mean"] + 0.03


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "real targets": ({"data": {"name": "cubic", "limit": None, "partition": {"name": "iid"}}}, "has real targets"),
    "personal weights": ({"predict": {"gamma": 0.1}}, "predict.gamma = 0.1"),
    "a mean of logits": ({"predict": {"average": "logits"}}, "predict.average = logits, but method fens cannot use it"),
    "late networks": (
        {"participation": {"per_round": 2, "overcommit": 1.5}}, "participation.overcommit = 1.5, but method fens",
    ),
    "a schedule": ({"schedule": {"kind": "random"}}, "fens says by itself who trains which model"),
    "no rounds": ({"participation": {"mode": "buffered"}}, "fens trains every client by itself"),
    "a width of weights": ({"method": {"aggregator": "class_weights", "width": 3}}, "method.width = 3 cannot act"),
    "a server of votes": (
        {"method": {"aggregator": "voting"}, "server": {"lr": 0.1}}, "method.aggregator is voting, which nobody trains",
    ),
    "clients of votes": (
        {"method": {"aggregator": "voting"}, "participation": {"per_round": 2}},
        "participation.per_round = 2 cannot act, because method.aggregator is voting",
    ),
    "proxy rows of votes": ({"method": {"aggregator": "voting", "proxy": 0.2}}, "method.proxy = 0.2 cannot act"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_act_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        fedray.run(fens(change))
    assert "\n" not in str(refused.value)


def test_resuming_a_fens_run_with_more_rounds_is_refused(tmp_path: Any) -> None:
    run = fedray.run(of_method("fens"), out=tmp_path / "run")
    with pytest.raises(BadInput, match="meta model after its rounds"):
        fedray.resume(run.path, rounds=9)


@pytest.mark.parametrize(("proxy", "told"), [(0.3, True), (0.5, False)])
def test_an_aggregator_that_no_row_trains_is_told(proxy: float, told: bool) -> None:
    """Each of six clients has two rows. The answer was the mean of the networks, and nothing said so."""
    few = {"data": {"limit": 12, "partition": {"name": "iid", "alpha": None}}}
    keys = fens(few, aggregator="class_weights", meta_rounds=2, proxy=proxy)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", ScenarioWarning)
        found = fedray.run(keys, report=False).summary["metrics"]
    line = "nobody trains the aggregator, and the mean of the networks answers: raise method.proxy to 0.5 or more"
    assert any(line in str(one.message) for one in heard) is told
    assert (found["accuracy"]["mean"] == found["accuracy_average"]["mean"]) or not told


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
