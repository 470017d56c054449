"""The options of methods whose server distils, and which of them cannot act together.

Example:
    >>> explain_idle("patience", {"validation": 0.0, "inputs": "noise"})
    'method.validation is 0, so that no row says when to stop'
    >>> explain_idle("input_rows", {"validation": 0.1, "inputs": "noise"})
    ''
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.scenario.spec import Needs, Option
from fedray.scenario.validators import one_of, real, text, whole

FEDBE_OPTIONS = {
    "temperature": Option(0.5, real("(0, inf)")),
    "server_data": Option(0.1, real("(0, 1)")),
    "distil_epochs": Option(20, whole(0, 10**6)),
    "distil_lr": Option(0.01, real("(0, inf)")),
    "distil_batch": Option(32, whole(1, 10**6)),
}
FEDDF_OPTIONS = {
    "inputs": Option("withheld", text),  # or noise, or the name of a data set
    "server_data": Option(0.1, real("(0, 1)"), Needs("method.inputs", ("withheld",))),
    "input_rows": Option(10_000, whole(1, 10**7)),
    "validation": Option(0.05, real("[0, 1)")),
    "teacher": Option("mean_logits", one_of("mean_logits", "confidence")),
    "distil_steps": Option(10_000, whole(0, 10**7)),
    "distil_lr": Option(1e-3, real("(0, inf)")),
    "distil_batch": Option(128, whole(1, 10**6)),
    "patience": Option(1000, whole(1, 10**7)),
}


def explain_idle(option: str, options: Mapping[str, Any]) -> str:
    """Why an option of a method that distils cannot act beside the others; empty if it can.

    Args:
        option: its name.
        options: all options of the method.
    """
    if option == "patience" and options.get("validation") == 0:
        return "method.validation is 0, so that no row says when to stop"
    if option == "input_rows" and options.get("inputs") == "withheld":
        return "method.inputs is withheld: method.server_data says how many rows that are"
    return ""
