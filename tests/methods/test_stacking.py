"""Parallel-ensemble stacking: no row's features come from a model that has seen it; what a meta model learns from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stacks
import torch
from modules import load_module
from small import copy_run, rows, scenario, train_rounds
from stacks import BASES, BOTH, CLASSES, CLIENTS, EACH, STACK, WITHIN

import fedray
from fedray.runtime.session import Inline
from fedray.simulation.rounds import size_jobs
from fedray.simulation.stacking import read_part, split_plan


@BOTH
def test_a_sub_model_never_sees_the_part_it_leaves_out_by_construction(folds: dict[str, Any]) -> None:
    """Each row is left out exactly once and seen otherwise; sizes known before training are those of the rows read."""
    made = stacks.study(folds)
    plan = made.method.phase.schedule(0, None)
    size = size_jobs(made, plan).size
    for share in split_plan(made.parts, plan):
        fetched = share.part.study.shards.fetch(share.plan.world, share.plan.client)
        assert fetched.size.tolist() == size[share.jobs].tolist()
    everything = set(range(CLIENTS * EACH))
    for part in made.parts[:-1]:
        left = [everything - stacks.seen_rows(part, made, fold) for fold in range(part.folds)]
        assert sum(map(len, left)) == len(everything)
        assert set().union(*left) == everything
        assert left == [set(stacks.rows_in(part, fold).tolist()) for fold in range(part.folds)]
        if not folds:
            assert left[2] == set(range(2 * EACH, 3 * EACH))


@pytest.mark.parametrize(("folds", "left_out"), [({}, 0), ({}, 2), (WITHIN, 1)])
def test_other_data_in_a_fold_changes_no_bit_of_the_sub_models_that_leave_it_out(
    folds: dict[str, Any], left_out: int
) -> None:
    before = stacks.study(folds)
    after = stacks.study(folds, data=stacks.table(change=stacks.rows_in(before.parts[0], left_out)))
    for one, other in zip(stacks.bases_after(before), stacks.bases_after(after), strict=True):
        assert (one == other).flatten(1).all(1).tolist() == [fold == left_out for fold in range(len(one))]


def test_a_schedule_of_the_rate_ends_with_the_sub_models() -> None:
    *bases, meta = stacks.study({"local": {"schedule": {"kind": "cosine"}}}).parts
    assert [part.study.method.phase.local.lr_at(10**6) > 0 for part in (*bases, meta)] == [False] * len(bases) + [True]


def test_features_are_those_of_the_models_that_left_the_row_out() -> None:
    """Client j's features are the probabilities of (i, j), computed here with the modules themselves."""
    made = stacks.study()
    state, _ = train_rounds(made, 3)
    found = stacks.features(made, state)
    for i, part in enumerate(made.parts[:-1]):
        own = read_part(state, part)
        for client in range(CLIENTS):
            x = torch.from_numpy(stacks.table().train.x[client * EACH : (client + 1) * EACH])
            here = range(client * part.models, (client + 1) * part.models)
            each = [load_module(part.study.net, own.models[m])(x).softmax(-1) for m in here]
            want = torch.stack(each).mean(0).detach().numpy()
            mine = found[client * EACH : (client + 1) * EACH, i * CLASSES : (i + 1) * CLASSES]
            np.testing.assert_allclose(mine, want, atol=1e-5)


def test_a_sub_model_is_fedavg_on_the_other_clients() -> None:
    """Bit for bit, where the client that is left out is the last one: the others keep their addresses."""
    short = stacks.table().train.take(np.arange((CLIENTS - 1) * EACH))
    others = stacks.table()._replace(train=short)
    plain = {"method": {"name": "fedavg", "bases": None, "meta_lr": None}, "model": {"hidden": [6]}}
    alone = stacks.study(plain, {"server": {"weighting": "examples"}, "local": {"optimizer": "adam"}}, data=others)
    assert torch.equal(stacks.bases_after(stacks.study())[0][CLIENTS - 1], train_rounds(alone, 3)[0].models)


