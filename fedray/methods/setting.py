"""Defines `Setting`, the argument of every method. It has the objects built from the scenario."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedray.components.distillation import Student
from fedray.components.schedule import Assignment, Participation
from fedray.components.servers import Optimizer, Rows
from fedray.core.method import Compress, Local, Method, ServerWork, Walk
from fedray.core.rng import Keys
from fedray.core.types import Clients, IntArray, Layout, Weighting
from fedray.features.boosting import Ensemble
from fedray.features.slices import TierNet
from fedray.features.stacking import Stack


@dataclass(frozen=True)
class Robust:
    """Describes a robust server (`server.robust`).

    Attributes:
        kind: Name of the rule: median, trimmed_mean, krum, multi_krum or none.
        trim: b, the number of values that a trimmed mean leaves out at each end.
        byzantine: f, the number of bad clients that Krum tolerates.
    """

    kind: str = "none"
    trim: int = 1
    byzantine: int = 1


@dataclass(frozen=True)
class Setting:
    """The objects from which a method is composed.

    Attributes:
        models: Number of models, K.
        layout: The order in which a row of the state holds the d parameters and buffers of a model.
        clients: All clients, in tiers.
        seeds: The seed of each world. A world is one combination of a seed and a fold.
        participation: Rule that draws the clients that take part in a round.
        local: Settings of a client's training.
        outputs: A function that takes S models `[S, d]` and network inputs `[n, ...]`, and returns raw outputs `[S, n,
            C]` in evaluation mode. It can be differentiated. The server may call it (`Server.step`, `Method.answer`).
        server_rows: A function that takes a world, and returns network inputs `[n, ...]` and targets of the server's
            samples. No client holds these samples. The option `server_data` sets which share of all samples the server
            holds. Your own method may declare this option.
        server_inputs: A function that takes a world, and returns inputs without labels that the server holds, `[n,
            ...]`. The inputs are noise, the inputs of `server_rows`, or the inputs of a data set. The option `inputs`
            chooses the kind, and `input_rows` the number n for noise and data sets. Your own method may declare both
            options.
        label_counts: A function that takes a world, and returns how many training samples each client has of each
            class, `[N, C]`. The labels are those used in training. Only the first 10,000 clients are counted. Counting
            adds no bytes to the traffic. For a regression it raises `BadInput`.
        distil_work: A function that takes the number of teachers. It returns how many steps train a student at the
            server, and how many samples these steps read.
        assign: The kind of schedule (permutation, random, balanced, adaptive), or a user's own function. None means
            that the method decides.
        rows: What each row of the schedule belongs to: a client, a slot (place in the round) or a stratum (set of
            clients).
        weighting: Weights of the uploads in a mean: uniform or examples.
        coefficients: Rule for the weights of the tiers in a mean: equal_groups, paper_eq2, or fedavg (tiers have no
            weights). None means that the method decides.
        robust: The robust rule that replaces the mean.
        optimizer: The server optimizer, which acts on the mean delta.
        compress: A function that takes a layout, and returns the compression of models with this layout. None means
            that the method decides.
        hold_out: Whether clients withhold samples for validation.
        participants: The largest number of clients that take part in a round.
        features: A function that takes network inputs and returns the p features in which the network is linear, `[n,
            p]`. None means that the network is not linear in any features.
        distil: A function that takes (world, start `[d]`, teachers `[S, d]`, key of the random numbers) and returns a
            student `[d]`. `distil` is None if the method has no option `distil_epochs`.
        score: A function that takes a world and a model `[d]`, and returns the model's score on the server's labelled
            samples. The key `method.validation` sets which share of all samples the server holds for this purpose.
            `score` is None if there are no such samples.
        fuse: A function that takes (world, students with their uploads, key of the random numbers) and returns the
            trained students, `[d]` each. The students learn the mean prediction of all uploads. `fuse` is None if the
            method has no option `distil_steps`.
        walk: Random walk of the models over the clients. None means that there is a server.
        stack: In methods with a meta model, such as stacking, the base networks and the meta model. With
            `method.networks`, these networks and their clients. None for all other methods.
        ensemble: The dimensions of an ensemble of decision trees (boosting and bagging). None for all other methods.
        tier_nets: The network of each tier, for methods that slice the network. All other methods have an empty tuple.
        private: Layers of the network that stay with the clients (`local.private`).
        memory: Private layers that training uses, but prediction does not.
        options: The options of the method (`MethodSpec.options`).
        own_method: Name of a user's own method in messages and warnings. It is empty for a method of fedray.
    """

    models: int
    layout: Layout
    clients: Clients
    seeds: tuple[int, ...]
    participation: Participation
    local: Local
    outputs: Callable[[Tensor, Tensor], Tensor]
    server_rows: Callable[[int], tuple[Tensor, Tensor]]
    server_inputs: Callable[[int], Tensor]
    label_counts: Callable[[int], IntArray]
    distil_work: Callable[[float], ServerWork]
    assign: str | Callable[[int, str], Assignment] | None = None
    rows: str = "client"
    weighting: Weighting = "uniform"
    coefficients: str | None = None
    robust: Robust = Robust()
    optimizer: Optimizer = field(default_factory=Optimizer)
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
        """Returns the order of the models in the rows of the state."""
        return Rows(len(self.seeds), self.models)


Composition = Callable[[Setting], Method]
"""The type of the function that composes a method: `Setting` -> `Method`."""
