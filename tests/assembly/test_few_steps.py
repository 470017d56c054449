"""Clients with fewer steps than their upload is made of are told, and others are not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.advice import tell_short
from fedray.core.errors import ScenarioWarning


def run(name: str, **options: Any) -> None:
    keys: dict[str, Any] = {"rounds": 1, "local": {"epochs": None, "steps": 5}}
    fedray.run(scenario({"method": {"name": name, **options}}, keys), report=False)


@pytest.mark.parametrize(("samples", "mixing", "told"), [(5, 0, False), (6, 0, True), (5, 0.2, True)])
def test_fedpa_tells_of_clients_with_fewer_steps_than_samples(samples: int, mixing: float, *, told: bool) -> None:
    text = rf"method\.samples = {samples}, but every client makes fewer steps in a round behind the share of {mixing}"
    if told:
        with pytest.warns(ScenarioWarning, match=text):
            run("fedpa", samples=samples, mixing=mixing)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run("fedpa", samples=samples, mixing=mixing)


@pytest.mark.parametrize(("rate", "told"), [(0.01, True), (0.06, False)])
def test_a_fit_of_beta_that_could_not_come_to_its_optimum_was_called_one(rate: float, *, told: bool) -> None:
    """48 rows at the server are one batch: ten steps of Adam, which move beta by 0.1 where 0.6 were needed."""
    keys = scenario({"method": {"name": "beta_predbayes", "samples": 2, "cycles": 1, "beta_lr": rate}, "rounds": 1})
    keys["local"]["epochs"] = 5
    with warnings.catch_warnings(record=True) as all_of_them:
        warnings.simplefilter("always")
        beta = float(fedray.run(keys, report=False).progress.state.models[0, -1])
    text = "beta = fit makes 10 steps of 0.01 on the 48 rows of the server, and comes no farther than 0.1 from 0.5"
    assert told == any(text in str(one.message) for one in all_of_them)
    assert (beta < 0.61) if told else (beta > 0.9)


@pytest.mark.parametrize(("turns", "told"), [(5, False), (6, True)])
def test_pfedbayes_tells_of_clients_with_fewer_steps_than_turns(turns: int, *, told: bool) -> None:
    with warnings.catch_warnings(record=True) as all_of_them:
        warnings.simplefilter("always")
        run("pfedbayes", personal_steps=turns)
    assert told == any("personal_steps = 6, but every client makes fewer" in str(one.message) for one in all_of_them)


@pytest.mark.parametrize(
    ("steps", "who"),
    [
        ([4, 9, 0], ""),
        ([3, 0, 2], "every client makes"),
        ([9, 3, 0], "client 1 makes"),
        ([9, 3, 2], "2 clients (the first is 1) make"),
        ([3], "client 0 makes"),
        ([0, 0], ""),
    ],
)
def test_who_has_fewer_is_named_and_who_does_not_train_is_not(steps: list[int], who: str) -> None:
    assert tell_short(np.array(steps), 4) == who
