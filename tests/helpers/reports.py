"""Runs without their report, or with a short one: all its pictures take ten times as long as a small run.

And what a page may run: one script, whose digest its policy names, and which no name of a user can be part of.
"""

import base64
import hashlib
import re

import pytest

SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
NUMBERS = re.compile(r'<script type="application/json" id="numbers">([^<>&]*)</script>')


def remove_scripts(page: str) -> str:
    """Returns the page without its script and its numbers. Fails if it has any other script."""
    from fedray.report.page import read_script

    own = read_script()
    assert SCRIPT.findall(page) == [own]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in page.partition("<style>")[0]
    assert len(NUMBERS.findall(page)) == 1
    rest = NUMBERS.sub("", SCRIPT.sub("", page))
    assert "<script" not in rest.lower()
    return rest


def with_small_plane(patch: pytest.MonkeyPatch) -> None:
    """Makes the loss plane of runs coarse, which otherwise takes as long as a small run."""
    patch.setattr("fedray.evaluation.report_data.PLANE_RESOLUTION", {"mlp": (3, 20), "conv": (3, 20)})


def without_report(patch: pytest.MonkeyPatch) -> None:
    """Replaces the pages of runs, tables and sweeps by an empty one."""
    patch.setattr("fedray.report.page.write_report", lambda _run_dirs, out, **_: out.write_text("<html>"))
    patch.setattr("fedray.tuning.page.write_page", lambda *given: given[-1].write_text("<html>"))


def with_short_report(patch: pytest.MonkeyPatch) -> None:
    """Leaves the first picture of a run's report."""
    from fedray.report import page

    title, pictures = next(iter(page.SECTIONS.items()))
    patch.setattr(page, "SECTIONS", {title: dict([*pictures.items()][:1])})
