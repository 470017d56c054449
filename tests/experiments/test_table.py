"""A table says what its finished cells were trained on, and mixes them with nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.experiments.table import run_table
from fedray.scenario.loader import read_cells, read_scenario, to_plain


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
