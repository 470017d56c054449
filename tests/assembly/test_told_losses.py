"""The losses that participants tell before they train, as the server of a method of one's own reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from small import scenario

import fedray
from fedray.methods import Method, Server, Setting, Uploads, exact_sum, federated

KEYS = scenario(
    {
        "rounds": 3,
        "report": False,
        "data": {"limit": 120},
        "clients": {"number": 5},
        "participation": {"per_round": 3},
        "method": {"models": 2},
        "local": {"batch_size": "full", "epochs": 1},
        "replicates": 2,
    }
)


def telling(seen: list[torch.Tensor], *, asks: bool) -> Any:
    """Fed-ensemble whose server adds up the told losses by world, client and model."""

    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        base, n, k = phase.server, setting.clients.number, setting.models

        def reduce(uploads: Uploads) -> Any:
            if uploads.losses is None:
                assert not asks
                return base.reduce(uploads)
            place = torch.from_numpy(uploads.world * n + uploads.client)
            told = exact_sum(torch.from_numpy(uploads.losses), place, 2 * n, torch.ones_like(place), limbs=2)
            return {**base.reduce(uploads), "told": told}

        def step(state: Any, stats: Any, t: int) -> Any:
            if asks:
                seen.append(stats["told"].value().view(2, n, k))
            return base.step(state, stats, t)

        server = Server(base.init, reduce, step)
        choose = (lambda plan, _losses: plan) if asks else None
        return Method("own", replace(phase, server=server, choose=choose))

    return compose


def test_the_loss_that_a_client_tells_is_that_of_its_first_step() -> None:
    """One full batch: the training loss of a job is the mean loss of the received model on all rows of the client."""
    seen: list[torch.Tensor] = []
    run = fedray.run(KEYS, method=telling(seen, asks=True))
    jobs = run.clients.to_pandas()
    assert len(jobs) == 3 * 3 * 2 and len(seen) == 4  # the first step is asked for twice
    told = [seen[j["round"]][j["replicate"], j["client"], j["model"]].item() for _, j in jobs.iterrows()]
    np.testing.assert_allclose(told, jobs["loss"], rtol=1e-5)


def test_who_is_not_asked_tells_nothing_and_the_plan_alone_decides() -> None:
    asked = fedray.run(KEYS, method=telling([], asks=True))
    silent = fedray.run(KEYS, method=telling([], asks=False))
    assert asked.summary["model_hash"] == silent.summary["model_hash"]
