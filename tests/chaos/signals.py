"""Signals at random moments of every command, inline and on Ray: one line, and then the same bits.

    python tests/chaos/signals.py [INLINE [RAY [SEED [COMMANDS]]]]

starts `fedray run`, `resume`, `table`, `tune` and `report` on small scenarios again and again. Each time one process
gets a signal at a random moment between its start and its end: the command itself (TERM, INT, INT twice, KILL), and on
Ray also the raylet, an agent or the head of the local Ray (KILL). Then the command that the line names is typed, until
the work is done. Counted are runs that end without a line, with a traceback, in other bits, or are silent too long.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from processes import MOST_SECONDS, Process, Said, watch

from fedray.bench.measure import list_tree

SCENARIO: dict[str, Any] = {
    "rounds": 30,
    "runtime": "inline",
    "data": {"name": "digits", "limit": 240},
    "model": {"name": "mlp", "hidden": [8]},
    "method": {"name": "feddyn"},
    "clients": {"number": 6},
    "local": {"lr": 0.05, "batch_size": 8, "epochs": 1},
    "checkpoint": {"every": 2, "keep": 3},
    "evaluate": {"every": 5},
    "report": True,
}
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
FRESH = 5  # every so many commands inline start a Python of their own; the others are forked, to be many
LINE = re.compile(r"fedray: ended by SIG(TERM|INT); (.+)")
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
    """Whether the first lines of fedray have run; before, Python itself starts, for a tenth of a second."""
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


class Bench:
    """Undisturbed results to compare with, and fresh copies of what a command needs.

    Attributes:
        folder: Where everything is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._number = folder, 0
        self._known: dict[tuple[str, str, bool], tuple[Any, float]] = {}

    def prepare(self, command: str, runtime: str) -> tuple[list[str], Path]:
        """The words of a command in a fresh directory, and its directory of results."""
        self._number += 1
        out = self.folder / f"{self._number:04d}"
        out.mkdir()
        keys = {**SCENARIO, "runtime": runtime, **({"clients": {"number": 6, "actors": 2}} if runtime == "ray" else {})}
        file, run = out / "scenario.yaml", out / "out"
        if command == "table":
            keys["table"] = [{"name": "a"}, {"name": "b", "overrides": {"method.name": "fedavg"}}]
            keys["report"] = False
        if command == "resume":
            keys["report"] = False
        if command == "tune":
            sweep = {"scenario": {**keys, "report": False}, "space": {"local.lr": [0.05, 0.1]}, "sampler": "grid"}
            file.write_text(yaml.safe_dump({**sweep, "objectives": ["accuracy"]}))
            return ["fedray", "tune", str(file), "--out", str(run)], run
        file.write_text(yaml.safe_dump(keys))
        if command in ("resume", "report"):
            shutil.copytree(self._begin(file, command), run)
            if command == "report":
                return ["fedray", "report", str(run)], run
            text = (run / "scenario.yaml").read_text()
            (run / "scenario.yaml").write_text(text.replace("runtime: inline", f"runtime: {runtime}"))
            return ["fedray", "resume", str(run), "--rounds", "30"], run
        return ["fedray", command, str(file), "--out", str(run)], run

    def _begin(self, file: Path, command: str) -> Path:
        """A run directory for a command that goes on with one; made once."""
        run = self.folder / f"for-{command}"
        if not run.exists():
            rounds = [] if command == "report" else ["rounds=10"]
            said = watch(["fedray", "run", str(file), "runtime=inline", "report=false", *rounds, "--out", str(run)])
            assert said.status == 0, said.lines
        return run

    def expect(self, command: str, runtime: str, *, fork: bool) -> tuple[Any, float]:
        """The results of an undisturbed command, and its seconds."""
        key = (command, runtime, fork)
        if key not in self._known:
            words, out = self.prepare(command, runtime)
            said = watch(words, fork=fork)
            assert said.status == 0, said.lines
            self._known[key] = (read_results(out), said.seconds)
        return self._known[key]


def read_results(out: Path) -> Any:
    """The hashes of all runs in a directory, and whether its page is there."""
    found = {}
    for path in sorted(out.rglob("summary.json")):
        summary = json.loads(path.read_text())
        found[str(path.relative_to(out))] = (summary.get("model_hash"), summary.get("state_hash"))
    return found, (out / "report.html").is_file()


def disturb_once(bench: Bench, command: str, runtime: str, kind: str, dice: random.Random, *, fork: bool) -> Result:
    """One command, one signal, and what follows until the work is done."""
    want, seconds = bench.expect(command, runtime, fork=fork)
    words, out = bench.prepare(command, runtime)
    at = dice.uniform(0.0, seconds)
    sent: list[float] = []

    def disturb(process: Process, now: float) -> bool:
        if now >= at and takes_signals(process.pid):
            if hit(kind, process, dice):
                sent.append(now)
            else:
                time.sleep(0.2)
        return bool(sent)

    said = watch(words, disturb, fork=fork)
    fault = judge(said, kind, sent=bool(sent), complete=read_results(out) == want)
    silence = said.silence
    for _ in range(5):
        if fault or (said.status == 0 and read_results(out) == want):
            break
        again = follow(said, words, out)
        said = watch(again, fork=fork)
        silence = max(silence, said.silence)
        if said.status:
            fault = f"after {shlex.join(again[1:3])} ...: status {said.status}: {' / '.join(said.lines[-3:])}"
    else:
        fault = "it did not come to its end in five commands"
    if not fault and read_results(out) != want:
        fault = f"other results: {read_results(out)} instead of {want}"
    return Result(command, runtime, kind if sent else f"{kind}, too late", at / seconds, silence, fault)


def judge(said: Said, kind: str, *, sent: bool, complete: bool) -> str:
    """What is wrong with the end of a disturbed command; empty if nothing is."""
    text = "\n".join(said.lines)
    if said.seconds >= MOST_SECONDS:
        return f"it hung: {text[-500:]}"
    if any(word in text for word in ("Traceback", "Exception ignored", "*** SIG", "Stack trace", "Fatal Python")):
        return f"traceback: {text[-3000:]}"
    if said.status == 0 or not sent:
        return "" if said.status == 0 else f"status {said.status} without a signal: {text[-500:]}"
    if kind in RAY_KINDS:  # Ray is started again, or one line says what to do
        return "" if "fedray: " in said.lines[-1] and said.status == 1 else f"status {said.status}: {text[-500:]}"
    if kind == "KILL":
        return "" if said.status == -9 else f"status {said.status}: {text[-500:]}"
    if said.status == 128 - STATUS[kind] and complete:  # Python was ending already
        return ""
    lines = [line for line in said.lines if LINE.search(line)]
    if said.status != STATUS[kind] or len(lines) != 1 or not LINE.search(said.lines[-1]):
        return f"status {said.status}, {len(lines)} lines: {text[-500:]}"
    return ""


def follow(said: Said, words: list[str], out: Path) -> list[str]:
    """The command that goes on: the one that was named, else what a person would type."""
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
            result = disturb_once(bench, command, runtime, kind, dice, fork=fork)
            print(*result, sep=" | ", flush=True)
            results.append(result)
    return results


def describe_results(results: list[Result]) -> str:
    """The table in docs/reliability.md."""
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
    with tempfile.TemporaryDirectory(prefix="signals-") as place:
        many = {"inline": int(inline), "ray": int(ray)}
        outcome = run_signals(many, int(seed), names.split(","), Path(place))
    print(describe_results(outcome))
    sys.exit(any(one.fault for one in outcome))
