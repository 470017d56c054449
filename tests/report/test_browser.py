"""The pages in a real browser: what the pointer, the keys and the buttons do, and that nothing runs out of the page.

`pip install playwright`, and a Chromium of the system; `python -m pytest -m slow tests/report/test_browser.py`.
"""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fake_runs import write_run
from small import run_command, scenario

from fedray.report.page import write_report

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
PAGES = ("one", "one regression", "several", "stack", "walk", "sweep", "table")
HOSTILE = "<img src=x onerror=alert(1)>"
OVERFLOWING = """() => {
  const boxes = ".scroll, .sheet, .small, pre";
  const inside = (e) => e.closest(`${boxes}, .unseen, .tip`) && !e.matches(boxes);
  return [...document.body.querySelectorAll("*")].filter((e) => {
    const {right, left, width} = e.getBoundingClientRect();
    return width > 0 && !inside(e) && (right > innerWidth + 1 || left < -1);
  }).map((e) => e.tagName + "." + e.className).concat(
    document.documentElement.scrollWidth > innerWidth ? ["page"] : []);
}"""


def add_pictures(run: Path, **arrays: Any) -> Path:
    with np.load(run / "pictures.npz") as file:
        np.savez(run / "pictures.npz", **{**file, **arrays})
    return run


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of each kind, by its name."""
    base = tmp_path_factory.mktemp("pages")
    names = np.array([HOSTILE, *(f"class {i}" for i in range(1, 10))])
    one = add_pictures(write_run(base / "runs" / "one", replicates=3), class_names=names)
    regression = write_run(base / "runs" / "numbers", regression=True, clients=10, replicates=3)
    other = write_run(base / "runs" / "other", replicates=4, rounds=40, lift=0.03)
    single = write_run(base / "runs" / "a run with quite a long name of its own", rounds=40)
    walk = write_run(base / "runs" / "walk", clients=10, rounds=20)
    add_pictures(walk, graph_edges=np.array([[i, (i + 1) % 10] for i in range(10)]))
    stack = write_run(base / "runs" / "stack", clients=8, rounds=20)
    bases = {"stack_folds": np.array([[0.5, 0.25], [1.0, 0.75]]), "stack_bases": np.array(["0 (mlp)", "1 (cnn)"])}
    meta = np.random.default_rng(0).normal(size=(10, 20))
    add_pictures(stack, **bases, confusion_average=np.eye(10) * 9 + 1, meta_weights=meta)
    for name, runs in (("one", [one]), ("one regression", [regression]), ("several", [one, other, single])):
        write_report(runs, base / f"{name}.html")
    write_report([stack], base / "stack.html")
    write_report([walk], base / "walk.html")
    cells = [{"name": "first", "published": {"accuracy": 0.9}}, {"name": "second", "overrides": {"local.lr": 0.2}}]
    (base / "table.yaml").write_text(yaml.safe_dump(scenario({"rounds": 2, "table": cells})))
    assert run_command("table", base / "table.yaml", "--out", base / "cells").status == 0
    shutil.copy(base / "cells" / "report.html", base / "table.html")
    sweep = {"scenario": str(base / "base.yaml"), "space": {"local.lr": [0.01, 0.05, 0.1], "method.models": [1, 2]}}
    (base / "base.yaml").write_text(yaml.safe_dump(scenario({"rounds": 2})))
    (base / "sweep.yaml").write_text(yaml.safe_dump({**sweep, "objectives": ["accuracy"], "sampler": "grid"}))
    assert run_command("tune", base / "sweep.yaml", "--out", base / "tuned").status == 0
    shutil.copy(base / "tuned" / "report.html", base / "sweep.html")
    return base


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Open:
    """A page that is open, and all that it complained about or asked for."""

    def __init__(self, browser: Any, path: Path, width: int = 1400, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda said: self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda box: self.wrong.append(f"dialog: {box.message}"))
        self.page.on("request", lambda asked: self.note(asked.url, path))
        self.page.goto(path.as_uri())

    def note(self, url: str, path: Path) -> None:
        if url != path.as_uri() and not url.startswith(("data:", "blob:")):
            self.wrong.append(f"asks for {url}")

    def figure(self, key: str) -> Any:
        return self.page.locator(f"figure[data-key='{key}']")

    def press(self, key: str, name: str) -> None:
        self.figure(key).locator(".tools button", has_text=name).click()

    def point(self, key: str, x: float, y: float) -> str:
        """Moves the pointer to a place of a figure, and returns what is shown there."""
        self.figure(key).scroll_into_view_if_needed()
        box = self.figure(key).locator("svg").locator("visible=true").bounding_box()
        self.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        tip = self.figure(key).locator(".tip.shown")
        return str(tip.inner_text()) if tip.count() else ""

    def download(self, key: str, name: str) -> Path:
        with self.page.expect_download() as found:
            self.press(key, name)
        assert found.value.suggested_filename.endswith(f"{key}.{name.lower()}")
        return Path(found.value.path())

    def close(self) -> None:
        assert self.wrong == []
        self.context.close()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_nothing_runs_out_of_the_page(pages: Path, browser: Any, name: str, width: int, scheme: str) -> None:
    shown = Open(browser, pages / f"{name}.html", width, color_scheme=scheme)
    assert shown.page.evaluate(OVERFLOWING) == []
    for button in shown.page.locator(".tools button", has_text="table").all():
        button.click()
    assert shown.page.evaluate(OVERFLOWING) == []
    assert (pages / f"{name}.html").stat().st_size < 1_000_000
    shown.close()


@pytest.mark.parametrize("width", [1400, 390])
def test_a_wide_table_scrolls_in_its_box_and_says_what_its_rows_are(pages: Path, browser: Any, width: int) -> None:
    shown = Open(browser, pages / "several.html", width)
    box = shown.page.get_by_role("region", name="Final metrics", exact=True)
    assert box.evaluate("e => e.scrollWidth > e.clientWidth + 100")
    left = "e => ['tbody th', 'td'].map((one) => e.querySelector(one).getBoundingClientRect().left)"
    name, cell = box.evaluate(left)
    box.evaluate("e => e.scrollBy(100, 0)")
    assert box.evaluate(left) == [name, cell - 100]
    assert box.locator("tbody th").evaluate_all("all => Math.max(...all.map((e) => e.offsetWidth))") <= 0.4 * width
    shown.close()


@pytest.mark.parametrize("name", PAGES)
def test_on_paper_no_table_is_cut_off(pages: Path, browser: Any, name: str) -> None:
    shown = Open(browser, pages / f"{name}.html", 1120)
    shown.page.emulate_media(media="print")
    cut = "all => all.filter((e) => e.offsetWidth && e.scrollWidth > e.clientWidth + 1).length"
    assert shown.page.locator(".sheet").evaluate_all(cut) == 0
    for heading in shown.page.locator("h2").all():
        assert heading.is_visible()
    shown.close()


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_downloads_its_numbers(pages: Path, browser: Any, name: str) -> None:
    shown = Open(browser, pages / f"{name}.html")
    keys = shown.page.eval_on_selector_all("figure", "all => all.map((one) => one.dataset.key)")
    assert keys and len(set(keys)) == len(keys)
    for key in keys:
        assert "<svg" in shown.download(key, "SVG").read_text(), key
        assert shown.download(key, "PNG").read_bytes().startswith(b"\x89PNG"), key
        offered = shown.figure(key).locator(".tools button", has_text="CSV").count()
        assert offered == (key not in ("assignment", "graph"))  # a map of jobs and a graph show no numbers
        assert shown.figure(key).locator(".scroll[tabindex]").count() == offered, key
        if not offered:
            continue
        rows = list(csv.reader(shown.download(key, "CSV").read_text(encoding="utf-8-sig").splitlines()))
        assert len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])}, key
        if key == "trials-0":
            assert {row[0] for row in rows} == {"panel", "local.lr", "method.models"} and rows[0][2:] == ["x", "value"]
    shown.close()


def test_the_pointer_shows_the_values_of_the_round_and_a_legend_entry_hides_its_line(pages: Path, browser: Any) -> None:
    shown = Open(browser, pages / "one.html")
    assert shown.figure("rounds").locator(".legend button").all_text_contents()[0] == "model 0"
    before = shown.point("rounds", 0.6, 0.4)
    assert before.startswith("Rounds completed ") and "model 0" in before and "ensemble" in before
    entry = shown.figure("rounds").locator(".legend button", has_text="model 0")
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    after = shown.point("rounds", 0.6, 0.4)
    assert "model 0" not in after and "model 1" in after
    assert shown.page.locator("#rounds-p0t0").evaluate("e => getComputedStyle(e).display") == "none"
    assert shown.page.locator("#rounds-p0t0-band").evaluate("e => getComputedStyle(e).display") == "none"
    entry.press("Enter")
    assert "model 0" in shown.point("rounds", 0.6, 0.4)
    shown.close()


def test_axes_become_logarithmic_and_whole_on_request(pages: Path, browser: Any) -> None:
    shown = Open(browser, pages / "one.html")
    ticks = "all => all.map((one) => one.textContent)"
    for name, wanted in (("log x", {"10", "50"}), ("whole axis", {"20 %", "80 %"})):
        shown.press("rounds", name)
        words = set(shown.figure("rounds").locator(".scroll .ticks text").evaluate_all(ticks))
        assert wanted <= words, (name, words)
        drawn = shown.figure("rounds").locator(".scroll .anew path[style*='fill: none']")
        assert drawn.count() == 7  # five members, the ensemble, the personalized accuracy
        shown.press("rounds", name)
    assert shown.figure("rounds").locator(".anew *").count() == 0
    shown.press("losses", "log y")
    assert shown.figure("losses").locator(".anew path").count() > 0
    assert "training loss" in shown.point("losses", 0.5, 0.5) or "all clients" in shown.point("losses", 0.5, 0.5)
    shown.close()


def test_arrow_keys_read_the_values_aloud(pages: Path, browser: Any) -> None:
    shown = Open(browser, pages / "one.html")
    view = shown.figure("rounds").locator(".scroll")
    view.press("End")  # the first key
    said = shown.figure("rounds").locator("[aria-live]").text_content()
    assert said.startswith("rounds completed 60: ") and "ensemble" in said
    tiers = shown.figure("tiers").locator(".scroll")  # dots beside the lines of the means
    tiers.press("ArrowRight")
    tiers.press("ArrowRight")
    assert "mean" not in shown.figure("tiers").locator("[aria-live]").text_content()
    assert view.get_attribute("role") == "application" and view.get_attribute("aria-label").endswith("read the values.")
    shown.close()


def test_names_of_a_run_are_shown_as_text(pages: Path, browser: Any) -> None:
    shown = Open(browser, pages / "one.html")
    assert HOSTILE in " ".join(shown.figure("data").locator(".legend button").all_text_contents())
    assert shown.page.locator("img").count() == 0
    shown.point("confusion", 0.3, 0.1)
    shown.press("confusion", "table")
    assert HOSTILE in shown.figure("confusion").locator("table").text_content()
    assert shown.page.locator("img").count() == 0
    shown.close()


def test_a_script_that_is_not_the_pages_own_does_not_run(pages: Path, browser: Any, tmp_path: Path) -> None:
    text = (pages / "walk.html").read_text(encoding="utf-8")
    (tmp_path / "changed.html").write_text(text.replace("<footer>", "<script>alert(1)</script><footer>"))
    shown = Open(browser, tmp_path / "changed.html")
    assert len(shown.wrong) == 1 and "Content Security Policy" in shown.wrong[0]
    assert shown.page.locator(".tools").count() > 0  # and its own one does
    shown.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_the_page_is_whole(pages: Path, browser: Any, name: str) -> None:
    shown = Open(browser, pages / f"{name}.html", java_script_enabled=False)
    assert shown.page.locator("button").count() == 0
    assert shown.page.locator("figure svg").locator("visible=true").count() == shown.page.locator("figure").count()
    if name == "one":
        assert shown.page.locator("#rounds-p0-legend").is_visible()
    shown.close()
