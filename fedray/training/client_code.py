"""Trains clients whose loss or optimizer is a function that a method or a user has written.

A lane is one client that trains. Lanes are trained together if `torch.func.vmap` can map the functions over lanes.
Otherwise one lane is trained after another.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.utils._pytree import tree_map

from fedray.core import method, rng
from fedray.core.errors import BadInput
from fedray.core.types import Layout, Net
from fedray.models.net import per_sample
from fedray.models.network_checks import check_outputs, make_inputs
from fedray.own_code.user_code import name_type
from fedray.training.block import Block, Complete, Step, Trained, make_complete, make_optimizer, train_lanes
from fedray.training.loop import DRAWS, call_with_tensors, lane_batches, quiet_fallbacks

# ---------------------------------------------------------------------------------------------------------------------
# The loss, and the values that code in local training can use: the batch, features, and outputs of other models.
#
# Two engines share this code. `train_client_lanes` maps the functions of one client over the lanes of a block.
# `train_client_loop` calls the functions for one lane after another. Parameters and gradients of a lane are vectors
# `[p]`.

Watched = list[Tensor]  # the inputs of the last layer in the newest forward pass, or an empty list


class LaneBatch(NamedTuple):
    """A batch of one lane (a client that trains), and the other tensors that the method's or user's code may use.

    d is the number of a model's values, and p the number of its trainable parameters. Tensors that no code uses are
    empty.

    Attributes:
        x: Inputs, `[B, ...]`.
        y: Targets, `[B]` or `[B, q]`.
        weight: Weight of each sample, `[B]`: 1 / batch size, or 0 for padding.
        steps: Number of steps of the lane.
        noise: Standard normal random numbers for the step, `[p]`. The code may require another length.
        client: Id of the client.
        model: Index of the model that the client trains, 0 to K - 1.
        broadcast: The model that the client received, `[d]`.
        previous: The model that the client trained before, `[d]`.
        ensemble: All models at the beginning of the round, `[K, d]`.
        size: Number of training samples of the client.
        shared: This model's row of the tensor that the server sends for the loss (`LocalLoss.shared`).
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    steps: Tensor
    noise: Tensor
    client: Tensor
    model: Tensor
    broadcast: Tensor
    previous: Tensor
    ensemble: Tensor
    size: Tensor
    shared: Tensor


Gradient = Callable[[Tensor, LaneBatch], tuple[Tensor, Tensor]]  # parameters `[p]` -> gradient `[p]`, mean loss
SampleGradients = Callable[[Tensor, LaneBatch], Tensor]  # parameters `[p]` -> `[B, p]`


class Gradients(NamedTuple):
    """The functions that compute the gradients of one lane. A lane is one client that trains.

    Attributes:
        step: A function that takes parameters `[p]` and a batch. It returns the gradient `[p]` and the mean loss of the
            batch, and updates the network's buffers.
        again: A function that returns the same values as `step`, but does not change the buffers.
        samples: A function that takes parameters `[p]` and a batch, and returns the gradient of each sample, `[B, p]`.
    """

    step: Gradient
    again: Gradient
    samples: SampleGradients


def last_layer(layout: Layout) -> str:
    """Returns the name of the last module that owns trainable tensors."""
    return layout.names[layout.trainable_tensors - 1].rpartition(".")[0]


