"""Chooses the engine (code that trains networks) for a network, and how many jobs are trained together.

A job is the training of one model by one client. Jobs that are trained together are the lanes of a block. The choice is
the same in every process.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedray.core import sums
from fedray.core.errors import BadInput
from fedray.core.method import Local
from fedray.core.types import Lanes, Net
from fedray.models.network_checks import find_mixing
from fedray.training import client_code, compiled, layers, loop
from fedray.training.block import MIN_LANES, Block, Trained
from fedray.training.chain import Recognized, recognize
from fedray.training.client_code import make_trial, train_client_lanes, train_client_loop

# ---------------------------------------------------------------------------------------------------------------------
# A user's network may be any module. `chain.py` finds out which layers its `forward` applies. The engines `mlp`,
# `conv`, `vmap` and `loop` are tried in this order. The first engine that computes exactly what the network computes is
# chosen. `docs/explanation/engines.md` has measurements.

LANE_FLOATS = {"cpu": 600_000, "cuda": 1 << 28}  # parameters of all lanes together; these 2.4 MB fit in a core's cache
KERNEL_FLOATS = 1_000_000  # the same limit for compiled kernels, which train one lane after another
LOOP_NUMBERS = 1 << 20  # input values that the loop engine reads at once for several jobs: about 4 MB
MOST_LANES = {"cpu": 256, "cuda": 4096}
COMPILED = ("mlp-c", "conv-c")  # engines of compiled kernels; they return deltas if `Block.wants_change` is true
SHAREABLE = ("mlp", "conv", *COMPILED)  # engines that never write into the module, so that threads may share it
SLOWER = "times slower than"  # words in an engine's reason if a rewritten module could have a faster engine
VMAP_FLOATS = 50_000  # with more parameters, autograd over lanes is slower than one lane after another
MLP_FLOATS = 400_000  # largest number of parameters for the engine `mlp`


@dataclass(frozen=True)
class Engine:
    """The engine that was chosen for a network.

    Attributes:
        name: Name of the engine: "mlp-c" or "conv-c" (compiled), "mlp", "conv", "vmap" or "loop".
        width: Largest number of lanes (clients in training) that are computed together. A width of 1 means that lanes
            are trained one after another.
        why: The reason for the choice. `fedray check` and the run's manifest show it.
        train: A function that takes the network and a block of lanes. It trains the block, and returns the result
            (`Trained`).
        outputs: A function that returns the outputs of M models, `[M, n, C]`. It takes the network, the models `[M,
            d]`, their integer buffers `[M, c]` and the inputs `[M, n, ...]`.
        min_lanes: Smallest number of lanes in a step. If a block has fewer lanes, a lane is trained twice.
        jobs: If `width` is 1, the largest number of lanes in a block.
        evaluates: Code that computes `outputs`: `compiled` (C functions) or `torch`.
    """

    name: str
    width: int
    why: str
    train: Callable[[Net, Block], Trained]
    outputs: Callable[[Net, Tensor, Tensor, Tensor], Tensor]
    min_lanes: int = MIN_LANES
    jobs: int = 1
    evaluates: str = "torch"

    @property
    def calls_module(self) -> bool:
        """Whether `outputs` calls the network's own module, for one model after another."""
        return self.outputs is loop.loop_outputs


def choose_engine(
    net: Net,
    device: str = "cpu",
    example: Tensor | None = None,
    *,
    lanes: Lanes = "torch",
    local: Local | None = None,
    drops: bool = False,
    models: int = 1,
    couples: bool = False,
) -> Engine:
    """Chooses the engine (code that trains many clients together) for a network.

    Args:
        net: The network.
        device: Kind of the device, "cpu" or "cuda".
        example: One network input. A user's module is called with this input, to find out which layers the module
            applies. Without an input, the module is trained as it is.
        lanes: Whether compiled C functions (kernels) may train (`auto`), must train (`compiled`) or must not train
            (`torch`).
        local: The settings of local training. None means plain SGD.
        drops: Whether dropout stays on in predictions. If so, torch computes the predictions.
        models: Number of models, K.
        couples: Whether each step of a model depends on all K models of the client.

    Raises:
        BadInput: `lanes` is `compiled`, but no compiled kernel can train the network.

    Example:
        >>> from fedray.models.nets import build_net
        >>> engine = choose_engine(build_net("mlp", (4,), 3, "cross_entropy", hidden=[8]))
        >>> engine.name, engine.width, engine.why
        ('mlp', 256, 'linear layers only, 67 parameters')
    """
    covered = local is None or (local.optimizer in ("sgd", "adam") and not local.nesterov)  # by compiled kernels
    engine = _choose_any(net, device, example, lanes if covered else "torch")
    if local is not None and (local.has_code or couples):
        engine = _choose_for_code(net, device, example, engine, local=local, models=models, couples=couples)
    if lanes == "compiled" and engine.name not in COMPILED:
        library = sums.load_library()
        if device != "cpu":
            why = "compiled kernels run on CPUs"
        elif isinstance(library, str):
            why = library
        elif local is not None and not covered:
            why = f"no compiled kernel has local.{'nesterov' if local.nesterov else f'optimizer = {local.optimizer}'}"
        else:
            why = f"no compiled kernel covers the network {net.name} ({engine.name} would train it: {engine.why})"
        raise BadInput(f"lanes = compiled: {why}; or choose auto")
    return replace(engine, outputs=loop.loop_outputs, evaluates="torch") if drops else engine


