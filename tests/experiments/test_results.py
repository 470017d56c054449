"""A run as an object, in the words that Ray's and pandas' users know."""

import shutil
from pathlib import Path

import pytest
from small import copy_run, scenario

import fedray
from fedray.core.errors import BadInput, FedrayWarning
from fedray.files.plain import hold_lock


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """Two replicates, evaluated in rounds 0, 2 and 3, saved after each round."""
    keys = {"rounds": 3, "replicates": 2, "evaluate": {"every": 2}, "checkpoint": {"every": 1, "keep": 9}}
    return fedray.run(scenario(keys), report=False, out=tmp_path_factory.mktemp("results") / "run")


def test_metrics_are_the_last_rows_mean_over_replicates(run: fedray.Run) -> None:
    frame = run.metrics_dataframe
    assert run.metrics["round"] == 3
    assert "member_accuracy" not in run.metrics  # lists of several worlds have no mean
    assert list(frame.columns) == run.rounds.column_names and len(frame) == run.rounds.num_rows


def test_a_finished_run_has_a_checkpoint_and_no_error(run: fedray.Run) -> None:
    opened = fedray.Run.from_path(str(run.path))
    assert opened.checkpoint == run.path / "checkpoints" / "round-000003"
    assert opened.error is None and opened.metrics == run.metrics
    with pytest.raises(BadInput):
        fedray.Run.from_path(run.path.parent)


def test_a_killed_run_says_where_it_stopped_unless_it_is_still_written(run: fedray.Run, tmp_path: Path) -> None:
    killed = fedray.Run.from_path(copy_run(run, tmp_path / "killed", 2))
    assert "stopped after the checkpoint of round 2" in str(killed.error)
    with hold_lock(killed.path / ".lock", BadInput("taken")):
        assert killed.error is None
    shutil.rmtree(killed.path / "checkpoints" / "round-000002")
    shutil.rmtree(killed.path / "checkpoints" / "round-000001")
    assert killed.checkpoint is None and "before its first checkpoint" in str(killed.error)


def test_what_ended_a_run_is_kept_until_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stop(snapshot: dict[str, object]) -> None:
        if snapshot["round"] == 2:
            raise RuntimeError("no more\ndisk")

    out = tmp_path / "run"
    with pytest.raises(RuntimeError):
        fedray.run(scenario({"runtime": "auto"}), out=out, watch=stop)
    assert str(fedray.Run.from_path(out).error) == "RuntimeError: no more disk"
    caplog.set_level("INFO", "fedray")
    resumed = fedray.resume(out)
    assert caplog.messages.count("reading the data") == 1
    assert resumed.error is None and not (out / "failure.json").exists()


def test_a_score_without_a_mean_is_said_once_at_the_end() -> None:
    with pytest.warns(FedrayWarning) as said:
        run = fedray.run(
            scenario({"method": {"name": "fedavg"}, "rounds": 2, "replicates": 2, "evaluate": {"every": 1}}),
            metrics={"mine": lambda scored: float("inf") if scored.replicate else 1.0},
            report=False,
        )
    (line,) = (str(one.message) for one in said)
    assert "mine" in line
    assert run.summary["metrics"]["mine"] == {"mean": None, "sd": None, "n": 2}
    assert run.rounds["mine"].to_pylist()[:3] == [1.0, 1.0, 1.0]  # of the first seed
