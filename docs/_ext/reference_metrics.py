"""The page of the metrics.

Words and units come from `fedray/core/scores.py`, formulas from `docs/reference/metrics.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml
from md_pieces import begin_sentence

from fedray.core.scores import NUMBERED, find_score
from fedray.files.run_files import Column
from fedray.metrics.scores import SCORES

REFERENCE = Path(__file__).parents[1] / "reference"
FORMULAS: dict[str, str] = yaml.safe_load((REFERENCE / "metrics.yaml").read_text())
INTRO = (REFERENCE / "metrics_intro.md").read_text().strip()


def formula_of(name: str) -> str:
    """Returns the formula of a score, in LaTeX.

    Raises:
        KeyError: `metrics.yaml` has none.
    """
    if name not in FORMULAS:
        raise KeyError(f"{name}: write its formula in docs/reference/metrics.yaml")
    return FORMULAS[name].strip()


def write_metric(name: str, column: Column) -> str:
    """Returns the entry of a score."""
    facts = [f":Unit: {column.unit or 'none'}"]
    score = find_score(name)
    if score is None or score.lower is not None:
        facts.append(f":Better: {'lower' if score is not None and score.lower else 'higher'}")
    text = begin_sentence(column.text)
    return f"(metric-{name.lower()})=\n### {name}\n\n{text}\n\n$$\n{formula_of(name)}\n$$\n\n" + "\n".join(facts)


def list_scores() -> dict[str, Column]:
    """Returns every score that an evaluation makes, also those with numbers in their names."""
    numbered = {name: Column("number", unit, text) for name, (unit, text) in NUMBERED.items()}
    return {**SCORES, **numbered}


def write_pages() -> dict[str, str]:
    """Returns the page of the metrics by its path below `docs/reference/generated`."""
    groups: dict[str, Callable[[str], bool]] = {
        "Classes": lambda name: name in _BEFORE_TARGETS,
        "Targets": lambda name: name in _TARGETS,
        "Out-of-distribution inputs": lambda name: name.startswith("ood"),
        "Known clients": lambda name: name.startswith(("personal", "cluster")),
        "Conformal sets": lambda name: name.startswith("conformal"),
        "Stacks": lambda name: name.endswith("_average") or "base" in name,
    }
    parts = [INTRO]
    scores = list_scores()
    for title, belongs in groups.items():
        parts.append(f"## {title}")
        parts += [write_metric(name, column) for name, column in scores.items() if belongs(name)]
    return {"metrics.md": "\n\n".join(parts) + "\n"}


_NAMES = list(SCORES)
_BEFORE_TARGETS = tuple(_NAMES[: _NAMES.index("rmse")])
_TARGETS = tuple(_NAMES[_NAMES.index("rmse") : _NAMES.index("accuracy_average")])
