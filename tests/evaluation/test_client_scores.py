"""`evaluate.clients`: the scores of known clients, one by one, in every evaluated round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small import copy_run, scenario

import fedray
from fedray.assembly.memory import estimate_scenario
from fedray.core.errors import BadInput, Damaged, FedrayError
from fedray.files.tables import read_parts
from fedray.scenario.loader import read_scenario
from fedray.storage.tables import write_parquet
from fedray.tuning.trial import hash_training

TIERS = {"tiers": {"strong": {"number": 2}, "weak": {}}}


def recorded(keys: dict[str, Any], **options: Any) -> fedray.Run:
    return fedray.run(scenario({"evaluate": {"clients": "all"}, "clients": TIERS}, keys), **options)


@pytest.mark.parametrize(
    "keys",
    [
        {"evaluate": {"personal": True}, "predict": {"gamma": 0.1}, "data": {"hold_out": 0.2}},
        {"method": {"name": "ditto"}, "evaluate": {"personal": True, "every": 2}},
    ],
    ids=["own weights", "own models"],
)
def test_their_mean_is_the_personal_score_of_the_round(keys: dict[str, Any]) -> None:
    run = recorded({**keys, "rounds": 2, "replicates": 2})
    frame, rounds = run.client_scores.to_pandas(), run.rounds.to_pandas()
    for prefix in [name.removesuffix("accuracy") for name in frame.columns if name.endswith("accuracy")]:
        means = frame.groupby(["replicate", "fold", "round"])[f"{prefix}accuracy"].mean()
        wanted = rounds.set_index(["replicate", "fold", "round"]).get(f"{prefix}personal_accuracy")
        if wanted is None:
            assert frame[f"{prefix}accuracy"].isna().all()  # nothing was held out
            continue
        assert np.allclose(means, wanted[means.index], atol=1e-12)
    assert len(frame) == 6 * len(rounds)


def test_where_nobody_has_weights_of_his_own_everybody_is_given_the_answer_of_the_ensemble() -> None:
    """A client of a regression is tested on all test rows, so that its RMSE is that of the run."""
    keys = {"data": {"name": "sine", "samples": 20}, "model": {"name": "rbf"}, "method": {"models": 3}}
    run = fedray.run({**keys, "rounds": 2, "runtime": "inline", "clients": 4, "evaluate": {"clients": "all"}})
    frame, rounds = run.client_scores.to_pandas(), run.rounds.to_pandas()
    for t, rmse in zip(rounds["round"], rounds["rmse"], strict=True):
        assert np.allclose(frame.loc[frame["round"] == t, "rmse"], rmse, rtol=1e-6)


def test_weights_of_an_infinite_temperature_are_the_answer_that_everybody_gets() -> None:
    """One computes an answer for each client, the other one for all."""
    keys = {"rounds": 1, "data": {"hold_out": 0.2}}
    own, alike = (recorded({**keys, "evaluate": {"personal": personal}}).client_scores for personal in (True, False))
    assert own.column_names == alike.column_names
    for name in ("accuracy", "hold_out_accuracy"):
        assert np.allclose(own[name].to_numpy(), alike[name].to_numpy(), atol=1e-12)


def test_some_clients_are_evenly_spread_and_have_the_numbers_that_they_have_among_all() -> None:
    every, some = recorded({"rounds": 1}), recorded({"rounds": 1, "evaluate": {"clients": 3}})
    assert every.summary["model_hash"] == some.summary["model_hash"]
    few = some.client_scores.to_pylist()
    assert [row["client"] for row in few] == [0, 2, 4] * 2
    assert [row["tier"] for row in few] == ["strong", "weak", "weak"] * 2
    assert few == [row for row in every.client_scores.to_pylist() if row["client"] in (0, 2, 4)]
    sizes = [row["samples"] for row in every.client_scores.to_pylist() if row["round"] == 0]
    assert sum(sizes) == 240 and max(sizes) > min(sizes)


@pytest.mark.slow
def test_a_stack_answers_every_client_with_its_own_answer() -> None:
    keys = {"method": {"name": "stacking", "folds": "within", "fold_number": 2, "meta_rounds": 1}, "rounds": 1}
    run = recorded({**keys, "data": {"partition": {"name": "iid"}}, "clients": {"number": 6}})
    last = [row["accuracy"] for row in run.client_scores.to_pylist() if row["round"] == run.metrics["round"]]
    assert np.mean(last) == pytest.approx(run.metrics["accuracy"], abs=0.1)
    assert run.metrics["accuracy"] != pytest.approx(run.metrics["accuracy_average"], abs=0.02)


def test_a_resumed_run_has_the_table_of_one_that_was_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the buffer is flushed in every round."""
    monkeypatch.setattr("fedray.storage.tables.FLUSH_ROWS", 5)
    whole = recorded({}, out=tmp_path / "whole")
    parts = [path.name for path in sorted((whole.path / "client_scores.parquet").iterdir())]
    assert parts == [f"part-{round:09d}.parquet" for round in range(5)]
    cut = copy_run(whole, tmp_path / "cut", 2)
    assert fedray.resume(cut).client_scores.equals(whole.client_scores)
    part = cut / "client_scores.parquet" / parts[1]
    part.write_bytes(part.read_bytes()[:-7])
    with pytest.raises(FedrayError, match="part-000000001.parquet is damaged"):
        _ = fedray.load(cut).client_scores
    with pytest.warns(UserWarning, match="part-000000001"):
        assert fedray.resume(cut).client_scores.equals(whole.client_scores)


