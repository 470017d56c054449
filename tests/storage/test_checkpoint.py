"""A checkpoint is there or it is not: a crash, a full disk or damage never costs the one before it."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small import copy_run, run_command, scenario

import fedray
from fedray.core.errors import DamageWarning, FedrayError
from fedray.core.types import State
from fedray.files.bounded import find_checkpoints
from fedray.files.plain import write_atomically
from fedray.simulation.study import Progress
from fedray.storage import checkpoint
from fedray.storage.checkpoint import load_checkpoint, save_checkpoint


def progress(round: int, scale: float = 1.0) -> Progress:
    rng = np.random.default_rng(round)
    models = torch.from_numpy(rng.normal(size=(4, 7)).astype(np.float32)) * scale
    extra = {"job_loss": torch.full((2, 3, 2), float("nan")), "h": torch.from_numpy(rng.normal(size=5))}
    state = State(models, torch.arange(4)[:, None], extra)
    up, down = rng.integers(0, 2**40, 2), rng.integers(0, 2**40, 2)
    metrics = [{"accuracy": rng.random(), "nll": float("nan"), "member_accuracy": [0.1, 1 / 3]} for _ in range(2)]
    return Progress(round, state, up, down, rng.random(2) * 1e5, 1.25, metrics)


def same(one: Progress, other: Progress) -> bool:
    def bits(p: Progress) -> list[object]:
        tensors = [p.state.models, p.state.counters, *(p.state.extra[name] for name in sorted(p.state.extra))]
        arrays = [p.up_bytes, p.down_bytes, p.sim_seconds, *(tensor.numpy() for tensor in tensors)]
        return [p.round, p.wall_seconds, repr(p.metrics), *(a.tobytes() for a in arrays)]

    return bits(one) == bits(other)


@given(st.integers(0, 10**6))
def test_what_is_saved_is_loaded_to_the_bit(round: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        kept, private = progress(round, 1e-30), {"residual/rows": torch.rand(3, 2)}
        save_checkpoint(Path(folder), kept, private)
        loaded, own = load_checkpoint(Path(folder))
        assert same(kept, loaded)
        assert own.keys() == private.keys()
        assert torch.equal(own["residual/rows"], private["residual/rows"])


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    for round in (2, 4, 6, 8):
        save_checkpoint(tmp_path, progress(round), keep=2)
    assert find_checkpoints(tmp_path) == [6, 8]
    assert load_checkpoint(tmp_path)[0].round == 8
    assert same(load_checkpoint(tmp_path, 6)[0], progress(6))


def test_what_is_saved_stays_where_there_is_a_newer_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, progress(14), keep=1)
    assert save_checkpoint(tmp_path, progress(11), keep=1).is_dir()
    assert find_checkpoints(tmp_path) == [11]


def no_space(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed(*_args: object, **_kwargs: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["save_file", "sync_to_disk"])
@pytest.mark.parametrize("end", [no_space, killed])
def test_a_crash_while_writing_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, end: Callable[..., None]
) -> None:
    """Whether the disk is full or the process dies, and the next attempt works."""
    save_checkpoint(tmp_path, progress(2))
    monkeypatch.setattr(checkpoint, step, end)
    with pytest.raises(FedrayError if end is no_space else KeyboardInterrupt) as caught:
        save_checkpoint(tmp_path, progress(4), keep=1)
    if end is no_space:
        assert re.search("cannot write the checkpoint .*round-000004: No space left on device: free", str(caught.value))
        assert [path.name for path in tmp_path.iterdir()] == ["round-000002"]
    assert find_checkpoints(tmp_path) == [2]
    assert same(load_checkpoint(tmp_path)[0], progress(2))
    monkeypatch.undo()
    save_checkpoint(tmp_path, progress(4), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000004"]


def record_events(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bytes]]:
    """What is synced, renamed and removed below a folder from now on, in order: verb, name, what a synced file held."""
    events: list[tuple[str, str, bytes]] = []
    replace, rename, remove = Path.replace, Path.rename, shutil.rmtree

    def sync(handle: int) -> None:
        inode = os.fstat(handle).st_ino
        (path,) = (path for path in [root, *root.rglob("*")] if path.stat().st_ino == inode)
        events.append(("sync", path.name, path.read_bytes() if path.is_file() else b""))

    def move(path: Path, target: Path) -> Path:
        events.append(("rename", target.name, b""))
        return (replace if target.name[0] != "." else rename)(path, target)

    def delete(path: Path, **keywords: Any) -> None:
        events.extend([("remove", path.name, b"")] if path.exists() else [])
        remove(path, **keywords)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", move)
    monkeypatch.setattr(Path, "rename", move)
    monkeypatch.setattr(shutil, "rmtree", delete)
    return events


@pytest.mark.parametrize("before", [2, 4])
def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_before_another_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Whole files first, then their names, then the name of the folder; whether another round or its own was there."""
    save_checkpoint(tmp_path, progress(before), keep=1)
    events = record_events(tmp_path, monkeypatch)
    path = save_checkpoint(tmp_path, progress(4, 3.0), keep=1)
    files = sorted((name, held) for verb, name, held in events[:2] if verb == "sync")
    assert files == [(name, (path / name).read_bytes()) for name in ("progress.json", "state.safetensors")]
    steps = [(verb, "part" if name.endswith(".part") else name) for verb, name, _ in events[2:]]
    aside = [("rename", ".round-000004.old")] if before == 4 else []
    gone = ".round-000004.old" if before == 4 else "round-000002"
    assert steps == [("sync", "part"), *aside, ("rename", "round-000004"), ("sync", tmp_path.name), ("remove", gone)]


