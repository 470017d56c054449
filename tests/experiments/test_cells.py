"""The cells of a table end with it, however it ends, and one that fails takes no other with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from small import run_command, scenario

import fedray
from fedray.experiments import table as cells
from fedray.experiments.table import hold_cell
from fedray.scenario.loader import read_cells, read_scenario, to_plain

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is told that its parent died")


def write(folder: Path, cells: list[dict[str, Any]], **changes: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(scenario({"report": False, "table": cells, **changes})))
    return path


def test_a_table_stopped_at_its_first_failing_cell(tmp_path: Path) -> None:
    """It goes on, marks the cell with its reason in what it prints and writes, and ends with status 1."""
    bad = {"local.lr": 1e30, "local.epochs": 3}
    cells: list[dict[str, Any]] = [{"name": "bad", "overrides": bad}, {"name": "good"}]
    given, out = write(tmp_path, cells), tmp_path / "table"
    (out / "cells" / "good" / "checkpoints").mkdir(parents=True)  # left by a run that was killed while it made it
    (out / "cells" / "good" / ".lock").touch()
    result = run_command("table", given, "--out", out, "-q")
    assert result.status == 1
    text = (out / "table.md").read_text()
    assert result.out.strip() == text.strip()
    line = next(line for line in text.splitlines() if line.startswith("| bad |"))
    assert line.startswith("| bad | failed: round 1: training diverged (NaN, infinite or huge weights) at client")
    assert len({line.count("|") for line in text.splitlines()}) == 1
    assert result.err.splitlines() == [
        f"fedray: 1 of 2 cells failed (bad): {out / 'table.md'} says why; the same command tries them again"
    ]
    rows = pq.read_table(out / "table.parquet").to_pylist()
    assert [row["error"] is None for row in rows if row["cell"] == "good"] == [True] * (len(rows) - 1)
    assert [row["error"][:26] for row in rows if row["cell"] == "bad"] == ["round 1: training diverged"]


def test_cells_that_train_at_once_take_a_part_of_the_cluster_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each took all of it: the second cell waited for half an hour, and died."""
    given, told = write(tmp_path, [{"name": name} for name in "abc"], rounds=1), list[dict[str, str]]()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def start(_arguments: list[str], **options: Any) -> subprocess.Popen[str]:
        told.append(options["variables"])
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], **pipes)

    monkeypatch.setattr(cells, "start_child", start)
    for jobs, parts in ((1, "1"), (2, "2"), (9, "3")):
        told.clear()
        run_command("table", given, "--out", tmp_path / f"table{jobs}", "--jobs", str(jobs))
        assert told == [{"FEDRAY_PARTS": parts}] * 3


def test_a_note_of_a_cell_is_said_once(tmp_path: Path) -> None:
    """What the process of a cell said of its study was lost."""
    method, out = {"name": "fed_ensemble", "models": 9}, tmp_path / "table"
    given = write(tmp_path, [{"name": "a"}, {"name": "b"}], rounds=1, method=method)
    result = run_command("table", given, "--out", out)
    assert result.status == 0, result.err
    notes = [line for line in result.err.splitlines() if line.startswith("fedray: note: ")]
    assert len(notes) == len(set(notes)), notes
    assert any("nobody trains" in line for line in notes), result.err


def test_a_damaged_summary_of_a_cell_is_one_line_of_the_table(tmp_path: Path) -> None:
    given, out = write(tmp_path, [{"name": "a"}, {"name": "b"}], rounds=1), tmp_path / "table"
    for cell in read_cells(read_scenario(given)):
        fedray.run(to_plain(cell.scenario), out=out / "cells" / cell.name)
    summary = out / "cells" / "a" / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "metrics": [1]}))
    result = run_command("table", given, "--out", out, "-q")
    assert result.status == 1
    assert "Traceback" not in result.err
    assert ["failed: " in line for line in result.out.splitlines()[2:4]] == [True, False]


def cells_alive(out: Path) -> list[int]:
    """The processes that train a cell below a directory."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            words = (path / "cmdline").read_bytes().split(b"\0") if path.name.isdigit() else []
        except OSError:  # it has ended meanwhile
            continue
        if any(word.startswith(f"{out}/cells/".encode()) for word in words):
            found.append(int(path.name))
    return found


def start_table(given: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedray", "table", str(given), "--out", str(out), "--jobs", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.slow
@ON_LINUX
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_cells_of_a_killed_table_trained_on_as_orphans(tmp_path: Path, number: signal.Signals) -> None:
    """They end with it, and the same command typed again at once goes on."""
    cells = [{"name": name, "overrides": {"seed": seed}} for seed, name in enumerate("ab")]
    given, out = (
        write(tmp_path, cells, rounds=150, checkpoint={"every": 20}, evaluate={"every": 50}),
        tmp_path / "table",
    )
    first = start_table(given, out)
    deadline = time.monotonic() + 200
    while not list(out.glob("cells/*/checkpoints/round-*")) and time.monotonic() < deadline:
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    os.kill(first.pid, number)
    again = start_table(given, out)
    first.communicate()
    assert first.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 128 + signal.SIGTERM)
    said = again.communicate()
    assert again.returncode == 0, said
    assert "another run" not in said[1]
    assert cells_alive(out) == []
    assert sorted(path.parent.name for path in out.glob("cells/*/summary.json")) == ["a", "b"]


def test_two_tables_do_not_train_one_cell_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedray.files.plain.LOCK_SECONDS", 0.2)
    given, out = write(tmp_path, [{"name": "a"}], rounds=1), tmp_path / "table"
    (out / "cells").mkdir(parents=True)
    with hold_cell(out / "cells" / "a"):
        result = run_command("table", given, "--out", out, "-q")
    assert result.status == 1
    assert result.err.splitlines() == [
        f"fedray: another `fedray table` trains {out / 'cells' / 'a'}: let it finish, or stop it"
    ]


@ON_LINUX
def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    child = (
        "import os, time; from fedray.process.session import follow_parent; follow_parent(int(os.environ['PARENT'])); "
    )
    child += "print(os.getpid(), flush=True); time.sleep(100)"
    parent = f"import os, subprocess, sys; os.environ['PARENT'] = str(os.getpid()); code = {child!r}; "
    parent += "subprocess.run([sys.executable, '-c', code])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) != process.pid
    process.kill()
    assert process.stdout.read() == ""  # the end of the file: nobody holds it any more
    process.communicate()
