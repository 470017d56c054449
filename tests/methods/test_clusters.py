"""Clusters of clients: IFCA and FedEM find what is there, and count what they send."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from faulty import NATURAL, POISONED, marked_images, model_of
from modules import normed
from plain import rows_of
from small import scenario
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import FedrayWarning
from fedray.features.mixture import LEAST_RESPONSIBILITY, compute_responsibilities, fit_weights
from fedray.methods import Method, Setting, federated
from fedray.models.net import compute_raw_outputs
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress, run_round
from fedray.simulation.study import losses_of
from fedray.storage.checkpoint import load_checkpoint

TWO = {"data": {"limit": 120, "partition": None}, "clients": {"number": 6}}
GROUPS: dict[str, Any] = {"name": "iid", "permute_labels": 2, "copies": True}


def run(method: dict[str, Any], *changes: dict[str, Any]) -> fedray.Run:
    return fedray.run(scenario({"method": method}, *changes))


@pytest.mark.parametrize(("name", "up"), [("ifca", 1), ("fedem", 3)])
@pytest.mark.parametrize("change", [{}, {"model": {"norm": "batch"}, "local": {"batch_size": "full"}}])
def test_every_client_gets_all_models_and_sends_one_or_all(name: str, up: int, change: dict[str, Any]) -> None:
    """With their counters."""
    several, one = (
        run(method, change).summary["totals"] for method in ({"name": name, "models": 3}, {"name": "fedavg"})
    )
    assert several["down_bytes"] == 3 * one["down_bytes"] and several["up_bytes"] == up * one["up_bytes"]


def test_participants_train_the_model_of_least_loss_and_a_model_that_nobody_chose_stays() -> None:
    keys = scenario({"method": {"name": "ifca", "models": 3}, "participation": {"per_round": 4}, "replicates": 2})
    study = build_study(read_scenario(keys))
    runtime, progress = Inline(study), begin_progress(study)
    progress.state.models[2] *= 50.0  # of the first world: nobody wants it
    before = progress.state.models.clone()
    losses = runtime.ask(losses_of(3), progress.state)
    result = run_round(study, runtime, progress)
    for client, model, world in zip(*result.plan, strict=True):
        assert model == int(losses[int(world), 0][:, client].argmin())
    chosen = set((result.plan.world * 3 + result.plan.model).tolist())
    assert len(result.plan.client) == 8 and 2 not in chosen
    with pytest.warns(FedrayWarning, match="as they were drawn, .*: 2: .* lower method.models if clients choose"):
        run({"name": "ifca", "models": 3}, {"clients": {"number": 1}, "rounds": 1})
    for row in range(6):
        assert torch.equal(result.state.models[row], before[row]) is (row not in chosen)


def test_clusters_that_differ_are_found_and_told_apart() -> None:
    learn = {"rounds": 3, "local": {"lr": 0.2}, "seed": 1}  # from other starts it may take longer, or never succeed
    found = run({"name": "ifca", "models": 2}, TWO, {"data": {"partition": GROUPS}}, learn)
    true = found.study.shards.clusters(0)
    assert true is not None
    last = found.rounds.to_pylist()[-1]
    assert last["cluster_ari"] == 1.0
    jobs = [row for row in found.clients.to_pylist() if row["round"] == 3]
    assert len({(int(true[row["client"]]), row["model"]) for row in jobs}) == 2
    assert last["personal_accuracy"] > last["accuracy"] + 0.1


def test_the_index_of_clusters_is_there_for_every_method_that_weighs_models_and_only_there() -> None:
    weighed = {"evaluate": {"personal": True}, "predict": {"gamma": 0.1}}
    shifted = {"data": {"partition": {"name": "iid", "rotation": 2}}, "rounds": 1}
    assert "cluster_ari" in run({"name": "fed_ensemble", "models": 2}, shifted, weighed).rounds.column_names
    equal = run({"name": "fed_ensemble", "models": 2}, shifted, {"evaluate": {"personal": True}})
    for other in (run({"name": "fed_ensemble", "models": 2}, weighed), run({"name": "fedavg"}, shifted), equal):
        assert "cluster_ari" not in other.rounds.column_names


def test_clients_that_cannot_say_are_left_out_like_others_that_fail() -> None:
    """Whose network raises on their rows: no loss is told, the job fails, and the others go on."""
    data = marked_images()
    keys = {**NATURAL, "method": {"name": "ifca", "models": 2}, "on_client_error": "skip", "runtime": "inline"}
    with pytest.warns(FedrayWarning):
        done = fedray.run(keys, data=data, model=model_of("raises", data)).clients
    failed = [row["client"] for row in done.to_pylist() if row["status"] != "ok"]
    assert failed == [POISONED] and len(done) == 6


def test_an_own_choice_reads_the_networks_own_loss_also_where_another_one_trains() -> None:
    """Whatever trains, each client tells the mean cross-entropy of each of the K models on its own rows."""
    told: list[np.ndarray] = []

    def choose(plan: Any, losses: Any) -> Any:
        told.append(losses)
        return plan._replace(model=losses.argmax(axis=1))

    def hardest(setting: Setting) -> Method:
        return Method("hardest", replace(federated(setting), choose=choose))

    def halved(outputs: Any, targets: Any, context: Any) -> Any:
        return 0.5 * context.objective(outputs, targets)

    keys = scenario({"rounds": 1, "report": False, "method": {"models": 3}})
    study = fedray.run(keys, method=hardest, loss=halved).study
    first = begin_progress(study).state.models
    for client in range(6):
        x, y = rows_of(study, 0, client)
        wanted = [float(cross_entropy(answer, y)) for answer in compute_raw_outputs(study.net, first, x.float())]
        np.testing.assert_allclose(told[0][client], wanted, rtol=1e-4)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 10))


def random() -> nn.Module:
    return nn.Sequential(perceptron(), nn.Dropout(0.0), nn.Tanh())


@pytest.mark.parametrize(
    ("module", "rest", "own"),
    [
        (perceptron, {}, {}),  # compiled, where there are kernels
        (perceptron, {"lanes": "torch"}, {}),
        (normed, {}, {}),  # mapped over lanes
        (random, {}, {}),  # one lane after another
        (perceptron, {}, {"loss": lambda outputs, targets, context: context.objective(outputs, targets)}),
    ],
    ids=["mlp-c", "mlp", "vmap", "loop", "code"],
)
def test_a_step_of_a_component_is_that_of_its_weighted_samples(module: Any, rest: Any, own: Any) -> None:
    """theta_m - lr sum_j q_j(m) grad l_j / n, whatever engine trains; pi is the mean of q."""
    lone = {"clients": {"number": 1}, "local": {"epochs": None, "steps": 1, "batch_size": "full", "lr": 0.5}}
    keys = scenario({"method": {"name": "fedem", "models": 2}, "data": {"partition": None}, "rounds": 1}, lone, rest)
    done = fedray.run(keys, model=module, **own)
    start = fedray.run(keys, model=module, rounds=0, **own)
    x, y = done.study.pool_rows(0)
    nets = [{name: value.clone().requires_grad_() for name, value in one.items()} for one in start.models]
    net = module().eval()
    losses = torch.stack(
        [nn.functional.cross_entropy(functional_call(net, one, (x,)), y, reduction="none") for one in nets]
    )
    share = torch.from_numpy(compute_responsibilities(losses.detach().numpy(), np.full(2, 0.5))).float()
    assert float(share.std()) > 1e-3
    for m, one in enumerate(nets):
        grads = torch.autograd.grad((share[m] * losses[m]).mean(), list(one.values()), retain_graph=True)
        for (name, before), grad in zip(one.items(), grads, strict=True):
            torch.testing.assert_close(done.models[m][name], before.detach() - 0.5 * grad, rtol=2e-4, atol=2e-5)
    kept = load_checkpoint(done.path / "checkpoints")[1]
    assert kept["mixture/keys"].tolist() == [[0, 0, 0], [0, 0, 1]]
    torch.testing.assert_close(kept["mixture/rows"][:, 0], share.double().mean(dim=1), rtol=1e-4, atol=1e-6)


def test_no_responsibility_is_0() -> None:
    """Else they are those of Bayes, as the loop of `test_loops` has them."""
    assert compute_responsibilities([[0.0], [1e4]], [0.5, 0.5]).min() == LEAST_RESPONSIBILITY


def test_an_e_step_never_makes_the_data_less_likely() -> None:
    losses = np.random.default_rng(1).exponential(3.0, size=(4, 80))
    found = [-np.log(fit_weights(losses, steps) @ np.exp(-losses)).sum() for steps in (0, 1, 2, 5, 20)]
    assert np.all(np.diff(found) < 0)
    assert fit_weights(np.zeros((4, 0))).tolist() == [0.25] * 4


def test_known_clients_answer_with_their_own_weights_and_those_never_seen_fit_theirs() -> None:
    """Weights differ between clusters, and follow from the rows where a client has taken no part."""
    learn = {"rounds": 8, "local": {"lr": 0.3}, "participation": {"per_round": 5}, "seed": 1}
    keys = scenario({"method": {"name": "fedem", "models": 2}}, learn, {"data": {"partition": None}})
    done = fedray.run(keys, data__partition=GROUPS)
    last = done.rounds.to_pylist()[-1]
    assert last["personal_accuracy"] > last["accuracy"]
    x = done.study.split("test", 0)[0].numpy()
    means = [done.predict(x[:20], client=client).mean for client in range(6)]
    assert max(np.abs(means[0] - mean).max() for mean in means) > 0.05
