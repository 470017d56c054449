"""Sums that clients send beside their models, and tensors of the server's that their loss reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from modules import Residual, load_module
from small import scenario, spell_out
from torch import Tensor

import fedray
from fedray.core.errors import BadInput
from fedray.core.types import State, Stats, Uploads
from fedray.methods import ClientSums, LocalLoss, LossContext, Method, SeenRows, Server, Setting, Transform, federated

ONE: dict[str, Any] = {"rounds": 2, "method": {"name": "fedavg"}, "data": {"limit": 120}, "report": False}
NAME = "broadcast/scale"


def run(compose: Callable[[Setting], Method], *changes: dict[str, Any], **given: Any) -> fedray.Run:
    return fedray.run(spell_out(scenario(ONE, *changes)), method=compose, **given)


def models(run: fedray.Run) -> Tensor:
    return run.progress.state.models


def plain(setting: Setting) -> Method:
    return Method("own", federated(setting))


def listening(base: Server, seen: list[Uploads]) -> Server:
    def reduce(uploads: Uploads) -> Stats:
        seen.append(uploads)
        return base.reduce(uploads)

    return base._replace(reduce=reduce)


def by_class(seen: SeenRows) -> Tensor:
    """Of each class the sum of features and of outputs, and the rows."""
    each = (seen.targets[:, None] == torch.arange(10)).to(seen.outputs)
    return torch.cat([(each.T @ seen.features).flatten(), (each.T @ seen.outputs).flatten(), each.sum(0)])


@pytest.mark.parametrize("private", [False, True])
def test_sums_are_those_of_the_trained_model_over_all_rows_of_its_client(private: bool) -> None:
    seen: list[Uploads] = []

    def compose(setting: Setting) -> Method:
        if private:
            setting = replace(setting, private=("1",))
        phase = federated(setting)
        server, measure = listening(phase.server, seen), ClientSums(by_class, 10 * (8 + 10 + 1))
        return Method("own", replace(phase.add(measure), server=server))

    done = run(compose, {"rounds": 1})
    study, start = done.study, models(run(plain, {"rounds": 0}))[0]
    assert sum(len(one.client) for one in seen) == 12  # the server is asked twice at its first call
    for uploads in seen:
        assert uploads.beside is not None
        for j, client in enumerate(uploads.client):
            counts = uploads.beside[j, -10:]
            fetched = study.shards.fetch(np.array([0]), np.array([client]))
            rows = fetched.rows[0, : int(fetched.size[0])]
            x, y = study.shards.normalize(fetched.x[rows][None], torch.tensor([0]))[0], fetched.labels(rows, 0)
            assert torch.equal(counts, torch.bincount(y, minlength=10).float())
            if private:  # what is sent is no delta of the private layer, in which the model was measured none the less
                continue
            module = load_module(study.net, start + uploads.delta[j])
            assert isinstance(module, torch.nn.Sequential)
            features = module[:-1](x)
            wanted = by_class(SeenRows(x, features.detach(), module(x).detach(), y))
            torch.testing.assert_close(uploads.beside[j], wanted, rtol=1e-4, atol=1e-4)


def test_private_layers_are_the_clients_own_where_they_measure() -> None:
    """With the last layer private or not, one client alone measures the same in its first round."""
    sums: list[Tensor] = []
    for private in ((), ("3",)):
        seen: list[Uploads] = []

        def compose(setting: Setting, private: tuple[str, ...] = private, seen: list[Uploads] = seen) -> Method:
            phase = federated(replace(setting, private=private))
            measure = ClientSums(lambda rows: rows.outputs.sum(0), 10)
            return Method("own", replace(phase.add(measure), server=listening(phase.server, seen)))

        run(compose, {"rounds": 1, "clients": {"number": 1}})
        assert seen[0].beside is not None
        sums.append(seen[0].beside)
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-4, atol=1e-4)


def test_sums_change_nothing_but_the_bytes() -> None:
    def compose(setting: Setting) -> Method:
        return Method("own", federated(setting).add(ClientSums(lambda seen: seen.outputs.sum(0), 10)))

    with_sums, without = run(compose), run(plain)
    assert torch.equal(models(with_sums), models(without))
    jobs = without.clients.num_rows
    up, down = (
        [one.rounds.to_pylist()[-1][column] for one in (with_sums, without)] for column in ("up_bytes", "down_bytes")
    )
    assert up[0] - up[1] == 4 * 10 * jobs
    assert down[0] == down[1]


def test_what_the_sums_draw_is_the_same_in_every_run() -> None:
    """Noise for privacy, say: it differed from run to run, and with it all that the server makes of the sums."""
    seen: list[Uploads] = []

    def compose(setting: Setting) -> Method:
        phase = federated(setting)
        measure = ClientSums(lambda rows: rows.outputs.sum(0) + torch.randn(10) + np.random.rand(), 10)
        return Method("own", replace(phase.add(measure), server=listening(phase.server, seen)))

    found = []
    for _ in range(2):
        seen.clear()
        run(compose, {"rounds": 1})
        found.append(torch.cat([one.beside for one in seen if one.beside is not None]))
    assert torch.equal(*found)
    assert (
        2 * len(set(found[0].flatten().tolist())) == found[0].numel()
    )  # no two jobs draw the same; each is seen twice


@pytest.mark.parametrize("mode", [{"mode": "semi"}, {"mode": "buffered", "concurrency": 2, "goal": 2}])
def test_a_loss_that_reads_the_round_is_refused_without_rounds(mode: dict[str, Any]) -> None:
    """Every job failed with a KeyError."""
    with pytest.raises(
        BadInput, match=r"^participation.mode = \w+, but the loss of own reads broadcast/scale of the round"
    ):
        run(scaled([1.0]), {"participation": {"per_round": None, **mode}})


def scaled(factors: list[float], read: bool = True) -> Callable[[Setting], Method]:
    """A method whose server sends each model a factor of its loss, twice as large in each round."""

    def loss(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        return context.objective(outputs, targets) * (context.shared[0] if read else 1.0)

    def compose(setting: Setting) -> Method:
        local = replace(setting.local, loss=LocalLoss(loss, shared=NAME))
        phase = federated(setting, local=local)
        base = phase.server

        def init(models: Tensor) -> dict[str, Tensor]:
            return {**base.init(models), NAME: torch.tensor(factors)[:, None]}

        def step(state: State, stats: Stats, t: int) -> State:
            after = base.step(state, stats, t)
            return after._replace(extra={**after.extra, NAME: 2 * state.extra[NAME]})

        return Method("own", replace(phase, server=base._replace(init=init, step=step)))

    return compose


TWO = {
    "method": {"name": "fed_ensemble", "models": 2},
    "clients": {"tiers": {"all": {"share": 1.0, "models_per_round": "all"}}},
}


@pytest.mark.parametrize("model", [None, Residual], ids=["compiled", "vmap"])
def test_each_model_has_its_row_and_the_row_of_the_round(model: Any) -> None:
    """A factor of the loss is one of the rate: 1 and 2 in the rounds, and a model whose factor is 0 stays."""
    given = {} if model is None else {"model": model}
    own = models(run(scaled([0.0, 1.0]), TWO, **given))
    first = models(run(plain, TWO, {"rounds": 0}, **given))

    def growing(setting: Setting) -> Method:
        def update(gradient: Tensor, state: Any, _parameters: Tensor, context: Any) -> Any:
            return gradient * 2**context.round, state

        rule = Transform(lambda _parameters: (), update)
        return Method("own", federated(setting, local=replace(setting.local, gradient=rule)))

    wanted = models(run(growing, TWO, **given))
    assert torch.equal(own[0], first[0])
    torch.testing.assert_close(own[1], wanted[1], rtol=1e-4, atol=1e-5)


def test_what_the_loss_does_not_use_changes_nothing_but_the_bytes() -> None:
    read, without = run(scaled([5.0, 5.0], read=False), TWO), run(plain, TWO, {"lanes": "torch"})
    torch.testing.assert_close(models(read), models(without), rtol=1e-4, atol=1e-5)
    down = [one.rounds.to_pylist()[-1]["down_bytes"] for one in (read, without)]
    assert down[0] - down[1] == 4 * without.clients.num_rows


def test_what_cannot_be_sent_or_read_is_one_line() -> None:
    def reads(name: str) -> LocalLoss:
        return LocalLoss(lambda outputs, targets, context: context.objective(outputs, targets), shared=name)

    def with_loss(name: str) -> Callable[[Setting], Method]:
        return lambda setting: Method("own", federated(setting, local=replace(setting.local, loss=reads(name))))

    def with_sums(sums: Any) -> Callable[[Setting], Method]:
        return lambda setting: Method("own", federated(setting).add(sums))

    def none() -> Any:
        return None

    def number(_seen: SeenRows) -> Any:
        return 1.0

    def with_numbers(function: Any, numbers: int) -> Callable[[Setting], Method]:
        return with_sums(ClientSums(function, numbers))

    wrong: list[tuple[Callable[[Setting], Method], str]] = [
        (with_loss("scale"), "reads 'scale': clients get what is called broadcast/"),
        (with_loss(NAME), f"reads '{NAME}', which the server of own does not keep: let Server.init return it"),
        (with_sums("features"), "pieces has a str: give a Piece"),
        (with_numbers(number, 0), r"ClientSums\.numbers = 0: give a whole number of at least 1"),
        (with_numbers(none, 3), r"ClientSums\.function does not take \(seen\)"),
        (
            with_numbers(lambda seen: seen.outputs.sum(0), 3),
            r"function returned shape \[10\]: return 3 numbers",
        ),
        (with_numbers(number, 3), "function returned a float: return a tensor of 3 numbers"),
    ]
    for compose, told in wrong:
        with pytest.raises(fedray.FedrayError, match=told):
            run(compose)
    with pytest.raises(fedray.BadInput, match="which the server of fedavg does not keep"):
        fedray.run(scenario(ONE), loss=reads(NAME))


@pytest.mark.slow
def test_bits_do_not_depend_on_actors() -> None:
    def compose(setting: Setting) -> Method:
        method = scaled([1.0, 3.0])(setting)
        return replace(method, phase=method.phase.add(ClientSums(lambda seen: seen.outputs.sum(0), 10)))

    apart = {"runtime": "ray", "clients": {"actors": 2}}
    assert torch.equal(models(run(compose, TWO)), models(run(compose, TWO, apart)))
