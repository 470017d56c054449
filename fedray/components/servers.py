"""Defines servers, which turn the uploads of a round into the next state, and optimizers for servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput, Overflow
from fedray.core.method import RateSchedule, Server
from fedray.core.sums import LIMIT, Counts, Kept, Largest, exact_sum
from fedray.core.types import ServerOptimizerKind, State, Stats, Tier, Uploads, Weighting

# ---------------------------------------------------------------------------------------------------------------------

# `reduce` turns a block of uploads into sums, in the process that trained the clients. The sums of all blocks are
# added. `step` computes the next models from the total, in the process that runs the round loop (the coordinator).


@dataclass(frozen=True)
class Rows:
    """The order of the M models in the state. Model k of world w is row `w * models + k`.

    Attributes:
        worlds: R, the number of worlds. A world is one combination of a seed and a fold.
        models: K, the number of models.
    """

    worlds: int
    models: int

    @property
    def number(self) -> int:
        """Returns M, the number of models in all worlds."""
        return self.worlds * self.models

    def of(self, uploads: Uploads, tiers: int = 1) -> Tensor:
        """Returns the row of each upload's model in the state, `[J]`.

        If `tiers` is above 1, the result is `row * tiers + tier`, with the tier of the upload's client.
        """
        row = torch.from_numpy(uploads.world * self.models + uploads.model)
        return row if tiers == 1 else row * tiers + torch.from_numpy(uploads.tier)


def upload_weights(uploads: Uploads, weighting: Weighting) -> Tensor:
    """Returns each upload's weight, `[J]` int64: 1 (`uniform`), or the client's number of samples (`examples`)."""
    size = np.ones_like(uploads.size) if weighting == "uniform" else uploads.size
    return torch.from_numpy(size)


def no_extra(_models: Tensor) -> dict[str, Tensor]:
    """Returns an empty dictionary. It is `Server.init` of servers that keep only models in the state."""
    return {}


def mean(rows: Rows, weighting: Weighting = "uniform") -> Server:
    """Returns the server that replaces each model by the mean of its uploads (Fed-ensemble, Remark 1).

    The uploads of a model come from the jobs that trained it. A model without uploads does not change.

    Example:
        >>> delta, one = torch.tensor([[1.0], [3.0]]), np.array([0, 1])
        >>> uploads = Uploads(delta, client=one, model=0 * one, world=0 * one, tier=0 * one, size=1 + one)
        >>> server = mean(Rows(worlds=1, models=1), "examples")
        >>> start = State(torch.zeros(1, 1), torch.zeros(1, 0, dtype=torch.int64), {})
        >>> server.step(start, server.reduce(uploads), 0).models.item()  # (1 * 1 + 2 * 3) / 3
        2.3333332538604736
    """

    def reduce(uploads: Uploads) -> Stats:
        return sum_uploads(uploads, rows.of(uploads), upload_weights(uploads, weighting), rows.number)

    def step(state: State, stats: Stats, _t: int) -> State:
        weight = stats["weight"].total
        delta = stats["sum"].value().numpy() / np.maximum(weight.numpy(), 1)[:, None]  # NumPy is faster for few models
        return apply_delta(state, torch.from_numpy(delta), stats)

    return Server(no_extra, reduce, step, on_device=True)


def by_tier(rows: Rows, tiers: int, weighting: Weighting = "uniform") -> Server:
    """Returns a server that averages the deltas of each tier, and then the tiers' means (SHEFL section 3.3).

    Tiers are classes of devices. A tier without an upload of a model does not count for this model.
    """

    def reduce(uploads: Uploads) -> Stats:
        group, weight = rows.of(uploads, tiers), upload_weights(uploads, weighting)
        return sum_uploads(uploads, group, weight, rows.number * tiers)

    def step(state: State, stats: Stats, _t: int) -> State:
        weight = stats["weight"].total.view(rows.number, tiers)
        means = stats["sum"].value().view(rows.number, tiers, -1) / weight.clamp(min=1)[..., None]
        there = (weight > 0).double()
        delta = (means * there[..., None]).sum(1) / there.sum(1).clamp(min=1)[:, None]
        return apply_delta(state, delta, stats)

    return Server(no_extra, reduce, step, on_device=True)


def paper_eq2(rows: Rows, tiers: Sequence[Tier]) -> Server:
    """Returns SHEFL's server by eq. 2 as the paper prints it. The server multiplies sums of deltas by coefficients.

    There are two tiers (classes of devices): HPC, whose clients train several of the K models per round, and LPC, whose
    clients train one model. In a round H clients of HPC and L clients of LPC take part. The sum of HPC's deltas is
    multiplied by `a_h = (H + L) / (2 K) * L / H`, and the sum of LPC's deltas by `a_l = (H + L) / 2`. The total is
    divided by H + L. The result is the same as with `by_tier` if and only if L = K and one client of LPC trained the
    model.

    Raises:
        BadInput: `tiers` is not a pair of a tier that trains several models per round and a tier that trains one model.
    """
    if len(tiers) != 2 or (tiers[0].models_per_round == 1) == (tiers[1].models_per_round == 1):
        raise BadInput(
            "server.coefficients = paper_eq2 is written for one tier of several models a round and one of a single "
            "model: give clients.tiers two such tiers, or choose equal_groups"
        )
    base = by_tier(rows, 2)
    hpc = int(tiers[0].models_per_round == 1)

    def step(state: State, stats: Stats, _t: int) -> State:
        counts = stats["weight"].total.view(rows.worlds, rows.models, 2).sum(1).double()  # jobs [R, C]
        each = torch.tensor([float(one.models_per_round or rows.models) for one in tiers], dtype=torch.float64)
        clients = (counts / each).repeat_interleave(rows.models, 0)  # [M, C]
        h, low = clients[:, hpc], clients[:, 1 - hpc]
        scale = torch.zeros(rows.number, 2, dtype=torch.float64)
        everyone = (h + low).clamp(min=1.0)
        scale[:, hpc] = torch.where(h > 0, everyone / (2 * rows.models) * low / h.clamp(min=1.0), 0.0)
        scale[:, 1 - hpc] = everyone / 2
        sums = stats["sum"].value().view(rows.number, 2, -1)
        return apply_delta(state, (sums * scale[..., None]).sum(1) / everyone[:, None], stats)

    return base._replace(step=step)


def sum_uploads(uploads: Uploads, group: Tensor, weight: Tensor, groups: int) -> Stats:
    """Returns the weighted sum of the deltas of each group of uploads, and the statistics of `group_totals`.

    `group_totals` explains the arguments.
    """
    both = group_totals(uploads, group, weight, groups)
    return {"sum": exact_sum(uploads.delta, group, groups, weight), **both}


def group_totals(uploads: Uploads, group: Tensor, weight: Tensor, groups: int) -> Stats:
    """Returns for each of G groups of uploads the total weight, and the largest value of each integer buffer.

    Upload j has the integer weight `weight[j]` and belongs to group `group[j]`, from 0 to G - 1.
    """
    out: Stats = {"weight": Counts(torch.zeros(groups, dtype=torch.int64).index_add_(0, group, weight))}
    if uploads.counters is not None and uploads.counters.shape[1]:
        most = torch.zeros(groups, uploads.counters.shape[1], dtype=torch.int64)
        index = group[:, None].expand_as(uploads.counters)
        out["counters"] = Largest(most.scatter_reduce_(0, index, uploads.counters, "amax"))
    return out


def apply_delta(state: State, delta: Tensor, stats: Stats) -> State:
    """Adds a delta to each model, merges the integer buffers (`merge_counters`), and returns the state.

    Args:
        state: The state before the step.
        delta: The change of each model, `[M, d]` float64.
        stats: The statistics of the round. They may hold the largest value of each integer buffer.
    """
    before = state.models.numpy()
    models = np.empty_like(before)
    np.add(delta.numpy(), before, out=models, casting="same_kind")  # the sum is computed in float64 and then rounded
    return State(torch.from_numpy(models), merge_counters(state.counters, stats), state.extra)


def merge_counters(counters: Tensor, stats: Stats) -> Tensor:
    """Returns the c integer buffers `[M, c]` after a round: the largest of the old value and the uploads' values."""
    if "counters" not in stats:
        return counters
    return torch.maximum(counters, stats["counters"].most.view(len(counters), -1, counters.shape[1]).amax(1))


