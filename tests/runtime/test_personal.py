"""Ditto, LG-FedAvg and private state: where they reduce to known methods, and what never leaves a client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import copy_run, scenario, train_rounds
from torch import nn

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.types import Plan
from fedray.evaluation.answers import own_test_rows
from fedray.features.personal import trained_layers
from fedray.files.plain import hash_tensors
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress, run_round, size_jobs
from fedray.training import block as lanes

SMALL = {"rounds": 3, "evaluate": {"personal": True}}


def finished(method: dict[str, Any], *changes: dict[str, Any]) -> fedray.Run:
    return fedray.run(scenario(SMALL, {"method": method}, *changes))


def test_dittos_global_model_is_fedavgs_bit_for_bit() -> None:
    """And costs the same bytes: the personal models never leave the clients."""
    fedavg = finished({"name": "fedavg"}, {"server": {"weighting": "uniform"}})
    ditto = finished({"name": "ditto", "lambda": 0.5})
    assert ditto.summary["model_hash"] == fedavg.summary["model_hash"]
    assert ditto.summary["state_hash"] != fedavg.summary["state_hash"]
    for name in ("up_bytes", "down_bytes"):
        assert ditto.summary["totals"][name] == fedavg.summary["totals"][name]
    steps = [np.array(run.clients["steps"].to_pylist()) for run in (fedavg, ditto)]
    assert (steps[1] == 2 * steps[0]).all()


def test_ditto_without_pull_is_local_training() -> None:
    """Lambda = 0: each personal model is what the client gets by training alone from the first model."""
    study = build_study(read_scenario(scenario({"method": {"name": "ditto", "lambda": 0}})))
    phase = study.method.phase
    state, runtime = train_rounds(study, 3)
    worker, start = runtime.worker, begin_progress(study, phase).state.models[0]
    for client in range(6):
        alone = start[None].expand(2, -1)
        for t in range(3):
            plan = Plan(np.full(2, client), np.zeros(2, int), np.zeros(2, int))
            size = study.shards.sizes(plan.world, plan.client)
            steps = lanes.count_steps(size, phase.local)
            key = fedray.core.rng.keys(study.seeds[plan.world], "personal", t, plan.client, plan.model)
            fetched = study.shards.fetch(plan.world, plan.client)
            width = int(lanes.choose_batch_width(size, phase.local)[0])
            index, weight = lanes.deal_batches(fetched.rows.numpy(), size, steps, width, key)

            def batch(
                lo: int, hi: int, index: Any = index, fetched: Any = fetched
            ) -> tuple[torch.Tensor, torch.Tensor]:
                return study.shards.normalize(fetched.x[index[lo:hi]], torch.zeros(2)), fetched.y[index[lo:hi]]

            counters = torch.zeros(2, 0, dtype=torch.int64)
            local = replace(phase.local, pull=0.0)
            one = lanes.Block(alone, counters, batch, weight, steps, local, local.lr_at(t), key, 64)
            alone = worker.engine.train(study.net, one).final
        mine = worker.own_models(state, 0, client)
        assert torch.equal(mine[0], alone[0])


def test_a_strong_pull_keeps_the_personal_model_at_the_global_one() -> None:
    distance = []
    for pull in (0.0, 60.0):
        keys = scenario({"method": {"name": "ditto", "lambda": pull}, "local": {"lr": 0.01}})
        state, runtime = train_rounds(build_study(read_scenario(keys)), 3)
        distance.append(float((runtime.private()["personal/0/rows"] - state.models).norm(dim=1).mean()))
    assert distance[1] < 0.5 * distance[0]


def test_of_several_lambdas_each_client_answers_with_its_best_on_held_out_rows() -> None:
    several = {"data": {"hold_out": 0.25}}
    run = finished({"name": "ditto", "lambda": [0.0, 1.0]}, several)
    singles = [finished({"name": "ditto", "lambda": pull}, several) for pull in (0.0, 1.0)]
    score = [float(one.summary["metrics"]["hold_out_personal_accuracy"]["mean"]) for one in (run, *singles)]
    assert score[0] >= max(score[1:])
    with pytest.raises(fedray.BadInput, match="hold_out"):
        finished({"name": "ditto", "lambda": [0.0, 1.0]})


def test_lg_fedavg_with_nothing_private_is_fedavg_bit_for_bit() -> None:
    fedavg, lg = finished({"name": "fedavg"}), finished({"name": "lg_fedavg", "shared_layers": 2})
    for name in ("model_hash", "state_hash", "metrics"):
        assert lg.summary[name] == fedavg.summary[name]
    assert lg.summary["totals"]["up_bytes"] == fedavg.summary["totals"]["up_bytes"]


LG = {"method": {"name": "lg_fedavg", "shared_layers": 1}}


@pytest.mark.parametrize("compress", [{}, {"kind": "topk", "ratio": 0.5, "error_feedback": True}, {"kind": "int8"}])
def test_private_layers_never_leave_the_client(compress: dict[str, Any]) -> None:
    """Bytes count the shared layer only, the server's copy of the others never moves, and nobody reads it again."""
    study = build_study(read_scenario(scenario(LG, {"compress": compress})))
    phase, layout = study.method.phase, study.net.layout
    mask = torch.from_numpy(layout.mask(phase.stays))
    assert phase.stays == trained_layers(layout)[:1]
    assert int((~mask).sum()) == 8 * 10 + 10
    progress, runtime = begin_progress(study, phase), Inline(study)
    first = progress.state.models.clone()
    plan, table, state, *_ = run_round(study, runtime, phase, progress)
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
        stats, _ = other.train(1, size_jobs(study, phase, plan), state._replace(models=models), phase)
        assert float(stats["sum"].value()[:, mask].abs().max()) == 0.0
        ends.append(hash_tensors({str(k): v for k, v in stats["sum"].limbs.items()}))
    assert ends[0] == ends[1]


