"""The report is one file that stands alone, says what the run directory says, and leaves out what is absent."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_runs import write_run
from reports import remove_scripts

from fedray.core.errors import BadInput, FedrayError
from fedray.report import (
    clients,
    compare,
    curves,
    flights,
    jobs,
    predictions,
    random_walk,
    stacking,
)
from fedray.report import (
    pictures as style,
)
from fedray.report.page import SECTIONS, write_report
from fedray.report.read import ReadRun, read_run

DRAWS = [draw for _, draws in SECTIONS for draw, _ in draws]
OF_CLASSES = {
    predictions.figure_calibration,
    predictions.figure_confusion,
    predictions.figure_loss_plane,
    clients.figure_data,
    clients.figure_classes,
}
OF_CLASSES |= {predictions.figure_disagreement, clients.figure_weights, clients.figure_client_accuracy}
OF_WALKS = {random_walk.figure_graph, random_walk.figure_visits}
OF_NUMBERS = {
    predictions.figure_predictive,
    predictions.figure_pit,
    predictions.figure_coverage,
    predictions.figure_sharpness,
    clients.figure_client_rmse,
}

OF_RECORDED_CLIENTS = {clients.figure_tier_rounds}
OF_SETS = {clients.figure_conformal, predictions.figure_ood}
OF_FLIGHTS = {flights.figure_flights, flights.figure_staleness}
OF_STACKS = {stacking.figure_confusions, stacking.figure_folds, stacking.figure_meta}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    write_run(base / "classes", clients=20, rounds=12)
    write_run(base / "repeated", clients=20, rounds=12, replicates=5, lift=0.02)
    write_run(base / "numbers", regression=True, clients=10, rounds=12)
    write_run(base / "numbers5", regression=True, replicates=5, clients=10, rounds=12)
    return base


def page(out: Path, *runs: Path) -> str:
    write_report(list(runs), out)
    return out.read_text(encoding="utf-8")


def kept(folder: Path, name: str) -> str:
    """The page of one of the shared runs, written once."""
    out = folder / "reports" / f"{name}.html"
    return out.read_text(encoding="utf-8") if out.exists() else page(out, folder / name)


class Reader(HTMLParser):
    """Collects ids, addresses and the balance of tags."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "hr", "img"):
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["classes", "repeated", "numbers", "numbers5"])
def test_a_report_stands_alone(folder: Path, name: str) -> None:
    text = kept(folder, name)
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert all(link.startswith(("#", "data:image/png")) for link in reader.links)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", remove_scripts(text))) <= set(reader.ids)
    assert "@import" not in text
    assert len(text) < 1_000_000
    assert str(folder) not in text


@pytest.mark.parametrize("name", ["classes", "repeated", "numbers", "numbers5"])
def test_every_figure_is_there_or_its_data_is_not(folder: Path, name: str) -> None:
    run = read_run(folder / name)
    absent = OF_STACKS | OF_FLIGHTS | OF_SETS | OF_RECORDED_CLIENTS | (OF_CLASSES if "numbers" in name else OF_NUMBERS)
    with style.use_figure_style():
        drawn = {draw for draw in DRAWS if draw(run) is not None}
    assert drawn == set(DRAWS) - absent - OF_WALKS


def test_a_stack_shows_what_it_gained_and_who_speaks_against_a_class(folder: Path) -> None:
    run = read_run(folder / "classes")
    classes = len(run.pictures["confusion"])
    bases = {"stack_folds": np.array([[0.5, 0.25], [1.0, 0.75]]), "stack_bases": np.array(["0 (mlp)", "1 (cnn)"])}
    weights = np.concatenate([np.eye(classes), -np.eye(classes)], axis=1)
    run.pictures.update(bases, confusion_average=np.ones((classes, classes)), meta_weights=weights)
    with style.use_figure_style():
        drawn = [draw(run) for draw in (stacking.figure_confusions, stacking.figure_folds, stacking.figure_meta)]
    titles = [str(figure.get_label()) for figure in drawn if figure is not None]
    gain = 100 * (np.trace(run.pictures["confusion"]) / run.pictures["confusion"].sum() - 1 / classes)
    assert titles[0] == f"Stacking gains {gain:.1f} points on the plain average of its sub models"
    assert titles[1] == "Sub models reach 25 to 100 %"
    assert titles[2] == f"{classes} of {2 * classes} probabilities speak against their own class"


def test_cards_show_mean_and_deviation_over_replicates(folder: Path) -> None:
    metric = json.loads((folder / "repeated" / "summary.json").read_text())["metrics"]["accuracy"]
    text = kept(folder, "repeated")
    assert f"<b>{100 * metric['mean']:.1f} %</b>" in text
    assert f"\u00b1 {100 * metric['sd']:.1f} % (sd of 5)" in text
    assert "sd of" not in kept(folder, "classes")