@contextmanager
def watching_features(net: Net, wanted: bool) -> Iterator[Watched]:
    """Returns a context with a list, into which every forward pass writes the inputs of the network's last layer.

    If `wanted` is false, nothing is written.

    Example:
        The features of a network are the inputs of its last layer.

        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (2,), 3, "cross_entropy", hidden=[4])
        >>> with watching_features(net, True) as watched:
        ...     _ = net.module(torch.ones(5, 2))
        ...     read_features(net, watched).shape
        torch.Size([5, 4])
    """
    watched: Watched = []

    def watch(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        watched[:] = arguments[:1]

    handle = net.module.get_submodule(last_layer(net.layout)).register_forward_pre_hook(watch) if wanted else None
    try:
        yield watched
    finally:
        if handle is not None:
            handle.remove()


def read_features(net: Net, watched: Watched) -> Tensor:
    """Returns the f features (inputs of the last layer) of the newest forward pass, `[B, f]`, and empties `watched`.

    Raises:
        BadInput: The last layer was not called.
    """
    if not watched:
        name = last_layer(net.layout)
        raise BadInput(f"model.name = {net.name}: its forward does not call the layer {name!r}, so it has no features")
    return watched.pop().flatten(1)


class LaneCode(NamedTuple):
    """The network and the settings of local training with a method's or user's code.

    Attributes:
        net: The network.
        block: The block of lanes. Only its settings are used, and none of its tensors.
        watched: The list from `watching_features`. It holds the inputs of the last layer in the newest forward pass.
    """

    net: Net
    block: Block
    watched: Watched

    @property
    def round(self) -> int:
        """The round, from 0."""
        return 0 if self.block.reading is None else self.block.reading.round

    def forward(self, row: Tensor, x: Tensor) -> Tensor:
        """Returns the outputs of a fixed model `[d]`, such as the broadcast model, in evaluation mode."""
        self.net.module.eval()
        out: Tensor = functional_call(self.net.module, self.net.layout.views(row), (x,))
        self.net.module.train()
        return out


def compute_loss(code: LaneCode, answer: Callable[[Tensor], Tensor], batch: LaneBatch) -> Tensor:
    """Returns the mean loss of a batch. If `Local.loss` is set, it replaces the network's loss.

    `answer` is the forward pass of the model. It takes inputs `[n, ...]` and returns outputs `[n, C]`.
    """
    out = answer(batch.x)
    loss, objective = code.block.local.loss, partial(per_sample, code.net.objective)
    check_outputs(code.net, out, len(batch.x), " in training", heads=loss is not None and method.HEADS in loss.reads)
    if loss is None:
        return (objective(out, batch.y) * batch.weight).sum()
    features = read_features(code.net, code.watched) if "features" in loss.reads else None

    def see(row: Tensor) -> method.Seen:
        with torch.no_grad():
            seen = code.forward(row.detach(), batch.x)
        return method.Seen(seen, None if features is None else read_features(code.net, code.watched))

    context = method.LossContext(
        objective=objective,
        round=code.round,
        client=batch.client,
        model=batch.model,
        inputs=batch.x if "inputs" in loss.reads else None,
        features=features,
        network=answer if "network" in loss.reads else None,
        broadcast=see(batch.broadcast) if "broadcast" in loss.reads else None,
        previous=see(batch.previous) if "previous" in loss.reads else None,
        ensemble=torch.stack([see(row).outputs for row in batch.ensemble]) if method.ENSEMBLE in loss.reads else None,
        shared=None if loss.shared is None else batch.shared,
    )
    each = loss.function(out, batch.y, context)
    if not isinstance(each, Tensor) or each.shape != (len(out),) or not each.is_floating_point():
        raise BadInput(
            f"local.loss = {loss.name} returned {_name_form(each)} for {len(out)} rows: return one real number for "
            "each row, without their mean"
        )
    return (each * batch.weight).sum()


def read_lanes(block: Block) -> tuple[Tensor, ...]:
    """Returns the last seven fields of `LaneBatch` (from `client` on) for all W clients of a block, `[W, ...]` each.

    Models that no code uses have the shape `[W, 0]`.
    """
    local, n, start = block.local, len(block.start), block.start
    reads = () if local.loss is None else local.loss.reads
    first = torch.zeros(n, dtype=torch.int64, device=start.device)
    found = block.reading or method.Reading(0, first, first, start, start)
    nothing = start.new_zeros(n, 0)
    previous = found.broadcast if found.previous is None else found.previous
    return (
        found.client,
        found.model,
        found.broadcast if "broadcast" in reads else nothing,
        previous if "previous" in reads else nothing,
        nothing if found.ensemble is None else found.ensemble,
        torch.ones_like(first) if found.size is None else found.size,
        nothing if found.shared is None else found.shared,
    )


# ---------------------------------------------------------------------------------------------------------------------
# A step of local training with code: transformations of the gradient, and an optimizer of the user or of torch.

Advance = Callable[[Tensor, LaneBatch, int], Tensor]  # (parameters `[W, p]`, batches, step) -> losses `[W]`
Over = Callable[[Callable[..., Any]], Callable[..., Any]]  # a function of one lane -> the same function of all lanes
_NOISE = -1  # makes the random keys of noise differ from the keys of permutations


def make_advance(code: LaneCode, gradients: Gradients, over: Over, anchor: Tensor, offset: Tensor | None) -> Advance:
    """Returns a function that makes one step of all W lanes. A lane is one client that trains.

    The function takes the p parameters of each lane, `[W, p]`, the batches and the index of the step. It changes the
    parameters in place, and returns the losses `[W]`.

    Args:
        code: The network and the settings.
        gradients: The functions that compute the gradients of one lane.
        over: A function that turns a function of one lane into a function of all lanes.
        anchor: The parameters towards which each lane is pulled, `[W, p]`.
        offset: The vector that is added to the gradient of each lane, `[W, p]`. None means that nothing is added.
    """
    local, lr = code.block.local, code.block.lr
    terms = [anchor] if local.pull else [], [] if offset is None else [offset]
    complete, transform = make_complete(local, *terms), _make_transform(code, gradients, over)
    couple = code.block.couple
    placing = method.find_placing(_list_transforms(local))

    def place(now: Tensor, noise: Tensor) -> Tensor:
        assert placing is not None and placing.at is not None
        return _check_vector(placing.name, placing.at(now, noise), len(now))

    if local.step is None:
        optimize = make_optimizer(local, lr, *terms)
    elif not isinstance(local.step, method.Transform):
        optimize = _make_torch_step(local.step, code.net.layout, lr, complete)

    def advance(rows: Tensor, batch: LaneBatch, step: int) -> Tensor:
        lanes = len(batch.weight)
        now = rows[:lanes]
        g, loss = over(gradients.step)(now if placing is None else over(place)(now, batch.noise), batch)
        if local.gradient is not None:
            g = transform(local.gradient, g, now, batch, step)
        if couple is not None:
            g = couple(g, now)
        if isinstance(local.step, method.Transform):
            (g,) = complete([now], [g], lanes)
            now.sub_(transform(local.step, g, now, batch, step), alpha=lr)
        else:
            optimize([rows], [g], lanes)
        found: Tensor = loss
        return found

    return advance


def _make_transform(code: LaneCode, gradients: Gradients, over: Over) -> Callable[..., Tensor]:
    """Returns a function that transforms the gradients of W clients, `[W, p]`, by a user's or method's rule.

    The function takes the rule, the gradients, the parameters, the batches and the index of the step, and returns the
    new gradients. It keeps each rule's state between steps.
    """
    lr, t, states = code.block.lr, code.round, dict[int, Any]()

    def transform(rule: method.Transform, g: Tensor, now: Tensor, batch: LaneBatch, step: int) -> Tensor:
        def update(g: Tensor, state: Any, now: Tensor, batch: LaneBatch) -> tuple[Tensor, Any]:
            context = method.StepContext(
                round=t,
                client=batch.client,
                step=step,
                steps=batch.steps,
                lr=lr,
                rows=(batch.weight > 0).sum(),
                gradient_at=lambda p: gradients.again(p, batch)[0],
                sample_gradients=lambda p: gradients.samples(p, batch),
                noise=batch.noise[: _count_noise(rule, len(now))] if rule.noise else None,
                size=batch.size,
            )
            g, state = rule.update(g, state, now, context)
            return _check_vector(rule.name, g, len(now)), () if state is None else state

        if id(rule) not in states:
            states[id(rule)] = _copy_shared(over(rule.init)(now), now)
        kept = tree_map(lambda part: part[: len(now)] if isinstance(part, Tensor) else part, states[id(rule)])
        g, state = over(update)(g, kept, now, batch)
        states[id(rule)] = _copy_shared(state, now)
        return g

    return transform


def _copy_shared(state: Any, now: Tensor) -> Any:
    """Copies the tensors of a rule's state that share memory with the parameters.

    Without a copy these tensors would change, because the next step changes the parameters in place.

    Example:
        >>> now = torch.zeros(2)
        >>> start, _ = _copy_shared((now[:1], torch.ones(1)), now)
        >>> float(now.add_(1.0)[0] - start)
        1.0
    """
    live = now.untyped_storage().data_ptr()

    def copy(part: Any) -> Any:
        return part.clone() if isinstance(part, Tensor) and part.untyped_storage().data_ptr() == live else part

    return tree_map(copy, state)


def _check_vector(name: str, found: Any, p: int) -> Tensor:
    """Checks that the result of a user's function has one number for each of p parameters, and returns the result.

    Without the check, torch would silently broadcast a result of a different shape.
    """
    if not isinstance(found, Tensor) or found.shape != (p,):
        raise BadInput(
            f"local.optimizer = {name} returned {_name_form(found)}: return one number for each of {p:,} parameters"
        )
    return found


def _name_form(found: Any) -> str:
    """Describes a value in words: a tensor by its shape and type, any other value by the name of its Python type."""
    if not isinstance(found, Tensor):
        return name_type(found)
    return f"shape {list(found.shape)} of {str(found.dtype).removeprefix('torch.')}"


def _make_torch_step(factory: Callable[..., Any], layout: Layout, lr: float, complete: Complete) -> Step:
    """Makes a torch optimizer for one client, and returns a function that makes one step with it."""
    held: list[tuple[torch.optim.Optimizer, list[Tensor]]] = []

    def step(rows: Sequence[Tensor], grads: Sequence[Tensor], lanes: int | None) -> None:
        (g,) = complete(rows, grads, lanes)
        if not held:
            parts = [part.clone().requires_grad_() for part in layout.trained.views(rows[0][0]).values()]
            held.append((factory(parts, lr=lr), parts))
        optimizer, parts = held[0]
        for part, change in zip(parts, layout.trained.views(g[0]).values(), strict=True):
            part.grad = change.clone()
        optimizer.step()
        rows[0][0] = torch.cat([part.detach().reshape(-1) for part in parts])

    return step


def draw_noise(local: method.Local, keys: rng.Keys, step: int, like: Tensor) -> Tensor:
    """Draws standard normal random numbers for one step of W clients, `[W, p]`.

    If no code uses random numbers, the shape is `[W, 0]`.

    Example:
        The random numbers differ between clients and between steps.

        >>> import numpy as np
        >>> from fedray.core.method import Local, Transform, start_empty
        >>> noisy = Transform(start_empty, lambda g, state, p, context: (g + context.noise, state), noise=True)
        >>> keys, like = rng.keys(0, "example", np.arange(2)), torch.zeros(2, 3)
        >>> one, other = (draw_noise(Local(gradient=noisy), keys, step, like) for step in (0, 1))
        >>> one.shape, bool((one == other).any())
        (torch.Size([2, 3]), False)
    """
    number = max((_count_noise(rule, like.shape[-1]) for rule in _list_transforms(local) if rule.noise), default=0)
    if number == 0:
        return like.new_zeros(len(keys), 0)
    return torch.from_numpy(rng.normal(rng.fresh(rng.fresh(keys, _NOISE), step), number)).to(like)


def _list_transforms(local: method.Local) -> list[method.Transform]:
    """Returns the transformations of local training.

    The transformation of the gradient comes before the one that replaces the optimizer.
    """
    return [rule for rule in (local.gradient, local.step) if isinstance(rule, method.Transform)]


def _count_noise(rule: method.Transform, p: int) -> int:
    """Returns how many random numbers a transformation uses in a step if there are p parameters."""
    return p if rule.numbers is None else rule.numbers


# ---------------------------------------------------------------------------------------------------------------------
# Local training with code, one lane after another. It can train with every network, function and optimizer.

Buffers = dict[str, Tensor]


def train_client_loop(net: Net, block: Block) -> Trained:
    """Trains every lane (client) of a block, one after another.

    Example:
        One lane makes one step with torch's optimizer Adam.

        >>> import numpy as np
        >>> from fedray.core.method import Local
        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
        >>> x, y = torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, dtype=torch.int64)
        >>> block = Block(
        ...     net.init(0)[None], torch.zeros(1, 0), lambda lo, hi: (x[lo:hi], y[lo:hi]), torch.full((1, 1, 2), 0.5),
        ...     steps=np.ones(1, int), local=Local(step=torch.optim.Adam), lr=0.1, keys=np.arange(1), sample=3,
        ... )
        >>> change = train_client_loop(net, block).final - block.start
        >>> round(float(change.abs().max()), 3)
        0.1
    """
    block = block._replace(read=lru_cache(maxsize=1)(block.read))  # all lanes of a piece are read at once
    loss_reads = () if block.local.loss is None else block.local.loss.reads
    watching = watching_features(net, "features" in loss_reads)
    with torch.no_grad(), watching as watched, rng.generators_scope() as start:
        net.module.train()
        done = []
        for lane, key in enumerate(block.keys.tolist()):
            start(key)
            with rng.torch_scope(key, block.start.device):
                done.append(_train_lane(net, block, lane, watched))
    return Trained(*(torch.stack(column) for column in zip(*done, strict=True)))


def _train_lane(net: Net, block: Block, lane: int, watched: Watched) -> tuple[Tensor, Tensor, Tensor]:
    """Trains one client.

    Returns its trained model `[d]`, the model's integer buffers `[c]`, and the sum of its losses.
    """
    layout, p = net.layout, net.layout.trainable
    views = {name: view.clone() for name, view in layout.views(block.start[lane]).items()}
    buffers = {name: views[name] for name in list(views)[layout.trainable_tensors :]}
    buffers |= {name: count.clone() for name, count in zip(layout.counters, block.counters[lane], strict=True)}
    one = slice(lane, lane + 1)
    offset = None if block.offset is None else block.offset[one, :p]
    written = LaneCode(net, block, watched)
    advance = make_advance(written, _differentiate(written, buffers), _call_one, block.center[one, :p], offset)
    rows, steps, loss = block.start[one, :p].clone(), int(block.steps[lane]), block.start.new_zeros(())
    read = [part[one] for part in read_lanes(block)]
    for s, (x, y, weight, _) in enumerate(lane_batches(block, lane, last=False)):
        noise = draw_noise(block.local, block.keys[one], s, rows)
        count = torch.tensor([steps], device=rows.device)
        loss += advance(rows, LaneBatch(x[None], y[None], weight[None], count, noise, *read), s)[0]
    kept = [buffers[name].reshape(-1) for name in layout.names if name in buffers]
    counters = [buffers[name] for name in layout.counters]
    counted = torch.stack(counters) if counters else block.counters[lane]
    return torch.cat([rows[0], *kept]), counted, loss


def _call_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Converts a function of one client to a function of stacked clients. The stack must hold a single client."""

    def call(*arguments: Any) -> Any:
        found = function(*tree_map(lambda part: part[0] if isinstance(part, Tensor) else part, arguments))
        return tree_map(lambda part: part[None] if isinstance(part, Tensor) else part, found)

    return call


def _differentiate(written: LaneCode, buffers: Buffers) -> Gradients:
    """Returns the functions that compute the gradients of one client by autograd.

    The function `step` of the result changes `buffers` in place. The other functions do not change `buffers`.
    """
    net = written.net

    def differentiate(p: Tensor, batch: LaneBatch, held: Buffers) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = p.detach().clone().requires_grad_()
            tensors = {**net.layout.trained.views(leaf), **held}

            def descend(module: nn.Module) -> tuple[Tensor, Tensor]:
                loss = compute_loss(written, module, batch)
                return torch.autograd.grad(loss, leaf, materialize_grads=True)[0], loss.detach()

            found = call_with_tensors(net.module, tensors, descend)
        held.update((name, tensors[name].detach()) for name in held)
        return found

    def copy() -> Buffers:
        return {name: value.clone() for name, value in buffers.items()}

    def samples(p: Tensor, batch: LaneBatch) -> Tensor:
        rows = range(len(batch.x))
        each = [batch._replace(x=batch.x[i : i + 1], y=batch.y[i : i + 1], weight=p.new_ones(1)) for i in rows]
        return torch.stack([differentiate(p, row, copy())[0] for row in each])

    return Gradients(
        step=lambda p, batch: differentiate(p, batch, buffers),
        again=lambda p, batch: differentiate(p, batch, copy()),
        samples=samples,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Local training with code for all lanes together: every function of one client is mapped over the lanes of a block.


def train_client_lanes(net: Net, block: Block) -> Trained:
    """Trains every lane (client) of a block. Each step is one call for all lanes.

    The network must have no buffers. `torch.func.vmap` must be able to map its module and all code in local training.

    Example:
        If the loss is halved, the models change half as much.

        >>> import numpy as np
        >>> from fedray.core.method import LocalLoss
        >>> from fedray.core.method import Local
        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
        >>> x, y = torch.ones(1, 2, 2, 3), torch.zeros(1, 2, 2, dtype=torch.int64)
        >>> def train(factor):
        ...     loss = LocalLoss(lambda outputs, targets, context: factor * context.objective(outputs, targets))
        ...     start = torch.stack([net.init(0), net.init(1)])
        ...     block = Block(
        ...         start, torch.zeros(2, 0), lambda lo, hi: (x[lo:hi], y[lo:hi]), weight=torch.full((1, 2, 2), 0.5),
        ...         steps=np.ones(2, int), local=Local(lr=0.1, loss=loss), lr=0.1, keys=np.arange(2), sample=3,
        ...     )
        ...     return train_client_lanes(net, block).final - start
        >>> torch.allclose(train(1.0), 2 * train(0.5), atol=1e-6)
        True
    """
    loss_reads = () if block.local.loss is None else block.local.loss.reads
    with torch.no_grad(), quiet_fallbacks(), watching_features(net, "features" in loss_reads) as watched:
        net.module.train()
        rows, written = block.start.clone(), LaneCode(net, block, watched)
        advance = make_advance(written, _differentiate_lanes(written), vmap, block.center, block.offset)
        read, steps = read_lanes(block), torch.from_numpy(block.steps).to(rows.device)

        def take_step(x: Tensor, y: Tensor, weight: Tensor, s: int, lanes: int) -> Tensor:
            noise = draw_noise(block.local, block.keys[:lanes], s, rows)
            return advance(rows, LaneBatch(x, y, weight, steps[:lanes], noise, *(part[:lanes] for part in read)), s)

        def write(final: Tensor, a: int, b: int, _lanes: int) -> None:
            final[a:b] = rows[a:b]

        return train_lanes(block, take_step, write)


def _differentiate_lanes(written: LaneCode) -> Gradients:
    """Returns the functions that compute the gradients of one client by `torch.func`.

    `vmap` can map these functions over clients.
    """
    net = written.net

    def cost(p: Tensor, batch: LaneBatch) -> Tensor:
        tensors = net.layout.trained.views(p)
        return compute_loss(written, lambda x: functional_call(net.module, tensors, (x,)), batch)

    def samples(p: Tensor, batch: LaneBatch) -> Tensor:
        def one(p: Tensor, x: Tensor, y: Tensor, real: Tensor) -> Tensor:
            return cost(p, batch._replace(x=x[None], y=y[None], weight=real[None]))

        found: Tensor = vmap(grad(one), in_dims=(None, 0, 0, 0))(p, batch.x, batch.y, (batch.weight > 0).to(p.dtype))
        return found

    return Gradients(grad_and_value(cost), grad_and_value(cost), samples)


# ---------------------------------------------------------------------------------------------------------------------
# A trial whether code in local training can be mapped over lanes. Two lanes are trained together, and then one after
# another. The results must be the same.

_ROWS, _WIDTH, _STEPS = 3, 8, 2  # samples in a batch, samples in a padded batch, steps
_EVERY = 5  # lanes for which a trial has data; only some of these lanes are trained
_TOLERANCE = 1e-3  # relative to the change of the parameters


def mixes_targets(net: Net, local: method.Local) -> bool:
    """Returns whether a user's loss of one sample wrongly depends on the other samples of its batch.

    The function tests only losses for regression that use nothing but outputs and targets, and returns False for other
    losses. The usual mistake is that outputs are `[B, 1]` and targets `[B]`, so torch broadcasts both to `[B, B]`.
    """
    if local.loss is None or local.loss.reads or net.objective == "cross_entropy":
        return False
    numbers = torch.from_numpy(rng.normal(rng.keys(1, "code"), 2 * _WIDTH * net.outputs)).float()
    outputs, targets = numbers.view(2, _WIDTH, net.outputs)
    targets = targets[:, : net.outputs // 2] if net.objective == "gaussian_nll" else targets
    context = method.LossContext(partial(per_sample, net.objective), 0, torch.tensor(0), torch.tensor(0))
    try:
        whole, part = (local.loss.function(outputs[:n], targets[:n], context) for n in (_WIDTH, _ROWS))
    except Exception:  # a later trial with the network reports the error
        return False
    return part.shape == (_ROWS,) and not torch.allclose(whole[:_ROWS], part, rtol=1e-3, equal_nan=True)


def find_code_refusal(net: Net, example: Tensor, local: method.Local, models: int = 1) -> str | None:
    """Returns why `torch.func.vmap` cannot map a user's or method's code over clients. None means that `vmap` can.

    As a trial, two lanes are trained. `vmap` must be able to map the network itself. `example` is one network input,
    whose values do not matter. `models` is the number of models, K.

    Example:
        >>> from fedray.core.method import Local, LocalLoss
        >>> from fedray.models.nets import build_net
        >>> net = build_net("mlp", (2,), 3, "cross_entropy", hidden=[4])
        >>> alone = Local(loss=LocalLoss(lambda out, y, context: out.square().sum(-1)))
        >>> mixed = Local(loss=LocalLoss(lambda out, y, context: out[:, 0] * out.mean()))
        >>> find_code_refusal(net, torch.zeros(2), alone)
        >>> find_code_refusal(net, torch.zeros(2), mixed)
        'its loss, optimizer or network gives other numbers in lanes (rows of a batch that see each other, say)'
    """
    if local.step is not None and not isinstance(local.step, method.Transform):
        return "an optimizer of torch has no form over lanes"
    block = make_trial(net, example, local, [0, 1], models)
    try:
        with rng.watch_generators() as have_changed:
            lanes = train_client_lanes(net, block).final
            if have_changed():
                return DRAWS
    except Exception as error:  # broken code fails with the same error in the loop
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    loop = train_client_loop(net, block).final
    if not loop.isfinite().all():
        return None  # training diverges (perhaps because of `local.lr`), so there is nothing to compare
    change = 1e-6 + (loop - block.start).nan_to_num().abs().max()
    if not torch.allclose(lanes, loop, rtol=0.0, atol=float(_TOLERANCE * change), equal_nan=True):
        return "its loss, optimizer or network gives other numbers in lanes (rows of a batch that see each other, say)"
    return None


def make_trial(
    net: Net,
    example: Tensor,
    local: method.Local,
    lanes: list[int],
    models: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
) -> Block:
    """Returns a small block for a trial of an engine. Each of its lanes (clients) has two steps and padded batches.

    `lanes` holds the index of each lane, from 0 to 4. Lane w trains model w modulo `models`, and its batches depend
    only on w. `example` is one network input, whose values do not matter. `dtype` is the type of the models'
    parameters. The tensors are on the device of the network.
    """
    place, lane = next(net.module.parameters()).device, np.array(lanes)
    start = torch.stack([net.init(number) for number in lanes]).to(place, dtype)
    shape = (_STEPS, _EVERY, _WIDTH)
    inputs = make_inputs(example, int(np.prod(shape)), like=start, key=rng.keys(0, "code"))
    x = inputs.view(*shape, *example.shape)[:, lanes]
    if net.objective == "cross_entropy":
        y = torch.arange(_WIDTH, device=place).remainder(min(2, net.outputs)).expand(_STEPS, len(lanes), _WIDTH)
    else:
        targets = net.outputs // 2 if net.objective == "gaussian_nll" else net.outputs
        y = 0.1 * torch.ones(_STEPS, len(lanes), _WIDTH, targets, device=place, dtype=dtype)
    weight = torch.zeros(_STEPS, len(lanes), _WIDTH, device=place, dtype=dtype)
    weight[..., :_ROWS] = 1.0 / _ROWS
    loss, number = local.loss, torch.from_numpy(lane).to(place)
    every, shared = None, None
    if method.reads_ensemble(loss):
        every = torch.stack([net.init(k) for k in range(models)]).to(start).expand(len(lanes), -1, -1)
    if loss is not None and loss.example is not None:
        shared = loss.example.to(start).expand(len(lanes), *loss.example.shape)
    return Block(
        start=start,
        counters=torch.zeros(len(lanes), len(net.layout.counters), dtype=torch.int64, device=place),
        read=lambda lo, hi: (x[lo:hi], y[lo:hi]),
        weight=weight,
        steps=np.full(len(lanes), _STEPS),
        local=local,
        lr=local.lr_at(0),
        keys=rng.keys(0, "code", lane),
        sample=int(np.prod(example.shape)),
        reading=method.Reading(0, torch.zeros_like(number), number % models, start, start, every, shared=shared),
    )
