"""Several data sets as one: their rows in order, a domain for each, and classes shared or apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import originals
import pytest

import fedray
from fedray.core.errors import BadInput
from fedray.data.catalogue import load_data
from fedray.data.synthetic import join_datasets
from fedray.data.types import Split, classification


def test_a_client_of_a_union_has_one_of_its_sets() -> None:
    digits = load_data("digits")
    dim, rest = (Split(255 - s.x, s.y) for s in (digits.train, digits.test))
    dark = classification("dark", dim, rest, digits.class_names)
    both = join_datasets([digits, dark])
    keys = {"rounds": 0, "runtime": "inline", "report": False, "clients": 5, "model": "linear", "method": "fedavg"}
    study = fedray.run({**keys, "data": {"partition": "domain"}}, data=both).study
    for client in range(5):
        rows = study.shards.fetch(np.array([0]), np.array([client])).rows[0].numpy()
        assert len(set(both.columns["domain"][rows])) == 1
    assert both.classes == 10 and join_datasets([digits, dark], apart=True).classes == 20


def test_sets_that_do_not_fit_are_one_line() -> None:
    digits = load_data("digits")
    train, test = (Split(part.x[:, :, :4], part.y) for part in (digits.train, digits.test))
    small = classification("small", train, test, digits.class_names)
    with pytest.raises(BadInput, match=r"digits 1 x 8 x 8 and small 1 x 4 x 8 differ"):
        join_datasets([digits, small])
    with pytest.raises(BadInput, match=r"digits, digits: give two data sets at least, each once"):
        join_datasets([digits, digits])
    with pytest.raises(BadInput, match=r"write data.classes: apart"):
        join_datasets([digits, digits._replace(name="few", classes=3)])


def test_a_scenario_names_the_sets(tmp_path: Path) -> None:
    originals.fake_mnist(tmp_path)
    with pytest.raises(BadInput, match=r"data.sets: the inputs of digits 1 x 8 x 8 and mnist 1 x 28 x 28 differ"):
        load_data("union", tmp_path, sets=["digits", "mnist"])
