"""FedEM: with one component it is FedAvg, samples count as the E step says in every engine, weights stay private."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import scenario
from torch import nn
from torch.func import functional_call

import fedray
from fedray.core.errors import BadInput
from fedray.features.mixture import LEAST_SHARE, fit_weights, share_samples
from fedray.scenario.loader import read_scenario
from fedray.storage.checkpoint import load_checkpoint


def run(method: dict[str, Any], *changes: dict[str, Any], **options: Any) -> fedray.Run:
    return fedray.run(scenario({"method": method}, *changes), **options)


CNN: dict[str, Any] = {"model": {"name": "cnn", "channels": [3, 4], "hidden": [8]}, "rounds": 2}


@pytest.mark.parametrize(
    "change",
    [{}, CNN, {"participation": {"per_round": 3}, "compress": {"kind": "topk"}, "server": {"optimizer": "adam"}}],
    ids=["mlp", "conv", "partial"],
)
def test_fedem_of_one_component_is_fedavg(change: dict[str, Any]) -> None:
    one, plain = run({"name": "fedem", "models": 1}, change), run({"name": "fedavg"}, change)
    assert one.summary["model_hash"] == plain.summary["model_hash"]
    assert one.summary["totals"]["down_bytes"] == plain.summary["totals"]["down_bytes"]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 10))


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 10))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Dropout(0.0), nn.Tanh(), nn.Linear(7, 10))


def smooth(outputs: torch.Tensor, targets: torch.Tensor, context: Any) -> torch.Tensor:
    loss: torch.Tensor = context.objective(outputs, targets)
    return loss


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (perceptron, {}),  # compiled, where there are kernels
        (perceptron, {"lanes": "torch"}),
        (normed, {}),  # mapped over lanes
        (dropping, {}),  # one lane after another
        (perceptron, {"local_loss": smooth}),
    ],
    ids=["mlp-c", "mlp", "vmap", "loop", "code"],
)
def test_a_step_of_a_component_is_that_of_its_weighted_samples(module: Any, options: dict[str, Any]) -> None:
    """theta_m - lr sum_j q_j(m) grad l_j / n, whatever engine trains; pi is the mean of q."""
    loss = {"loss": options["local_loss"]} if "local_loss" in options else {}
    rest = {key: value for key, value in options.items() if key != "local_loss"}
    lone = {"clients": {"number": 1}, "local": {"epochs": None, "steps": 1, "batch_size": "full", "lr": 0.5}}
    keys = scenario({"method": {"name": "fedem", "models": 2}, "data": {"partition": None}, "rounds": 1}, lone, rest)
    done = fedray.run(keys, model=module, **loss)
    start = fedray.run(keys, model=module, rounds=0, **loss)
    x, y = done.study.pool_rows(0)
    nets = [{name: value.clone().requires_grad_() for name, value in one.items()} for one in start.models]
    net = module().eval()
    losses = torch.stack(
        [nn.functional.cross_entropy(functional_call(net, one, (x,)), y, reduction="none") for one in nets]
    )
    share = torch.from_numpy(share_samples(losses.detach().numpy(), np.full(2, 0.5))).float()
    assert float(share.std()) > 1e-3
    for m, one in enumerate(nets):
        grads = torch.autograd.grad((share[m] * losses[m]).mean(), list(one.values()), retain_graph=True)
        for (name, before), grad in zip(one.items(), grads, strict=True):
            torch.testing.assert_close(done.models[m][name], before.detach() - 0.5 * grad, rtol=2e-4, atol=2e-5)
    kept = load_checkpoint(done.path / "checkpoints")[1]
    assert kept["mixture/keys"].tolist() == [[0, 0, 0], [0, 0, 1]]
    torch.testing.assert_close(kept["mixture/rows"][:, 0], share.double().mean(dim=1), rtol=1e-4, atol=1e-6)


def test_all_components_go_down_and_up() -> None:
    several, one = run({"name": "fedem", "models": 3}), run({"name": "fedavg"})
    for way in ("up_bytes", "down_bytes"):
        assert several.summary["totals"][way] == 3 * one.summary["totals"][way]


def test_shares_sum_to_one_and_equal_components_leave_the_weights_as_they_are() -> None:
    losses = np.random.default_rng(0).exponential(size=(3, 50))
    weights = np.array([0.2, 0.3, 0.5])
    share = share_samples(losses, weights)
    np.testing.assert_allclose(share.sum(axis=0), 1.0, rtol=1e-9)
    np.testing.assert_allclose(share_samples(np.ones((3, 50)), weights).mean(axis=1), weights, rtol=1e-12)
    np.testing.assert_allclose(share, weights[:, None] * np.exp(-losses) / (weights @ np.exp(-losses)), rtol=1e-9)
    assert share_samples([[0.0], [1e4]], [0.5, 0.5]).min() == LEAST_SHARE


def test_an_e_step_never_makes_the_data_less_likely() -> None:
    losses = np.random.default_rng(1).exponential(3.0, size=(4, 80))
    found = [-np.log(fit_weights(losses, steps) @ np.exp(-losses)).sum() for steps in (0, 1, 2, 5, 20)]
    assert np.all(np.diff(found) < 0)
    assert fit_weights(np.zeros((4, 0))).tolist() == [0.25] * 4


GROUPS: dict[str, Any] = {"name": "iid", "permute_labels": 2, "copies": True}


def test_known_clients_answer_with_their_own_weights_and_those_never_seen_fit_theirs() -> None:
    """Weights differ between clusters, sum to 1, and follow from the rows where a client has taken no part."""
    learn = {"rounds": 8, "local": {"lr": 0.3}, "participation": {"per_round": 5}, "seed": 1}
    done = run({"name": "fedem", "models": 2}, learn, {"data": {"partition": None}}, data__partition=GROUPS)
    seen = set(done.clients["client"].to_pylist())
    last = done.rounds.to_pylist()[-1]
    assert last["personal_accuracy"] > last["accuracy"] and seen
    x, _ = (part.numpy() for part in done.study.split("test", 0))
    means = [done.predict(x[:20], client=client).mean for client in range(6)]
    for mean in means:
        np.testing.assert_allclose(mean.sum(axis=1), 1.0)
    assert max(np.abs(means[0] - mean).max() for mean in means) > 0.05


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"participation": {"mode": "async"}}, "weighs samples by the models of a round: set it to sync"),
        ({"schedule": {"kind": "random"}}, "fedem says by itself who trains which model"),
        ({"predict": {"gamma": 0.1}}, "a known client of fedem answers with weights of its own"),
        ({"local": {"private": ["1"]}}, "fedem keeps no layers of its network at the clients"),
    ],
)
def test_what_fedem_does_not_go_with_is_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says) as wrong:
        read_scenario({"method": {"name": "fedem"}, **change})
    assert "\n" not in str(wrong.value)
