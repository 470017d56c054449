"""A table as people have it, from one command to a report."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small import run_command

import fedray
from fedray.report.clients import read_class_names
from fedray.report.read import read_run


def write_passengers(path: Path) -> None:
    """Titanic's columns, made up: text, categories, gaps, and names that are all different."""
    draw, i = np.random.default_rng(0), np.arange(120)
    people = {
        "PassengerId": i + 1, "Survived": (draw.random(120) < np.where(i % 2, 0.8, 0.2)).astype(int),
        "Pclass": 1 + i % 3, "Name": [f'Passenger, "{k}"' for k in i], "Sex": np.where(i % 2, "female", "male"),
        "Age": np.where(i % 5, draw.uniform(1, 80, 120).round(1), np.nan), "SibSp": i % 2, "Parch": 0 * i,
        "Ticket": [f"A/{k}" for k in i], "Fare": draw.exponential(30, 120).round(4),
        "Cabin": [f"C{k}" if k % 4 == 0 else None for k in i],
        "Embarked": [None if k == 7 else "SCQ"[k // 2 % 3] for k in i],
    }  # fmt: skip
    pd.DataFrame(people).to_csv(path, index=False)


QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
TEXT = "data.name=table data.target=Sex data.partition.name=iid runtime=inline rounds=3 clients=5"
KEYS = [*TEXT.split(), "method.models=2", "local.epochs=2"]


@pytest.mark.filterwarnings("ignore:data. ")
@pytest.mark.short_report
def test_a_csv_with_categories_and_gaps_goes_from_one_command_to_a_report(tmp_path: Path) -> None:
    write_passengers(tmp_path / "titanic.csv")
    path = f"data.path={tmp_path / 'titanic.csv'}"
    given: list[str | Path] = ["run", QUICKSTART, *KEYS, path, "--out", tmp_path / "run"]
    refused = run_command(*given)
    assert refused.status == 2
    assert "values are missing in Age (24), Embarked (1): write data.missing: drop" in refused.err
    shown = run_command("check", QUICKSTART, *KEYS, path, "data.missing=mean", "data.features=[Age, Fare]").out
    assert "of 2: Age, Fare\n" in shown and "\nleft out     PassengerId, Survived, " in shown
    done = run_command(*given, "data.missing=mean")
    assert done.status == 0, done.err
    remarks = [line for line in done.err.splitlines() if "data: " in line]
    assert all(line.startswith("fedray: note: data: ") for line in remarks) and len(remarks) == 3, "not Python's form"
    assert "another whole number in every row" in remarks[0] and remarks[0].endswith(": PassengerId")
    assert "text, read as categories (0 and 1 for each value): Embarked" in remarks[1]
    assert "text of too many different values, no input (name it in data.features): Name, Ticket, Cabin" in remarks[2]
    run = fedray.load(tmp_path / "run")
    inputs = set(run.study.shards.data.features)
    assert {"Survived", "Embarked=C", "Embarked=Q", "Embarked=S", "Embarked=missing"} <= inputs
    assert run.class_names == ("female", "male")
    assert read_class_names(read_run(tmp_path / "run"), 2) == ["female", "male"], "as the report has them"
    assert run.summary["metrics"]["accuracy"]["mean"] > 0.6
    assert "accuracy" in (tmp_path / "run" / "report.html").read_text()
