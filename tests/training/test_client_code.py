"""Code in local training: what is the same as data gives the same numbers; what losses of all models see and cost."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from modules import Residual
from small import models, scenario, spell_out, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fedray
from fedray.core.method import Local, LocalLoss, LossContext, StepContext, Transform, start_empty
from fedray.features.correction import chain
from fedray.features.windows import Windows, assign_windows
from fedray.methods import Method, Setting, federated
from fedray.simulation.study import Progress, Study, choose_study_engine
from fedray.training import choice
from fedray.training.choice import Engine


def batch_norm() -> nn.Module:
    """A network with buffers, which the loop trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


def method(change: Callable[[Local], Local]) -> Callable[[Setting], Method]:
    """FedAvg whose local training is changed."""
    return lambda setting: Method("mine", federated(setting, local=change(setting.local)))


class Trained(NamedTuple):
    """A study, and what its clients have trained."""

    study: Study
    progress: Progress


def keys_of(*changes: dict[str, Any]) -> dict[str, Any]:
    few = {"rounds": 2, "report": False, "method": {"name": "fedavg"}, "data": {"limit": 90}, "clients": {"number": 3}}
    return spell_out(scenario(few, *changes))


def run(change: Callable[[Local], Local], *changes: dict[str, Any], model: Any = Residual) -> Trained:
    return Trained(*train(keys_of(*changes), model=model, method=method(change))[:2])


def engine_of(one: Any) -> Engine:
    return choose_study_engine(one.study)