def test_the_order_of_the_clients_does_not_matter() -> None:
    """With whole batches, clients in reverse are the same sub models in reverse, and the same answers."""
    whole = {"local": {"batch_size": "full"}}
    forth = stacks.study(whole)
    back = stacks.study(whole, data=stacks.table(owner=CLIENTS - 1 - np.repeat(np.arange(CLIENTS), EACH)))
    one, two = train_rounds(forth, 6)[0], train_rounds(back, 6)[0]
    for part, other in zip(forth.parts[:1], back.parts[:1], strict=True):
        a, b = read_part(one, part).models, read_part(two, other).models
        np.testing.assert_allclose(a, b.flip(0), atol=2e-4)
        assert (a - b).abs().max() > 1e-2
    x = stacks.table().test.x
    said = [
        Inline(made).worker.forward(s.models, s.counters, 0, torch.from_numpy(x))
        for made, s in ((forth, one), (back, two))
    ]
    assert (said[0][0].argmax(-1) == said[1][0].argmax(-1)).float().mean() > 0.95


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """A stack that checkpoints after every round: 3 rounds of the bases, 3 of the meta model."""
    given = scenario(STACK, {"checkpoint": {"every": 1, "keep": 9}, "replicates": 2, "report": False})
    return fedray.run(given, data=stacks.table(), out=tmp_path_factory.mktemp("stack") / "run")


@pytest.mark.parametrize("last_round", [1, 3, 5], ids=["bases", "between", "meta"])
def test_a_run_killed_in_any_phase_ends_in_the_same_bits(run: fedray.Run, tmp_path: Path, last_round: int) -> None:
    again = fedray.resume(copy_run(run, tmp_path / "run", last_round), data=stacks.table())
    assert again.summary["model_hash"] == run.summary["model_hash"]
    assert again.summary["state_hash"] == run.summary["state_hash"]
    assert rows(again.rounds) == rows(run.rounds)
    assert rows(again.clients) == rows(run.clients)


def test_bases_train_together_and_the_meta_model_after_them(run: fedray.Run) -> None:
    """3 rounds of (m - 1) * m jobs a base (one model each), 3 of a job a client; features cost a download."""
    jobs = run.clients.to_pandas().query("replicate == 0")
    meta = CLIENTS + CLIENTS * 2
    assert jobs.groupby("round").size().tolist() == [2 * CLIENTS * (CLIENTS - 1)] * 3 + [CLIENTS] * 3
    assert (jobs.query("round > 3")["model"] == meta).all()
    assert (jobs.query("round <= 3")["model"] < meta).all()
    d = [part.study.net.layout.d for part in run.study.parts]
    after = jobs.query("round > 3").groupby("round")["down_bytes"].unique()
    assert [each.tolist() for each in after] == [[4 * (d[2] + d[0] + 2 * d[1])], [4 * d[2]], [4 * d[2]]]


def test_it_answers_with_the_plain_average_until_the_meta_model_is_trained(run: fedray.Run) -> None:
    rounds = run.rounds.to_pandas()
    early, late = rounds.query("round <= 3"), rounds.query("round > 3")
    assert (early["accuracy"] == early["accuracy_average"]).all()
    assert (late["nll"].round(6) != late.groupby("replicate")["nll"].transform("first").round(6)).any()
    last = rounds.query("round == 6")
    for i, base in enumerate(BASES):
        folds = [f"accuracy_base_{i}_fold_{j}" for j in range(CLIENTS)]
        assert set(folds) <= set(rounds.columns), base
    members = np.stack(last["member_accuracy"].to_list())
    assert members.shape == (2, CLIENTS + 2 * CLIENTS)
    np.testing.assert_allclose(members[:, :CLIENTS], last[[f"accuracy_base_0_fold_{j}" for j in range(CLIENTS)]])
    assert {"accuracy", "accuracy_average", "f1_weighted", "f1_average"} <= run.summary["metrics"].keys()


