"""How far a cell is, is shown: not too often, and not kept back by lines that say less."""

from __future__ import annotations

from fedray.experiments.table import EVERY, CellLines


def follow(lines: list[tuple[float, str]]) -> tuple[list[str], CellLines]:
    """What is said when a cell writes lines at some seconds, after one in second 0."""
    said: list[str] = []
    clock = iter([0.0, *(second for second, _ in lines)])
    heard = CellLines(said.append, clock=clock.__next__)
    for line in ("reading the data", *(line for _, line in lines)):
        heard.hear("wide", line)
    return said, heard


def test_a_round_that_took_minutes_was_not_shown_because_the_cell_had_said_that_it_still_works() -> None:
    said: list[str] = []
    clock = iter([0.0, 107.0, 214.0])  # it is not asked for lines that say nothing new
    heard = CellLines(said.append, clock=clock.__next__)
    for t in (1, 2, 3):
        heard.hear("wide", f"round {t}/100")
        for waited in (15, 38, 63, 88, 106):
            heard.hear("wide", f"still training ({waited} s)")
        assert heard.newest("wide") == f"round {t}/100"
    assert said == ["cell wide: round 2/100", "cell wide: round 3/100"]


def test_short_rounds_are_shown_now_and_then() -> None:
    said, heard = follow([(second, f"round {second}/60") for second in range(1, 61)])
    assert said == [f"cell wide: round {t}/60" for t in range(int(EVERY), 61, int(EVERY))]
    assert heard.newest("wide") == "round 60/60"
