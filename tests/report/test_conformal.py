"""The picture of conformal sets: one dot of truth a client, and nothing where there is nothing to compare."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.report.clients import figure_conformal
from fedray.report.read import ReadRun, read_run


def drawn(table: object) -> ReadRun:
    pictures = {"conformal_clients": np.array(table), "conformal_alpha": np.array([0.2])}
    return ReadRun("one", {}, "", {}, {}, {}, None, None, pictures)


@pytest.mark.drawn
def test_the_page_of_a_run_with_sets_shows_what_its_clients_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = [("The clients", ((figure_conformal, "a note"),))]
    monkeypatch.setattr("fedray.report.page.SECTIONS", sections)  # the others take their time
    keys = {"data": {"hold_out": 0.25}, "predict": {"conformal": {"alpha": 0.2}}, "evaluate": {"clients": "all"}}
    run = fedray.run(scenario(keys, {"rounds": 1}), out=tmp_path / "run")
    table = read_run(run.path).pictures["conformal_clients"]
    frame = run.client_scores.to_pandas().query("round == 1")
    assert np.array_equal(table, frame[["conformal_coverage", "conformal_size"]].to_numpy())
    worst = int(table[:, 0].argmin())
    assert re.search(
        rf"of the rows of client {worst}, the least; 80 % is wanted", (run.path / "report.html").read_text()
    )


def test_clients_without_rows_are_left_out_and_one_client_is_no_comparison() -> None:
    figure = figure_conformal(drawn([[0.9, 1.5], [np.nan, np.nan], [0.7, 2.0]]))
    assert figure is not None and "70.0 % of the rows of client 2" in str(figure.get_label())
    assert figure_conformal(drawn([[0.9, 1.5], [np.nan, np.nan]])) is None
