"""Runs on other data are never called paired without a word."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from small import run_quietly

import fedray
from fedray.report.compare import list_data_notes
from fedray.report.page import render_many
from fedray.report.read import ReadRun, read_run

KEYS = {"rounds": 1, "clients": 5, "runtime": "inline", "report": False, "method": "fedavg", "local": {"epochs": 1}}


run_on = partial(run_quietly, KEYS)


@pytest.fixture(scope="module")
def arrays() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(200, 6)).astype(np.float32), draw.integers(0, 3, 200)


def test_runs_on_other_data_were_compared_in_pairs_without_a_note(arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    run, same, digits = run_on((x, y)), run_on((x, y), local__lr=0.2), run_on("digits")
    other = run_on((x, np.random.default_rng(1).permutation(y)))
    assert not any("data" in note for note in fedray.compare([run, same]).notes)
    (note,) = (note for note in fedray.compare([run, digits], ["own", "usual"]).notes if "data" in note)
    assert note == "The runs differ in their data: own arrays, usual digits. Their scores cannot be compared."
    (note,) = (note for note in fedray.compare([run, other], ["one", "two"]).notes if "data" in note)
    assert note.startswith("The runs differ in their data, though both are called arrays (one and two: training ")
    assert "test labels" in note and note.endswith("Their scores cannot be compared.")
    assert "though both are called arrays" in render_many([read_run(one.path) for one in (run, other)])


def test_keys_that_give_clients_other_rows_are_named(arrays: tuple[Any, Any]) -> None:
    run, cut = run_on(arrays), run_on(arrays, data__hold_out=0.25)
    dealt = run_on(arrays, data__partition={"name": "dirichlet", "alpha": 0.5})
    (note,) = (note for note in fedray.compare([run, cut], ["all", "cut"]).notes if "hold_out" in note)
    assert note.startswith(
        "The runs differ in data.hold_out (all 0.0, cut 0.25): their pairs share seeds, but not the "
    )
    (note,) = (note for note in fedray.compare([run, dealt], ["all", "skewed"]).notes if "partition" in note)
    assert "differ in data.partition.name (all iid, skewed dirichlet): their pairs share seeds" in note


def test_a_server_that_holds_rows_of_its_clients_was_compared_without_a_note(arrays: tuple[Any, Any]) -> None:
    run, fedbe = run_on(arrays), run_on(arrays, method="fedbe")
    (note,) = (note for note in fedray.compare([run, fedbe]).notes if "rows" in note)
    assert note.startswith("The runs differ in method.server_data (fedavg not set, fedbe 0.1): their pairs share seeds")
    assert not any(
        "rows" in note for note in fedray.compare([fedbe, run_on(arrays, method="fedbe", local__lr=0.2)]).notes
    )


def test_an_ensemble_and_one_model_were_compared_by_two_kinds_of_nll(arrays: tuple[Any, Any]) -> None:
    """One model's residual variance stands in its NLL; that of an ensemble left it out, and nothing said so."""
    x = arrays[0]
    rows = x, x @ np.arange(6.0)
    ensemble = {"name": "fed_ensemble", "models": 2}
    one, several = run_on(rows), run_on(rows, method=ensemble)
    noisy, heads = (
        run_on(rows, method=ensemble, **keys)
        for keys in ({"predict__noise": "residual"}, {"model": {"name": "mlp", "objective": "gaussian_nll"}})
    )
    (note,) = fedray.compare([one, several]).notes[1:]
    assert "leave out the noise of the observations in fed_ensemble, and hold it in fedavg." in note
    for other in (noisy, heads):
        assert not any("noise of" in note for note in fedray.compare([one, other]).notes)


def test_runs_of_one_data_set_and_old_runs_without_digests_get_no_note() -> None:
    def read(name: str, data: Any, **digests: str) -> ReadRun:
        return ReadRun(name, {"data": data}, "", {}, {}, {}, None, None, {}, identity={"data": digests})

    assert list_data_notes([read("a", "digits"), read("b", {"name": "digits"})]) == []
    one, two = read("a", "arrays", **{"training inputs": "12"}), read("b", "table", **{"training inputs": "12"})
    assert list_data_notes([one, two]) == []  # the same rows in another form
    assert (
        "They do not train on the same rows."
        in list_data_notes([one, read("b", "arrays", **{"training inputs": "34"})])[0]
    )
