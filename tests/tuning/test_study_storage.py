"""A study's storage that is damaged, locked or lost is one line that names it, and never blames something else."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from sweeps import LR, run, sweep

from fedray.core.errors import BadInput, FedrayError, Unwritable
from fedray.tuning.optuna_study import MAKING_SECONDS, check_vacant, explain_storage, open_storage
from fedray.tuning.tune import run_sweep

SWEEP = sweep({"predict.gamma": [0.1, 1.0, 10.0]}, trials=3, sampler="grid", objectives=["personal_accuracy"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    run(SWEEP, out, report=False)
    return out


def damage_line(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b'{"op_code": 4, "worker_\xff\n', *lines[1:]]))


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "a broken line": (lambda out: damage_line(out / "study.journal"), "study.journal, line 2 is damaged"),
    "a line that is no entry": (
        lambda out: (out / "study.journal").write_text("[1]\n" + (out / "study.journal").read_text()),
        "study.journal, line 1 is damaged",
    ),
    "entries without their beginning": (
        lambda out: (out / "study.journal").write_text((out / "study.journal").read_text().partition("\n")[2]),
        r"study.journal is damaged \(it has no study",
    ),
    "an empty copy": (lambda out: (out / "sweep.yaml").write_text(""), "sweep.yaml is damaged"),
    "a copy that is a list": (lambda out: (out / "sweep.yaml").write_text("[1]"), "sweep.yaml is damaged"),
    "a journal that is a directory": (lambda out: replace_by_directory(out / "study.journal"), "study.journal"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_sweep_is_one_line_that_names_the_file(harm: str, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    HARM[harm][0](out)
    with pytest.raises(FedrayError, match=HARM[harm][1]) as caught:
        run(SWEEP, out, resume=True, report=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("killed", ["before the journal", "before the copy", "while it wrote it", "before the digests"])
def test_a_sweep_that_was_killed_while_it_made_its_directory_begins_there(
    killed: str, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / "trials").mkdir(parents=True)
    if killed != "before the journal":
        (out / "study.journal").touch()
    if killed == "while it wrote it":
        (out / f".{'0123456789ab' * 2}.part").write_text("scen")
    if killed == "before the digests":
        shutil.copy(finished / "sweep.yaml", out)
    assert run(SWEEP, out, resume=True, report=False)[0]["complete"] == 3
    assert (out / "identity.json").read_bytes() == (finished / "identity.json").read_bytes()


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_sweep_does_not_begin_anew_in_a_storage_that_lacks_its_study(kind: str, tmp_path: Path) -> None:
    """It trained other trials over those that it had."""
    found, out = sweep({"local.lr": LR}, trials=2, sampler="random"), tmp_path / "out"
    urls = [f"sqlite:///{tmp_path / name}.db" if kind == "sqlite" else None for name in ("own", "other")]
    _, trials = run(found, out, storage=urls[0], report=False)
    if kind == "journal":
        (out / "study.journal").write_text("")
    line = r"--storage sqlite://... has no study sweep, .*: give" if kind == "sqlite" else "journal is damaged"
    with pytest.raises(BadInput, match=line):
        run(found, out, storage=urls[1], resume=True, report=False)
    if kind == "sqlite":
        assert run(found, out, storage=urls[0], resume=True, report=False)[1] == trials


def test_a_lock_that_a_killed_sweep_left_does_not_stop_the_next_one(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "study.journal.lock").touch()
    assert run(SWEEP, out, resume=True, report=False)[0]["complete"] == 3
    assert not (out / "study.journal.lock").exists()


@pytest.mark.parametrize("lost", ["the journal", "the directory", "the disk"])
def test_a_storage_that_is_lost_in_mid_sweep_is_one_line(lost: str, tmp_path: Path) -> None:
    """Without a word Optuna goes on with a new journal, which knows nothing of the trials before."""
    out = tmp_path / "out"

    def lose(_line: str) -> None:
        if lost == "the journal":
            (out / "study.journal").unlink()
        elif lost == "the directory":
            shutil.rmtree(out)
        else:
            (out / "study.journal.lock").mkdir(parents=True)  # no lock can be had, and none is released
            (out / "study.journal").unlink()

    with pytest.raises(FedrayError, match=r"study\.journal|is gone|was moved or deleted") as caught:
        run_sweep(sweep({"local.lr": LR}, trials=3), out, say=lose, report=False)
    assert "\n" not in str(caught.value) and "memory" not in str(caught.value)


@pytest.mark.parametrize("text", ["[Errno 28] No space left on device", "database or disk is full"])
def test_a_full_disk_of_the_storage_is_not_to_be_brought_back(text: str) -> None:
    error = OSError(errno.ENOSPC, "No space left") if "28" in text else sqlite3.OperationalError(text)
    with pytest.raises(Unwritable, match="free space, then --resume"), explain_storage("sqlite:///study.db"):
        raise error


def test_a_database_that_somebody_else_has_locked_is_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}?timeout=0.1"
    holders: list[sqlite3.Connection] = []

    def lock(_line: str) -> None:
        if not holders:
            holders.append(sqlite3.connect(tmp_path / "study.db"))
            holders[0].execute("BEGIN EXCLUSIVE")

    with pytest.raises(
        FedrayError, match=r"the storage of the sweep \(sqlite://...\) cannot be used \(.*locked"
    ) as caught:
        run_sweep(sweep({"local.lr": LR}, trials=3), tmp_path / "out", storage=url, say=lock, report=False)
    holders[0].close()
    assert "\n" not in str(caught.value)


def test_a_database_of_something_else_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"no database" * 500)
    with pytest.raises(BadInput, match=r"--storage sqlite://... cannot be opened"):
        run_sweep(SWEEP, tmp_path / "out", storage=f"sqlite:///{tmp_path / 'study.db'}")


def test_two_sweeps_that_made_one_database_at_once_were_told_to_check_its_url(tmp_path: Path) -> None:
    """Five of six failed, because the tables were there already when they made them."""
    for attempt in range(3):
        url, start = f"sqlite:///{tmp_path}/study{attempt}.db", threading.Barrier(4)

        def begin(name: str, url: str = url, start: threading.Barrier = start) -> str:
            start.wait()
            check_vacant(url, name, resume=False)
            return optuna.create_study(storage=open_storage(url), study_name=name).study_name

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(begin, "abcd")) == list("abcd")


@pytest.mark.parametrize("url", ["sqlite:////nowhere/study.db", "nothing://study"])
def test_a_database_that_cannot_be_made_is_told_at_once(url: str) -> None:
    began = time.monotonic()
    with pytest.raises(BadInput, match="cannot be opened .*: check the URL and its driver"):
        open_storage(url)
    assert time.monotonic() - began < MAKING_SECONDS / 2
