"""Which files of the user another process needs to import what they pass."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from fedray.own_code.user_modules import find_module_places, import_modules


def test_a_module_takes_along_what_it_names_and_a_package_its_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "places_main.py": "import json, torch\nfrom places_other import f\nimport places_package.inner\n",
        "places_other.py": "import places_main\n\ndef f(): pass\n",  # a circle
        "places_package/__init__.py": "",
        "places_package/inner.py": "",
        "places_unused.py": "",
    }
    (tmp_path / "places_package").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    main = importlib.import_module("places_main")
    importlib.import_module("places_unused")
    want = [tmp_path / name for name in ("places_main.py", "places_other.py", "places_package")]
    assert find_module_places(["places_main"]) == want
    assert find_module_places(["code/places_main.py"], [main.f]) == want
    assert find_module_places([], [main.f]) == want
    assert find_module_places(["places_unknown", "torch"], [len, Path]) == []


def test_a_copy_of_a_module_elsewhere_is_the_same_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's copy is imported while objects are unpacked, before the file itself is asked for."""
    for folder in ("sent", "own"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "places_copied.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "sent")
    known = importlib.import_module("places_copied")
    import_modules([str(tmp_path / "own" / "places_copied.py")])
    assert sys.modules["places_copied"] is known


def test_without_modules_the_import_path_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    import_modules(())
    assert sys.path == before
