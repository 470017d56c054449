"""FedCross: who meets whom, and one round by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.methods.fedcross import choose_partners


def run(rounds: int = 3, **method: Any) -> fedray.Run:
    named = {"name": "fedcross", "models": 4, **method}
    keys = {"method": named, "clients": {"number": 8}}
    return fedray.run(scenario({"rounds": rounds, **keys}))


@pytest.mark.parametrize("partner", ["in_order", "most_similar", "least_similar"])
def test_a_round_is_that_of_fed_ensemble_and_a_bit_of_the_partner(partner: str) -> None:
    trained = run(rounds=1, alpha=1).progress.state.models.double().numpy()
    found = run(rounds=1, alpha=0.7, partner=partner).progress.state.models.numpy()
    unit = trained / np.linalg.norm(trained, axis=1, keepdims=True)
    for i in range(4):
        others = [j for j in range(4) if j != i]
        cosines = [unit[i] @ unit[j] for j in others]
        place = {"in_order": 0, "most_similar": int(np.argmax(cosines)), "least_similar": int(np.argmin(cosines))}
        other = (i + 1) % 4 if partner == "in_order" else others[place[partner]]
        np.testing.assert_allclose(found[i], 0.7 * trained[i] + 0.3 * trained[other], rtol=1e-5, atol=1e-7)


def test_in_order_every_model_meets_every_other_once_and_the_mean_stays() -> None:
    models = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    met = torch.stack([choose_partners(models, "in_order", t) for t in range(4)])
    assert [sorted(column.tolist()) for column in met.T] == [[j for j in range(5) if j != i] for i in range(5)]
    assert all(sorted(row.tolist()) == list(range(5)) for row in met)  # nobody twice: the mean of all stays as it is


def test_the_mean_of_the_weights_answers() -> None:
    done = run()
    state = done.progress.state
    answer = done.study.answer(state)
    assert answer.models == 1
    torch.testing.assert_close(answer.state.models[0], state.models.mean(dim=0))
