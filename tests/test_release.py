"""What a release says of itself in several files is said alike."""

import re
import tomllib
from typing import Any

import yaml
from pages import ROOT

import fedray

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_WORK_ON_FEDRAY = {"all", "browser", "docs", "test"}


def pinned(name: str) -> dict[str, str]:
    """The versions of a file of constraints."""
    return dict(re.findall(r"^([\w.-]+)==([\w.+]+)", (ROOT / "constraints" / f"{name}.txt").read_text(), flags=re.M))


def test_the_version_is_that_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["dynamic"] == ["version"] and citation["version"] == fedray.__version__


def test_all_is_every_extra_of_users() -> None:
    (everything,) = EXTRAS["all"]
    assert set(re.findall(r"[\w-]+", everything)) == {"fedray"} | set(EXTRAS) - FOR_WORK_ON_FEDRAY


def test_the_lowest_constraints_are_the_lower_bounds() -> None:
    """So that the job `lowest` tests what `pyproject.toml` promises."""
    lines, found = PROJECT["dependencies"], pinned("lowest")
    matches = [re.match(r"([\w-]+)(?:\[.*?\])?>=([\w.]+)", line) for line in lines]
    bounds = {match[1].lower(): match[2] for match in matches if match}
    assert len(bounds) == len(lines)
    differ = {name: found[name] for name, low in bounds.items() if not f"{found[name]}.".startswith(f"{low}.")}
    assert differ == {}, "but for further zeros and mends"
    assert bounds.keys() <= pinned("newest").keys()


def test_every_python_of_the_classifiers_is_tested() -> None:
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    assert named == set(jobs["tests"]["strategy"]["matrix"]["python"])
    assert PROJECT["requires-python"] == f">={min(named)}"
