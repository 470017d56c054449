"""Pictures one by one: those of the report, in colours that need no page, for the names that people say."""

import re
from pathlib import Path

import pytest
from small import copy_run, run_command, scenario

import fedray
from fedray.core.errors import BadInput
from fedray.report.curves import BAND_NOTE
from fedray.report.page import list_draws
from fedray.report.read import ReadRun


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    keys = {"rounds": 2, "method": {"models": 2}, "replicates": 2, "evaluate": {"personal": True}}
    return fedray.run(scenario(keys), report=False, out=tmp_path_factory.mktemp("plots") / "run")


def test_the_curve_is_that_of_the_run(run: fedray.Run) -> None:
    drawn = run.plot("nll").axes[0].lines[0]
    rounds = run.metrics_dataframe.groupby("round")["nll"].mean()
    assert drawn.get_xdata().tolist() == rounds.index.tolist()  # type: ignore[union-attr]  # an array
    assert drawn.get_ydata().tolist() == pytest.approx(rounds.tolist())  # type: ignore[union-attr]  # an array


def test_the_default_picture_of_a_regression_was_its_accuracy(tmp_path: Path) -> None:
    keys = {"data": {"name": "sine"}, "clients": 2, "rounds": 1, "method": "fedavg", "runtime": "inline"}
    run = fedray.run(keys, evaluate__personal=True, out=tmp_path / "run")
    assert run.plot().get_suptitle() == run.plot("rmse").get_suptitle()
    assert "personalized RMSE" in [line.get_label() for line in run.plot().axes[0].lines]
    with pytest.raises(BadInput, match="'accuracy': there is no such picture"):
        run.plot("accuracy")
    assert all(run.plot(name).axes for name in ("pit", "crps"))
    done = run_command("plot", run.path, "--dpi", "40")
    assert (done.status, done.out.strip()) == (0, str(run.path / "rmse.png"))


def test_the_pictures_that_the_page_on_results_names_are_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "results_api.md").read_text()
    named = re.findall(r"`(\w+)`", page[page.index("A run of several rounds has") : page.index("## Runs compared")])
    known = list_draws(ReadRun("bare", {}, "", {}, {}, {}, None, None, {}))
    assert len(named) >= 6 and set(named) <= {*known, "rmse"}


def test_a_run_shows_itself_as_a_table_and_its_curve(run: fedray.Run, tmp_path: Path) -> None:
    html = run._repr_html_()
    mean = 100 * run.summary["metrics"]["accuracy"]["mean"]
    assert "<table" in html and "<svg" in html and f"{mean:.1f} " in html and "personalized accuracy" in html
    cut = fedray.load(copy_run(run, tmp_path / "<cut>", None))
    html = cut._repr_html_()
    assert "Not finished." in html and "fedray resume" in html and "<cut>" not in html and "after round" in html


def test_a_band_was_drawn_that_nothing_defined(run: fedray.Run) -> None:
    figures = [run.plot("accuracy"), run.plot("nll"), fedray.compare([run, run], ["a", "b"]).plot()]
    assert [figure.get_supxlabel() for figure in figures] == [BAND_NOTE] * 3
    assert BAND_NOTE in run._repr_html_()
    assert run.plot("confusion").get_supxlabel() == ""  # it has no band
