"""A million rows of a Hugging Face data set: into the store with little memory, and as fast to train from as others.

`python tools/large_data.py` prints the seconds and the peak of memory; it ends with an error where they are too many.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

MAKE = """
import sys, datasets, numpy as np, pyarrow as pa
draw, path = np.random.default_rng(0), sys.argv[1] + "/rows.arrow"
def table(n):
    x = pa.FixedSizeListArray.from_arrays(pa.array(draw.normal(size=64 * n).astype(np.float32)), 64)
    return pa.table({"x": x, "label": pa.array(draw.integers(0, 10, n))})
with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table(1).schema) as writer:
    for _ in range(20):
        writer.write_table(table(50_000))
datasets.Dataset.from_file(path).save_to_disk(sys.argv[1] + "/million")
"""
READ = """
import json, resource, sys, time, datasets, numpy as np
import fedray
from fedray.data import Split, adapt, classification
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
rows = datasets.load_from_disk(sys.argv[1] + "/million")
imports, began = peak(), time.perf_counter()
data = adapt(rows, test_fraction=0.01)
read, grown = time.perf_counter() - began, peak() - imports
began = time.perf_counter()
adapt(rows, test_fraction=0.01)
again = time.perf_counter() - began
copies = [Split(np.array(part.x), np.array(part.y)) for part in (data.train, data.test)]
memory = classification("memory", copies[0], copies[1], data.class_names)
scenario = {"rounds": 30, "runtime": "inline", "report": False, "method": "fedavg", "clients": 1000}
scenario |= {"evaluate": {"every": 30}, "checkpoint": {"every": 30}}
scenario |= {"participation": {"per_round": 100}, "local": {"steps": 20, "batch_size": 32}, "model": {"hidden": [64]}}
seconds, hashes = {}, set()
for name in ("warm", "stored", "memory", "stored again", "memory again"):
    run = fedray.run(scenario, data=memory if name.startswith("memory") else data)
    seconds[name] = json.loads((run.path / "manifest.json").read_text())["timings"]["training_seconds"]
    hashes.add(run.summary["model_hash"])
print(json.dumps({"read": read, "again": again, "grown": grown, "seconds": seconds, "hashes": len(hashes)}))
"""


def run_python(code: str, folder: str) -> str:
    """Returns what a new process with limited memory prints."""
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def main() -> None:
    """Makes the rows, reads them, and trains from the store and from memory."""
    with tempfile.TemporaryDirectory() as folder:
        run_python(MAKE, folder)
        found = json.loads(run_python(READ, folder).splitlines()[-1])
    print(found)
    assert found["grown"] < 450, "MB, with the pages of the mapped files, whose rows have 256 MB"
    assert found["again"] < found["read"] / 2, "it is not read again"
    assert found["hashes"] == 1
    seconds = found["seconds"]
    stored, memory = (min(seconds[name], seconds[f"{name} again"]) for name in ("stored", "memory"))
    assert stored < 1.5 * memory


if __name__ == "__main__":
    main()
