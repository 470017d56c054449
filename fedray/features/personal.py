"""Lets clients keep private layers (FedPer), train personal models (Ditto), or fine-tune models for prediction."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedray.components.compression import compress_columns
from fedray.core import rng
from fedray.core.method import Compress, Local, Phase, Piece
from fedray.core.types import Layout, Plan, State
from fedray.training.block import count_steps
from fedray.training.update import Jobs, Site, Update

# ---------------------------------------------------------------------------------------------------------------------
# Layers that stay with the clients (LG-FedAvg), and the upload of the other layers.
#
# A layer is a module that owns tensors of the model. Private layers and their float buffers are not sent.

LAYERS = "layers"  # name of the private vector that holds a client's own layers


@dataclass(frozen=True)
class PrivateLayers(Piece):
    """Keeps some layers with the clients. Each client trains its own copy of these layers, and predicts with it.

    A client that has not trained yet takes these layers from the received model.

    Attributes:
        layers: The names of the private layers.
        memory: The names of private layers that only training uses, not prediction (PVI).
    """

    layers: tuple[str, ...]
    memory: tuple[str, ...] = ()

    keeps = (LAYERS,)
    reads_final = True

    @property
    def stays(self) -> tuple[str, ...]:
        return self.layers

    @property
    def answers(self) -> bool:
        return bool(set(self.layers) - set(self.memory))

    def begin(self, update: Update) -> Update:
        return update._replace(start=self._own_rows(update.site, update.jobs.plan, update.start))

    def end(self, update: Update) -> Update:
        assert update.final is not None
        mask = self._mask(update.site.net.layout, update.final)
        return update.keep(**{LAYERS: torch.where(mask, update.final, torch.zeros_like(update.final))})

    def own_models(self, site: Site, plan: Plan, broadcast: Tensor, tier: int) -> Tensor:
        return self._own_rows(site, plan, broadcast)

    def describe(self) -> tuple[str, str]:
        return "private", f"layers {', '.join(self.layers)[:200]} stay with the clients"

    def _own_rows(self, site: Site, plan: Plan, rows: Tensor) -> Tensor:
        """Returns the models `[J, d]` with each client's own copy of the private layers."""
        return torch.where(self._mask(site.net.layout, rows), site.private.rows_or(LAYERS, plan, rows), rows)

    def _mask(self, layout: Layout, like: Tensor) -> Tensor:
        return torch.from_numpy(layout.mask(self.layers)).to(like.device)


def trained_layers(layout: Layout) -> tuple[str, ...]:
    """Returns the names of the modules that own trainable tensors, in the order of the model's parameters.

    Example:
        >>> from fedray.models.nets import build_net
        >>> layout = build_net("mlp", (4,), 3, "cross_entropy", hidden=[8]).layout
        >>> trained_layers(layout), drop_layers(layout, ("1",)).d
        (('1', '3'), 27)
    """
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in layout.names[: layout.trainable_tensors]))


def drop_layers(layout: Layout, layers: tuple[str, ...]) -> Layout:
    """Returns the layout of a model without some of its layers."""
    stay = [(n, s) for n, s in zip(layout.names, layout.shapes, strict=True) if n.rpartition(".")[0] not in layers]
    trainable = int((~layout.mask(layers))[: layout.trainable].sum())
    counters = tuple(name for name in layout.counters if name.rpartition(".")[0] not in layers)
    return Layout(tuple(n for n, _ in stay), tuple(s for _, s in stay), trainable, counters)


def compress_rest(make: Callable[[Layout], Compress], layout: Layout, private: tuple[str, ...]) -> Compress:
    """Returns a compression that leaves out a model's private layers. Their deltas arrive at the server as 0.

    `make` takes the layout of the other layers, and returns their compression. `layout` is the layout of the whole
    model.
    """
    columns = torch.from_numpy(np.flatnonzero(~layout.mask(private)))
    inner = make(drop_layers(layout, private))
    return Compress(inner.bytes, lambda uploads: compress_columns(inner, uploads, columns), inner.own)


# ---------------------------------------------------------------------------------------------------------------------
# Personal models (Ditto). Each job trains one or more personal models, which are pulled towards the received model.

PREFIX = "personal/"  # the private vector `personal/p` holds the client's own model of pass p


@dataclass(frozen=True)
class PersonalPasses(Piece):
    """Trains a client's personal models, after the training of the received model.

    Each personal model has its own batches. A client predicts with its personal model. If a client has several personal
    models, it predicts with the model that is best on its withheld samples.

    Attributes:
        each: Settings of the training of each personal model. The training starts from the last version of the model.

    Example:
        >>> passes = PersonalPasses((Local(pull=0.1), Local(pull=1.0)))
        >>> passes.keeps, passes.answers
        (('personal/0', 'personal/1'), True)
    """

    each: tuple[Local, ...]

    answers = True

    @property
    def keeps(self) -> tuple[str, ...]:
        return tuple(f"{PREFIX}{p}" for p in range(len(self.each)))

    @property
    def locals(self) -> tuple[Local, ...]:
        return self.each

    def with_locals(self, change: Callable[[Local], Local]) -> "PersonalPasses":
        return replace(self, each=tuple(change(local) for local in self.each))

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


# ---------------------------------------------------------------------------------------------------------------------
# Fine-tuning (`evaluate.personal_steps`).


@dataclass(frozen=True)
class Tuning(Piece):
    """Lets each client fine-tune the server's models on its own samples before it predicts.

    The fine-tuned models are used for prediction only. The batches of a client are the same in every evaluation. A
    client without training samples predicts with the server's models.

    Attributes:
        phase: The training. Its `local` describes the steps of fine-tuning.

    Source: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage, *Federated Evaluation of On-device Personalization*,
    arXiv 1910.10252, 2019.
    """

    phase: Phase

    answers = True

    def own_models(self, site: Site, plan: Plan, broadcast: Tensor, tier: int) -> Tensor:
        size = site.shards.sizes(plan.world, plan.client)
        if not size[0]:
            return broadcast
        key = rng.keys(site.seeds[plan.world], "tuning", plan.client, plan.model)
        jobs = real = Jobs(plan, size, count_steps(size, self.phase.local), key, np.arange(len(size)))
        engine, start = site.engine, site.to_device(broadcast)
        if len(size) < min(engine.min_lanes, engine.width):
            jobs, start = jobs.doubled(), start.expand(2, -1)
        zeros = torch.zeros(len(start), len(site.net.layout.counters), dtype=torch.int64, device=start.device)
        local, state = site.local(self.phase.local, int(plan.world[0])), State(start, zeros, {})
        update = Update(site, self.phase, 0, jobs, real, state, local, engine, start, start, zeros, {}, {})
        with torch.enable_grad():
            return engine.train(site.net, site.make_block(update, site.deal(update))).final[: len(size)]

    def describe(self) -> tuple[str, str]:
        return "known clients", f"predict after {self.phase.local.steps:,} steps on their own training rows"
