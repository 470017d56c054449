"""Defines and measures what the benchmark compares with a plain PyTorch loop.

A `BenchWork` is a scenario for fedray, together with the network for the plain loop.

Example:
    >>> describe_costs(Cost(cpu=0.0138, wall=0.0071), Cost(cpu=0.0084, wall=0.0041))
    'wall 7.10 against 4.10 ms, CPU of all processes 13.80 against 8.40 ms a round'
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.bench import rows as bench
from fedray.bench.rows import BenchResult, Cost, Work
from fedray.core import rng
from fedray.core.method import Local
from fedray.core.types import IntArray, Plan
from fedray.data.types import Dataset, Split, classification
from fedray.evaluation.evaluate import make_evaluator
from fedray.models.net import state_dict
from fedray.models.nets import resnet18
from fedray.runtime.environment import device_of
from fedray.runtime.session import Inline
from fedray.scenario.loader import read_scenario
from fedray.scenario.schema import Scenario
from fedray.simulation.asynchronous import choose_advance
from fedray.simulation.rounds import begin_progress, run_rounds
from fedray.simulation.study import JobTable, Progress, Runtime, Study
from fedray.training import block
from fedray.training.choice import choose_engine

# ---------------------------------------------------------------------------------------------------------------------
# The work of every row, its network as plain PyTorch, and rounds of fedray without a run directory.

NEVER = 10**7


class BenchWork(NamedTuple):
    """A scenario for fedray, together with its network for a plain PyTorch loop.

    Attributes:
        scenario: The scenario to simulate.
        own: The user's Python objects (data and network) for the scenario.
        module: A function that makes the network for the plain loop.
    """

    scenario: Scenario
    own: UserObjects
    module: Callable[[], nn.Module]

    def study(self, **changes: Any) -> Study:
        """Builds the `Study` of the scenario: data, clients and method. `changes` has new values for keys."""
        return replace(build_study(self.scenario, self.own), **changes)


def plain_mlp() -> nn.Module:
    """Makes a network of 64 inputs, 64 hidden units and 10 classes, with 4,810 parameters."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def small_cnn() -> nn.Module:
    """Makes a convolutional network (10 and 20 channels, 50 hidden units) with 22,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


def plain_wide_cnn() -> nn.Module:
    """Makes a convolutional network (32 and 64 channels, 128 hidden units) with 1.2 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def noise(samples: int, shape: tuple[int, ...], tested: int = 100) -> Dataset:
    """Draws random inputs of the given shape, and random labels from 0 to 9.

    The first `tested` training samples are also used as test samples.
    """
    random = rng.stream(0, "bench data")
    x = random.standard_normal((samples, *shape), dtype=np.float32)
    y = random.integers(0, 10, samples)
    return classification("noise", Split(x, y), Split(x[:tested], y[:tested]), tuple("0123456789"))


def images(module: Callable[[], nn.Module], per_round: int = 10, **more: Any) -> BenchWork:
    """Makes a benchmark of 100 clients, each with 100 images of 28 x 28 pixels, in batches of 10.

    `per_round` clients train in a round. `more` has sections that replace sections of the scenario.
    """
    keys = fedavg_scenario(100, per_round, batch_size=10) | more
    return BenchWork(read_scenario(keys), UserObjects(data=noise(10_000, (1, 28, 28)), model=module), module)


def small_clients(number: int, per_round: int, method: dict[str, Any] | None = None, **local: Any) -> BenchWork:
    """Makes a benchmark of `number` clients, each with 20 samples of 64 features, in batches of 10.

    `per_round` clients train in a round. `method` is the section `method` of the scenario. None means plain FedAvg.
    `local` has keys of the section `local`.
    """
    keys = fedavg_scenario(number, per_round, batch_size=10, **local)
    keys["method"] = method or keys["method"]
    return BenchWork(read_scenario(keys), UserObjects(data=noise(20 * number, (64,)), model=plain_mlp), plain_mlp)


