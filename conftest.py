"""Sets up the process before torch computes anything, for the tests and for the examples in docstrings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial

import pytest

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # MKL reads it at its first product
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test cuts the power, and to wait for the disk is a third of a small run. Processes that a test kills do wait.
os.fsync = lambda fd: None  # noqa: ARG005


@pytest.fixture(scope="session", autouse=True)
def _unnamed_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs without `out` lie in pytest's own folder, which pytest clears."""
    from fedray.files import plain as out_folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(out_folder, "mkdtemp", partial(tempfile.mkdtemp, dir=tmp_path_factory.mktemp("unnamed")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data sets are stored in pytest's own folder, once for all workers, and not in the user's cache."""
    from fedray.data.files import find_data_root

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRAY_DATA", str(find_data_root(None)))  # which without it lies in the user's cache
        patch.setenv("FEDRAY_CACHE", os.environ.get("FEDRAY_CACHE") or str(shared / "store"))
        yield


@pytest.fixture(autouse=True)
def _names_of_examples(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forgets the names that an example in a docstring registers, which later tests of the process would know."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    from own_names import forgetting_names

    with forgetting_names():
        yield


@pytest.fixture(autouse=True)
def _pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes empty pages in place of reports, which take ten times as long as a small run, and makes the plane coarse.

    A test that reads a page has the mark `drawn`, or `short_report` where one picture is enough.
    """
    from reports import with_short_report, with_small_plane, without_report

    with_small_plane(monkeypatch)
    if request.node.get_closest_marker("short_report"):
        with_short_report(monkeypatch)
    elif not request.node.get_closest_marker("drawn"):
        without_report(monkeypatch)
