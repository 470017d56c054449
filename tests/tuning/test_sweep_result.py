"""A sweep from Python, in the words that Ray Tune's users know."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sweeps import BASE, rows, sweep

import fedray
from fedray.core.errors import BadInput, FedrayError, FedrayWarning


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> fedray.SweepResult:
    """A grid over two learning rates and two temperatures; one rate diverges."""
    keys = sweep(
        {"local.lr": [0.3, 1e9], "predict.gamma": [1.0, 0.1]},
        sampler="grid",
        overrides={"rounds": 2},
        objectives=["personal_accuracy", "nll"],
    )
    return fedray.tune(keys, out=tmp_path_factory.mktemp("sweep") / "s", report=False)


def test_a_sweep_is_a_sequence_of_its_trials(found: fedray.SweepResult) -> None:
    table = rows(found.path)
    assert len(found) == len(list(found)) == 4
    assert [(t.number, t.state, t.params) for t in found] == [(r["number"], r["state"], r["params"]) for r in table]
    assert [t.metrics for t in found if t.state == "complete"] == [r["values"] for r in table if not r["error"]]
    assert found[1] == list(found)[1]


def test_failed_trials_are_listed_with_their_reason(found: fedray.SweepResult) -> None:
    failed = [trial for trial in found if trial.state == "failed"]
    assert [trial.params["local.lr"] for trial in failed] == [1e9, 1e9]
    assert found.errors == [trial.error for trial in failed]
    assert all(isinstance(error, FedrayError) and "diverged" in str(error) for error in found.errors)
    assert all(trial.metrics == {} for trial in failed)


def test_the_best_result_is_that_of_the_objective_and_its_direction(found: fedray.SweepResult) -> None:
    done = [trial for trial in found if trial.state == "complete"]
    assert found.get_best_result() == max(done, key=lambda trial: (trial.metrics["personal_accuracy"], -trial.number))
    best, worst = found.get_best_result("nll"), found.get_best_result("nll", "max")
    assert best.metrics["nll"] == min(trial.metrics["nll"] for trial in done)
    assert worst.metrics["nll"] == max(trial.metrics["nll"] for trial in done)
    assert done[0].run.metrics["round"] == 2 and done[0].run.checkpoint is not None
    assert found.summary["winners"][0]["number"] == found.get_best_result().number == best.number > 0  # equal in nll


def test_the_run_of_a_trial_predicted_as_another_trial_that_had_trained(found: fedray.SweepResult) -> None:
    keys: dict[str, Any] = {"rounds": 2, "report": False, "data.hold_out": 0.2, **found[1].params}
    alone = fedray.run(BASE, **keys)
    x = alone.study.shards.data.test.x[:9]
    with pytest.warns(FedrayWarning, match="of another trial's predictions"):
        assert (found[1].run.predict(x, client=0).mean == alone.predict(x, client=0).mean).all()


def test_the_frame_has_a_column_for_each_objective_and_parameter(found: fedray.SweepResult) -> None:
    frame = found.get_dataframe()
    assert {"number", "state", "personal_accuracy", "nll", "local.lr", "predict.gamma", "error"} <= set(frame.columns)
    assert list(frame["local.lr"]) == [trial.params["local.lr"] for trial in found]
    for name in ("personal_accuracy", "nll"):
        assert list(frame[name].dropna()) == [trial.metrics[name] for trial in found if trial.metrics]
    assert not [name for name in frame.columns if name.endswith("standard_error")]  # one seed has none
    assert "<table" in found._repr_html_()


def test_a_searched_key_and_standard_errors_have_columns_of_their_own(tmp_path: Path) -> None:
    """A trial that another one's training answers has no `rounds` of its own in the table."""
    space, names = {"rounds": [1, 2], "predict.gamma": [0.1, 1.0]}, ["personal_accuracy", "nll"]
    keys = sweep(space, sampler="grid", objectives=names, overrides={"replicates": 2})
    found = fedray.tune(keys, out=tmp_path / "s", report=False)
    frame, table = found.get_dataframe(), rows(found.path)
    assert list(frame["rounds"]) == [trial.params["rounds"] for trial in found]
    assert None in [row["rounds"] for row in table]
    for name in names:
        assert list(frame[name]) == [trial.metrics[name] for trial in found]
        assert list(frame[f"{name}_standard_error"]) == [row["standard_errors"][name] for row in table]


