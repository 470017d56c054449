"""What is simulated: the scenario of every row, its network as plain PyTorch, and rounds without a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.bench.measure import Work
from fedray.core import rng
from fedray.core.method import Local
from fedray.core.types import IntArray, Layout, Plan
from fedray.data.files import find_data_root
from fedray.data.types import Dataset, Split, classification, regression
from fedray.models.net import state_dict
from fedray.runtime.inline import Inline
from fedray.scenario.loader import read_scenario
from fedray.scenario.schema import Scenario
from fedray.simulation.asynchronous import choose_advance
from fedray.simulation.rounds import begin_progress, run_rounds
from fedray.simulation.study import JobTable, Progress, Runtime, Study
from fedray.training import block

NEVER = 10**7
BOSTON = (506, 13, 20)  # samples, features, folds


class BenchWork(NamedTuple):
    """What a row trains.

    Attributes:
        scenario: the scenario.
        own: the Python objects beside it.
        module: makes the network, for the plain loop.
    """

    scenario: Scenario
    own: UserObjects
    module: Callable[[], nn.Module]

    def study(self, **changes: Any) -> Study:
        """The study, with some of its fields changed."""
        return replace(build_study(self.scenario, self.own), **changes)


def plain_mlp() -> nn.Module:
    """64 inputs, 64 hidden units, 10 classes: 4,810 parameters."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def small_cnn() -> nn.Module:
    """10 and 20 channels, 50 hidden units: 22,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


def plain_wide_cnn() -> nn.Module:
    """32 and 64 channels, 128 hidden units: 1.2 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def boston_mlp() -> nn.Module:
    """13 inputs, 50 hidden units, one target: 751 parameters."""
    return nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 1))


def noise(samples: int, shape: tuple[int, ...], tested: int = 100) -> Dataset:
    """Standard normal inputs with labels 0 to 9 drawn at random: only its size matters here.

    Args:
        samples: training samples.
        shape: of an input.
        tested: how many of them are the test samples too.
    """
    random = rng.stream(0, "bench data")
    x = random.standard_normal((samples, *shape), dtype=np.float32)
    y = random.integers(0, 10, samples)
    return classification("noise", Split(x, y), Split(x[:tested], y[:tested]), tuple("0123456789"))


def images(module: Callable[[], nn.Module], per_round: int = 10, **more: Any) -> BenchWork:
    """100 clients of 100 images of 28 x 28, batches of 10.

    Args:
        module: makes the network.
        per_round: participants of a round.
        more: sections of the scenario that differ.
    """
    keys = fedavg_scenario(100, per_round, batch_size=10) | more
    return BenchWork(read_scenario(keys), UserObjects(data=noise(10_000, (1, 28, 28)), model=module), module)


def small_clients(number: int, per_round: int, method: dict[str, Any] | None = None, **local: Any) -> BenchWork:
    """Clients of 20 samples with 64 features, batches of 10.

    Args:
        number: clients N.
        per_round: participants of a round.
        method: the section `method`; None means plain FedAvg.
        local: further keys of the section `local`.
    """
    keys = fedavg_scenario(number, per_round, batch_size=10, **local)
    keys["method"] = method or keys["method"]
    return BenchWork(read_scenario(keys), UserObjects(data=noise(20 * number, (64,)), model=plain_mlp), plain_mlp)


def buffered_clients(number: int, concurrency: int, goal: int) -> BenchWork:
    """The same clients without rounds: a round is a server step, which uses `goal` uploads.

    Args:
        number: clients N, of log-normal speeds.
        concurrency: clients that train at the same time.
        goal: uploads of a server step.
    """
    keys = fedavg_scenario(number, number, batch_size=10)
    keys["participation"] = {"mode": "buffered", "concurrency": concurrency, "goal": goal}
    keys["clients"]["tiers"] = {"phones": {"spread": 1.0}}
    own = UserObjects(data=noise(20 * number, (64,)), model=plain_mlp)
    return BenchWork(read_scenario(keys), own, plain_mlp)


def generated(number: int, per_round: int) -> BenchWork:
    """Clients of 20 samples that are generated when they are needed."""
    keys = fedavg_scenario(number, per_round, batch_size=10) | {"data": {"name": "synthetic"}}
    return BenchWork(read_scenario(keys), UserObjects(model=plain_mlp), plain_mlp)


def boston(epochs: int, fold: int | str = "all") -> BenchWork:
    """Boston housing: 10 clients, batches of one, one local update of many epochs."""
    keys = fedavg_scenario(10, 10, batch_size=1, epochs=epochs, lr=0.01)
    keys["data"] = {"name": "uci/bostonHousing", "fold": fold}
    keys["model"] = {"name": "mlp", "objective": "half_mse"}
    folder = find_data_root(None) / "UCI" / "UCI_Datasets" / "bostonHousing"
    data = None if folder.is_dir() else like_boston()
    return BenchWork(read_scenario(keys), UserObjects(data=data, model=boston_mlp), boston_mlp)


