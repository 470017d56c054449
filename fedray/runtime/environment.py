"""Settings of a worker process that must be made before its first tensor product: threads, matrix products, memory."""

from __future__ import annotations

import ctypes
import math
import os
import socket
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.core.errors import BadInput

if TYPE_CHECKING:
    from fedray.core.types import Tier
    from fedray.scenario.clients import TierKeys

_TRIM_THRESHOLD, _MOST_MAPS = -1, -4  # malloc.h
# STRICT: a batched product gives each lane the same bits whatever the batch (MKL's conditional numerical
# reproducibility). The settings of malloc keep freed arrays in the process, those above 32 MB too: the kernel zeroes
# every page that it hands out, which was half of the processor time of 100 models of 159,000 numbers.
WORKER = {
    "MKL_CBWR": "AUTO,STRICT",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS adds in one order, whatever stream a product runs on
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "RAY_USAGE_STATS_ENABLED": "0",
}
PATIENCE_VARIABLE = "FEDRAY_PATIENCE"
PARTS_VARIABLE = "FEDRAY_PARTS"


def read_patience() -> float:
    """Seconds to wait for an actor of Ray before giving up.

    Raises:
        BadInput: The variable is no positive number.
    """
    return _read_number(PATIENCE_VARIABLE, "1800", "a positive number of seconds")


def read_share() -> int:
    """Into how many parts a cluster is divided, of which a run that fills it takes one.

    Raises:
        BadInput: The variable is no number from 1.
    """
    return max(1, int(_read_number(PARTS_VARIABLE, "1", "a number of runs from 1")))


def _read_number(variable: str, default: str, what: str) -> float:
    text = os.environ.get(variable, default)
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:  # NaN is refused too
        raise BadInput(f"{variable} = {text[:100]}: give {what}, or unset it")
    return number


def prepare_process() -> None:
    """Sets the variables of `WORKER` for this process and its children, and reads `FEDRAY_PATIENCE` once.

    MKL reads its variables at its first product. malloc has read the environment before Python started, so its two
    settings are made by a call (glibc only).

    Raises:
        BadInput: `FEDRAY_PATIENCE` is no positive number: said before anything is begun.
    """
    read_patience()
    for name, value in WORKER.items():
        os.environ.setdefault(name, value)
    if sys.platform == "linux":
        tune = getattr(ctypes.CDLL(None), "mallopt", None)
        if tune is not None:
            tune(_MOST_MAPS, 0)
            tune(_TRIM_THRESHOLD, 2**31 - 1)


def enter_folder(folder: str) -> None:
    """Makes a directory the working one, if it is there: relative paths mean what they mean to the driver."""
    if folder and Path(folder).is_dir():
        os.chdir(folder)


def use_one_thread() -> None:
    """Limits torch to one thread: parallelism comes from lanes and processes."""
    import torch

    torch.set_num_threads(1)


