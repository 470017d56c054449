"""A real launch on one machine: `python tools/cluster/launch.py`, as root, on Linux with iproute2, openssh and rsync.

Three hosts, each with its own network, processes, `/tmp`, home and sshd, are namespaces of this machine. `ray up` makes
a cluster of them from the shipped `cluster/on_premise.yaml`, of which only what is marked CHANGE is changed; a scenario
whose tiers pin to the two node types runs there, by `ray exec` and, where this machine has `ray[default]`, as a
submitted job; their directories are fetched; `ray down` ends the cluster. A host's `pip` stands for a package index: it
takes what this machine has installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HOSTS = {"head": "10.77.0.1", "strong": "10.77.0.2", "weak": "10.77.0.3"}
BRIDGE, GATEWAY = "fedray0", "10.77.0.254"
TOOLS = ("ip", "sshd", "ssh", "ssh-keygen", "rsync", "unshare", "mount")
PATIENCE = float(os.environ.get("FEDRAY_PATIENCE", "900"))  # seconds for each step
RAY = "from ray.scripts.scripts import main; main()"

PIP = """#!/bin/sh
# takes the place of pip: fedray from the folder that was copied here, the rest from this machine
echo "$HOME/fedray" > "$(echo $HOME/venv/lib/python3.*/site-packages)/fedray.pth"
"""
HOST = """
mount --make-rprivate /
mount --bind {home}/tmp /tmp
mount --bind {work}/passwd-{name} /etc/passwd
mount -t tmpfs -o size=2g tmpfs /dev/shm
hostname fedray-{name}
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -o ListenAddress={address} -o HostKey={work}/host_key -o AuthorizedKeysFile={work}/key.pub \
  -o PidFile=none -o UsePAM=no -o StrictModes=no -o PermitRootLogin=yes
"""


def do(*command: str | Path, **options: Any) -> str:
    """Runs a command; what it wrote, or the end of this program if it failed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:200]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return str(done.stdout)


