"""Nothing outside a run directory is written through it: links in it are refused, and other names are never opened."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml
from small import run_command, scenario

import fedray
from fedray.core.errors import FedrayError
from fedray.files.plain import replace_file, write_atomically

pytestmark = pytest.mark.short_report  # a page of a run that is read
VICTIM = b"somebody else's file"
NAMES = (
    ".lock",
    ".report.html.part",
    "manifest.json",
    "identity.json",
    "report.html",
    "rounds.parquet/.part-000000002.parquet.part",
    "rounds.parquet/part-000000002.parquet",
    "checkpoints/.round-000002.part",
    "checkpoints/round-000002/state.safetensors",
    "export/replicate-0-fold-0-model-0.safetensors",
)
FOLDERS = ("rounds.parquet", "checkpoints", "export", "checkpoints/round-000002")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    """A finished run."""
    return fedray.run(scenario({"rounds": 2, "report": False}), out=tmp_path_factory.mktemp("links") / "run")


def plant(run: fedray.Run, tmp_path: Path, name: str, target: Path) -> Path:
    """A copy of the run in which a name is a link."""
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)
    return folder


@pytest.mark.parametrize("name", [*NAMES, *FOLDERS])
def test_a_link_in_a_run_directory_is_refused_and_not_followed(run: fedray.Run, tmp_path: Path, name: str) -> None:
    """By every command that reads or writes it, in one line that names the link."""
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "part-000000009.parquet"
    victim.write_bytes(VICTIM)
    folder = plant(run, tmp_path, name, outside if name in FOLDERS else victim)
    for command in ("resume", "report", "export"):
        done = run_command(command, folder)
        assert done.status in (1, 2), (command, done)
        assert f"{folder / name} is a symbolic link" in done.err.splitlines()[-1] and "Traceback" not in done.err
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [(victim.name, VICTIM)]
    assert (folder / name).is_symlink()


def test_tables_and_sweeps_follow_no_links_either(tmp_path: Path) -> None:
    victim, file, sweep = tmp_path / "victim", tmp_path / "table.yaml", tmp_path / "sweep.yaml"
    victim.write_bytes(VICTIM)
    given = {**scenario({"rounds": 1}), "table": [{"name": "a", "seed": 1}]}
    file.write_text(yaml.safe_dump(given))
    searched = {"scenario": scenario({"rounds": 1}), "space": {"local.lr": [0.1]}, "objectives": ["accuracy"]}
    sweep.write_text(yaml.safe_dump(searched))
    out = tmp_path / "out"
    out.mkdir()
    for name in ("table.md", "table.parquet", "cells", ".lock", "study.journal"):
        (out / name).symlink_to(victim)
        for command, source in (("table", file), ("tune", sweep)):
            done = run_command(command, source, "--out", out)
            assert done.status == 2, done
            assert "Traceback" not in done.err
        (out / name).unlink()
    assert victim.read_bytes() == VICTIM
    assert [path.name for path in out.iterdir()] == []


@pytest.mark.parametrize("kind", ["link", "device", "pipe", "directory"])
def test_a_report_does_not_replace_a_link_or_a_device(run: fedray.Run, tmp_path: Path, kind: str) -> None:
    victim, target = tmp_path / "victim", tmp_path / "page.html"
    victim.write_bytes(VICTIM)
    if kind == "link":
        target.symlink_to(victim)
    elif kind == "directory":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        target = Path("/dev/null")
    before = target.lstat()
    done = run_command("report", run.path, "--out", target)
    assert done.status == 2
    assert f"--out {target} cannot be written (it is a" in done.err
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert victim.read_bytes() == VICTIM


def test_a_link_to_the_run_directory_itself_is_a_name_like_any_other(run: fedray.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    (tmp_path / "name").symlink_to(tmp_path / "run")
    assert fedray.load(tmp_path / "name").summary["model_hash"] == run.summary["model_hash"]
    assert fedray.resume(tmp_path / "name").summary["model_hash"] == run.summary["model_hash"]


def test_temporary_names_cannot_be_guessed_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the file is opened as a new one only, so that whoever guesses one gets an error."""
    opened: list[tuple[str, int]] = []
    real = os.open

    def watch(path: str, flags: int, *more: int, **keywords: int) -> int:
        opened.append((str(path), flags))
        return real(path, flags, *more, **keywords)

    monkeypatch.setattr(os, "open", watch)
    for _ in range(2):
        replace_file(tmp_path / "a.json", b"1")
    names = [name for name, flags in opened if flags & os.O_CREAT]
    assert len(set(names)) == 2
    assert all(len(name) >= 24 for name in names)
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in opened if flags & os.O_CREAT)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_writer_makes_no_directory_and_the_files_of_a_run_share_one_mode(run: fedray.Run, tmp_path: Path) -> None:
    """That of the umask: safetensors alone would write 0600, which other users cannot read."""
    with pytest.raises(FedrayError, match="is gone: was it moved or deleted"):
        write_atomically(tmp_path / "gone" / "summary.json", b"{}")
    assert not (tmp_path / "gone").exists()
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.path.rglob("*") if path.is_file()}
    assert len(set(modes.values())) == 1, modes
