"""DSVGD: the first visit is SVGD, the factors multiply to the posterior, and what stays with the clients."""

from typing import Any

import numpy as np
import pytest
import torch
from small import scenario, train_rounds
from torch import Tensor

import fedray
from fedray.assembly.study import build_study
from fedray.core.types import Net
from fedray.features.particles import find_direction
from fedray.runtime.exchange import split_jobs
from fedray.runtime.session import Inline
from fedray.runtime.worker import Worker
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import size_jobs
from fedray.training import choice, client_code
from fedray.training.block import Block, Trained

LINE: dict[str, Any] = {  # a linear model of one input, all rows in a step
    "rounds": 1,
    "runtime": "inline",
    "model": {"name": "linear", "objective": "half_mse"},
    "data": {"name": "cubic"},
    "clients": {"number": 2},
    "local": {"batch_size": "full", "steps": 5, "lr": 0.001},
}


def keys(*changes: dict[str, Any], **options: Any) -> dict[str, Any]:
    own = {"name": "dsvgd", "models": 4, "factor_steps": 7, **options}
    return scenario({"method": own, "clients": {"number": 3}, "local": {"lr": 0.01}}, *changes)


def train(rounds: int, tree: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor], Inline]:
    """The server's particles, the clients' own, and where they are."""
    state, runtime = train_rounds(build_study(read_scenario(tree)), rounds)
    return state.models, runtime.private(), runtime


def test_a_first_visit_is_svgd_from_the_priors_particles() -> None:
    """The loop is written out here: gradients of the posterior by autograd, the direction, and plain steps."""
    own = {"name": "dsvgd", "models": 4, "decay": "none", "temperature": 3.0, "precision": 0.4}
    tree = {**LINE, "method": own}
    (first, _, _), (found, _, runtime) = train(0, tree), train(1, tree)
    study = runtime.worker.study
    fetched = study.shards.fetch(np.array([0]), np.array([0]))
    some, where = fetched.rows[0, : int(fetched.size[0])], torch.tensor([0])
    x = study.shards.scaling.normalize(fetched.x[some][None], where)[0].double()
    y = study.shards.scaling.targets(fetched.labels(some, 0)[None], where)[0].double().reshape(-1)
    w = first.double()
    for _ in range(5):
        leaf = w.clone().requires_grad_()
        out = leaf[:, :-1] @ x.reshape(len(x), -1).T + leaf[:, -1:]
        loss = (out - y).square().sum(1) / 2 / 3.0 + 0.4 * leaf.square().sum(1) / 2
        (slope,) = torch.autograd.grad(loss.sum(), leaf)
        w = w + 0.001 * find_direction(-slope, w)
    assert (w - first).abs().max() > 0.01
    torch.testing.assert_close(found.double(), w, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::fedray.core.errors.ScenarioWarning")
def test_the_first_visit_of_one_particle_is_gradient_descent_to_the_mode() -> None:
    """FedAvg of one client, with the prior as weight decay and the sum over rows as its rate."""
    n, alone = 100, {"clients": {"number": 1}, "local": {"batch_size": 10, "epochs": 2}}
    one = keys(alone, models=1, decay="none", precision=2.0, temperature=4.0)
    average = scenario({"method": {"name": "fedavg"}}, alone)
    for tree, local in ((one, {"lr": 0.001}), (average, {"lr": 0.001 * n / 4.0, "weight_decay": 2.0 * 4.0 / n})):
        tree["data"] = {"name": "digits", "limit": n}
        tree["local"].update(local)
    start, found, expected = train(0, one)[0], train(1, one)[0], train(1, average)[0]
    assert (expected - start).abs().max() > 0.01
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::fedray.core.errors.ScenarioWarning")
def test_the_product_of_the_factors_is_the_posterior() -> None:
    """Of one particle a factor is a tilt: with steps that end where they go, all tilts together are the particle's way.

    `lr = bandwidth^2` ends in one step.
    """
    few = {"local": {"epochs": None, "steps": 2}}
    tree = keys(few, models=1, decay="none", bandwidth=0.1, temperature=10.0, factor_steps=1)
    first = train(0, tree)[0]
    for rounds in (1, 3, 5):
        found, private, _ = train(rounds, tree)
        assert len(private["particles/rows"]) == min(rounds, 3)
        assert (found - first).abs().max() > 0.01
        changes = (private["particles/rows"] - first).sum(0)
        torch.testing.assert_close(changes, (found - first)[0], rtol=0, atol=1e-5)


def test_clients_take_turns_and_keep_their_own_particles_in_between() -> None:
    found = fedray.run(keys({"rounds": 5}), report=False)
    table = found.clients.to_pylist()
    assert {(row["round"], row["client"]) for row in table} == {(1, 0), (2, 1), (3, 2), (4, 0), (5, 1)}
    assert sorted(row["model"] for row in table if row["round"] == 1) == [0, 1, 2, 3]
    d = found.study.net.layout.d
    assert {(row["up_bytes"], row["down_bytes"]) for row in table} == {(4 * d, 4 * d)}
    before, after = train(3, keys())[1], train(4, keys())[1]
    clients = before["particles/keys"][:, 1]
    same = (before["particles/rows"] == after["particles/rows"]).all(1)
    assert torch.equal(same, clients != 0)


def test_a_client_that_comes_late_begins_with_the_first_particles() -> None:
    """With no steps a client's own particles stay what they were: those of the prior, whatever it received."""
    private, first = train(3, keys(factor_steps=0))[1], train(0, keys())[0]
    assert private["particles/keys"].tolist() == [[0, client, model] for client in range(3) for model in range(4)]
    assert torch.equal(private["particles/rows"].view(3, 4, -1), first.expand(3, 4, -1))


def test_all_particles_of_a_client_see_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    train_lanes = client_code.train_client_lanes

    def watch(net: Net, block: Block) -> Trained:
        seen.append(block.read(0, int(block.steps[0]))[0])
        return train_lanes(net, block)

    monkeypatch.setattr(choice, "train_client_lanes", watch)
    train(2, keys())
    assert len(seen) == 2
    for x in seen:
        assert torch.equal(x, x[:, :1].expand_as(x)) and x.shape[1] == 4


@pytest.mark.parametrize(("models", "hidden"), [(4, 8), (12, 1000)], ids=["small", "more numbers than a block holds"])
def test_blocks_hold_all_particles_of_a_client(models: int, hidden: int) -> None:
    study = build_study(read_scenario(keys({"replicates": 70, "model": {"hidden": [hidden]}}, models=models)))
    phase, engine = study.method.phase, Worker(study).engine
    jobs = size_jobs(study, phase.schedule(0, None))
    blocks = split_jobs(study, jobs, engine)
    assert len(blocks) > 1 and sorted(np.concatenate(blocks).tolist()) == list(range(70 * models))
    for block in blocks:
        assert (jobs.plan.model[block].reshape(-1, models) == np.arange(models)).all() and len(block) <= engine.width
