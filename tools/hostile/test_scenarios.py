"""Scenario files that went wrong at random: each can be run, or is refused with one line (exit status 2).

`python tools/long_checks.py hostile`, or `python -m pytest tools/hostile/test_scenarios.py`.

Shipped files are changed key by key (values at the ends of ranges, of wrong types, missing, renamed) and letter by
letter. Memory is said to be scarce here, so that what is accepted stays small.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reports import without_report
from small import run_command

from fedray.assembly import models as memory
from fedray.core.errors import BadInput
from fedray.scenario import names
from fedray.scenario.loader import dump_scenario, read_scenario, tier_table
from fedray.scenario.nested import merge_keys, parse_yaml
from fedray.scenario.schema import section_fields, section_types

ROOT = Path(__file__).parents[2]
MEMORY = 300e6  # bytes there are
BUNDLED = ("digits", "sine", "interval", "cubic", "synthetic")
TABLES = {kind: names.KINDS[kind].specs for kind in ("method", "data", "model", "partition")}
SECTIONS = {"method": "method", "data": "data", "model": "model", "partition": "data.partition"}
NUMBERS = [
    *(0, 1, -1, 2, 3, 7, 100, 1000, 9999, 10**4, 65_536, 10**5, 10**6, 10**7, 10**9, 10**12, 2**62, 2**63),
    *(0.0, 0.5, 1.0, 1.5, -0.1, 1e-300, 1e-9, 1e300, float("inf"), float("-inf"), float("nan")),
]  # fmt: skip
WORDS = ["", "all", "auto", "full", "clients", "~nobody/x", "/dev/zero", "x" * 999, "a\nb", "\x85", "null", "1e3", "*"]
WORDS += sorted({name for table in TABLES.values() for name in table})
OTHERS = [[], [1], [65_536] * 40, [0.1, 0.2], ["a"], [[1]], {}, {"name": 3}, {"a": {"b": 1}}, None, True, False]
VALUES = st.sampled_from(NUMBERS) | st.sampled_from(WORDS) | st.sampled_from(OTHERS) | st.integers(-10, 10**4)
SMALL = {"rounds": 1, "runtime": "inline", "clients": {"number": 6}}
Path_ = tuple[str, ...]


def trees() -> list[dict[str, Any]]:
    """Returns every shipped scenario and the methods of its cells, made small, on data that are always available."""
    found = [{"data": {"name": "synthetic"}, "participation": {"per_round": 3}, "local": {"steps": 1}}]
    for path in sorted((ROOT / "scenarios").rglob("*.yaml")):
        tree = yaml.safe_load(path.read_text())
        if tree["data"]["name"] not in BUNDLED:
            tree["data"] = {"name": "digits", "limit": 300}
        cells = [cell.get("overrides", {}).get("method.name") for cell in tree.pop("table", [])]
        found += [tree, *(merge_keys(tree, {"method": {"name": name}}) for name in {*cells} if name)]
    return [merge_keys(tree, SMALL) for tree in found]


def keys() -> list[Path_]:
    """Returns every key that a scenario can have."""
    of = [f"{section}.{key}" for section in section_types() for key in section_fields(section) if section != "table.*"]
    of += [
        f"{at}.{key}"
        for kind, at in SECTIONS.items()
        for spec in names.KINDS[kind].specs.values()
        for key in spec.options
    ]
    return sorted({tuple(key.replace("*", "hpc").strip(".").split(".")) for key in of})


TREES, KEYS = trees(), keys()


def put(tree: Any, path: Path_, value: Any) -> None:
    """Sets a key, sections on the way included; `...` removes it."""
    for part in path[:-1]:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    if value is ...:
        tree.pop(path[-1], None)
    else:
        tree[path[-1]] = copy.deepcopy(value)


@st.composite
def texts(draw: st.DrawFn, sources: list[dict[str, Any]], at: list[Path_]) -> str:
    """Draws a source's YAML in which one to four keys are changed, and sometimes some letters."""
    tree = copy.deepcopy(draw(st.sampled_from(sources)))
    for path in draw(st.lists(st.sampled_from(at), min_size=1, max_size=4)):
        put(tree, path, draw(VALUES | st.just(...)))
    text = str(yaml.safe_dump(tree, sort_keys=False))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.text(max_size=3)) + text[place + draw(st.integers(0, 5)) :]
    return text


@pytest.fixture(autouse=True)
def scarce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives tests little memory, no data files, and no report."""
    without_report(monkeypatch)
    monkeypatch.setattr(memory, "read_machine_memory", lambda: MEMORY)
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@settings(max_examples=500, suppress_health_check=list(HealthCheck), derandomize=True, database=None, deadline=None)
@given(texts(TREES, KEYS))
def test_an_odd_scenario_is_read_or_is_refused_with_one_line(text: str) -> None:
    """Checks also that a scenario that is read survives YAML, and that its tiers add up to its clients."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "odd.yaml"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        status, out, err = run_command("check", file)
        if not status:
            scenario = read_scenario(file)
            assert read_scenario(dump_scenario(scenario)) == scenario
            if (number := scenario.clients.number) is not None:
                assert sum(tier.number for tier in tier_table(scenario, number)) == number
    assert "Traceback" not in err + out
    if status:
        assert len(err.splitlines()) == 1 and err.startswith("fedray: ") and len(err) < 1000 and status == 2, err


# -- YAML of somebody else: whatever it holds, it is a value or one line

KINDS = ("null", "bool", "int", "float", "str", "seq", "map", "set", "omap", "pairs", "binary", "timestamp", "merge")
TAGS = st.sampled_from([*(f"!!{kind}" for kind in KINDS), "!evil", "!!python/name:os.system", "!<x>", "!"])
SCRAPS = st.text("abx019.-_~:{}[]*&,'\"\\UuxdF \n", max_size=12)
PLAIN = (dict, list, str, int, float, bool, type(None))


def read(text: str) -> object:
    """Returns the value of a YAML text, or the line that says what is wrong."""
    try:
        return parse_yaml(text)
    except BadInput as error:
        assert "\n" not in str(error) and str(error).isprintable()
        return str(error)


@settings(max_examples=500, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.tuples(TAGS, SCRAPS), min_size=1, max_size=4))
def test_tags_before_anything_are_values_or_one_line(entries: list[tuple[str, str]]) -> None:
    assert isinstance(read("".join(f"- {tag} {word}\n" for tag, word in entries)), PLAIN)
    assert isinstance(read("{" + ", ".join(f"{tag} {word}: {tag} {word}" for tag, word in entries) + "}"), PLAIN)


if __name__ == "__main__":
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-q", __file__], cwd=ROOT, check=False).returncode)
