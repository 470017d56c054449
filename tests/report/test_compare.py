"""Comparisons of runs: nothing is called best, cheaper or longer than it is known to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import write_run

from fedray.core.scores import SCORES
from fedray.core.text import TOTALS, name_score
from fedray.experiments.live import describe_snapshot
from fedray.report import compare
from fedray.report.compare import compare_with_first
from fedray.report.page import make_cards, render_many
from fedray.report.read import ReadRun, read_run


def finished(name: str, mean: float, sd: float | None, n: int, metric: str = "accuracy", **totals: float) -> ReadRun:
    """A run that ended with a score, without curves."""
    summary: dict[str, Any] = {"metrics": {metric: {"mean": mean, "sd": sd, "n": n}}, "rounds": 5, "totals": totals}
    rounds = {key: list(range(n)) if key == "replicate" else [0] * n for key in ("replicate", "fold")}
    return ReadRun(name, {}, "", {}, summary, rounds, None, None, {})  # type: ignore[arg-type]  # what the pairs do not read is empty


def test_a_run_does_not_end_best_by_less_than_the_spread_of_its_replicates() -> None:
    near = [finished("a", 0.91, 0.02, 5), finished("b", 0.90, 0.02, 5), finished("c", 0.80, 0.02, 5)]
    assert compare.find_best(near, "accuracy") == [0, 1]
    head, rows = compare.make_comparison_table(near)
    assert [row[head.index("accuracy")].best for row in rows] == [True, True, False]
    far = [finished("a", 0.95, 0.02, 5), finished("b", 0.90, 0.02, 5)]
    assert compare.find_best(far, "accuracy") == [0]
    assert compare.find_best([finished("a", 2.0, 0.1, 4, "rmse"), finished("b", 1.0, 0.1, 4, "rmse")], "rmse") == [1]
    assert compare.find_best(far[:1], "accuracy") == []


def with_seeds(name: str, scores: list[float], seed: int = 0, metric: str = "accuracy") -> ReadRun:
    """A run whose replicates ended with these scores."""
    each, n = np.array(scores), len(scores)
    entry = {"mean": each.mean(), "sd": np.std(each[np.isfinite(each)], ddof=1), "n": n}
    summary: dict[str, Any] = {"metrics": {metric: entry}, "totals": {}}
    rounds = {"replicate": np.arange(n), "fold": np.zeros(n), "round": np.full(n, 5.0), metric: each}
    return ReadRun(name, {"seed": seed}, "", {}, summary, rounds, None, None, {})


def test_a_run_is_not_best_by_seeds_that_the_others_lack() -> None:
    """The first has two easy seeds more; on the three that both have, the second is better each time."""
    runs = [with_seeds("a", [0.70, 0.72, 0.71, 0.90, 0.92]), with_seeds("b", [0.72, 0.741, 0.729])]
    (pair,) = compare_with_first(runs, ["accuracy"])
    assert pair.difference is not None and pair.difference.low > 0
    assert compare.find_best(runs, "accuracy") == [1] and compare.find_best(runs[::-1], "accuracy") == [0]
    assert compare.find_best([*runs, with_seeds("c", [0.5, 0.52, 0.51])], "accuracy") == [1]


def test_a_deviation_of_zero_is_known() -> None:
    same, apart = with_seeds("a", [0.9] * 3), with_seeds("b", [0.1, 0.11, 0.1], seed=100)
    assert compare.find_best([same, apart], "accuracy") == [0]
    assert compare.find_best([same, with_seeds("c", [0.9] * 7, seed=100)], "accuracy") == []  # but for rounding


def test_infinite_widths_are_said_to_have_no_interval() -> None:
    widths = [1.9, 2.0, np.inf]
    runs = [with_seeds("a", [2.0, 2.1, 2.2], metric="conformal_width")]
    runs.append(with_seeds("b", widths, metric="conformal_width"))
    head, (row,) = compare.make_difference_table(runs)
    found = {name: cell.text for name, cell in zip(head, row, strict=True)}
    assert (found["its mean"], found["difference"], found["pairs"]) == ("inf", "+inf", "3 seeds")
    assert found["95 % interval"] == "none: infinite scores" and not any(cell.best for cell in row)
    (pair,) = compare_with_first(runs, ["conformal_width"])
    assert compare.tell_difference(pair).startswith("b - a: +inf (infinite scores: no interval)")


@pytest.mark.parametrize(("replicates", "lift", "title"), [
    (5, 0.0, "No difference beyond chance: long - short: "),
    (5, 0.03, "long - short: +3."),
    (1, 0.03, "(one pair: no interval)"),
])  # fmt: skip
def test_a_difference_is_told_with_its_interval_over_the_shared_seeds(
    tmp_path: Path, replicates: int, lift: float, title: str
) -> None:
    runs = [
        read_run(write_run(tmp_path / name, replicates=replicates, rounds=60, clients=8, pictures=False, lift=more))
        for name, more in (("short", 0.0), ("long", lift))
    ]
    (pair,) = compare_with_first(runs, ["accuracy"])
    said = compare.tell_difference(pair)
    assert title in said and ("5 seeds" in said) == (replicates == 5)
    figure = compare.figure_differences(runs)
    assert (figure is not None and figure.get_label() == said) if replicates > 1 else figure is None
    overlay = compare.overlay_curves(runs, "accuracy", "rounds")
    assert overlay is not None and "best" not in str(overlay.get_label())


def test_no_run_is_marked_best_where_none_is_known_to_be_worse(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / name, rounds=20, clients=8, pictures=False)) for name in ("a", "b")]
    runs.append(read_run(write_run(tmp_path / "c", rounds=20, clients=8, pictures=False, lift=0.1)))
    head, rows = compare.make_comparison_table(runs)
    assert not any(row[head.index("accuracy")].best for row in rows)  # a seed each says nothing about chance
    head, rows = compare.make_difference_table(runs)
    assert [row[head.index("pairs")].text for row in rows][:2] == ["1 seed", "1 seed"]
    assert not any(cell.best for row in rows for cell in row)


def test_a_total_is_that_of_one_seed(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "three", replicates=3, rounds=6, clients=8, pictures=False))
    curve = run.curve("sim_seconds")
    assert curve is not None and np.ptp(curve.values[:, -1]) > 0
    assert compare.find_cost(run, "sim_seconds") == pytest.approx(curve.values[:, -1].mean())
    assert compare.find_cost(run, "up_bytes") == run.summary["totals"]["up_bytes"] / 3


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
        "The runs differ in their rounds: short 6, long 12. They are compared by the last evaluation of each up to "
        "round 6.",
        "short and long share the seeds 7 only: short has 7, long has 7, 8, 9.",
        "short and long share one seed: nothing says how far chance goes.",
    ]
    assert compare.list_caveats(runs) == said
    page = render_many(runs)
    assert all(line in page for line in said)
    assert compare.list_caveats([runs[1], runs[1]]) == []


def test_a_score_has_one_name_in_the_live_view_the_report_and_the_comparison() -> None:
    assert len({name_score(name) for name in (*SCORES, *TOTALS)}) == len(SCORES) + len(TOTALS)
    run = finished("a", 0.9, None, 1, up_bytes=2e6, down_bytes=1e6, sim_seconds=1.0, wall_seconds=2.0)
    snapshot = {"round": 1, "rounds": 1, "metrics": {"accuracy": 0.9}, "up_bytes": 2e6, "wall_seconds": 2.0}
    assert f"{name_score('accuracy')} 0.9000  {name_score('up_bytes')} 2 MB" in describe_snapshot(snapshot)
    labels = [card.label for card in make_cards(run)]
    assert labels == [name_score(n) for n in ("accuracy", "up_bytes", "down_bytes", "sim_seconds", "wall_seconds")]
    assert name_score("accuracy") in compare.make_comparison_table([run, run])[0]


def test_the_wall_time_of_a_card_says_that_it_leaves_out_start_up_and_report() -> None:
    card = make_cards(finished("a", 0.9, None, 1, wall_seconds=7.0))[-1]
    assert (card.label, card.value, card.sub) == ("wall time of the rounds", "7 s", "without start-up and report")
