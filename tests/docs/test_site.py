"""The site: every page can be reached, every link leads somewhere, its gallery is made by commands, and it builds."""

import os
import re
import resource
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import gallery
import pytest
import reference

from fedray.scenario.shipped import list_shipped

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PARTS = ("_build", "_ext", "_static", "algorithms", "generated")  # not pages, or pages that are made
INCLUDED = ("metrics_intro.md", "methods_notation.md")


@cache
def pages() -> dict[str, str]:
    """Every page by its path below `docs/`, also those that are made from the code."""
    found = {
        str(path.relative_to(DOCS)): path.read_text()
        for path in DOCS.rglob("*.md")
        if path.name not in INCLUDED and not {*path.relative_to(DOCS).parts} & {*PARTS}
    }
    return found | {f"reference/generated/{path}": text for path, text in reference.write_reference().items()}


def list_anchors(text: str) -> set[str]:
    """The headings of a page as links name them, and its labels."""
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    heads = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", plain, re.M)]
    return {*heads, *re.findall(r"^\((\S+)\)=$", plain, re.M)}


def list_entries(page: str) -> set[str]:
    """The pages that the tables of contents of a page name."""
    found: set[str] = set()
    folder = (DOCS / page).parent
    for body in re.findall(r"^```\{toctree\}\n(.*?)^```$", pages()[page], flags=re.M | re.S):
        for line in filter(None, (one.strip() for one in body.splitlines())):
            if "*" in line:
                beside = {name for name in pages() if (DOCS / name).parent == folder and name != page}
                found |= {name for name in beside if fnmatch(Path(name).stem, line)}
            elif not line.startswith(":"):
                name = os.path.relpath((folder / f"{line}.md").resolve(), DOCS)
                assert name in pages(), f"{page} names {line}, which is not there"
                found.add(name)
    return found


def test_every_page_is_in_a_table_of_contents() -> None:
    assert {"index.md"}.union(*map(list_entries, pages())) == pages().keys()


@pytest.mark.parametrize("folder", ["tutorials", "how-to", "explanation", "reference"])
def test_an_index_links_each_of_its_pages_where_no_site_is_built(folder: str) -> None:
    """A table of contents is plain text on GitHub, so that a reader there followed no link of it."""
    page = f"{folder}/index.md"
    links = re.findall(r"\]\(([^)\s]+)\)", pages()[page])
    assert list_entries(page) == {os.path.relpath((DOCS / folder / link).resolve(), DOCS) for link in links}


def test_every_link_leads_somewhere() -> None:
    wrong = []
    for page, text in pages().items():
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
            place, _, anchor = link.partition("#")
            name = os.path.relpath(((DOCS / page).parent / place).resolve(), DOCS) if place else page
            there = name in pages() or (DOCS / name).is_file()
            if not there or (anchor and anchor not in list_anchors(pages().get(name, ""))):
                wrong.append(f"{page}: {link}")
    assert not wrong


def test_every_test_that_a_page_names_is_there() -> None:
    named = {(page, name) for page, text in pages().items() for name in re.findall(r"`(tests/[\w/]+\.py)", text)}
    assert named
    assert not [one for one in named if not (ROOT / one[1]).is_file()]


def test_the_gallery_has_a_picture_for_each_command() -> None:
    size = 0
    for name, (run, plot) in gallery.list_entries().items():
        assert name in list_shipped() and f" {name} " in run
        assert all(f"runs/{name.replace('/', '_')} " in f"{command} " for command in (run, plot))
        picture = ROOT / plot.split()[-1]
        assert f"](gallery/{picture.name})" in gallery.PAGE.read_text() and picture.is_file()
        size += picture.stat().st_size
    assert 0 < size < 2e6


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.list_entries())
def test_a_picture_of_the_gallery_is_made_by_its_commands(name: str, tmp_path: Path) -> None:
    gallery.make_picture(gallery.list_entries()[name], tmp_path)
    (picture,) = tmp_path.iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")


def processor_seconds() -> float:
    """Of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning and without a network."""
    pytest.importorskip("sphinx")
    place = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(place)]
    start = processor_seconds()
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **nowhere}, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert processor_seconds() - start < 300  # wall time is that of whatever else runs here
    return place


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_lists_every_page(site: Path) -> None:
    listed = (site / "llms.txt").read_text()
    assert all((site / link).is_file() for link in re.findall(r"\]\((.*?)\)", listed))
    assert listed.count("\n- [") == len(pages()) - 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    loads = r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]*"stylesheet"[^>]*"https?:|@import[^;]*"https?:'
    assert not [page.name for page in site.rglob("*.html") if re.search(loads, page.read_text())]


BROKEN = """() => [...document.querySelectorAll("article td, article th")].flatMap((cell) => {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const word of texts.currentNode.data.matchAll(/[\\p{L}\\p{N}_]+([.,]\\p{N}+)*/gu)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = [...range.getClientRects()].filter((box) => box.width > 0).map((box) => Math.round(box.top));
      if (new Set(lines).size > 1) return [word[0]];
    }
  return [];
})"""
WIDE = (
    "results",
    "design",
    "reference/generated/keys/model",
    "reference/generated/methods/index",
)  # tables of many words


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cell_of_a_table_broke_inside_a_word_or_a_number(site: Path) -> None:
    sync_api, chromium = pytest.importorskip("playwright.sync_api"), gallery.find_chromium()
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (1400, 390):
            shown = browser.new_page(viewport={"width": width, "height": 900})
            for name in WIDE:
                shown.goto((site / f"{name}.html").as_uri())
                assert shown.locator("article td").count()
                assert shown.evaluate(BROKEN) == [], (name, width)
        browser.close()