def test_curves_are_means_over_replicates(folder: Path) -> None:
    run = read_run(folder / "repeated")
    curve = run.curve("accuracy")
    assert curve is not None
    assert curve.values.shape == (5, 13)
    assert run.worlds == 5
    np.testing.assert_allclose(curve.mean, curve.values.mean(axis=0))
    np.testing.assert_allclose(curve.sd, curve.values.std(axis=0, ddof=1))
    assert run.curve("no such column") is None


def test_an_interrupted_run_shows_what_it_has(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "stopped"
    shutil.copytree(folder / "classes", broken)
    for name in ("summary.json", "manifest.json", "pictures.npz"):
        (broken / name).unlink()
    shutil.rmtree(broken / "clients.parquet")
    text = page(tmp_path / "r.html", broken)
    assert "was interrupted" in text
    assert "The ensemble of 5 reaches" in text
    shutil.rmtree(broken / "rounds.parquet")
    assert "fashion_mnist" in page(tmp_path / "r.html", broken)
    assert "<table" in page(tmp_path / "two.html", broken, folder / "classes")


def test_text_of_the_user_is_escaped(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "a<script>b"
    shutil.copytree(folder / "classes", run)
    scenario = (run / "scenario.yaml").read_text() + "note: '</pre><script>alert(1)</script> $\\alpha'\n"
    (run / "scenario.yaml").write_text(scenario)
    with np.load(run / "pictures.npz") as file:
        pictures = {**file, "class_names": np.array(["<b>$x", "a & b", "$\\nothing$", *map(str, range(7))])}
    np.savez(run / "pictures.npz", **pictures)
    for others in ([], [folder / "repeated"]):
        whole = page(tmp_path / f"{len(others)}.html", run, *others)
        assert "<script>alert" not in whole and "<b>$x" not in whole
        assert "<script" not in remove_scripts(whole)


def test_several_runs_are_compared(folder: Path, tmp_path: Path) -> None:
    text = page(tmp_path / "r.html", folder / "classes", folder / "repeated", folder / "numbers")
    for piece in ("3 runs compared", "Differences, seed by seed", "RMSE, run by run", "local.lr"):
        assert piece in text
    assert "method.models" not in text  # the same in all runs
    runs = [read_run(folder / name) for name in ("classes", "repeated", "numbers")]
    head, rows = compare.make_comparison_table(runs)
    assert not any(row[head.index("accuracy")].best for row in rows)  # `classes` has one seed
    assert rows[0][head.index("RMSE")].text == "-"
    assert {len(row) for row in rows} == {len(head)}


def test_runs_of_the_same_name_are_shown_with_more_of_their_paths(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "repeated", tmp_path / "other" / "classes")
    text = page(tmp_path / "r.html", folder / "classes", tmp_path / "other" / "classes")
    assert "other/classes" in text
    assert f"{folder.name}/classes" in text


@pytest.mark.slow
def test_large_runs_stay_light(tmp_path: Path) -> None:
    run = write_run(tmp_path / "large", clients=3000, per_round=30, rounds=80, models=12, classes=100)
    assert len(page(tmp_path / "r.html", run)) < 1_000_000


@pytest.mark.parametrize("options", [{"models": 1}, {"rounds": 1}, {"clients": 1}, {"classes": 2}])
def test_small_runs_are_drawn(tmp_path: Path, options: dict[str, Any]) -> None:
    run = write_run(tmp_path / "small", **{"clients": 4, "rounds": 3} | options)
    assert "</html>" in page(tmp_path / "r.html", run)


def test_empty_numbers_are_gaps_not_errors(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "gaps"
    shutil.copytree(folder / "repeated", run)
    part = next((run / "rounds.parquet").iterdir())
    table = pq.read_table(part)
    gone = pa.array([None] * len(table), pa.float64())
    for name in ("nll", "accuracy"):
        table = table.set_column(table.column_names.index(name), name, gone)
    nothing = pa.array([None] * len(table), table["member_accuracy"].type)
    table = table.set_column(table.column_names.index("member_accuracy"), "member_accuracy", nothing)
    pq.write_table(table.append_column("crps", pa.nulls(len(table))), part)
    summary = json.loads((run / "summary.json").read_text())
    summary["metrics"]["nll"] = {"mean": None, "sd": None, "n": 5}
    (run / "summary.json").write_text(json.dumps(summary))
    assert "nan" not in re.sub(r"base64,[^\"]*", "", page(tmp_path / "r.html", run)).lower().replace("finance", "")


def test_several_inputs_are_not_drawn_as_a_curve_of_the_first(folder: Path) -> None:
    run = read_run(folder / "numbers")
    rng = np.random.default_rng(0)
    y = rng.normal(size=200)
    run.pictures["predictive"] = np.stack([rng.normal(size=200), y, y + 0.1, np.full(200, 0.3)], axis=1)
    with style.use_figure_style():
        figure = predictions.figure_predictive(run)
    assert figure is not None
    assert figure.axes[0].get_xlabel() == "target (its own units)"


def test_names_of_members_stay_inside_the_loss_plane(folder: Path) -> None:
    """A member at the right edge is named on its left."""
    run = read_run(folder / "classes")
    run.pictures["loss_plane_points"] = np.array([[-2.9, 0.0], [8.9, 0.0], [3.0, 6.0]])
    with style.use_figure_style():
        figure = predictions.figure_loss_plane(run)
        assert figure is not None
        figure.draw_without_rendering()
    inside = figure.axes[0].get_window_extent()
    assert [text.get_text() for text in figure.axes[0].texts] == ["model 0", "model 1", "model 2"]
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert inside.x0 <= box.x0 <= box.x1 <= inside.x1


def test_a_job_map_shows_every_model_of_a_client() -> None:
    row, x, model = np.array([0, 0, 1]), np.array([0, 0, 0]), np.array([2, 1, 0])
    image = jobs._paint_cells(row, x, model, faint=np.zeros(3, bool), shape=(2, 1), models=5)
    paint = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in style.pick_colors(5)])
    np.testing.assert_allclose(image[:, 0, :3], paint[[1, 2, 0, 0]])
    full = jobs._paint_cells(
        np.zeros(3, int), np.zeros(3, int), np.arange(3), faint=np.zeros(3, bool), shape=(1, 1), models=3
    )
    assert full.shape == (1, 1, 4)


def test_jobs_of_a_client_follow_each_other_unless_side_by_side() -> None:
    client, seconds = np.array([3, 3, 5, 5]), np.array([1.0, 2.0, 4.0, 1.0])
    start, busy = jobs._job_starts(client, seconds, np.array([False, False, True, True]))
    assert start.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert busy == {3: 3.0, 5: 4.0}


def test_only_jobs_that_counted_are_counted(folder: Path) -> None:
    """Nobody waits for a client that came late, and one that was away took no part."""
    run = read_run(folder / "classes")
    table = run.clients
    assert table is not None
    client = int(table["client"][-1].as_py())
    late = np.array(table["client"]) == client
    seconds = np.where(late, 1e6, table["sim_seconds"])
    status = np.where(late, "late", table["status"].to_pylist())
    for name, column in (("sim_seconds", pa.array(seconds)), ("status", pa.array(status.tolist()))):
        table = table.set_column(table.column_names.index(name), name, column)
    changed = replace(run, clients=table)
    with style.use_figure_style():
        waits, often = jobs.figure_gantt(changed), jobs.figure_participation(changed)
        before = jobs.figure_gantt(run)
    assert waits is not None and often is not None and before is not None
    assert waits.axes[0].get_xlim()[1] <= before.axes[0].get_xlim()[1]
    assert "rounds on average (0 to " in str(often.get_label())
    assert str(client) not in str(waits.get_label()).partition(";")[0].split()


def test_bytes_of_a_curve_are_those_of_the_rounds(folder: Path) -> None:
    run = read_run(folder / "classes")
    found = curves.read_curve_over(run, "bytes")
    assert found is not None
    assert found[0][-1] == run.summary["totals"]["up_bytes"] + run.summary["totals"]["down_bytes"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("scenario.yaml", b"a: [", "scenario.yaml, line 1: not valid YAML"),
        ("summary.json", b"{", "summary.json is damaged"),
        ("summary.json", b"[]", "summary.json is damaged"),
        ("pictures.npz", b"PK\x03\x04", "pictures.npz is damaged"),
        ("rounds.parquet/part-000000012.parquet", b"PAR1", "part-000000012.parquet is damaged"),
    ],
)
def test_damaged_files_are_named_in_one_line(
    folder: Path, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "classes", run)
    (run / name).write_bytes(content)
    with pytest.raises(FedrayError, match=message) as caught:
        write_report([run], tmp_path / "r.html")
    assert "\n" not in str(caught.value)


def test_what_is_no_run_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no scenario.yaml"):
        write_report([tmp_path], tmp_path / "r.html")
    with pytest.raises(BadInput, match="name at least one"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(BadInput, match="cannot be written"):
        write_report([folder / "classes"], tmp_path)


def test_the_same_run_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    assert page(tmp_path / "again.html", folder / "numbers") == kept(folder, "numbers")


def test_a_run_without_rows_has_no_figures() -> None:
    run = ReadRun("empty", {}, "", {}, {}, {}, None, None, {})
    assert all(draw(run) is None for draw in DRAWS)
