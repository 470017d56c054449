"""How tables are laid out: what a row is comes first, numbers end on the right, and nothing is lost on paper."""

from __future__ import annotations

import re

from fedray.report.page import fill_template
from fedray.report.sheets import FIGURE_SPACE, POINT_SPACE, ScoreCell, align_numbers, lay_out


def cells(*rows: str) -> list[list[ScoreCell]]:
    return [[ScoreCell(text) for text in row.split("|")] for row in rows]


def test_decimal_points_lie_under_each_other() -> None:
    texts = align_numbers(["0.6522 \u00b1 0.025", "11.5 \u00b1 0.1", "7 \u00b1 2.5", "-"])
    assert len({len(text) - text.index(" \u00b1") for text in texts[:3]}) == 1
    assert texts[1] == f"11.5{FIGURE_SPACE * 3} \u00b1 0.1{FIGURE_SPACE * 2}" and texts[3] == "-"
    assert texts[2].startswith(f"7{POINT_SPACE}{FIGURE_SPACE * 4} ")
    for other in (["1.5 s", "2 min"], ["1e-05", "0.5"], ["sgd", "0.1"], ["-", ""]):  # nothing that could be aligned
        assert align_numbers(other) == other


def test_words_begin_on_the_left_and_numbers_end_on_the_right() -> None:
    layout = lay_out(["run", "method", "accuracy", "spread"], cells("a|fedavg|78.1 %|-", "b|2nd|79 %|+0.1 to +2.5"))
    assert layout is not None and layout.whole.words == [True, True, False, False]


def test_the_second_column_joins_names_that_repeat() -> None:
    layout = lay_out(["score", "run", "mean"], cells("nll|a|1", "nll|b|2", "ece|a|3"))
    assert layout is not None and layout.whole.head == ["score, run", "mean"]
    assert [row[0].text for row in layout.whole.rows] == ["nll, a", "nll, b", "ece, a"]
    for rows in (cells("nll|a|1", "ece|a|3"), cells("nll|a|1", "nll|a|3")):  # no need, and no use
        layout = lay_out(["score", "run", "mean"], rows)
        assert layout is not None and layout.whole.head == ["score", "run", "mean"]


def test_a_wide_table_is_one_box_on_the_screen_and_whole_on_paper() -> None:
    head = ["run", *(f"score{i}" for i in range(40))]
    rows = [[ScoreCell(f"run{j}"), *(ScoreCell(f"{i}.{j}") for i in range(40))] for j in (1, 2)]
    layout = lay_out(head, rows)
    assert layout is not None and len(layout.parts) > 1
    assert [name for part in layout.parts for name in part.head[1:]] == head[1:]
    assert all(
        part.head[0] == "run" and [row[0].text for row in part.rows] == ["run1", "run2"] for part in layout.parts
    )
    page = fill_template(title="wide", facts=[], runs=[], tables=[("Scores", (head, rows), "")])
    boxes = re.findall(r'<div class="(sheet[^"]*)"(?: tabindex="0")? role="region" aria-label="([^"]*)"', page)
    parts = len(layout.parts)
    assert boxes == [
        ("sheet", "Scores"),
        *(("sheet paper", f"Scores, part {i} of {parts}") for i in range(1, parts + 1)),
    ]
    assert page.count('<th scope="row">run1</th>') == 1 + parts and page.count('class="screen"') == 1
    assert lay_out(head, []) is None