def ensemble_of(module: Callable[[], nn.Module], shape: tuple[int, ...], tested: int) -> BenchWork:
    """Makes a benchmark with five models of one network and `tested` test samples."""
    keys = fedavg_scenario(5, 5, batch_size=10) | {"method": {"name": "fed_ensemble", "models": 5}}
    return BenchWork(read_scenario(keys), UserObjects(data=noise(tested, shape, tested), model=module), module)


def fedavg_scenario(number: int, per_round: int, **local: Any) -> dict[str, Any]:
    """Makes the FedAvg scenario on which the benchmarks are based. `local` has keys of the section `local`."""
    return {
        "rounds": 1,
        "runtime": "inline",
        "method": {"name": "fedavg"},
        "clients": {"number": number},
        "participation": {"per_round": per_round},
        "local": {"epochs": 1, "lr": 0.05} | local,
        "server": {"weighting": "uniform"},  # averages as the plain loop does
    }


class Unrecorded:
    """Takes the place of the run directory, but saves nothing, so that only the rounds are measured."""

    def jobs(self, round: int | IntArray, plan: Plan, table: JobTable) -> None:
        """Ignores the jobs of a round."""

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None:
        """Ignores the scores of a round."""

    def checkpoint(self, progress: Progress) -> None:
        """Ignores the state after a round."""

    def keep_best(self, progress: Progress) -> None:
        """Ignores the state after the best round."""


def simulate(study: Study, runtime: Runtime | None = None) -> tuple[Work, Progress]:
    """Returns a function that simulates further rounds of a study, and the `Progress` that this function updates.

    The function takes the number of further rounds. Rounds are neither evaluated nor saved. `runtime` runs the jobs.
    None means this process.

    Example:
        >>> more, progress = simulate(small_clients(4, per_round=2).study())
        >>> more(3)
        >>> progress.round
        3
    """
    runs_on = runtime or Inline(study)
    progress = begin_progress(study)
    unmeasured = replace(study, rounds=NEVER, checkpoint_every=NEVER, evaluation=replace(study.evaluation, every=NEVER))
    advance = choose_advance(unmeasured, runs_on, progress)

    def more(rounds: int) -> None:
        further = replace(unmeasured, rounds=progress.round + rounds)
        run_rounds(further, Unrecorded(), lambda _progress: [], progress, advance=advance)

    return more, progress


# ---------------------------------------------------------------------------------------------------------------------
# The plain PyTorch loop for the comparison, with one model, `torch.optim.SGD`, batches by index and no DataLoader.

Loss = Callable[[Tensor, Tensor], Tensor]
DealBatches = Callable[[int, int], Iterable[Tensor]]  # (round, client) -> indices of samples, per batch
ChooseClients = Callable[[int], Sequence[int]]  # round -> clients


class Federation(NamedTuple):
    """One global model and the data of its clients.

    Attributes:
        model: The global model, which is trained in place.
        clients: Inputs and targets `(x, y)` of each client, in the form that the network takes.
        loss: A function that takes outputs and targets, and returns the mean loss of a batch.
        local: The settings of local training. The loop uses only the optimizer and FedProx's proximal term.
    """

    model: nn.Module
    clients: list[tuple[Tensor, Tensor]]
    loss: Loss
    local: Local


PlainRound = Callable[[Federation, int, ChooseClients, DealBatches], None]


