"""A run directory that is moved or deleted while it is written: one line, and nothing begins again at its old place."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from small import rows, scenario
from sweeps import sweep

import fedray
from fedray.core.errors import FedrayError
from fedray.experiments.table import run_table
from fedray.files.plain import write_atomically
from fedray.scenario.loader import read_scenario
from fedray.tuning.tune import run_sweep


def replace(out: Path) -> None:
    """Another run has the old name now."""
    out.rename(out.with_name("elsewhere"))
    out.mkdir()


@pytest.mark.parametrize("act", [replace, shutil.rmtree])
def test_a_directory_that_goes_while_it_is_written_is_noticed(tmp_path: Path, act: Callable[[Path], None]) -> None:
    """At the next write, in one line; what is at the old place is left alone, and the run goes on at its new place."""
    out, whole = tmp_path / "run", fedray.run(scenario({"checkpoint": {"every": 1}}), out=tmp_path / "whole")

    def watch(snapshot: dict[str, object]) -> None:
        if snapshot["round"] == 2:
            act(out)

    keys = scenario({"checkpoint": {"every": 1}, "evaluate": {"every": 1}})
    with pytest.raises(
        FedrayError, match=r"run was moved or deleted while it was written: .*`fedray resume`"
    ) as caught:
        fedray.run(keys, out=out, watch=watch)
    assert len(str(caught.value).splitlines()) == 1
    assert not out.exists() or list(out.iterdir()) == []
    if act is not shutil.rmtree:
        resumed = fedray.resume(tmp_path / "elsewhere")
        assert resumed.summary["state_hash"] == whole.summary["state_hash"]
        assert [row["round"] for row in rows(resumed.rounds)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["table", "sweep"])
def test_a_table_or_a_sweep_that_goes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """After the cell or trial that is trained when it goes."""
    out, cells = tmp_path / "out", [{"name": "a"}, {"name": "b", "overrides": {"seed": 1}}]
    train: dict[str, Callable[..., object]] = {
        "table": partial(run_table, read_scenario(scenario({"table": cells}))),
        "sweep": partial(run_sweep, sweep({"local.lr": [0.1, 0.2]}, trials=2), report=False),
    }

    def say(_line: str) -> None:
        if not (tmp_path / "elsewhere").exists():
            replace(out)
            (out / "cells").mkdir()

    for name in ("start_child", "follow_child"):  # every cell is done at once
        monkeypatch.setattr(f"fedray.experiments.table.{name}", lambda *_given, **_named: 0)
    with pytest.raises(FedrayError, match="moved or deleted"):
        train[kind](out, say=say)
    assert list(out.rglob("*")) == [out / "cells"]


def test_a_writer_makes_no_directory_and_the_files_of_a_run_share_one_mode(tmp_path: Path) -> None:
    """That of the umask: safetensors alone would write 0600, which other users cannot read."""
    with pytest.raises(FedrayError, match="is gone: was it moved or deleted"):
        write_atomically(tmp_path / "gone" / "summary.json", b"{}")
    assert not (tmp_path / "gone").exists()
    run = fedray.run(scenario({"rounds": 2, "report": False}), out=tmp_path / "run")
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.path.rglob("*") if path.is_file()}
    assert len(set(modes.values())) == 1, modes
