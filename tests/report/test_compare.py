"""Comparisons of runs: pairs of seeds at one budget, and nothing is called better than it is known to be."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import write_run
from numpy.typing import ArrayLike
from small import of_method, run_quietly, scenario

import fedray
from fedray.assembly.study import build_study
from fedray.methods import METHOD_SPECS
from fedray.report import compare, curves
from fedray.report.compare import compare_at_all_budgets, compare_with_first, find_best, list_caveats
from fedray.report.page import render_many
from fedray.report.read import BYTES, SECONDS, UPLINK, Best, ReadRun, find_end, find_headline, read_run, read_worlds
from fedray.scenario.loader import read_scenario, to_plain
from fedray.scenario.shipped import count_last_phase_rounds, find_last_phase_start


def made(
    name: str, every: Sequence[float], each: float = 1e6, scores: Any = None, *, lift: float = 0.0, pace: float = 10.0,
    **keys: Any,
) -> ReadRun:  # fmt: skip
    """A run of three seeds, evaluated at some rounds; the score is `1 - exp(-cost / 20e6)`, or one of the rounds.

    A round sends `each` bytes, and takes `pace` seconds a MB; a lift differs a little between the seeds.
    """
    rounds = np.tile(np.array(every, dtype=float), 3)
    columns: dict[str, Any] = {"round": rounds, "fold": np.zeros(len(rounds)), UPLINK: rounds * each}
    columns["replicate"] = np.repeat([0.0, 1.0, 2.0], len(every))
    columns |= {"down_bytes": columns[UPLINK], SECONDS: columns[UPLINK] * pace / 1e6}
    found = 1 - np.exp(-columns[UPLINK] / 20e6) if scores is None else scores(rounds)
    columns["accuracy"] = found + 0.01 * columns["replicate"] * (1 + 10 * lift) + lift
    return ReadRun(name, {"seed": 0, **keys}, "", {}, {}, columns, None, None, {})


def ended(name: str, scores: ArrayLike, seed: int = 0, metric: str = "accuracy", **totals: float) -> ReadRun:
    """A run whose replicates ended with these scores."""
    each = np.array(scores)
    n = len(each)
    sd = float(np.std(each[np.isfinite(each)], ddof=1)) if n > 1 else None
    summary = {"metrics": {metric: {"mean": each.mean(), "sd": sd, "n": n}}, "rounds": 5, "totals": totals}
    rounds = {"replicate": np.arange(n), "fold": np.zeros(n), "round": np.full(n, 5.0), metric: each}
    return ReadRun(name, {"seed": seed}, "", {}, summary, rounds, None, None, {})


def difference(runs: Sequence[ReadRun], **at: Any) -> float | None:
    """The mean difference of the second run from the first; None where they are not compared."""
    (pair, *_) = compare_with_first(runs, ["accuracy"], **at)
    return pair.difference.mean if pair.difference else None


def tabulate(runs: Sequence[ReadRun]) -> dict[tuple[str, str], dict[str, str]]:
    """The table of differences by its score and run, and where these are read."""
    head, rows = compare.make_difference_table(runs, compare_at_all_budgets(runs))
    texts = [list(map(str, row)) for row in rows]
    return {(row[0], row[1]): dict(zip(head, row, strict=True)) for row in texts}


def test_a_run_is_best_only_where_another_one_is_known_to_be_worse() -> None:
    spread = np.array([-0.02, 0.0, 0.02])
    near = [ended(name, mean + spread, 100 * i) for i, (name, mean) in enumerate(zip("abc", (0.91, 0.90, 0.80)))]
    assert find_best(near, "accuracy") == [0, 1] and find_best(near[:1], "accuracy") == []
    head, rows = compare.make_comparison_table(near)
    assert [isinstance(row[head.index("accuracy")], Best) for row in rows] == [True, True, False]
    errors = [ended("a", [2.0, 2.1], metric="rmse"), ended("b", [1.0, 1.2], metric="rmse")]
    assert find_best(errors, "rmse") == [1]
    alone = [ended(name, [score]) for name, score in zip("abc", (0.9, 0.5, 0.1))]
    assert find_best(alone, "accuracy") == []  # a seed each says nothing about chance
    same, apart = ended("a", [0.9] * 3), ended("b", [0.1, 0.11, 0.1], seed=100)
    assert find_best([same, apart], "accuracy") == [0]  # a deviation of zero is known
    assert find_best([same, ended("c", [0.9] * 7, seed=100)], "accuracy") == []  # but for rounding
    wide = [ended(name, [2, 2.1, last], metric="conformal_width") for name, last in (("a", 2.2), ("b", np.inf))]
    assert [row["95 % interval"] for row in tabulate(wide).values()] == ["none: infinite scores"]


def test_a_run_is_not_best_by_seeds_that_the_others_lack() -> None:
    """The first has two easy seeds more; on the three that both have, the second is better each time."""
    runs = [ended("a", [0.70, 0.72, 0.71, 0.90, 0.92]), ended("b", [0.72, 0.741, 0.729])]
    (pair,) = compare_with_first(runs, ["accuracy"])
    assert pair.difference is not None and pair.difference.low > 0
    assert find_best(runs, "accuracy") == [1] and find_best(runs[::-1], "accuracy") == [0]
    assert find_best([*runs, ended("c", [0.5, 0.52, 0.51])], "accuracy") == [1]


@pytest.mark.parametrize(("seeds", "lift", "title"), [
    (3, 0.0, "No difference beyond chance: long - short: "), (3, 0.03, "long - short: +3."),
    (1, 0.03, "(one pair: no interval)"),
])  # fmt: skip
def test_a_difference_is_told_with_its_interval_over_the_shared_seeds(seeds: int, lift: float, title: str) -> None:
    shift = np.array([0.01, -0.01, 0.001])
    runs = [ended(name, (np.array([0.8, 0.82, 0.85]) + more)[:seeds]) for name, more in (
        ("short", 0.0), ("long", 0.2 * shift + lift if lift else shift))]  # fmt: skip
    (pair,) = compare_with_first(runs, ["accuracy"])
    said = compare.title_difference(pair)
    assert title in said and ("3 seeds" in said) == (seeds == 3)
    figure = compare.figure_differences(runs)
    assert (figure is not None and figure.get_label() == said) if seeds > 1 else figure is None


def test_costs_are_those_of_one_seed(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "three", replicates=3, rounds=6, clients=8, pictures=False))
    curve = run.curve("sim_seconds")
    assert curve is not None and np.ptp(curve.values[:, -1]) > 0
    assert compare.find_cost(run, "sim_seconds") == pytest.approx(curve.values[:, -1].mean())
    assert compare.find_cost(run, "up_bytes") == run.summary["totals"]["up_bytes"] / 3
    head, rows = compare.make_cost_table([ended("one", [0.9], up_bytes=2e6), ended("x", [0.9] * 3, up_bytes=6e6)])
    assert [row[head.index("uplink")] for row in rows] == ["2 MB", "2 MB"]


def test_runs_of_different_rounds_and_seeds_are_not_compared_without_a_word() -> None:
    runs = [made("short", range(7)), replace(made("long", range(13)), scenario={"seed": 2})]
    assert list_caveats(runs) == [
        "The runs differ in their rounds: short 6, long 12. They are compared by the last evaluation of each up to "
        "round 6.",
        "short and long share the seeds 2 only: short has 0, 1, 2, long has 2, 3, 4.",
        "short and long share one seed: nothing says how far chance goes.",
    ]
    assert all(line in render_many(runs) for line in list_caveats(runs))
    assert list_caveats([runs[1], runs[1]]) == []
    overlay = compare.overlay_curves(runs, "accuracy", "rounds")
    assert overlay is not None and "best" not in str(overlay.get_label())


# Budgets: what a round of a run costs does not decide the comparison.


@pytest.mark.parametrize("cost", [UPLINK, BYTES, SECONDS])
def test_a_run_that_sends_more_in_a_round_is_not_ahead_for_that(cost: str) -> None:
    runs = [made("sparse", range(41), 1e6), made("dense", range(41), 4e6)]
    assert (difference(runs) or 0.0) > 0.1
    assert difference(runs, over=cost) == pytest.approx(0.0, abs=1e-12)


def test_a_lift_is_seen_at_equal_cost_whatever_a_round_costs() -> None:
    runs = [made("sparse", range(41), 1e6), made("dense", range(61), 4e6, lift=0.05, pace=1.0)]
    found = {at: row["difference"] for (score, at), row in tabulate(runs).items() if score == "accuracy, dense"}
    assert found.pop("40 MB up") == found.pop("80 MB up and down") == "+5.5 points"
    assert found.keys() == {"round 40", "4 min of virtual time"} and "+5.5 points" not in found.values()
    assert ">80 MB up and down<" in render_many(runs)
    assert [at for _, at in tabulate([made("a", range(41)), made("b", range(41))])] == ["round 40"]  # costs are equal


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
    assert pair.run_mean == pytest.approx(line, abs=1e-15) and pair.at == "20.3 kB up"
    assert found.notes[0] == "Compared at equal cost, 20.3 kB up a seed."
    assert pair.read[0] == "72 to 144 % (between two evaluations)" and pair.read[0] in found.notes[2]
    assert found.notes[0] in found._repr_html_() and "72 to 144 %" in found._repr_html_()


def test_a_budget_was_read_at_the_last_evaluation_inside_it() -> None:
    fedavg = made("fedavg", range(11))
    for every in (1, 2, 3):
        scaffold = made("scaffold", [0, *range(every, 11, every), 10], each=2e6)
        assert abs(difference([fedavg, scaffold], over=UPLINK) or 0.0) < 0.01
    scaffold = made("scaffold", [0, 10], each=2e6)
    assert difference([fedavg, scaffold], over=UPLINK) is None
    row = tabulate([fedavg, scaffold])["accuracy, scaffold", "10 MB up"]
    assert (row["difference"], row["it is read at"], row["fedavg is read at"]) == ("not compared", "-", "100 %")
    assert "scaffold has no evaluation of trained models" in list_caveats([fedavg, scaffold], UPLINK)[-1]
    seldom = made("scaffold", [0, 4, 8, 10], each=2e6)
    assert list_caveats([fedavg, seldom], UPLINK)[2] == "scaffold is read at 80 to 160 % (between two evaluations)."
    assert "nearly is read at 96 %." in list_caveats([fedavg, made("nearly", [0, 48, 150], each=0.2e6)], UPLINK)


# Runs without rounds: virtual time, not numbers of server steps.

STEPS: dict[str, Any] = {"participation": {"mode": "buffered"}}


def test_a_run_that_steps_more_often_is_not_ahead_for_that() -> None:
    """In rounds 40 steps last 400 s, without rounds 4: after 40 steps the one with rounds would be far ahead."""
    runs = [made("sync", range(41)), made("async", range(401), each=1e5, **STEPS)]
    assert difference(runs) == pytest.approx(0.0, abs=1e-9)
    by_round = [read_worlds(run, "accuracy", 40)[0, 0].value for run in runs]
    assert by_round[0] - by_round[1] > 0.5
    assert "equal virtual time, after 6.67 min" in list_caveats(runs)[0]


def test_steps_that_share_a_moment_are_read_in_their_order() -> None:
    """A server that takes two updates at 39 s has the model of the second one, be it the worse."""
    run = made("async", range(401), scores=lambda t: np.where(t == 400, 0.5, 0.9), each=1e5, pace=1.0, **STEPS)
    rounds = {**run.rounds, SECONDS: np.minimum(run.rounds[SECONDS], 39.0)}
    found = read_worlds(replace(run, rounds=rounds), "accuracy", 39.0, SECONDS)
    assert [each.value for each in found.values()] == pytest.approx([0.5, 0.51, 0.52])


# No method before its last phase, no untrained models.

FENS: dict[str, Any] = {"rounds": 1, "method": {"name": "fens", "aggregator": "neural", "meta_rounds": 100}}


def fens(every: Sequence[float], each: float = 1e6) -> ReadRun:
    """FENS: 0.119 as it is drawn, 0.825 after the clients trained alone, and its own score at its end."""
    return made("fens", every, each, lambda t: np.where(t == 0, 0.119, np.where(t >= 101, 0.918, 0.825)), **FENS)


@pytest.mark.parametrize("every", [[*range(102)], [0, 40, 80, 101], [0, 101]], ids=["1", "40", "end"])
@pytest.mark.parametrize("length", [20, 300])
def test_a_method_with_phases_was_read_before_its_last_phase(every: Sequence[float], length: int) -> None:
    fedavg = made("fedavg", range(length + 1), scores=lambda t: np.where(t >= min(length, 40), 0.8, 0.1))
    for runs in ([fedavg, fens(every)], [fens(every), fedavg]):
        assert difference(runs) == pytest.approx(0.118 if runs[0] is fedavg else -0.118)
        note = "fens trains in phases, which are no rounds of others, and is read at its end (round 101)."
        assert list_caveats(runs) == [note]
    figure = compare.figure_differences([fedavg, fens(every)])
    assert figure is not None and "+11.8 points" in str(figure.get_label())


def test_the_best_round_of_a_picture_was_one_of_an_early_phase() -> None:
    run = made("stack", range(9), scores=lambda t: np.where(t < 5, 0.9, 0.1 * t), rounds=4, method={"name": "stacking"})
    figure = curves.figure_rounds(run)
    assert figure is not None
    (mark,) = [line for line in figure.axes[0].lines if str(line.get_label()).startswith("best: ")]
    assert mark.get_label() == "best: 81.0 %, round 8"
    assert np.asarray(mark.get_xydata())[0] == pytest.approx([8.0, 0.81])


def test_a_phase_that_others_follow_is_not_read_at_equal_cost_either() -> None:
    dense, both = made("fedavg", range(41)), fens([0, 1, 50, 100, 101], each=0.5e6)
    for cost in (UPLINK, BYTES, SECONDS):
        assert difference([dense, both], over=cost) == pytest.approx(0.825 - (1 - np.exp(-2)))  # within its last phase
        short = made("fedavg", range(2), each=0.4e6)
        assert difference([short, both], over=cost) is None  # its last phase begins behind that
    assert "no evaluation of the last phase of its method near enough" in list_caveats([short, both], UPLINK)[-1]
    runs = [made("buffered", range(41), **STEPS), fens([0, 1, 26, 51, 76, 101], each=0.4e6)]
    assert [difference(runs, last=20.0 * i) is None for i in range(1, 21)] == [True] * 5 + [False] * 15


def test_a_run_that_ended_in_an_early_phase_has_no_score_of_its_method() -> None:
    fedavg, keys = made("fedavg", range(41)), {**FENS, "rounds": 30}
    early, late = (made("fens", range(n), **keys) for n in (21, 91))
    assert difference([fedavg, early]) is None and difference([fedavg, late]) is not None
    note = "fens has not begun the last phase of its method (round 20 of 130), and is not compared."
    assert list_caveats([fedavg, early]) == [note]
    assert list_caveats([fedavg, late])[0].endswith("is read at its end (round 90 of 130: it is not finished).")
    method = {"name": "fedpa", "burn_in": 50}
    fedpa = made("fedpa", range(61), scores=lambda t: np.where(t > 50, 0.9, 0.5), method=method)
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
        assert count_last_phase_rounds(keys) == length
        assert find_last_phase_start(keys) == (parts[-1].begins if length else 0)


def test_untrained_models_were_read_against_trained_ones() -> None:
    seldom, often, drawn = made("seldom", [0, 40, 80]), made("often", range(31)), made("drawn", [0])
    assert difference([often, seldom]) is None
    assert "seldom has no evaluation of trained models near enough" in list_caveats([often, seldom])[-1]
    pairs = compare_with_first([often, drawn, seldom, made("other", range(31))], ["accuracy"])
    assert [pair.run for pair in pairs if pair.difference] == ["other"]
    assert "drawn has not been trained (round 0), and is not compared." in list_caveats([often, drawn])
    assert difference([drawn, made("too", [0])]) == 0.0  # untrained models beside each other
    closed = made("closed", [0], scores=lambda t: 0.7 + t, rounds=0, method={"name": "bayesian_linear"})
    assert difference([often, closed]) == pytest.approx(0.7 - (1 - np.exp(-1.5)))  # trained without a round


# Clients that answer by themselves.


@pytest.fixture(scope="module")
def personal() -> dict[str, fedray.Run]:
    """FedPer, FedAvg with and without its clients' scores, and IFCA."""
    keys = scenario({"rounds": 1, "report": False, "replicates": 2})
    methods: dict[str, Any] = {"fedper": {}, "ifca": {"method": {"models": 2}}, "plain": {}}
    methods["fedavg"] = {"evaluate": {"personal": True}}
    return {
        name: fedray.run(scenario(keys, {"method": {"name": "fedavg" if name == "plain" else name}}, more))
        for name, more in methods.items()
    }