def _choose_any(net: Net, device: str, example: Tensor | None, lanes: Lanes) -> Engine:
    """Chooses the engine that trains a network, with or without a compiled kernel."""
    engine = _choose_plain(net, device, lanes)
    if engine is not None:
        return engine
    found = None if example is None else recognize(net, tuple(example.shape), example.dtype)
    if isinstance(found, Recognized):
        engine = _choose_plain(found.net, device, lanes)
        if engine is not None and found.drops and engine.name not in COMPILED:
            drops, why = found.drops, "it has dropout, which only the compiled kernels have for several lanes"
            engine = _loop_engine(net.layout.d, why)  # dropout masks are those of a kernel
            return replace(engine, train=lambda _, block: loop.train_loop(net, block._replace(drops=drops)))
        if engine is not None:
            return _train_recognized(engine, found)
        if device == "cpu" and layers.read_shape(found.net.module) is not None:
            faster = "; compiled kernels are faster, with lanes auto, and local.optimizer adam, or sgd without nesterov"
            return _choose_general(net, device, example, faster)
        found = "has layers in an order, or with options, that the faster engines do not have"
    return _choose_general(net, device, example, "" if found is None else f"; its forward {found}{_name_faster(net)}")


def _choose_plain(net: Net, device: str, lanes: Lanes) -> Engine | None:
    """Chooses the engine for a network of linear layers and convolutions. Returns None for any other network."""
    if not layers.has_plain_layers(net):
        return None
    d, may_compile = net.layout.d, lanes != "torch" and device == "cpu" and sums.is_available()
    if may_compile and compiled.find_mlp_kernel(net) is not None:
        why = f"linear layers only, {d:,} parameters, compiled"
        width = _choose_width(d, device, KERNEL_FLOATS)
        return Engine("mlp-c", width, why, compiled.train_compiled, layers.mlp_outputs, 1)
    if layers.read_shape(net.module) is not None and d <= MLP_FLOATS * (1 if device == "cpu" else 64):
        width = _choose_width(d, device)
        return Engine("mlp", width, f"linear layers only, {d:,} parameters", layers.train_mlp, layers.mlp_outputs)
    if layers.split_net(net.module) is not None:
        channels = layers.find_max_channels(net.module)
        stages = compiled.find_stages(net.module)
        if may_compile and not isinstance(stages, str):
            why = f"plain convolutions of at most {channels} channels, compiled"
            width = _choose_width(d, device, KERNEL_FLOATS)
            return Engine("conv-c", width, why, compiled.train_compiled, compiled.run_kernel, 1, evaluates="compiled")
        width, why = layers.choose_lanes(channels, device), f"plain convolutions of at most {channels} channels"
        if width == 1:
            why = f"convolutions of {channels} channels fill the processor by themselves: one lane at a time"
        if may_compile:
            why += f"; the compiled kernel does not have {stages}"
        return Engine("conv", width, why, layers.train_conv, layers.conv_outputs)
    return None


def _train_recognized(engine: Engine, found: Recognized) -> Engine:
    """Returns an engine for a user's module, in which `engine` trains the module's plain layers, `found.net`.

    Models are converted to the parameter order of `found.net` and back.
    """

    def train(_net: Net, block: Block) -> Trained:
        anchor, offset = (None if rows is None else found.to_plain(rows) for rows in (block.anchor, block.offset))
        plain = block._replace(start=found.to_plain(block.start), anchor=anchor, offset=offset, drops=found.drops)
        trained = engine.train(found.net, plain)
        return trained._replace(final=found.from_plain(trained.final))

    def outputs(_net: Net, rows: Tensor, counters: Tensor, x: Tensor) -> Tensor:
        return found.finish_outputs(engine.outputs(found.net, found.to_plain(rows), counters, x))

    return replace(engine, train=train, outputs=outputs)


def _choose_general(net: Net, device: str, example: Tensor | None, unread: str, most: float = VMAP_FLOATS) -> Engine:
    """Chooses `vmap` or `loop`, the engines for networks of any layers.

    `vmap` is chosen only if the network has at most `most` parameters (64 times as many on a GPU). `unread` is appended
    to the reason for the choice.
    """
    d, obstacle = net.layout.d, _find_obstacle(net, device)
    if obstacle is not None or d > most * (1 if device == "cpu" else 64):
        return _loop_engine(d, (obstacle or f"{d:,} parameters a lane are too many to stack") + unread)
    refused = None if example is None else loop.find_refusal(net, example)
    if refused is not None:
        return _loop_engine(d, f"it cannot be mapped over lanes ({refused}){unread}")
    mixing = None if example is None else find_mixing(net, example, training=True)
    if mixing is not None:
        return _loop_engine(d, mixing + unread)
    why = f"a functional module of {d:,} parameters{unread}"
    return Engine("vmap", _choose_width(d, device), why, loop.train_vmap, loop.loop_outputs)


