"""The methods whose K models belong to clusters of clients, as scenarios know them; without torch."""

from __future__ import annotations

from collections.abc import Mapping

from fedray.scenario.spec import MethodSpec

CLUSTER_SPECS: Mapping[str, MethodSpec] = {
    "ifca": MethodSpec(
        "IFCA: a client gets K models and trains the one of least loss on its rows (Ghosh et al. 2020)",
        defaults={"evaluate": {"personal": True}, "predict": {"gamma": 0.0}},  # a client's best model answers
        schedules=False,
        asks=True,
        in_rounds="lets clients choose among the models of a round",
    ),
    "fedem": MethodSpec(
        "FedEM: clients' data are mixtures of K components, which all of them train (Marfoq et al. 2021)",
        defaults={"server": {"weighting": "examples"}, "evaluate": {"personal": True}},
        schedules=False,
        own_models=True,
        all_models=True,
        asks=True,
        in_rounds="weighs samples by the models of a round",
        private="weights of the components",
    ),
}