@pytest.mark.parametrize("name", ["fedper", "ifca"])
def test_personalized_methods_were_compared_by_an_answer_that_nobody_uses(
    name: str, personal: dict[str, fedray.Run]
) -> None:
    found = fedray.compare([personal["fedavg"], personal[name]])
    metric = "personal_accuracy"
    own, other = (personal[one].summary["metrics"][metric]["mean"] for one in (name, "fedavg"))
    assert found.pairs[0].metric == found.dataframe["metric"][0] == metric
    assert found.pairs[0].difference is not None and found.pairs[0].difference.mean == pytest.approx(own - other)
    line = f"Clients of {name} answer by themselves: personalized accuracy comes first, accuracy is of a common answer."
    assert found.notes == [line]
    assert "personalized" in str(found.plot().axes[0].get_ylabel())
    read = [read_run(personal[one].path, one) for one in ("fedavg", name)]
    shown = [f"personalized accuracy, {name}", f"accuracy of the common answer, {name}"]
    assert [score for score, _ in tabulate(read)][:2] == shown
    assert compare.make_comparison_table(read)[0][1:3] == [text.removesuffix(f", {name}") for text in shown]


def test_a_run_without_scores_of_its_clients_names_the_key_that_records_them(personal: dict[str, fedray.Run]) -> None:
    found = fedray.compare([personal["plain"], personal["fedper"]], names=["plain", "fedper"])
    assert found.pairs[0].metric == "accuracy"
    (note,) = found.notes
    assert "no personalized accuracy of plain (evaluate.personal=true records it" in note
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


