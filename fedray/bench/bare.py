"""The plain PyTorch loop that every ratio is against: one model, `torch.optim.SGD`, batches by index, no DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.simulation.study import Study
from fedray.training import block as lanes

Loss = Callable[[Tensor, Tensor], Tensor]
Deal = Callable[[int, int], Iterable[Tensor]]  # (round, client) -> rows of each batch
Choose = Callable[[int], Sequence[int]]  # round -> clients


class Federation(NamedTuple):
    """One model and its clients' data, `(x, y)` each, as the network reads them."""

    model: nn.Module
    clients: list[tuple[Tensor, Tensor]]
    loss: Loss
    lr: float


def plain_round(world: Federation, t: int, choose: Choose, deal: Deal) -> None:
    """FedAvg: every chosen client trains the model from its start; the model becomes the mean."""
    model, before = world.model, {name: value.clone() for name, value in world.model.state_dict().items()}
    total: dict[str, Tensor] = {}
    chosen = choose(t)
    for client in chosen:
        x, y = world.clients[client]
        model.load_state_dict(before)
        optimiser = torch.optim.SGD(model.parameters(), lr=world.lr)
        for index in deal(t, client):
            optimiser.zero_grad()
            world.loss(model(x[index]), y[index]).backward()
            optimiser.step()
        for name, value in model.state_dict().items():
            total[name] = total[name] + value if name in total else value.clone()
    model.load_state_dict({name: value / len(chosen) for name, value in total.items()})


def half_mse(z: Tensor, y: Tensor) -> Tensor:
    """Half the squared error of a batch, averaged over its samples."""
    return 0.5 * (z - y).square().sum(-1).mean()


def federation(study: Study, module: Callable[[], nn.Module], world: int = 0) -> Federation:
    """A study's world for the plain loop: its own first model, its clients' data, standardised beforehand."""
    model = module().to(study.dtype)
    layout = study.net.layout
    row = study.net.init(int(rng.keys(study.seeds[world], "init", 0))).to(study.dtype)
    model.load_state_dict(dict(layout.views(row)))
    where = torch.tensor([world])
    clients = []
    for client in range(study.clients.number):
        fetched = study.shards.fetch(where.numpy(), np.array([client]))
        rows = fetched.rows[0, : int(fetched.size[0])]
        x = study.shards.normalize(fetched.x[rows][None], where)[0]
        y = study.shards.targets(fetched.y[rows][None], where)[0]
        clients.append((x.to(study.dtype), y.to(study.dtype) if y.is_floating_point() else y))
    loss = nn.functional.cross_entropy if study.classes else half_mse
    return Federation(model, clients, loss, study.method.phase.local.lr)


def draw_at_random(world: Federation, study: Study) -> tuple[Choose, Deal]:
    """Clients and batches from one generator, as one writes a plain loop."""
    draw = rng.stream(0, "plain loop")
    local = study.method.phase.local
    chosen = len(study.method.phase.schedule(0, None).client) // study.worlds

    def deal(t: int, client: int) -> Iterable[Tensor]:
        for _ in range(local.epochs or 1):
            yield from torch.from_numpy(draw.permutation(len(world.clients[client][1]))).split(local.batch_size or 1)

    return lambda t: draw.permutation(len(world.clients))[:chosen].tolist(), deal


def draw_as_simulated(study: Study, world: int = 0) -> tuple[Choose, Deal]:
    """The clients and the batches of fedray itself, so that both must arrive at the same weights."""
    phase = study.method.phase

    def choose(t: int) -> Sequence[int]:
        plan = phase.schedule(t, None)
        chosen: list[int] = plan.client[plan.world == world].tolist()
        return chosen

    def deal(t: int, client: int) -> Iterable[Tensor]:
        size = study.shards.sizes(np.array([world]), np.array([client]))
        steps = lanes.count_steps(size, phase.local)
        width = int(lanes.choose_batch_width(size, phase.local.batch_size)[0])
        key = np.atleast_1d(rng.keys(study.seeds[world], "batches", t, client, 0))
        index, weight = lanes.deal_batches(np.arange(int(size[0]))[None], size, steps, width, key)
        return [rows[real > 0] for rows, real in zip(index[:, 0], weight[:, 0], strict=True)]

    return choose, deal


def parameters(model: nn.Module) -> Tensor:
    """All parameters as one row `[d]`, float64."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double()
