"""Ditto, LG-FedAvg and private state: who answers with what, and what never leaves a client."""

from typing import Any

import numpy as np
import pytest
import torch
from small import scenario, train_rounds
from torch import nn

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.types import State, Stats
from fedray.features.personal import trained_layers
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress, run_round, size_jobs
from fedray.simulation.study import Study

SMALL = {"rounds": 3, "evaluate": {"personal": True}}


def finished(method: dict[str, Any], *changes: dict[str, Any]) -> fedray.Run:
    return fedray.run(scenario(SMALL, {"method": method}, *changes))


def test_of_several_lambdas_each_client_answers_with_its_best_on_held_out_rows() -> None:
    several = {"data": {"hold_out": 0.25}, "evaluate": {"clients": "all"}}
    run = finished({"name": "ditto", "lambda": [0.0, 5.0]}, several)
    singles = [finished({"name": "ditto", "lambda": pull}, several) for pull in (0.0, 5.0)]
    tables = [one.client_scores.to_pandas().query("round == 3") for one in (run, *singles)]
    best, *each = (table["hold_out_accuracy"].to_numpy() for table in tables)
    assert np.array_equal(best, np.maximum(*each)) and all((best > one).any() for one in each)
    with pytest.raises(fedray.BadInput, match="hold_out"):
        finished({"name": "ditto", "lambda": [0.0, 1.0]})


def train_again(study: Study, kept: dict[str, torch.Tensor], state: State, t: int) -> Stats:
    """Statistics of round t of clients that keep this."""
    runtime, phase = Inline(study), study.method.phase
    runtime.restore(kept)
    return runtime.train(t, size_jobs(study, phase.schedule(t, state)), state)[0]


LG = {"method": {"name": "lg_fedavg", "shared_layers": 1}}


@pytest.mark.parametrize("compress", [{}, {"kind": "topk", "ratio": 0.5, "error_feedback": True}, {"kind": "int8"}])
def test_private_layers_never_leave_the_client(compress: dict[str, Any]) -> None:
    """Bytes count the shared layer only, the server's copy of the others never moves, and nobody reads it again."""
    study = build_study(read_scenario(scenario(LG, {"compress": compress})))
    phase, layout = study.method.phase, study.net.layout
    mask = torch.from_numpy(layout.mask(phase.stays))
    assert phase.stays == trained_layers(layout)[:1]
    assert int((~mask).sum()) == 8 * 10 + 10
    progress, runtime = begin_progress(study), Inline(study)
    first = progress.state.models.clone()
    _, table, state, *_ = run_round(study, runtime, progress)
    assert (table.down_bytes == 4 * 90).all()
    assert (table.up_bytes <= 4 * 90).all()
    assert torch.equal(state.models[:, mask], first[:, mask])
    assert not torch.equal(state.models[:, ~mask], first[:, ~mask])
    assert set(runtime.private()) >= {"layers/keys", "layers/rows"}
    assert not torch.equal(runtime.private()["layers/rows"][:, mask], first[:, mask].expand(6, -1))
    nonsense = state.models.clone()
    nonsense[:, mask] = 1e3  # whatever the server holds there
    one, other = (
        train_again(study, runtime.private(), state._replace(models=models), 1)["sum"].value()
        for models in (state.models, nonsense)
    )
    assert torch.equal(one, other) and not one[:, mask].any()


def test_a_clients_private_layer_changes_no_other_upload() -> None:
    """And a private layer that the loss does not read changes no upload at all."""
    study = build_study(read_scenario(scenario(LG, {"server": {"robust": "median"}})))  # this server keeps each upload
    mask = torch.from_numpy(study.net.layout.mask(study.method.phase.stays))
    state, runtime = train_rounds(study, 1)
    uploads = []
    for shift in (0.0, 1.0):
        changed = {name: value.clone() for name, value in runtime.private().items()}
        changed["layers/rows"][2, mask] += shift
        uploads.append(train_again(study, changed, state, 1)["each"].rows)
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
    first = begin_progress(study).state
    assert torch.equal(state.models[:, mask], first.models[:, mask])
    assert int(state.counters.max()) == 0
    variance = layout.views(runtime.private()["layers/rows"])["norm.running_var"]
    assert bool((variance > 0).all())
    sums = []
    for shift in (0.0, 3.0):
        changed = {name: value.clone() for name, value in runtime.private().items()}
        layout.views(changed["layers/rows"])["idle.weight"][...] += shift
        sums.append(train_again(study, changed, state, 2)["sum"].value())
    assert torch.equal(*sums)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ({"name": "ditto", "models": 2, "lambda": [0.1, 1.0]}, "adaptive"),  # losses are in the state, too
        ({"name": "feddyn_ensemble", "models": 3}, "permutation"),
        ({"name": "ivon_admm", "models": 2}, "balanced"),
    ],
)
def test_private_rows_are_of_those_who_trained(method: dict[str, Any], kind: str) -> None:
    """With partial participation, under every schedule; models are finite, and the same when they train again."""
    tree = scenario({"method": method, "schedule": {"kind": kind}, "data": {"hold_out": 0.2},
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
