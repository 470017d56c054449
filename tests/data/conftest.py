"""Every test has its own cache; tests on the real files are skipped where `FEDRAY_DATA` does not say where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def real() -> Path:
    """The folder of the real files."""
    root = os.environ.get("FEDRAY_DATA")
    if not root:
        pytest.skip("FEDRAY_DATA is not set")
    return Path(root)