def keep_uploads(uploads: Uploads, values: Tensor) -> Kept:
    """Returns statistics that hold a value for each upload, for servers that need every upload.

    The values are `[J, ...]`. In the statistics, the key of a value is (world, model, client).
    """
    keys = zip(uploads.world.tolist(), uploads.model.tolist(), uploads.client.tolist(), strict=True)
    return Kept(dict(zip(keys, values, strict=True)))


def group_uploads(rows: Rows, kept: Kept) -> dict[int, list[tuple[int, Tensor]]]:
    """Groups the uploads in `kept` by model. Returns for each row of the state a list of (client, value).

    Rows and clients are in ascending order.

    Example:
        >>> group_uploads(Rows(worlds=2, models=3), Kept({(1, 2, 9): "b", (1, 2, 4): "a", (0, 1, 7): "c"}))
        {1: [(7, 'c')], 5: [(4, 'a'), (9, 'b')]}
    """
    found: dict[int, list[tuple[int, Tensor]]] = {}
    for world, model, client in sorted(kept.rows):
        found.setdefault(world * rows.models + model, []).append((client, kept.rows[world, model, client]))
    return found


def step_and_move(base: Server, state: State, stats: Stats, t: int, trainable: int) -> tuple[State, Tensor]:
    """Returns the state after the step of `base`, and the change of the trainable parameters, `[M, p]` float64.

    `trainable` is p, the number of trainable parameters, which come first in a model.
    """
    after = base.step(state, stats, t)
    return after, after.models.double()[:, :trainable] - state.models.double()[:, :trainable]