def plain_round(world: Federation, t: int, choose: ChooseClients, deal: DealBatches) -> None:
    """Runs a round of FedAvg in plain PyTorch. The global model becomes the mean of the clients' trained models.

    `t` is the round, from 0. `choose` takes a round and returns its clients. `deal` takes a round and a client, and
    returns the indices of the samples in each batch.
    """
    model, start = world.model, {name: value.clone() for name, value in world.model.state_dict().items()}
    total: dict[str, Tensor] = {}
    chosen, local = choose(t), world.local
    for client in chosen:
        x, y = world.clients[client]
        model.load_state_dict(start)
        optimizer: torch.optim.Optimizer
        if local.optimizer == "adam":
            optimizer = torch.optim.Adam(model.parameters(), lr=local.lr, weight_decay=local.weight_decay)
        else:
            optimizer = torch.optim.SGD(
                model.parameters(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
            )
        for index in deal(t, client):
            optimizer.zero_grad()
            torch.autograd.backward(world.loss(model(x[index]), y[index]))
            if local.pull:
                pull_gradients(model, start, local.pull)
            optimizer.step()
        for name, value in model.state_dict().items():
            total[name] = total[name] + value if name in total else value.clone()
    model.load_state_dict({name: value / len(chosen) for name, value in total.items()})


def lean_round(world: Federation, t: int, choose: ChooseClients, deal: DealBatches) -> None:
    """Runs a round as `plain_round` does, but faster: without optimizer objects and state dicts.

    The training must be SGD without momentum, without weight decay and without a proximal term. The network must have
    no buffers.
    """
    weights: list[Tensor] = list(world.model.parameters())
    chosen = choose(t)
    with torch.no_grad():
        start, total = [w.clone() for w in weights], [torch.zeros_like(w) for w in weights]
        for client in chosen:
            x, y = world.clients[client]
            torch._foreach_copy_(weights, start)
            for index in deal(t, client):
                with torch.enable_grad():
                    loss = world.loss(world.model(x[index]), y[index])
                torch._foreach_add_(weights, torch.autograd.grad(loss, weights), alpha=-world.local.lr)
            torch._foreach_add_(total, weights)
        torch._foreach_copy_(weights, torch._foreach_div(total, len(chosen)))


def pull_gradients(model: nn.Module, start: dict[str, Tensor], pull: float) -> None:
    """Adds FedProx's term `pull (w - w_start)` to the gradients."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start[name], alpha=pull)


def half_mse(z: Tensor, y: Tensor) -> Tensor:
    """Computes half the squared error of a batch, averaged over its samples.

    Example:
        >>> half_mse(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [1.0]]))
        tensor(1.)
    """
    return 0.5 * (z - y).square().sum(-1).mean()


def make_federation(study: Study, module: Callable[[], nn.Module], world: int = 0, device: str = "cpu") -> Federation:
    """Makes the initial model and the standardized data of one world for the plain loop.

    `world` is the index of the world, from 0. A world is a combination of a seed and a fold.
    """
    model = module().to(study.dtype)
    row = study.net.init(int(rng.keys(study.seeds[world], "init", 0))).to(study.dtype)
    model.load_state_dict(state_dict(study.net, row))
    worlds = torch.tensor([world])
    clients = []
    for client in range(study.clients.number):
        fetched = study.shards.fetch(worlds.numpy(), np.array([client]))
        rows = fetched.rows[0, : int(fetched.size[0])]
        x = study.shards.scaling.normalize(fetched.x[rows][None], worlds)[0]
        y = study.shards.scaling.targets(fetched.y[rows][None], worlds)[0]
        clients.append((_to_type(x, study.dtype).to(device), _to_type(y, study.dtype).to(device)))
    loss = nn.functional.cross_entropy if study.classes else half_mse
    return Federation(model.to(device), clients, loss, study.method.phase.local)


def _to_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts numbers to the type of the networks. Tokens and labels stay integers."""
    return x.to(dtype) if x.is_floating_point() else x


def draw_at_random(world: Federation, study: Study) -> tuple[ChooseClients, DealBatches]:
    """Returns functions that draw clients and batches from one generator, as a plain loop usually does."""
    random = rng.stream(0, "plain loop")
    local = study.method.phase.local
    chosen = len(study.method.phase.schedule(0, None).client) // study.worlds

    def deal(_t: int, client: int) -> Iterable[Tensor]:
        for _ in range(local.epochs or 1):
            order = torch.from_numpy(random.permutation(len(world.clients[client][1])))
            yield from torch.split(order, local.batch_size or 1)

    return lambda _t: random.permutation(len(world.clients))[:chosen].tolist(), deal


