"""Loggers are one function type; a missing package is one line that says how to get it."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from small import scenario

import fedray
from fedray.core.errors import BadInput, Enough, FedrayWarning
from fedray.storage.summary import open_loggers

METRICS: dict[str, Any] = {"accuracy": 0.5, "nll": float("nan"), "member_accuracy": [0.4, 0.6], "round": 3}


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadInput, match=rf"pip install 'fedray\[{name}\]'"), open_loggers([name], tmp_path):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_writes_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_loggers(["tensorboard"], tmp_path) as log:
        log(10, METRICS)
        log(20, {"accuracy": 0.75})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == {"accuracy", "round"}
    assert [(e.step, e.value) for e in events.Scalars("accuracy")] == [(10, 0.5), (20, 0.75)]


def test_mlflow_makes_its_experiment_once_and_is_told_how_a_run_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client, fake = MagicMock(), MagicMock()
    client.get_experiment_by_name.side_effect = [None, *[SimpleNamespace(experiment_id="0")] * 2]
    fake.MlflowClient.return_value = client
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    with open_loggers(["mlflow"], tmp_path) as log:
        log(7, {"accuracy": 0.5})
    for error in (ValueError("wrong"), Enough("a target was reached")):
        with pytest.raises(type(error)), open_loggers(["mlflow"], tmp_path):
            raise error
    client.create_experiment.assert_called_once_with("fedray")
    run = client.create_run.return_value.info.run_id
    client.log_metric.assert_called_once_with(run, "accuracy", 0.5, step=7)
    ended = [call.args for call in client.set_terminated.call_args_list]
    assert ended == [(run, "FINISHED"), (run, "FAILED"), (run, "FINISHED")]


def test_loggers_and_watchers_see_each_evaluated_round_once_with_its_own_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checkpoints in other rounds (2, 4, ...) show nothing: their newest metrics are those of an earlier round."""
    logged, seen, asked = list[Any](), list[Any](), list[str]()

    def fake(dir: str) -> Any:
        asked.append(str(dir))
        return lambda round, metrics: logged.append((round, metrics["accuracy"])), lambda _ended: None

    monkeypatch.setattr("fedray.storage.summary.tensorboard", fake)
    keys = {"rounds": 12, "evaluate": {"every": 5}, "checkpoint": {"every": 2}, "loggers": "tensorboard:here"}
    run = fedray.run(scenario(keys), watch=lambda now: seen.append((now["round"], now["metrics"]["accuracy"])))
    assert asked == ["here"]
    assert logged == seen == [(row["round"], row["accuracy"]) for row in run.rounds.to_pylist()]
    assert [round for round, _ in seen] == [0, 5, 10, 12]


def test_a_logger_whose_server_went_away_ended_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What only looks on is told once, and left out; so is one that cannot begin."""
    seen: list[int] = []

    class Run:
        def log(self, _values: Any, step: int) -> None:
            seen.append(step)
            raise ConnectionError("nobody\nanswers")

    fakes: dict[str, Any] = {name: ModuleType(name) for name in ("wandb", "mlflow")}
    fakes["wandb"].init = lambda **_options: Run()
    for name, fake in fakes.items():  # mlflow has no client
        monkeypatch.setitem(sys.modules, name, fake)
    with pytest.warns(FedrayWarning, match="loggers: ") as said:
        done = fedray.run(scenario({"rounds": 2, "loggers": ["wandb", "mlflow"]}), out=tmp_path / "run")
    assert done.summary["rounds"] == 2
    lines = sorted(str(one.message) for one in said)
    assert len(seen) == 1 and [line.split()[1] for line in lines] == ["mlflow", "wandb"]
    assert lines[1].endswith("failed (ConnectionError: nobody answers): the run goes on without it")
