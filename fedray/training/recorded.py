"""Steps of the loop as CUDA graphs: the host starts a step as one piece.

A step of ResNet-18 with batch 16 is some four hundred kernels, which keep a GPU busy for 2 to 5 ms; to start them one
after another takes the host 6 to 10. So the step of a lane is recorded once and replayed: the same kernels in the same
order, and so the same bits. The lanes that follow, also in later blocks, are trained in the same tensors and replay the
same record (`loop.py` keeps it). Only what is known to do the same in every step is recorded: networks of torch's and
torchvision's own layers that draw no random numbers and ask the GPU nothing, and SGD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import torch
from torch import Tensor, nn

from fedray.core.method import Local
from fedray.training.trace import find_changed_call

AS_WRITTEN = 2  # steps before the recorded one: libraries choose their algorithms, and momentum begins at zeros
_KNOWN = ("torch.nn.modules.", "torchvision.models.")
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_LAST: list[torch.cuda.CUDAGraph] = []  # the newest graph, kept for its memory, which the next one takes over
TakeStep = Callable[[Tensor, Tensor, Tensor, bool], None]  # (inputs, targets, weights, whether weights are alike)


def can_record(module: nn.Module, local: Local, device: torch.device) -> bool:
    """Whether the steps of a lane may be recorded.

    Args:
        module: The network.
        local: How it trains: Adam counts its steps on the host.
        device: Where it trains.
    """
    if device.type != "cuda" or local.optimizer != "sgd":
        return False
    return find_changed_call(module) is None and all(map(_is_alike_in_all_steps, module.modules()))


def _is_alike_in_all_steps(part: nn.Module) -> bool:
    """Whether what a layer does is known, and the same in every step, without a question of the host's to the GPU."""
    if not type(part).__module__.startswith(_KNOWN) or isinstance(part, _RANDOM):
        return False
    if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None:  # a step's weight is 1 / its number
        return False
    draws = bool(getattr(part, "drop_rate", 0))  # dropout of torchvision's DenseNet, which is no layer
    return not draws and getattr(part, "max_norm", None) is None  # an embedding that looks for rows that are too long


@contextmanager
def recording_stream(device: torch.device, wanted: bool) -> Iterator[None]:
    """A block that runs on a stream on which steps can be recorded, if that is wanted."""
    if not wanted:
        yield
        return
    before, stream = torch.cuda.current_stream(device), _stream_of(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:  # after a failure, too, memory that the steps still read is used again
        before.wait_stream(stream)


@lru_cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """One stream a device: memory that it frees is used again only behind its `wait_stream`."""
    made: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return made


class RecordedStep:
    """Calls a step, and replays it where the batch is full; within `recording_stream`."""

    def __init__(self, step: TakeStep, batch: int) -> None:
        """Takes the step and the rows of a full batch."""
        self._step, self._batch = step, batch
        self._before = AS_WRITTEN
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()

    def __call__(self, x: Tensor, y: Tensor, weight: Tensor, alike: bool) -> None:
        """One step."""
        given = (x, y, weight)
        if self._before or len(x) < self._batch or not alike:
            self._before = max(0, self._before - 1)
            self._step(*given, alike)
            return
        if not self._inputs:
            self._inputs = tuple(part.clone() for part in given)
            self._graph = self._record()
        if self._graph is None or list(map(_form, given)) != list(map(_form, self._inputs)):
            self._step(*given, alike)
            return
        for own, part in zip(self._inputs, given, strict=True):
            own.copy_(part)
        self._graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph | None:
        """The step on its own inputs; nothing is computed. None where torch cannot record it."""
        graph, (x, y, weight) = torch.cuda.CUDAGraph(), self._inputs
        try:
            graph.capture_begin(pool=_LAST[0].pool() if _LAST else None)
            self._step(x, y, weight, True)
            graph.capture_end()
        except BaseException as error:  # `client_timeout`, say; a stream that stays recording computes nothing any more
            with suppress(RuntimeError):
                graph.capture_end()
            if isinstance(error, RuntimeError):
                return None
            raise
        _LAST[:] = [graph]
        return graph


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    """What a recorded step takes for given."""
    return tensor.shape, tensor.dtype
