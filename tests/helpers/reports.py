"""Runs without their report, or with a short one: all its pictures take ten times as long as a small run."""

from __future__ import annotations

import pytest


def without_report(patch: pytest.MonkeyPatch) -> None:
    """Replaces the report by an empty page."""
    patch.setattr("fedray.report.write.write_report", lambda _run_dirs, out: out.write_text("<html>"))


def with_short_report(patch: pytest.MonkeyPatch) -> None:
    """Leaves the first picture of a run's report."""
    from fedray.report import page

    title, pictures = page.SECTIONS[0]
    patch.setattr(page, "SECTIONS", ((title, pictures[:1]),))
