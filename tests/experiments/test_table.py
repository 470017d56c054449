"""A table: its cells end with it and fail alone, its text says what they were trained on, and LaTeX can read it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small import run_command, scenario, write_keys
from small_data import write_table

import fedray
from fedray.core.errors import BadInput, FedrayError
from fedray.experiments import table as cells
from fedray.experiments.live import ProgressPhase
from fedray.experiments.table import format_latex, format_markdown, hear_line, refuse_unknown_metrics, run_table
from fedray.files.plain import hold_lock
from fedray.scenario.loader import read_cells, read_scenario, to_plain
from fedray.scenario.schema import Scenario

FEW = {"report": False, "rounds": 1}


def test_a_table_stopped_at_its_first_failing_cell(tmp_path: Path) -> None:
    """It goes on, marks the cell with its reason in what it prints and writes, and ends with status 1."""
    bad = {"local.lr": 1e30, "local.epochs": 3}
    cells: list[dict[str, Any]] = [{"name": "bad", "overrides": bad}, {"name": "good"}, {"name": "damaged"}]
    given, out = write_keys(tmp_path, scenario({"table": cells, **FEW})), tmp_path / "table"
    fedray.run(to_plain(read_cells(read_scenario(given))[2].scenario), out=out / "cells" / "damaged")
    summary = out / "cells" / "damaged" / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "metrics": [1]}))
    result = run_command("table", given, "local.epochs=1", "--out", out, "-q")
    assert result.status == 1 and "Traceback" not in result.err
    text = (out / "table.md").read_text()
    assert result.out.strip() == text.strip()
    lines = text.splitlines()
    assert lines[2].startswith("| bad | failed: round 1: training diverged")
    assert ["failed: " in line for line in lines[2:5]] == [True, False, True]
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    *notes, last = result.err.splitlines()
    assert last.startswith("fedray: 2 of 3 cells failed (bad, damaged): ")
    assert "local.epochs = 1 cannot act in cell bad, which has its own: change it in the file" in notes.pop(0)
    assert len(notes) == len(set(notes)) > 0, "what the processes of the cells said of their studies, each once"
    rows = pq.read_table(out / "table.parquet").to_pylist()
    assert all(row["error"] is None for row in rows if row["cell"] == "good")
    assert [row["error"][:26] for row in rows if row["cell"] == "bad"] == ["round 1: training diverged"]
    assert "\nNot finished: bad.\n" in run_table(read_scenario(given), out, only=["good"]).text


def test_cells_that_train_at_once_take_a_part_of_the_cluster_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = write_keys(tmp_path, scenario({"table": [{"name": name} for name in "abc"], **FEW}))
    told = list[dict[str, str]]()

    def start(_arguments: list[str], **options: Any) -> subprocess.Popen[str]:
        told.append(options["variables"])
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], stderr=subprocess.PIPE, text=True)

    monkeypatch.setattr(cells, "start_child", start)
    phases = list[ProgressPhase]()  # whose "still training" the line of a cell delays
    monkeypatch.setattr(ProgressPhase, "record_line", lambda phase: phases.append(phase))
    for jobs, parts in ((1, "1"), (2, "2"), (9, "3")):
        told.clear()
        phases.clear()
        run_command("table", given, "--out", tmp_path / f"table{jobs}", "--jobs", str(jobs))
        assert told == [{"FEDRAY_PARTS": parts}] * 3
        assert len(phases) >= 3 and all(phase is phases[0] for phase in phases)


def test_two_tables_do_not_train_one_cell_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedray.files.plain.LOCK_SECONDS", 0.2)
    given, out = write_keys(tmp_path, scenario({"table": [{"name": "a"}], **FEW})), tmp_path / "table"
    (out / "cells").mkdir(parents=True)
    with hold_lock(out / "cells" / ".a.lock", FedrayError("it is held")):
        result = run_command("table", given, "--out", out, "-q")
    assert result.status == 1 and f"another `fedray table` trains {out / 'cells' / 'a'}" in result.err


CHILD = """
import os, sys, time
from fedray.process import follow_parent
follow_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(100)
"""
PARENT = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is told that its parent died")
def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) != process.pid
    process.kill()
    assert process.stdout.read() == ""  # the end of the file: nobody holds it any more
    process.communicate()


def test_a_round_that_took_minutes_was_not_shown_because_the_cell_had_said_that_it_still_works() -> None:
    said, heard = list[str](), dict[str, tuple[str, float]]()
    for t in (1, 2, 3):
        hear_line(heard, "wide", f"round {t}/100", said.append, 107.0 * t)
        for waited in (15, 38, 63, 88, 106):
            hear_line(heard, "wide", f"still training ({waited} s)", said.append, 107.0 * t + waited)
        assert heard["wide"][0] == f"round {t}/100"
    assert said == ["cell wide: round 2/100", "cell wide: round 3/100"]


def test_a_finished_cell_stood_in_a_table_beside_cells_of_other_data(tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "table"
    write_table(rows, invert=False)
    data = {"name": "table", "path": str(rows), "target": "label", "limit": None}
    given = read_scenario(scenario({"rounds": 2, "data": data, "table": [{"name": "one"}]}))
    (cell,) = read_cells(given)
    fedray.run(to_plain(cell.scenario), out=out / "cells" / "one")
    table = run_table(given, out)
    write_table(rows, invert=True)
    with pytest.raises(BadInput):
        run_table(given, out)
    write_table(rows, invert=False)
    assert run_table(given, out) == table


TWO = [{"name": "iid"}, {"name": "path", "overrides": {"seed": 5}}]


def test_a_table_of_some_cells_grows_into_the_table_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that are trained one at a time, in any order, give the table of one command, which trains none again."""
    monkeypatch.setattr(cells, "start_child", lambda *_, **__: pytest.fail("a finished cell trains again"))
    given = read_scenario(scenario({"report": False, "table": TWO}))
    first, second = read_cells(given)
    fedray.run(to_plain(second.scenario), out=tmp_path / "cells" / "path")
    part = run_table(given, tmp_path, only=["p*"])
    assert not (tmp_path / "cells" / "iid").exists()
    assert part.text.endswith("\nNot run: iid.\n")
    assert "| path |" in part.text and "| iid |" not in part.text
    fedray.run(to_plain(first.scenario), out=tmp_path / "cells" / "iid")
    more = run_table(given, tmp_path, only=["iid"])
    assert "| path |" in more.text and more == run_table(given, tmp_path)