def test_a_clients_private_layer_changes_no_other_upload() -> None:
    """And a private layer that the loss does not read changes no upload at all."""
    study = build_study(read_scenario(scenario(LG, {"server": {"robust": "median"}})))  # this server keeps each upload
    phase, mask = study.method.phase, torch.from_numpy(study.net.layout.mask(study.method.phase.stays))
    state, runtime = train_rounds(study, 1)
    plan = phase.schedule(1, state)
    kept = runtime.private()
    uploads = []
    for shift in (0.0, 1.0):
        other, changed = Inline(study), {name: value.clone() for name, value in kept.items()}
        changed["layers/rows"][2, mask] += shift
        other.restore(changed)
        uploads.append(other.train(1, size_jobs(study, phase, plan), state, phase)[0]["each"].rows)
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
        answer: torch.Tensor = self.head(self.norm(x.flatten(1))) + 0.0 * self.idle(x.new_zeros(4)).sum()
        return answer


def test_private_batchnorm_stays_private_with_its_statistics_and_counters() -> None:
    whole = {"data": {"partition": {"name": "iid"}}, "local": {"batch_size": "full"}}  # no batch of one sample
    study = build_study(read_scenario(scenario(LG, whole)), UserObjects(model=Idle))
    phase, layout = study.method.phase, study.net.layout
    assert phase.stays == ("idle", "norm")
    mask = torch.from_numpy(layout.mask(phase.stays))
    assert int(mask.sum()) == 20 + 4 * 64
    state, runtime = train_rounds(study, 2)
    first = begin_progress(study, phase).state
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
        sums.append(other.train(2, size_jobs(study, phase, plan), state, phase)[0]["sum"].value())
    assert torch.equal(*sums)


PRIVATE = {
    "feddyn_ensemble": {"name": "feddyn_ensemble", "models": 3},
    "ditto": {"name": "ditto", "models": 2, "lambda": [0.1, 1.0]},
    "ivon_admm": {"name": "ivon_admm", "models": 2},
}
UPLOADS: dict[str, dict[str, Any]] = {
    "ditto": {"compress": {"kind": "topk", "error_feedback": True}},
    "ivon_admm": {"compress": {"kind": "int8", "error_feedback": True}, "local": {"lr": 1e-4}},
}


@pytest.mark.parametrize("method", ["ditto", "ivon_admm"])
def test_private_state_resumes_with_the_residuals_of_compressed_uploads(method: str, tmp_path: Path) -> None:
    """Sparse uploads and those of eight bits: same models, same private state."""
    tree = scenario({"method": PRIVATE[method], "data": {"hold_out": 0.2}}, UPLOADS[method])
    run = fedray.run(tree, out=tmp_path / "run")
    again = fedray.resume(copy_run(run, tmp_path / "copy", 2))
    for name in ("model_hash", "state_hash", "metrics"):
        assert again.summary[name] == run.summary[name]


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("ditto", "adaptive"),  # losses are in the state, beside the server's
        ("feddyn_ensemble", "permutation"),
        ("ivon_admm", "balanced"),
    ],
)
def test_private_rows_are_of_those_who_trained(method: str, kind: str) -> None:
    """With partial participation, under every schedule; models are finite, and the same when they train again."""
    tree = scenario({"method": PRIVATE[method], "schedule": {"kind": kind}, "data": {"hold_out": 0.2},
                     "participation": {"fraction": 0.5}, "rounds": 2})  # fmt: skip
    study = build_study(read_scenario(tree, explicit=False))
    state, runtime = train_rounds(study, 2)
    assert bool(torch.isfinite(state.models).all())
    plans = (study.method.phase.schedule(t, train_rounds(study, t)[0]) for t in range(2))
    met = {tuple(job) for plan in plans for job in np.stack([plan.world, plan.client, plan.model], axis=1).tolist()}
    assert 3 < len(met) <= 2 * 3, "two rounds of three jobs, and not the same ones"
    private = runtime.private()
    for name in study.method.phase.own:
        assert {tuple(key) for key in private[f"{name}/keys"].tolist()} == met
    assert torch.equal(train_rounds(study, 2)[0].models, state.models)


@pytest.mark.parametrize("method", ["fed_ensemble", "lg_fedavg"])
def test_known_clients_are_answered_by_averaged_logits_too(method: str) -> None:
    """`Run.predict` and the reported accuracy mean the same answer."""
    keys = {"method": {"name": method, "models": 3}, "predict": {"average": "logits"}, "rounds": 2}
    run = fedray.run(scenario(keys, {"evaluate": {"personal": True}, "data": {"partition": {"name": "iid"}}}))
    x, y = run.study.split("test", 0)
    ask = own_test_rows(run.study, 0)
    each = []
    for client in range(6):
        asked = ask(client)
        answer = run.predict(x[torch.from_numpy(asked.rows)].numpy(), client=client).probabilities
        assert answer is not None
        each.append(((answer.argmax(-1) == y.numpy()[asked.rows]) * asked.weight).sum())
    assert run.summary["metrics"]["personal_accuracy"]["mean"] == pytest.approx(float(np.mean(each)), abs=1e-6)