def same_loss(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    return context.objective(outputs, targets)


def same_gradient(gradient: Tensor, state: Any, _parameters: Tensor, _context: StepContext) -> tuple[Tensor, Any]:
    return gradient, state


SAME = Transform(start_empty, same_gradient)
TERMS: dict[str, Any] = {"local": {"weight_decay": 0.1, "pull": 0.3}}


@pytest.mark.parametrize(("model", "engine"), [(Residual, "vmap"), (batch_norm, "loop")])
def test_code_that_changes_nothing_gives_the_numbers_of_the_data(model: Any, engine: str) -> None:
    """Mapped over lanes the bits; one after another running statistics and counters, too."""
    full = {"data": {"partition": {"name": "iid"}}}  # batches of 8 rows: no normalization over a single one
    same: dict[str, Any] = {"loss": LocalLoss(same_loss), "gradient": SAME, "step": SAME}
    plain, coded = (run(partial(replace, **own), TERMS, full, model=model) for own in ({}, same))
    assert engine_of(plain).name == engine_of(coded).name == engine
    if engine == "vmap":
        assert "code, mapped over lanes" in engine_of(coded).why
        assert torch.equal(models(plain), models(coded))
    torch.testing.assert_close(models(plain), models(coded), rtol=1e-4, atol=1e-5)
    assert torch.equal(plain.progress.state.counters, coded.progress.state.counters)


class Keeper(nn.Module):
    """Keeps the mean of its inputs, in place or assigned anew, and computes its layer again in the backward pass."""

    mean: Tensor

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.anew, self.layer = anew, nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        x, mean = x.flatten(1), 0.9 * self.mean + 0.1 * x.detach().flatten(1).mean(0)
        if self.training and self.anew:
            self.mean = mean
        elif self.training:
            self.mean.copy_(mean)
        return torch.as_tensor(checkpoint(self.layer, x - self.mean, use_reentrant=False))


def test_buffers_may_be_assigned_anew_and_layers_may_be_computed_again() -> None:
    found: list[Tensor] = []
    for own in ({}, {"loss": LocalLoss(same_loss), "step": SAME}):
        placed, anew = (run(partial(replace, **own), model=partial(Keeper, anew)) for anew in (False, True))
        assert torch.equal(models(placed), models(anew)) and models(anew)[:, -64:].abs().max() > 0
        found.append(models(anew))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def adversarial(_outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    """The loss where a step along the sign of its gradient by the inputs has led (Goodfellow et al. 2015)."""

    def cost(x: Tensor) -> Tensor:
        return context.objective(context.network(x), targets).sum()

    moved = context.inputs + 0.1 * torch.func.grad(cost)(context.inputs).sign()
    return context.objective(context.network(moved), targets)


def adversarial_by_autograd(_outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    x = context.inputs.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(context.objective(context.network(x), targets).sum(), x)
    return context.objective(context.network(context.inputs + 0.1 * slope.sign()), targets)


def with_network(function: Any) -> Callable[[Local], Local]:
    return lambda local: replace(local, loss=LocalLoss(function, reads=("inputs", "network")))


def test_adversarial_training_is_the_same_in_lanes_and_one_after_another() -> None:
    lanes, loop = run(with_network(adversarial), TERMS), run(with_network(adversarial_by_autograd), TERMS)
    assert [engine_of(one).name for one in (lanes, loop)] == ["vmap", "loop"]
    torch.testing.assert_close(models(lanes), models(loop), rtol=1e-3, atol=1e-5)
    assert (models(lanes) - models(run(lambda local: local, TERMS))).abs().max() > 1e-3


class Skipping(Residual):
    """A network that leaves a layer out at random, by Python's generator."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1)).relu()
        out: Tensor = self.last(h if self.training and random.random() < 0.5 else h + self.middle(h).relu())
        return out


def halves(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    """A loss that counts twice in half of the steps, by NumPy's generator."""
    return (1 + (np.random.rand() < 0.5)) * context.objective(outputs, targets)


@pytest.mark.parametrize("place", ["loss", "network"])
def test_draws_of_numpy_and_python_have_addresses(place: str) -> None:
    """They are the same again, and in blocks of one client."""
    model = Skipping if place == "network" else Residual
    change = with_network(halves) if place == "loss" else (lambda local: local)
    first, again, alone = (
        run(change, TERMS, {"rounds": 1, **one}, model=model) for one in ({}, {}, {"client_timeout": 100})
    )
    assert engine_of(first).name == "loop"
    assert "it draws random numbers outside torch" in engine_of(first).why
    assert torch.equal(models(first), models(again))
    assert torch.equal(models(first), models(alone))


def add_velocity(gradient: Tensor, state: Any, _parameters: Tensor, _context: StepContext) -> tuple[Tensor, Any]:
    velocity = 0.9 * state + gradient
    return velocity, velocity


OWN_STEPS = {  # a known optimizer and its keys, the same one of one's own, and the engine that trains with this
    "functions": ({"optimizer": "sgd", "momentum": 0.9}, Transform(torch.zeros_like, add_velocity), "vmap"),
    "torch": ({"optimizer": "adam"}, torch.optim.Adam, "loop"),
}


@pytest.mark.parametrize(("keys", "step", "engine"), OWN_STEPS.values(), ids=OWN_STEPS)
def test_an_optimizer_of_ones_own_is_the_known_one(keys: dict[str, Any], step: Any, engine: str) -> None:
    known = run(lambda local: replace(local, lr=0.01, **keys), TERMS)
    own = run(lambda local: replace(local, step=step, lr=0.01), TERMS)
    assert engine_of(own).name == engine
    torch.testing.assert_close(models(known), models(own), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("model", "place"), [(Residual, "gradient"), (batch_norm, "step")])
def test_a_state_that_is_the_parameters_does_not_follow_them(model: Any, place: str) -> None:
    def update(g: Tensor, state: Any, now: Tensor, context: StepContext) -> tuple[Tensor, Any]:
        """FedProx with the first parameters as the state, and the heavy ball with the previous ones."""
        return g + 0.5 * (now - state[0]) + 0.9 * (state[1] - now) / context.lr, (state[0], now)

    rule: Any = {place: Transform(lambda now: (now, now), update)}
    own = run(lambda local: replace(local, **rule), model=model)
    known = run(lambda local: replace(local, pull=0.5, momentum=0.9), model=model)
    torch.testing.assert_close(models(own), models(known), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("place", ["gradient", "step"])
def test_a_step_takes_its_gradient_where_the_transformation_says(place: str) -> None:
    """In the first pass what `gradient_at` gives in a second one; noise says where as well as a number does."""

    def again(_gradient: Tensor, state: Any, parameters: Tensor, context: StepContext) -> tuple[Tensor, Any]:
        return context.gradient_at(parameters + 0.1 * context.noise), state

    def away(parameters: Tensor, noise: Tensor) -> Tensor:
        return parameters + 0.1 * noise

    def train(**rule: Any) -> Tensor:
        where: Any = {place: Transform(start_empty, **rule)}
        return models(run(lambda local: replace(local, **where), {"rounds": 1}))

    second, first = train(update=again, noise=True), train(update=same_gradient, noise=True, at=away)
    here = train(update=same_gradient)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    assert (first - here).abs().max() > 1e-3


def test_the_context_has_as_much_noise_as_is_asked_for_and_the_rows_of_the_client() -> None:
    seen: list[tuple[int, int, int]] = []

    def update(gradient: Tensor, state: Any, _parameters: Tensor, context: StepContext) -> tuple[Tensor, Any]:
        seen.append((int(context.client), int(context.size), len(context.noise)))
        return gradient, state

    step = Transform(start_empty, update, noise=True, numbers=3)
    own = method(lambda local: replace(local, step=step))
    found = fedray.run(keys_of(), model=batch_norm, method=own)
    jobs = {(job["client"], job["samples"], 3) for job in found.clients.to_pylist()}
    assert len(jobs) == 3
    assert set(seen) == jobs | {(0, 1, 3)}  # the trial's


def test_rows_that_see_each_other_are_not_padded() -> None:
    """In lanes the padding of a batch would enter the mean."""

    def mean(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        return context.objective(outputs - outputs.mean(0), targets)

    coded = run(lambda local: replace(local, loss=LocalLoss(mean)))
    assert engine_of(coded).name == "loop"
    assert "rows of a batch that see each other" in engine_of(coded).why


def test_a_loss_reads_the_features_the_broadcast_model_and_the_one_before() -> None:
    """In round 0 all three models of step 0 are the same one; later the one before is what the client had trained."""
    seen: list[tuple[int, int, Tensor, Tensor, Tensor]] = []

    def loss(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        assert context.features.shape == context.broadcast.features.shape == (len(targets), 6)
        torch.testing.assert_close(context.network(context.inputs), outputs)
        own, broadcast, previous = outputs.detach(), context.broadcast.outputs, context.previous.outputs
        seen.append((context.round, int(context.client), own, broadcast, previous))
        return context.objective(outputs, targets)

    reads = ("inputs", "network", "features", "broadcast", "previous")
    run(lambda local: replace(local, loss=LocalLoss(loss, reads), batch_size=None))
    own, broadcast, previous = next(one for one in seen if one[0] == 0)[2:]
    torch.testing.assert_close(own, broadcast)
    torch.testing.assert_close(own, previous)
    own, broadcast, previous = next(one for one in seen if one[0] == 1)[2:]
    torch.testing.assert_close(own, broadcast)
    assert (own - previous).abs().max() > 1e-4


def test_lanes_do_not_see_each_other() -> None:
    """The packing never changes a bit: all jobs side by side, or two and two."""

    def loss(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        near = torch.cosine_similarity(context.features, context.previous.features, dim=-1)
        return context.objective(outputs, targets) + near

    def clip(gradient: Tensor, state: Any, _parameters: Tensor, context: StepContext) -> tuple[Tensor, Any]:
        return gradient / gradient.norm().clamp(min=0.5) + 0.01 * context.noise, state

    def change(local: Local) -> Local:
        read = LocalLoss(loss, ("features", "previous"))
        return replace(local, loss=read, gradient=Transform(start_empty, clip, noise=True))

    wide = run(change)
    assert engine_of(wide).name == "vmap"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(choice.MOST_LANES, "cpu", 2)
        narrow = run(change)
    assert torch.equal(models(wide), models(narrow))
    assert torch.equal(models(wide), models(run(change)))


def test_of_chained_rules_the_noise_that_they_ask_for_was_left_out() -> None:
    one, other = (Transform(start_empty, same_gradient, name=name, at=lambda p, _: p) for name in ("one", "other"))
    noisy = chain(one, other._replace(at=None, noise=True, numbers=7))
    assert noisy is not None and (noisy.noise, noisy.numbers, noisy.at) == (True, 7, one.at)


FEW: dict[str, Any] = {
    "rounds": 2, "report": False, "method": {"models": 3}, "data": {"limit": 90}, "clients": {"number": 4},
}  # fmt: skip
TIERS = {"hpc": {"share": 0.5, "models_per_round": "all"}, "lpc": {"share": 0.5}}
TWO_WORLDS: dict[str, Any] = {"replicates": 2}


def ensemble_run(loss: Any, *changes: dict[str, Any], **options: Any) -> fedray.Run:
    return fedray.run(scenario(FEW, *changes), loss=loss, **options)


def ensemble(loss: Any, *changes: dict[str, Any], **options: Any) -> Trained:
    return Trained(*train(scenario(FEW, *changes), loss=loss, **options)[:2])


def repel(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    """Negative-correlation learning (Liu and Yao 1999), with the other models as the round began."""
    says = context.ensemble.softmax(-1)
    mean, other = says.mean(0), (torch.arange(len(says)) != context.model)[:, None, None]
    far: Tensor = ((outputs.softmax(-1) - mean) * (other * (says - mean)).sum(0)).sum(-1)
    return context.objective(outputs, targets) + 0.5 * far


REPEL = LocalLoss(repel, reads=("ensemble",))
IGNORES = LocalLoss(same_loss, reads=("ensemble",))


def test_an_ensemble_of_one_is_the_broadcast_model() -> None:
    def distil(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        other = context.broadcast.outputs if context.ensemble is None else context.ensemble[0]
        far: Tensor = (outputs - other).square().sum(-1)
        return context.objective(outputs, targets) + far

    one = {"method": {"name": "fedavg", "models": 1}}
    broadcast, ensemble = (ensemble_run(LocalLoss(distil, reads=(name,)), one) for name in ("broadcast", "ensemble"))
    assert engine_of(ensemble).name == "vmap"
    assert torch.equal(models(broadcast), models(ensemble))
    assert broadcast.summary["totals"]["down_bytes"] == ensemble.summary["totals"]["down_bytes"]


@pytest.mark.parametrize(("model", "engine"), [(None, "vmap"), (batch_norm, "loop")])
def test_a_loss_that_reads_all_models_and_ignores_them_changes_no_bit(model: Any, engine: str) -> None:
    full = {"data": {"partition": {"name": "iid"}}}  # batches of 8 rows: no normalization over a single one
    reads, without = ensemble(IGNORES, full, model=model), ensemble(LocalLoss(same_loss), full, model=model)
    assert engine_of(reads).name == engine
    assert torch.equal(models(reads), models(without))


def test_each_lane_sees_the_models_of_its_own_world_and_which_it_trains() -> None:
    """Its own row of the ensemble is what the model says that it received."""
    seen: Counter[int] = Counter()

    def look(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        assert context.ensemble.shape == (3, *outputs.shape)
        assert not context.ensemble.requires_grad
        k = int(context.model)
        torch.testing.assert_close(context.ensemble[k], context.broadcast.outputs)
        others = [other for other in range(3) if other != k]
        assert all((context.ensemble[other] - context.broadcast.outputs).abs().max() > 1e-3 for other in others)
        seen[k] += 1
        return context.objective(outputs, targets)

    tiers = {"clients": {"tiers": TIERS}}
    found = ensemble(LocalLoss(look, reads=("ensemble", "broadcast", "features")), tiers, TWO_WORLDS)
    assert engine_of(found).name == "loop"
    assert set(seen) == {0, 1, 2}


def test_lanes_and_the_loop_train_alike_and_no_packing_shows() -> None:
    def repel_one_by_one(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        int(context.client)  # what cannot be mapped over lanes
        return repel(outputs, targets, context)

    changes = {"rounds": 1, "clients": {"tiers": TIERS}}, TWO_WORLDS
    lanes, loop = (ensemble(LocalLoss(one, reads=("ensemble",)), *changes) for one in (repel, repel_one_by_one))
    assert (engine_of(lanes).name, engine_of(loop).name) == ("vmap", "loop")
    torch.testing.assert_close(models(lanes), models(loop), rtol=1e-4, atol=1e-5)
    assert (models(lanes) - models(ensemble(IGNORES, *changes))).abs().max() > 1e-4
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(choice.MOST_LANES, "cpu", 2)  # blocks of one world, and of two
        narrow = ensemble(REPEL, *changes)
    assert torch.equal(models(lanes), models(narrow))
    alone = ensemble(REPEL, changes[0])
    assert torch.equal(models(lanes)[:3], models(alone))


def test_a_client_downloads_every_model_once_a_round() -> None:
    """Whether it trains one of them or all; what it sends stays."""

    def bytes_a_client(found: fedray.Run, column: str) -> dict[tuple[int, int], int]:
        total: Counter[tuple[int, int]] = Counter()
        for row in found.clients.to_pylist():
            total[row["round"], row["client"]] += row[column]
        return dict(total)

    tiers = {"clients": {"tiers": TIERS}, "rounds": 2}
    reads, without = ensemble_run(IGNORES, tiers), ensemble_run(LocalLoss(same_loss), tiers)
    model = 4 * reads.study.net.layout.d
    assert set(bytes_a_client(reads, "down_bytes").values()) == {3 * model}
    assert set(bytes_a_client(without, "down_bytes").values()) == {model, 3 * model}
    assert bytes_a_client(reads, "up_bytes") == bytes_a_client(without, "up_bytes")


def test_personal_models_read_it_too() -> None:
    """Ditto with a loss that pushes away from the broadcast model: its global model is FedAvg's with that loss."""
    ditto = ensemble(REPEL, {"method": {"name": "ditto", "models": None}})
    fedavg = ensemble(REPEL, {"method": {"name": "fedavg", "models": None}, "server": {"weighting": "uniform"}})
    assert torch.equal(models(ditto), models(fedavg))


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ray_trains_with_all_models_to_the_same_bits() -> None:
    changes = {"clients": {"tiers": TIERS}}, TWO_WORLDS
    inline, ray = (ensemble_run(REPEL, *changes, runtime=where) for where in ("inline", "ray"))
    assert inline.summary["state_hash"] == ray.summary["state_hash"]


# Sampled local training: windows that cover what they say, and steps that are plain training on every engine


ENGINES: dict[str, dict[str, Any]] = {
    "mlp-c": {},
    "conv-c": {"model": {"name": "cnn", "channels": [2, 3], "hidden": [4]}},
    "mlp": {"lanes": "torch"},
    "conv": {"model": {"name": "cnn", "channels": [2, 3], "hidden": [4]}, "lanes": "torch"},
    "vmap": {"model": {"name": "mlp", "hidden": [8], "norm": "layer"}},
    "loop": {"model": {"name": "mlp", "hidden": [8], "norm": "batch"}, "local": {"batch_size": 9}},
}
MANY = pytest.mark.parametrize("engine", ENGINES)


def take_last(start: Tensor, means: Tensor) -> Tensor:
    """What FedAvg sends, where the last window is the last step."""
    return means[-1] - start


def with_pieces(*pieces: Any) -> Any:
    """FedAvg with pieces."""
    return lambda setting: fedray.methods.Method("own", fedray.methods.federated(setting, pieces=pieces))


def run_windows(windows: Windows | None, *changes: dict[str, Any], local: dict[str, Any] | None = None) -> Any:
    """The study and the progress of a training, without a session."""
    method = with_pieces(*([] if windows is None else [windows]))
    return Trained(*train(scenario({"rounds": 2}, *changes, {"local": local or {}}), method=method)[:2])


@pytest.mark.parametrize(("mixing", "number"), [(0.0, 1), (0.0, 3), (0.2, 4), (0.75, 2), (0.99, 5)])
def test_windows_cover_every_step_behind_the_first_ones_once_and_evenly(mixing: float, number: int) -> None:
    steps = np.array([40, 17, 5, 2, 1])
    found = assign_windows(steps, Windows(take_last, number, mixing))
    assert found.shape == (40, 5)
    for lane, n in enumerate(steps):
        mine, first = found[:, lane], min(int(mixing * n + 1e-9), n - 1)
        assert (mine[:first] == -1).all() and (mine[n:] == -1).all()
        length = np.bincount(mine[first:n])
        assert len(length) == min(number, n - first) and length.sum() == n - first
        assert length.max() - length.min() <= 1
        assert (np.diff(mine[first:n]) >= 0).all()


@MANY
def test_a_training_of_single_steps_is_the_training_itself(engine: str) -> None:
    """As many windows as steps, of which the last is sent: FedAvg's bits on every engine, for clients of any size."""
    methods = with_pieces(Windows(take_last, number=10**6)), with_pieces()
    keys = scenario({"rounds": 2}, ENGINES[engine])
    sampled, whole = (fedray.run(keys, method=method, report=False) for method in methods)
    assert choose_study_engine(sampled.study).name == engine
    assert torch.equal(sampled.progress.state.models, whole.progress.state.models)
    assert torch.equal(sampled.progress.state.counters, whole.progress.state.counters)
    assert sampled.clients["loss"].to_pylist() == pytest.approx(whole.clients["loss"].to_pylist(), rel=1e-5)


@pytest.mark.parametrize("engine", ["mlp-c", "loop"])
@pytest.mark.parametrize("local", [{"momentum": 0.9}, {"pull": 0.5, "weight_decay": 0.1}], ids=["momentum", "pull"])
def test_momentum_and_pull_reach_over_the_steps(engine: str, local: dict[str, Any]) -> None:
    sampled, whole = (
        run_windows(windows, ENGINES[engine], local=local) for windows in (Windows(take_last, 10**6), None)
    )
    other = run_windows(None, ENGINES[engine])
    torch.testing.assert_close(sampled.progress.state.models, whole.progress.state.models, rtol=0, atol=2e-6)
    assert (sampled.progress.state.models - other.progress.state.models).abs().max() > 1e-3


def test_a_window_has_the_mean_of_its_iterates() -> None:
    """Local training of 1 to 4 steps, whose ends are the iterates, against the mean over one window of 4."""
    steps = [{"local": {"epochs": None, "steps": s}, "rounds": 1, "clients": {"number": 1}} for s in (1, 2, 3, 4)]
    iterates = torch.stack([run_windows(None, one).progress.state.models for one in steps])
    mean = run_windows(Windows(take_last, 1), steps[-1]).progress.state.models
    torch.testing.assert_close(mean, iterates.mean(0), rtol=0, atol=1e-6)
    late = run_windows(Windows(take_last, 1, mixing=0.5), steps[-1]).progress.state.models
    torch.testing.assert_close(late, iterates[2:].mean(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("lanes", ["auto", "torch"])
def test_dropout_draws_anew_in_every_step(lanes: str) -> None:
    """Eight steps of one row: masks that were always the same would leave half of the hidden units as they were."""
    model = {"name": "cnn", "channels": [2], "hidden": [200], "dropout": 0.5}
    changes: dict[str, Any] = {"model": model, "rounds": 1, "clients": {"number": 1}, "lanes": lanes}
    local = {"epochs": None, "steps": 8, "batch_size": 1}
    start, sampled, whole = (
        run_windows(windows, changes, {"rounds": rounds, "method": {"models": 1}}, local=local)
        for windows, rounds in ((None, 0), (Windows(take_last, 8), 1), (None, 1))
    )
    layout = start.study.net.layout
    name = next(name for name, shape in zip(layout.names, layout.shapes, strict=True) if shape == (200,))
    bias, *moved = (layout.views(one.progress.state.models[0])[name] for one in (start, sampled, whole))
    shares = [float((one != bias).double().mean()) for one in moved]
    assert abs(shares[0] - shares[1]) < 0.1
    assert min(shares) > 0.7


@pytest.mark.parametrize("engine", ["mlp-c", "vmap", "loop"])
def test_what_finishes_local_training_is_called_on_every_engine(engine: str) -> None:
    """Twice the way from the start moves the model twice as far."""

    def double(start: Tensor, final: Tensor) -> Tensor:
        return start + 2.0 * (final - start)

    def learn(rounds: int, finish: Any = None) -> Tensor:
        method = with_pieces(*([] if finish is None else [fedray.methods.Finish(finish)]))
        one = {"rounds": rounds, "method": {"models": 1}}
        study, progress, _ = train(scenario(ENGINES[engine], one), method=method)
        return progress.state.models[0, : study.net.layout.trainable]

    first, once, twice = learn(0), learn(1), learn(1, double)
    assert (once - first).abs().max() > 1e-3
    torch.testing.assert_close(twice - first, 2.0 * (once - first), rtol=0, atol=1e-5)