def furnish(work: Path, name: str) -> Path:
    """Makes a host's home: a virtual environment with this machine's packages and the programs that a user calls."""
    home = work / name
    (home / "tmp").mkdir(parents=True)
    do(sys.executable, "-m", "venv", "--without-pip", home / "venv")
    packages = next((home / "venv" / "lib").glob("python3.*")) / "site-packages"
    (packages / "machine.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = home / "venv" / "bin" / "python"
    programs = {
        "pip": PIP,
        "ray": f"#!{python}\n{RAY}\n",
        "fedray": f"#!{python}\nfrom fedray.cli.commands import main\nmain()\n",
    }
    for program, text in programs.items():
        (python.parent / program).write_text(text)
        (python.parent / program).chmod(0o755)
    (home / ".bashrc").touch()
    users = Path("/etc/passwd").read_text().splitlines()[1:]
    (work / f"passwd-{name}").write_text("\n".join([f"root:x:0:0:root:{home}:/bin/bash", *users]) + "\n")
    return home


@contextmanager
def hosts(work: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Starts three hosts on one bridge."""
    do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", work / "key")
    do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", work / "host_key")
    do("ip", "link", "add", BRIDGE, "type", "bridge")
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        do("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        do("ip", "link", "set", BRIDGE, "up")
        for name, address in HOSTS.items():
            space, wire = f"fedray-{name}", f"fr-{name}"
            do("ip", "netns", "add", space)
            do("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
            do("ip", "link", "set", wire, "master", BRIDGE, "up")
            for words in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
                do("ip", "-n", space, *words.split())
            do("ip", "-n", space, "route", "add", "default", "via", GATEWAY)
            script = HOST.format(home=furnish(work, name), work=work, name=name, address=address)
            space_of = ["ip", "netns", "exec", space, "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork"]
            log = (work / f"{name}.log").open("wb")
            running[name] = subprocess.Popen(
                [*space_of, "--kill-child", "--mount-proc", "bash", "-c", script], stdout=log, stderr=log
            )
        yield running
    finally:
        for one in running.values():
            one.kill()  # the first process of a host: with it go all the others
            one.wait()
        for name in HOSTS:
            subprocess.run(["ip", "netns", "del", f"fedray-{name}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


def cluster_file(work: Path) -> Path:
    """Writes the shipped cluster file, with the values that are marked CHANGE replaced."""
    text = (ROOT / "cluster" / "on_premise.yaml").read_text()
    for old, new in (("10.0.0.", "10.77.0."), ("ubuntu", "root"), ("~/.ssh/id_ed25519", str(work / "key"))):
        assert old in text
        text = text.replace(old, new)
    file = work / "cluster.yaml"
    file.write_text(text)
    return file


def operator(work: Path) -> Callable[..., str]:
    """Returns a function that calls `ray` as the operator of the cluster, with a home and a /tmp of its own."""
    home = work / "operator"
    (home / "tmp").mkdir(parents=True)
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(os.urandom(32).hex())
    variables = {**os.environ, "HOME": str(home), "RAY_UP_enable_autoscaler_v2": "0", "PYTHONUNBUFFERED": "1"}
    private = f'mount --make-rprivate / && mount --bind {home}/tmp /tmp && exec "$0" "$@"'

    def ray(*words: str | Path, **more: str) -> str:
        print("ray", *words, flush=True)
        command = ["unshare", "--mount", "bash", "-c", private, sys.executable, "-c", RAY, *map(str, words)]
        return do(*command, cwd=ROOT, env=variables | more, stdin=subprocess.DEVNULL)

    return ray


@contextmanager
def dashboard(ray: Callable[..., str], file: Path) -> Iterator[dict[str, str]]:
    """Forwards the head's dashboard to this machine with `ray dashboard`. Yields the variables that find it."""
    from threading import Thread

    before = forwarders()
    Thread(target=ray, args=("dashboard", file), daemon=True).start()
    until("the dashboard", lambda: is_open("127.0.0.1", 8265))
    try:
        yield {"RAY_API_SERVER_ADDRESS": "http://127.0.0.1:8265", "RAY_AUTH_MODE": "token"}
    finally:
        for process in forwarders() - before:
            os.kill(process, signal.SIGTERM)


def forwarders() -> set[int]:
    """Returns the processes that forward a port by ssh."""
    found = subprocess.run(["pgrep", "-f", "ssh .*-L 8265"], capture_output=True, text=True, check=False)
    return {int(word) for word in found.stdout.split()}


def is_open(address: str, port: int) -> bool:
    """Returns whether a process listens at an address."""
    with socket.socket() as one:
        return one.connect_ex((address, port)) == 0


def network_of(process: Path) -> str:
    """Returns the network namespace of a process. The text is empty if the process has ended."""
    try:
        return str((process / "ns" / "net").readlink())
    except OSError:
        return ""


def inside(host: subprocess.Popen[bytes]) -> dict[Path, str]:
    """Returns the processes of a host: the folder of each in /proc, and its command."""
    mine = network_of(Path(f"/proc/{host.pid}"))
    found = {path: path / "cmdline" for path in Path("/proc").glob("[0-9]*") if mine and network_of(path) == mine}
    out = {}
    for path, line in found.items():
        try:
            out[path] = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return out


def ports(host: subprocess.Popen[bytes]) -> set[tuple[str, int]]:
    """Returns the address (as the kernel writes it) and the port of every socket on which a host listens."""
    tables = [Path(f"/proc/{host.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    where = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {(address, int(port, 16)) for address, port in where}


def until(what: str, holds: Callable[[], Any]) -> None:
    """Waits."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE:g} s: {what}")
        time.sleep(2)


def watched(running: dict[str, subprocess.Popen[bytes]], work: Callable[[], str]) -> dict[str, set[str]]:
    """Does some work; which classes of actors lived on which host meanwhile."""
    from threading import Thread

    seen: dict[str, set[str]] = {name: set() for name in running}
    thread = Thread(target=work)
    thread.start()
    while thread.is_alive():
        for name, host in running.items():
            lines = [line for line in inside(host).values() if line.startswith("ray::")]
            seen[name] |= {
                kind for kind in ("Client", "Coordinator") for line in lines if line.startswith(f"ray::{kind}")
            }
        thread.join(0.5)
    return seen


def launch(work: Path) -> None:
    """Follows all steps of `docs/cluster.md`."""
    file, ray = cluster_file(work), operator(work)
    with hosts(work) as running:
        until("sshd on every host", lambda: all(22 in {port for _, port in ports(host)} for host in running.values()))
        ray("up", "--yes", "--no-config-cache", file)
        until("both workers", lambda: all(t in ray("exec", file, "ray status") for t in ("/16.0 hpc", "/2.0 lpc")))
        everywhere = {port for address, port in ports(running["head"]) if address.strip("0") == ""}
        assert not {8265, 10001} & everywhere, f"the dashboard or the client port is open: {everywhere}"
        run = "fedray run ~/fedray/tools/cluster/pinned.yaml --address auto --out ~/runs/pinned"
        seen = watched(running, lambda: ray("exec", file, run))
        print("actors:", seen)
        assert seen == {"head": {"Coordinator"}, "strong": {"Client"}, "weak": {"Client"}}
        ray("rsync-down", file, "~/runs/pinned/", work / "fetched")
        if importlib.util.find_spec("aiohttp_cors") is None:
            print("job submission was not tried: this machine has no ray[default]")
        else:
            submit = "fedray run ~/fedray/tools/cluster/pinned.yaml --address auto --out ~/runs/job"
            with dashboard(ray, file) as here:
                ray("job", "submit", "--no-wait", "--submission-id", "pinned", "--", "bash", "-ic", submit, **here)
                print(ray("job", "logs", "--follow", "pinned", **here)[-300:])
            ray("rsync-down", file, "~/runs/job/", work / "job")
        ray("down", "--yes", file)
        until(
            "no Ray is left on the head", lambda: not any("raylet" in line for line in inside(running["head"]).values())
        )
    there, *jobs = (
        json.loads((work / name / "summary.json").read_text()) for name in ("fetched", "job") if (work / name).exists()
    )
    out = work / "inline"
    do(sys.executable, "-m", "fedray", "run", ROOT / "tools/cluster/pinned.yaml", "runtime=inline", "--out", out,
       cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    here = json.loads((out / "summary.json").read_text())
    same = all(run["model_hash"] == here["model_hash"] for run in (there, *jobs))
    assert same, "the cluster's models are not those of one process"
    print(f"done: {there['rounds']} rounds, model_hash {there['model_hash'][:16]} as in one process")


def main() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing or os.geteuid():
        raise SystemExit(f"run this as root, with {', '.join(missing) or 'nothing else'} installed")
    work = Path(tempfile.mkdtemp(prefix="fedray-launch-", dir="/var/tmp"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        launch(work)
    except BaseException:
        print(f"logs and homes of the hosts: {work}", file=sys.stderr)
        raise
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