def test_the_stack_answers_by_itself(run: fedray.Run) -> None:
    """Plain torch on the weights gives the probabilities of `Run.predict`, for everybody."""
    module, x = run.study.net.module, stacks.table().test.x
    for replicate, state in enumerate(run.models):
        module.load_state_dict(state)
        want = module(torch.from_numpy(x)).softmax(-1).detach().numpy()
        for client in (None, 1):
            got = run.predict(x, client=client, replicate=replicate).probabilities
            assert got is not None
            np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_stack_of_regressions_answers_by_itself() -> None:
    """Plain torch gives `Run.predict` in the target's unit; the plain average of the bases has the recorded RMSE."""
    bases = [{"name": "linear"}, {"name": "mlp", "hidden": 4}]
    strong = {"number": 3, "tiers": {"strong": {"number": 2, "models_per_round": 2}, "weak": {}}}
    options = {"name": "stacking", "models": 2, "bases": bases, "meta_rounds": 2}
    keys = {"rounds": 4, "clients": strong, "method": options}
    spread = {"spread": lambda scored: scored.members.std(axis=0).mean()}
    run = fedray.run(keys, data="cubic", local__lr=0.05, runtime="inline", report=False, metrics=spread)
    assert not run.clients.to_pandas().duplicated(["round", "client", "model"]).any() and run.metrics["spread"] > 0
    module: Any = run.study.net.module
    module.load_state_dict(run.models[0])
    x, y = run.study.split("test", 0)
    inputs = run.study.shards.scaling.normalize(x[None], torch.tensor([0]))[0]
    each = [torch.stack([model(inputs) for model in base]).mean(0) for base in module.bases]
    told = module.meta(torch.cat(each, 1)), torch.stack(each).mean(0)
    stack, average = (run.study.unscale(one.detach(), 0) for one in told)
    np.testing.assert_allclose(run.predict(x).mean, stack, rtol=1e-5)
    assert run.metrics["rmse_average"] == pytest.approx(float((average - y).square().mean().sqrt()), rel=1e-5)
    train = run.study.shards.data.train
    errors = run.predict(train.x).mean - train.y
    assert run.metrics["residual_sd"] == pytest.approx(np.sqrt(np.square(errors).mean()), rel=1e-4)  # of the stack


def test_without_a_meta_model_it_is_the_plain_average() -> None:
    """`meta: average`, and a stack whose meta model has no rounds: the same answers after the rounds of the bases."""
    runs = [
        fedray.run(scenario(STACK, {"method": change}), data=stacks.table())
        for change in ({"meta": "average", "meta_lr": None}, {"meta_rounds": 0})
    ]
    assert [run.summary["rounds"] for run in runs] == [3, 3]
    assert len({run.summary["totals"]["down_bytes"] for run in runs}) == 1  # nobody fetches sub models for features
    one, two = (run.predict(stacks.table().test.x).probabilities for run in runs)
    np.testing.assert_array_equal(one, two)
    assert runs[0].summary["metrics"]["accuracy"] == runs[0].summary["metrics"]["accuracy_average"]


def of(**keys: Any) -> dict[str, Any]:
    return {"method": keys}


SIDE, ALL, POOLED = of(features="side_by_side"), of(features="all"), of(meta_data="pooled")


def test_the_papers_folds_collapse_where_classes_are_disjoint_and_others_do_not() -> None:
    """(i, j) has never seen client j's class, so the meta model learns that a tiny p_c means c."""
    owner, keys = np.arange(CLIENTS * EACH) % CLASSES, {"rounds": 20, "replicates": 3, "evaluate": {"every": 20}}
    for changes, least in (((), 0.0), ((WITHIN,), 0.1), ((POOLED, ALL), 0.05), ((POOLED, SIDE), 0.05)):
        given = scenario(STACK, keys, of(meta_optimizer="sgd", meta_lr=1.0), *changes)
        found = fedray.run(given, data=stacks.table(owner=owner)).summary["metrics"]
        accuracy, average = (found[name]["mean"] for name in ("accuracy", "accuracy_average"))
        assert accuracy < 0.1 < 0.7 < average if not changes else accuracy > average + least


