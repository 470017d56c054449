"""Names that a change has retired: no module of the package uses them again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedray

TEXTS = {path: path.read_text() for path in Path(fedray.__file__).parent.rglob("*.py")}
RETIRED = {  # what took their place -> the names
    "fields of a section carry their checks (scenario/spec.py), and one builder makes it": (
        "pydantic",
        "PlainValidator",
        "TypeAdapter",
        "error_line",
        "_hints_of",
    ),
}


@pytest.mark.parametrize("name", [name for names in RETIRED.values() for name in names])
def test_no_module_names_what_was_retired(name: str) -> None:
    assert [str(path) for path, text in TEXTS.items() if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)] == []
