"""Measures one row of the table: `python -m fedray.bench ROW full|quick FILE` writes the results to FILE as JSON."""

import json
import sys
from pathlib import Path

from fedray.bench.rows import find_row
from fedray.runtime.environment import prepare_process, use_one_thread

if __name__ == "__main__":
    prepare_process()
    use_one_thread()
    name, mode, out = sys.argv[1:]
    Path(out).write_text(json.dumps([result._asdict() for result in find_row(name)(mode == "quick")]))