def draw_as_simulated(study: Study, world: int) -> tuple[ChooseClients, DealBatches]:
    """Returns two functions, which choose the same clients and batches as fedray.

    A plain loop with these functions reaches the same weights as fedray.
    """
    phase = study.method.phase

    def choose(t: int) -> Sequence[int]:
        plan = phase.schedule(t, None)
        chosen: list[int] = plan.client[plan.world == world].tolist()
        return chosen

    def deal(t: int, client: int) -> Iterable[Tensor]:
        size = study.shards.sizes(np.array([world]), np.array([client]))
        steps = block.count_steps(size, phase.local)
        width = int(block.choose_batch_width(size, phase.local)[0])
        key = np.atleast_1d(rng.keys(study.seeds[world], "batches", t, client, 0))
        index, weight = block.deal_batches(np.arange(int(size[0]))[None], size, steps, width, key, local=phase.local)
        return [rows[real > 0] for rows, real in zip(index[:, 0], weight[:, 0], strict=True)]

    return choose, deal


# ---------------------------------------------------------------------------------------------------------------------
# Rows 1 to 4: CPU seconds of a round after warming up, divided by those of the plain loop, on one core.


class Laps(NamedTuple):
    """The numbers of laps and rounds of a benchmark. A lap is several rounds that are timed together.

    Attributes:
        plain: The number of rounds in a lap of the plain loop.
        fedray: The number of rounds in a lap of fedray.
        repeats: The number of laps that the plain loop and fedray each run.
    """

    plain: int
    fedray: int
    repeats: int


def measure_thousand(quick: bool) -> list[BenchResult]:
    """Measures the cost of fedray with 1,000 small clients, divided by the cost of a plain PyTorch loop."""
    work = small_clients(1000, 100)
    what = "1,000 clients x 20 samples, 100 a round, MLP 64-64-10, batch 10"
    return measure_ratio(what, 0.03, work, Laps(4, 40, 3 if quick else 9))


def measure_ten_thousand(quick: bool) -> list[BenchResult]:
    """Measures the cost of fedray with 10,000 small clients, divided by the cost of a plain PyTorch loop."""
    work = small_clients(10_000, 1000)
    return measure_ratio("10,000 clients, 1,000 a round, same", 0.024, work, Laps(1, 5, 3 if quick else 9))


def measure_cnn(quick: bool) -> list[BenchResult]:
    """Measures the cost of fedray with a small convolutional network, divided by the cost of a plain PyTorch loop."""
    what = "100 clients x 100 samples, 10 a round, CNN 10-20-fc50, batch 10"
    return measure_ratio(what, 0.2, images(small_cnn), Laps(2, 4, 3 if quick else 9))


def measure_wide_cnn(quick: bool) -> list[BenchResult]:
    """Measures the cost of fedray with a wide convolutional network, divided by the cost of a plain PyTorch loop."""
    what = "same with CNN 32-64-fc128 (1.2M parameters)"
    return measure_ratio(what, 0.55, images(plain_wide_cnn), Laps(1, 1, 2 if quick else 7))


