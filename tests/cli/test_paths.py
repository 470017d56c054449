"""Paths are expanded once, at the door, and can be written to before anything is trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_a_directory_that_cannot_be_written_is_named_before_torch_is_imported(tmp_path: Path) -> None:
    """By every command that writes."""
    file, taken, folder = tmp_path / "small.yaml", tmp_path / "file", tmp_path / "folder"
    file.write_text(yaml.safe_dump({**scenario(), "table": [{"name": "a", "seed": 1}]}))
    (tmp_path / "sweep.yaml").write_text("{scenario: small.yaml, space: {seed: [1]}, objectives: [accuracy]}")
    taken.write_text("")
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "scenario.yaml").write_text("rounds: 1")
    commands = [
        ["run", str(file), f"--out={taken}/run"],
        ["table", str(file), f"--out={taken}/run"],
        ["tune", str(tmp_path / "sweep.yaml"), f"--out={taken}/run"],
        ["export", str(folder), f"--out={taken}/run"],
        ["report", str(folder), f"--out={taken}/page.html"],
    ]
    code = (
        "import sys\nfrom fedray.cli.commands import main\n"
        f"for command in {commands!r}:\n"
        "    try:\n        main(command)\n"
        "    except SystemExit as end:\n        print(end.code, sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 []"] * len(commands), done
    assert len(done.stderr.splitlines()) == len(commands)
    assert all("cannot be written" in line and str(taken) in line for line in done.stderr.splitlines()), done.stderr


def test_what_cannot_be_written_is_found_without_a_trace(tmp_path: Path) -> None:
    """A directory that is still to be made is looked for where it would be made."""
    confirm_writable("--out", tmp_path / "a" / "b" / "c")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="--out /proc/run cannot be written"):
        confirm_writable("--out", Path("/proc/run"))
