"""Tests of the command line read what it says line by line, so that no phase is said on a busy machine."""

import pytest


@pytest.fixture(autouse=True)
def no_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedray.experiments.live.SOON", 1e9)
    monkeypatch.setattr("fedray.experiments.live.SILENCE", 1e9)
