"""Methods against loops of plain torch from their formulas, three rounds of two replicates (`helpers/plain.py`)."""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import plain
import pytest
import torch
from plain import EPOCHS, HEAD, LR, Client
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, softplus

from fedray.core import rng
from fedray.core.types import IntArray
from fedray.runtime.worker import Worker

Keys = Mapping[str, Any]
WEAK = {"strong": {"number": 2}, "weak": {"number": 3, "epochs": 1}}  # of two
MOVED = {"momentum": 0.5}
BY_SIZE = {"server": {"weighting": "examples"}}


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def descend(client: Client, start: Tensor, step: object = None, local: Mapping[str, Any] = {}) -> Tensor:
    """SGD; `step` (weights, inputs, classes) is the gradient instead of that of the loss."""
    w, moves = start, momentum(local)
    for batch in client.batches:
        x, y = client.x[batch], client.y[batch]
        w = w - LR * moves(step(w, x, y) if callable(step) else plain.slope(partial(plain.lose, x=x, y=y), w))
    return w


def momentum(local: Mapping[str, Any]) -> Callable[[Any], Any]:
    """What turns the gradients of a local training into its moves, one after another."""
    rho, velocity = local.get("momentum", 0.0), 0.0

    def move(g: Any) -> Any:
        nonlocal velocity
        velocity = rho * velocity + g
        return g + rho * velocity if local.get("nesterov") else velocity

    return move


def length(client: Client, local: Mapping[str, Any]) -> Tensor:
    """How far gradients of 1 move a number, `|a_i|_1` of FedNova: the number of steps if there is no momentum."""
    moves = momentum(local)
    return torch.tensor(sum(moves(1.0) for _ in client.batches), dtype=torch.float64)


def test_moon_compares_features_with_the_broadcast_model_and_with_the_clients_last_one() -> None:
    """The last one is that of the round in which it trained last; in its first round the broadcast one."""
    mu, temperature = 2.0, 0.5
    done = plain.train({"name": "moon", "mu": mu, "temperature": temperature}, {"rounds": 4})

    def pull(w: Tensor, x: Tensor, y: Tensor, now: Tensor, last: Tensor) -> Tensor:
        def loss(w: Tensor) -> Tensor:
            logits, features = plain.ask(w, x)
            near, far = (cosine_similarity(features, plain.ask(one, x)[1]) / temperature for one in (now, last))
            return cross_entropy(logits, y) - mu * (near - torch.logaddexp(near, far)).mean()

        return plain.slope(loss, w)

    for world in range(2):
        w, last = done.states[0].models[world], dict[int, Tensor]()
        for t in range(4):
            clients = plain.participants(done, world, t)
            sent = [descend(c, w, partial(pull, now=w, last=last.get(c.number, w))) for c in clients]
            last |= {c.number: one for c, one in zip(clients, sent, strict=True)}
            w = plain.mean_by_size(clients, sent)
        assert_close(done.models(world)[0], w)


