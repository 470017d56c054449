"""Further local trainings of each job: a personal model each, which is pulled towards the received one (Ditto).

Example:
    >>> passes = PersonalPasses((Local(pull=0.1), Local(pull=1.0)))
    >>> passes.keeps, passes.passes, passes.answers
    (('personal/0', 'personal/1'), 2, True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.method import Local
from fedray.core.piece import Piece
from fedray.core.types import Plan
from fedray.training.update import Site, Update

PREFIX = "personal/"  # the private vector `personal/p` holds the client's own model of pass p


@dataclass(frozen=True)
class PersonalPasses(Piece):
    """Trainings behind that of the received model, on batches of their own; known clients answer with their models.

    Where a client has several, it answers with the one that is best on its withheld rows.

    Attributes:
        each: How it trains in each of them; it begins where its last training of the pass has ended.
    """

    each: tuple[Local, ...]

    @property
    def keeps(self) -> tuple[str, ...]:
        return tuple(f"{PREFIX}{p}" for p in range(len(self.each)))

    @property
    def passes(self) -> int:
        return len(self.each)

    @property
    def locals(self) -> tuple[Local, ...]:
        return self.each

    def with_locals(self, change: Callable[[Local], Local]) -> PersonalPasses:
        return replace(self, each=tuple(change(local) for local in self.each))

    @property
    def answers(self) -> bool:
        return True

    def end(self, update: Update) -> Update:
        site, plan, received = update.site, update.jobs.plan, update.broadcast
        key = rng.keys(site.seeds[plan.world], "personal", update.jobs.turn(update.t), plan.client, plan.model)
        zeros = torch.zeros(len(key), len(site.net.layout.counters), dtype=torch.int64, device=received.device)
        plain = update._replace(jobs=update.jobs._replace(key=key), start=received, counters=zeros)
        dealt = site.deal(plain)
        found = {}
        for name, local in zip(self.keeps, self.each, strict=True):
            block = site.make_block(plain._replace(local=site.local(local, int(plan.world[0]))), dealt)
            start = site.private.rows_or(name, plan, received)
            found[name] = site.engine.train(site.net, block._replace(start=start, anchor=received)).final
        return update.keep(**found)

    def own_models(self, site: Site, plan: Plan, broadcast: Tensor, tier: int) -> Tensor:
        return torch.cat([site.private.rows_or(name, plan, broadcast) for name in self.keeps])
