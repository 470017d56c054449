"""Tensors that a state keeps of past rounds, beside what the method itself keeps.

Example:
    >>> import torch
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> method = build_study(read_scenario({"method": {"name": "fedavg"}, "clients": {"number": 3}})).method
    >>> def count(t, state, plan, loss):
    ...     return state._replace(extra={**state.extra, "jobs": state.extra["jobs"] + len(loss)})
    >>> phase = keep_in_state(method, {"jobs": lambda: torch.zeros(1)}, count).phase
    >>> state = State(torch.zeros(1, 2), torch.zeros(1, 0), phase.server.init(torch.zeros(1, 2)))
    >>> phase.remember(0, state, None, [0.5, 0.25]).extra["jobs"].tolist()
    [2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from fedray.core.method import Method, Remember
from fedray.core.types import FloatArray, Plan, State, Stats


def keep_in_state(method: Method, first: Mapping[str, Callable[[], Tensor]], write: Remember) -> Method:
    """The method with further tensors in its state.

    Args:
        method: any method with a server.
        first: makes each tensor before the first round, by its name. The method's own functions do not see them.
        write: the state with these tensors after a round; it comes after what the method remembers by itself.
    """
    phase = method.phase

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**phase.server.init(models), **{name: make() for name, make in first.items()}}

    def hide(state: State) -> State:
        return state._replace(extra={name: value for name, value in state.extra.items() if name not in first})

    def carry(before: State, after: State) -> State:
        return after._replace(extra={**after.extra, **{name: before.extra[name] for name in first}})

    def step(state: State, stats: Stats, t: int) -> State:
        return carry(state, phase.server.step(hide(state), stats, t))

    def remember(t: int, state: State, plan: Plan, loss: FloatArray) -> State:
        own = state if phase.remember is None else carry(state, phase.remember(t, hide(state), plan, loss))
        return write(t, own, plan, loss)

    server = phase.server._replace(init=init, step=step)
    return replace(method, phase=replace(phase, server=server, remember=remember))
