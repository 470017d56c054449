"""One network that learns what a run says: where it starts, what it comes near, and what it can do alone."""

import numpy as np
import pytest
import torch
from small import of_method

import fedray
from fedray.core import rng
from fedray.models.nets import build_net


@pytest.fixture(scope="module")
def run() -> fedray.Run:
    keys = of_method("fens", {"method": {"aggregator": "class_weights"}, "local": {"epochs": 10}})
    return fedray.run(keys, report=False)


def distance(run: fedray.Run, student: fedray.experiments.results.Distilled) -> float:
    """Mean divergence of the student's answers from the run's on training images."""
    x = run.study.shards.data.train.x
    said, own = run.predict(x).mean, student.predict(x)
    return float((said * (np.log(said + 1e-12) - np.log(own + 1e-12))).sum(-1).mean())


def test_a_student_comes_near_the_ensemble_and_without_steps_it_is_the_network_that_it_starts_as(
    run: fedray.Run,
) -> None:
    x = run.study.shards.data.train.x
    far, near, again = (run.distil(x, {"name": "mlp", "hidden": [16]}, steps=n, lr=0.01) for n in (0, 300, 300))
    assert distance(run, near) < 0.2 * distance(run, far)
    assert torch.equal(near.row, again.row)
    net = build_net("mlp", (1, 8, 8), 10, "cross_entropy", hidden=[16])
    start = net.init(int(rng.keys(0, "distilled start") >> np.uint64(2)))
    assert far.net.layout == net.layout and torch.equal(far.row, start)


def test_the_network_alone_says_what_the_student_says(run: fedray.Run) -> None:
    x = run.study.shards.data.train.x[:20]
    student = run.distil(x, steps=3)  # the scenario's own network
    module = build_net("mlp", (1, 8, 8), 10, "cross_entropy", hidden=[8]).module
    module.load_state_dict(student.state_dict())
    inputs = run.study.shards.scaling.normalize(torch.from_numpy(x)[None], torch.tensor([0]))[0]
    assert np.allclose(module(inputs).softmax(-1).detach().numpy(), student.predict(x), atol=1e-6)


def test_a_student_takes_inputs_of_any_type_that_numpy_has() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    own = fedray.run({"rounds": 1, "clients": 3, "runtime": "inline", "report": False}, data=(x, [0, 1, 2] * 20))
    student = own.distil(x, {"name": "mlp", "hidden": [4]}, steps=2)
    assert np.allclose(student.predict(x.tolist()), student.predict(x.astype(np.float32)), atol=1e-6)


def test_a_client_may_teach() -> None:
    own = fedray.run(of_method("local_only"))
    x = own.study.shards.data.train.x
    both = [own.distil(x, steps=50, lr=0.01, client=client).predict(x) for client in (0, 1)]
    for client, said in enumerate(both):
        others = [np.abs(own.predict(x, client=c).mean - said).mean() for c in (0, 1)]
        assert others[client] < others[1 - client]
