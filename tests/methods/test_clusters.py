"""Clusters of clients: IFCA is FedAvg where there is one model, finds what is there, and counts what it sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from faulty import NATURAL, POISONED, marked_images, model_of
from small import scenario

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput, FedrayError
from fedray.methods import Method, Setting, federated
from fedray.runtime.inline import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.questions import losses_of
from fedray.simulation.rounds import begin_progress, run_round

TWO = {"data": {"limit": 120, "partition": None}, "clients": {"number": 6}}
GROUPS: dict[str, Any] = {"name": "iid", "permute_labels": 2, "copies": True}


def run(method: dict[str, Any], *changes: dict[str, Any]) -> fedray.Run:
    return fedray.run(scenario({"method": method}, *changes))


@pytest.mark.parametrize(
    "change",
    [{}, {"participation": {"per_round": 3}, "compress": {"kind": "topk"}, "server": {"optimizer": "momentum"}}],
    ids=["plain", "partial"],
)
def test_ifca_of_one_model_is_fedavg(change: dict[str, Any]) -> None:
    uniform = {"server": {"weighting": "uniform"}}
    one, plain = run({"name": "ifca", "models": 1}, change), run({"name": "fedavg"}, uniform, change)
    assert one.summary["model_hash"] == plain.summary["model_hash"]
    assert one.summary["totals"]["down_bytes"] == plain.summary["totals"]["down_bytes"]


def test_every_client_gets_all_models_and_sends_one() -> None:
    several, one = run({"name": "ifca", "models": 3}), run({"name": "fedavg"})
    assert several.summary["totals"]["down_bytes"] == 3 * one.summary["totals"]["down_bytes"]
    assert several.summary["totals"]["up_bytes"] == one.summary["totals"]["up_bytes"]
    norm = {"model": {"norm": "batch"}, "local": {"batch_size": "full"}}  # whose counters travel too
    several, one = run({"name": "ifca", "models": 3}, norm), run({"name": "fedavg"}, norm)
    assert several.summary["totals"]["down_bytes"] == 3 * one.summary["totals"]["down_bytes"]


def test_participants_train_the_model_of_least_loss_and_a_model_that_nobody_chose_stays() -> None:
    keys = scenario({"method": {"name": "ifca", "models": 3}, "participation": {"per_round": 4}, "replicates": 2})
    study = build_study(read_scenario(keys))
    runtime, progress = Inline(study), begin_progress(study, study.method.phase)
    progress.state.models[2] *= 50.0  # of the first world: nobody wants it
    before = progress.state.models.clone()
    losses = runtime.ask(losses_of(3), progress.state)
    result = run_round(study, runtime, study.method.phase, progress)
    for client, model, world in zip(*result.plan, strict=True):
        assert model == int(losses[int(world), 0][:, client].argmin())
    assert len(result.plan.client) == 8
    chosen = set((result.plan.world * 3 + result.plan.model).tolist())
    assert 2 not in chosen
    for row in range(6):
        assert torch.equal(result.state.models[row], before[row]) is (row not in chosen)


def test_clusters_that_differ_are_found_and_told_apart() -> None:
    learn = {"rounds": 3, "local": {"lr": 0.2}, "seed": 1}  # from other starts it may take longer, or never succeed
    found = run({"name": "ifca", "models": 2}, TWO, {"data": {"partition": GROUPS}}, learn)
    true = found.study.shards.clusters(0)
    assert true is not None
    last = found.rounds.to_pylist()[-1]
    assert last["cluster_ari"] == 1.0
    jobs = [row for row in found.clients.to_pylist() if row["round"] == 3]
    assert len({(int(true[row["client"]]), row["model"]) for row in jobs}) == 2
    assert last["personal_accuracy"] > last["accuracy"] + 0.1


def test_the_index_of_clusters_is_there_for_every_method_that_weighs_models_and_only_there() -> None:
    weighed = {"evaluate": {"personal": True}, "predict": {"gamma": 0.1}}
    shifted = {"data": {"partition": {"name": "iid", "rotation": 2}}, "rounds": 1}
    assert "cluster_ari" in run({"name": "fed_ensemble", "models": 2}, shifted, weighed).rounds.column_names
    for other in (run({"name": "fed_ensemble", "models": 2}, weighed), run({"name": "fedavg"}, shifted)):
        assert "cluster_ari" not in other.rounds.column_names


def test_clients_that_cannot_say_are_left_out_like_others_that_fail() -> None:
    """Whose network raises on their rows: no loss is told, the job fails, and the others go on."""
    data = marked_images()
    keys = {**NATURAL, "method": {"name": "ifca", "models": 2}, "on_client_error": "skip", "runtime": "inline"}
    with pytest.warns(UserWarning, match="1 jobs failed"):
        done = fedray.run(keys, data=data, model=model_of("raises", data)).clients
    failed = [row["client"] for row in done.to_pylist() if row["status"] != "ok"]
    assert failed == [POISONED] and len(done) == 6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"participation": {"mode": "buffered"}}, "lets clients choose among the models of a round: set it to sync"),
        ({"schedule": {"kind": "random"}}, "ifca says by itself who trains which model"),
        ({"clients": {"tiers": {"a": {"models_per_round": "all"}}}}, "ifca says by itself who trains which model"),
        ({"local": {"private": ["1"]}}, "ifca keeps no layers of its network at the clients"),
    ],
)
def test_what_ifca_does_not_go_with_is_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says) as wrong:
        read_scenario({"method": {"name": "ifca"}, **change})
    assert "\n" not in str(wrong.value)


def test_the_choice_of_a_round_is_the_same_in_any_order_of_the_answers() -> None:
    study = build_study(read_scenario(scenario({"method": {"name": "ifca", "models": 2}})))
    phase = study.method.phase
    assert phase.choose is not None
    plan = phase.schedule(0, None)
    losses = np.array([[0.2, 0.1], [np.inf, 3.0], [np.nan, np.nan], [0.5, 0.5], [0.0, -1.0], [1.0, 2.0]])
    assert phase.choose(plan, losses).model.tolist() == [1, 1, 0, 0, 1, 0]


def test_an_own_choice_of_clients_that_were_not_asked_is_refused() -> None:
    """Fewer jobs were trained without a word, and the bytes of the others, who were asked too, were not counted."""

    def fewer(plan: Any, _losses: Any) -> Any:
        return type(plan)(*(part[:1] for part in plan))

    def method(setting: Setting) -> Method:
        return Method("fewer", replace(federated(setting), choose=fewer))

    line = "choose returned other jobs than those that were asked: change the models of the plan alone$"
    with pytest.raises(FedrayError, match=line):
        fedray.run(scenario({"rounds": 1}), method=method)


def test_an_own_choice_reads_the_networks_own_loss_also_where_another_one_trains() -> None:
    """As docs/how-to/own_code.md says: whatever trains, clients tell the mean loss of the K models on their rows."""
    told: list[Any] = []

    def choose(plan: Any, losses: Any) -> Any:
        told.append(losses)
        return plan._replace(model=losses.argmax(axis=1))

    def hardest(setting: Setting) -> Method:
        return Method("hardest", replace(federated(setting), choose=choose))

    def halved(outputs: Any, targets: Any, context: Any) -> Any:
        return 0.5 * context.objective(outputs, targets)

    keys = scenario({"rounds": 1, "method": {"models": 3}})
    for loss in (None, halved):
        jobs = fedray.run(keys, method=hardest, loss=loss).clients.to_pandas()
        assert jobs["model"].tolist() == told[-1].argmax(axis=1).tolist()
        assert (jobs["down_bytes"] == 3 * jobs["up_bytes"]).all()
    assert len(told) == 4 and all(
        np.array_equal(told[0], one) for one in told
    )  # the first of each run is asked for twice
