"""Each picture of a run shows the numbers that were measured, names those that matter, and is left out without any."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fake_runs import write_run
from numpy.typing import NDArray
from small import scenario

import fedray
from fedray.metrics.classification import ANOMALY_Z, calibration
from fedray.report import clients, curves, pictures
from fedray.report.page import SECTIONS
from fedray.report.read import ReadRun, read_run

DRAWS = [draw for draws in SECTIONS.values() for draw in draws]
OF_CLASSES = {clients.figure_calibration, clients.figure_confusion, clients.figure_loss_plane}
OF_CLASSES |= {clients.figure_disagreement, clients.figure_data, clients.figure_classes, clients.figure_weights}
OF_NUMBERS = {clients.figure_predictive, clients.figure_pit, clients.figure_coverage}
OF_OTHERS = {clients.figure_graph, clients.figure_visits, clients.figure_tier_rounds, clients.figure_conformal}
OF_OTHERS |= {clients.figure_ood, curves.figure_flights, curves.figure_staleness}
OF_OTHERS |= {clients.figure_confusions, clients.figure_folds, clients.figure_meta}


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    with pictures.use_figure_style():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    write_run(base / "classes", clients=20, rounds=12)
    write_run(base / "numbers", regression=True, clients=10, rounds=12)
    return base


@pytest.fixture
def classes(folder: Path) -> ReadRun:
    return read_run(folder / "classes")


def bare_run(**arrays: NDArray[Any]) -> ReadRun:
    return ReadRun("bare", {}, "", {}, {}, {}, None, None, arrays)


def set_columns(run: ReadRun, **columns: Any) -> ReadRun:
    """The run with other columns of its jobs."""
    table = run.clients
    assert table is not None
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return replace(run, clients=table)


@pytest.mark.parametrize(("name", "absent"), [("classes", OF_NUMBERS), ("numbers", OF_CLASSES)])
def test_every_figure_is_there_or_its_data_is_not(folder: Path, name: str, absent: set[Any]) -> None:
    run = read_run(folder / name)
    assert {draw for draw in DRAWS if draw(run) is not None} == set(DRAWS) - absent - OF_OTHERS
    assert all(draw(bare_run()) is None for draw in DRAWS)


def test_pictures_with_nothing_to_compare_are_left_out(tmp_path: Path) -> None:
    assert clients.figure_data(bare_run(label_counts=np.full((4, 3), 5))) is None
    assert clients.figure_weights(bare_run(alpha=np.full((4, 3), 1 / 3))) is None
    assert clients.figure_clients(bare_run(client_accuracy=np.full(4, 0.5))) is None
    assert clients.figure_drift(bare_run(client_scores=np.full(4, np.nan))) is None
    y = np.random.default_rng(0).normal(size=401)  # the mean is no curve of the first of several inputs
    figure = clients.figure_predictive(bare_run(predictive=np.stack([y[::-1], y, y + 0.1, np.full(401, 0.3)], axis=1)))
    assert figure is not None and figure.axes[0].get_xlabel() == "target (its own units)"
    assert str(figure.get_label()).endswith(" (400 of 401 drawn)")
    run = read_run(write_run(tmp_path / "run", clients=6, models=1, rounds=4))
    n = len(run.clients or ())
    same = set_columns(replace(run, pictures={}), tier=["all"] * n, status=["ok"] * n, sim_seconds=[1.0] * n)
    assert not any(draw(same) for draw in (curves.figure_assignment, curves.figure_traffic, curves.figure_gantt))


def test_a_stack_shows_what_it_gained_and_who_speaks_against_a_class(classes: ReadRun) -> None:
    n = len(classes.pictures["confusion"])
    bases = {"stack_folds": np.array([[0.5, 0.25], [1.0, 0.75]]), "stack_bases": np.array(["0 (mlp)", "1 (cnn)"])}
    weights = np.concatenate([np.eye(n), -np.eye(n)], axis=1)
    classes.pictures.update(bases, confusion_average=np.ones((n, n)), meta_weights=weights)
    drawn = [draw(classes) for draw in (clients.figure_confusions, clients.figure_folds, clients.figure_meta)]
    gain = 100 * (np.trace(classes.pictures["confusion"]) / classes.pictures["confusion"].sum() - 1 / n)
    assert [str(figure.get_label()) for figure in drawn if figure is not None] == [
        f"Stacking gains {gain:.1f} points on the plain average of its sub models",
        "Sub models reach 25 to 100 %",
        f"{n} of {2 * n} probabilities speak against their own class",
    ]
    both, _, (meta,) = (pictures.read_panels(figure) for figure in drawn if figure is not None)
    assert [one["title"].partition(",")[0] for one in both] == ["plain average", "stack"]
    assert both[0]["traces"][0]["percent"] and meta["x"]["names"][n + 1] == "class trouser by 1 (cnn)"


def test_bytes_of_a_curve_are_those_of_the_rounds(classes: ReadRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST_MEMBER_LINES", 3)
    figure = curves.figure_rounds(classes)
    assert figure is not None and str(figure.get_label()).endswith(" (3 of 5 members drawn)")
    found, totals = curves.read_curve_over(classes, "bytes"), classes.summary["totals"]
    assert found is not None and found[0][-1] == totals["up_bytes"] + totals["down_bytes"]


def test_a_confidence_between_two_bins_was_drawn_in_the_next_one() -> None:
    """Three of five members are sure: a confidence of 0.6, the upper end of the ninth of fifteen bins."""
    found = calibration(np.array([[0.6, 0.4], [0.4, 0.6], [0.8, 0.2]]), [0, 0, 0])
    table = np.stack([found.confidence, found.accuracy, found.samples], axis=1)
    figure = clients.figure_calibration(bare_run(calibration=table))
    assert figure is not None
    (bars,) = figure.axes[1].patches
    left = np.asarray(bars.get_path().vertices)[::5, 0]
    assert np.floor(15 * left).tolist() == np.flatnonzero(found.samples).tolist() == [8, 11]
    assert np.allclose(15 * left % 1, 0.08)


def test_a_job_map_shows_every_model_of_a_client() -> None:
    row, x, model = np.array([0, 0, 1]), np.array([0, 0, 0]), np.array([2, 1, 0])
    image = curves._paint_cells(row, x, model, faint=np.zeros(3, bool), shape=(2, 1), models=5)
    paint = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in pictures.pick_colors(5)])
    np.testing.assert_allclose(image[:, 0, :3], paint[[1, 2, 0, 0]])


def test_jobs_of_a_client_follow_each_other_unless_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST_LANES", 1)  # and one for the client that the title names
    columns = {"client": [3, 3, 5, 5], "model": [0, 1, 0, 1], "sim_seconds": [1.0, 2.0, 4.0, 1.0]}
    columns |= {"tier": ["slow", "slow", "wide", "wide"], "status": ["ok"] * 4, "round": [1] * 4}
    columns |= {"replicate": [0] * 4, "fold": [0] * 4}
    keys = {"clients": {"tiers": {"slow": {}, "wide": {"side_by_side": True}}}, "participation": {"deadline": 9.0}}
    run = ReadRun("run", keys, "", {}, {}, {}, None, pa.table(columns), {})
    figure = curves.figure_gantt(run)
    assert figure is not None and "waits 4 s for client 5 (wide)" in str(figure.get_label())
    bars = [np.asarray(patch.get_path().vertices).reshape(-1, 5, 2) for patch in figure.axes[0].patches]
    assert [each[:, 0, 0].tolist() for each in bars] == [[0.0, 0.0], [1.0, 0.0]]  # starts, model by model
    assert [each[:, 2, 0].tolist() for each in bars] == [[1.0, 4.0], [3.0, 1.0]]  # ends
    assert np.allclose([each[:, 2, 1] - each[:, 0, 1] for each in bars], [[0.8, 0.4]] * 2)  # heights
    assert all(trace["lying"] for trace in pictures.read_panels(figure)[0]["traces"])
    missed = curves.figure_gantt(set_columns(run, status=["dropped", *["ok"] * 3]))
    assert missed is not None and str(missed.get_label()).startswith("Round 1 lasts until the deadline, 9 s; half")


def test_nobody_waits_for_a_client_that_came_late(classes: ReadRun) -> None:
    table = classes.clients
    assert table is not None
    client = int(table["client"][-1].as_py())
    late = np.array(table["client"]) == client
    status = np.where(late, "late", table["status"].to_pylist()).tolist()
    changed = set_columns(classes, sim_seconds=np.where(late, 1e6, table["sim_seconds"]), status=status)
    waits, before = curves.figure_gantt(changed), curves.figure_gantt(classes)
    assert waits is not None and before is not None and waits.axes[0].get_xlim()[1] <= before.axes[0].get_xlim()[1]
    assert str(client) not in str(waits.get_label()).partition(";")[0].split()


def test_the_picture_of_who_trains_which_is_sorted_by_cluster(tmp_path: Path) -> None:
    keys = scenario({"method": {"name": "ifca", "models": 2}, "rounds": 1, "data": {"partition": None}})
    done = fedray.run(keys, data__partition={"name": "iid", "rotation": 2}, out=tmp_path / "run")
    true, figure = done.study.shards.clusters(0), curves.figure_assignment(read_run(done.path))
    assert true is not None and figure is not None
    rows = [int(label.get_text()) for label in figure.axes[0].get_yticklabels() if label.get_text()]
    assert true[rows].tolist() == [0, 0, 0, 1, 1, 1]
    assert [(text.get_text(), text.get_position()[1]) for text in figure.axes[0].texts] == [
        ("cluster 0", 1.0), ("cluster 1", 4.0)
    ]  # fmt: skip
    fewer = fedray.run(keys, data__partition={"name": "iid", "rotation": 2}, data__test_clients=2, seed=1)
    ids, figure = fewer.study.client_ids(0, np.arange(4)), curves.figure_assignment(read_run(fewer.path))
    true = fewer.study.shards.clusters(0)
    assert figure is not None and true is not None and ids.tolist() != [0, 1, 2, 3]
    rows = [int(label.get_text()) for label in figure.axes[0].get_yticklabels() if label.get_text()]
    assert rows == ids[np.argsort(true, kind="stable")].tolist()


@pytest.mark.parametrize(("scores", "named"), [
    ({}, []), ({7: 3.4, 2: -3.2, 11: 4.0}, ["client 7, 11, 2"]),
    ({i: 5.0 - i / 10 for i in range(9)}, ["client 0, 1, 2, 3, 4, 5, 6, 7, ..."]),
])  # fmt: skip
def test_clients_whose_drift_is_beyond_the_threshold_are_named(
    classes: ReadRun, scores: dict[int, float], named: list[str]
) -> None:
    z = np.linspace(-1.0, 1.0, 20)
    z[list(scores)] = list(scores.values())
    classes.pictures["client_scores"] = z
    figure = clients.figure_drift(classes)
    assert figure is not None and str(figure.get_label()).endswith(f"3 standard deviations: {len(scores)} of 20")
    assert [sorted(text.get_text()) for text in figure.axes[0].texts] == [sorted(text) for text in named]
    assert {ANOMALY_Z, -ANOMALY_Z} <= {float(np.asarray(line.get_ydata())[0]) for line in figure.axes[0].lines}


@pytest.mark.drawn
def test_the_page_of_a_run_with_sets_shows_what_its_clients_got(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"The clients": {clients.figure_conformal: "a note"}}
    monkeypatch.setattr("fedray.report.page.SECTIONS", sections)  # the others take their time
    keys = {"data": {"hold_out": 0.25}, "predict": {"conformal": {"alpha": 0.2}}, "evaluate": {"clients": "all"}}
    run = fedray.run(scenario(keys, {"rounds": 1}))
    table = read_run(run.path).pictures["conformal_clients"]
    frame = run.client_scores.to_pandas().query("round == 1")
    assert np.array_equal(table, frame[["conformal_coverage", "conformal_size"]].to_numpy())
    worst = f"of the rows of client {int(table[:, 0].argmin())}, the least; 80 % is wanted"
    assert worst in (run.path / "report.html").read_text()


def test_clients_without_rows_are_left_out_and_one_client_is_no_comparison() -> None:
    def draw(*table: list[float]) -> Any:
        return clients.figure_conformal(bare_run(conformal_clients=np.array(table), conformal_alpha=np.array([0.2])))

    figure = draw([0.9, 1.5], [np.nan, np.nan], [0.7, 2.0])
    assert "70.0 % of the rows of client 2" in str(figure.get_label())
    assert draw([0.9, 1.5], [np.nan, np.nan]) is None


def test_the_curve_of_a_tier_is_the_mean_of_its_clients(tmp_path: Path) -> None:
    keys = {"rounds": 2, "replicates": 2, "clients": {"tiers": {"strong": {"number": 2}, "weak": {}}}}
    run = fedray.run(scenario(keys, {"evaluate": {"clients": "all"}}), out=tmp_path / "run")
    frame, figure = run.client_scores.to_pandas(), clients.figure_tier_rounds(read_run(run.path))
    assert figure is not None
    lines = {str(line.get_label()): line for line in figure.axes[0].lines}
    assert list(lines) == ["strong", "weak"]
    for tier, line in lines.items():
        mine = frame[frame["tier"] == tier].groupby(["replicate", "round"])["accuracy"].mean().groupby("round").mean()
        assert np.asarray(line.get_xdata()).tolist() == [0, 1, 2]
        assert np.allclose(np.asarray(line.get_ydata()), mine.to_numpy())


def test_jobs_in_flight_take_the_place_of_the_round(tmp_path: Path, classes: ReadRun) -> None:
    fast = {"spread": 0.3, "models_per_round": 2}
    tiers = {"clients": {"number": 12, "tiers": {"slow": {"share": 0.5, "spread": 1.0}, "fast": fast}}}
    buffered = {"participation": {"mode": "buffered", "concurrency": 8, "goal": 3}, "method": {"models": 2}}
    run = read_run(fedray.run(scenario({"rounds": 12}, tiers, buffered), out=tmp_path / "run").path)
    table, late, flights = run.clients, curves.figure_staleness(run), curves.figure_flights(run)
    assert table is not None and late is not None and flights is not None
    bars = np.concatenate([bar.sides for bar in flights.axes[0].patches if isinstance(bar, pictures.Bars)], axis=1)
    for lane in np.unique(bars[1]):  # a client trains its two models one after the other
        left, _, width, _ = bars[:, bars[1] == lane][:, np.argsort(bars[0, bars[1] == lane])]
        assert (left[1:] >= (left + width)[:-1] - 1e-9).all()
    most = max(step for step in table["staleness"].to_pylist() if step is not None)
    assert f"{most} at most" in str(late.get_label())
    assert pictures.read_panels(late)[0]["x"]["names"][:2] == ["0", "1"]  # of each tier
    assert curves.figure_gantt(run) is None and curves.figure_gantt(classes) is not None
