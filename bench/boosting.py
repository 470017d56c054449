"""Boosting without gradients on five tables, with two kinds of skew: prints the table of docs/results/other_methods.md.

Three tables have classes: scikit-learn's digits and breast cancer, and UCI's red wine, whose quality is the class. Two
UCI tables have real targets, concrete and energy; their classes are the quarters of the target. One row in five is a
test row, the same for all seeds. FEDRAY_DATA names the folder that holds the UCI files.

    FEDRAY_DATA=... python bench/boosting.py --out runs/boosting
"""

import argparse
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits

import fedray

METHODS = ["adaboost_f", "distboost_f", "preweak_f", "federated_bagging"]
SKEWS = {
    "labels": {"name": "dirichlet", "alpha": 0.5, "min_rows": 5},
    "sizes": {"name": "lognormal", "sigma": 1.0, "min_rows": 5},
}


def read_uci(name: str) -> pd.DataFrame:
    """Reads a UCI table. Its last column is the target."""
    folder = Path(os.environ["FEDRAY_DATA"]) / "UCI" / "UCI_Datasets" / name / "data"
    rows = np.loadtxt(folder / "data.txt")
    inputs = np.loadtxt(folder / "index_features.txt").astype(int)
    frame = pd.DataFrame(rows[:, inputs], columns=[f"x{i}" for i in range(len(inputs))])
    return frame.assign(target=rows[:, int(np.loadtxt(folder / "index_target.txt"))])


def tables() -> dict[str, pd.DataFrame]:
    """Returns the five tables, with the classes in the column `target`."""
    made = {name: load(as_frame=True).frame for name, load in (("digits", load_digits), ("cancer", load_breast_cancer))}
    made["wine"] = read_uci("wine-quality-red")
    for name in ("concrete", "energy"):
        frame = read_uci(name)
        made[name] = frame.assign(target=pd.qcut(frame["target"], 4, labels=False))
    return {name: frame.assign(target=frame["target"].astype(int).astype(str)) for name, frame in made.items()}


def score(frame: pd.DataFrame, method: str, keys: dict, out: Path, arguments: argparse.Namespace) -> str:
    """Returns accuracy and macro F1 (percent, mean ± standard deviation), and the megabytes and rounds of a seed."""
    scenario = {
        "method": method, "rounds": arguments.rounds, "replicates": arguments.seeds, "runtime": "inline",
        "report": False, "evaluate": {"every": arguments.rounds}, "checkpoint": {"every": arguments.rounds}, **keys,
    }  # fmt: skip
    run = fedray.run(scenario, data=frame, data__target="target", out=out)
    cells = [run.summary["metrics"][name] for name in ("accuracy", "f1_macro")]
    sent = run.summary["totals"]["up_bytes"] + run.summary["totals"]["down_bytes"]
    trees = run.study.net.layout.views(run.progress.state.models)["alpha"].count_nonzero(1).double().mean()
    both = ", ".join(f"{100 * cell['mean']:.1f} ± {100 * cell['sd']:.1f}" for cell in cells)
    return f"{both}, {sent / 1e6 / arguments.seeds:.2f} MB, {trees:.0f} rounds"


def main() -> None:
    """Runs all cells, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", nargs="*", default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, frame in tables().items():
        if arguments.tables and name not in arguments.tables:
            continue
        alone = {"clients": {"number": 1}, "data": {"partition": {"name": "iid"}}}
        print(
            name, "one client", score(frame, "adaboost_f", alone, arguments.out / f"{name}-one", arguments), flush=True
        )
        for skew, partition in SKEWS.items():
            for method in METHODS:
                keys = {"clients": {"number": 10}, "data": {"partition": partition}}
                cell = score(frame, method, keys, arguments.out / f"{name}-{skew}-{method}", arguments)
                print(name, skew, method, cell, flush=True)


if __name__ == "__main__":
    main()