# Other data, and other kinds of scores.

run_on = partial(
    run_quietly,
    {"rounds": 1, "clients": 5, "runtime": "inline", "report": False, "method": "fedavg", "local": {"epochs": 1}},
)


@pytest.fixture(scope="module")
def arrays() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(200, 6)).astype(np.float32), draw.integers(0, 3, 200)


def test_runs_on_other_data_were_compared_in_pairs_without_a_note(arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    run, same, digits = run_on((x, y)), run_on((x, y), local__lr=0.2), run_on("digits")
    other = run_on((x, np.random.default_rng(1).permutation(y)))
    assert not any("data" in note for note in fedray.compare([run, same]).notes)
    (note,) = (note for note in fedray.compare([run, digits], ["own", "usual"]).notes if "data" in note)
    assert note == "The runs differ in their data: own arrays, usual digits. Their scores cannot be compared."
    (note,) = (note for note in fedray.compare([run, other], ["one", "two"]).notes if "data" in note)
    assert note.startswith("The runs differ in their data, though both are called arrays (one and two: training ")
    assert "test labels" in note and note.endswith("Their scores cannot be compared.")
    notes = fedray.compare([run, run_on((x, y), data__hold_out=0.25)], ["one", "two"]).notes
    assert any("differ in data.hold_out (one 0.0, two 0.25): their pairs share seeds" in note for note in notes)
    fedbe = [run_on((x, y), method="fedbe", local__lr=rate) for rate in (0.1, 0.2)]
    assert not any("rows" in note for note in fedray.compare(fedbe).notes)
    assert any("method.server_data (fedavg not set, fedbe 0.1)" in n for n in fedray.compare([run, fedbe[0]]).notes)
    known = {"data": {"training inputs": "12"}}  # the same rows in another form
    keys = [{"data": {"name": name}} for name in ("arrays", "table")]
    forms = [ReadRun("", each, "", {}, {}, {}, None, None, {}, identity=known) for each in keys]
    assert compare.list_data_notes(forms) == []


def test_an_ensemble_and_one_model_were_compared_by_two_kinds_of_nll(arrays: tuple[Any, Any]) -> None:
    """One model's residual variance stands in its NLL; that of an ensemble left it out, and nothing said so."""
    rows = arrays[0], arrays[0] @ np.arange(6.0)
    ensemble = {"name": "fed_ensemble", "models": 2}
    one, several = run_on(rows), run_on(rows, method=ensemble)
    (note,) = fedray.compare([one, several]).notes[1:]
    assert "leave out the noise of the observations in fed_ensemble, and hold it in fedavg." in note
    for keys in ({"predict__noise": "residual"}, {"model": {"name": "mlp", "objective": "gaussian_nll"}}):
        other = run_on(rows, method=ensemble, **keys)
        assert not any("noise of" in note for note in fedray.compare([one, other]).notes)
