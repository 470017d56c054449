"""fedray: a Ray-distributed simulator of ensemble federated learning.

Example:
    >>> import fedray
    >>> run = fedray.run({"rounds": 2, "clients": {"number": 10}}, runtime="inline")
    >>> run.rounds.num_rows
    3
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "BadInput",
    "FedrayError",
    "Prediction",
    "Run",
    "SweepResult",
    "__version__",
    "compare",
    "load",
    "register",
    "resume",
    "run",
    "trainable",
    "tune",
]
_HOMES = {  # public names that are not in `api.py`, with their modules
    "register": "assembly.registry",
    "compare": "experiments.results",
    "tune": "tuning.tune",
    "SweepResult": "tuning.tune",
}
_PACKAGES = ("data", "methods")  # packages that have public names of their own

if TYPE_CHECKING:
    from fedray.api import Prediction, Run, load, resume, run, trainable
    from fedray.assembly.registry import register
    from fedray.core.errors import BadInput, FedrayError
    from fedray.experiments.results import compare
    from fedray.tuning.tune import SweepResult, tune


def __getattr__(name: str) -> Any:
    """Returns the public object that is called `name`.

    The module that defines the object is imported only now, because most modules import torch.
    """
    if name in ("BadInput", "FedrayError"):
        from fedray.core import errors

        return getattr(errors, name)
    if name in __all__ or name in _PACKAGES:
        from fedray.runtime.environment import prepare_process

        prepare_process()
        if name in _PACKAGES:
            return import_module(f"fedray.{name}")
        return getattr(import_module(f"fedray.{_HOMES.get(name, 'api')}"), name)
    raise AttributeError(f"module 'fedray' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names."""
    return __all__
