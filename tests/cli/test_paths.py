"""Paths are expanded once, at the door, and can be written to before anything is trained."""

from pathlib import Path

import pytest
from small import run_command, scenario, write_keys

import fedray


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
    write_keys(home, scenario({"rounds": 1}))
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
