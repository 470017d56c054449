"""FedAvg by fedray and by other simulators, each divided by a plain PyTorch loop in its own process.

Each simulator gets an environment of its own (`--folder`, made once: about 6 GB each, most of it torch) and the same
work: the same clients, network, batches of ten, one local epoch. The plain loop runs before and after it in the same
process, and the processor time of the whole process tree counts. No simulator evaluates; fedray alone writes a run
directory and scores ten samples a round, because `fedray.run` always does.

    python bench/peers/compare.py --folder /tmp/peers
    python bench/peers/compare.py --folder /tmp/peers --only pfl --work cnn
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = {
    "fedray": str(HERE.parents[1]),
    "flower": "flwr[simulation]==1.41.0",
    "pfl": "pfl[pytorch]==0.6.0",
    "fluke": "fluke-fl==0.8.1",
    "fedlab": "fedlab==1.3.0",
}
WORKS = ["thousand", "ten_thousand", "cnn", "wide_cnn"]


def install(peer: str, folder: Path) -> Path:
    """Returns the Python of a simulator's environment. Makes the environment if it is missing."""
    python = folder / peer / "bin" / "python"
    done = folder / peer / "installed"
    if not done.is_file():
        print(f"installing {PEERS[peer]}", file=sys.stderr)
        venv.create(folder / peer, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "psutil", PEERS[peer]], check=True)
        done.touch()
    return python


def measure(peer: str, work: str, python: Path, limit: int) -> dict:
    """Returns what one simulator reports for one work, or why it reports nothing."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [python, str(HERE / f"run_{peer}.py"), work]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"simulator": peer, "work": work, "error": f"not done in {limit} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"simulator": peer, "work": work, "error": f"exit {done.returncode}: {last}"}
    return json.loads(lines[-1])


def table(results: list) -> str:
    """Returns a Markdown table of ratios to the plain loop: a row for each work, a column for each simulator."""
    columns = list(dict.fromkeys(each["simulator"] for each in results))
    rows = ["| work | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for work in dict.fromkeys(each["work"] for each in results):
        mine = {each["simulator"]: each for each in results if each["work"] == work}
        cells = [str(mine[name].get("ratio", mine[name].get("error"))) if name in mine else "" for name in columns]
        rows.append(f"| {work} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Installs what is missing, measures, prints JSON lines and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the environments are")
    parser.add_argument("--only", action="append", choices=list(PEERS), help="this simulator; may be repeated")
    parser.add_argument("--work", action="append", choices=WORKS, help="this work; may be repeated")
    parser.add_argument("--limit", type=int, default=900, help="seconds for one simulator and work")
    options = parser.parse_args()
    results = []
    for peer in options.only or PEERS:
        python = install(peer, options.folder)
        for work in options.work or WORKS:
            results.append(measure(peer, work, python, options.limit))
            print(json.dumps(results[-1]), flush=True)
    names = {each["simulator"].lower(): each["simulator"] for each in results if "version" in each}
    for each in results:
        each["simulator"] = names.get(each["simulator"], each["simulator"])
    print(table(results))


if __name__ == "__main__":
    main()