def count_gpus() -> int:
    """GPUs of this machine that torch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_machine(tiers: Sequence[Tier], gpus: int) -> None:
    """Refuses tiers that ask for what this machine lacks: more GPUs than it has, or custom resources of Ray.

    Args:
        tiers: The tiers of the clients.
        gpus: GPUs of this machine.

    Example:
        >>> from fedray.core.types import Tier
        >>> check_machine([Tier("phones", 10, num_gpus=0.5)], gpus=1)
    """
    elsewhere = "on a cluster that has it, give --address"
    for tier in (tier for tier in tiers if tier.number):
        if tier.num_gpus > gpus:
            raise BadInput(
                f"clients.tiers.{tier.name}.num_gpus = {tier.num_gpus:g}, but this machine has {gpus} GPUs: "
                f"set it to 0, or {elsewhere}"
            )
        if tier.resources:
            raise BadInput(
                f"clients.tiers.{tier.name}.resources names {', '.join(tier.resources)}, which this machine lacks: "
                f"leave it out, or {elsewhere}"
            )


def device_of(gpus: float, device: str = "auto", *, tf32: bool = False) -> str:
    """Returns the torch device of a process: `cuda` if it holds a GPU or a share of one, and is to use it; else `cpu`.

    Args:
        gpus: The GPU, or the share of it, that the process holds; 0 for none.
        device: `clients.device`: `cpu` leaves a GPU alone.
        tf32: `clients.tf32`: whether products and convolutions there round their inputs to 10 bits.

    Raises:
        BadInput: torch sees no GPU, or TF32 is asked of one that is too old for it.
    """
    import torch

    if device == "cpu":
        return "cpu"
    if gpus > 0 and not torch.cuda.is_available():
        raise BadInput(f"clients.tiers.NAME.num_gpus = {gpus:g}, but torch sees no CUDA device here: set it to 0")
    if gpus > 0:
        if tf32 and torch.cuda.get_device_capability() < (8, 0):  # before Ampere CUDA ignores the switch
            raise BadInput(f"clients.tf32 = true, but {torch.cuda.get_device_name()} has no TF32: leave it out")
        _fix_cuda_arithmetic(tf32)
    return "cuda" if gpus > 0 else "cpu"


def limit_gpu_memory(gpus: float) -> None:
    """Keeps a process that holds a share of a GPU to that share of its memory, so that it cannot take its neighbors'.

    What the driver of CUDA itself takes in each process, some hundred MB, comes on top.

    Args:
        gpus: The share of one GPU.
    """
    import torch

    if 0 < gpus < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(gpus)


def pretend_gpus(tiers: Iterable[Tier | TierKeys], device: str) -> int | None:
    """GPUs that a Ray on this machine is said to have, where none is used; None: those that it has.

    Args:
        tiers: The tiers of the clients.
        device: `clients.device`.

    Example:
        >>> from fedray.core.types import Tier
        >>> pretend_gpus([Tier("phones", 9), Tier("servers", 1, num_gpus=0.25)], "cpu")
        1
    """
    return sum(bool(tier.num_gpus) for tier in tiers) if device == "cpu" else None


def _fix_cuda_arithmetic(tf32: bool) -> None:
    """Makes CUDA add in one order, and compute in full float32 unless TF32 is asked for.

    By torch's defaults convolutions round their inputs to 10 bits (TF32) and may add gradients by atomics, so that two
    equal runs end in different bits. So do some operations of a user's own modules; one that knows no other way says so
    in a warning of torch.
    """
    import torch

    with warnings.catch_warnings():  # torch 2.9 advises fp32_precision, which earlier releases lack
        warnings.filterwarnings("ignore", "Please use the new API settings")
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
    if getattr(torch.backends, "fp32_precision", None) is not None:  # it would decide where cuDNN's flag is False
        for part in ("conv", "rnn"):
            getattr(torch.backends.cudnn, part).fp32_precision = "tf32" if tf32 else "ieee"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads it


# ---------------------------------------------------------------------------------------------------------------------
# Addresses of Ray clusters: which one is meant, and whether somebody answers there.
#
# `--address` comes first, then Ray's own variable RAY_ADDRESS, which `ray job submit` sets. With neither of them a
# Ray is started here.

VARIABLE = "RAY_ADDRESS"
LOCAL = "local"  # Ray's own word for one that is started here
ANSWER_SECONDS = 5.0


def find_address(runtime: str, address: str | None) -> str | None:
    """Finds the cluster on which a scenario runs; None: Ray is started here, or is not used.

    Args:
        runtime: of the scenario.
        address: that of `--address`; None: none was given.

    Raises:
        BadInput: an address was given for what runs in this process, or it is of a kind that fedray cannot join.

    Example:
        >>> find_address("ray", "10.0.0.1:6379")
        '10.0.0.1:6379'
    """
    refuse_unused_address(runtime, address)
    if runtime == "inline":
        return None
    wanted = address or os.environ.get(VARIABLE) or LOCAL
    host, _, port = wanted.rpartition(":")
    if wanted not in ("auto", LOCAL) and not (host and port.isdigit() and "/" not in wanted):
        raise BadInput(
            f"{name_address(wanted)}: give HOST:PORT of the head node, or auto on a machine of the cluster (and no "
            "dashboard, nor Ray Client)"
        )
    return None if wanted == LOCAL else wanted


def refuse_unused_address(runtime: str, address: str | None) -> None:
    """Refuses the address of a cluster for what runs in this process; RAY_ADDRESS is for whoever uses Ray.

    Args:
        runtime: of the scenario.
        address: that of `--address`; None: none was given.

    Example:
        >>> refuse_unused_address("inline", "auto")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: --address auto, but runtime = inline, which uses no cluster: leave it out, or ...
    """
    if address is not None and runtime == "inline":
        raise BadInput(
            f"--address {address}, but runtime = inline, which uses no cluster: leave it out, or set runtime=ray"
        )


def name_address(address: str) -> str:
    """Returns what messages call an address: as it was given.

    Example:
        >>> name_address("10.0.0.1:6379")
        '--address 10.0.0.1:6379'
    """
    return f"{VARIABLE} = {address}" if os.environ.get(VARIABLE) == address else f"--address {address}"


def answers(address: str, seconds: float = 2.0) -> bool:
    """Whether something listens at `host:port`.

    Args:
        address: the address.
        seconds: how long an answer may take.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, OverflowError):
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# The nodes and resources of a cluster that a run waits for before it begins (`--wait-for`).


def read_awaited(text: str) -> dict[str, float]:
    """Reads amounts of resources by name: `CPU`, `GPU`, custom ones, and `nodes`.

    Args:
        text: `NAME=AMOUNT`, several with commas.

    Raises:
        BadInput: The text is of another form, or names something twice.

    Example:
        >>> read_awaited("hpc=32,lpc=8")
        {'hpc': 32.0, 'lpc': 8.0}
    """
    awaited: dict[str, float] = {}
    for part in text.split(","):
        name, _, amount = (word.strip() for word in part.partition("="))
        try:
            number = float(amount)
        except ValueError:
            number = 0.0
        if not name or name in awaited or not 0 < number < math.inf:  # NaN is refused too
            raise BadInput(f"--wait-for {text[:100]}: give NAME=AMOUNT, several with commas, as in hpc=32,lpc=8")
        awaited[name] = number
    return awaited


def write_awaited(awaited: Mapping[str, float]) -> str:
    """Returns the text of `--wait-for`.

    Example:
        >>> write_awaited({"hpc": 32.0, "GPU": 0.5})
        'hpc=32,GPU=0.5'
    """
    return ",".join(f"{name}={amount:g}" for name, amount in awaited.items())


def refuse_unused_wait(awaited: Mapping[str, float] | None, address: str | None) -> None:
    """Refuses to wait for nodes where there is no cluster.

    Args:
        awaited: Amounts by name; None: nothing is waited for.
        address: Of the cluster.

    Example:
        >>> refuse_unused_wait({"hpc": 32.0}, None)
        Traceback (most recent call last):
        fedray.core.errors.BadInput: --wait-for waits for the nodes of a cluster: give its --address, or leave it out
    """
    if awaited and address is None:
        raise BadInput("--wait-for waits for the nodes of a cluster: give its --address, or leave it out")
