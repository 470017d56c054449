"""Measures trained models on their clients' samples. A client sends the measured values with its model.

The values depend only on the client's samples, its model and a random key.

Example:
    The first example counts the samples of each class. The second example computes the Fisher diagonal of a linear
    model with the squared loss. For any weights, the diagonal is the sum of the squared inputs.

    >>> count = ClientSums(lambda seen: torch.bincount(seen.targets, minlength=3), numbers=3)
    >>> count.function(SeenRows(None, None, None, torch.tensor([0, 2, 2]))).tolist()
    [1, 0, 2]
    >>> from fedray.models.net import net_of
    >>> net = net_of(lambda: nn.Linear(2, 1), "own", "half_mse", 1)
    >>> sum_curvature(net, net.init(0), torch.tensor([[1.0, 3.0], [2.0, 0.0]]), torch.zeros(2), "model").tolist()
    [5.0, 9.0, 2.0]
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import FORWARD, Piece
from fedray.core.types import EVALUATED_ROWS, FloatArray, IntArray, Net
from fedray.data.shards import read_clients
from fedray.models.net import factor_fisher, per_sample
from fedray.training.client_code import read_features, watching_features
from fedray.training.update import Site, Update

MAPPED_NUMBERS = 8 << 20  # total length of the gradients that are computed at a time: 32 MB of float32


class Measure(Piece):
    """The base class of `Curvature` and `ClientSums`, which measure a model after its training."""

    calls_module = True


@dataclass(frozen=True)
class Curvature(Measure):
    """Measures the diagonal of the Fisher information of a trained model on the client's samples.

    The diagonal is a mean over samples, `[d]`. The kind `model` has the mean of `sum_y p(y | x, w) (d log p(y | x, w) /
    dw)^2`. The kind `empirical` has the mean square of the loss's gradient at the true label. Without samples, the
    diagonal is 0.

    Attributes:
        kind: `model` or `empirical`.
        rows: Number of samples that each client draws anew in each round. None means all samples.
    """

    kind: Literal["model", "empirical"] = "model"
    rows: int | None = None

    up_vectors = 1

    def count_rows(self, net: Net, size: FloatArray) -> FloatArray:
        rows: FloatArray = size if self.rows is None else np.minimum(size, self.rows)
        return rows * (FORWARD + (1 - FORWARD) * count_gradients(net, self.kind))

    def end(self, update: Update) -> Update:
        site, plan, models = update.site, update.real.plan, update.models()
        found = torch.zeros_like(models[: len(plan.client)])
        turns = np.broadcast_to(update.real.turn(update.t), len(plan.client)).tolist()
        for j, (client, world) in enumerate(zip(plan.client.tolist(), plan.world.tolist(), strict=True)):
            place = self._draw_rows(site, turns[j], client, world)
            total = torch.zeros(models.shape[1], dtype=torch.float64, device=models.device)
            for x, y in _read_rows(site, client, world, place):
                total += sum_curvature(site.net, models[j], site.to_device(x), site.to_device(y), self.kind)
            found[j] = total / max(1, len(place))
        return update._replace(beside=found)

    def _draw_rows(self, site: Site, t: int, client: int, world: int) -> IntArray:
        """Draws which samples of a client are used. Returns their indices in ascending order."""
        size = int(site.shards.sizes(np.array([world]), np.array([client]))[0])
        if self.rows is None or self.rows >= size:
            return np.arange(size)
        key = rng.keys(int(site.seeds[world]), "curvature", t, client)
        return np.sort(rng.permutations(key, size)[: self.rows])


class SeenRows(NamedTuple):
    """Some samples of a client, and the trained model's outputs for these samples in evaluation mode.

    Attributes:
        inputs: Inputs of the network, `[n, ...]`.
        features: The f inputs of the network's last layer, `[n, f]`.
        outputs: Raw outputs of the network, `[n, C]`.
        targets: True classes `[n]`, or q standardized targets for each sample, `[n, q]`.
    """

    inputs: Any
    features: Any
    outputs: Any
    targets: Any


@dataclass(frozen=True)
class ClientSums(Measure):
    """Computes sums over a client's training samples. FedProto, for example, sums the features of each class.

    The sum is 0 for a client without samples.

    Attributes:
        function: A function that takes some samples (`SeenRows`) and returns the sum over them, `[numbers]`. The
            function is called for parts of the client's samples, and the results are added. Before the first part, the
            global random generators are seeded with the job's random key.
        numbers: Length of the sum. Each job sends the sum as float32.
    """

    function: Callable[[SeenRows], Tensor]
    numbers: int

    @property
    def up_numbers(self) -> int:
        return self.numbers

    def count_rows(self, net: Net, size: FloatArray) -> FloatArray:
        return FORWARD * size

    def end(self, update: Update) -> Update:
        """Computes the sum over the samples of each job. The client sends the sum with its delta.

        Raises:
            BadInput: The function did not return a tensor of length `numbers`.
        """
        site, net, plan, models = update.site, update.site.net, update.real.plan, update.models()
        total = torch.zeros(len(plan.client), self.numbers, dtype=torch.float64, device=models.device)
        sizes = site.shards.sizes(plan.world, plan.client).tolist()
        keys = rng.keys(site.seeds[plan.world], "measure", update.real.turn(update.t), plan.client, plan.model).tolist()
        net.module.eval()
        with torch.no_grad(), watching_features(net, True) as watched, rng.generators_scope() as start:
            for j, (client, world) in enumerate(zip(plan.client.tolist(), plan.world.tolist(), strict=True)):
                start(keys[j])
                buffers = dict(zip(net.layout.counters, update.counters[j], strict=True))
                named = {**net.layout.views(models[j]), **buffers}
                for x, y in _read_rows(site, client, world, np.arange(sizes[j])):
                    inputs = site.to_device(x)
                    outputs = functional_call(net.module, named, (inputs,))
                    seen = SeenRows(inputs, read_features(net, watched), outputs, site.to_device(y))
                    found = self.function(seen)
                    if getattr(found, "shape", None) != (self.numbers,):
                        raise BadInput(f"ClientSums: its function must return a tensor of {self.numbers:,} numbers")
                    total[j] += found.double().to(total.device)
        return update._replace(beside=total.to(models.dtype))


def _read_rows(site: Site, client: int, world: int, place: IntArray) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields inputs and targets of a client's samples, at most 500 at a time.

    `place` holds the indices of the samples, `[n]`.
    """
    (x, y), where = read_clients(site.shards, world, [client]), torch.tensor([world])
    scaling = site.shards.scaling
    for some in torch.split(torch.from_numpy(place), EVALUATED_ROWS) if len(place) else []:
        yield scaling.normalize(x[some][None], where)[0], scaling.targets(y[some][None], where)[0]


