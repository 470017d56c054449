"""A real notebook kernel runs a small study, shows it, draws it and compares it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import run_notebook
from small import scenario

CELLS = (
    f"import fedray\nsmall = {scenario({'rounds': 2, 'replicates': 2, 'report': False})!r}",
    "run = fedray.run(small)\nother = fedray.run(small, method='fedavg')",
    "run",
    "run.plot('accuracy')",
    "fedray.compare([run, other])",
    "run.metrics_dataframe.tail(2)",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_shows_what_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::DeprecationWarning")
    outputs = run_notebook("".join(f"```{{code-cell}}\n{cell}\n```\n" for cell in CELLS), tmp_path)
    said = "".join(one.get("text", "") for one in outputs)
    assert "fed_ensemble" in said and "2/2" in said and "100%" in said and "accuracy 0." in said  # a bar
    assert "still" not in said and "Traceback" not in said
    run, plot, comparison, frame = (one["data"] for one in outputs if one["output_type"] == "execute_result")
    assert "<table" in run["text/html"] and "<svg" in run["text/html"] and "accuracy" in run["text/html"]
    assert len(plot["image/png"]) > 5_000
    html = comparison["text/html"]
    assert "fedavg - fed_ensemble" in html and "2 seeds" in html and "method.name" in html
    assert "accuracy" in frame["text/html"]
