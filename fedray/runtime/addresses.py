"""Addresses of Ray clusters: which one is meant, and whether somebody answers there.

`--address` comes first, then Ray's own variable RAY_ADDRESS, which `ray job submit` sets. With neither of them a Ray is
started here.

Example:
    >>> find_address("ray", "10.0.0.1:6379")
    '10.0.0.1:6379'
"""

from __future__ import annotations

import os
import socket

from fedray.core.errors import BadInput

VARIABLE = "RAY_ADDRESS"
LOCAL = "local"  # Ray's own word for one that is started here
ANSWER_SECONDS = 5.0


def find_address(runtime: str, address: str | None) -> str | None:
    """The cluster on which a scenario runs; None: Ray is started here, or is not used.

    Args:
        runtime: of the scenario.
        address: that of `--address`; None: none was given.

    Raises:
        BadInput: an address was given for what runs in this process, or it is of a kind that fedray cannot join.
    """
    refuse_unused_address(runtime, address)
    if runtime == "inline":
        return None
    wanted = address or os.environ.get(VARIABLE) or LOCAL
    _refuse_kind(wanted)
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
    """What messages call an address: as it was given.

    Example:
        >>> name_address("10.0.0.1:6379")
        '--address 10.0.0.1:6379'
    """
    return f"{VARIABLE} = {address}" if os.environ.get(VARIABLE) == address else f"--address {address}"


def _refuse_kind(address: str) -> None:
    """Refuses what is no address of a cluster's head node."""
    if address.startswith("ray://"):
        raise BadInput(
            f"{name_address(address)}: this is Ray Client, from a machine outside of the cluster, where no run can be "
            "kept: run fedray on a machine of the cluster with --address auto, or submit it as a job"
        )
    if address.startswith(("http://", "https://")):
        raise BadInput(
            f"{name_address(address)}: this is a dashboard, to which jobs are submitted (RAY_API_SERVER_ADDRESS): "
            "give HOST:PORT of the head node, or auto"
        )
    host, _, port = address.rpartition(":")
    if address not in ("auto", LOCAL) and not (host and port.isdigit()):
        raise BadInput(f"{name_address(address)}: give HOST:PORT of the head node, or auto")


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
