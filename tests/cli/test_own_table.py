"""A table as people have it, from one command to a report."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from small import run_command

import fedray
from fedray.report.clients import read_class_names
from fedray.report.read import read_run


def write_passengers(path: Path, rows: int = 120) -> None:
    """Titanic's columns, made up: text, categories, gaps, and names that are all different."""
    draw = np.random.default_rng(0)
    header = "PassengerId,Survived,Pclass,Name,Sex,Age,SibSp,Parch,Ticket,Fare,Cabin,Embarked"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(header.split(","))
        for i in range(rows):
            sex = ("male", "female")[i % 2]
            survived = int(draw.random() < (0.2, 0.8)[i % 2])
            age = "" if i % 5 == 0 else round(float(draw.uniform(1, 80)), 1)
            cabin = f"C{i}" if i % 4 == 0 else ""
            port = "" if i == 7 else "SCQ"[int(draw.integers(3))]
            name = f'Passenger, "{i}"'
            fare = round(float(draw.exponential(30)), 4)
            table.writerow([i + 1, survived, 1 + i % 3, name, sex, age, i % 2, 0, f"A/{i}", fare, cabin, port])


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
