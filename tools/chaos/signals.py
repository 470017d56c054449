"""Signals at random moments of every command, inline and on Ray: one line, and then the same bits.

    python tools/chaos/signals.py [INLINE [RAY [SEED [COMMANDS]]]]

starts `fedray run`, `resume`, `table`, `tune` and `report` on small scenarios again and again. Each time one process
gets a signal at a random moment between its start and its end: the command itself (TERM, INT, INT twice, KILL), and on
Ray also the raylet, an agent or the head of the local Ray (KILL). Then the command that the line names is typed, until
the work is done. Counted are runs that end without a line, with a traceback, in other bits, or are silent too long.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from processes import MOST_SECONDS, Process, Said, watch
from undisturbed import Bench, read_results

from fedray.bench.rows import list_tree
from fedray.runtime import environment as leftovers

COMMANDS = ("run", "resume", "table", "tune", "report")
KINDS = ("TERM", "INT", "INT twice", "KILL")
RAY_KINDS = {  # and how their commands begin or what they contain
    "raylet": "/raylet/raylet ",
    "dashboard agent": "ray::DashboardAgent",
    "environment agent": "ray::RuntimeEnv",
    "head": "/gcs/gcs_server ",
}
STATUS = {"TERM": 143, "INT": 130, "INT twice": 130, "KILL": -9}
MOST_SILENCE = 30.0  # seconds without a line, on a machine of its own
ON_RAY_AGAIN = 0.3  # the share of the runs on Ray that go on there
GONE_SECONDS = 90.0  # for the processes of a Ray whose driver was killed: its agents try to reach the head for 60 s
MOST_LATE = 5  # signals one after the other that come after the end of their command
FRESH = 5  # every so many commands inline start a Python of their own; the others are forked, to be many
LINE = re.compile(r"fedray: ended by SIG(TERM|INT); (.+)")
# Ray ends a process whose head or raylet dies while `ray.init` connects to it.
ENDED_BY_RAY = ("GCS may have been killed", "from raylet because it is dead")
ADVICE = re.compile(r"`(fedray (?:resume|tune|report) [^`]*)`")


class Result(NamedTuple):
    """What one signal came to.

    Attributes:
        command: The command.
        runtime: `inline` or `ray`.
        kind: The signal, or what was killed.
        share: At which share of the undisturbed command's time it fell.
        silence: The longest time without a line, seconds.
        fault: What went wrong; empty where nothing did.
    """

    command: str
    runtime: str
    kind: str
    share: float
    silence: float
    fault: str


def takes_signals(pid: int) -> bool:
    """Returns whether the first lines of fedray have run. Before that, Python itself starts."""
    try:
        text = (Path("/proc") / str(pid) / "status").read_text()
    except OSError:
        return False
    return any(
        line.startswith("SigCgt:") and int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1
        for line in text.splitlines()
    )


def hit(kind: str, process: Process, dice: random.Random) -> bool:
    """Sends a signal; False where there is nobody to hit yet."""
    if kind in RAY_KINDS:
        found = [one.id for one in list_tree() if RAY_KINDS[kind] in one.command[:200] + " "]
        if not found:
            return False
        os.kill(found[0], signal.SIGKILL)
    else:
        number = getattr(signal, "SIG" + kind.split()[0])
        process.send_signal(number)
        if kind == "INT twice":
            time.sleep(dice.uniform(0.0, 0.3))
            if process.poll() is None:
                process.send_signal(number)
    return True


def disturb_once(
    bench: Bench, command: str, runtime: str, kind: str, dice: random.Random, *, fork: bool
) -> Result | None:
    """Sends one signal to a command, and lets the work be done. Returns None if the command ended before the signal."""
    want, seconds = bench.expect(command, runtime, fork=fork)
    words, out = bench.prepare(command, runtime)
    known = find_folders(bench.folder)
    at = dice.uniform(0.0, seconds)
    sent: list[float] = []
    raylets: set[int] = set()

    def disturb(process: Process, now: float) -> bool:
        if now >= at and takes_signals(process.pid):
            raylets.update(one.id for one in list_tree() if RAY_KINDS["raylet"] in one.command)
            if hit(kind, process, dice):
                sent.append(now)
            else:
                time.sleep(0.2)
        return bool(sent)

    said = watch(words, disturb, fork=fork)
    length = said.seconds
    fault = judge(said, kind, sent=bool(sent), complete=read_results(out) == want)
    killed = said.status == -signal.SIGKILL or is_ended_by_ray(said)
    fault = fault or find_leftovers(bench.folder, known, killed=killed)
    silence = said.silence
    for _ in range(5):
        if fault or (said.status == 0 and read_results(out) == want):
            break
        inline = runtime == "ray" and command != "tune" and go_on_inline(out, dice)
        again = follow(said, words, out)
        said = watch(again, fork=fork or inline)
        silence = max(silence, said.silence)
        if said.status:
            fault = f"after {shlex.join(again[1:3])} ...: status {said.status}: {' / '.join(said.lines[-3:])}"
    else:
        fault = "it did not come to its end in five commands"
    if not fault and read_results(out) != want:
        fault = f"other results: {read_results(out)} instead of {want}"
    if fault or sent:
        bench.learn_seconds(command, runtime, None, fork=fork)
        return Result(command, runtime, kind, at / seconds, silence, fault)
    bench.learn_seconds(command, runtime, length, fork=fork)
    return None


def judge(said: Said, kind: str, *, sent: bool, complete: bool) -> str:
    """Returns what is wrong with the end of a disturbed command, or an empty text."""
    text = "\n".join(said.lines)
    if said.seconds >= MOST_SECONDS:
        return f"it hung: {text[-500:]}"
    if any(word in text for word in ("Traceback", "Exception ignored", "*** SIG", "Stack trace", "Fatal Python")):
        return f"traceback: {text[-3000:]}"
    if said.status == 0 or not sent:
        return "" if said.status == 0 else f"status {said.status} without a signal: {text[-500:]}"
    if kind in RAY_KINDS:  # Ray is started again, or one line says what to do
        if is_ended_by_ray(said):
            return ""
        return "" if "fedray: " in said.lines[-1] and said.status == 1 else f"status {said.status}: {text[-500:]}"
    if kind == "KILL":
        return "" if said.status == -9 else f"status {said.status}: {text[-500:]}"
    if said.status == 128 - STATUS[kind] and complete:  # Python was ending already
        return ""
    lines = [line for line in said.lines if LINE.search(line)]
    if said.status != STATUS[kind] or len(lines) != 1 or not LINE.search(said.lines[-1]):
        return f"status {said.status}, {len(lines)} lines: {text[-500:]}"
    return ""


def go_on_inline(out: Path, dice: random.Random) -> bool:
    """Lets most runs that began on Ray go on without it, which gives the same bits sooner; a sweep would be another."""
    if dice.random() < ON_RAY_AGAIN:
        return False
    for path in (out.parent / "scenario.yaml", *out.rglob("scenario.yaml")):
        path.write_text(path.read_text().replace("runtime: ray", "runtime: inline"))
    return True


def is_dead(folder: Path) -> bool:
    """Returns whether the owner of a Ray's folder and all its processes have ended."""
    return leftovers.is_abandoned(folder) and not leftovers.session_processes(folder)


