"""Every key of a scenario decides its results, and a run goes on with no other value, unless the page says it may."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput
from fedray.scenario.identity import FREE_TIER_KEYS, find_changed_key, list_result_keys, refuse_edited_scenario
from fedray.scenario.schema import section_types

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "identity.md"
SECTIONS = {section.replace("*", "a") for section in section_types()}  # a tier named a
KEYS = [
    f"{section}.{'mine' if one.name == 'options' else one.name}".removeprefix(".").replace("*", "a")
    for section, owner in section_types().items()
    if section != "table.*"  # a list, which counts as a whole
    for one in fields(owner)
]
LEAVES = [key for key in KEYS if key not in SECTIONS]


def read_free_names() -> set[str]:
    """What `docs/reference/identity.md` lists; keys of a tier as those of the tier a."""
    listed = PAGE.read_text().split("These keys may be edited in `scenario.yaml`")[1].split("\n- ")[0]
    names = set(re.findall(r"`([a-z_.]+)`", listed))
    return {f"clients.tiers.a.{name}" if name in FREE_TIER_KEYS else name for name in names}


def is_listed(key: str, listed: set[str]) -> bool:
    return key in listed or key.split(".")[0] in listed


def nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def find_refusal(key: str) -> str:
    """What is said where a run goes on with another value of a key; empty where it may."""
    before, after = ({"rounds": 3} | nest(key, value) for value in ("one", "two"))
    began = {"rounds": before["rounds"], "scenario": list_result_keys(before)}
    refuse_edited_scenario("run", began, before)
    try:
        refuse_edited_scenario("run", began, after)
    except BadInput as error:
        return str(error)
    return ""


def test_a_run_goes_on_with_another_value_of_no_key_but_those_that_the_page_lists() -> None:
    said, listed = {key: find_refusal(key) for key in LEAVES}, read_free_names()
    assert {key for key, line in said.items() if not line} == {key for key in LEAVES if is_listed(key, listed)}
    for key, line in said.items():
        assert not line or line.startswith(f"run/scenario.yaml has {key} = two, but the run began with one: restore it")
    assert len(LEAVES) > 130 and "local.lr" in LEAVES and "clients.tiers.a.uplink" in LEAVES


def test_runs_of_before_a_key_go_on_and_its_other_value_is_refused() -> None:
    """A file with the value that says what was done before is one without the key."""
    before = {"rounds": 3, "clients": {"number": 4}}
    plain, rounding = (before | {"clients": {"number": 4, "tf32": value}} for value in (False, True))
    assert list_result_keys(before) == list_result_keys(plain) != list_result_keys(rounding)
    for old, new in ((before, plain), (plain, before), (rounding, rounding)):
        assert find_changed_key(list_result_keys(old), new) is None
    assert find_changed_key({**list_result_keys(before), "clients.tf32": "false"}, before) is None
    for old in (before, plain):
        assert find_changed_key(list_result_keys(old), rounding) == ("clients.tf32", "false", "true")
        assert find_changed_key(list_result_keys(rounding), old) == ("clients.tf32", "true", "false")
