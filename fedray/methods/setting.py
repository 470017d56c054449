"""What every method is given: the pieces that a scenario decides, already built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedray.components.distillation import Student
from fedray.components.schedule import Assignment, Informed, Participation
from fedray.components.servers import Rows
from fedray.core.method import Compress, Local, Method, Walk
from fedray.core.rng import Keys
from fedray.core.types import Clients, IntArray, Layout, ServerOptimizerKind, Weighting
from fedray.features.boosting import Ensemble
from fedray.features.slices import TierNet
from fedray.features.stacking import Stack


@dataclass(frozen=True)
class Robust:
    """A robust server (`server.robust`).

    Attributes:
        kind: median, trimmed_mean, krum, multi_krum, or none.
        trim: b, the values that a trimmed mean drops at each end.
        byzantine: f, the bad clients that Krum survives.
    """

    kind: str = "none"
    trim: int = 1
    byzantine: int = 1


@dataclass(frozen=True)
class Optimizer:
    """A server optimizer (`server.optimizer`).

    Attributes:
        kind: momentum, adam, yogi, or none.
        lr: its learning rate, above 0.
        momentum: beta of momentum, or beta_1 of Adam and Yogi, in [0, 1).
    """

    kind: ServerOptimizerKind = "none"
    lr: float = 1.0
    momentum: float = 0.9


@dataclass(frozen=True)
class Setting:
    """The pieces of a method. What is None is not decided: the method's own ingredient stands.

    Attributes:
        models: K.
        layout: how the d numbers of one model lie in a row.
        clients: the population and its tiers.
        seeds: one for each world.
        participation: who takes part in a round.
        local: how a client trains.
        outputs: (models `[S, d]`, network inputs `[n, ...]`) -> raw outputs `[S, n, C]` in evaluation mode, through
            which gradients flow; for what the server does (`Server.step`, `Method.answer`).
        server_rows: world -> network inputs `[n, ...]` and targets of the rows that the server holds instead of the
            clients: the share `method.server_data`, an option that a method of your own may declare.
        server_inputs: world -> network inputs `[n, ...]` of the server, without labels, as the options `inputs` and
            `input_rows` say, which a method of your own may declare: those of `server_rows`, noise, or a data set.
        label_counts: world -> training rows of each class that each client holds, by its own labels, `[N, C]`, of the
            first 10,000 clients. No bytes are counted for them. Of a regression it raises `BadInput`.
        assign: the kind of schedule: permutation, random, balanced, adaptive, or a user's own function; or None.
        rows: what a row of the schedule is: client, slot or stratum.
        weighting: of the uploads in a mean: uniform or examples.
        coefficients: of the tiers in a mean: equal_groups, paper_eq2, fedavg (none); or None.
        robust: what takes the place of the mean.
        optimizer: what acts on the mean delta.
        compress: makes the compression for a layout; or None.
        hold_out: whether clients withhold rows for validation.
        participants: clients of a round, at most.
        features: reads `[n, p]` features where the network is linear in its weights and has a closed form; else None.
        distil: (world, start `[d]`, teachers `[S, d]`, address) -> student `[d]`, where the server holds inputs; else
            None.
        score: (world, model `[d]`) -> how well it does on the server's labelled rows (the share `method.validation`),
            for methods whose server chooses by it; None where it holds none.
        fuse: (world, students with their uploads, address) -> the students' rows `[d]`, where the server holds inputs
            and students aim at what all uploads say; else None.
        walk: where the models are, if there is no server.
        stack: of stacking: the base networks and the meta model; of `method.networks`: the networks and their clients.
        ensemble: of boosting: what the ensemble has room for.
        tier_nets: of methods that slice the network: that of each tier; empty for all others.
        private: layers of the network that stay with the clients (`local.private`).
        memory: those of them that a model trains with, and does not answer with.
        options: the method's own options.
        own_method: what messages call a user's own method; warnings name it where a key replaces one of its
            ingredients. Empty for a method of fedray.
    """

    models: int
    layout: Layout
    clients: Clients
    seeds: tuple[int, ...]
    participation: Participation | Informed
    local: Local
    outputs: Callable[[Tensor, Tensor], Tensor]
    server_rows: Callable[[int], tuple[Tensor, Tensor]]
    server_inputs: Callable[[int], Tensor]
    label_counts: Callable[[int], IntArray]
    assign: str | Callable[[int, str], Assignment] | None = None
    rows: str = "client"
    weighting: Weighting = "uniform"
    coefficients: str | None = None
    robust: Robust = Robust()
    optimizer: Optimizer = Optimizer()
    compress: Callable[[Layout], Compress] | None = None
    hold_out: bool = False
    participants: int = 1
    features: Callable[[Tensor], Tensor] | None = None
    distil: Callable[[int, Tensor, Tensor, Keys], Tensor] | None = None
    fuse: Callable[[int, Sequence[Student], Keys], list[Tensor]] | None = None
    score: Callable[[int, Tensor], float] | None = None
    walk: Walk | None = None
    stack: Stack | None = None
    ensemble: Ensemble | None = None
    tier_nets: tuple[TierNet, ...] = ()
    private: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    own_method: str = ""

    @property
    def state_rows(self) -> Rows:
        """Where the rows of the state are."""
        return Rows(len(self.seeds), self.models)


Composition = Callable[[Setting], Method]
"""A function from a `Setting` to a `Method`, as the file of each paper has it."""
