"""The plain PyTorch loop that fedray is compared with: one model, `torch.optim.SGD`, batches by index, no DataLoader.

Example:
    >>> half_mse(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [1.0]]))
    tensor(1.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.method import Local
from fedray.core.types import Layout
from fedray.models.net import state_dict
from fedray.simulation.study import Study
from fedray.training import block

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
    """Half the squared error of a batch, averaged over its samples."""
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