def place_change(state: State, after: State, change: Tensor, trained: Tensor) -> State:
    """Returns the state `after`, but with the trainable parameters of `state` plus a change.

    Args:
        state: The state before the round.
        after: The state after the step of an inner server.
        change: The change of the p trainable parameters, `[M, p]` float64.
        trained: Whether each model, `[M, 1]`, or each parameter, `[M, p]`, was trained. Untrained values stay as in
            `after`.
    """
    p = change.shape[1]
    models = after.models.double()
    models[:, :p] = torch.where(trained, state.models.double()[:, :p] + change, models[:, :p])
    return after._replace(models=models.to(state.models.dtype))


# ---------------------------------------------------------------------------------------------------------------------
# Robust servers, which tolerate bad clients. A robust center of the uploads replaces the mean of the uploads.
#
# These servers need every single upload (a matrix of N x d in the coordinator). Uploads are sorted by (world, model,
# client), so results do not depend on the order of arrival.

Center = Callable[[Tensor], Tensor]  # deltas `[n, d]`, sorted by client -> center `[d]` float64
_CHUNK = 1 << 16  # columns at a time


def robust_server(rows: Rows, center: Center) -> Server:
    """Returns a server that moves each model by the center of its n deltas, for example by their median.

    `center` takes the deltas, `[n, d]`, and returns their center, `[d]`. All uploads have the same weight.
    """

    def reduce(uploads: Uploads) -> Stats:
        bad = ~(uploads.delta.abs().amax(1) < LIMIT)  # NaN is bad, too
        if bool(bad.any()):
            raise Overflow([int(j) for j in torch.nonzero(bad).flatten()[:5]])
        group = rows.of(uploads)
        both = group_totals(uploads, group, torch.ones_like(group), rows.number)
        return {"each": keep_uploads(uploads, uploads.delta.clone()), **both}

    def step(state: State, stats: Stats, _t: int) -> State:
        delta = torch.zeros(state.models.shape, dtype=torch.float64)
        for row, each in group_uploads(rows, stats["each"]).items():
            delta[row] = center(torch.stack([sent for _, sent in each]))
        return apply_delta(state, delta, stats)

    return Server(no_extra, reduce, step, keeps=True)


def median(x: Tensor) -> Tensor:
    """Returns the median of n deltas `[n, d]` in each coordinate, `[d]` (Yin et al. 2018, Alg. 1, option I).

    If n is even, the median is the mean of the two middle values.

    Example:
        >>> median(torch.tensor([[1.0], [9.0], [2.0], [4.0]])).tolist()
        [3.0]
    """
    return trimmed_mean(len(x))(x)


