"""What cannot act, or is another thing than it looks, is said in one line: own objects, losses, tiers, tables."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from small import scenario
from torch import Tensor, nn

import fedray
from fedray.advice import find_left_tiers, warn_of_study
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput, FedrayWarning, ScenarioWarning
from fedray.methods import LocalLoss
from fedray.scenario.loader import read_scenario

KEYS: dict[str, Any] = {"rounds": 1, "clients": 4, "runtime": "inline", "report": False, "method": "fedavg"}
X = np.random.default_rng(0).normal(size=(120, 6)).astype(np.float32)
CLASSES, TARGETS = np.arange(120) % 3, 20.0 * X[:, 0] + 100.0


def network() -> nn.Module:
    return nn.Linear(6, 3)


def test_an_option_beside_an_object_is_refused_where_it_was_passed_and_named_where_a_file_has_it() -> None:
    with pytest.raises(BadInput, match=r"model.hidden = \[3\] cannot act, because the network is a Python object"):
        fedray.run(KEYS, data=(X, CLASSES), model=network, model__hidden=[3])
    with pytest.warns(ScenarioWarning, match="model.hidden cannot act, because the network is a Python object"):
        fedray.run({**KEYS, "model": {"hidden": [3]}}, data=(X, CLASSES), model=network)
    with pytest.warns(ScenarioWarning, match="data.limit cannot act, because the data are a Python object"):
        fedray.run({**KEYS, "data": {"limit": 50}}, data=(X, CLASSES))
    with pytest.raises(
        BadInput, match="server.momentum = 0.5 cannot act"
    ):  # it could not act without the object either
        fedray.run({**KEYS, "server": {"momentum": 0.5}}, data=(X, CLASSES))


def squares(outputs: Tensor, targets: Tensor, _context: Any) -> Tensor:
    return (outputs - targets).square().sum(-1)


def broadcast(outputs: Tensor, targets: Tensor, _context: Any) -> Tensor:
    return (outputs[:, 0] - targets).square().mean(-1)  # [B] - [B, 1] is [B, B]


def test_a_loss_of_a_regression_that_mixes_the_rows_is_said() -> None:
    fedray.run(KEYS, data=(X, TARGETS), loss=squares)
    with pytest.warns(ScenarioWarning, match=r"local.loss = broadcast: .* depends on the other rows .* compare equal"):
        fedray.run(KEYS, data=(X, TARGETS), loss=broadcast)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (nn.CrossEntropyLoss(), r"it does not take \(outputs, targets, context\)"),
        (lambda outputs, _targets: outputs, r"it does not take \(outputs, targets, context\)"),
        (LocalLoss(nn.CrossEntropyLoss()), r"it does not take \(outputs, targets, context\)"),
        (lambda o, t, c: c.objective(o.detach(), t), "has no gradient: compute it from the outputs, without detach"),
        (lambda o, t, c: c.objective(o, t) + torch.sqrt(o[:, 0]), "training diverged"),
    ],
)
def test_a_broken_loss_is_one_line_with_the_remedy(loss: Any, why: str) -> None:
    with pytest.raises(fedray.FedrayError, match=why):
        fedray.run(KEYS, data=(X, CLASSES), loss=loss)


def test_a_sweep_takes_no_objects() -> None:
    with pytest.raises(BadInput, match="fedray.tune takes no data=: what is an object needs a name"):
        fedray.tune({"scenario": KEYS, "space": {"local.lr": [0.1]}}, data=(X, CLASSES))


def test_a_tier_of_which_nobody_takes_part_is_said() -> None:
    tiers = {"hpc": {"share": 0.1}, "lpc": {"share": 0.9}}
    few, enough = (
        read_scenario(scenario({"clients": {"number": 20, "tiers": tiers}, "participation": {"per_round": n}}))
        for n in (4, 6)
    )
    with pytest.warns(ScenarioWarning, match="no client of tier hpc ever takes part: rounds of 4"):
        warn_of_study(few, build_study(few), [find_left_tiers])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_study(enough, build_study(enough), [find_left_tiers])


def write_table(path: Path) -> str:
    site = np.repeat(["Rome", "Oslo", "Lima"], 40)
    lines = [f"{row[0]},{row[1]},{float(y)},{of}" for row, y, of in zip(X, CLASSES, site, strict=True)]
    path.write_text("\n".join(["a,b,y,site", *lines]))
    return str(path)


def test_classes_that_are_real_numbers_in_a_table_are_said(tmp_path: Path) -> None:
    table = {"path": write_table(tmp_path / "t.csv"), "target": "y", "features": ["a", "b"]}
    keys = {**KEYS, "data": {"name": "table", **table}}
    with pytest.warns(UserWarning, match="3 different values, read as targets of a regression: write data.task"):
        build_study(read_scenario(keys))


def test_quantities_in_whole_numbers_became_classes_and_no_line_said_how_to_undo_it() -> None:
    ages, doubt = (
        np.arange(120) % 30,
        "30 different whole numbers in 120 rows are read as classes: write data.task: reg",
    )
    with pytest.warns(UserWarning, match=doubt):
        fedray.data.adapt((X, ages))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedray.data.adapt((X, np.arange(120) % 20))
        fedray.data.adapt((X, ages), task="classification")
        fedray.data.adapt((X, ages), task="regression")
    with pytest.raises(
        BadInput, match="0.2 of each of 120 classes leaves no rows of 120 for one part: .* data.task: reg"
    ):
        fedray.data.adapt((X, np.arange(120)))


def test_a_column_of_clients_makes_the_clients(tmp_path: Path) -> None:
    data = {"name": "table", "path": write_table(tmp_path / "t.csv"), "target": "y", "group": "site"}
    keys = {**KEYS, "data": {**data, "task": "classification"}, "clients": {}}
    assert build_study(read_scenario(keys)).clients.number == 3
    dealt = {**keys, "data": {**keys["data"], "partition": "iid"}, "clients": 5}
    assert build_study(read_scenario(dealt)).clients.number == 5


def test_a_partition_learns_which_of_the_users_rows_are_training_rows() -> None:
    def by_class(labels: Any, clients: int, _generator: Any, _options: Any, *, columns: Any) -> Any:
        assert (CLASSES[columns["row"]] == labels).all()
        return [np.flatnonzero(labels % clients == c) for c in range(clients)]

    run = fedray.run({**KEYS, "clients": 3}, data=(X, CLASSES), partition=by_class)
    given = pq.read_table(run.path / "partition.parquet").to_pydict()
    assert (CLASSES[given["given_row"]] == given["client"]).all()
    assert len(given["row"]) == 96


def test_a_run_in_which_nobody_trains_is_said() -> None:
    def nobody(_labels: Any, clients: int, _generator: Any, _options: Any) -> Any:
        return [[] for _ in range(clients)]

    def idle(_models: int, _rows: str) -> Any:
        nothing = np.array([], int)
        return lambda _now, _drawn, _m, _state: (nothing, nothing)

    with (
        pytest.warns(ScenarioWarning, match="nobody trains 1 of 1 models in 1 round, and"),
        pytest.warns(FedrayWarning, match="models that took no upload"),
    ):
        fedray.run(KEYS, data=(X, CLASSES), partition=nobody)
    with pytest.warns(ScenarioWarning, match="the schedule has no job in the first round, in which nobody trains"):
        fedray.run(KEYS, data=(X, CLASSES), schedule=idle)


def test_known_clients_that_are_scored_on_rows_of_another_kind_are_said() -> None:
    groups = {"name": "iid", "permute_labels": 2}
    keys = {**KEYS, "method": "local_only", "data": {"name": "digits", "limit": 90, "partition": groups}}
    with pytest.warns(ScenarioWarning, match="test rows by which known clients are scored: set data.part"):
        fedray.run(keys)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScenarioWarning)
        fedray.run({**keys, "method": "fedavg"})
        fedray.run({**keys, "data": {"name": "digits", "limit": 90, "partition": {**groups, "copies": True}}})


@pytest.mark.parametrize("names", [[3, 4], [2, 3]], ids=["new clients alone", "one known client"])
def test_known_clients_without_a_test_row_of_their_own_are_said(names: list[int]) -> None:
    train = pd.DataFrame(X).assign(y=CLASSES, ward=np.arange(len(X)) // 40)
    test = train[:30].assign(ward=np.resize(names, 30))
    keys = {**KEYS, "clients": {}, "evaluate": {"personal": True}, "method": {"name": "fed_ensemble", "models": 2}}
    known = bool(set(names) & {0, 1, 2})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = fedray.run(keys, data=(train, test), data__target="y", data__group="ward")
    assert ("personal_accuracy" in run.metrics) == known
    assert sum("no test row is of a client that trains" in str(one.message) for one in said) == (not known)
