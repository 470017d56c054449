"""A real notebook kernel runs a small study, shows it, draws it and compares it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from small import scenario

ROOT = Path(__file__).parents[2]
CELLS = (
    f"import fedray\nsmall = {scenario({'rounds': 2, 'replicates': 2, 'report': False})!r}",
    "run = fedray.run(small)\nother = fedray.run(small, method='fedavg')",
    "run",
    "run.plot('accuracy')",
    "fedray.compare([run, other])",
    "run.metrics_dataframe.tail(2)",
)


@pytest.fixture(scope="module")
def outputs() -> list[list[dict[str, Any]]]:
    """What each cell showed."""
    import nbformat
    from nbclient import NotebookClient

    v4: Any = nbformat.v4
    book = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("PYTHONWARNINGS", "ignore::DeprecationWarning")
        NotebookClient(book, timeout=240, kernel_name="python3").execute()
    return [list(cell.outputs) for cell in book.cells]


def shown(outputs: list[dict[str, Any]]) -> dict[str, str]:
    """The last result of a cell, by its type."""
    return dict([one["data"] for one in outputs if one["output_type"] in ("execute_result", "display_data")][-1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_shows_what_it_runs(outputs: list[list[dict[str, Any]]]) -> None:
    _, runs, run, plot, comparison, frame = outputs
    said = "".join(one.get("text", "") for one in runs)
    assert "fed_ensemble" in said and "2/2" in said and "100%" in said and "accuracy 0." in said  # a bar
    assert "still" not in said and "Traceback" not in said
    html = shown(run)["text/html"]
    assert "<table" in html and "<svg" in html and "accuracy" in html
    assert len(shown(plot)["image/png"]) > 5_000
    html = shown(comparison)["text/html"]
    assert "fedavg - fed_ensemble" in html and "2 seeds" in html and "method.name" in html
    assert "accuracy" in shown(frame)["text/html"]
