"""Prepares worker processes, finds the address of a Ray cluster, and manages the folders of local Ray clusters.

Below, *a Ray* is a Ray cluster that fedray itself starts on this machine.
"""

import ctypes
import fcntl
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.core.errors import BadInput, FedrayError
from fedray.files.plain import find_temporary

if TYPE_CHECKING:
    from fedray.core.types import Tier
    from fedray.scenario.sections import TierKeys

# ---------------------------------------------------------------------------------------------------------------------
# Settings of threads, matrix products and memory. A worker process applies them before its first matrix product.

_TRIM_THRESHOLD, _MOST_MAPS = -1, -4  # malloc.h
# With STRICT, the bits of a matrix in a batched product do not depend on the other matrices (MKL's conditional
# numerical reproducibility). The settings of malloc keep freed arrays in the process, also arrays above 32 MB.
# Otherwise the kernel zeroes every new page, which took half of the processor time of 100 models with 159,000
# parameters.
WORKER = {
    "MKL_CBWR": "AUTO,STRICT",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS adds in one order on every stream
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "RAY_USAGE_STATS_ENABLED": "0",
}
PATIENCE_VARIABLE = "FEDRAY_PATIENCE"
PARTS_VARIABLE = "FEDRAY_PARTS"


def read_patience() -> float:
    """Returns the number of seconds for which fedray waits for the reply of an actor of Ray (`FEDRAY_PATIENCE`).

    Raises:
        BadInput: `FEDRAY_PATIENCE` is not a positive number.
    """
    text = os.environ.get(PATIENCE_VARIABLE, "1800")
    if (number := _read_amount(text)) is None:
        raise BadInput(f"{PATIENCE_VARIABLE} = {text[:100]}: give a positive number of seconds, or unset it")
    return number


def read_run_count() -> int:
    """Returns the number of runs that share a cluster (`FEDRAY_PARTS`).

    Raises:
        BadInput: `FEDRAY_PARTS` is no whole number from 1.
    """
    text = os.environ.get(PARTS_VARIABLE, "1")
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"{PARTS_VARIABLE} = {text[:100]}: give the number of runs that share a cluster, or unset it")
    return int(text)


def _read_amount(text: str) -> float | None:
    """Returns the number in a text, or None if the text is not a finite number above 0."""
    with suppress(ValueError):
        return number if 0 < (number := float(text)) < math.inf else None
    return None


def prepare_process() -> None:
    """Sets the environment variables in `WORKER` for this process and its children, and checks `FEDRAY_PATIENCE`.

    These variables are about threads, matrix products and memory. A variable that is already set keeps its value.

    MKL reads its variables at the first matrix product of the process. malloc reads its variables before Python starts.
    In this process a function of glibc therefore sets the two options of malloc.

    Raises:
        BadInput: `FEDRAY_PATIENCE` is not a positive number.
    """
    read_patience()
    for name, value in WORKER.items():
        os.environ.setdefault(name, value)
    if sys.platform == "linux":
        glibc = ctypes.CDLL(None)
        glibc.mallopt(_MOST_MAPS, 0)
        glibc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def enter_folder(folder: str) -> None:
    """Makes `folder` the working directory if it exists.

    Relative paths then name the same files as in the process of the user's command.
    """
    if folder and Path(folder).is_dir():
        os.chdir(folder)


def use_one_thread() -> None:
    """Limits torch to one thread.

    fedray trains several jobs as one computation, and uses several processes instead of several threads.
    """
    import torch

    torch.set_num_threads(1)


def count_gpus() -> int:
    """Returns the number of GPUs of this machine that torch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_machine(tiers: "Sequence[Tier]", gpus: int) -> None:
    """Checks that this machine has enough GPUs for the tiers, and that no tier requires custom resources of Ray.

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
    """Returns the torch device of a process. It is `cuda` if the process reserves GPUs and may use them, else `cpu`.

    Args:
        gpus: Number of GPUs that the process reserves, possibly a fraction.
        device: Value of the key `clients.device`. If it is `cpu`, no GPU is used.
        tf32: Value of the key `clients.tf32`. If True, matrix products and convolutions on the GPU round the mantissas
            of their inputs to 10 bits.

    Raises:
        BadInput: The process reserves a GPU, but torch sees no GPU. Or `tf32` is True, and the GPU is too old for TF32.
    """
    import torch

    if device == "cpu":
        return "cpu"
    if gpus > 0 and not torch.cuda.is_available():
        raise BadInput(f"clients.tiers.NAME.num_gpus = {gpus:g}, but torch sees no CUDA device here: set it to 0")
    if gpus > 0:
        if tf32 and torch.cuda.get_device_capability() < (8, 0):  # GPUs before Ampere ignore the setting
            raise BadInput(f"clients.tf32 = true, but {torch.cuda.get_device_name()} has no TF32: leave it out")
        _fix_cuda_arithmetic(tf32)
    return "cuda" if gpus > 0 else "cpu"


