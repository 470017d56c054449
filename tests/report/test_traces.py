"""The page's script gets the numbers that a figure shows, whichever way it draws them."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fedray.report import curves
from fedray.report import pictures as style
from fedray.report.pictures import MOST_NUMBERS, draw_picture, read_panels
from fedray.report.read import Curve


def test_a_line_has_its_band_and_a_reference_line_is_no_number() -> None:
    figure, axes = style.make_canvas("")
    curve = Curve(np.arange(3.0), np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 5.0]]))
    curves.draw_mean_line(axes, curve.round, curve, color=style.INK, width=2.0, label="all")
    axes.axhline(1.0)
    (panel,) = read_panels(figure)
    (trace,) = panel["traces"]
    assert (trace["name"], trace["kind"], trace["y"], trace["color"]) == ("all", "line", [2, 2, 4], "var(--ink)")
    assert np.allclose(trace["low"], curve.mean - curve.sd, rtol=1e-4)
    assert np.allclose(trace["high"], curve.mean + curve.sd, rtol=1e-4)
    assert panel["scales"] == ""  # the script could not draw the reference line anew


def test_bars_are_named_by_the_key_and_places_by_their_axis() -> None:
    figure, axes = style.make_canvas("")
    style.draw_bars(axes, np.arange(2.0), 0.0, 0.8, [1.0, 2.0], at=[0.5, 1.5], facecolor="#112233")
    style.draw_bars(axes, 0.0, [1.0, 2.0], [4.0, 4.0], 0.8, lying=True, facecolor="#445566")  # one value in all
    style.draw_key(axes, ["first", "second"], ["#112233", "#445566"])
    style.name_places(axes.xaxis, [7, 9])
    (panel,) = read_panels(figure)
    assert [(t["name"], t["h"], t["y"], t["at"], t["lying"]) for t in panel["traces"]] == [
        ("first", [1, 2], [0], [0.5, 1.5], False),
        ("second", [0.8], [1, 2], [1.4, 2.4], True),
    ]
    assert panel["x"]["names"] == ["7", "9"]


def test_cells_have_the_values_of_their_rows() -> None:
    figure, axes = style.make_canvas("")
    axes.imshow(np.array([[0.25, np.nan], [1.0, 12_346.0]]))
    (trace,) = read_panels(figure)[0]["traces"]
    assert (trace["cells"], trace["x"], trace["y"]) == ([[0.25, None], [1, 12_346]], [0, 1], [0, 1])  # no digit lost


def test_panels_that_share_a_label_were_told_as_one_parameter() -> None:
    figure, both = style.make_canvas("", 1, 2)
    for axes, key in zip(both, ("lr", "models"), strict=True):
        axes.scatter([1.0, 9.0], [0.5, 5.0], label="trials", rasterized=True)
        axes.set_xlabel(key)
    both[0].set_ylabel("accuracy")
    panels = read_panels(figure)
    assert [one["title"] for one in panels] == ["lr", "models"] and panels[1]["y"]["label"] == "accuracy"
    assert not any(one["traces"][0]["legend"] or one["scales"] for one in panels)  # no script hides or moves pixels


@settings(max_examples=15)
@given(st.integers(1, 30), st.integers(2, 3000))
def test_numbers_are_thinned_evenly_and_keep_their_ends(lines: int, length: int) -> None:
    figure = Figure()
    axes = figure.subplots()
    for k in range(lines):
        axes.plot(np.arange(length), np.full(length, float(k)))
    (panel,) = read_panels(figure)
    kept = [trace["x"] for trace in panel["traces"]]
    assert sum(2 * len(x) for x in kept) <= MOST_NUMBERS + 4 * lines
    assert all(x[0] == 0 and x[-1] == length - 1 for x in kept)
    assert all(set(np.diff(x[:-1])) <= {panel["every"]} for x in kept)


def test_the_ids_of_the_numbers_are_in_the_figure() -> None:
    figure, axes = style.make_canvas("")
    curve = Curve(np.arange(9.0), np.random.default_rng(0).random((2, 9)))
    curves.draw_mean_line(axes, curve.round, curve, color=style.INK, width=2.0, label="all")
    axes.legend()
    axes.set_xlabel("round")
    picture = draw_picture(figure, "", "key")
    ids = set(re.findall(r'id="([^"]*)"', str(picture.svg)))
    assert {"key-p0t0", "key-p0t0-band", "key-p0x", "key-p0y", "key-p0x-label", "key-p0-legend"} <= ids
    assert picture.numbers is not None
    left, low, right, high = picture.numbers["frames"][0]["box"]
    path = re.search(r'id="key-p0t0">\s*<path d="M ([\d.]+) ([\d.]+)', str(picture.svg))
    assert path is not None
    first, last = picture.numbers["frames"][0]["ends"][:2]
    assert float(path[1]) == pytest.approx(left + (0 - first) / (last - first) * (right - left), abs=0.1)
    assert high < float(path[2]) < low


@given(st.lists(st.floats(0.3, 0.95), min_size=1, max_size=5), st.integers(6, 60))
def test_the_second_half_of_every_line_stays_inside_the_axis(ends: list[float], length: int) -> None:
    rounds = np.arange(float(length))
    drawn = [Curve(rounds, (end * (1 - np.exp(-rounds / 3)))[None]) for end in ends]
    window = curves.find_window(drawn)
    if window is not None:
        assert all((curve.mean[length // 2 :] >= window).all() for curve in drawn)
        assert window <= min(ends) - 2 * (max(ends) - min(ends)) * 0.8
    else:
        assert max(ends) > 1.3 * min(ends) or length < 12  # far apart, or short: the whole axis shows them
