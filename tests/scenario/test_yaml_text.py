"""YAML of somebody else: whatever it holds, it is a value or one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedray.core.errors import BadInput
from fedray.scenario.yaml_text import parse_yaml

KINDS = ("null", "bool", "int", "float", "str", "seq", "map", "set", "omap", "pairs", "binary", "timestamp", "merge")
TAGS = st.sampled_from([*(f"!!{kind}" for kind in KINDS), "!evil", "!!python/name:os.system", "!<x>", "!"])
WORDS = st.text("abx019.-_~:{}[]*&,'\"\\UuxdF \n", max_size=12)


def read(text: str) -> object:
    """The value, or the line that says what is wrong."""
    try:
        return parse_yaml(text)
    except BadInput as error:
        assert "\n" not in str(error) and str(error).isprintable()
        return str(error)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name: "\\UFFFFFFFF"', "line 1: not valid YAML: found invalid Unicode character escape code"),
        ('name: "\\uD800"', "invalid Unicode character escape code"),
        ('name: "\ud800"', "surrogates not allowed"),
        ("rounds: !!bool x", "line 1: 'x' is no bool: remove the tag"),
        ("rounds: !!int 1.5", "'1.5' is no int"),
        ("rounds: !!timestamp 2001-99-99", "the tag '!!timestamp' is not known"),
        ("rounds: !!binary x", "the tag '!!binary' is not known"),
        ("rounds: !!set {a, b}", "the tag '!!set' is not known"),
        ("rounds: !!map x", "expected a mapping node"),
    ],
)
def test_what_no_scenario_holds_is_one_line(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=".") as caught:
        parse_yaml(text)
    assert says in str(caught.value)


PLAIN = (dict, list, str, int, float, bool, type(None))


@given(st.lists(st.tuples(TAGS, WORDS), min_size=1, max_size=4))
def test_tags_before_anything_are_values_or_one_line(entries: list[tuple[str, str]]) -> None:
    assert isinstance(read("".join(f"- {tag} {word}\n" for tag, word in entries)), PLAIN)
    assert isinstance(read("{" + ", ".join(f"{tag} {word}: {tag} {word}" for tag, word in entries) + "}"), PLAIN)


@given(st.binary(max_size=60))
def test_any_bytes_are_values_or_one_line(content: bytes) -> None:
    assert isinstance(read(content.decode("latin-1")), PLAIN)
    assert isinstance(read(content.decode("utf-16", errors="surrogatepass") if len(content) % 2 == 0 else ""), PLAIN)


def test_plain_values_are_what_they_were() -> None:
    found = parse_yaml("[1_000, 1e-3, .inf, ~, TRUE, 0x10, 2001-01-01, !!str 1, !!float 1]")
    assert found == [1000, 0.001, float("inf"), None, True, "0x10", "2001-01-01", "1", 1.0]
