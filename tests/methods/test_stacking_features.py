"""What a meta model learns from, and where: out-of-fold answers, all sub models', side by side; clients or a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modules import load_module
from small import copy_run, run_command, scenario, train_rounds
from stacks import CLASSES, CLIENTS, EACH, STACK, WITHIN, features, study, table

import fedray
from fedray.simulation.stacking import read_part


def of(**keys: Any) -> dict[str, Any]:
    return {"method": keys}


SIDE, ALL, POOLED = of(features="side_by_side"), of(features="all"), of(meta_data="pooled")


@pytest.mark.parametrize("folds", [{}, WITHIN], ids=["client", "within"])
def test_features_of_all_sub_models_are_what_a_new_row_would_get(folds: dict[str, Any]) -> None:
    """`all`: the mean over the sub models of each base; `side_by_side`: each of them, base after base."""
    for change in (ALL, SIDE):
        made = study(folds, change)
        state, _ = train_rounds(made, 3)
        x, each = torch.from_numpy(table().train.x), []
        for part in made.parts[:-1]:
            rows = read_part(state, part).models
            said = torch.stack([load_module(part.study.net, row)(x).softmax(-1) for row in rows])
            each += [said.mean(0)] if change is ALL else list(said)
        want = torch.cat(each, dim=1).detach().numpy()
        assert made.parts[-1].study.shards.data.train.x.shape[1] == want.shape[1]
        np.testing.assert_allclose(features(made, state), want, atol=1e-5)


def test_a_server_that_pools_one_client_trains_as_the_client_does() -> None:
    """Bit for bit, and everybody's rows are in one job a world where there are several."""
    whole = table(owner=np.zeros(CLIENTS * EACH))
    one, other = (train_rounds(study(WITHIN, change, data=whole), 6)[0] for change in ({}, POOLED))
    assert torch.equal(one.models, other.models)
    made = study(POOLED, {"replicates": 2})
    plan = made.method.phase.schedule(3, None)
    assert (plan.client.tolist(), plan.world.tolist()) == ([0, 0], [0, 1])
    assert made.method.phase.sizes is not None
    assert made.method.phase.sizes(plan).tolist() == [CLIENTS * EACH] * 2


def test_pooled_rows_are_those_of_all_clients_with_their_labels() -> None:
    made = study(POOLED, ALL, {"replicates": 2})
    state, _ = train_rounds(made, 3)
    want = features(made, state)
    from fedray.runtime.inline import Inline

    worker = Inline(made).worker
    assert worker.parts is not None
    worker.parts._use_state(state)  # type: ignore[attr-defined]  # of a stack
    shards = worker.parts.workers[-1].study.shards
    got = shards.fetch(np.array([0, 1]), np.array([0, 0]))
    rows = got.rows[0, : int(got.size[0])]
    np.testing.assert_array_equal(got.x[rows].numpy(), want)
    labels = got.labels(rows, torch.zeros(len(rows), dtype=torch.int64))
    assert labels.tolist() == table().train.y.tolist()


def test_answers_go_up_once_and_the_meta_model_never(tmp_path: Path) -> None:
    run = fedray.run(scenario(STACK, POOLED, {"checkpoint": {"every": 1}}), data=table(), out=tmp_path / "run")
    jobs = run.clients.to_pandas().query("round > 3")
    n, d = CLIENTS * EACH, [part.study.net.layout.d for part in run.study.parts]
    assert jobs["up_bytes"].tolist() == [n * (4 * 2 * CLASSES + 8), 0, 0]
    assert jobs["down_bytes"].tolist() == [CLIENTS * 4 * (d[0] + 2 * d[1]), 0, 0]
    again = fedray.resume(copy_run(run, tmp_path / "again", 4), data=table())
    assert again.summary["state_hash"] == run.summary["state_hash"]


def test_a_client_fetches_all_sub_models_for_features_of_all_of_them() -> None:
    run = fedray.run(scenario(STACK, SIDE), data=table())
    d = [part.study.net.layout.d for part in run.study.parts]
    down = run.clients.to_pandas().query("round == 4")["down_bytes"]
    assert down.tolist() == [4 * (d[2] + CLIENTS * (d[0] + 2 * d[1]))] * CLIENTS
    module = run.study.net.module
    module.load_state_dict(run.models[0])
    want = module(torch.from_numpy(table().test.x)).softmax(-1).detach().numpy()
    np.testing.assert_allclose(run.predict(table().test.x).mean, want, atol=1e-5)


def test_features_that_a_new_row_would_get_do_not_collapse_where_classes_are_disjoint() -> None:
    """The paper's folds do, to below 0.1 (test_stacking.py): the models that may be asked have not seen the class."""
    owner, keys = np.arange(CLIENTS * EACH) % CLASSES, {"rounds": 20, "replicates": 3, "evaluate": {"every": 20}}
    for change in (ALL, SIDE):
        meta = of(meta_optimizer="sgd", meta_lr=1.0, meta_data="pooled")
        found = fedray.run(scenario(STACK, keys, meta, change), data=table(owner=owner)).summary["metrics"]
        assert found["accuracy"]["mean"] > found["accuracy_average"]["mean"] + 0.05


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (["participation.dropout=0.1"], "participation.dropout = 0.1, but with method.meta_data = pooled the server"),
        (["method.meta=average"], "method.meta_data cannot act, because method.meta is average"),
        (["method.features=mean"], "method.features = 'mean' is not one of out_of_fold, all, side_by_side"),
    ],
)
def test_what_cannot_be_pooled_is_one_line(tmp_path: Path, keys: list[str], line: str) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("method: {name: stacking, meta_data: pooled}\nruntime: inline\nclients: {number: 4}\n")
    result = run_command("check", file, *keys)
    assert line in result.err
