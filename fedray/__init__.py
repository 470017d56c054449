"""fedray: a Ray-distributed simulator of ensemble federated learning.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 2, "clients": {"number": 10}}, runtime="inline")
    >>> run.rounds.num_rows
    3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedray.core.version import __version__

__all__ = ["BadInput", "FedrayError", "Prediction", "Run", "__version__", "load", "register", "resume", "run"]

if TYPE_CHECKING:
    from fedray.api import Prediction, Run, load, resume, run
    from fedray.assembly.registry import register
    from fedray.core.errors import BadInput, FedrayError


def __getattr__(name: str) -> Any:
    """Loads the API (and torch with it) when it is first used."""
    if name in ("BadInput", "FedrayError"):
        from fedray.core import errors

        return getattr(errors, name)
    if name in __all__:
        from fedray.runtime.environment import prepare_process

        prepare_process()
        from fedray import api
        from fedray.assembly import registry

        return getattr(registry if name == "register" else api, name)
    raise AttributeError(f"module 'fedray' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return __all__
