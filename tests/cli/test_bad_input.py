"""What fails while a command works is one line behind its progress, exit status 1, and nothing that existed changes.

What is refused before, with status 2, stands in `tests/wording/command.txt`. `{run}` is a finished run, `{cut}`
lost a checkpoint, `{out}` does not exist, `{file}` is a scenario, `{disk}` a full disk that holds a user's file and an
earlier report.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from small import run_command, scenario

import fedray

RUN = "run {file} --out {out} "
WHILE_RUNNING: list[tuple[str, str]] = [
    (RUN + "local.lr=1e30 local.epochs=3", "training diverged (NaN, infinite or huge weights) at client"),
    ("export {cut}", "round-000001 is missing: `fedray resume"),
    ("run {file} --out {disk}/new", "No space left on device: free space or choose another --out"),
    ("table {file} table='[{{name: a}}]' --out {disk}/new", "No space left on device: free space or choose another"),
    ("export {run} --out {disk}/new", "No space left on device: free space or choose another --out"),
    ("report {run} --out {disk}/report.html", "report.html: No space left on device: free space"),
]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A small disk that is full; None where we may not mount."""
    place = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    (place / "report.html").write_text("an earlier report")
    (place / "precious.bin").write_bytes(b"x" * (196 << 10))
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, disk: Path | None) -> dict[str, Path]:
    """What the table's names stand for."""
    home = tmp_path_factory.mktemp("bad")
    where = {name: home / name for name in ("run", "out", "cut")}
    for name in ("run", "cut"):
        fedray.run(scenario({"rounds": 1, "report": False}), out=where[name])
    (where["cut"] / "checkpoints" / "round-000001").rename(where["cut"] / "elsewhere")
    where["file"] = home / "file.yaml"
    where["file"].write_text(yaml.safe_dump(scenario()))
    return where | ({} if disk is None else {"disk": disk})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data, no cache and no runs of the user's are near."""
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.chdir(tmp_path)


def everything(places: dict[str, Path]) -> dict[str, str]:
    """Every file below the table's places but what a command may write, with a digest of what it holds."""
    homes = [places["run"].parent, *(places[name] for name in ("disk",) if name in places)]
    files = [path for home in homes for path in home.rglob("*") if path.name != ".lock" and path.is_file()]
    new = tuple(str(place) for place in (places["out"], places.get("disk", places["out"]) / "new"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if not str(path).startswith(new)}


@pytest.mark.short_report
@pytest.mark.parametrize(("typed", "says"), WHILE_RUNNING, ids=[typed for typed, _ in WHILE_RUNNING])
def test_what_fails_while_running_is_one_line(typed: str, says: str, places: dict[str, Path]) -> None:
    if "{disk}" in typed and "disk" not in places:
        pytest.skip("no right to mount a tmpfs")
    before = everything(places)
    result = run_command(*shlex.split(typed.format(**places)))
    lines = [line for line in result.err.splitlines() if not line.startswith("round ")]
    assert result.status == 1 and lines == lines[-1:] and "Traceback" not in result.out, result
    assert lines[0].startswith("fedray: ") and says in lines[0]
    assert everything(places) == before
