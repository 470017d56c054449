"""What clients compute takes virtual time: the seconds of a round are those of the passes that the method makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small import scenario, spell_out

import fedray

N, BATCH, CLASSES = 4, 8, 10  # of `small.scenario`


def time_round(method: dict[str, Any], *more: dict[str, Any], **tier: float) -> tuple[float, Any]:
    """Virtual seconds of one round in which links cost nothing, and its rows of clients."""
    free = {"seconds_per_step": 0.0, "uplink": 1e30, "downlink": 1e30} | tier
    device = {"clients": {"number": N, "tiers": {"all": free}}, "rounds": 1, "data": {"partition": {"name": "iid"}}}
    run = fedray.run(
        spell_out(scenario(device, {"local": {"epochs": 2, "batch_size": BATCH}}, *more, {"method": method}))
    )
    return run.summary["totals"]["sim_seconds"], run.clients.to_pandas()


@pytest.mark.parametrize(
    ("method", "work"),
    [
        ({"name": "fedavg"}, 1.0),
        ({"name": "fedprox"}, 1.0),
        ({"name": "ditto"}, 2.0),  # a second training
        ({"name": "fedsam"}, 2.0),  # a second gradient
        ({"name": "moon"}, 1 + 2 / 3),  # two forward passes of other models
        ({"name": "ifca", "models": 3}, 1 + 3 / 3 / 2),  # K forward passes over the rows, beside two epochs
        ({"name": "qffl"}, 1 + 1 / 3 / 2),
        ({"name": "fedem", "models": 3}, 3 * (1 + 1 / 3 / 2)),  # K trainings, and the E step of each
        ({"name": "fedfisher", "fisher": "empirical"}, 1 + 1 / 2),  # the gradient of each row
        ({"name": "fedfisher"}, 1 + (1 / 3 + CLASSES * 2 / 3) / 2),  # of each row and class
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_round_takes_the_time_of_all_passes_over_samples(method: dict[str, Any], work: float) -> None:
    took, jobs = time_round(method, seconds_per_sample=1.0)
    assert took == pytest.approx(work * 2 * jobs["samples"].max(), rel=1e-12)
    assert jobs.loc[jobs["samples"] == 60, "steps"].isin([16, 32]).all()  # optimizer steps alone


def test_steps_without_samples_take_time_too() -> None:
    """DSVGD moves a client's own particles `factor_steps` times after their training."""
    local = {"local": {"epochs": None, "steps": 5, "optimizer": "sgd"}, "participation": {"per_round": 1}}
    own = {"name": "dsvgd", "models": 3}
    one, many = (time_round({**own, "factor_steps": n}, local, seconds_per_step=1.0)[0] for n in (0, 7))
    assert (one, many) == (3 * 5, 3 * (5 + 7))


@pytest.mark.parametrize(
    ("method", "steps", "samples"),
    [  # of the server, which holds 48 of 240 rows; a forward pass is a third of a step's work
        ({"name": "fedbe", "distil_epochs": 3, "distil_batch": 10, "samples": 2}, 3 * 5, 3 * 48 + (1 + 2 + N) * 48 / 3),
        ({"name": "feddf", "distil_steps": 20, "validation": 0, "distil_batch": 10}, 20, 20 * 10 + N * 48 / 3),
        ({"name": "beta_predbayes", "samples": 2, "cycles": 1, "beta_epochs": 2, "beta_batch": 10}, 2 * 5, 2 * 48),
        ({"name": "fedfisher", "solver": "descent", "validation": 0.2, "solver_steps": 200}, 200, 3 * 48 / 3),
        ({"name": "stacking", "meta_data": "pooled", "meta_rounds": 1, "bases": [{"name": "linear"}]}, 2 * 30, 2 * 240),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_the_server_takes_its_time_for_its_own_steps_and_no_client_does(
    method: dict[str, Any], steps: int, samples: float
) -> None:
    """A fit at the server was charged to client 0, and distillation was free."""
    own = {"server_data": 0.2} if method["name"] not in ("fedfisher", "stacking") else {}
    for key, expected in (("seconds_per_step", steps), ("seconds_per_sample", samples)):
        took = time_round({**own, **method}, {"server": {key: 1.0}})[0]
        assert took == pytest.approx(expected, rel=1e-12), key
    assert time_round({**own, **method})[0] == pytest.approx(0, abs=1e-9)


def test_without_rounds_jobs_take_the_time_that_they_take_in_rounds() -> None:
    free = {"participation": {"mode": "async", "concurrency": 1}, "evaluate": {"every": 1}}
    for name in ("fedavg", "fedsam"):
        rounds = time_round({"name": name}, seconds_per_sample=1.0)[1]
        flights = time_round({"name": name}, free, seconds_per_sample=1.0)[1]
        assert np.isin(flights["sim_seconds"].round(6), rounds["sim_seconds"].round(6)).all(), name