def _choose_for_code(
    net: Net, device: str, example: Tensor | None, plain: Engine, *, local: Local, models: int, couples: bool
) -> Engine:
    """Chooses the engine for local training with a user's or method's code.

    `plain` is the engine for the network without such code.
    """
    what, general = "its local training is code", plain
    if couples or plain.name not in ("vmap", "loop"):
        general = _choose_general(net, device, example, "", math.inf if couples else VMAP_FLOATS)
    refused = general.why if general.name == "loop" else None
    if refused is None and example is not None:
        refused = client_code.find_code_refusal(net, example, local, models)
    if refused and couples:
        raise BadInput(f"model.name = {net.name} cannot move together with others: {refused}: choose another one")
    if refused is not None:
        return replace(_loop_engine(net.layout.d, f"{what}; {refused}"), train=train_client_loop)
    width = max(general.width, models * couples)
    engine = replace(general, why=f"{what}, mapped over lanes", train=train_client_lanes, width=width)
    return replace(engine, outputs=plain.outputs, evaluates=plain.evaluates)


def _choose_width(d: int, device: str, floats: int | None = None) -> int:
    """Returns how many models of d parameters are trained together.

    The number is at least 2. If it is larger, these models together have at most `floats` parameters. If `floats` is
    None, the limit depends on the device.
    """
    return max(MIN_LANES, min(MOST_LANES[device], (floats or LANE_FLOATS[device]) // max(1, d)))


def _loop_engine(d: int, why: str) -> Engine:
    """Returns the engine `loop` for a network of d parameters. `why` says why no other engine is chosen."""
    jobs = max(1, LANE_FLOATS["cpu"] // d)
    return Engine("loop", 1, why, loop.train_loop, loop.loop_outputs, jobs=jobs)


def _name_faster(net: Net) -> str:
    """Returns a text that says which form of a network would train faster.

    The text is '' if layers other than linear layers and convolutions have parameters.
    """
    kinds = {type(part) for part in net.module.modules() if part._parameters}
    if kinds == {nn.Linear}:
        return f": about 10 {SLOWER} Linear with ReLU or Tanh, one after another"
    if kinds == {nn.Conv2d, nn.Linear}:
        return f": about 4 {SLOWER} Conv2d, ReLU, Tanh and pooling, then Flatten and Linear, one after another"
    return ""


def _find_obstacle(net: Net, device: str) -> str | None:
    """Returns why `torch.func.vmap` cannot or should not train a network. None means that there is no such reason."""
    if net.layout.counters or net.layout.trainable < net.layout.d:
        kept = (*net.layout.names[net.layout.trainable_tensors :], *net.layout.counters)
        read = [net.module.get_submodule(name.rpartition(".")[0]) for name in kept]
        if any(isinstance(layer, nn.modules.batchnorm._NormBase) for layer in read):
            return "it keeps buffers (BatchNorm's running statistics, say)"
        return f"it keeps the buffer {kept[0]}; a constant of persistent=False is not sent, nor in the way of lanes"
    for part in net.module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            return "it draws random numbers (dropout)"
        if isinstance(part, nn.RNNBase):
            return "recurrent layers have no batched form over lanes"
        if device == "cpu" and isinstance(part, nn.modules.conv._ConvNd):
            return "convolutions that are mapped over lanes are slower than one lane after another"
    if device == "cpu" and any(len(shape) > 3 for shape in net.layout.shapes):
        return "what looks like kernels of convolutions is slower over lanes than one lane after another"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# A check that the bits of a lane's results do not depend on other lanes.

_RATE = 0.001  # at this rate wide networks with large weights stay finite


def check_invariance(
    net: Net, engine: Engine, local: Local, example: Tensor, *, dtype: torch.dtype, models: int = 1
) -> bool:
    """Returns whether five models get the same bits in one block of 5 lanes and in blocks of 2 and 3 lanes.

    For an engine that trains one model after another, the result is True without a trial. `example` is one network
    input, `dtype` is the type of the models' parameters, and `models` is the number K of a run's models.

    Example:
        >>> from fedray.models.nets import build_net
        >>> from fedray.training.choice import choose_engine
        >>> net = build_net("mlp", (4,), 3, "cross_entropy", hidden=[8])
        >>> check_invariance(net, choose_engine(net), Local(), torch.zeros(4), dtype=torch.float32)
        True
    """
    if engine.width == 1:
        return True

    def train(lanes: list[int]) -> Tensor:
        block = make_trial(net, example, local, lanes, models, dtype=dtype)
        final = engine.train(net, block._replace(lr=_RATE)).final
        return final.view(torch.int64 if dtype == torch.float64 else torch.int32)  # NaN equals itself

    whole = train(list(range(5)))
    return all(torch.equal(train(group), whole[group]) for group in ([0, 1], [2, 3, 4], [1, 4]))