# ---------------------------------------------------------------------------------------------------------------------
# The diagonal of the Fisher information of a network on a client's samples, computed from gradients of single samples.
#
# Let J be the Jacobian of the outputs of a sample, and s_1, s_2, ... vectors whose outer products add up to the Fisher
# matrix of these outputs. The diagonal is the sum over j of `(J' s_j)^2`. For `empirical`, the only vector is the
# gradient of the loss. `torch.func.vmap` computes the gradients of many samples in one call. A module that `vmap` does
# not support is differentiated sample by sample.


def sum_curvature(net: Net, row: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """Returns the sum of the Fisher diagonals of n samples, `[d]` float64. The entries of float buffers are 0.

    `row` is the model, `[d]`, in evaluation mode. `x` are network inputs. `kind` is `model` or `empirical`, as in
    `Curvature`. Only `empirical` uses the targets `y`.
    """
    net.module.eval()
    total = row.new_zeros(net.layout.d, dtype=torch.float64)
    size = max(1, MAPPED_NUMBERS // (count_gradients(net, kind) * net.layout.d))
    maps = not any(isinstance(part, nn.RNNBase) for part in net.module.modules())
    for a in range(0, len(x), size):
        some = x[a : a + size], y[a : a + size]
        try:
            found = _map_samples(net, row, *some, kind) if maps else _differentiate_samples(net, row, *some, kind)
        except RuntimeError:  # a user's layer that `vmap` does not support
            found, maps = _differentiate_samples(net, row, *some, kind), False
        total[: net.layout.trainable] += found
    return total


def count_gradients(net: Net, kind: str) -> int:
    """Returns the number of gradients that the Fisher diagonal of one sample needs."""
    return net.outputs if kind == "model" else 1


def _find_vectors(net: Net, out: Tensor, y: Tensor, kind: str) -> Tensor:
    """Returns j vectors whose outer products add up to the Fisher matrix of one sample's outputs, `[j, outputs]`.

    `out` are the outputs, and `y` is the target.
    """
    if kind == "model":
        return factor_fisher(net.objective, out)
    slope: Tensor = grad(lambda one: per_sample(net.objective, one[None], y[None])[0])(out)
    return slope[None]


def _map_samples(net: Net, row: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """Returns the sum of the Fisher diagonals of some samples, `[p]` float64, computed in one call."""
    views = net.layout.views(row.detach())
    names = net.layout.names[: net.layout.trainable_tensors]
    parameters = {name: views[name] for name in names}

    def square(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out, pull = vjp(lambda given: functional_call(net.module, {**views, **given}, (x[None],))[0], parameters)[:2]
        (found,) = vmap(pull)(_find_vectors(net, out, y, kind))
        return {name: value.square().sum(0) for name, value in found.items()}

    with torch.no_grad():
        found = vmap(square)(x, y)
    return torch.cat([found[name].double().sum(0).reshape(-1) for name in names])


def _differentiate_samples(net: Net, row: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """Returns the sum of the Fisher diagonals of some samples, `[p]` float64, computed sample by sample."""
    total = row.new_zeros(net.layout.trainable, dtype=torch.float64)
    with torch.enable_grad():
        leaf, k = row.detach().clone().requires_grad_(), net.layout.trainable_tensors
        views = {
            name: view if i < k else view.detach() for i, (name, view) in enumerate(net.layout.views(leaf).items())
        }
        for i in range(len(x)):
            (out,) = functional_call(net.module, views, (x[i : i + 1],))
            for s in _find_vectors(net, out.detach(), y[i], kind):
                (found,) = torch.autograd.grad(out @ s, leaf, retain_graph=True)
                total += found[: net.layout.trainable].double().square()
    return total
