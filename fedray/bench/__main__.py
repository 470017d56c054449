"""Measures one row of the table: `python -m fedray.bench FUNCTION full|quick FILE`.

The results are written to FILE as JSON.
"""

import json
import sys
from pathlib import Path
from pkgutil import resolve_name

from fedray.runtime.environment import prepare_process, use_one_thread

if __name__ == "__main__":
    prepare_process()
    use_one_thread()
    name, mode, out = sys.argv[1:]
    Path(out).write_text(json.dumps([result._asdict() for result in resolve_name(name)(mode == "quick")]))
