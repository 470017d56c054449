"""What clients measure at the models they have trained, each by its own rows, where they live.

What a client measures depends on its rows, its model and the address of its draw alone, so that no packing of clients
shows in it.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.core.measured import Curvature, ClientSums
    >>> from fedray.scenario.loader import read_scenario
    >>> study = build_study(read_scenario({"data": {"name": "cubic"}, "clients": {"number": 2}}))
    >>> one, models, no = Plan(*np.array([[1], [0], [0]])), study.net.init(0)[None], torch.zeros(1, 0)
    >>> found = measure_rows(study, Curvature(rows=5), 0, one, models, counters=no, move=lambda x: x)
    >>> found.shape == models.shape, bool((found >= 0).all())
    (True, True)
    >>> count = ClientSums(lambda seen: torch.ones_like(seen.targets).sum(0), 1)
    >>> rows = measure_rows(study, count, 0, one, models, counters=no, move=lambda x: x)
    >>> rows.flatten().tolist() == study.shards.sizes(one.world, one.client).tolist()
    True
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.measured import ClientSums, Curvature, Measure, SeenRows
from fedray.core.types import EVALUATED_ROWS, IntArray, Plan
from fedray.own_code.user_code import name_type
from fedray.simulation.study import Study
from fedray.training.client_code import read_features, watching_features
from fedray.training.curvature import sum_curvature

Move = Callable[[Tensor], Tensor]


def measure_rows(
    study: Study, how: Measure, t: int, plan: Plan, models: Tensor, *, counters: Tensor, move: Move
) -> Tensor:
    """What each client measures at its model: the mean curvature `[J, d]`, or sums `[J, m]`; 0 without rows.

    Args:
        study: What is trained.
        how: What is measured.
        t: The round, from 0.
        plan: The jobs, `[J]`.
        models: What they have trained, `[J, d]`; there may be more behind them.
        counters: Their integer buffers, `[J, c]`.
        move: Moves a tensor to where the models are, in the type of the study's networks.

    Raises:
        BadInput: A function of the user's did not return the sums.
    """
    if isinstance(how, ClientSums):
        return _sum_rows(study, how, t, plan, models, counters=counters, move=move)
    return _measure_curvature(study, how, t, plan, models=models, move=move)


def _measure_curvature(study: Study, how: Curvature, t: int, plan: Plan, *, models: Tensor, move: Move) -> Tensor:
    found = torch.zeros_like(models[: len(plan.client)])
    for j, (client, world) in enumerate(zip(plan.client.tolist(), plan.world.tolist(), strict=True)):
        place = _draw_rows(study, how, t, client, world)
        total = torch.zeros(models.shape[1], dtype=torch.float64, device=models.device)
        for x, y in _read_rows(study, client, world, place):
            total += sum_curvature(study.net, models[j], move(x), move(y), how.kind)
        found[j] = total / max(1, len(place))
    return found


def _sum_rows(
    study: Study, how: ClientSums, t: int, plan: Plan, models: Tensor, *, counters: Tensor, move: Move
) -> Tensor:
    """The sums of each job; what their function draws from the global generators begins at the job's address."""
    net = study.net
    total = torch.zeros(len(plan.client), how.numbers, dtype=torch.float64, device=models.device)
    sizes = study.shards.sizes(plan.world, plan.client).tolist()
    keys = rng.keys(study.seeds[plan.world], "measure", t, plan.client, plan.model).tolist()
    net.module.eval()
    with torch.no_grad(), watching_features(net, True) as watched, rng.generators_scope() as start:
        for j, (client, world) in enumerate(zip(plan.client.tolist(), plan.world.tolist(), strict=True)):
            start(keys[j])
            named = {**net.layout.views(models[j]), **dict(zip(net.layout.counters, counters[j], strict=True))}
            for x, y in _read_rows(study, client, world, np.arange(sizes[j])):
                inputs = move(x)
                outputs = functional_call(net.module, named, (inputs,))
                seen = SeenRows(inputs, read_features(net, watched), outputs, move(y))
                total[j] += _check_sums(how.function(seen), how.numbers).to(total.device)
    return total.to(models.dtype)


def _draw_rows(study: Study, how: Curvature, t: int, client: int, world: int) -> IntArray:
    """Which of a client's rows are read, by their places among these, rising."""
    size = int(study.shards.sizes(np.array([world]), np.array([client]))[0])
    if how.rows is None or how.rows >= size:
        return np.arange(size)
    key = rng.keys(int(study.seeds[world]), "curvature", t, client)
    return np.sort(rng.permutations(key, size)[: how.rows])


def _read_rows(study: Study, client: int, world: int, place: IntArray) -> Iterator[tuple[Tensor, Tensor]]:
    """Network inputs and targets of some of a client's rows, in pieces."""
    fetched, where = study.shards.fetch(np.array([world]), np.array([client])), torch.tensor([world])
    rows = fetched.rows[0][torch.from_numpy(place)]
    for some in torch.split(rows, EVALUATED_ROWS) if len(rows) else []:
        x = study.shards.normalize(fetched.x[some][None], where)[0]
        yield x, study.shards.targets(fetched.labels(some, 0)[None], where)[0]


def _check_sums(found: object, numbers: int) -> Tensor:
    """Refuses what a function returned, if these are not the sums."""
    if not isinstance(found, Tensor):
        raise BadInput(f"measure returned {name_type(found)}: return a tensor of {numbers:,} numbers")
    if found.shape != (numbers,):
        raise BadInput(f"measure returned shape {list(found.shape)}: return {numbers:,} numbers, as ClientSums says")
    return found.double()