def is_ended_by_ray(said: Said) -> bool:
    """Returns whether Ray's own code ended a command, which no line of Python can prevent."""
    return said.status == 1 and any(text in line for text in ENDED_BY_RAY for line in said.lines)


def find_folders(place: Path) -> set[Path]:
    """Returns the folders of Rays in a place."""
    return {*place.glob(f"{leftovers.PREFIX}*")}


def find_leftovers(place: Path, known: set[Path], *, killed: bool) -> str:
    """Returns what a command on Ray has left behind. After a kill, removes the folders of dead Rays first."""
    if killed:
        deadline = time.monotonic() + GONE_SECONDS
        while not all(map(is_dead, leftovers.find_sessions([place]))) and time.monotonic() < deadline:
            time.sleep(0.2)
        for folder in filter(is_dead, leftovers.find_sessions([place])):
            leftovers.remove_session(folder)
    left = find_folders(place) - known
    return f"left behind: {', '.join(map(str, left))}" if left else ""


def follow(said: Said, words: list[str], out: Path) -> list[str]:
    """Returns the next command: the one that the message names, or else the one that a person would type."""
    named = ADVICE.search(said.lines[-1]) if said.lines else None
    if named is not None and "..." not in named.group(1):
        return shlex.split(named.group(1))
    if words[1] == "run" and (out / "scenario.yaml").is_file():
        return ["fedray", "resume", str(out)]
    if words[1] == "tune" and (out / "sweep.yaml").is_file() and "--resume" not in words:
        return [*words, "--resume"]
    return words


def run_signals(number: dict[str, int], seed: int, commands: Sequence[str], folder: Path) -> list[Result]:
    """Disturbs commands on both runtimes; the kinds and the commands take turns."""
    dice, bench, results = random.Random(seed), Bench(folder), []
    for runtime, many in number.items():
        named = [name for name in commands if runtime == "inline" or name != "report"]
        kinds = [*KINDS, *(RAY_KINDS if runtime == "ray" else ())]
        pairs = [(command, kind) for command in named for kind in kinds]
        for i in range(many):
            if i % len(pairs) == 0:
                dice.shuffle(pairs)
            command, kind = pairs[i % len(pairs)]
            fork = runtime == "inline" and i % FRESH != 0
            tries = (disturb_once(bench, command, runtime, kind, dice, fork=fork) for _ in range(MOST_LATE))
            result = next(filter(None, tries), None)
            print(*(result or (command, runtime, kind, "always too late")), sep=" | ", flush=True)
            results += [result] if result else []
    return results


def describe_results(results: list[Result]) -> str:
    """Returns a table of commands, faults and longest silence in seconds, by runtime and kind of signal."""
    rows = Counter((one.runtime, one.kind) for one in results)
    lines = []
    for (runtime, kind), number in sorted(rows.items()):
        same = [one for one in results if (one.runtime, one.kind) == (runtime, kind)]
        each = " | ".join(str(sum(one.command == name for one in same)) for name in COMMANDS)
        faults, silence = sum(bool(one.fault) for one in same), max(one.silence for one in same)
        lines.append(f"| {runtime} | {kind} | {each} | {number} | {faults} | {silence:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    inline, ray, seed, names = sys.argv[1:] + ["160", "40", "0", ",".join(COMMANDS)][len(sys.argv) - 1 :]
    with tempfile.TemporaryDirectory(prefix="s-") as place:  # short: the paths of Ray's sockets are limited
        os.environ["RAY_TMPDIR"] = place
        many = {"inline": int(inline), "ray": int(ray)}
        outcome = run_signals(many, int(seed), names.split(","), Path(place))
    print(describe_results(outcome))
    sys.exit(any(one.fault for one in outcome))
