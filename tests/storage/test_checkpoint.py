"""A checkpoint is there or it is not: a crash, a full disk or damage never costs the one before it."""

import errno
import os
import re
import resource
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from small import copy_run, scenario

import fedray
from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import State
from fedray.files.plain import hold_lock, write_atomically
from fedray.files.run_files import find_checkpoints
from fedray.process import end_on_signals
from fedray.simulation.study import Progress
from fedray.storage import checkpoint
from fedray.storage.checkpoint import load_checkpoint, save_checkpoint


def progress(round: int, scale: float = 1.0) -> Progress:
    rng = np.random.default_rng(round)
    models = torch.from_numpy(rng.normal(size=(4, 7)).astype(np.float32)) * scale
    extra = {"job_loss": torch.full((2, 3, 2), float("nan")), "h": torch.from_numpy(rng.normal(size=5))}
    extra |= {"kept": models, "first": models[:1]}  # a server may keep the models themselves
    state = State(models, torch.arange(4)[:, None], extra)
    up, down = rng.integers(0, 2**40, 2), rng.integers(0, 2**40, 2)
    metrics = [{"accuracy": rng.random(), "nll": float("nan"), "member_accuracy": [0.1, 1 / 3]} for _ in range(2)]
    return Progress(round, state, up, down, rng.random(2) * 1e5, 1.25, metrics, failed=round % 7)


def same(one: Progress, other: Progress) -> bool:
    def bits(p: Progress) -> list[object]:
        tensors = [p.state.models, p.state.counters, *(p.state.extra[name] for name in sorted(p.state.extra))]
        arrays = [p.up_bytes, p.down_bytes, p.sim_seconds, *(tensor.numpy() for tensor in tensors)]
        return [p.round, p.wall_seconds, p.failed, repr(p.metrics), *(a.tobytes() for a in arrays)]

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


def test_the_newest_few_are_kept_and_what_was_saved_last(tmp_path: Path) -> None:
    """Copied folders are no checkpoints."""
    for round in (2, 4, 6, 8):
        path = save_checkpoint(tmp_path, progress(round), keep=2)
    for name in ("round-000008.bak", "round-000009 (copy)"):
        shutil.copytree(path, tmp_path / name)
    assert find_checkpoints(tmp_path) == [6, 8]
    assert load_checkpoint(tmp_path)[0].round == 8
    assert same(load_checkpoint(tmp_path, 6)[0], progress(6))
    save_checkpoint(tmp_path, progress(7), keep=1)  # a newer one is there
    assert find_checkpoints(tmp_path) == [7]


