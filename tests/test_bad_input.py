"""Bad input is one line on stderr, exit status 2 (1 while running), no traceback, and nothing that existed changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import fed

BASE = "runtime: inline\nrounds: 1\nclients: {number: 10}\nparticipation: {per_round: 4}\nlocal: {epochs: 1}\n"
SCENARIOS = {
    "unknown key": (["local.learning_rate=1"], "local.lr"),
    "unknown section": (["locale.lr=1"], "local"),
    "unknown method": (["method.name=fedavgg"], "fedavg"),
    "unknown data": (["data.name=minst"], "mnist"),
    "unknown model": (["model.name=cnnn"], "cnn"),
    "unknown partition": (["data.partition.name=dirichlett"], "dirichlet"),
    "wrong type": (["rounds=ten"], "rounds"),
    "no models": (["method.models=0"], "method.models"),
    "negative rounds": (["rounds=-1"], "rounds"),
    "more HPC than clients": (["clients.tiers.hpc.number=60"], "clients.tiers.hpc.number"),
    "a third and a bit of a GPU": (["clients.tiers.a.num_gpus=0.3"], "num_gpus"),
    "more classes than there are": (
        ["data.partition.name=classes", "data.partition.classes=20"],
        "data.partition.classes",
    ),
    "more participants than clients": (["participation.per_round=11"], "participation.per_round"),
    "a learning rate below zero": (["local.lr=-1"], "local.lr"),
    "nothing is kept": (["compress.kind=topk", "compress.ratio=0"], "compress.ratio"),
    "more clients than samples": (["clients.number=5000", "participation.per_round=5"], "clients.number"),
    "a population out of bounds": (["clients.number=1e12"], "clients.number"),
    "missing data files": (["data.name=mnist", "data.root=/nowhere"], "mnist"),
    "missing trace": (["clients.trace=/nowhere.csv"], "clients.trace"),
    "a metric that is not there": (["evaluate.stop_at.metric=rmse", "evaluate.stop_at.value=1"], "evaluate.stop_at"),
}


@pytest.fixture()
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(BASE)
    return path


def refused(arguments: list[str], status: int = 2) -> str:
    """Runs the CLI, checks the form of the refusal and returns its line."""
    done = fed(*arguments)
    assert done.status == status, done.err
    lines = [line for line in done.err.splitlines() if line.startswith("fedray: ")]
    assert len(lines) == 1, done.err
    assert "Traceback" not in done.err
    return lines[0]


@pytest.mark.parametrize("case", SCENARIOS)
def test_a_bad_scenario_is_one_line_with_the_remedy(case: str, scenario: Path, tmp_path: Path) -> None:
    overrides, mention = SCENARIOS[case]
    line = refused(["run", str(scenario), *overrides, "--out", str(tmp_path / "out")])
    assert mention in line
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize(
    ("text", "mention"),
    [("", "empty"), ("rounds: [", "line"), ("rounds: 1\nrounds: 2\n", "rounds"), ("- 1\n", "")],
)
def test_a_file_that_is_no_scenario_is_one_line(text: str, mention: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert mention in refused(["check", str(path)])


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    for command in ("resume", "export", "report"):
        assert str(tmp_path) in refused([command, str(tmp_path)])
    assert "nowhere.yaml" in refused(["run", str(tmp_path / "nowhere.yaml")])
    assert "no_such_module" in refused(["run", str(tmp_path), "--import", "no_such_module"])


def test_a_directory_that_holds_something_is_left_as_it_is(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    assert str(out) in refused(["run", str(scenario), "--out", str(out)])
    assert [path.name for path in out.iterdir()] == ["precious.txt"]
    assert (out / "precious.txt").read_text() == "mine"


def test_training_that_diverges_names_the_clients(scenario: Path, tmp_path: Path) -> None:
    line = refused(["run", str(scenario), "rounds=30", "local.lr=1e30", "--out", str(tmp_path / "out")], status=1)
    assert "client" in line
    assert "local.lr" in line
