"""Counts the words of the pages: README, CONTRIBUTING and `docs/`.

    python tools/words.py            # a line for each page, and the sums
    python tools/words.py FOLDER     # of another checkout

A word is a stretch without spaces that holds a letter or a digit, so the bars of a table are no words, and `a/b` is
one. Three columns say where the words stand: in prose (with headings, lists and links), in tables, and in code (fenced
blocks, their fences left out; the list of a toctree counts as code). A page's sum is the sum of the three.

The notebook of results (`docs/results/`) has a sum of its own. Not counted: pages that the site makes from the code
(`docs/reference/generated/`), CHANGELOG, and texts in YAML and docstrings.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

Counts = tuple[int, int, int]  # words in prose, tables and code


def count_words(text: str) -> Counts:
    """Returns the words of a page in prose, in tables and in code."""
    counts, fence = [0, 0, 0], ""
    for line in text.splitlines():
        start = re.match(r"\s*(```+|~~~+|:::+)", line)
        if fence:
            fence = "" if line.strip() == fence else fence
            place = 2 if fence else None
        elif start and not start[1].startswith(":"):
            fence, place = start[1], None
        else:
            place = 1 if line.lstrip().startswith("|") else 0
        if place is not None:
            counts[place] += sum(1 for word in line.split() if any(map(str.isalnum, word)))
    return counts[0], counts[1], counts[2]


def list_pages(root: Path) -> list[Path]:
    """Returns the pages that people write, README and CONTRIBUTING first."""
    docs = sorted((root / "docs").rglob("*.md"))
    made = (root / "docs" / "reference" / "generated", root / "docs" / "_build")
    return [root / "README.md", root / "CONTRIBUTING.md", *(one for one in docs if not {*one.parents} & {*made})]


def show(name: str, counts: Counts) -> str:
    """Returns a line of the table."""
    return f"{sum(counts):7,} {counts[0]:7,} {counts[1]:7,} {counts[2]:7,}  {name}"


def add(counts: list[Counts]) -> Counts:
    """Returns the sums of the three columns."""
    return sum(one[0] for one in counts), sum(one[1] for one in counts), sum(one[2] for one in counts)


def main(root: Path) -> None:
    """Prints the table."""
    counted = {page.relative_to(root): count_words(page.read_text()) for page in list_pages(root)}
    print("    all   prose  tables    code  page")
    for page, counts in counted.items():
        print(show(str(page), counts))
    notebook = [page for page in counted if page.parts[:2] == ("docs", "results")]
    print(show("the notebook of results (docs/results/)", add([counted[page] for page in notebook])))
    print(show("all other pages", add([counts for page, counts in counted.items() if page not in notebook])))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1])