def no_space(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_space_in_words(*_args: object, **_kwargs: object) -> None:
    raise SafetensorError("No space left on device")


def killed(*_args: object, **_kwargs: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["save_file", "sync_to_disk", "replace"])
@pytest.mark.parametrize("end", [no_space, no_space_in_words, killed])
def test_a_crash_while_writing_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, end: Callable[..., None]
) -> None:
    """Whether the disk is full or the process dies, and the next attempt works."""
    save_checkpoint(tmp_path, progress(2))
    monkeypatch.setattr(Path if step == "replace" else checkpoint, step, end)
    with pytest.raises(KeyboardInterrupt if end is killed else FedrayError) as caught:
        save_checkpoint(tmp_path, progress(4, 3.0), keep=1)
    if end is not killed:
        assert "round-000004: No space left on device: free" in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["round-000002"]
    monkeypatch.undo()
    assert same(load_checkpoint(tmp_path)[0], progress(2))
    save_checkpoint(tmp_path, progress(4, 3.0), keep=1)
    assert same(load_checkpoint(tmp_path)[0], progress(4, 3.0))
    assert [path.name for path in tmp_path.iterdir()] == ["round-000004"]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_before_another_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole files first, then their names, then the name of the folder."""
    save_checkpoint(tmp_path, progress(2), keep=1)
    events: list[tuple[str, str]] = []
    replace, remove = Path.replace, shutil.rmtree

    def sync(handle: int) -> None:
        inode = os.fstat(handle).st_ino
        (path,) = (path for path in [tmp_path, *tmp_path.rglob("*")] if path.stat().st_ino == inode)
        events.append(("sync", path.name))

    def move(path: Path, target: Path) -> Path:
        events.append(("rename", target.name))
        return replace(path, target)

    def delete(path: Path, **keywords: Any) -> None:
        events.extend([("remove", path.name)] if path.exists() else [])
        remove(path, **keywords)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", move)
    monkeypatch.setattr(shutil, "rmtree", delete)
    save_checkpoint(tmp_path, progress(4, 3.0), keep=1)
    assert sorted(name for _, name in events[:2]) == ["progress.json", "state.safetensors"]
    steps = [(verb, "part" if name.endswith(".part") else name) for verb, name in events[2:]]
    new, old = "round-000004", "round-000002"
    assert steps == [("sync", "part"), ("rename", new), ("sync", tmp_path.name), ("remove", old)]


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
    os.mkfifo(pipe := tmp_path / "a pipe")
    for other in (pipe, tmp_path):
        with pytest.raises(FedrayError):
            write_atomically(other, b"new")
    (tmp_path / ".guessed.part").symlink_to(path)  # a temporary name that somebody has guessed
    with monkeypatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda _bytes: "guessed")
        with pytest.raises(FedrayError):
            write_atomically(tmp_path / "other.json", b"new")
    assert pipe.is_fifo() and path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir() if p.suffix == ".json"] == [("summary.json", b"new")]


def flip(path: Path) -> None:
    """Another digit, still well-formed."""
    data = bytearray(path.read_bytes())
    if path.suffix == ".json":
        at = data.index(b'"up_bytes": [') + 13
        data[at] = data[at] % 57 + 1 if data[at] != 49 else 50
    else:
        data[-3] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("file", ["state.safetensors", "progress.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_text("[1]")])
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
    assert "remove" not in line and len(line.splitlines()) == 1
    assert same(load_checkpoint(tmp_path, 2)[0], progress(2))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedray.Run:
    return fedray.run(scenario({"report": False}), out=tmp_path_factory.mktemp("whole") / "run")


def test_a_full_disk_is_one_line_and_with_space_the_run_goes_on_to_the_same_bits(
    run: fedray.Run, tmp_path: Path
) -> None:
    """The operating system refuses every byte from round 3 on."""
    out, limit, full = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE), [3]

    def fill(round: int, _scores: dict[str, float], _models: Any) -> None:
        if round in full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))

    try:
        with pytest.raises(FedrayError, match="free space") as caught:
            fedray.run(scenario({"report": False}), out=out, callbacks=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "\n" not in str(caught.value) and load_checkpoint(out / "checkpoints")[0].round == 2
    full.clear()
    assert fedray.resume(out, callbacks=fill).summary["state_hash"] == run.summary["state_hash"]


def test_a_run_that_was_made_longer_has_the_summary_of_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = scenario({"report": False, "evaluate": {"every": 3, "target": {"metric": "accuracy", "value": 0.0}}})
    short, long = (fedray.run(keys, rounds=rounds) for rounds in (4, 7))
    with end_on_signals() as ending, monkeypatch.context() as patched:
        patched.setattr("fedray.experiments.run.build_study", None)  # it ends where the data would be read
        with pytest.raises(TypeError):
            fedray.resume(short.path, rounds=7)
    assert ending.read_advice().startswith(f"`fedray resume {short.path} --rounds 7` goes on")
    assert fedray.resume(short.path, rounds=7).summary["metrics"] == long.summary["metrics"]


def test_another_shape_of_models_under_a_checkpoint_is_refused(run: fedray.Run, tmp_path: Path) -> None:
    """Where no identity says that it is another one."""
    again = copy_run(run, tmp_path / "again", 4)
    text = (again / "scenario.yaml").read_text()
    for change in ("rounds: 3", "models: 3"):  # fewer rounds than it has done end it
        for name in ("identity.json", "manifest.json"):
            (again / name).unlink(missing_ok=True)
        (again / "scenario.yaml").write_text(re.sub(f"{change[:-1]}[45]", change, text))
        if change == "rounds: 3":
            assert fedray.resume(again).summary["state_hash"] == run.summary["state_hash"]
    with pytest.raises(FedrayError, match=r"wants .* \(\(3, 610\).* the checkpoint of round 4 holds \(\(5, 610\)"):
        fedray.resume(again)


def test_two_processes_never_write_one_directory(
    run: fedray.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits a while and gives up."""
    again = copy_run(run, tmp_path / "again", 4)
    monkeypatch.setattr("fedray.files.plain.LOCK_SECONDS", 0.3)
    with hold_lock(again / ".lock", BadInput("taken")), pytest.raises(FedrayError, match=re.escape(str(again))):
        fedray.resume(again)
    assert fedray.resume(again).summary["model_hash"] == run.summary["model_hash"]
