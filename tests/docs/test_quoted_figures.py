"""Figures that pages quote are those of the table they come from, `docs/explanation/benchmark_results.md`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "docs" / "explanation" / "benchmark_results.md").read_text()


def measured(section: str) -> list[float]:
    """The second column of a section's table."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", SOURCE, flags=re.M | re.S)
    return [float(value) for value in re.findall(r"^\| [^|]+ \| ([\d.]+)(?: \w+)? \|", text, flags=re.M)]


def is_rounded(quoted: str, value: float) -> bool:
    """Whether a page quotes a value, with as many digits as it likes."""
    return f"{value:.{len(quoted.partition('.')[2])}f}" == quoted


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/comparison.md"])
def test_the_table_of_speed_quotes_the_first_rows_of_the_results(page: str) -> None:
    text = (ROOT / page).read_text()
    (table,) = re.findall(r"^\| work \| plain loop \| fedray \|\n(.*?)\n\n", text, flags=re.M | re.S)
    quoted = re.findall(r"\| 1 \| ([\d.]+) \|$", table, flags=re.M)
    assert len(quoted) == 5
    assert all(map(is_rounded, quoted, measured("All rows")[:5])), quoted
    (commit,) = re.findall(r"commit\s(\w{7})\b", text.partition("| work |")[0])
    assert f"`fedray bench --quick` at commit {commit}, one run" in SOURCE
