"""Joining a Ray cluster that is there. Whatever is wrong is one line, within seconds: Ray itself would try for minutes.

Example:
    >>> join_cluster("127.0.0.1:1")
    Traceback (most recent call last):
    fedray.core.errors.BadInput: --address 127.0.0.1:1: nobody answers there: start Ray there, or leave it out
"""

from __future__ import annotations

import logging

import ray
from ray._private import services
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, without types
from ray.exceptions import AuthenticationError, RayError

from fedray.core.errors import BadInput
from fedray.runtime import addresses, environment
from fedray.runtime.ray.switches import is_verbose, keep_quiet, listen_on_network, mute_stderr, own_job


def join_cluster(address: str) -> None:
    """Connects this process to a cluster.

    Args:
        address: `HOST:PORT` of its head node, or `auto`: the cluster that this machine belongs to.

    Raises:
        BadInput: It cannot be reached.
    """
    named = addresses.name_address(address)
    environment.prepare_process()
    listen_on_network(True)
    place = _find_here() if address == "auto" else address
    if not addresses.answers(place, addresses.ANSWER_SECONDS):
        what = f"this machine belongs to {place}, where nobody answers" if address == "auto" else "nobody answers there"
        raise BadInput(f"{named}: {what}: start Ray there, or leave it out")
    try:
        with mute_stderr():
            GcsClient(address=place)  # a token that is missing is said at once; `ray.init` would try for 20 s
        with keep_quiet():
            ray.init(address=place, job_config=own_job(), log_to_driver=is_verbose(), configure_logging=False)
    except AuthenticationError:
        raise BadInput(
            f"{named}: this cluster wants a token, and another one or none was sent: set RAY_AUTH_MODE=token, and copy "
            "the cluster's ~/.ray/auth_token to this machine"
        ) from None
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        ray.shutdown()
        why = " ".join(str(error).split())[:200]
        raise BadInput(f"{named}: {why}: start Ray there first") from error


def _find_here() -> str:
    """`HOST:PORT` of the cluster that this machine belongs to, as Ray notes it at its start."""
    quiet = logging.getLogger(services.__name__)
    before = quiet.level
    quiet.setLevel(logging.ERROR)  # of several Rays here the newest is taken
    try:
        found = services.canonicalize_bootstrap_address("auto")
    except (ConnectionError, ValueError, OSError):
        found = None
    finally:
        quiet.setLevel(before)
    if found is None:
        named = addresses.name_address("auto")
        raise BadInput(f"{named}: no Ray runs on this machine: start one (`ray start --head`), or leave it out")
    return str(found)