def test_a_cell_of_another_scenario_is_refused_by_the_keys_that_differ(tmp_path: Path) -> None:
    def make_table(**overrides: Any) -> Scenario:
        cells = [{"name": "one"}, {"name": "two", "overrides": overrides}]
        return read_scenario(scenario({"rounds": 1, "report": False, "table": cells}))

    begun = read_cells(make_table(local={"lr": 0.2}))[1]
    fedray.run(to_plain(begun.scenario), out=tmp_path / "cells" / "two")
    with pytest.raises(BadInput):
        run_table(make_table(local={"lr": 0.25}, method={"models": 3}), tmp_path, only=["one"])
    assert not (tmp_path / "cells" / "one").exists()  # before others train


def row(cell: str, metric: str, published: float | None = None, n: int = 3) -> dict[str, Any]:
    scores = {"mean": 0.25, "sd": 0.5, "n": n, "published": published}
    return {"cell": cell, "metric": metric, **scores, "rounds": 4, "up_bytes": 6e6, "down_bytes": 9e6, "error": None}


ROWS = [row("a_b", "accuracy", 0.9), row("a_b", "nll"), row("50 %", "accuracy", None), row("50 %", "nll", None, 2)]


def test_each_line_of_latex_has_as_many_columns_as_its_head_and_no_mark_of_a_name_is_a_command() -> None:
    name = r"\input{x}~^#$"
    (line,) = [line for line in format_latex([row(name, "nll")], [name]).splitlines() if "0.25" in line]
    escaped = [r"\textbackslash", "input", r"\{x\}", r"\textasciitilde", r"\textasciicircum", r"\#", r"\$ & 0.25"]
    assert [part in line for part in escaped] == [True] * len(escaped) and r"\input" not in line
    failed = {"cell": "bad", "error": "local.lr_5 = {1} & more"}
    text = format_latex([*ROWS, failed], ["a_b", "bad", "50 %"])
    head, *body = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = len(re.split(r"(?<!\\)&", head))
    assert f"{{l{'r' * (columns - 1)}}}" in text
    assert [len(re.split(r"(?<!\\)&", line)) for line in body] == [columns] * 3
    assert body[1].startswith(r"bad & failed: local.lr\_5 = \{1\} \& more & ")


