"""The network of a study, sized for its data.

Example:
    >>> from fedray.assembly.user_objects import UserObjects
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"model": {"name": "linear"}})
    >>> make_network(scenario, load_data("digits"), UserObjects(), worlds=1).layout.d  # 64 x 10 weights, 10 biases
    650
"""

from __future__ import annotations

from fedray.assembly import memory
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput
from fedray.core.types import Net, Objective
from fedray.data.types import Dataset
from fedray.models.catalogue import model_maker
from fedray.models.net import net_of
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario


def make_network(scenario: Scenario, data: Dataset, own: UserObjects, worlds: int) -> Net:
    """The network, sized for the data.

    Args:
        scenario: the scenario.
        data: the data set.
        own: the user's Python objects.
        worlds: worlds R, replicates x folds.

    Raises:
        BadInput: the network does not fit the data, or this machine cannot hold the models.
    """
    objective: Objective = scenario.model.objective  # type: ignore[assignment]
    if scenario.model.objective == "auto":
        objective = "cross_entropy" if data.classes else "mse"
    outputs = 2 * data.outputs if objective == "gaussian_nll" else data.outputs
    if (objective == "cross_entropy") != bool(data.classes):
        kind = "classes" if data.classes else "real targets"
        method = scenario.method.name
        if method_spec_of(method).defaults.get("model", {}).get("objective") == objective:
            raise BadInput(
                f"method.name = {method} has the objective {objective}, but {scenario.data.name} has {kind}: "
                "choose other data, or another method"
            )
        raise BadInput(f"model.objective = {objective}, but {scenario.data.name} has {kind}: leave it at auto")
    name, shape, options = scenario.model.name, data.input_shape, scenario.model.options
    if name == "rbf" and own.model is None:  # its centres are drawn, on any device
        memory.check_memory([*memory.estimate_scenario(scenario), memory.estimate_rbf(options["features"], shape)])
    make = own.model or model_maker(name, shape, outputs, **options)
    memory.check_network_memory(scenario, make, worlds)
    return net_of(make, "own" if own.model else name, objective, outputs)