def measure_ratio(
    what: str, target: float | None, work: BenchWork, laps: Laps, brief: BenchWork | None = None
) -> list[BenchResult]:
    """Measures fedray and two plain loops in turns, and returns fedray's cost relative to each loop.

    The first result is relative to the usual loop (`plain_round`), and the second to the lean loop (`lean_round`).

    Args:
        what: The work in words.
        target: The largest acceptable ratio. None means that there is no target.
        work: The work that fedray and the plain loops train.
        laps: The numbers of laps and rounds.
        brief: A shorter work for comparing the weights of fedray and of the loop after a round. None means `work`.
    """
    bench.pin_to_one_core()
    study = work.study()
    plain, lean = (make_plain_laps(study, work, run=run) for run in (plain_round, lean_round))
    fedray, _ = simulate(study)
    peak = bench.measure_peak()
    plain_cost, lean_cost, fedray_cost = bench.take_turns(
        [(plain, laps.plain), (lean, laps.plain), (fedray, laps.fedray)], laps.repeats
    )
    engine = choose_engine(study.net, example=study.example, lanes=study.lanes)
    share = count_flops(study, work) / fedray_cost.cpu / peak
    single, double = (measure_weight_difference(brief or work, dtype) for dtype in (torch.float32, torch.float64))
    note = (
        f"plain {1e3 * plain_cost.cpu:.2f}, fedray {1e3 * fedray_cost.cpu:.2f} ms CPU a round (engine {engine.name}, "
        f"W <= {engine.width}); {share:.0%} of the core's {peak / 1e9:.0f} Gflop/s; weights differ by "
        f"{single:.0e} of the update in float32, {double:.0e} in float64"
    )
    ratio, wall = fedray_cost.cpu / plain_cost.cpu, fedray_cost.wall / plain_cost.wall
    lean_ratio, lean_wall = fedray_cost.cpu / lean_cost.cpu, fedray_cost.wall / lean_cost.wall
    lean_note = f"lean {1e3 * lean_cost.cpu:.2f} ms CPU a round: no optimizer, no state dicts"
    return [
        BenchResult(what, ratio, "", target, False, wall, note),
        BenchResult(f"{what}; to the lean loop", lean_ratio, "", None, False, lean_wall, lean_note),
    ]


def make_plain_laps(study: Study, work: BenchWork, device: str = "cpu", run: PlainRound = plain_round) -> Work:
    """Makes a function that takes a number of rounds, and runs them as a plain loop in each world of a study.

    A world is a combination of a seed and a fold.
    """
    worlds = [make_federation(study, work.module, world, device) for world in range(study.worlds)]
    draws = [draw_at_random(world, study) for world in worlds]

    def laps(rounds: int) -> None:
        for t in range(rounds):
            for world, (choose, deal) in zip(worlds, draws, strict=True):
                run(world, t, choose, deal)
        if device == "cuda":
            torch.cuda.synchronize()

    return laps


