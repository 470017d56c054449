"""What `Run.predict` takes: arrays as the data set has them, and tables whose columns have names."""

import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small import run_quietly

import fedray
from fedray.core.method import Answer
from fedray.methods import Method, Setting, federated

KEYS = {"rounds": 6, "clients": 5, "runtime": "inline", "report": False, "method": "fedavg", "local": {"lr": 0.1}}
run_on = partial(run_quietly, KEYS)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Two columns of numbers and one of text; the class follows from `a` and `city`."""
    draw = np.random.default_rng(0)
    found = pd.DataFrame({"a": draw.normal(size=300), "b": draw.normal(size=300)})
    found["city"] = draw.choice(["Rome", "Oslo"], 300)
    found["y"] = ((found["a"] > 0) == (found["city"] == "Rome")).astype(int)
    return found


@pytest.fixture(scope="module")
def run(frame: pd.DataFrame) -> fedray.Run:
    return run_on(frame, data__target="y")


def test_columns_of_a_table_were_read_in_the_order_they_happened_to_have(run: fedray.Run, frame: pd.DataFrame) -> None:
    inputs = frame[["a", "b", "city"]]
    encoded = np.column_stack([inputs["a"], inputs["b"], inputs["city"] == "Oslo", inputs["city"] == "Rome"])
    wanted = run.predict(encoded.astype(np.float32)).mean
    assert wanted.std() > 0.01
    for given in (inputs, inputs[["city", "b", "a"]], frame):  # the target is no input
        assert np.array_equal(run.predict(given).mean, wanted)


def test_a_loaded_run_reads_a_table_by_its_columns_too(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "rows.csv", index=False)
    own = run_on(frame, data__target="y")
    filed = run_on({"name": "table", "path": str(tmp_path / "rows.csv"), "target": "y"})
    shuffled = frame[["city", "b", "a"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for before, after in ((own, fedray.load(own.path, data=frame)), (filed, fedray.load(filed.path))):
            assert np.array_equal(after.predict(shuffled).mean, before.predict(frame[["a", "b", "city"]]).mean)


@pytest.mark.filterwarnings("ignore:data. text, read as categories")
def test_a_missing_number_was_refused_where_training_takes_the_mean(frame: pd.DataFrame, tmp_path: Path) -> None:
    holes = frame.assign(a=frame["a"].where(frame.index % 7 > 0))
    holes.to_csv(tmp_path / "rows.csv", index=False)
    keys = {"name": "table", "path": str(tmp_path / "rows.csv"), "target": "y", "missing": "mean"}
    own, filed = run_on(holes, data__target="y", data__missing="mean"), run_on(keys)
    assert filed.study.shards.data.means is not None, "a stored data set has them too"
    mean = float(filed.study.shards.data.means[0])
    wanted = own.predict(holes.fillna({"a": mean})).mean
    assert np.array_equal(own.predict(holes).mean, wanted)
    assert np.array_equal(filed.predict(holes).mean, wanted)
    gone = frame.assign(b=pd.Series([None] * len(frame), dtype=object))
    assert own.predict(gone).mean.shape == (len(frame), 2)


def test_pairs_of_tables_have_names_of_columns_too(frame: pd.DataFrame) -> None:
    halves = [(part[["a", "b"]], part["y"]) for part in (frame[:200], frame[200:])]
    on_pairs = run_on(tuple(halves))  # tables of numbers: their names are known
    swapped = on_pairs.predict(frame[["b", "a"]]).mean
    assert np.array_equal(swapped, on_pairs.predict(frame[["a", "b"]].to_numpy(np.float32)).mean)


def test_the_names_of_clients_were_lost(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    each = {name: (draw.normal(size=(80, 3)).astype(np.float32), [0, 1] * 40) for name in ("Rome", "Oslo")}
    keys = {**KEYS, "rounds": 1, "clients": {}, "method": "local_only"}
    run = fedray.run(keys, data=each, out=tmp_path / "run")
    assert json.loads((run.path / "manifest.json").read_text())["study"]["client_names"] == ["Rome", "Oslo"]
    x = each["Rome"][0][:5]
    found = [run.predict(x, client=client).mean for client in ("Rome", 0, "Oslo")]
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    assert np.array_equal(fedray.load(run.path, data=each).predict(x, client="Oslo").mean, found[2])


def test_the_members_of_an_ensemble_answer_one_by_one(frame: pd.DataFrame) -> None:
    three = {"method": {"name": "fed_ensemble", "models": 3}}
    classes = run_quietly({**KEYS, **three}, frame, data__target="y")
    found, labels = classes.predict(frame), classes.study.split("test", 0)
    assert found.members.shape == (3, len(frame), 2)
    np.testing.assert_allclose(found.members.mean(axis=0), found.mean)
    np.testing.assert_allclose(found.members.var(axis=0), found.variance)
    tested = classes.predict(labels[0]).members.argmax(-1) == labels[1].numpy()
    assert tested.mean(axis=1).tolist() == pytest.approx(classes.metrics["member_accuracy"])
    numbers = run_quietly({**KEYS, **three, "rounds": 1}, frame[["a", "b"]], data__target="b")
    answer = numbers.predict(frame[["a"]])
    assert answer.members.shape == (3, len(frame), 1)
    np.testing.assert_allclose(answer.members.mean(axis=0), answer.mean)


def test_a_model_without_a_weight_is_no_member(frame: pd.DataFrame) -> None:
    def last(setting: Setting) -> Method:
        weights = np.array([[0.0, 0.0, 1.0]])
        return Method("last", federated(setting), answer=lambda state: Answer(state, setting.models, weights=weights))

    run = run_quietly({**KEYS, "rounds": 1, "method": {"models": 3}}, frame, data__target="y", method=last)
    found = run.predict(frame)
    assert np.array_equal(found.members, found.mean[None])