def ensemble_of(module: Callable[[], nn.Module], shape: tuple[int, ...], tested: int) -> BenchWork:
    """Five models of one network, and samples to test them on.

    Args:
        module: makes the network.
        shape: of an input.
        tested: test samples.
    """
    keys = fedavg_scenario(5, 5, batch_size=10) | {"method": {"name": "fed_ensemble", "models": 5}}
    return BenchWork(read_scenario(keys), UserObjects(data=noise(tested, shape, tested), model=module), module)


def like_boston(n: int = BOSTON[0], folds: int = BOSTON[2]) -> Dataset:
    """Makes random numbers of the size of Boston housing, for machines without it."""
    features = BOSTON[1]
    random = rng.stream(0, "bench table")
    x, y = random.standard_normal((n, features), dtype=np.float32), random.standard_normal((n, 1), dtype=np.float32)
    data = regression("noise", Split(x, y), Split(x[:0], y[:0]))
    orders = [random.permutation(n) for _ in range(folds)]
    cuts = tuple((np.sort(order[n // 10 :]), np.sort(order[: n // 10])) for order in orders)
    shift, scale, y_shift, y_scale = (
        np.repeat(one, folds, axis=0) for one in (data.shift, data.scale, data.y_shift, data.y_scale)
    )
    return data._replace(folds=cuts, shift=shift, scale=scale, y_shift=y_shift, y_scale=y_scale)


def digits_study(replicates: int) -> BenchWork:
    """A small study: 100 clients of handwritten digits, 10 a round."""
    keys = fedavg_scenario(100, 10, batch_size=10) | {"data": {"name": "digits"}, "replicates": replicates}
    keys["model"] = {"name": "mlp", "hidden": [64]}
    return BenchWork(read_scenario(keys), UserObjects(), plain_mlp)


def fedavg_scenario(number: int, per_round: int, **local: Any) -> dict[str, Any]:
    """The scenario that all rows start from.

    Args:
        number: clients N.
        per_round: participants of a round.
        local: keys of the section `local`.
    """
    return {
        "rounds": 1,
        "runtime": "inline",
        "method": {"name": "fedavg"},
        "clients": {"number": number},
        "participation": {"per_round": per_round},
        "local": {"epochs": 1, "lr": 0.05} | local,
        "server": {"weighting": "uniform"},  # as the plain loop averages
    }


class Unrecorded:
    """A recorder that keeps nothing: rounds alone are measured."""

    def jobs(self, round: int | IntArray, plan: Plan, table: JobTable) -> None:
        """Takes the jobs of a round."""

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None:
        """Takes the scores of a round."""

    def checkpoint(self, progress: Progress) -> None:
        """Takes the state after a round."""

    def keep_best(self, progress: Progress) -> None:
        """Takes the state after the best round."""


def simulate(study: Study, runtime: Runtime | None = None) -> tuple[Work, Progress]:
    """A function that simulates further rounds of a study, and the progress it updates.

    Args:
        study: the study; it is neither evaluated nor saved.
        runtime: where jobs run; None means in this process.

    Example:
        >>> more, progress = simulate(small_clients(4, per_round=2).study())
        >>> more(3)
        >>> progress.round
        3
    """
    runs_on = runtime or Inline(study)
    progress = begin_progress(study, study.method.phase)
    unmeasured = replace(study, rounds=NEVER, checkpoint_every=NEVER, evaluation=replace(study.evaluation, every=NEVER))
    advance = choose_advance(unmeasured, runs_on, progress)

    def more(rounds: int) -> None:
        run_rounds(
            replace(unmeasured, rounds=progress.round + rounds),
            runs_on,
            Unrecorded(),
            lambda _progress: [],
            progress,
            advance=advance,
        )

    return more, progress


# ---------------------------------------------------------------------------------------------------------------------
# The plain PyTorch loop that fedray is compared with: one model, `torch.optim.SGD`, batches by index, no DataLoader.

Loss = Callable[[Tensor, Tensor], Tensor]
DealBatches = Callable[[int, int], Iterable[Tensor]]  # (round, client) -> rows of each batch
ChooseClients = Callable[[int], Sequence[int]]  # round -> clients


class Federation(NamedTuple):
    """One model and the data of its clients.

    Attributes:
        model: the global model, trained in place.
        clients: `(x, y)` of each client, as the network reads them.
        loss: mean loss of a batch, from outputs and targets.
        local: how a client trains: the optimizer with its settings, and the pull towards the received model.
    """

    model: nn.Module
    clients: list[tuple[Tensor, Tensor]]
    loss: Loss
    local: Local


def plain_round(world: Federation, t: int, choose: ChooseClients, deal: DealBatches) -> None:
    """A round of FedAvg: every chosen client trains the model from its start; the model becomes the mean.

    Args:
        world: the model and the clients.
        t: the round, from 0.
        choose: gives the clients of a round.
        deal: gives the batches of a client.
    """
    model, start = world.model, {name: value.clone() for name, value in world.model.state_dict().items()}
    total: dict[str, Tensor] = {}
    chosen = choose(t)
    for client in chosen:
        x, y = world.clients[client]
        model.load_state_dict(start)
        optimizer = make_torch_optimizer(model, world.local)
        for index in deal(t, client):
            optimizer.zero_grad()
            torch.autograd.backward(world.loss(model(x[index]), y[index]))
            if world.local.pull:
                pull_gradients(model, start, world.local.pull)
            optimizer.step()
        for name, value in model.state_dict().items():
            total[name] = total[name] + value if name in total else value.clone()
    model.load_state_dict({name: value / len(chosen) for name, value in total.items()})


def make_torch_optimizer(model: nn.Module, local: Local) -> torch.optim.Optimizer:
    """The optimizer of `torch.optim` for the parameters of a model."""
    if local.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=local.lr, weight_decay=local.weight_decay)
    return torch.optim.SGD(model.parameters(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay)


def pull_gradients(model: nn.Module, start: dict[str, Tensor], pull: float) -> None:
    """Adds FedProx's term to the gradients: `pull (w - w_start)`."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start[name], alpha=pull)


def half_mse(z: Tensor, y: Tensor) -> Tensor:
    """Half the squared error of a batch, averaged over its samples.

    Example:
        >>> half_mse(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [1.0]]))
        tensor(1.)
    """
    return 0.5 * (z - y).square().sum(-1).mean()


def make_federation(study: Study, module: Callable[[], nn.Module], world: int = 0, device: str = "cpu") -> Federation:
    """A world of a study for the plain loop: its first model, and its clients' data, standardized beforehand.

    Args:
        study: the study.
        module: makes the network.
        world: which world, from 0.
        device: where model and data lie.
    """
    model = module().to(study.dtype)
    layout = study.net.layout
    row = study.net.init(int(rng.keys(study.seeds[world], "init", 0))).to(study.dtype)
    model.load_state_dict(state_dict(layout, row), strict=False)  # a shared weight has one name in the row
    worlds = torch.tensor([world])
    clients = []
    for client in range(study.clients.number):
        fetched = study.shards.fetch(worlds.numpy(), np.array([client]))
        rows = fetched.rows[0, : int(fetched.size[0])]
        x = study.shards.normalize(fetched.x[rows][None], worlds)[0]
        y = study.shards.targets(fetched.y[rows][None], worlds)[0]
        clients.append((_to_type(x, study.dtype).to(device), _to_type(y, study.dtype).to(device)))
    loss = nn.functional.cross_entropy if study.classes else half_mse
    return Federation(model.to(device), clients, loss, study.method.phase.local)


def _to_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in the type of the networks; tokens and labels stay integers."""
    return x.to(dtype) if x.is_floating_point() else x


def draw_at_random(world: Federation, study: Study) -> tuple[ChooseClients, DealBatches]:
    """Clients and batches from one generator, as one writes a plain loop."""
    random = rng.stream(0, "plain loop")
    local = study.method.phase.local
    chosen = len(study.method.phase.schedule(0, None).client) // study.worlds

    def deal(_t: int, client: int) -> Iterable[Tensor]:
        for _ in range(local.epochs or 1):
            order = torch.from_numpy(random.permutation(len(world.clients[client][1])))
            yield from torch.split(order, local.batch_size or 1)

    return lambda _t: random.permutation(len(world.clients))[:chosen].tolist(), deal


def draw_as_simulated(study: Study, world: int) -> tuple[ChooseClients, DealBatches]:
    """The clients and the batches of fedray itself, so that both must arrive at the same weights."""
    phase = study.method.phase

    def choose(t: int) -> Sequence[int]:
        plan = phase.schedule(t, None)
        chosen: list[int] = plan.client[plan.world == world].tolist()
        return chosen

    def deal(t: int, client: int) -> Iterable[Tensor]:
        size = study.shards.sizes(np.array([world]), np.array([client]))
        steps = block.count_steps(size, phase.local)
        width = int(block.choose_batch_width(size, phase.local.batch_size)[0])
        key = np.atleast_1d(rng.keys(study.seeds[world], "batches", t, client, 0))
        index, weight = block.deal_batches(np.arange(int(size[0]))[None], size, steps, width, key)
        return [rows[real > 0] for rows, real in zip(index[:, 0], weight[:, 0], strict=True)]

    return choose, deal


def flatten_model(layout: Layout, model: nn.Module) -> Tensor:
    """Parameters and buffers as one row `[d]`, float64, in main memory."""
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    return torch.cat([named[name].detach().flatten() for name in layout.names]).double().cpu()