def count_flops(study: Study, work: BenchWork) -> float:
    """Counts the floating-point operations of all matrix products and convolutions of a round, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode  # loads triton: 60 MB in the rows that measure memory

    phase, world = study.method.phase, make_federation(study, work.module)
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    x, y = world.clients[0]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(world.loss(world.model(x[:1]), y[:1]))
    passes = block.count_steps(size, phase.local) * size / (-(-size // (phase.local.batch_size or 1)))  # samples seen
    return float(counter.get_total_flops() * passes.sum())


def measure_weight_difference(
    work: BenchWork, dtype: torch.dtype, device: str = "cpu", loop: PlainRound = plain_round
) -> float:
    """Measures how much the weights of fedray and of a plain loop differ after one round on the same batches.

    The difference is |w_fedray - w_plain| / |w_plain - w_initial|, in the worst world.

    Example:
        >>> work = small_clients(4, per_round=2)
        >>> measure_weight_difference(work, torch.float64) < 1e-7  # fedray and the plain loop train the same weights
        True
    """
    study = work.study(dtype=dtype)
    run, progress = simulate(study, Inline(study, device))
    first = progress.state.models.double()
    run(1)
    worst = 0.0
    for world in range(study.worlds):
        plain = make_federation(study, work.module, world, device)
        loop(plain, 0, *draw_as_simulated(study, world))
        named = dict(plain.model.named_parameters()) | dict(plain.model.named_buffers())
        row = torch.cat([named[name].detach().flatten() for name in study.net.layout.names]).double().cpu()
        update = (row - first[world]).norm()
        worst = max(worst, float((progress.state.models[world].double() - row).norm() / update))
    return worst


# ---------------------------------------------------------------------------------------------------------------------
# The time that Ray adds to a round.


@contextmanager
def on_ray(work: BenchWork, actors: int) -> Iterator[Runtime]:
    """Opens Ray for a benchmark, with `actors` client actors of one CPU each."""
    from fedray.runtime.ray.coordinator import RayRuntime

    scenario = replace(work.scenario, runtime="ray", clients=replace(work.scenario.clients, actors=actors))
    with closing(RayRuntime(scenario, work.own, work.study(), "bench")) as runtime:
        yield runtime


def measure_overhead(quick: bool) -> list[BenchResult]:
    """Measures the wall time of a round on Ray with two actors, minus the wall time on the inline runtime."""
    from fedray.runtime.ray.connection import open_ray

    work = small_clients(1000, 100)
    with open_ray(None, 2), on_ray(work, 2) as runtime:
        remote, inline_laps = simulate(work.study(), runtime)[0], simulate(work.study())[0]
        ray, inline = bench.take_turns([(remote, 50), (inline_laps, 50)], 3 if quick else 15, bench.measure_tree_cpu)
    note = describe_costs(ray, inline)
    what = "Ray, two client actors: wall time of a round above inline's, on the first row"
    return [BenchResult(what, 1e3 * (ray.wall - inline.wall), "ms", 1.0, False, None, note)]


def describe_costs(one: Cost, other: Cost) -> str:
    """Compares the wall times and the CPU times of two ways to run a round, in words."""
    cpu, wall = (f"{1e3 * a:.2f} against {1e3 * b:.2f} ms" for a, b in zip(one, other, strict=True))
    return f"wall {wall}, CPU of all processes {cpu} a round"


# ---------------------------------------------------------------------------------------------------------------------
# Rows on a GPU: wall seconds of a round after warming up, divided by those of the plain loop on the same GPU. Networks
# and samples stay on the GPU. The plain loop trains one client after the other, as usual.


def small_resnet() -> nn.Module:
    """Makes a ResNet-18 with BatchNorm for images of 32 x 32, with 11 million parameters."""
    return resnet18((3, 32, 32), 10)


def color_pictures() -> BenchWork:
    """Makes a benchmark of 20 clients, each with 160 color images of 32 x 32 pixels.

    10 clients train in a round, in batches of 16.
    """
    keys = fedavg_scenario(20, 10, batch_size=16)
    data = noise(20 * 160, (3, 32, 32))
    return BenchWork(read_scenario(keys), UserObjects(data=data, model=small_resnet), small_resnet)


WORKS: dict[str, Callable[[], BenchWork]] = {  # text of a row -> a function that makes the measured work
    "10,000 clients x 20 samples, 1,000 a round, MLP 64-64-10, batch 10": lambda: small_clients(10_000, 1000),
    "100 clients x 100 samples, all in a round, CNN 10-20-fc50, batch 10": lambda: images(small_cnn, per_round=100),
    "the same with CNN 32-64-fc128": lambda: images(plain_wide_cnn, per_round=100),
    "20 clients x 160 samples, 10 a round, ResNet-18, batch 16": color_pictures,
}


def measure_gpu(quick: bool) -> list[BenchResult]:
    """Measures the cost of fedray on a GPU, divided by the cost of a plain loop. Returns no result without a GPU."""
    if not torch.cuda.is_available():
        return []
    return [measure_work(what, make(), quick=quick) for what, make in WORKS.items()]


def measure_work(what: str, work: BenchWork, *, quick: bool) -> BenchResult:
    """Measures a round of fedray and of the plain loop on a GPU, in turns. `what` is the text of the row."""
    device, study = device_of(1.0), work.study()
    plain, runtime = make_plain_laps(study, work, device), Inline(study, device)
    fedray, _ = simulate(study, runtime)
    plain_cost, fedray_cost = bench.take_turns([(plain, 1), (fedray, 1)], 1 if quick else 3)
    engine = runtime.worker.engine
    note = (
        f"plain {1e3 * plain_cost.wall:.1f}, fedray {1e3 * fedray_cost.wall:.1f} ms a round (engine {engine.name}, "
        f"W <= {engine.width}); {torch.cuda.get_device_name()}; weights differ by "
        f"{measure_weight_difference(work, torch.float32, device):.0e} of the update"
    )
    return BenchResult(what, fedray_cost.wall / plain_cost.wall, "", None, False, None, note)


# ---------------------------------------------------------------------------------------------------------------------
# The row for evaluation: CPU seconds to score five models and their ensemble, divided by those of a plain loop.

PIECE = 500  # samples in a batch of the plain loop


def measure_evaluation(quick: bool) -> list[BenchResult]:
    """Measures the cost of scoring five models and their ensemble, divided by the cost in a plain loop."""
    small = ensemble_of(plain_mlp, (64,), 2_000)
    large = ensemble_of(small_cnn, (1, 28, 28), 2_000)
    repeats = 3 if quick else 9
    what = "evaluation of five MLPs 64-64-10 and their mean, 2,000 samples"
    found = _compare_evaluations(what, small, (20, 20), repeats)
    return [found, _compare_evaluations("the same of CNNs 10-20-fc50", large, (1, 1), repeats)]


def _compare_evaluations(what: str, work: BenchWork, rounds: tuple[int, int], repeats: int) -> BenchResult:
    """Measures the time in which fedray evaluates the models of a benchmark, divided by the time of a plain loop."""
    bench.pin_to_one_core()
    plain, fedray, _ = make_evaluations(work)
    slow, fast = bench.take_turns([(plain, rounds[0]), (fedray, rounds[1])], repeats)
    note = f"plain {1e3 * slow.cpu:.2f}, fedray {1e3 * fast.cpu:.2f} ms CPU; fedray has more scores (nll, ECE, members)"
    return BenchResult(what, fast.cpu / slow.cpu, "", None, False, fast.wall / slow.wall, note)


def make_evaluations(work: BenchWork) -> tuple[Work, Work, dict[str, float]]:
    """Returns a function that evaluates by a plain loop, a function that evaluates by fedray, and a dict of accuracies.

    Each function writes the accuracy of its ensemble to the dict.

    Example:
        >>> work = ensemble_of(plain_mlp, (64,), tested=20)
        >>> plain, fedray, scores = make_evaluations(work)
        >>> plain(1), fedray(1)
        (None, None)
        >>> abs(scores["plain"] - scores["fedray"]) < 1e-6  # the accuracy of the ensemble
        True
    """
    study = work.study()
    evaluate = make_evaluator(study, Inline(study))
    progress = begin_progress(study)
    world, layout, scores = make_federation(study, work.module), study.net.layout, dict[str, float]()
    test = study.shards.data.test
    worlds = torch.zeros(1, dtype=torch.long)
    x = study.shards.scaling.normalize(torch.as_tensor(test.x)[None], worlds)[0]
    y = torch.as_tensor(test.y)

    def plain(rounds: int) -> None:
        for _ in range(rounds):
            total = torch.zeros(len(x), study.classes)
            for row in progress.state.models:
                world.model.load_state_dict(dict(layout.views(row)))
                with torch.no_grad():
                    total += torch.cat([world.model(piece).softmax(-1) for piece in torch.split(x, PIECE)])
            scores["plain"] = float((total.argmax(-1) == y).float().mean())

    def fedray(rounds: int) -> None:
        for _ in range(rounds):
            scores["fedray"] = evaluate(progress)[0]["accuracy"]

    return plain, fedray, scores
