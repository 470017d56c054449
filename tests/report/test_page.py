"""The report is one file that stands alone, says what the run directory says, and leaves out what is absent."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_runs import write_run
from reports import remove_scripts, with_short_report

from fedray.core.errors import FedrayError, format_number
from fedray.report.compare import format_deviation
from fedray.report.page import SECTIONS, fill_template, write_report
from fedray.report.read import Best, read_run

NAMES = ("classes", "numbers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    write_run(base / "classes", clients=20, rounds=12)
    write_run(base / "numbers", regression=True, replicates=5, clients=10, rounds=12, lift=0.02)
    return base


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, str]:
    """The page of each run, and one that compares both; drawn once."""
    found = {name: page(folder / "reports" / f"{name}.html", folder / name) for name in NAMES}
    several = page(folder / "reports" / "several.html", *(folder / name for name in NAMES))
    return {**found, "several": several}


def page(out: Path, *runs: Path) -> str:
    write_report(list(runs), out)
    return out.read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Collects ids, addresses and the balance of tags."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.links, self.open = list[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "hr", "img"):
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", [*NAMES, "several"])
def test_a_report_stands_alone(pages: dict[str, str], folder: Path, name: str) -> None:
    text, reader = pages[name], Reader()
    reader.feed(text)
    assert reader.open == [] and len(reader.ids) == len(set(reader.ids))
    assert all(link.startswith(("#", "data:image/png")) for link in reader.links)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", remove_scripts(text))) <= set(reader.ids)
    assert "@import" not in text and str(folder) not in text and len(text) < 1_000_000


def test_cards_show_mean_and_deviation_over_replicates(pages: dict[str, str], folder: Path) -> None:
    metric = json.loads((folder / "numbers" / "summary.json").read_text())["metrics"]["rmse"]
    assert f"<b>{format_number(metric['mean'], 'rmse')}</b>" in pages["numbers"]
    assert f"\u00b1 {format_deviation(metric['sd'], 'rmse')} (sd of 5)" in pages["numbers"]
    assert "sd of" not in pages["classes"]


def test_the_same_run_gives_the_same_bytes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_short_report(monkeypatch)
    assert page(tmp_path / "a.html", folder / "numbers") == page(tmp_path / "b.html", folder / "numbers")


def test_a_cell_of_a_table_says_what_it_is_on_paper_too() -> None:
    """Wide tables have no head there: each cell has its own."""
    head = ["run", "method", *(f"score{i}" for i in range(10))]
    rows = [[f"run{j}", "2 of <b>", *(Best(f"{i}.{j}") if i == j else f"{i}.{j}" for i in range(10))] for j in (1, 2)]
    narrow = (head[:3], [row[:3] for row in rows])
    tables = [("Scores", (head, rows), "said"), ("Narrow", narrow, ""), ("No", ([], []), "")]
    text = fill_template(title="wide", facts=[], runs=[], tables=tables)
    boxes = re.findall(r'<div class="(sheet[^"]*)" tabindex="0" role="region" aria-label="([^"]*)"', text)
    assert boxes == [("sheet wide", "Scores"), ("sheet", "Narrow")]
    assert '<td data-head="score1" class="best">1.1</td>' in text and '<th scope="row">run1</th>' in text
    assert '<th scope="col" class="word">run</th><th scope="col">method</th>' in text  # it begins with a number
    assert '<td data-head="method">2 of &lt;b&gt;</td>' in text


def test_an_interrupted_run_shows_what_it_has(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "stopped"
    shutil.copytree(folder / "classes", broken)
    for name in ("summary.json", "manifest.json", "pictures.npz"):
        (broken / name).unlink()
    shutil.rmtree(broken / "clients.parquet")
    text = page(tmp_path / "r.html", broken)
    assert "was interrupted" in text and "The ensemble of 5 reaches" in text
    shutil.rmtree(broken / "rounds.parquet")
    assert "fashion_mnist" in page(tmp_path / "r.html", broken)
    other = tmp_path / "other" / "stopped"
    shutil.copytree(folder / "numbers", other)
    text = page(tmp_path / "two.html", broken, other)
    assert "<table" in text and "other/stopped" in text  # more of their paths, where their names are the same


def test_text_of_the_user_is_escaped_and_empty_numbers_are_gaps(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "a<script>b"
    shutil.copytree(folder / "classes", run)
    scenario = (run / "scenario.yaml").read_text() + "note: '</pre><script>alert(1)</script> $\\alpha'\n"
    (run / "scenario.yaml").write_text(scenario)
    with np.load(run / "pictures.npz") as file:
        pictures = {**file, "class_names": np.array(["<b>$x", "a & b", "$\\nothing$", *map(str, range(7))])}
    np.savez(run / "pictures.npz", **pictures)
    part = next((run / "rounds.parquet").iterdir())  # some columns without numbers
    table = pq.read_table(part)
    for name in ("nll", "accuracy", "member_accuracy"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.nulls(len(table), table[name].type))
    pq.write_table(table.append_column("crps", pa.nulls(len(table))), part)
    names = [f"figure_{name}" for name in ("rounds", "scores", "confusion", "classes", "data")]
    draws = {draw: note for each in SECTIONS.values() for draw, note in each.items() if draw.__name__ in names}
    monkeypatch.setattr("fedray.report.page.SECTIONS", {"Some": draws})
    summary = json.loads((run / "summary.json").read_text())
    summary["metrics"]["nll"] = {"mean": None, "sd": None, "n": 5}
    (run / "summary.json").write_text(json.dumps(summary))
    whole = page(tmp_path / "r.html", run)
    assert "<script>alert" not in whole and "<b>$x" not in whole
    assert "<script" not in remove_scripts(whole)
    assert "nan" not in re.sub(r"base64,[^\"]*", "", whole).lower()


@pytest.mark.slow
def test_large_runs_stay_light(tmp_path: Path) -> None:
    run = write_run(tmp_path / "large", clients=3000, per_round=30, rounds=80, models=12, classes=100)
    assert len(page(tmp_path / "r.html", run)) < 1_000_000


def test_a_small_run_is_drawn(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "small", models=1, rounds=1, clients=1, classes=2))
    assert sum(draw(run) is not None for draws in SECTIONS.values() for draw in draws) >= 8


@pytest.mark.parametrize(("name", "content"), [
    ("summary.json", b"[]"), ("pictures.npz", b"PK\x03\x04"), ("rounds.parquet/part-000000012.parquet", b"PAR1"),
])  # fmt: skip
def test_damaged_files_are_named_in_one_line(folder: Path, tmp_path: Path, name: str, content: bytes) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "classes", run)
    (run / name).write_bytes(content)
    with pytest.raises(FedrayError, match=Path(name).name) as caught:
        write_report([run], tmp_path / "r.html")
    assert "\n" not in str(caught.value)
