"""A user's own Python objects, passed beside a scenario.

Example:
    >>> from torch import nn
    >>> UserObjects(model=lambda: nn.Linear(4, 2)).data is None  # the data set is the one the scenario names
    True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fedray.core.errors import BadInput, FedrayError
from fedray.data.types import Dataset
from fedray.methods import Composition
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import describe_exception, find_user_line
from fedray.scenario import names
from fedray.scenario.schema import Scenario
from fedray.simulation.devices import Devices
from fedray.simulation.study import Study


@dataclass(frozen=True)
class UserObjects:
    """A user's own Python objects, passed beside the scenario; they replace what the scenario names.

    Attributes:
        data: the data set.
        model: a function that makes an `nn.Module`.
        method: a function from `Setting` to `Method`.
        modules: modules that each process imports first (`fedray run --import`).
        rates: the learning rate of each world; empty where the scenario's own holds.
        grid: learning rates; every world is trained with each of them (`fedray.experiments.learning_rates`).
        devices: the simulated devices; None means those of the tiers and of the trace.
    """

    data: Dataset | None = None
    model: Any = None
    method: Composition | None = None
    modules: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    grid: tuple[float, ...] = ()
    devices: Devices | None = None

    def shipped(self, study: Study) -> UserObjects:
        """These objects with the data set and the devices as read here: other nodes may lack the files."""
        return replace(self, data=study.shards.data, devices=study.devices)

    def named(self) -> dict[str, str | None]:
        """What a scenario calls each object, by its section; None where there is none."""
        known = {
            "data": None if self.data is None else self.data.name,
            "model": None if self.model is None else name_callable(self.model),
            "method": None if self.method is None else name_callable(self.method),
        }
        return {key: None if name is None else _printable(name) for key, name in known.items()}


def record_objects(scenario: Scenario, own: UserObjects) -> Scenario:
    """The scenario with the Python objects in place of what it names, as a run directory keeps it.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> from torch import nn
        >>> recorded = record_objects(read_scenario({}), UserObjects(model=nn.Identity))
        >>> recorded.model.object, recorded.data.object
        ('torch.nn.modules.linear.Identity', None)
    """
    names = own.named()
    if names["data"] is not None:
        named = replace(scenario.data, name=names["data"], object=names["data"], options={}, root=None)
        scenario = replace(scenario, data=named)
    if names["model"] is not None:
        made = replace(scenario.model, name=names["model"], object=names["model"], options={})
        scenario = replace(scenario, model=made)
    if names["method"] is not None:
        scenario = replace(scenario, method=replace(scenario.method, object=names["method"]))
    return scenario


def require_objects(scenario: Scenario, own: UserObjects) -> None:
    """Refuses a scenario of a run that was started with Python objects, where one of them is not given.

    Raises:
        BadInput: names the object and what to do.
    """
    for key, name in own.named().items():
        wanted = getattr(scenario, key).object
        if wanted is not None and name is None:
            raise BadInput(
                f"{key}.object = {wanted}: this run was started with a Python object as its {key}: pass the same "
                f"{key}= to fedray.resume or fedray.load"
            )


def refuse_objects(scenario: Scenario, own: UserObjects) -> None:
    """Refuses Python objects that would take the place of what a run was started with.

    Raises:
        BadInput: names the object and what the run was started with.
    """
    for key, name in own.named().items():
        section = getattr(scenario, key)
        if name is not None and section.object is None:
            raise BadInput(f"{key}= was given, but the run was started with {key}.name = {section.name}: leave it out")


def explain_own_objects(error: Exception, scenario: Scenario, own: UserObjects) -> FedrayError | None:
    """One line about an exception of a run with a user's own objects; errors of fedray stay as they are.

    Args:
        error: what was raised.
        scenario: what is run.
        own: the user's Python objects.

    Returns:
        None where no object is the user's, or where a disk or the memory is full.
    """
    if isinstance(error, FedrayError):
        return error
    mine = [_describe_object(kind, scenario, own) for kind in ("data", "model", "method")]
    line = find_user_line(error)
    if not any(mine) or (line is None and isinstance(error, OSError | MemoryError)):
        return None
    told = FedrayError(f"{', '.join(filter(None, mine))}: {describe_exception(error)}")
    told.__cause__ = error
    return told


@contextmanager
def explaining_own_objects(scenario: Scenario, own: UserObjects) -> Iterator[None]:
    """Raises what `explain_own_objects` says in place of an exception of the block.

    Args:
        scenario: what is run.
        own: the user's Python objects.
    """
    try:
        yield
    except Exception as error:
        told = explain_own_objects(error, scenario, own)
        if told is None or told is error:
            raise
        raise told from error


def _describe_object(kind: names.NameKind, scenario: Scenario, own: UserObjects) -> str | None:
    """What messages call the user's object of a kind; None where fedray's is used."""
    section = getattr(scenario, kind)
    name = own.named()[kind] or (section.name if names.is_own(kind, section.name) else None)
    return None if name is None else f"method {name}" if kind == "method" else f"{kind}.name = {name}"


def _printable(name: str) -> str:
    """A name that a scenario can hold."""
    return "".join(c if c.isprintable() else "?" for c in name)[:1000] or "unnamed"
