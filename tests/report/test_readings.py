"""Where runs are read: no method before its last phase, no untrained models, and no answer that nobody uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from small import of_method, scenario

import fedray
from fedray.assembly.study import build_study
from fedray.experiments.table import format_markdown
from fedray.methods import METHOD_SPECS
from fedray.metrics.paired import read_at_budget
from fedray.report import compare, curves
from fedray.report.compare import (
    compare_moments,
    compare_with_first,
    list_caveats,
    make_comparison_table,
    make_equal_cost_table,
)
from fedray.report.page import render_many
from fedray.report.read import BYTES, SECONDS, UPLINK, ReadRun, find_headline, read_run
from fedray.scenario.loader import read_scenario, to_plain
from fedray.scenario.reading import count_last_phase, find_last_phase


def made(name: str, every: Sequence[float], each: float = 1e6, scores: Any = None, **keys: Any) -> ReadRun:
    """A run of three seeds, evaluated at some rounds; the score is `1 - exp(-cost / 20e6)`, or one of the rounds."""
    rounds = np.tile(np.array(every, dtype=float), 3)
    columns: dict[str, Any] = {"round": rounds, "fold": np.zeros(len(rounds)), UPLINK: rounds * each}
    columns["replicate"] = np.repeat([0.0, 1.0, 2.0], len(every))
    columns |= {"down_bytes": columns[UPLINK], SECONDS: columns[UPLINK] / 1e5}
    found = 1 - np.exp(-columns[UPLINK] / 20e6) if scores is None else scores(rounds)
    columns["accuracy"] = found + 0.01 * columns["replicate"]
    return ReadRun(name, {"seed": 0, **keys}, "", {}, {}, columns, None, None, {})


FENS: dict[str, Any] = {"rounds": 1, "method": {"name": "fens", "aggregator": "neural", "meta_rounds": 100}}


def fens(every: Sequence[float], each: float = 1e6, ends: float = 0.918) -> ReadRun:
    """FENS: 0.119 as it is drawn, 0.825 after the clients trained alone, and its own score at its end."""
    return made("fens", every, each, lambda t: np.where(t == 0, 0.119, np.where(t >= 101, ends, 0.825)), **FENS)


def difference(runs: Sequence[ReadRun], metric: str = "accuracy", **at: Any) -> float | None:
    """The mean difference of the second run from the first; None where they are not compared."""
    pairs = compare_with_first(runs, [metric], **at)
    return pairs[0].difference.mean if pairs and pairs[0].difference else None


@pytest.mark.parametrize("every", [[*range(102)], [0, 40, 80, 101], [0, 101]], ids=["1", "40", "end"])
@pytest.mark.parametrize("length", [20, 40, 300])
def test_a_method_with_phases_was_read_before_its_last_phase(every: Sequence[float], length: int) -> None:
    """FENS with 0.918 at its end was shown as 0.825, or as it was drawn, beside a FedAvg of 40 rounds."""
    fedavg = made("fedavg", range(length + 1), scores=lambda t: np.where(t >= min(length, 40), 0.8, 0.1))
    for runs in ([fedavg, fens(every)], [fens(every), fedavg]):
        assert difference(runs) == pytest.approx(0.118 if runs[0] is fedavg else -0.118)
        note = "fens trains in phases, which are no rounds of others, and is read at its end (round 101)."
        assert list_caveats(runs) == [note] and note in render_many(runs)
    figure = compare.figure_differences([fedavg, fens(every)])
    assert figure is not None and "+11.8 points" in str(figure.get_label())


def test_the_best_round_of_a_picture_was_one_of_an_early_phase() -> None:
    run = made("stack", range(9), scores=lambda t: np.where(t < 5, 0.9, 0.1 * t), rounds=4, method={"name": "stacking"})
    figure = curves.figure_rounds(run)
    assert figure is not None
    (mark,) = [line for line in figure.axes[0].lines if str(line.get_label()).startswith("best: ")]
    assert mark.get_label() == "best: 81.0 %, round 8"


def test_a_phase_that_others_follow_is_not_read_at_equal_cost_either() -> None:
    dense, both = made("fedavg", range(41), each=1e6), fens([0, 1, 50, 100, 101], each=0.5e6)
    for cost in (UPLINK, BYTES, SECONDS):
        assert difference([dense, both], over=cost) == pytest.approx(0.825 - (1 - np.exp(-2)))  # within its last phase
        short = made("fedavg", range(2), each=0.4e6)
        assert difference([short, both], over=cost) is None  # its last phase begins behind that
    note = (
        "fens has no evaluation of the last phase of its method near enough, and no score there: lower evaluate.every."
    )
    assert list_caveats([short, both], UPLINK)[-1] == note
    waits = made("buffered", range(41), participation={"mode": "buffered"})
    both = fens([0, 1, 26, 51, 76, 101], each=0.4e6)
    assert [len(pairs) for _, pairs in compare_moments([waits, both], "accuracy", 20)] == [0] * 5 + [1] * 15


def test_a_run_that_ended_in_an_early_phase_has_no_score_of_its_method() -> None:
    fedavg, keys = made("fedavg", range(41)), {**FENS, "rounds": 30}
    early, late = (made("fens", range(n), **keys) for n in (21, 91))
    assert difference([fedavg, early]) is None and difference([fedavg, late]) is not None
    assert list_caveats([fedavg, early]) == [
        "fens has not begun the last phase of its method (round 20 of 130), and is not compared."
    ]
    assert list_caveats([fedavg, late])[0].endswith("is read at its end (round 90 of 130: it is not finished).")
    fedpa = made(
        "fedpa", range(61), scores=lambda t: np.where(t > 50, 0.9, 0.5), method={"name": "fedpa", "burn_in": 50}
    )
    assert difference([fedavg, fedpa]) is None  # by round 40 its clients have not sampled once
    assert difference([made("fedavg", range(56)), fedpa]) == pytest.approx(0.9 - (1 - np.exp(-55 / 20)))


@pytest.mark.parametrize("name", [name for name, spec in METHOD_SPECS.items() if spec.parts])
def test_where_the_last_phase_begins_is_said_by_the_scenario_as_by_the_study(name: str) -> None:
    for more in ({}, {"aggregator": "mean"}, {"meta": "average"}, {"beta": 0.5}, {"meta_rounds": 9}):
        if not more.keys() <= METHOD_SPECS[name].options.keys():
            continue
        given = read_scenario(of_method(name, {"method": more}), explicit=False)
        parts, keys = build_study(given).parts, to_plain(given)
        length = parts[-1].ends - parts[-1].begins if len(parts) > 1 else 0
        assert count_last_phase(keys) == length
        assert find_last_phase(keys) == (parts[-1].begins if length else 0)


def test_untrained_models_were_read_against_trained_ones() -> None:
    """A run of few rounds pulled all others to their round 0, and so did one without any."""
    seldom, often = made("seldom", [0, 40, 80]), made("often", range(31))
    assert difference([often, seldom]) is None
    assert "seldom has no evaluation of trained models near enough" in list_caveats([often, seldom])[-1]
    drawn = made("drawn", [0])
    assert compare_with_first([often, drawn, seldom, made("other", range(31))], ["accuracy"])[0].run == "other"
    assert "drawn has not been trained (round 0), and is not compared." in list_caveats([often, drawn])
    assert difference([drawn, made("too", [0])]) == 0.0  # untrained models beside each other
    closed = made("closed", [0], scores=lambda t: 0.7 + t, rounds=0, method={"name": "bayesian_linear"})
    assert difference([often, closed]) == pytest.approx(0.7 - (1 - np.exp(-1.5)))  # trained without a round


def test_a_budget_was_read_at_the_last_evaluation_inside_it() -> None:
    """FedAvg against SCAFFOLD at equal uplink was -0.847 where SCAFFOLD was evaluated after its tenth round first."""
    fedavg = made("fedavg", range(11), each=1e6)
    for every in (1, 2, 3):
        scaffold = made("scaffold", [0, *range(every, 11, every), 10], each=2e6)
        assert abs(difference([fedavg, scaffold], over=UPLINK) or 0.0) < 0.01
    scaffold = made("scaffold", [0, 10], each=2e6)
    assert difference([fedavg, scaffold], over=UPLINK) is None
    head, (up, *_) = make_equal_cost_table([fedavg, scaffold])
    said = dict(zip(head, (cell.text for cell in up), strict=True))
    assert (said["difference"], said["it is read at"], said["fedavg is read at"]) == ("not compared", "-", "100 %")
    assert "scaffold has no evaluation of trained models" in list_caveats([fedavg, scaffold], UPLINK)[-1]


def test_every_reading_says_how_much_of_the_budget_it_used() -> None:
    fedavg, scaffold = made("fedavg", range(11)), made("scaffold", [0, 4, 8, 10], each=2e6)
    assert list_caveats([fedavg, scaffold], UPLINK) == [
        "Compared at equal uplink, 10 MB a seed.",
        "fedavg is read at 100 %.",
        "scaffold is read at 80 to 160 % (between two evaluations).",
    ]
    nearly = made("nearly", [0, 48, 150], each=0.2e6)
    assert "nearly is read at 96 %." in list_caveats([fedavg, nearly], UPLINK)
    assert read_at_budget([8.9, 100.0], [0.5, 0.9], 10.0) is None  # 89 % of it, and nothing near behind


@pytest.fixture(scope="module")
def personal() -> dict[str, fedray.Run]:
    """FedPer, FedAvg with and without its clients' scores, and IFCA."""
    keys = scenario({"rounds": 2, "report": False, "replicates": 2})
    methods: dict[str, Any] = {
        "fedper": {},
        "ifca": {"method": {"models": 2}},
        "fedavg": {"evaluate": {"personal": True}},
        "plain": {},
    }
    return {
        name: fedray.run(scenario(keys, {"method": {"name": "fedavg" if name == "plain" else name}}, more))
        for name, more in methods.items()
    }