def limit_gpu_memory(gpus: float) -> None:
    """Limits this process to the fraction `gpus` of a GPU's memory, if `gpus` is below 1.

    The limit does not include some hundred MB that the CUDA driver takes in each process.
    """
    import torch

    if 0 < gpus < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(gpus)


def pretend_gpus(tiers: "Iterable[Tier | TierKeys]", device: str) -> int | None:
    """Returns how many GPUs Ray on this machine should report, or None for the real number.

    If the device is `cpu`, no GPU is used. But the actors of a tier that reserves GPUs start only if Ray reports GPUs.

    Example:
        >>> from fedray.core.types import Tier
        >>> pretend_gpus([Tier("phones", 9), Tier("servers", 1, num_gpus=0.25)], "cpu")
        1
    """
    return sum(bool(tier.num_gpus) for tier in tiers) if device == "cpu" else None


def _fix_cuda_arithmetic(tf32: bool) -> None:
    """Makes CUDA add in a fixed order, and compute in full float32 unless `tf32` is True.

    By default, torch's convolutions round their inputs to 10 bits (TF32), and may add gradients in any order. Two equal
    runs could then end in different bits. If an operation of a user's module has no deterministic version, torch warns.
    """
    import torch

    with warnings.catch_warnings():  # torch 2.9 advises fp32_precision, which earlier releases lack
        warnings.filterwarnings("ignore", "Please use the new API settings")
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
    if getattr(torch.backends, "fp32_precision", None) is not None:  # this setting counts if allow_tf32 is False
        for part in ("conv", "rnn"):
            getattr(torch.backends.cudnn, part).fp32_precision = "tf32" if tf32 else "ieee"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads it


# ---------------------------------------------------------------------------------------------------------------------
# Network addresses of Ray clusters. `--address` takes precedence over Ray's own variable RAY_ADDRESS, which `ray job
# submit` sets. Without both, fedray starts Ray on this machine.

VARIABLE = "RAY_ADDRESS"
LOCAL = "local"  # Ray's own word for a cluster that is started on this machine
ANSWER_SECONDS = 5.0


def find_address(runtime: str, address: str | None) -> str | None:
    """Returns the network address of the cluster on which a scenario runs.

    It is None if the scenario does not run on Ray, or if fedray starts Ray on this machine. `address` is the value of
    `--address`, or None if it is not set.

    Raises:
        BadInput: `--address` is set for a scenario that does not run on Ray, or the address has a wrong form.

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
    """Raises an error if `--address` is set and the runtime does not use Ray.

    If only the variable RAY_ADDRESS is set, there is no error, because other programs may need this variable.

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
    """Returns an address for messages, with the name of the option or variable that set it.

    Example:
        >>> name_address("10.0.0.1:6379")
        '--address 10.0.0.1:6379'
    """
    return f"{VARIABLE} = {address}" if os.environ.get(VARIABLE) == address else f"--address {address}"


