"""A table says what its finished cells were trained on, and mixes them with nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.experiments.table import run_table
from fedray.scenario.loader import read_cells, read_scenario, to_plain
from fedray.scenario.schema import Scenario


def write_rows(path: Path, invert: bool) -> None:
    rows = np.random.default_rng(0).normal(size=(120, 3))
    lines = [f"{a:.4f},{b:.4f},{'yes' if (a > 0) != invert else 'no'}" for a, b, _ in rows]
    path.write_text("\n".join(["a,b,label", *lines]) + "\n")


def test_a_finished_cell_stood_in_a_table_beside_cells_of_other_data(tmp_path: Path) -> None:
    """The CSV file of a finished cell is changed: one line says so; the file as it was is taken again."""
    rows, out = tmp_path / "rows.csv", tmp_path / "table"
    write_rows(rows, invert=False)
    data = {"name": "table", "path": str(rows), "target": "label", "limit": None}
    given = read_scenario(scenario({"rounds": 2, "data": data, "table": [{"name": "one"}]}))
    (cell,) = read_cells(given)
    fedray.run(to_plain(cell.scenario), out=out / "cells" / "one")
    table = run_table(given, out)
    write_rows(rows, invert=True)
    with pytest.raises(BadInput, match=r"^cell one: .* the data are not those the run began with \(training lab") as no:
        run_table(given, out)
    assert len(str(no.value).splitlines()) == 1
    assert str(no.value).endswith(f"or remove {out / 'cells' / 'one'}, and the cell runs again")
    write_rows(rows, invert=False)
    assert run_table(given, out) == table


TWO = [{"name": "iid"}, {"name": "path", "overrides": {"seed": 5}}]


def test_a_table_of_some_cells_grows_into_the_table_of_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cells that are trained one at a time, in any order, give the table of one command."""
    given = read_scenario(scenario({"report": False, "table": TWO}))
    fedray.run(to_plain(read_cells(given)[1].scenario), out=tmp_path / "cells" / "path")
    part = run_table(given, tmp_path, only=["p*"])
    assert not (tmp_path / "cells" / "iid").exists()
    assert part.text.endswith("\nNot run: iid.\n")
    assert "| path |" in part.text
    assert "| iid |" not in part.text
    with caplog.at_level("INFO", "fedray"):
        more = run_table(given, tmp_path, only=["iid"])
    assert "training iid; 0 of 1 cells have ended" in [record.getMessage() for record in caplog.records]
    assert "| path |" in more.text
    assert more == run_table(given, tmp_path)


def test_a_cell_that_had_failed_was_called_not_run(tmp_path: Path) -> None:
    cells = [{"name": "good"}, {"name": "bad", "overrides": {"local.lr": 1e30, "local.epochs": 3}}, {"name": "later"}]
    wanted = read_scenario(scenario({"method": "fedavg", "rounds": 1, "report": False, "table": cells}))
    assert run_table(wanted, tmp_path, only=["bad"]).failed
    part = run_table(wanted, tmp_path, only=["good"])
    assert part.text.endswith("\nNot finished: bad.\n\nNot run: later.\n") and not part.failed


def test_a_pattern_without_a_cell_names_the_nearest(tmp_path: Path) -> None:
    given = read_scenario(scenario({"rounds": 1, "table": TWO}))
    with pytest.raises(BadInput, match=r"^--cells iidd: the table has no such cell; did you mean iid\?$"):
        run_table(given, tmp_path, only=["path", "iidd"])
    with pytest.raises(BadInput, match=r"^--cells x\*: the table has no such cell; the cells are iid, path$"):
        run_table(given, tmp_path, only=["x*"])


def test_a_cell_of_another_scenario_is_refused_by_the_keys_that_differ(tmp_path: Path) -> None:
    """Before, the line said only that the scenario was another one."""

    def make_table(**overrides: Any) -> Scenario:
        cells = [{"name": "one"}, {"name": "two", "overrides": overrides}]
        return read_scenario(scenario({"rounds": 1, "report": False, "table": cells}))

    begun = read_cells(make_table(local={"lr": 0.2}))[1]
    fedray.run(to_plain(begun.scenario), out=tmp_path / "cells" / "two")
    with pytest.raises(BadInput, match=r"two holds .* \(method.models \d, now 3; local.lr 0.2, now 0.25\): remove it"):
        run_table(make_table(local={"lr": 0.25}, method={"models": 3}), tmp_path, only=["one"])
    assert not (tmp_path / "cells" / "one").exists()  # before others train