def test_without_the_key_there_is_no_table_and_one_line_says_which_key(tmp_path: Path) -> None:
    run = fedray.run(scenario({"rounds": 1}), out=tmp_path / "run")
    assert not (run.path / "client_scores.parquet").exists()
    with pytest.raises(FedrayError, match="set evaluate.clients"):
        _ = run.client_scores


def test_no_training_depends_on_it() -> None:
    plain, recorded_ = (read_scenario(scenario({"evaluate": {"clients": value}})) for value in (None, "all"))
    assert hash_training(plain, ()) == hash_training(recorded_, ())


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("client", [-1], "its column client has the value -1"),
        ("round", [None], "its column round has empty cells"),
    ],
)
def test_a_table_of_somebody_else_is_one_line(column: str, values: list[Any], why: str, tmp_path: Path) -> None:
    row = {
        "replicate": [0],
        "fold": [0],
        "round": [1],
        "client": [2],
        "tier": ["all"],
        "samples": [3],
        "accuracy": [0.5],
    }
    kinds = {name: pa.array(found) for name, found in row.items()}
    (tmp_path / "client_scores.parquet").mkdir()
    part = tmp_path / "client_scores.parquet" / "part-000000001.parquet"
    write_parquet(part, pa.table(kinds))
    assert read_parts(tmp_path, "client_scores") is not None
    write_parquet(part, pa.table({**kinds, column: pa.array(values, kinds[column].type)}))
    with pytest.raises(Damaged, match=why):
        read_parts(tmp_path, "client_scores")


def test_what_they_take_is_counted_before_memory_is_taken() -> None:
    keys = {"clients": 20_000, "replicates": 100, "evaluate": {"clients": "all"}, "data": {"name": "mnist"}}
    needs = {need.keys: need for need in estimate_scenario(read_scenario(keys))}
    found = needs["evaluate.clients x replicates"]
    assert found.what == "scores of 1,000,000 clients" and found.bytes == pytest.approx(2.5e8)


@pytest.mark.parametrize("value", [0, "some", 10_001, 1.5])
def test_wrong_numbers_are_one_line(value: Any) -> None:
    with pytest.raises(BadInput, match="evaluate.clients = .*, or 'all', or null for none"):
        read_scenario(scenario({"evaluate": {"clients": value}}))