def test_fedsam_descends_by_the_gradient_at_the_end_of_a_step_uphill() -> None:
    rho = 0.3
    done = plain.train({"name": "fedsam", "rho": rho}, {"local": {"weight_decay": 0.1}})

    def uphill(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        loss = partial(plain.lose, x=x, y=y)
        first = plain.slope(loss, w)
        return plain.slope(loss, w + rho * first / first.norm()) + 0.1 * w

    for world in range(2):
        w = done.states[0].models[world]
        for t in range(3):
            clients = plain.participants(done, world, t)
            w = plain.mean_by_size(clients, [descend(c, w, uphill) for c in clients])
        assert_close(done.models(world)[0], w)


@pytest.mark.parametrize(("tiers", "local"), [({}, {}), (WEAK, MOVED), ({}, {**MOVED, "nesterov": True})])
def test_fednova_divides_each_change_by_its_steps_and_multiplies_by_their_mean(tiers: Keys, local: Keys) -> None:
    """With momentum by the lengths of the moves."""
    done = plain.train({"name": "fednova"}, {"clients": {"tiers": tiers}, "local": local})
    for world in range(2):
        w = done.states[0].models[world]
        for t in range(3):
            clients = plain.participants(done, world, t)
            steps = [length(c, local) for c in clients]
            moves = [(descend(c, w, local=local) - w) / tau for c, tau in zip(clients, steps, strict=True)]
            w = w + plain.mean_by_size(clients, steps) * plain.mean_by_size(clients, moves)
        assert_close(done.models(world)[0], w)


@pytest.mark.parametrize("q", [0.5, 2.0])
def test_qffl_counts_clients_by_powers_of_the_loss_of_the_model_that_they_received(q: float) -> None:
    """Li et al. 2020, Alg. 2, with L = 1 / lr."""
    done = plain.train({"name": "qffl", "q": q})
    for world in range(2):
        w = done.states[0].models[world]
        for t in range(3):
            clients = plain.participants(done, world, t)
            steep = [(w - descend(c, w)) / LR for c in clients]
            loss = [plain.lose(w, c.x, c.y).detach() for c in clients]
            h = [q * f ** (q - 1) * g.square().sum() + f**q / LR for f, g in zip(loss, steep, strict=True)]
            w = w - torch.stack([f**q * g for f, g in zip(loss, steep, strict=True)]).sum(0) / torch.stack(h).sum()
        assert_close(done.models(world)[0], w)


@pytest.mark.parametrize("local", [{}, MOVED])
def test_scaffold_keeps_the_controls_of_those_who_sit_out_and_divides_their_changes_by_all_clients(local: Keys) -> None:
    """Clients differ in their steps, and weight decay is part of the gradient."""
    keys = {"rounds": 4, "local": {"weight_decay": 0.1, **local}, "clients": {"tiers": WEAK}}
    done = plain.train({"name": "scaffold"}, BY_SIZE, keys)
    for world in range(2):
        w, own, shared = (
            done.states[0].models[world],
            dict[int, Tensor](),
            torch.zeros(done.study.net.layout.d).double(),
        )
        for t in range(4):
            clients, sent, change = plain.participants(done, world, t), [], torch.zeros_like(shared)
            for c in clients:
                before = own.get(c.number, torch.zeros_like(shared))

                def corrected(v: Tensor, x: Tensor, y: Tensor, off: Tensor = shared - before) -> Tensor:
                    return plain.slope(partial(plain.lose, x=x, y=y), v) + 0.1 * v + off

                sent.append(descend(c, w, corrected, local))
                own[c.number] = before - shared + (w - sent[-1]) / (length(c, local) * LR)
                change += own[c.number] - before
            w, shared = plain.mean_by_size(clients, sent), shared + change / done.study.clients.number
        assert_close(done.models(world)[0], w)
        assert_close(done.states[-1].extra["broadcast/control"][world], shared)
        for (client, _), row in done.kept("control", world).items():
            assert_close(row, own[client])


@pytest.mark.parametrize("models", [1, 2])
def test_a_known_client_predicts_after_some_steps_from_the_models_of_the_server(models: int) -> None:
    """At the first rate, without the method's pull; a client without rows predicts with what it receives."""
    method = {"name": "fedprox", "mu": 1.0} if models == 1 else {"name": "fed_ensemble", "models": models}
    done = plain.train(method, {"evaluate": {"personal_steps": 7}, "local": {"lr_decay": 0.5, "lr_decay_every": 1}})
    assert torch.equal(
        done.states[-1].models, plain.train(method, {"local": {"lr_decay": 0.5, "lr_decay_every": 1}}).states[-1].models
    )
    worker = Worker(done.study)
    for world, client in itertools.product(range(2), range(done.study.clients.number)):
        found = worker.own_models(done.states[-1], world, client)
        x, y = plain.rows_of(done.study, world, client)
        for model, (own, w) in enumerate(zip(found, done.models(world), strict=True)):
            key = rng.keys(int(done.study.seeds[world]), "tuning", client, model)
            batches = plain.deal(key, len(y), epochs=7)[:7] if len(y) else []
            assert_close(own, descend(Client(client, model, x, y, batches, key), w))


def test_fedrep_trains_its_head_then_its_body_and_keeps_the_head() -> None:
    done = plain.train({"name": "fedrep"}, {"rounds": 4})
    for world in range(2):
        first = done.states[0].models[world]
        w, heads = first, dict[int, Tensor]()
        for t in range(4):
            clients, sent = plain.participants(done, world, t), []
            for c in clients:
                v = torch.where(HEAD, heads.get(c.number, w), w)
                for step, batch in enumerate(c.batches):
                    turn = HEAD if step < len(c.batches) // EPOCHS else ~HEAD  # of two epochs the last is the body's
                    v = v - LR * turn * plain.slope(partial(plain.lose, x=c.x[batch], y=c.y[batch]), v)
                heads[c.number] = v
                sent.append(v)
            w = torch.where(HEAD, first, plain.mean_by_size(clients, sent))
        assert_close(done.models(world)[0], w)
        for (client, _), row in done.kept("layers", world).items():
            assert_close(row[HEAD], heads[client][HEAD])


def test_fedem_goes_on_from_the_weights_that_a_client_had() -> None:
    """E step, M step and the mean over clients, of three components."""
    k = 3
    done = plain.train({"name": "fedem", "models": k}, {"rounds": 4})
    for world in range(2):
        w, weights = list(done.states[0].models.view(2, k, -1)[world]), dict[int, Tensor]()
        for t in range(4):
            jobs = plain.participants(done, world, t)
            clients = [job for job in jobs if job.model == 0]
            shares = {}
            for c in clients:
                nll = torch.stack([cross_entropy(plain.ask(one, c.x)[0], c.y, reduction="none") for one in w])
                prior = weights.get(c.number, torch.full((k,), 1 / k, dtype=torch.float64))
                shares[c.number] = (prior.log()[:, None] - nll).softmax(0)
                weights[c.number] = shares[c.number].mean(1)
            w = [plain.mean_by_size(clients, [learn(j, w[m], shares) for j in jobs if j.model == m]) for m in range(k)]
        assert_close(done.models(world), torch.stack(w))
        assert all(abs(float(row[0]) - weights[i][m]) < 1e-6 for (i, m), row in done.kept("mixture", world).items())


def learn(job: Client, start: Tensor, shares: dict[int, Tensor]) -> Tensor:
    """A component on the weighted samples of a client."""
    w, share = start, shares[job.number][job.model]
    for batch in job.batches:

        def loss(w: Tensor, batch: IntArray = batch) -> Tensor:
            return (share[batch] * cross_entropy(plain.ask(w, job.x[batch])[0], job.y[batch], reduction="none")).mean()

        w = w - LR * plain.slope(loss, w)
    return w


def diverge(own: Tensor, prior: Tensor) -> Tensor:
    """KL(q || w) of `[mean, rho]`."""
    (mean, rho), (other, spread) = own.chunk(2), prior.chunk(2)
    ratio, away = softplus(rho) / softplus(spread), (mean - other) / softplus(spread)
    return ((ratio.square() + away.square()) / 2 - ratio.log() - 0.5).sum()


def step_of_pfedbayes(c: Client, own: Tensor, prior: Tensor, step: int, zeta: float) -> Tensor:
    """The gradient of the loss at a draw from q, and of zeta / n KL."""
    batch, draw = c.batches[step], c.draw(step)

    def loss(own: Tensor) -> Tensor:
        mean, rho = own.chunk(2)
        return plain.lose(mean + softplus(rho) * draw, c.x[batch], c.y[batch]) + zeta / c.size * diverge(own, prior)

    return plain.slope(loss, own)


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_pfedbayes_learns_under_the_received_prior_and_sends_its_copy_of_it(beta: float) -> None:
    """A client that sat out goes on from the Gaussian that it had."""
    zeta, turns, lr = 5.0, 2, 0.02
    server = {"weighting": "examples", "optimizer": "momentum", "lr": beta, "momentum": 0.0}
    done = plain.train(
        {"name": "pfedbayes", "zeta": zeta, "personal_steps": turns, "rho": -2.0},
        {"rounds": 4, "server": server, "local": {"optimizer": "sgd", "lr": lr}},
    )
    for world in range(2):
        w, owned = done.states[0].models[world].chunk(2)[1], dict[int, Tensor]()
        for t in range(4):
            clients, sent = plain.participants(done, world, t), []
            for c in clients:
                own, prior = owned.get(c.number, w), w
                for step in range(len(c.batches)):
                    own = own - lr * step_of_pfedbayes(c, own, prior, step, zeta)
                    if (step + 1) % turns == 0:
                        prior = prior - lr * zeta / c.size * plain.slope(partial(diverge, own), prior)
                owned[c.number] = own
                sent.append(prior)
            w = w + beta * (plain.mean_by_size(clients, sent) - w)
        assert_close(done.models(world)[0], torch.cat([w, w]))
        for (client, _), row in done.kept("layers", world).items():
            assert_close(row.chunk(2)[0], owned[client])
