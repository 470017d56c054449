"""Runs without their report."""

from __future__ import annotations

import pytest


def without_report(patch: pytest.MonkeyPatch) -> None:
    """Replaces the report, whose pictures take ten times as long as a small run, by an empty page."""
    patch.setattr("fedray.report.write.write_report", lambda _run_dirs, out: out.write_text("<html>"))