def trimmed_mean(b: int) -> Center:
    """Returns a function that averages n deltas in each coordinate, without the b largest and the b smallest values.

    Source: Yin et al. 2018, option II. If there are fewer than 2 b + 1 deltas, as many values as possible are left out,
    and the result is the median.

    Example:
        >>> trimmed_mean(1)(torch.tensor([[1.0], [9.0], [2.0], [4.0]])).tolist()
        [3.0]
    """

    def center(x: Tensor) -> Tensor:
        cut = min(b, (len(x) - 1) // 2)
        parts = (part.sort(0).values.double() for part in torch.split(x, _CHUNK, dim=1))
        return torch.cat([part[cut : len(x) - cut].mean(0) for part in parts])

    return center


def krum(f: int, trainable: int, multi: bool = False) -> Center:
    """Returns the function Krum, which takes n deltas and returns the delta that is nearest to the other deltas.

    The chosen delta has the smallest sum of squared distances to the `max(1, n - f - 2)` deltas nearest to it. If
    `multi` is true, the result is the mean of the n - f deltas with the smallest sums. The guarantee of the paper needs
    n >= 2 f + 3.

    `f` is the number of bad deltas that are tolerated. Distances are computed from the trainable parameters, the first
    `trainable` values of a delta.

    Source: Blanchard et al. 2017, section 4.

    Example:
        >>> krum(1, 1)(torch.tensor([[1.0], [1.1], [1.2], [0.9], [50.0]])).round(decimals=3).tolist()
        [1.0]
    """

    def center(x: Tensor) -> Tensor:
        n = len(x)
        square = torch.zeros(n, n, dtype=torch.float64)  # distances of all pairs
        for part in torch.split(x[:, :trainable], _CHUNK, dim=1):
            square += torch.cdist(part.double(), part.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
        square.fill_diagonal_(float("inf"))
        crowding = square.sort(1).values[:, : min(max(1, n - f - 2), n - 1)].sum(1)
        order = torch.argsort(crowding, stable=True)
        best = order[: max(1, n - f) if multi else 1].sort().values
        return x[best].double().mean(0)

    return center


# ---------------------------------------------------------------------------------------------------------------------
# Server optimizers use the change of the models by an inner server as a pseudo-gradient.
#
# The inner server may compute a mean, a mean by tier, or a robust center. The optimizer changes only trainable
# parameters. Float buffers (BatchNorm) are those of the inner server. A model that no client trained in a round keeps
# its weights and the state of its optimizer.

BETA2 = 0.99  # Reddi et al. 2021, section 5.1


@dataclass(frozen=True)
class Optimizer:
    """Describes a server optimizer (`server.optimizer`).

    Attributes:
        kind: Name of the optimizer: momentum, adam, yogi or none.
        lr: Learning rate of the server optimizer, above 0.
        momentum: Coefficient of momentum, or beta_1 of Adam and Yogi, in [0, 1).
        tau: The constant above 0 that Adam and Yogi add to the denominator.
        schedule: A factor of the learning rate for each round. None means 1.
    """

    kind: ServerOptimizerKind = "none"
    lr: float = 1.0
    momentum: float = 0.9
    tau: float = 1e-3
    schedule: RateSchedule | None = None


def with_optimizer(base: Server, rows: Rows, trainable: int, how: Optimizer) -> Server:
    """Returns a server with an optimizer. The pseudo-gradient `g` is the change of the models by the step of `base`.

    - `momentum`: `m <- momentum m + g` and `w <- w + lr m` (FedAvgM, Hsu et al. 2019). With momentum 0 and lr 1, the
      result is the same as with `base`.
    - `adam` and `yogi` (Reddi et al. 2021, Alg. 2): `m <- momentum m + (1 - momentum) g` and `w <- w + lr m / (sqrt(v)
      + tau)`. v starts at tau^2. In `adam`, `v <- 0.99 v + 0.01 g^2`. In `yogi`, `v <- v - 0.01 g^2 sign(v - g^2)`.

    Args:
        base: The server whose step gives the pseudo-gradient.
        rows: The order of the models in the state.
        trainable: Number of trainable parameters of a model. They come first, and only they are changed.
        how: The optimizer, which is not `none`.

    Example:
        >>> from fedray.components.servers import mean
        >>> server = with_optimizer(mean(Rows(1, 1)), Rows(1, 1), 3, Optimizer("adam", lr=0.1))
        >>> sorted(server.init(torch.zeros(1, 3)))
        ['optimizer_first', 'optimizer_second']
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        zero = torch.zeros(len(models), trainable, dtype=torch.float64)
        second = {} if how.kind == "momentum" else {"optimizer_second": zero + how.tau**2}
        return {**base.init(models), "optimizer_first": zero, **second}

    def step(state: State, stats: Stats, t: int) -> State:
        after, g = step_and_move(base, state, stats, t, trainable)
        trained, extra = stats["weight"].total.view(rows.number, -1).sum(1)[:, None] > 0, dict(after.extra)
        before = state.extra["optimizer_first"]  # the inner server may return an extra without it
        first = before * how.momentum + (g if how.kind == "momentum" else (1.0 - how.momentum) * g)
        change = first
        if how.kind != "momentum":
            v, square = state.extra["optimizer_second"], g.square()
            down = (1.0 - BETA2) * (v - square if how.kind == "adam" else square * torch.sign(v - square))
            second = v - down
            change = first / (second.sqrt() + how.tau)
            extra["optimizer_second"] = torch.where(trained, second, v)
        extra["optimizer_first"] = torch.where(trained, first, before)
        rate = how.lr if how.schedule is None else how.lr * how.schedule.factor(t)
        return place_change(state, after, rate * change, trained)._replace(extra=extra)

    return Server(init, base.reduce, step, base.keeps)


# ---------------------------------------------------------------------------------------------------------------------
# Servers of FedDyn and SCAFFOLD, whose clients correct their gradients.

CONTROL = "broadcast/control"  # name of the tensor in `State.extra` with SCAFFOLD's c, which clients receive


def zero_buffers(rows: Tensor, p: int) -> Tensor:
    """Returns the vectors `[W, d]` with 0 in all entries after the first p.

    These entries belong to float buffers, which have no gradient to correct.

    Example:
        >>> zero_buffers(torch.ones(1, 4), 3)
        tensor([[1., 1., 1., 0.]])
    """
    if rows.shape[1] == p:
        return rows
    kept = rows.clone()
    kept[:, p:] = 0.0
    return kept


def feddyn_server(
    base: Server, rows: Rows, clients: int, alpha: float, trainable: int, *, held: Callable[[int], Tensor] | None = None
) -> Server:
    """Returns FedDyn's server: `w <- mean of uploads - h / alpha`, where h is the mean of all N clients' corrections.

    A client that uploads the model u changes its correction by `-alpha (u - w)`. So h changes by `-alpha n / N` times
    the mean delta of the n uploads.

    Args:
        base: The server that averages the uploads.
        rows: The order of the models in the state.
        clients: Number of clients, N.
        alpha: Weight of the regularization, above 0.
        trainable: Number of trainable parameters of a model, p. They come first, and only they are corrected.
        held: A function that takes a round and returns `[T, d]` float64 for T tiers (classes of devices). A value is 1
            if the tier trains the parameter, otherwise 0. For each parameter, n then counts only the uploads in which
            the parameter was trained. None means that all tiers train all parameters.
    """
    tiers = 1 if held is None else len(held(0))

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**base.init(models), "dynamic": torch.zeros(len(models), trainable, dtype=torch.float64)}

    def reduce(uploads: Uploads) -> Stats:
        group = rows.of(uploads, tiers)
        jobs = torch.zeros(rows.number * tiers, dtype=torch.int64).index_add_(0, group, torch.ones_like(group))
        return {**base.reduce(uploads), "jobs": Counts(jobs)}

    def step(state: State, stats: Stats, t: int) -> State:
        after, g = step_and_move(base, state, stats, t, trainable)
        jobs = stats["jobs"].total.view(rows.number, tiers).double()  # [M, T]
        if held is not None:
            jobs = jobs @ held(t)[:, :trainable]  # for each parameter, [M, p]
        h = after.extra["dynamic"] - alpha * (jobs / clients) * g
        return place_change(state, after, g - h / alpha, jobs > 0)._replace(extra={**after.extra, "dynamic": h})

    return Server(init, reduce, step, base.keeps)


def scaffold_server(base: Server, rows: Rows, clients: int) -> Server:
    """Returns SCAFFOLD's server. It keeps the control variate c, which clients receive with the models.

    The changes of the clients' control variates are added, and c changes by 1/N times this sum. The server `base`
    averages the uploads.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**base.init(models), CONTROL: torch.zeros_like(models)}

    def reduce(uploads: Uploads) -> Stats:
        assert uploads.beside is not None
        group = rows.of(uploads)
        change = exact_sum(uploads.beside, group, rows.number, torch.ones_like(group), limbs=2)
        return {**base.reduce(uploads), "change": change}

    def step(state: State, stats: Stats, t: int) -> State:
        after = base.step(state, stats, t)
        control = after.extra[CONTROL].double() + stats["change"].value() / clients
        return after._replace(extra={**after.extra, CONTROL: control.to(state.models.dtype)})

    return Server(init, reduce, step, base.keeps)
