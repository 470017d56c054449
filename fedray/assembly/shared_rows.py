"""Rows of a server's tensor that a loss reads: what they look like, from the first models."""

from __future__ import annotations

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.core.local import SENT, LocalLoss
from fedray.core.method import Local, Method, Phase
from fedray.core.types import Net


def show_shared_rows(method: Method, net: Net | None, worlds: int) -> Method:
    """A method whose loss has an example of the row that it reads, by which engines try it and bytes are counted.

    Args:
        method: What is composed.
        net: Its network; None where clients fit learners.
        worlds: R.

    Raises:
        BadInput: Clients do not get the tensor, the server does not keep it, or it has no row for each model.
    """
    phase = method.phase
    loss = phase.local.loss
    if net is None or loss is None or loss.shared is None:
        return method
    name, number = _check_name(loss, phase), phase.models * worlds
    row = net.init(0)
    kept = phase.server.init(row.expand(number, -1).clone())
    if name not in kept:
        raise BadInput(
            f"local.loss = {loss.name} reads {name!r}, which the server of {method.name} does not keep: let Server.init"
            " return it, or leave shared out"
        )
    if kept[name].ndim < 2 or len(kept[name]) != number:
        raise BadInput(
            f"local.loss = {loss.name} reads {name!r} of shape {list(kept[name].shape)}: give it a row of numbers for "
            f"each of {number} models"
        )
    shown = loss._replace(example=kept[name][0].to(row.dtype))
    return replace(method, phase=_train_with(phase, shown))


def _check_name(loss: LocalLoss, phase: Phase) -> str:
    name = str(loss.shared)
    if not name.startswith(SENT):
        raise BadInput(f"local.loss = {loss.name} reads {name!r}: clients get what is called {SENT}...: name it so")
    if phase.walk is not None:
        raise BadInput(f"local.loss = {loss.name} reads {name!r}, but a random walk has no server: leave shared out")
    return name


def _train_with(phase: Phase, loss: LocalLoss) -> Phase:
    """A phase whose trainings have this loss."""

    def change(local: Local) -> Local:
        return replace(local, loss=loss)

    return replace(phase, local=change(phase.local), personal=tuple(change(one) for one in phase.personal))
