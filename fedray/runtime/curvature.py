"""The curvature that clients measure at the models they have trained, each by its own rows, where they live.

What a client measures depends on its rows, its model and the address of its draw alone, so that no packing of clients
shows in it.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> study = build_study(read_scenario({"data": {"name": "cubic"}, "clients": {"number": 2}}))
    >>> one, models = Plan(*np.array([[1], [0], [0]])), study.net.init(0)[None]
    >>> found = measure_curvature(study, Curvature(rows=5), 0, one, models, move=lambda x: x)
    >>> found.shape == models.shape, bool((found >= 0).all())
    (True, True)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.local import Curvature
from fedray.core.types import EVALUATED_ROWS, Plan
from fedray.simulation.study import Study
from fedray.training.curvature import sum_curvature


def measure_curvature(
    study: Study, how: Curvature, t: int, plan: Plan, models: Tensor, *, move: Callable[[Tensor], Tensor]
) -> Tensor:
    """The mean over each client's rows of the diagonal of the Fisher at its model, `[J, d]`; 0 without rows.

    Args:
        study: What is trained.
        how: Which Fisher, and of how many rows.
        t: The round, from 0.
        plan: The jobs, `[J]`.
        models: What they have trained, `[J, d]`; there may be more behind them.
        move: Moves a tensor to where the models are, in the type of the study's networks.
    """
    found = torch.zeros_like(models[: len(plan.client)])
    for j, (client, world) in enumerate(zip(plan.client.tolist(), plan.world.tolist(), strict=True)):
        fetched, where = study.shards.fetch(np.array([world]), np.array([client])), torch.tensor([world])
        rows = fetched.rows[0, : int(fetched.size[0])]
        if how.rows is not None and how.rows < len(rows):
            key = rng.keys(int(study.seeds[world]), "curvature", t, client)
            rows = rows[torch.from_numpy(np.sort(rng.permutations(key, len(rows))[: how.rows]))]
        total = torch.zeros(models.shape[1], dtype=torch.float64, device=models.device)
        for some in torch.split(rows, EVALUATED_ROWS) if len(rows) else []:
            x = study.shards.normalize(fetched.x[some][None], where)[0]
            y = study.shards.targets(fetched.labels(some, 0)[None], where)[0]
            total += sum_curvature(study.net, models[j], move(x), move(y), how.kind)
        found[j] = total / max(1, len(rows))
    return found
