"""`fedray.compare`: paired differences over the seeds that runs share."""

from pathlib import Path
from typing import Any

import pytest
from small import scenario

import fedray
from fedray.cli.commands import main
from fedray.core.errors import BadInput
from fedray.report import compare
from fedray.report.read import read_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fedray.Run]:
    """An ensemble over seeds 0 to 2; FedAvg over seeds 1 to 3, a round shorter; another rate of the ensemble."""
    keys: dict[str, dict[str, Any]] = {
        "ensemble": {"replicates": 3},
        "fedavg": {"method": {"name": "fedavg"}, "seed": 1, "replicates": 3, "rounds": 2},
        "slow": {"replicates": 3, "local": {"lr": 0.01}},
    }
    folder, small = tmp_path_factory.mktemp("compare"), {"rounds": 3, "report": False}
    return {name: fedray.run(scenario(small, one), out=folder / name) for name, one in keys.items()}


def test_differences_are_those_of_the_shared_seeds_at_the_common_end(runs: dict[str, fedray.Run]) -> None:
    found = fedray.compare([runs["ensemble"], runs["fedavg"]])
    frame = found.dataframe.set_index("metric")
    first, second = (runs[name].metrics_dataframe.query("round == 2") for name in ("ensemble", "fedavg"))
    mine = first.set_index("replicate")["nll"].loc[[1, 2]].to_numpy()
    theirs = second.set_index("replicate")["nll"].loc[[0, 1]].to_numpy()
    assert frame.loc["nll", "difference"] == pytest.approx((theirs - mine).mean())
    assert frame.loc["nll", ["run_mean", "baseline_mean"]].tolist() == pytest.approx([theirs.mean(), mine.mean()])
    assert (frame.loc["nll", "n"], frame.loc["nll", "over"]) == (2, "seeds")
    assert frame.loc["nll", "low"] < frame.loc["nll", "difference"] < frame.loc["nll", "high"]


def test_the_command_prints_the_same_differences_as_text_and_in_latex(
    runs: dict[str, fedray.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    row = fedray.compare([runs["ensemble"], runs["fedavg"]], metrics="nll").dataframe.iloc[0]
    typed = ["compare", str(runs["ensemble"].path), str(runs["fedavg"].path), "--metrics", "nll"]
    main(typed)
    assert f"{row['difference']:.6f}" in capsys.readouterr().out
    main([*typed, "--latex"])
    cells = f"{row['difference']:+.4f} & [{row['low']:.4f}, {row['high']:.4f}] & {row['p']:.2g} & 2"
    assert rf"nll & fedavg & fed\_ensemble & {cells}" in capsys.readouterr().out
    one_seed = fedray.run(scenario({"rounds": 1}))
    assert " & - & - & 1 " in fedray.compare([runs["ensemble"], one_seed], metrics="nll").to_latex()


def test_any_score_can_be_drawn_also_by_the_command(
    runs: dict[str, fedray.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fedray.compare([runs["ensemble"], runs["slow"], runs["fedavg"]], names=["a", "b", "c"])
    for figure in (found.plot(), found.plot("accuracy", over="bytes"), found.plot("nll", over="seconds")):
        assert len(figure.axes[0].get_lines()) >= 3
    typed = ["compare", str(runs["ensemble"].path), str(runs["fedavg"].path), "--metrics", "nll", "--plot"]
    main([*typed, str(tmp_path / "a" / "nll.svg")])
    drawn = (tmp_path / "a" / "nll.svg").read_text()
    assert "<svg" in drawn and "nll" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*typed, str(tmp_path / "nll.gif")])
    assert "--plot" in (said := capsys.readouterr().err) and "give a name that ends so" in said


def test_runs_are_named_by_what_tells_them_apart_or_as_one_says(runs: dict[str, fedray.Run]) -> None:
    by_key = fedray.compare([runs["ensemble"], runs["slow"]])
    assert (by_key.pairs[0].baseline, by_key.pairs[0].run) == ("local.lr=0.05", "local.lr=0.01")
    named = fedray.compare([str(runs["ensemble"].path), runs["slow"].path], names=["a", "b"])
    assert (named.pairs[0].baseline, named.pairs[0].run) == ("a", "b")
    assert [pair._replace(run="", baseline="") for pair in named.pairs] == [
        pair._replace(run="", baseline="") for pair in by_key.pairs
    ]
    same = fedray.compare([runs["slow"], runs["slow"]])
    assert same.pairs[0].run == "slow (2)" and same.pairs[0].difference is not None
    assert same.pairs[0].difference[:3] == (0.0, 0.0, 0.0)


def test_own_metrics_of_all_runs_were_not_compared() -> None:
    def minority(scored: Any) -> float:
        return float((scored.prediction.argmax(1)[scored.targets == 2] == 2).mean())

    def doubt(scored: Any) -> float:
        return float(1 - scored.prediction.max(1).mean())

    keys = scenario({"rounds": 1, "report": False})
    runs = [
        fedray.run(keys, method=method, metrics=metrics)
        for method, metrics in (("fedavg", [minority, doubt]), ("fedprox", [minority]))
    ]
    found = fedray.compare(runs)
    (row,) = found.dataframe.query("metric == 'minority'").to_dict("records")
    assert row["baseline_mean"] == runs[0].metrics["minority"] and row["run_mean"] == runs[1].metrics["minority"]
    assert "doubt" not in set(found.dataframe["metric"])  # the second run has none
    with pytest.raises(BadInput, match=r"choose one of .*, minority"):
        found.plot("meen")
    read = [read_run(run.path) for run in runs]
    head = compare.make_comparison_table(read)[0]
    assert "minority" in head and "doubt" not in head
    assert "minority" in {pair.metric for pair in compare.compare_at_all_budgets(read)}
    assert "minority" in runs[0]._repr_html_()


def test_scores_are_chosen_by_name(runs: dict[str, fedray.Run]) -> None:
    pair = [runs["ensemble"], runs["fedavg"]]
    usual = {one.metric: one for one in fedray.compare(pair).pairs}
    assert fedray.compare(pair, metrics="nll").pairs == [usual["nll"]]
    found = fedray.compare(pair, metrics=["ece", "accuracy"]).pairs
    assert [one.metric for one in found] == ["ece", "accuracy"]
    assert found[1] == usual["accuracy"]
    keys = scenario({"rounds": 1, "report": False, "evaluate": {"ood": "noise"}})
    noise = [fedray.run(keys, method__models=k) for k in (1, 2)]
    assert "ood_auroc" in {one.metric for one in fedray.compare(noise).pairs}
    other = fedray.compare([noise[0], fedray.run(keys, evaluate__ood="digits")])
    assert not any("ood" in one.metric for one in other.pairs) and "evaluate.ood (noise, digits)" in str(other.notes)
