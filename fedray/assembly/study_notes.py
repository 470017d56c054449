"""Warnings about a study before it trains; none of them stops the run."""

from __future__ import annotations

from fedray.assembly.devices import warn_of_left_tiers
from fedray.assembly.fens import warn_of_no_proxy_rows
from fedray.assembly.few_steps import warn_of_few_steps
from fedray.assembly.methods import warn_of_limits
from fedray.assembly.posterior_samples import warn_of_equal_samples
from fedray.assembly.unseen import warn_of_unseen_classes
from fedray.assembly.untrained import warn_of_untrained_models
from fedray.core.errors import warn_user
from fedray.core.types import EVALUATED_CLIENTS
from fedray.scenario.schema import Scenario
from fedray.simulation.stopping import WITHHELD, list_choosing_keys
from fedray.simulation.study import Study

OF_CLIENTS = ("column", "domain")  # partitions by a column that says whose a row is, or where it comes from


def warn_of_study(scenario: Scenario, study: Study) -> None:
    """Warns of everything that a study does less, or more, than its author may think.

    Args:
        scenario: what was asked for.
        study: what will train.
    """
    warn_of_strange_test_rows(study)
    warn_of_test_choices(study)
    warn_of_limits(study)
    warn_of_few_steps(study)
    warn_of_equal_samples(study)
    warn_of_no_proxy_rows(study)
    warn_of_left_tiers(scenario, study.clients)
    warn_of_partition_input(scenario, study)
    warn_of_unseen_classes(study)
    warn_of_untrained_models(scenario, study)


def warn_of_partition_input(scenario: Scenario, study: Study) -> None:
    """Warns of a column that says whose a row is and is an input too, unless `data.features` names it.

    Each client then has one value of that input, and a model can read from it whose row it answers.
    """
    partition, data = scenario.data.partition, study.shards.data
    if partition.name not in OF_CLIENTS or scenario.data.options.get("features") is not None:
        return
    column = partition.options.get("column", "domain")
    if data.table.get(column, ()) != ():
        warn_user(
            f"data.partition.column = {column} says whose a row is and is an input too: name the inputs in "
            f"data.features without {column}, or with it if the models may know it"
        )


def warn_of_test_choices(study: Study) -> None:
    """Warns where a round is to be chosen by the test rows, and says where withheld rows choose in their place."""
    for key, name in list_choosing_keys(study.evaluation).items():
        if name.startswith(WITHHELD):
            continue
        if study.hold_out:
            warn_user(f"{key} = {name} is read on the withheld rows (data.hold_out), as {WITHHELD}{name}")
        else:
            warn_user(
                f"{key} = {name} is read on the test rows, so that the score of the round that it chooses is too good: "
                "set data.hold_out = 0.1, say, and withheld rows choose"
            )


def warn_of_strange_test_rows(study: Study) -> None:
    """Warns where known clients are to be scored by test rows of their own, and no test row is of one of them."""
    method, known = study.method, range(min(study.clients.number, EVALUATED_CLIENTS))
    asked = study.evaluation.gamma is not None or method.one_model_per_client
    if not (asked or method.phase.is_personal or method.phase.mixture):
        return
    own = (study.shards.client_test(world, client) for world in range(study.worlds) for client in known)
    if all(rows is not None and not len(rows) for rows in own):
        score = "personal_accuracy" if study.classes else "personal_rmse"
        warn_user(
            f"no test row is of a client that trains, so that known clients are not scored and there is no {score}: "
            "give test rows of these clients, too"
        )
