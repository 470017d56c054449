"""Runs at equal cost: what a round of a run costs does not decide the comparison."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.report.compare import compare_with_first, make_equal_cost_table
from fedray.report.page import render_many
from fedray.report.read import BYTES, SECONDS, UPLINK, ReadRun, find_end, read_run


def made(name: str, rounds: int, each: float, lift: float = 0.0) -> ReadRun:
    """A run of three seeds whose accuracy grows with what it has sent alone, plus a lift."""
    columns: dict[str, Any] = {"round": np.tile(np.arange(rounds + 1.0), 3), "fold": np.zeros(3 * rounds + 3)}
    columns["replicate"] = np.repeat([0.0, 1.0, 2.0], rounds + 1)
    columns[UPLINK] = columns["round"] * each
    columns |= {"down_bytes": columns[UPLINK], SECONDS: columns["round"] * 7.0}
    columns["accuracy"] = 1 - np.exp(-columns[UPLINK] / 20e6) + 0.01 * columns["replicate"] * (1 + 10 * lift) + lift
    return ReadRun(name, {"seed": 0}, "", {}, {}, columns, None, None, {})


@pytest.mark.parametrize("cost", [UPLINK, BYTES])
def test_a_run_that_sends_more_in_a_round_is_not_ahead_for_that(cost: str) -> None:
    runs = [made("sparse", 40, 1e6), made("dense", 40, 4e6)]
    (by_round,) = compare_with_first(runs, ["accuracy"])
    (pair,) = compare_with_first(runs, ["accuracy"], over=cost)
    assert by_round.difference is not None and by_round.difference.mean > 0.1
    assert pair.difference is not None and pair.difference.mean == pytest.approx(0.0, abs=1e-12)


def test_a_lift_is_seen_at_equal_cost_whatever_a_round_costs() -> None:
    runs = [made("sparse", 40, 1e6), made("dense", 60, 4e6, lift=0.05)]
    head, rows = make_equal_cost_table(runs)
    found = {row[0].text: row[head.index("difference")].text for row in rows}
    assert found["40 MB up"] == found["80 MB up and down"] == "+5.5 points"
    assert found["4.67 min of virtual time"] != "+5.5 points"
    page = render_many(runs)
    assert "At equal cost" in page and "40 MB up" in page


def test_a_cost_that_is_the_same_or_missing_is_left_out() -> None:
    same = [made("a", 40, 1e6), made("b", 40, 1e6)]
    assert make_equal_cost_table(same)[1] == []
    silent = replace(same[0], rounds={**same[0].rounds, UPLINK: np.zeros(123), "down_bytes": np.zeros(123)})
    assert make_equal_cost_table([silent, made("b", 40, 1e6)])[1] == []


def test_the_budget_of_a_run_is_what_its_cheapest_seed_cost() -> None:
    """So that each seed of each run is read behind work that it has done."""
    run = made("uneven", 10, 1e6)
    factor = np.repeat([2.0, 1.0, 3.0], 11)
    run = replace(run, rounds={**run.rounds, UPLINK: run.rounds[UPLINK] * factor})
    assert find_end(run, UPLINK) == 10e6


def test_the_seeds_of_real_runs_are_read_at_the_bytes_of_the_cheapest(tmp_path: Path) -> None:
    keys = scenario({"rounds": 6, "replicates": 2, "report": False})
    dense = fedray.run(keys, out=tmp_path / "dense")
    sparse = fedray.run(keys, compress={"kind": "topk", "ratio": 0.2}, out=tmp_path / "sparse")
    budget = find_end(read_run(sparse.path), UPLINK)
    frame = dense.metrics_dataframe
    each = [frame[frame["replicate"] == r].query("round > 0") for r in (0, 1)]
    line = np.mean([np.interp(budget, one["up_bytes"], one["accuracy"]) for one in each])
    found = fedray.compare([sparse, dense], at_equal="uplink")
    (pair,) = [one for one in found.pairs if one.metric == "accuracy"]
    assert pair.run_mean == pytest.approx(line, abs=1e-15)
    assert found.notes[0] == "Compared at equal uplink, 20.3 kB a seed."
    assert found.notes[2].endswith(" is read at 72 to 144 % (between two evaluations).")
    assert found.notes[0] in found._repr_html_()
    assert fedray.compare([sparse, dense]).pairs != found.pairs


def test_a_cost_that_cannot_act_is_refused(tmp_path: Path) -> None:
    keys = scenario({"rounds": 0, "report": False})
    runs = [fedray.run(keys, out=tmp_path / name) for name in "ab"]
    with pytest.raises(BadInput, match=re.escape("at_equal = 'mb': choose rounds, uplink, bytes, seconds")):
        fedray.compare(runs, at_equal="mb")
    with pytest.raises(BadInput, match="at_equal = uplink: a has no uplink to compare by: leave at_equal out"):
        fedray.compare(runs, at_equal="uplink")
