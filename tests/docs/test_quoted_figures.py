"""Figures that pages quote are those of the notebook of results, `docs/results/`."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "docs" / "results" / "speed.md").read_text()


(TABLE,) = re.findall(r"^## Training and what lies around it\n(.*?)(?=^## |\Z)", SOURCE, flags=re.M | re.S)
AROUND = [float(value) for value in re.findall(r"^\| [^|]+ \| ([\d.]+)(?: \w+)? \|", TABLE, flags=re.M)]


def is_rounded(quoted: str, value: float) -> bool:
    """Whether a page quotes a value, with as many digits as it likes."""
    return f"{value:.{len(quoted.partition('.')[2])}f}" == quoted


def test_the_table_of_speed_quotes_the_first_rows_of_the_results() -> None:
    text = (ROOT / "docs" / "explanation" / "comparison.md").read_text()
    (table,) = re.findall(r"^\| work \| lean loop \| fedray \|\n(.*?)\n\n", text, flags=re.M | re.S)
    quoted = re.findall(r"\| 1 \| ([\d.]+) \|$", table, flags=re.M)
    assert len(quoted) == 4
    assert all(map(is_rounded, quoted, AROUND)), quoted
    check_commit(text.partition("| work |")[0])


def test_the_readme_quotes_rows_of_the_results() -> None:
    text = (ROOT / "README.md").read_text().partition("## Speed\n")[2].partition("\n## ")[0]
    small, _, small_cnn, large_cnn = AROUND[:4]
    quoted = re.findall(r"\b0\.\d+", text)
    assert len(quoted) == 3
    assert all(map(is_rounded, quoted, (small, small_cnn, large_cnn))), quoted
    check_commit(text)


def check_commit(text: str) -> None:
    (commit,) = re.findall(r"commit\s(\w{8})\b", text)
    assert f"`python bench/around.py` at commit {commit}, five repetitions" in SOURCE


PAPERS = {"SHEFL": "shefl", "Fed-ensemble": "fed_ensemble", "FedAG": "fedag", "Stacking": "stacking"}


@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_of_verdicts_quotes_the_notebook(paper: str) -> None:
    """Each decimal number of a section stands on the notebook's page of this paper, perhaps as a fraction of 100."""
    (section,) = re.findall(rf"^## {paper}\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "results.md").read_text(), re.M | re.S)
    noted = (ROOT / "docs" / "results" / f"{PAPERS[paper]}.md").read_text()
    there = [float(number) for number in re.findall(r"\d+\.\d+", noted)]
    quoted = re.findall(r"\d+\.\d+", section)
    assert len(quoted) > 5
    assert not [one for one in quoted if not any(is_rounded(one, x) or is_rounded(one, 100 * x) for x in there)]
