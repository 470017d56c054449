"""Comparisons of runs: nothing is called best, cheaper or longer than it is known to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_runs import write_run

from fedray.core.text import SCORE_NAMES, name_score
from fedray.experiments.live import describe_snapshot
from fedray.report import compare
from fedray.report.cards import make_cards
from fedray.report.page import render_many
from fedray.report.read import ReadRun, read_run


def finished(name: str, mean: float, sd: float | None, n: int, metric: str = "accuracy", **totals: float) -> ReadRun:
    """A run that ended with a score, without curves."""
    summary: dict[str, Any] = {"metrics": {metric: {"mean": mean, "sd": sd, "n": n}}, "rounds": 5, "totals": totals}
    rounds = {key: list(range(n)) if key == "replicate" else [0] * n for key in ("replicate", "fold")}
    return ReadRun(name, {}, "", {}, summary, rounds, None, None, {})  # type: ignore[arg-type]


def test_a_run_does_not_end_best_by_less_than_the_spread_of_its_replicates() -> None:
    near = [finished("a", 0.91, 0.02, 5), finished("b", 0.90, 0.02, 5), finished("c", 0.80, 0.02, 5)]
    assert compare.find_best(near, "accuracy") == [0, 1]
    head, rows = compare.make_comparison_table(near)
    assert [row[head.index("accuracy")].best for row in rows] == [True, True, False]
    far = [finished("a", 0.95, 0.02, 5), finished("b", 0.90, 0.02, 5)]
    assert compare.find_best(far, "accuracy") == [0]
    assert compare.find_best([finished("a", 2.0, 0.1, 4, "rmse"), finished("b", 1.0, 0.1, 4, "rmse")], "rmse") == [1]
    assert compare.find_best(far[:1], "accuracy") == []


@pytest.mark.parametrize(("replicates", "lift", "title"), [
    (5, (0.0, 0.001), "short, long end alike, within twice the standard error"),
    (5, (0.0, 0.03), "long ends best: "),
    (1, (0.0, 0.03), "long ends best, without the replicates to be sure: "),
])  # fmt: skip
def test_the_title_says_best_only_where_it_is_known(
    tmp_path: Path, replicates: int, lift: tuple[float, float], title: str
) -> None:
    runs = [
        read_run(write_run(tmp_path / name, replicates=replicates, rounds=60, clients=8, pictures=False, lift=more))
        for name, more in zip(("short", "long"), lift, strict=True)
    ]
    figure = compare.overlay_curves(runs, "accuracy", "rounds")
    assert figure is not None
    found = str(figure.get_label())
    assert title in found or title.replace("short, long", "long, short") in found


def test_the_uplink_of_three_replicates_is_not_compared_with_that_of_one() -> None:
    runs = [finished("one", 0.9, None, 1, up_bytes=2e6), finished("three", 0.9, 0.1, 3, up_bytes=6e6)]
    head, rows = compare.make_cost_table(runs)
    assert [row[head.index("uplink")].text for row in rows] == ["2 MB", "2 MB"]


def test_runs_of_different_rounds_and_replicates_are_not_compared_without_a_word(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "short", replicates=1, rounds=6, clients=8, pictures=False)),
        read_run(write_run(tmp_path / "long", replicates=3, rounds=12, clients=8, pictures=False)),
    ]
    said = [
        "The runs differ in their rounds: short 6, long 12.",
        "The runs differ in their number of replicates and folds: short 1, long 3.",
    ]
    assert compare.list_caveats(runs) == said
    page = render_many(runs)
    assert all(line in page for line in said)
    assert compare.list_caveats([runs[1], runs[1]]) == []


def test_a_score_has_one_name_in_the_live_view_the_report_and_the_comparison() -> None:
    assert len(set(SCORE_NAMES.values())) == len(SCORE_NAMES)
    run = finished("a", 0.9, None, 1, up_bytes=2e6, down_bytes=1e6, sim_seconds=1.0, wall_seconds=2.0)
    snapshot = {"round": 1, "rounds": 1, "metrics": {"accuracy": 0.9}, "up_bytes": 2e6, "wall_seconds": 2.0}
    assert f"{name_score('accuracy')} 0.9000  {name_score('up_bytes')} 2 MB" in describe_snapshot(snapshot)
    labels = [card.label for card in make_cards(run)]
    assert labels == [name_score(n) for n in ("accuracy", "up_bytes", "down_bytes", "sim_seconds", "wall_seconds")]
    assert name_score("accuracy") in compare.make_comparison_table([run, run])[0]


def test_the_wall_time_of_a_card_says_that_it_leaves_out_start_up_and_report() -> None:
    card = make_cards(finished("a", 0.9, None, 1, wall_seconds=7.0))[-1]
    assert (card.label, card.value, card.sub) == ("wall time of the rounds", "7 s", "without start-up and report")