def answers(address: str, seconds: float = 2.0) -> bool:
    """Returns whether a process listens at the address `host:port`.

    The function waits at most `seconds` for a connection.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, OverflowError):
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# The nodes and resources for which a run waits before it begins (`--wait-for`).


def read_wait_for(text: str) -> dict[str, float]:
    """Reads the amounts of `CPU`, `GPU`, custom resources and `nodes` in the text of `--wait-for`.

    The text has pairs `NAME=AMOUNT`, separated by commas.

    Raises:
        BadInput: The text has a different form, or has a name twice.

    Example:
        >>> read_wait_for("hpc=32,lpc=8")
        {'hpc': 32.0, 'lpc': 8.0}
    """
    wait_for: dict[str, float] = {}
    for part in text.split(","):
        name, _, amount = (word.strip() for word in part.partition("="))
        number = _read_amount(amount)
        if not name or name in wait_for or number is None:
            raise BadInput(f"--wait-for {text[:100]}: give NAME=AMOUNT, several with commas, as in hpc=32,lpc=8")
        wait_for[name] = number
    return wait_for


def refuse_unused_wait(wait_for: Mapping[str, float] | None, address: str | None) -> None:
    """Raises an error if `--wait-for` is set without the address of a cluster.

    Example:
        >>> refuse_unused_wait({"hpc": 32.0}, None)
        Traceback (most recent call last):
        fedray.core.errors.BadInput: --wait-for waits for the nodes of a cluster: give its --address, or leave it out
    """
    if wait_for and address is None:
        raise BadInput("--wait-for waits for the nodes of a cluster: give its --address, or leave it out")


# ---------------------------------------------------------------------------------------------------------------------
# Session folders. Each Ray that fedray starts has its own folder, which holds its logs and sockets.
#
# The process that started the Ray locks the folder as long as it lives. All processes of the Ray have the folder's path
# in their environment. So fedray never removes files of a different user or of a run that is still going.

PREFIX = "fedray-ray-"  # beginning of the folders' names
LOCK = "lock"
MARK = "FEDRAY_RAY_SESSION"  # environment variable of Ray's processes with the path of the folder
PROCESSES = Path("/proc")
KILL_SECONDS = 5.0  # longest wait until killed processes are gone
ENDING_SECONDS = 10.0  # longest wait for the end of a Ray whose driver was killed


def session_place() -> Path:
    """Returns the directory in which the folders of local Ray clusters are made.

    It is RAY_TMPDIR, or else the system's temporary directory.
    """
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())


def session_places() -> list[Path]:
    """Returns all directories that may have folders of local Ray clusters."""
    return list(dict.fromkeys(path.absolute() for path in (session_place(), Path(tempfile.gettempdir()), Path("/tmp"))))


@contextmanager
def open_session(place: Path) -> Iterator[Path]:
    """Makes the folder of a local Ray cluster, and locks it during the `with` block. The caller removes the folder.

    Raises:
        FedrayError: The folder cannot be made in `place`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with open_session(Path(place)) as folder:
        ...         is_abandoned(folder), [found.name == folder.name for found in find_sessions([Path(place)])]
        (False, [True])
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place)).absolute()
        lock = (folder / LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise FedrayError(
            f"{place}: Ray cannot keep its files there ({error.strerror}): set RAY_TMPDIR to another directory"
        ) from None
    with lock:
        yield folder


def find_sessions(places: Sequence[Path]) -> list[Path]:
    """Returns the user's folders of running and ended local Ray clusters."""
    return find_temporary(places, PREFIX, LOCK)


def is_abandoned(folder: Path) -> bool:
    """Returns whether the process that made the folder of a local Ray cluster is gone.

    Processes of the cluster may still run for a moment.
    """
    try:
        with (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:  # the folder is locked or no longer exists
        return False


def wait_for_ends(folders: Sequence[Path]) -> list[Path]:
    """Waits at most 10 s for the end of local Ray clusters whose drivers (the processes that started them) are gone.

    Returns:
        The folders of the clusters that still run.
    """
    deadline = time.monotonic() + ENDING_SECONDS
    while (ending := [folder for folder in folders if session_processes(folder)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return ending


def session_processes(folder: Path) -> list[int]:
    """Returns the ids of all processes, workers included, of the local Ray cluster with this folder."""
    mark, found = f"{MARK}={folder}".encode(), []
    for path in PROCESSES.iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


def kill_session(folder: Path) -> None:
    """Kills all processes of the local Ray cluster with this folder, and waits at most 5 s for their end."""
    deadline = time.monotonic() + KILL_SECONDS
    while (pids := session_processes(folder)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove_session(folder: Path) -> None:
    """Removes the folder of a local Ray cluster that has ended.

    Tries again while threads of Ray in this process still write into the folder.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)


def measure_size(folder: Path) -> int:
    """Returns the total size in bytes of a folder and of all files in it."""
    size = 0
    for path in (folder, *folder.rglob("*")):
        with suppress(OSError):
            size += path.lstat().st_size
    return size
