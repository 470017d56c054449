"""What fails while a command works is one line behind its progress, exit status 1, and nothing that existed changes.

What is refused before, with status 2, stands in `tests/wording/command.txt`. `{run}` is a finished run, `{cut}` and
`{damaged}` lost parts of a checkpoint, `{out}` does not exist, `{file}` is a scenario, `{disk}` a full disk that holds
a user's file and an earlier report, `{little}` a disk of 200 kB.
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
    ("export {damaged}", "state.safetensors is damaged"),
    ("run {file} --out {disk}/new", "No space left on device: free space or choose another --out"),
    ("table {file} table='[{{name: a}}]' --out {disk}/new", "No space left on device: free space or choose another"),
    ("export {run} --out {disk}/new", "No space left on device: free space or choose another --out"),
    ("report {run} --out {disk}/x.html", "x.html: No space left on device: free space or choose another"),
    ("report {run} --out {disk}/report.html", "report.html: No space left on device: free space"),
    (
        "run {file} --out {little}/new rounds=99 checkpoint.every=1 checkpoint.keep=99 model.hidden=[40]",
        "No space left on device",
    ),
]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Two small disks, one of them full; nothing where we may not mount."""
    home = tmp_path_factory.mktemp("disks")
    mounted: dict[str, Path] = {}
    for name in ("disk", "little"):
        (home / name).mkdir()
        made = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(home / name)]
        if shutil.which("mount") and subprocess.run(made, capture_output=True).returncode == 0:
            mounted[name] = home / name
    if "disk" in mounted:
        (mounted["disk"] / "report.html").write_text("an earlier report")
        (mounted["disk"] / "precious.bin").write_bytes(b"x" * (196 << 10))
    try:
        yield mounted
    finally:
        for path in mounted.values():
            subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, disks: dict[str, Path]) -> dict[str, Path]:
    """What the table's names stand for."""
    home = tmp_path_factory.mktemp("bad")
    where = {name: home / name for name in ("run", "out", "cut", "damaged")}
    for name in ("run", "cut", "damaged"):
        fedray.run(scenario({"rounds": 1, "report": False}), out=where[name])
    (where["cut"] / "checkpoints" / "round-000001").rename(where["cut"] / "elsewhere")
    (where["damaged"] / "checkpoints" / "round-000001" / "state.safetensors").write_bytes(b"\xff" * 9)
    where["file"] = home / "file.yaml"
    where["file"].write_text(yaml.safe_dump(scenario()))
    return where | disks


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data, no cache and no runs of the user's are near."""
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.chdir(tmp_path)


def everything(places: dict[str, Path]) -> dict[str, str]:
    """Every file below the table's places, with a digest of what it holds."""
    homes = [places["run"].parent, *(places[name] for name in ("disk", "little") if name in places)]
    files = [path for home in homes for path in home.rglob("*") if path.name != ".lock"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in files}


@pytest.mark.short_report
@pytest.mark.parametrize(("typed", "says"), WHILE_RUNNING, ids=[typed for typed, _ in WHILE_RUNNING])
def test_what_fails_while_running_is_one_line(typed: str, says: str, places: dict[str, Path]) -> None:
    if any(f"{{{disk}}}" in typed and disk not in places for disk in ("disk", "little")):
        pytest.skip("no right to mount a tmpfs")
    before = everything(places)
    result = run_command(*shlex.split(typed.format(**places)))
    lines = [line for line in result.err.splitlines() if not line.startswith("round ")]
    assert result.status == 1 and lines == lines[-1:] and "Traceback" not in result.out, result
    assert lines[0].startswith("fedray: ") and says in lines[0]
    after = everything(places)
    new = [str(places[disk] / "new") for disk in ("disk", "little") if disk in places]
    own = (str(places["out"]), str(places["damaged"] / "manifest.json"), *new)
    assert {path: digest for path, digest in after.items() if not path.startswith(own)} == {
        path: digest for path, digest in before.items() if not path.startswith(own)
    }