def test_a_bar_in_a_name_and_a_small_score_are_seen_in_the_table() -> None:
    row = {"cell": "a|b", "metric": "rmse", "mean": 4e-5, "sd": 1.25e-6, "n": 3, "published": 3e-5, "rounds": 5}
    row |= {"up_bytes": 6e3, "down_bytes": 0}
    text = format_markdown([row], ["a|b"])
    assert text.splitlines()[2] == r"| a\|b | 4e-05 +- 1.25e-06 (n = 3) | 3e-05 | 5 | 0.002 | 0 |"
    failed = format_markdown([row, {"cell": "c|d", "error": "x"}], ["a|b", "c|d"])
    assert failed.splitlines()[3].startswith(r"| c\|d | failed: x |")


def test_what_a_target_cost_stands_in_the_table_with_its_unit() -> None:
    names = ("accuracy", "rounds_to_target", "seconds_to_target", "bytes_to_target", "accuracy_min", "nll", "entropy")
    rows = [row("a", name) for name in names]
    rows[3] |= {"mean": 466240.0, "sd": 117466.2}
    head, _, line = (text.split(" | ") for text in format_markdown(rows, ["a"]).splitlines()[:3])
    assert head[1:8] == [*names]
    assert dict(zip(head, line, strict=True))["bytes_to_target"] == "466 kB +- 117 kB (n = 3)"
    assert dict(zip(head, line, strict=True))["seconds_to_target"] == "0.25 s +- 0.5 s (n = 3)"
    slower = [{**each, "cell": "b", "mean": 3e6, "sd": 4e5} for each in rows[2:4]]
    line = format_markdown([*rows, *slower], ["a", "b"]).splitlines()[2].split(" | ")
    assert dict(zip(head, line, strict=False))["bytes_to_target"] == "0.466 MB +- 0.117 MB (n = 3)"  # as that of b
    assert r"& 0.25 s $\pm$ 0.5 s (n = 3) & 466 kB $\pm$ 117 kB (n = 3) &" in format_latex(rows, ["a"])


def test_the_scores_that_are_asked_for_are_the_columns_in_their_order() -> None:
    """A misspelled one is told before the cells train."""
    head = format_markdown(ROWS, ["a_b", "50 %"], ["n*", "accuracy"]).splitlines()[0]
    assert head == "| cell | nll | accuracy | accuracy published | rounds | up MB, each | down MB, each |"
    latex = format_latex(ROWS, ["a_b", "50 %"], ["nll"])
    assert "cell & nll & " in latex and "accuracy" not in latex
    known = ["accuracy", "accuracy_last3", "hold_out_nll", "rounds_to_target", "my_*"]
    cells = read_cells(read_scenario(scenario({"table": [{"name": "a", "published": {"acuracy": 0.5}}]})))
    refuse_unknown_metrics(known, [])
    with pytest.raises(BadInput, match="^published of a: acuracy: .*; did you mean accuracy"):
        refuse_unknown_metrics(known, cells)
    with pytest.raises(BadInput, match="^--metrics acuracy: .*; did you mean accuracy"):
        refuse_unknown_metrics(["nll", "acuracy"], [])
