"""Runs the checks that take too long for the tests: `python tools/long_checks.py [PART ...]`, all without a name.

They are run before an issue is closed. Each part prints what it found, then a line of its own: passed or failed, and
its minutes. Other arguments than names of parts go to the programs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS: dict[str, tuple[str, ...]] = {  # its programs, which end with a status other than 0 where something is wrong
    "slow": ("-m pytest -q -m slow",),
    "shipped": ("tools/shipped.py",),
    "keys": ("tools/key_matrix.py",),
    "large": ("tools/large_data.py",),
    "hostile": ("tools/hostile/own_objects.py", "tools/hostile/damage.py", "tools/hostile/test_scenarios.py"),
    "chaos": ("tools/chaos/kill.py", "tools/chaos/signals.py", "tools/chaos/nodes.py"),
    "cluster": ("tools/cluster/launch.py",),  # as root on Linux: three hosts made of network namespaces
}


def run_part(part: str, arguments: list[str]) -> bool:
    """Runs the programs of a part one after another; returns whether all passed."""
    began = time.monotonic()
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers"), os.environ.get("PYTHONPATH", "")])
    done = [
        subprocess.run(
            [sys.executable, *program.split(), *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}
        ).returncode
        for program in PARTS[part]
    ]
    print(f"{part}: {'failed' if any(done) else 'passed'}, {(time.monotonic() - began) / 60:.1f} min", flush=True)
    return not any(done)


def main(arguments: list[str]) -> None:
    """Runs the parts that are named, or all; ends with status 1 where one failed."""
    if {"-h", "--help"} & {*arguments}:
        print(__doc__, "Parts: ", ", ".join(PARTS), ".", sep="")
        return
    named = [one for one in arguments if one in PARTS]
    rest = [one for one in arguments if one not in PARTS]
    passed = [run_part(part, rest) for part in named or PARTS]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main(sys.argv[1:])