@BOTH
def test_features_of_all_sub_models_are_what_a_new_row_would_get(folds: dict[str, Any]) -> None:
    """`all`: the mean over the sub models of each base; `side_by_side`: each of them, base after base."""
    for change in (ALL, SIDE):
        made = stacks.study(folds, change)
        state, _ = train_rounds(made, 3)
        x, each = torch.from_numpy(stacks.table().train.x), []
        for part in made.parts[:-1]:
            rows = read_part(state, part).models
            said = torch.stack([load_module(part.study.net, row)(x).softmax(-1) for row in rows])
            each += [said.mean(0)] if change is ALL else list(said)
        want = torch.cat(each, dim=1).detach().numpy()
        np.testing.assert_allclose(stacks.features(made, state), want, atol=1e-5)


def test_a_server_that_pools_one_client_trains_as_the_client_does() -> None:
    """Bit for bit, and everybody's rows are in one job a world where there are several."""
    whole = stacks.table(owner=np.zeros(CLIENTS * EACH))
    one, other = (train_rounds(stacks.study(WITHIN, change, data=whole), 6)[0] for change in ({}, POOLED))
    assert torch.equal(one.models, other.models)
    made = stacks.study(POOLED, {"replicates": 2})
    plan = made.method.phase.schedule(3, None)
    assert (plan.client.tolist(), plan.world.tolist()) == ([0, 0], [0, 1])
    assert made.method.phase.sizes is not None
    assert made.method.phase.sizes(plan).tolist() == [CLIENTS * EACH] * 2


def test_pooled_rows_are_those_of_all_clients_with_their_labels() -> None:
    made = stacks.study(POOLED, ALL, {"replicates": 2})
    state, _ = train_rounds(made, 3)
    want = stacks.features(made, state)
    worker = Inline(made).worker
    assert worker.parts is not None
    worker.parts._use_state(state)
    shards = worker.parts.workers[-1].study.shards
    got = shards.fetch(np.array([0, 1]), np.array([0, 0]))
    rows = got.rows[0, : int(got.size[0])]
    np.testing.assert_array_equal(got.x[rows].numpy(), want)
    assert got.labels(rows, torch.zeros(len(rows), dtype=torch.int64)).tolist() == stacks.table().train.y.tolist()


def test_answers_go_up_once_and_the_meta_model_never(tmp_path: Path) -> None:
    run = fedray.run(scenario(STACK, POOLED, {"checkpoint": {"every": 1}}), data=stacks.table(), out=tmp_path / "run")
    jobs = run.clients.to_pandas().query("round > 3")
    n, d = CLIENTS * EACH, [part.study.net.layout.d for part in run.study.parts]
    assert jobs["up_bytes"].tolist() == [n * (4 * 2 * CLASSES + 8), 0, 0]
    assert jobs["down_bytes"].tolist() == [CLIENTS * 4 * (d[0] + 2 * d[1]), 0, 0]
    again = fedray.resume(copy_run(run, tmp_path / "again", 4), data=stacks.table())
    assert again.summary["state_hash"] == run.summary["state_hash"]


def test_a_client_fetches_all_sub_models_for_features_of_all_of_them() -> None:
    run = fedray.run(scenario(STACK, SIDE), data=stacks.table())
    d = [part.study.net.layout.d for part in run.study.parts]
    down = run.clients.to_pandas().query("round == 4")["down_bytes"]
    assert down.tolist() == [4 * (d[2] + CLIENTS * (d[0] + 2 * d[1]))] * CLIENTS
