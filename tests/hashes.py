"""The bits of every method: `python tests/hashes.py` prints a line a case, `NAME model_hash state_hash`.

A change that promises the same results prints the same lines before and after. Hashes hold for one type of CPU and one
version of torch, so they are compared between two commits on one machine and not kept here:

    python tests/hashes.py > before.txt; git switch other; python tests/hashes.py | diff before.txt -
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from method_cases import CASES, make_case

from fedray.assembly.user_objects import UserObjects
from fedray.experiments.run import run_scenario
from fedray.scenario.loader import read_scenario


def main(wanted: list[str]) -> None:
    """Runs the cases whose names contain one of the words given, or all."""
    for name in CASES:
        if wanted and not any(word in name for word in wanted):
            continue
        scenario = read_scenario(make_case(name), explicit=False)
        with tempfile.TemporaryDirectory() as folder:
            summary = run_scenario(scenario, Path(folder) / "run", UserObjects(), lambda _snapshot: None)
        print(name, summary["model_hash"], summary["state_hash"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
