"""What is written replaces files alone, and makes no directory that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import run_command, scenario

import fedray
from fedray.core.errors import FedrayError
from fedray.files.plain import write_atomically

pytestmark = pytest.mark.short_report  # a page of a run that is read


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """A finished run."""
    return fedray.run(scenario({"rounds": 2, "report": False}), out=tmp_path_factory.mktemp("links") / "run")


@pytest.mark.parametrize("kind", ["device", "directory"])
def test_a_report_does_not_replace_a_directory_or_a_device(run: fedray.Run, tmp_path: Path, kind: str) -> None:
    target = tmp_path if kind == "directory" else Path("/dev/null")
    before = target.lstat()
    done = run_command("report", run.path, "--out", target)
    assert done.status == (2 if kind == "directory" else 1)
    assert str(target) in done.err and ("it is a directory" in done.err or "it is no file" in done.err)
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)


def test_a_writer_makes_no_directory_and_the_files_of_a_run_share_one_mode(run: fedray.Run, tmp_path: Path) -> None:
    """That of the umask: safetensors alone would write 0600, which other users cannot read."""
    with pytest.raises(FedrayError, match="is gone: was it moved or deleted"):
        write_atomically(tmp_path / "gone" / "summary.json", b"{}")
    assert not (tmp_path / "gone").exists()
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.path.rglob("*") if path.is_file()}
    assert len(set(modes.values())) == 1, modes