MINE = """
import fedray
from fedray.methods import Method, federated
fedray.register("method", "mine_of_tune", lambda setting: Method("mine_of_tune", federated(setting)))
"""


@pytest.mark.short_report
def test_each_keyword_of_tune_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine_of_tune.py").write_text(MINE)
    keys = sweep({"local.lr": [0.1, 0.3]}, sampler="grid", overrides={"rounds": 1, "method": "mine_of_tune"})
    more: dict[str, Any] = {"out": "s", "modules": ("mine_of_tune.py",)}
    more["storage"] = f"sqlite:///{tmp_path}/trials.db"
    for wrong, line in (({"address": "127.0.0.1:1"}, "--address"), ({"wait_for": {"hpc": 1}}, "--wait-for")):
        with pytest.raises(BadInput, match=line):
            fedray.tune(keys, **more, **wrong)
    assert not Path("s").exists()
    one = fedray.tune(keys, **more, trials=1, report=False, progress=True)
    assert (one.path, len(one), Path("trials.db").is_file()) == (Path("s"), 1, True)
    assert not list(one.path.glob("study.*")) and not (one.path / "report.html").exists()
    assert capsys.readouterr().err.startswith("trial 0 ")
    with pytest.raises(BadInput, match="resume the sweep"):
        fedray.tune(keys, **more)
    two = fedray.tune(keys, **more, resume=True, progress=False)
    assert (len(two), two[0] == one[0], (two.path / "report.html").is_file()) == (2, True, True)
    assert "trial" not in capsys.readouterr().err


def test_choices_came_back_as_text_that_run_refused(tmp_path: Path) -> None:
    """None beside a number, lists, sections, keys that change together, and a range for each optimizer."""
    rate: dict[str, Any] = {"type": "float", "low": 0.01, "high": 0.1}
    space = {
        "model.weight_sd": [None, 5.0],
        "model.hidden": [[8], [4, 4]],
        "method.models, local.epochs": [[1, 1], [3, 2]],
        "schedule.kind": ["permutation", "random"],  # `fedray.run` refused it beside one model
        "data.partition": [{"name": "iid"}, {"name": "classes", "classes": 2}],
        "local.optimizer": ["sgd", "adam"],
        "local.lr": [{**rate, "when": {"local.optimizer": name}} for name in ("sgd", "adam")],
        "participation.fraction": [1, 0.5],
        "local.momentum": {"type": "float", "low": 0.1, "high": 0.9, "when": {"local.optimizer": "sgd"}},
    }
    keys = sweep(space, sampler={"name": "random", "seed": 2}, overrides={"rounds": 1}, trials=5)
    found = fedray.tune(keys, out=tmp_path / "s", report=False)
    table = rows(found.path)
    seen: dict[str, list[Any]] = {}
    for trial, row in zip(found, table, strict=True):
        for key, value in trial.params.items():
            seen.setdefault(key, []).append(value)
        assert row["params"]["local.lr"] == trial.params["local.lr"]
        assert ("local.momentum" in trial.params) == (trial.params["local.optimizer"] == "sgd")
        again = fedray.run(
            {**BASE, "rounds": 1, "report": False, "data": {**BASE["data"], "hold_out": 0.2}}, **trial.params
        )
        assert again.summary["metrics"]["hold_out_accuracy"]["mean"] == pytest.approx(trial.metrics["accuracy"])
    assert None in seen["model.weight_sd"] and 5.0 in seen["model.weight_sd"]
    assert [4, 4] in seen["model.hidden"] and {"name": "iid"} in seen["data.partition"] and 3 in seen["method.models"]
    assert pq.read_schema(found.path / "trials.parquet").field("params").type.field("model.weight_sd").type == "double"
    best = found.get_best_result()
    assert found.summary["winners"][0]["params"] == best.params
    assert list(fedray.SweepResult.from_path(found.path)) == list(found)