@pytest.mark.parametrize("end", [no_space, killed])
def test_a_crash_while_a_round_is_written_again_leaves_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[..., None]
) -> None:
    save_checkpoint(tmp_path, progress(2), keep=1)
    monkeypatch.setattr(Path, "replace", end)
    with pytest.raises(FedrayError if end is no_space else KeyboardInterrupt):
        save_checkpoint(tmp_path, progress(2, 3.0), keep=1)
    monkeypatch.undo()
    assert same(load_checkpoint(tmp_path)[0], progress(2))
    save_checkpoint(tmp_path, progress(2, 3.0), keep=1)
    assert same(load_checkpoint(tmp_path)[0], progress(2, 3.0))
    assert [path.name for path in tmp_path.iterdir()] == ["round-000002"]


def test_a_run_goes_on_from_a_checkpoint_whose_replacement_never_came(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process was killed between the two names."""
    run = fedray.run(scenario(), out=tmp_path / "run")
    again = copy_run(run, tmp_path / "again", 2)
    (again / "checkpoints/round-000002").rename(again / "checkpoints/.round-000002.old")
    with pytest.raises(FedrayError, match=f"no checkpoint at its place: `fedray resume {again}` goes on"):
        load_checkpoint(again / "checkpoints")
    with caplog.at_level(logging.INFO, "fedray"):
        resumed = fedray.resume(again)
    assert "training from round 2 on" in caplog.messages
    assert resumed.summary["state_hash"] == run.summary["state_hash"]
    assert not list((again / "checkpoints").glob(".*"))


@pytest.mark.parametrize("end", [no_space, killed])
def test_a_file_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[..., None]
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", end)
    with pytest.raises(FedrayError if end is no_space else KeyboardInterrupt):
        write_atomically(path, b"new" * 1000)
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir() if p.suffix == ".json"] == [("summary.json", b"new")]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    """Another digit, still well-formed."""
    data = bytearray(path.read_bytes())
    if path.suffix == ".json":
        at = data.index(b'"up_bytes": [') + 13
        data[at] = data[at] % 57 + 1 if data[at] != 49 else 50
    else:
        data[-3] ^= 1
    path.write_bytes(bytes(data))


DAMAGE: list[Callable[[Path], object]] = [cut, flip, Path.unlink, lambda path: path.write_bytes(b"")]
DAMAGE += [lambda path: path.write_bytes(b"\xff\x00" * 40), lambda path: path.write_text("{}")]
DAMAGE += [lambda path: path.write_text("[1]"), lambda path: path.write_text("null")]


@pytest.mark.parametrize("file", ["state.safetensors", "progress.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_line_that_names_the_file(tmp_path: Path, file: str, damage: Callable[[Path], None]) -> None:
    """Not one flipped bit is accepted, and the checkpoint before it can still be used as the line says."""
    save_checkpoint(tmp_path, progress(2))
    path = save_checkpoint(tmp_path, progress(4)) / file
    damage(path)
    with pytest.raises(FedrayError) as caught:
        load_checkpoint(tmp_path)
    line = str(caught.value)
    assert line.startswith(f"{path} is " + ("damaged (" if path.exists() else "missing: ")), line
    assert line.endswith("` goes on from the checkpoint before it")
    assert "remove" not in line
    assert len(line.splitlines()) == 1
    assert same(load_checkpoint(tmp_path, 2)[0], progress(2))


def test_other_tensors_in_the_file_are_noticed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, progress(2)) / "state.safetensors"
    save_file({**load_file(path), "models": torch.zeros(4, 7)}, path)
    with pytest.raises(FedrayError, match=r"state.safetensors is damaged \(its checksum differs\)"):
        load_checkpoint(tmp_path)


def test_a_run_with_a_damaged_checkpoint_resumes_from_the_one_before(tmp_path: Path) -> None:
    """What the line promises: resume sets it aside, names it, and ends in the same bits."""
    run = fedray.run(scenario(), out=tmp_path / "run")
    again = copy_run(run, tmp_path / "again", 4)
    broken = again / "checkpoints" / "round-000004" / "state.safetensors"
    cut(broken)
    left = broken.read_bytes()
    with pytest.raises(FedrayError, match="round-000004/state.safetensors is damaged"):
        _ = fedray.load(again).models
    with pytest.warns(DamageWarning, match="state.safetensors is damaged .* goes on from the checkpoint of round 2"):
        resumed = fedray.resume(again)
    assert resumed.summary["state_hash"] == run.summary["state_hash"]
    assert (again / "set-aside/1/checkpoints/round-000004/state.safetensors").read_bytes() == left


def test_a_copied_folder_is_no_checkpoint(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, progress(2))
    for name in ("round-000002.bak", "round-000009 (copy)"):
        shutil.copytree(path, tmp_path / name)
    assert find_checkpoints(tmp_path) == [2]
    assert load_checkpoint(tmp_path)[0].round == 2
    save_checkpoint(tmp_path, progress(3))


def test_fewer_rounds_than_a_run_has_done_end_it(tmp_path: Path) -> None:
    """In a directory that does not say what the run began with; in others an edited scenario is refused."""
    run = fedray.run(scenario(), out=tmp_path / "run")
    again = copy_run(run, tmp_path / "again", 4)
    for name in ("identity.json", "manifest.json"):
        (again / name).unlink()
    file = again / "scenario.yaml"
    file.write_text(file.read_text().replace("rounds: 4", "rounds: 3"))
    assert fedray.resume(again).summary["state_hash"] == run.summary["state_hash"]


def test_another_scenario_under_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """More rounds may be asked of a finished run; another shape of models may not, with or without an identity."""
    run = fedray.run(scenario(), out=tmp_path / "run")
    longer = copy_run(run, tmp_path / "longer", 4)
    whole = fedray.run(scenario({"rounds": 6}))
    assert fedray.resume(longer, rounds=6).summary["model_hash"] == whole.summary["model_hash"]
    text = (longer / "scenario.yaml").read_text()
    (longer / "scenario.yaml").write_text(text.replace("models: 5", "models: 3"))
    with pytest.raises(FedrayError, match="method.models = 3, but the run began with 5"):
        fedray.resume(longer)
    for name in ("identity.json", "manifest.json"):
        (longer / name).unlink()
    with pytest.raises(FedrayError, match="wants 3 models .* the checkpoint of round 6 holds 5") as caught:
        fedray.resume(longer)
    assert len(str(caught.value).splitlines()) == 1


def test_two_processes_never_write_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits a while and gives up; the lock of a process that was killed is gone."""
    run = fedray.run(scenario(), out=tmp_path / "run")
    monkeypatch.setattr("fedray.files.plain.LOCK_SECONDS", 0.3)
    holder = (
        "import fcntl, sys, time\n"
        f"file = open({str(run.path / '.lock')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(FedrayError, match=re.escape(str(run.path))):
            fedray.resume(run.path)
        other.kill()
    assert fedray.resume(run.path).summary["model_hash"] == run.summary["model_hash"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 200 kB."""
    where = tmp_path / "disk"
    where.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(where)], capture_output=True)
    if made.returncode:
        pytest.skip("no right to mount a tmpfs")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


def test_a_full_disk_leaves_what_was_saved(small_disk: Path, tmp_path: Path) -> None:
    """Status 1 and one line while running; the checkpoints before it are whole; with space the run goes on."""
    given = scenario({"rounds": 12, "model": {"hidden": [40]}, "checkpoint": {"every": 1, "keep": 99}})
    file, whole = tmp_path / "small.yaml", tmp_path / "whole"
    file.write_text(yaml.safe_dump(given))
    full = run_command("run", file, "--out", small_disk / "run")
    said = [line for line in full.err.splitlines() if not line.startswith("round ")]  # the progress of the run
    assert full.status == 1, full.err
    assert len(said) == 1
    assert re.fullmatch(r"fedray: cannot write .*: No space left on device.*: free space.*", said[0]), said
    folder = small_disk / "run" / "checkpoints"
    safe = find_checkpoints(folder)
    assert 1 < len(safe) < 12
    before = {round: (folder / f"round-{round:06d}" / "state.safetensors").read_bytes() for round in safe}
    again = run_command("resume", small_disk / "run")
    assert again.status == 1
    assert "No space left on device" in again.err.splitlines()[-1]
    assert "Traceback" not in again.err
    for round in safe:
        assert (folder / f"round-{round:06d}" / "state.safetensors").read_bytes() == before[round]
        assert load_checkpoint(folder, round)[0].round == round
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    done = run_command("resume", small_disk / "run")
    assert done.status == 0, done.err
    undisturbed = fedray.run(file, out=whole)
    assert (
        json.loads((small_disk / "run" / "summary.json").read_text())["state_hash"] == undisturbed.summary["state_hash"]
    )


def test_a_full_disk_at_the_start_is_one_line(small_disk: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(scenario()))
    (small_disk / "other").write_bytes(b"x" * (200 << 10))
    full = run_command("run", file, "--out", small_disk / "run")
    assert full.status == 1, full.err
    assert re.fullmatch(r"fedray: cannot write .*: No space left on device: free space.*\n", full.err)
    assert (small_disk / "other").stat().st_size == 200 << 10
