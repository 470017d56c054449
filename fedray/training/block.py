"""Defines blocks, and draws their batches.

A job is the training of one model by one client. A block is W jobs that are trained together. Each job is one lane of
the block.

A world is one combination of a seed and a fold.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import Augmentation, Local, Reading
from fedray.core.types import Clients, FloatArray, IntArray, Layout
from fedray.own_code.user_code import blame_user_code, name_type
from fedray.training.chain import Drop

# ---------------------------------------------------------------------------------------------------------------------
# The batches of a lane depend only on the random key of the lane and on its number of samples. For every epoch, a
# permutation of the client's samples is drawn from the key `(seed, round, client, model)`. The permuted samples are cut
# into batches of B samples. The last batch is padded with samples of weight zero. The results of a lane therefore
# depend neither on the other lanes nor on the width of the block.

PIECE_NUMBERS = 8 << 20  # largest number of input values in memory at a time: about 32 MB
MIN_LANES = 2  # a single lane is trained twice, because torch has different kernels (matrix-vector) for one lane


Couple = Callable[[Tensor, Tensor], Tensor]  # takes gradients and parameters, `[W, p]` each


class Batches(NamedTuple):
    """The batch of every lane in each of S steps.

    A lane is one client that trains. A batch has B samples after padding.

    Attributes:
        index: Index of each sample in the data, `[S, W, B]`.
        weight: Weight of each sample in the loss of the batch, `[S, W, B]`: 1 / batch size, or 0 for padding.
    """

    index: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    weight: Tensor


class BatchSource(NamedTuple):
    """The data from which a compiled kernel (a C function) reads the batches of a block.

    The inputs are `(x[index[s, w, b]] - shift) / scale`, as in the batches that `Block.read` returns. There are S
    steps, W lanes, batches of B samples, and R worlds. A world is one combination of a seed and a fold.

    Attributes:
        x: Raw inputs, `[n, *sample]` float32, float64 or uint8.
        y: Classes of m samples, `[m]` int64, or q raw targets of each, `[m, q]` float32 or float64.
        index: Index of each sample in x, `[S, W, B]` int64.
        first: For each lane, the index of a sample in y minus its index in x, `[W]` int64. None means 0.
        world: World of each lane, `[W]` int64. It selects the statistics below.
        shift: Mean of the inputs in each world, `[R, *sample]` float32. None means that inputs are not standardized.
        scale: Standard deviation of the inputs in each world, with the shape of `shift`.
        y_shift: Mean of each of the q targets in each world, `[R, q]` float32. None means that targets are not
            standardized.
        y_scale: Standard deviation of the targets in each world, with the shape of `y_shift`.
    """

    x: Tensor
    y: Tensor
    index: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    first: Tensor | None
    world: IntArray
    shift: Tensor | None = None
    scale: Tensor | None = None
    y_shift: Tensor | None = None
    y_scale: Tensor | None = None


class Block(NamedTuple):
    """W lanes that are trained together.

    A lane is one client that trains one model. The lane with the most steps, S, comes first.

    Attributes:
        start: The model that each lane starts from, `[W, d]`.
        counters: The c integer buffers of each lane's model, `[W, c]`.
        read: A function that takes two indices of steps, lo and hi. It returns the inputs and the targets of the s
            steps from lo to hi (exclusive), `[s, W, B, ...]` each.
        weight: Weight of each sample in the loss of the batch, `[S, W, B]`: 1 / batch size, or 0 for padding.
        steps: Number of optimizer steps of each lane, `[W]`, in descending order.
        local: The settings of local training.
        lr: Learning rate of this round.
        keys: Random key of each lane, `[W]`. Modules that draw random numbers (dropout) use it.
        sample: Number of values in one input.
        anchor: The model towards which each lane is pulled, `[W, d]`. None means `start`.
        offset: The vector that is added to each lane's gradient, `[W, d]`. None means that nothing is added.
        wants_change: Whether compiled engines return `final - start` instead of `final`.
        reading: The values that a user's or method's code in local training may use. None means that the round is 0,
            and that clients received `start`.
        couple: A function that takes the gradients and the p parameters of each lane, `[W, p]` each. It returns new
            gradients, `[W, p]`. None means that the lanes are independent.
        drops: The rules that replace dropout layers. The dropout masks are computed from `keys`. Without rules, the
            network's module computes its dropout itself.
        source: The data from which compiled kernels read the batches. None means that the batches come from `read`.
    """

    start: Tensor
    counters: Tensor
    read: Callable[[int, int], tuple[Tensor, Tensor]]
    weight: Tensor
    steps: IntArray
    local: Local
    lr: float
    keys: rng.Keys
    sample: int
    anchor: Tensor | None = None
    offset: Tensor | None = None
    source: BatchSource | None = None
    wants_change: bool = False
    reading: Reading | None = None
    drops: tuple[Drop, ...] = ()
    couple: Couple | None = None

    @property
    def center(self) -> Tensor:
        """The model towards which each of W clients is pulled in training, `[W, d]`."""
        return self.start if self.anchor is None else self.anchor

    @property
    def min_lanes(self) -> int:
        """The smallest number of clients that are computed in a step: 2, or 1 if the block has only one client."""
        return min(MIN_LANES, len(self.start))

    def terms(self, split: Callable[[Tensor], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
        """Cuts the anchor and the offset into tensors by `split`. A list is empty if nothing is pulled, or added."""
        rows = (self.center if self.local.pull else None, self.offset)
        anchor, offset = ([] if one is None else split(one) for one in rows)
        return anchor, offset

    def pieces(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Cuts the steps from lo to hi (exclusive) into ranges. The inputs of a range take at most about 32 MB."""
        _, lanes, batch = self.weight.shape
        size = max(1, PIECE_NUMBERS // max(1, lanes * batch * self.sample))
        return [(a, min(a + size, hi)) for a in range(lo, hi, size)]


class Trained(NamedTuple):
    """The result of training the W lanes (clients) of a block.

    Attributes:
        final: The trained models, `[W, d]`. If `wants_change` of the block is true, a compiled engine returns trained
            models minus start models.
        counters: The c integer buffers of each trained model, `[W, c]`.
        loss: Loss of each lane, `[W]`: the mean loss of a batch, summed over all steps.
    """

    final: Tensor
    counters: Tensor
    loss: Tensor


def divide_epoch(size: IntArray, local: Local) -> tuple[IntArray, IntArray]:
    """Returns for each of J jobs the number of batches in an epoch, and the number of samples in all these batches.

    `size` is the number of samples of each job's client, `[J]`.

    Example:
        >>> size = np.array([3, 8, 9])
        >>> [[part.tolist() for part in divide_epoch(size, Local(batch_size=4, last_batch=last))]
        ...     for last in ("keep", "drop", "merge")]
        [[[1, 2, 3], [3, 8, 9]], [[1, 2, 2], [3, 8, 8]], [[1, 2, 2], [3, 8, 9]]]
    """
    if local.batch_size is None:
        return np.ones_like(size), size
    if local.last_batch == "keep":
        return -(-size // local.batch_size), size
    width = np.maximum(np.minimum(size, local.batch_size), 1)
    return size // width, size - size % width if local.last_batch == "drop" else size


def choose_batch_width(size: IntArray, local: Local) -> IntArray:
    """Returns for each of W clients the number of samples in a batch after padding (the batch width).

    The width is the client's number of samples, rounded up to a multiple of 8 if it is above 8, but at most the batch
    size. If the client's last two batches are merged (`last_batch: merge`), the width is the number of samples in the
    merged batch, rounded up in the same way. `size` is each client's number of samples, `[W]`.

    Example:
        >>> choose_batch_width(np.array([5, 11, 40]), Local(batch_size=16)).tolist()
        [5, 16, 16]
        >>> choose_batch_width(np.array([5, 11, 32, 40]), Local(batch_size=16, last_batch="merge")).tolist()
        [5, 16, 16, 24]
    """
    whole, b = _round_up(size), local.batch_size
    if b is None:
        return whole
    width = np.minimum(whole, b)
    if local.last_batch == "merge":
        width = np.where((size > b) & (size % b > 0), _round_up(b + size % b), width)
    return width


def _round_up(rows: IntArray) -> IntArray:
    return np.maximum(np.where(rows <= 8, rows, (rows + 7) // 8 * 8), 1)


def count_steps(size: IntArray, local: Local) -> IntArray:
    """Returns the number of optimizer steps of each of J jobs.

    If `local.steps` is set, the number is `local.steps`. Otherwise it is the number of batches in all epochs. A client
    without samples has 0 steps. `size` is the number of samples of each job's client, `[J]`.
    """
    batches, _ = divide_epoch(size, local)
    steps = np.full_like(size, local.steps) if local.steps is not None else (local.epochs or 1) * batches
    return np.where(size > 0, steps, 0)


def count_client_steps(clients: Clients, client: IntArray, size: IntArray, local: Local) -> IntArray:
    """Returns the number of optimizer steps of each of J jobs. A tier (class of devices) may set epochs or steps.

    `client` is the id of each job's client, and `size` is the client's number of samples, `[J]` each.
    """
    steps, tier = count_steps(size, local), clients.tier_of(client)
    for place, own in enumerate(clients.tiers):
        if own.epochs is not None or own.steps is not None:
            mine = tier == place
            steps[mine] = count_steps(size[mine], replace(local, epochs=own.epochs, steps=own.steps))
    return steps


def weigh_gradients(steps: IntArray, local: Local) -> FloatArray:
    """Returns for each of J jobs the sum of the weights with which its SGD gradients change the model, `|a|_1`.

    Without momentum each weight is 1, so the sum is the number of steps. With momentum rho, a gradient moves the model
    in its own step and in all later steps. For m such steps, the weight is `a = (1 - rho^m) / (1 - rho)`. With
    Nesterov's momentum the weight is `1 + rho a`.

    Source: Wang, Liu, Liang, Joshi, Poor, *Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization*, NeurIPS 2020, section 4.

    Example:
        >>> weigh_gradients(np.array([1, 2, 3]), Local(momentum=0.5)).tolist()
        [1.0, 2.5, 4.25]
    """
    rho = local.momentum
    total = (steps - rho * (1.0 - rho**steps) / (1.0 - rho)) / (1.0 - rho)
    return np.asarray(steps + rho * total if local.nesterov else total)


def samples_seen(size: IntArray, steps: IntArray, local: Local) -> IntArray:
    """Returns the number of samples in all batches of each of J jobs. A sample counts once per epoch.

    `size` is the number of samples of each job's client. `steps` is the number of optimizer steps of each job.

    Example:
        >>> samples_seen(np.array([20, 20]), np.array([4, 5]), Local(batch_size=16)).tolist()
        [40, 56]
    """
    width = np.maximum(size if local.batch_size is None else np.minimum(size, local.batch_size), 1)
    batches, rows = divide_epoch(size, local)
    whole, more = np.divmod(steps, np.maximum(batches, 1))
    return np.asarray(whole * rows + more * width)


def deal_batches(
    rows: IntArray, size: IntArray, steps: IntArray, width: int, key: rng.Keys, *, local: Local | None = None
) -> Batches:
    """Divides the samples of each lane (client) into batches, in a new random order in each epoch.

    Args:
        rows: Indices of each lane's samples in the data, `[W, n]`. In each lane, entries after the first `size` are
            padding.
        size: Number of samples of each lane, `[W]`, above 0.
        steps: Number of optimizer steps of each lane, `[W]`, in descending order.
        width: Number of samples in a batch after padding, B.
        key: Random key of each lane, `[W]`.
        local: The settings of local training. None means batches of `width` samples.

    Example:
        Two lanes have batches of two samples. The second lane has three samples, so its second batch holds one sample.

        >>> keys = rng.keys(0, "example", np.arange(2))
        >>> batches = deal_batches(np.arange(8).reshape(2, 4), np.array([4, 3]), np.array([2, 2]), 2, keys)
        >>> batches.weight[:, 1].tolist()
        [[0.5, 0.5], [1.0, 0.0]]
        >>> sorted(batches.index[:, 0].flatten().tolist())
        [0, 1, 2, 3]
    """
    lanes, n = rows.shape
    total = int(steps.max())
    local = Local(batch_size=width) if local is None else local
    per_epoch, used = divide_epoch(size, local)
    epochs = int((-(-steps // per_epoch)).max())
    noise = rng.bits(rng.fresh(key[:, None], np.arange(epochs)), n)  # [W, E, n]
    if int(size.min()) < n:
        noise[np.broadcast_to(np.arange(n) >= size[:, None, None], noise.shape)] = np.iinfo(np.uint64).max
    order = np.argsort(noise, axis=-1)
    full = int(size.min()) == n and n % width == 0 and (per_epoch == n // width).all()
    if full and total == epochs * (n // width):  # all batches are full
        order += (np.arange(lanes) * n)[:, None, None]
        index = rows.take(order.reshape(lanes, total, width).transpose(1, 0, 2))
        weight = torch.full((1, 1, 1), 1.0 / width).expand(total, lanes, width)
        return Batches(torch.from_numpy(index), weight)
    step = np.arange(total)[:, None]  # [S, 1]
    epoch, part = step // per_epoch, step % per_epoch  # [S, W]
    first = part * (width if local.batch_size is None else local.batch_size)
    end = np.where(part == per_epoch - 1, used, first + (local.batch_size or 0))  # of a batch of the epoch, [S, W]
    place = first[..., None] + np.arange(width)  # [S, W, B]
    real = (place < end[..., None]) & (epoch < epochs)[..., None]
    flat = np.minimum(epoch, epochs - 1)[..., None] * n + np.minimum(place, n - 1)
    lane = np.arange(lanes)[None, :, None]
    index = rows[lane, order.reshape(lanes, -1)[lane, flat]]
    index[~real] = np.broadcast_to(rows[None, :, :1], index.shape)[~real]
    count = np.maximum(real.sum(-1, keepdims=True), 1)
    return Batches(torch.from_numpy(index), torch.from_numpy((real / count).astype(np.float32)))


def split_into_blocks(steps: IntArray, batch: IntArray, width: int) -> list[IntArray]:
    """Groups jobs into blocks, and returns the indices of each block's jobs, those with the most steps first.

    Args:
        steps: Number of optimizer steps of each job, `[J]`. Jobs without steps are left out.
        batch: Batch width of each job, `[J]`. Only jobs with the same batch width may share a block.
        width: Largest number of lanes in a block.

    Example:
        >>> [block.tolist() for block in split_into_blocks(np.array([2, 0, 3, 3, 1]), np.array([8, 8, 8, 4, 8]), 2)]
        [[3], [2, 0], [4]]
    """
    order = np.lexsort((np.arange(len(steps)), -steps, batch))
    order = order[steps[order] > 0]
    blocks = []
    for same in np.unique(batch[order]):
        jobs = order[batch[order] == same]
        pieces = -(-len(jobs) // width)
        blocks += [part for part in np.array_split(jobs, pieces) if len(part)]
    return blocks


def train_lanes(
    block: Block,
    take_step: Callable[[Tensor, Tensor, Tensor, int, int], Tensor],
    write: Callable[[Tensor, int, int, int], None],
    prepare: Callable[[Tensor, int], Tensor] = lambda x, lanes: x[:, :lanes],
) -> Trained:
    """Trains all lanes (clients) of a block together, step after step.

    Args:
        block: The lanes.
        take_step: A function that takes inputs `[lanes, B, ...]`, targets, weights, the index of the step, and the
            number `lanes`. It makes this step in the first `lanes` lanes, and returns their losses, `[lanes]`.
        write: A function that takes an array of models `[W, d]`, two indices a and b, and the number of lanes. It
            writes the trained models of lanes a to b (exclusive) into rows a to b, and changes no other row.
        prepare: A function that takes the inputs of s steps, `[s, W, B, ...]`, and the number of lanes. It returns the
            inputs for `take_step`, `[s, ...]`.
    """
    final = torch.empty_like(block.start)
    loss = torch.zeros(len(final), dtype=final.dtype, device=final.device)
    ends = np.unique(block.steps).tolist()
    for lo, hi in zip([0, *ends[:-1]], ends, strict=True):  # from lo to hi the number of training lanes is constant
        real = int((block.steps >= hi).sum())
        lanes = max(real, block.min_lanes)
        for a, b in block.pieces(lo, hi):
            x, y = block.read(a, b)
            x = prepare(x, lanes)
            for s in range(a, b):
                loss[:real] += take_step(x[s - a], y[s - a, :lanes], block.weight[s, :lanes], s, lanes)[:real]
        write(final, int((block.steps > hi).sum()), real, lanes)
    return Trained(final, block.counters, loss)


def to_channels_last(x: Tensor) -> Tensor:
    """Returns images or convolution weights with channels last in memory, even if there is only one channel."""
    if x.dim() != 4:
        return x
    _, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided(x.shape, (h * w * c, 1, w * c, c))


# ---------------------------------------------------------------------------------------------------------------------
# Augmentation: every step changes the samples of its batch at random (`local.augment`).
#
# The random numbers of a sample are computed from the lane's key, the step, the position of the sample in the batch and
# the position of the augmentation in the list. They depend neither on other lanes nor on the runtime.

_AUGMENTED = -5  # makes the random keys of augmentations differ from the keys of permutations
_GENERATORS = threading.Lock()  # users' functions draw from the global generators, which all threads share
_PICTURES = 6  # number of axes of images of some steps and lanes, `[s, W, B, C, H, V]`


class Steps(NamedTuple):
    """The s steps and W lanes whose batches are augmented. A lane is one client that trains.

    Attributes:
        key: Random key of each lane, `[W]`.
        first: Index of the first step.
        real: Number of samples in each batch, `[s, W]`. Padding, which comes last in a batch, does not count.
        classes: Number of classes. It is 0 for regression.

    Example:
        >>> from fedray.data.shifts import AUGMENTATIONS
        >>> x, y = torch.arange(6.0).view(1, 1, 2, 1, 1, 3), torch.zeros(1, 1, 2)
        >>> steps = Steps(rng.keys(0, "example", np.arange(1)), 0, np.array([[2]]))
        >>> change_batches((AUGMENTATIONS["flip"],), x, y, steps)[0].flatten(2).tolist()
        [[[0.0, 1.0, 2.0, 5.0, 4.0, 3.0]]]
    """

    key: rng.Keys
    first: int
    real: IntArray
    classes: int = 0


def change_batches(rules: Sequence[Augmentation], x: Tensor, y: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """Applies augmentations, one after another, to the batches of s steps and W clients. Returns inputs and targets.

    Args:
        rules: The augmentations.
        x: Raw inputs, `[s, W, B, ...]`. The inputs for a user's function must be in main memory.
        y: Raw targets, `[s, W, B]` or `[s, W, B, q]`.
        steps: The steps and lanes of the batches.

    Raises:
        BadInput: A user's function returned something of a wrong shape or type, or numbers that are not finite.
        FedrayError: A user's function raised an exception.
    """
    numbers = steps.first + np.arange(len(x))[:, None]
    for place, rule in enumerate(rules):
        keys = rng.fresh(rng.fresh(rng.fresh(steps.key, _AUGMENTED), place), numbers)  # [s, W]
        if rule.form == "rows":
            each = rng.fresh(keys[..., None], np.arange(x.shape[2])).reshape(-1)
            x = rule.function(x.flatten(0, 2), rng.uniform(each, rule.numbers)).view(x.shape)
        else:
            x, y = _call_own(rule, x, y, keys, steps)
    return x, y


def _call_own(rule: Augmentation, x: Tensor, y: Tensor, keys: rng.Keys, steps: Steps) -> tuple[Tensor, Tensor]:
    """Applies a user's augmentation to all batches except their padding, and returns all inputs and targets."""
    changed, targets, where = x.clone(), y.clone(), f"local.augment = {rule.name}"
    with blame_user_code(where), torch.no_grad(), _GENERATORS, rng.generators_scope() as start:
        for s, w in np.ndindex(*steps.real.shape):
            n, lane = int(steps.real[s, w]), (s, w)
            if n and rule.form == "batch":
                start(int(keys[lane]))
                found = rule.function(x[lane][:n].clone(), y[lane][:n].clone())
                inputs, told = found if isinstance(found, tuple) else (found, y[lane][:n])
                same = isinstance(told, Tensor) and told.shape == y[lane][:n].shape
                mixed = same and told.is_floating_point() and not y.is_floating_point()
                if not same or mixed or (steps.classes and bool(((told < 0) | (told >= steps.classes)).any())):
                    raise BadInput(
                        f"{where} returned other targets than one for each row (classes from 0): for mixed labels "
                        "write a loss (local.loss), which can ask the network about mixed inputs"
                    )
                targets[lane][:n] = told
                changed = _put(changed, (*lane, slice(n)), _check_inputs(where, inputs, x[lane][:n], x.dim()))
                continue
            for b, key in enumerate(rng.fresh(keys[lane], np.arange(n)).tolist()):
                start(key)
                row = _check_inputs(where, rule.function(x[s, w, b].clone()), x[s, w, b], x.dim())
                changed = _put(changed, (s, w, b), row)
    if changed.is_floating_point() and not bool((torch.isfinite(changed) | ~torch.isfinite(x)).all()):
        raise BadInput(f"{where} returned numbers that are NaN or infinite: look for a division, a logarithm or a root")
    return changed, targets


def _put(rows: Tensor, place: Any, found: Tensor) -> Tensor:
    """Writes `found` at the index `place` of an array of samples, and returns the array.

    If types differ, the array becomes float.
    """
    rows = rows if found.dtype == rows.dtype else rows.float()
    rows[place] = found
    return rows


def _check_inputs(where: str, found: Any, x: Tensor, axes: int) -> Tensor:
    """Checks what a user's function returned for the inputs `x`, and converts it to the type of `x`.

    Error messages begin with `where`. `axes` is the number of axes of the array that holds all batches. It is 6 for
    images. A function may return floats for images that are stored as bytes.
    """
    if not isinstance(found, Tensor) or found.shape != x.shape:
        what = f"shape {list(found.shape)}" if isinstance(found, Tensor) else name_type(found)
        raise BadInput(f"{where} returned {what} for {list(x.shape)}: return a tensor of the same shape")
    if found.is_floating_point() and x.dtype == torch.uint8 and axes == _PICTURES:
        return found.float()
    changed = found.to(x.dtype)
    if not (found.is_floating_point() and x.is_floating_point()) and not torch.equal(changed.to(found.dtype), found):
        raise BadInput(f"{where} returned {found.dtype} that {x.dtype} cannot hold: return the same type")
    return changed


# ---------------------------------------------------------------------------------------------------------------------
# One optimizer step for the parameters of all lanes. All torch engines share this code.
# The gradient of a lane with parameters w is `gradient of the loss + weight_decay w + pull (w - anchor) + offset`. The
# optimizers are those of torch.optim with its defaults. AdamW applies weight decay to the parameters instead of the
# gradient.

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # torch.optim.Adam's defaults
_ALPHA = 0.99  # torch.optim.RMSprop's default
Step = Callable[[Sequence[Tensor], Sequence[Tensor], int | None], None]  # (parameters, gradients, lanes), in place
Complete = Callable[[Sequence[Tensor], Sequence[Tensor], "int | None"], list[Tensor]]


def split_rows(layout: Layout, rows: Tensor) -> list[Tensor]:
    """Copies W models `[W, d]` into one contiguous tensor `[W, *shape]` for each parameter tensor of the network."""
    return [view.contiguous().clone() for view in layout.views(rows).values()]


def join_rows(tensors: Sequence[Tensor], lanes: int) -> Tensor:
    """Joins the parameter tensors that `split_rows` returned, and returns the first `lanes` models, `[lanes, d]`."""
    return torch.cat([tensor[:lanes].reshape(lanes, -1) for tensor in tensors], dim=1)


def make_optimizer(
    local: Local, lr: float, anchor: Sequence[Tensor], offset: Sequence[Tensor], velocities: list[Tensor] | None = None
) -> Step:
    """Returns a function `step(params, grads, lanes)` that changes the parameters of the first `lanes` models in place.

    If `lanes` is None, the step changes all models. Parameters are stacked: each tensor holds one parameter tensor of
    all models.

    Args:
        local: The optimizer and its settings.
        lr: Learning rate of this round.
        anchor: The models towards which the steps pull, stacked like the parameters. Without a pull, it may be empty.
        offset: The vectors that are added to the gradients, stacked like the parameters. If it is empty, nothing is
            added.
        velocities: The list in which SGD with momentum keeps its velocities between steps. If the list is empty, the
            velocities begin at zero. None means a new list.

    Example:
        Two lanes have one parameter each. The gradient of the second lane is 0.

        >>> step = make_optimizer(Local(lr=0.1), 0.1, [], [])
        >>> params = [torch.tensor([[1.0], [1.0]])]
        >>> step(params, [torch.tensor([[2.0], [0.0]])], None)
        >>> params[0].flatten().tolist()
        [0.800000011920929, 1.0]
    """
    kept = [] if velocities is None else velocities
    complete, moments, count = make_complete(local, anchor, offset), list[list[Tensor]](), 0

    def step(params: Sequence[Tensor], grads: Sequence[Tensor], lanes: int | None) -> None:
        nonlocal count
        now = list(params) if lanes is None else [p[:lanes] for p in params]
        g = complete(now, grads, lanes)
        if local.optimizer == "adamw":
            torch._foreach_mul_(now, 1.0 - lr * local.weight_decay)
        if local.optimizer == "rmsprop":
            if not moments:
                moments.append([torch.zeros_like(p) for p in now])
            square = [m[:lanes] for m in moments[0]]
            torch._foreach_mul_(square, _ALPHA)
            torch._foreach_addcmul_(square, g, g, 1.0 - _ALPHA)
            root = torch._foreach_sqrt(square)
            torch._foreach_add_(root, _EPS)
            torch._foreach_addcdiv_(now, g, root, -lr)
            return
        if local.optimizer != "sgd":
            count += 1
            if not moments:
                moments.extend([torch.zeros_like(p) for p in now] for _ in range(2))
            first, second = ([m[:lanes] for m in moment] for moment in moments)
            torch._foreach_lerp_(first, g, 1.0 - _BETA1)
            torch._foreach_mul_(second, _BETA2)
            torch._foreach_addcmul_(second, g, g, 1.0 - _BETA2)
            root = torch._foreach_sqrt(second)
            torch._foreach_div_(root, (1.0 - _BETA2**count) ** 0.5)
            torch._foreach_add_(root, _EPS)
            torch._foreach_addcdiv_(now, first, root, -lr / (1.0 - _BETA1**count))
            return
        if local.momentum:
            if not kept:
                kept.extend(torch.zeros_like(p) for p in now)
            velocity = [v[:lanes] for v in kept]
            torch._foreach_mul_(velocity, local.momentum)
            torch._foreach_add_(velocity, g)
            g = list(torch._foreach_add(g, velocity, alpha=local.momentum)) if local.nesterov else velocity
        torch._foreach_add_(now, g, alpha=-lr)

    return step


def make_complete(local: Local, anchor: Sequence[Tensor], offset: Sequence[Tensor]) -> Complete:
    """Returns a function that adds weight decay, pull and offset to the gradients of the loss.

    The function takes the parameters of the first `lanes` models, their gradients, and `lanes`. `anchor` and `offset`
    are described in `make_optimizer`.
    """

    def complete(now: Sequence[Tensor], grads: Sequence[Tensor], lanes: int | None) -> list[Tensor]:
        g = list(grads)
        if offset:
            g = list(torch._foreach_add(g, [o[:lanes] for o in offset]))
        if local.weight_decay and local.optimizer != "adamw":
            g = list(torch._foreach_add(g, list(now), alpha=local.weight_decay))
        if local.pull:  # the difference is exactly 0 at the anchor; Adam would scale up any rounding error
            away = torch._foreach_sub(list(now), [a[:lanes] for a in anchor])
            g = list(torch._foreach_add(g, away, alpha=local.pull))
        return g

    return complete


def is_plain_sgd(local: Local) -> bool:
    """Returns whether the optimizer is SGD without momentum."""
    return local.optimizer == "sgd" and not local.momentum


def rows_of(models: Tensor, row: Tensor) -> Tensor:
    """Returns the rows of `models` with the indices `row`, `[J, d]`.

    The rows of the result may share memory, so the result must not be changed.
    """
    return models.expand(len(row), *models.shape[1:]) if len(models) == 1 else models.index_select(0, row)
