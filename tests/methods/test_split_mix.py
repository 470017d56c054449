"""Split-Mix: where it is FedAvg, what each device trains, sends and answers with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from small import scenario

import fedray

TIERS = {"strong": {"number": 3, "models_per_round": 3}, "weak": {"number": 3, "models_per_round": 1}}


def run(method: dict[str, Any], **keys: Any) -> fedray.Run:
    return fedray.run(scenario({"rounds": 4, "method": method, "clients": {"number": 6, "tiers": TIERS}, **keys}))


def test_one_base_network_is_fedavg() -> None:
    one = {"clients": {"number": 6, "tiers": {"all": {"number": 6}}}}
    found, plain = run({"name": "split_mix", "models": 1}, **one), run({"name": "fedavg"}, **one)
    assert found.summary["model_hash"] == plain.summary["model_hash"]


def test_where_every_device_trains_one_it_is_fed_ensemble() -> None:
    one = {"clients": {"number": 6, "tiers": {"all": {"number": 6}}}, "server": {"weighting": "uniform"}}
    found, plain = (run({"name": name, "models": 4}, **one) for name in ("split_mix", "fed_ensemble"))
    assert found.summary["model_hash"] == plain.summary["model_hash"]


def test_a_device_trains_as_many_as_it_holds_all_equally_often_and_sends_those() -> None:
    done = run({"name": "split_mix", "models": 4})
    jobs, dense = done.clients.to_pandas(), 4 * done.study.net.layout.d
    assert jobs.groupby(["client", "round"]).size().groupby("client").unique().tolist() == [[3]] * 3 + [[1]] * 3
    assert jobs.groupby(["client", "model"]).size().tolist() == [3] * 12 + [1] * 12  # in K rounds
    assert set(jobs["up_bytes"]) == set(jobs["down_bytes"]) == {dense}


def test_a_known_client_answers_with_the_first_that_it_holds_and_a_new_one_with_all() -> None:
    done = run({"name": "split_mix", "models": 4})
    x = done.study.split("test", 0)[0][:20]
    each = done.study.net, done.study.shards.normalize(x[None], torch.tensor([0]))[0]
    votes = []
    for row in done.progress.state.models:
        each[0].module.load_state_dict(each[0].layout.views(row))
        votes.append(each[0].module.eval()(each[1]).softmax(-1).detach().numpy())
    for client, held in ((0, 3), (5, 1), (None, 4)):
        found = done.predict(x.numpy(), client=client).probabilities
        assert found is not None
        np.testing.assert_allclose(found, np.mean(votes[:held], axis=0), rtol=1e-5, atol=1e-6)
