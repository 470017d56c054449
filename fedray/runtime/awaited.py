"""The nodes and resources of a cluster that a run waits for before it begins (`--wait-for`).

Example:
    >>> read_awaited("hpc=32,lpc=8")
    {'hpc': 32.0, 'lpc': 8.0}
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedray.core.errors import BadInput


def read_awaited(text: str) -> dict[str, float]:
    """Reads amounts of resources by name: `CPU`, `GPU`, custom ones, and `nodes`.

    Args:
        text: `NAME=AMOUNT`, several with commas.

    Raises:
        BadInput: The text is of another form, or names something twice.
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
    """The text of `--wait-for`.

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
    wrong = {name: amount for name, amount in (awaited or {}).items() if not 0 < amount < math.inf}
    if wrong:
        raise BadInput(f"wait_for = {wrong}: give amounts above 0")
