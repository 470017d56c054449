"""A table in LaTeX holds the numbers of the Markdown, and LaTeX can read whatever a cell is called."""

from __future__ import annotations

import re
from typing import Any

import pytest
from small import scenario

from fedray.core.errors import BadInput
from fedray.experiments.table import format_latex, format_markdown, refuse_unknown_metrics
from fedray.scenario.loader import read_cells, read_scenario


def row(cell: str, metric: str, published: float | None = None, n: int = 3) -> dict[str, Any]:
    scores = {"mean": 0.25, "sd": 0.5, "n": n, "published": published}
    return {"cell": cell, "metric": metric, **scores, "rounds": 4, "up_bytes": 6e6, "down_bytes": 9e6, "error": None}


ROWS = [row("a_b", "accuracy", 0.9), row("a_b", "nll"), row("50 %", "accuracy", None), row("50 %", "nll", None, 2)]


def test_each_line_of_latex_has_as_many_columns_as_its_head() -> None:
    failed = {"cell": "bad", "error": "local.lr_5 = {1} & more"}
    text = format_latex([*ROWS, failed], ["a_b", "bad", "50 %"])
    head, *body = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = len(re.split(r"(?<!\\)&", head))
    assert f"{{l{'r' * (columns - 1)}}}" in text
    assert [len(re.split(r"(?<!\\)&", line)) for line in body] == [columns] * 3
    assert body[1].startswith("bad & failed & ") and "% bad failed: local.lr_5 = {1} & more\n" in text


def test_latex_has_the_deviation_the_published_value_and_the_number_of_replicates() -> None:
    first, second = [
        line for line in format_latex(ROWS, ["a_b", "50 %"]).splitlines() if line.endswith(r"2.0 & 3.0 \\")
    ]
    assert first == r"a\_b & $0.2500 \pm 0.5000$ & 0.9 & $0.2500 \pm 0.5000$ & 3 & 4 & 2.0 & 3.0 \\"
    assert second.startswith(r"50 \% & $0.2500 \pm 0.5000$ &  & $0.2500 \pm 0.5000\ (n = 2)$")
    numbers = re.findall(r"\d\.\d{4}", format_markdown(ROWS, ["a_b", "50 %"]))
    assert numbers == re.findall(r"\d\.\d{4}", format_latex(ROWS, ["a_b", "50 %"]))


def test_no_mark_of_a_name_is_a_command() -> None:
    name = r"\input{x}~^#$"
    (line,) = [line for line in format_latex([row(name, "nll")], [name]).splitlines() if "0.25" in line]
    escaped = [r"\textbackslash", "input", r"\{x\}", r"\textasciitilde", r"\textasciicircum", r"\#", r"\$ & $0.25"]
    assert [part in line for part in escaped] == [True] * len(escaped) and r"\input" not in line


def test_a_bar_in_a_name_and_a_small_score_are_seen_in_the_table() -> None:
    """A cell named a|b had one column more, and an RMSE of 0.00004 stood as 0.0000 beside the published 3e-05."""
    row = {"cell": "a|b", "metric": "rmse", "mean": 4e-5, "sd": 1.25e-6, "n": 3, "published": 3e-5, "rounds": 5}
    row |= {"up_bytes": 6e3, "down_bytes": 0}
    text = format_markdown([row], ["a|b"])
    assert text.splitlines()[2] == r"| a\|b | 4e-05 +- 1.25e-06 (n = 3) | 3e-05 | 5 | 0.002 | 0 |"
    failed = format_markdown([row, {"cell": "c|d", "error": "x"}], ["a|b", "c|d"])
    assert failed.splitlines()[3].startswith(r"| c\|d | failed: x |")
    latex = format_latex([row], ["a|b"])
    small = [rf"\ensuremath{{{digits}}}" for digits in (r"4 \cdot 10^{-5}", r"1.25 \cdot 10^{-6}", r"3 \cdot 10^{-5}")]
    assert rf"a|b & ${small[0]} \pm {small[1]}$ & {small[2]} & 3 &" in latex


def test_what_a_target_cost_stands_in_the_table_with_its_unit() -> None:
    """The page says that the table shows it, and it showed the rounds alone."""
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
    latex = format_latex(rows, ["a"])
    assert "virtual seconds to target & uplink to target (MB) &" in latex
    assert r"$0.2500 \pm 0.5000$ & $0.4662 \pm 0.1175$ &" in latex


def test_the_scores_that_are_asked_for_are_the_columns_in_their_order() -> None:
    head = format_markdown(ROWS, ["a_b", "50 %"], ["n*", "accuracy"]).splitlines()[0]
    assert head == "| cell | nll | accuracy | accuracy published | rounds | up MB, each | down MB, each |"
    assert "cell & NLL & " in format_latex(ROWS, ["a_b", "50 %"], ["nll"])
    assert "accuracy" not in format_latex(ROWS, ["a_b", "50 %"], ["nll"])
    with pytest.raises(BadInput, match="--metrics acuracy: the cells have no such score; did you mean accuracy"):
        format_markdown(ROWS, ["a_b", "50 %"], ["nll", "acuracy"])


def test_a_misspelled_score_was_told_after_all_cells_had_trained() -> None:
    cells = read_cells(read_scenario(scenario({"table": [{"name": "a", "published": {"f1_theirs": 0.5}}]})))
    refuse_unknown_metrics(
        ["accuracy", "accuracy_last3", "hold_out_nll", "rounds_to_target", "f1_theirs", "my_*"], cells
    )
    with pytest.raises(BadInput, match="^--metrics acuracy: there is no such score; did you mean accuracy"):
        refuse_unknown_metrics(["nll", "acuracy"], cells)