@pytest.mark.parametrize("name", ["fedper", "ifca"])
def test_personalized_methods_were_compared_by_an_answer_that_nobody_uses(
    name: str, personal: dict[str, fedray.Run]
) -> None:
    """FedPer was 62.6 points behind FedAvg, though its clients' own models had 0.991 against 0.861."""
    found = fedray.compare([personal["fedavg"], personal[name]])
    metric = "personal_accuracy"
    own, other = (personal[one].summary["metrics"][metric]["mean"] for one in (name, "fedavg"))
    assert found.pairs[0].metric == found.dataframe["metric"][0] == metric
    assert found.pairs[0].difference is not None and found.pairs[0].difference.mean == pytest.approx(own - other)
    line = f"Clients of {name} answer by themselves: personalized accuracy comes first, accuracy is of a common answer."
    assert found.notes == [line]
    assert "personalized" in str(found.plot().axes[0].get_ylabel())
    read = [read_run(personal[one].path) for one in ("fedavg", name)]
    head, rows = compare.make_difference_table(read)
    assert [row[0].text for row in rows][:2] == ["personalized accuracy", "accuracy of the common answer"]
    assert make_comparison_table(read)[0][1:3] == ["personalized accuracy", "accuracy of the common answer"]
    assert "personalized accuracy over the rounds" in render_many(read).lower() and head[0] == "score"


