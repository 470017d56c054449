"""Checks of a user's own method that trains several architectures, before anything trains.

Example:
    >>> from types import SimpleNamespace
    >>> fit_parts(SimpleNamespace(parts=(1, 2)), None, "method mine")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: method mine: it has 2 parts, but setting.stack is None: return parts only where ...
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.core.method import Method, Phase
from fedray.models.stacking import Stack

NOT_OF_PARTS = (  # fields of a phase that nothing calls where it is one of several
    "private", "personal", "walk", "sizes", "steps", "remember", "choose", "mixture", "fitting", "ask",
)  # fmt: skip
NOT_BESIDE_PARTS = ("answer", "prepare", "one_model_per_client", "explain_end")  # of a method


def fit_parts(method: Method, stack: Stack | None, where: str) -> Method:
    """A method whose parts are the trainings of a scenario's networks, one of each; its phase is then the first part.

    Args:
        method: The user's own.
        stack: The networks; None: there is one, which is no part.
        where: How messages call the method.

    Raises:
        BadInput: The parts do not fit the networks, or have what parts cannot have.
    """
    if stack is None:
        if method.parts:
            raise BadInput(
                f"{where}: it has {len(method.parts)} parts, but setting.stack is None: return parts only where "
                "method.networks names networks"
            )
        return method
    if len(method.parts) != len(stack.bases):
        raise BadInput(
            f"{where}: it has {len(method.parts)} parts, but method.networks has {len(stack.bases)} networks: return "
            "parts=federated_each(setting), a phase of each"
        )
    for name in NOT_BESIDE_PARTS:
        if getattr(method, name):
            raise BadInput(f"{where}: {name} is not called beside parts, the mean of which answers: leave it out")
    for i, part in enumerate(method.parts):
        _check_part(part, f"{where}: parts[{i}]", stack.bases[i].models)
        if part.compress.own != method.parts[0].compress.own:
            raise BadInput(f"{where}: parts[{i}]: compress.own is not that of parts[0]: compress all parts alike")
    return replace(method, phase=method.parts[0])


def _check_part(part: Phase, where: str, models: int) -> None:
    """Refuses a phase that cannot be a part."""
    if part.models != models:
        raise BadInput(f"{where}: models = {part.models}: keep setting.models, {models}")
    for name in NOT_OF_PARTS:
        if getattr(part, name):
            raise BadInput(f"{where}: {name} is not read in a part: leave it out")
    if part.local.has_code or part.local.correction is not None:
        raise BadInput(
            f"{where}: local has a loss, a transformation or a correction, which parts cannot have: leave it out"
        )
