"""Settings that fedray makes in Ray before it starts or joins one: its address, what workers import, its messages."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray._private.worker as ray_worker
from ray._private import ray_constants
from ray.job_config import JobConfig

from fedray.process.ending import SIGNALS

log = logging.getLogger("fedray")


def listen_on_network(network: bool) -> None:
    """Makes Ray listen on the machine's network address, as the nodes of a cluster must, or on loopback only.

    On Linux Ray itself always chooses the network address, even if it serves one process. There is no other switch.
    """
    if sys.platform == "linux":
        os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = str(int(network))  # for the processes that Ray starts
        ray_constants.ENABLE_RAY_CLUSTER = network  # for this one, which read the variable when it imported Ray


def give_token() -> None:
    """Gives the Ray that starts next a token where it could not write one into a home directory, as it wants to."""
    if any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return
    try:
        folder = Path.home() / ".ray"
        if not (folder / "auth_token").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError
    except (OSError, RuntimeError):  # it is on a file system that is not writable, or there is none
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def own_job() -> JobConfig:
    """The job of a driver whose workers import from `worker_environment` alone.

    Ray would put the working directory first on their path, before the driver's own: a `fedray` folder in it, as in a
    checkout of the source, would take the place of the package that the driver runs.
    """
    return JobConfig(_client_job=True)


def is_verbose() -> bool:
    """Whether what a user's code prints in actors is shown: `--verbose`."""
    return log.isEnabledFor(logging.DEBUG)


@contextmanager
def mute_stderr() -> Iterator[None]:
    """Drops what is written to the standard error stream, also by Ray's C++ code, which no level of logging reaches."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def keep_quiet() -> Iterator[None]:
    """Keeps Ray from saying what a user cannot act on, and from taking the program's signals: when it starts and ends.

    Its C++ parts take SIGTERM then. Setting Python's own handlers again sets those of the system, too.
    """
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # its notice at every start
    if not is_verbose():
        untyped: Any = ray_worker
        untyped.print_to_stdstream = lambda *_, **__: None  # pages of its processes' logs, when one of them ends
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS} if main else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