def test_a_run_without_scores_of_its_clients_names_the_key_that_records_them(personal: dict[str, fedray.Run]) -> None:
    found = fedray.compare([personal["plain"], personal["fedper"]], names=["plain", "fedper"])
    assert found.pairs[0].metric == "accuracy"
    assert found.notes == [
        "Clients of fedper answer by themselves, but there is no personalized accuracy of plain (evaluate.personal=true"
        " records it; a finished run is not measured again). So accuracy is compared, which is of a common answer that"
        " known clients of fedper do not use."
    ]
    read = [read_run(personal[one].path) for one in ("plain", "fedper")]
    assert "accuracy of the common answer" in {row[0].text for row in compare.make_difference_table(read)[1]}
    plain = [personal["plain"], personal["fedavg"]]
    assert fedray.compare(plain).notes == [] and fedray.compare(plain).pairs[0].metric == "accuracy"


@pytest.mark.parametrize("keys", [
    {"method": {"name": "fedem"}},
    {"method": {"name": "fedavg"}, "local": {"private": ["norm"]}},
    {"method": {"name": "fed_ensemble"}, "predict": {"gamma": 0.1}},
    {"method": {"object": "mine"}},
], ids=str)  # fmt: skip
def test_whose_clients_answer_by_themselves_is_known_for_every_kind_of_answer(keys: dict[str, Any]) -> None:
    runs = [made("one", range(3)), made("own", range(3), **keys)]
    assert find_headline(runs) == "accuracy"
    for run in runs:
        run.rounds["personal_accuracy"] = run.rounds["accuracy"]
    runs[0].scenario["evaluate"] = {"personal": True}
    assert find_headline(runs) == "personal_accuracy" and find_headline(runs[:1] * 2) == "accuracy"


def test_a_table_shows_the_scores_of_the_clients_own_answers_first() -> None:
    def row(cell: str, metric: str, apart: bool) -> dict[str, Any]:
        shared = {"n": 1, "sd": None, "published": None, "rounds": 2, "up_bytes": 1e6, "down_bytes": 1e6}
        return {"cell": cell, "metric": metric, "mean": 0.5, "apart": apart, **shared}

    rows = [row(cell, name, cell == "per") for cell in ("per", "avg") for name in ("accuracy", "personal_accuracy")]
    text = format_markdown(rows, ["per", "avg"])
    assert text.startswith("| cell | personal_accuracy | accuracy |")
    line = "Clients of per answer by themselves: `personal_accuracy` is theirs, and `accuracy` that of a common answer."
    assert text.endswith(f"\n{line}\n")
    text = format_markdown(rows[:3], ["per", "avg"])
    assert text.startswith("| cell | accuracy |")
    assert text.endswith(f"{line} Without it: avg (with evaluate.personal=true a run records it).\n")
