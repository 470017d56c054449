"""Paths are expanded once, at the door, and can be written to before anything is trained."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small import run_command, scenario

import fedray
from fedray.core.errors import BadInput
from fedray.files.plain import confirm_writable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, and a working directory that is another one."""
    place, here = tmp_path / "home", tmp_path / "here"
    place.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(here)
    return place


def test_a_tilde_is_the_home_directory_wherever_a_path_is_given(home: Path) -> None:
    """On the command line, also as `--out=~/x`, in Python and in a scenario; none makes a directory named `~`."""
    (home / "small.yaml").write_text(yaml.safe_dump(scenario({"rounds": 1})))
    done = run_command("run", "~/small.yaml", "--out=~/made/run")
    assert done.status == 0, done.err
    assert fedray.load("~/made/run").path == home / "made" / "run"
    assert run_command("resume", "~/made/run").status == 0
    assert run_command("export", "~/made/run", "--out=~/models").status == 0
    assert list((home / "models").glob("*.safetensors"))
    assert run_command("report", "~/made/run", "--out=~/page.html").status == 0
    assert (home / "page.html").is_file()
    again = fedray.run("~/small.yaml", out="~/python")
    assert fedray.resume("~/python").path == again.path == home / "python"
    assert again.export("~/own")[0].parent == home / "own"
    assert list(Path.cwd().iterdir()) == []


READING = ("resume {}", "report {}", "export {}", "plot {}", "tune {}.yaml --out {}", "run {}.yaml --out {}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a scenario in it; beside it a sweep of that name, which every command refuses later."""
    (tmp_path / "x.yaml").write_text("{rounds: 1, space: {}}")
    place = tmp_path / "x"
    place.mkdir()
    (place / "scenario.yaml").write_text("rounds: 1")
    return place


@pytest.mark.short_report
@pytest.mark.parametrize("what", ["", "scenario.yaml"])
@pytest.mark.parametrize(("number", "status"), [(errno.EACCES, 2), (errno.EIO, 1)], ids=["permission", "disk"])
def test_what_may_not_be_read_is_bad_input_and_a_broken_disk_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, what: str, number: int, status: int
) -> None:
    """A directory and a file of it, whichever command meets it: some said 1."""

    def fail(real: Callable[..., Any], inside: str) -> Callable[..., Any]:
        def call(path: Any = ".", *more: Any, **keys: Any) -> Any:
            if isinstance(path, str | os.PathLike) and f"{os.fspath(path)}/".startswith(f"{folder / what}{inside}"):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *more, **keys)

        return call

    for module, name in ((os, "listdir"), (os, "scandir"), (os, "open"), (io, "open")):
        monkeypatch.setattr(module, name, fail(getattr(module, name), "/"))
    if not what:  # what is in it cannot be looked at
        monkeypatch.setattr(os, "stat", fail(os.stat, "/scenario.yaml/"))
    for typed in READING[: 6 if not what else 4]:
        done = run_command(*typed.replace("{}", str(folder)).split())
        *others, line = done.err.splitlines()
        assert (done.status, line.startswith("fedray: ")) == (status, True), (typed, done)
        assert str(folder) in line, (typed, line)
        assert others in ([], ["drawing the report"])


def test_what_cannot_be_written_is_found_without_a_trace(tmp_path: Path) -> None:
    """A directory that is still to be made is looked for where it would be made."""
    confirm_writable("--out", tmp_path / "a" / "b" / "c")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="--out /proc/run cannot be written"):
        confirm_writable("--out", Path("/proc/run"))
