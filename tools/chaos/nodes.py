"""Runs the tests of this folder, on real nodes started here: `python tools/chaos/nodes.py [OPTIONS OF PYTEST]`.

Each file gets a process of its own: once Ray was kept to loopback in a process, its nodes have no other address.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NO_TESTS = 5  # pytest's status where -k chooses none of a file

if __name__ == "__main__":
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    done = [
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-s", *sys.argv[1:], file]).returncode for file in files
    ]
    sys.exit(any(status not in (0, NO_TESTS) for status in done))
