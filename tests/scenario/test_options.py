"""Lines about keys and names: what was named twice, left out, or printed whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedray
from fedray.core.errors import BadInput
from fedray.methods import Method, Setting, federated
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import to_plain_values
from fedray.scenario.options import fold_local_options, fold_options
from fedray.scenario.unknown_keys import _ALIAS

KEYS: dict[str, Any] = {"rounds": 1, "clients": 4, "runtime": "inline", "report": False, "method": "fedavg"}
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)


def line_of(keys: Mapping[str, Any], **given: Any) -> str:
    with pytest.raises(BadInput) as caught:
        fedray.run({**KEYS, **keys}, **given)
    return str(caught.value)


def test_a_misspelled_argument_was_told_as_its_value() -> None:
    frame = pd.DataFrame(X)
    assert line_of({}, dat=frame) == "dat is not a key of a scenario: did you mean data?"
    assert line_of({}, los=lambda *_: None) == "los is not a key of a scenario: did you mean loss?"
    with pytest.raises(BadInput, match=r"^rounds = a DataFrame cannot be used: give a number"):
        to_plain_values({"rounds": frame})


def test_the_keys_of_a_section_are_named_once_and_none_that_fedray_writes() -> None:
    with pytest.raises(BadInput) as caught:
        fold_options("method", "method", {"name": "fedavg", "zzz": 1}, ("name", "object", "models"))
    assert str(caught.value).endswith("method fedavg: choose one of name, models")


def test_options_of_a_registered_loss_were_left_out() -> None:
    fedray.register("loss", "smooth", lambda o, t, c, *, smoothing=0.1: smoothing * c.objective(o, t))
    with pytest.raises(BadInput, match=r"^local.smothing is not a key of local: did you mean local.smoothing\?"):
        read_scenario({"local": {"loss": "smooth", "smothing": 0.2}})
    assert fold_local_options({"loss": "smooth"}, ("loss",))["options"] == {"smoothing": 0.1}


def test_a_name_that_is_near_another_one_may_be_a_module_that_was_not_imported() -> None:
    remedy = "did you mean mlp? (or --import the module that registers it)"
    assert line_of({"model": "mpl"}).endswith(remedy)


def test_several_labels_of_a_row_were_told_to_be_targets_which_are_refused_too() -> None:
    labels = (X[:, :3] > 0).astype(int)
    assert line_of({}, data=(X, labels)).endswith(
        "several labels or targets of a row are not simulated: give one column"
    )


def test_an_own_method_of_one_model_was_called_fedavg(recwarn: pytest.WarningsRecorder) -> None:
    def own(setting: Setting) -> Method:
        return Method("own", federated(setting))

    fedray.run({**KEYS, "method": {"models": 1}}, method=own)
    assert not [one for one in recwarn if re.search("makes it FedAvg", str(one.message))]


def test_ids_of_real_numbers_and_a_loss_that_does_not_say_what_it_reads() -> None:
    few = {"participation": {"per_round": 2}}
    line = "ids of type float64: return whole numbers, such as known.client"
    assert line in line_of(few, selection=lambda known, number, *_: known.client[:number].astype(float))
    with pytest.raises(
        fedray.FedrayError, match=r'None unless it is declared: LocalLoss\(..., reads=\("broadcast",\)\)'
    ):
        fedray.run(KEYS, loss=lambda o, t, c: c.objective(o, t) + (o - c.broadcast.outputs).square().sum(-1))


@pytest.mark.parametrize("word", sorted(_ALIAS))
def test_no_remedy_is_a_key_that_is_refused_in_turn(word: str) -> None:
    """`gpus` was told to be `num_gpus`, which is no key of a scenario either."""
    *sections, last = _ALIAS[word].replace("NAME", "weak").split(".")
    keys: Any = {last: {}}
    for section in reversed(sections):
        keys = {section: keys}
    try:
        read_scenario(keys)
    except BadInput as refused:
        unknown = f"{last} is not a key of" in str(refused)
        assert not unknown or "choose one of these" in str(refused)  # a key of other names, such as model.channels


def test_options_of_a_passed_function_were_told_as_those_of_the_default_method() -> None:
    def mine(setting: Setting) -> Method:
        return Method("mine", federated(setting))

    line = (
        "method.diversity = 0.1: a method that is passed as a function has no options: bind it with functools.partial"
    )
    assert line in line_of({"method": {}}, method=mine, method__diversity=0.1)
    run = fedray.run({**KEYS, "method": {}}, method=mine, method__models=2)
    assert len(run.models) == 2


@pytest.mark.parametrize("key", ["data.name", "data.root", "model.name", "method.name"])
def test_a_name_beside_an_object_was_read_by_nobody(key: str) -> None:
    objects = {"data": (X, np.arange(60) % 2), "model": dict, "method": federated}
    kind, name = key.partition(".")[0], key.replace(".", "__")
    line = f"{key} = 'digits', but {kind}= is given too: leave one of them out"
    assert line_of({}, **{kind: objects[kind], name: "digits"}) == line
