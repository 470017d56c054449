"""The trial of a network: what does not fit the data is refused before it trains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from modules import Apply
from small import scenario
from torch import Tensor, nn

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput, FedrayError, ScenarioWarning
from fedray.data.types import Dataset, Split, classification, regression
from fedray.models import nets as catalogue
from fedray.scenario import names
from fedray.scenario.loader import read_scenario

X = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
TOKENS = (X > 0).astype(np.int64)
TWO = classification("mine", Split(X[:60], Y[:60]), Split(X[60:], Y[60:]), ("no", "yes"))
WORDS = classification("mine", Split(TOKENS[:60], Y[:60]), Split(TOKENS[60:], Y[60:]), ("no", "yes"))
REAL = regression("mine", Split(X[:60], X[:60, :1]), Split(X[60:], X[60:, :1]))


def behind(outputs: int, function: Callable[[Tensor], Any]) -> nn.Module:
    """A linear layer with a function behind it."""
    return nn.Sequential(nn.Linear(4, outputs), Apply(function))


def refusal(data: Dataset, model: Callable[[], nn.Module] | None, **named: Any) -> str:
    """The one line in which a scenario is refused."""
    with pytest.raises(BadInput) as caught:
        build_study(
            read_scenario({"clients": {"number": 4}, **({"model": named} if named else {})}),
            UserObjects(data=data, model=model),
        )
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def softmax() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(1))


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (TWO, lambda: nn.Linear(4, 5), "puts out shape [8, 5] for 8 rows: let it return 2 numbers for each row"),
        (TWO, lambda: behind(2, lambda x: x.bfloat16()), "puts out numbers of type bfloat16: let it return float32"),
        (TWO, softmax, "ends in a softmax, but its outputs are read as logits"),
        (TWO, lambda: behind(2, lambda x: (x, x)), "puts out a tuple: let it return one tensor"),
        (REAL, lambda: behind(1, lambda x: x[:, 0]), "puts out shape [8] for 8 rows: let it return 1 numbers"),
        (TWO, lambda: nn.Linear(3, 2), "cannot read the data, features of shape [4] (RuntimeError"),
        (WORDS, lambda: nn.Linear(4, 2), "cannot read the data, tokens of shape [4] (RuntimeError"),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_refused(
    data: Dataset, model: Callable[[], nn.Module], message: str
) -> None:
    assert message in refusal(data, model)


def test_pictures_of_real_numbers_without_channels_are_told_their_shape() -> None:
    """Three dimensions of real numbers are features: the remedy was a network without convolutions."""
    flat = Split(np.random.default_rng(0).normal(size=(20, 9, 9)).astype(np.float32), np.arange(20) % 2)
    data = classification("planes", flat, flat, ("a", "b"))
    for message in (refusal(data, lambda: nn.Conv2d(1, 2, 3)), refusal(data, None, name="cnn")):
        assert "give pictures of real numbers as [n, 1, H, W], or choose linear or mlp" in message


def test_a_network_that_ends_in_a_log_softmax_is_taken() -> None:
    """Logarithms of probabilities are logits."""
    study = build_study(
        read_scenario({"clients": {"number": 4}}),
        UserObjects(data=TWO, model=lambda: nn.Sequential(nn.Linear(4, 2), nn.LogSoftmax(1))),
    )
    assert study.net.outputs == 2


def test_a_vocabulary_smaller_than_the_tokens_is_refused() -> None:
    assert "model.vocabulary = 1, but the tokens of mine go from 0 to 1: set it to 2" in refusal(
        WORDS, None, name="lstm", vocabulary=1
    )


def test_a_token_below_zero_ended_the_run_in_its_first_round() -> None:
    wrong = WORDS._replace(test=WORDS.test._replace(x=WORDS.test.x.astype(int) - 1))
    assert "the tokens of mine go from -1 to 1: set" in refusal(wrong, None, name="lstm")


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_module_is_one_line_before_it_trains() -> None:
    with pytest.raises(FedrayError, match="in training raised RuntimeError: The stateless API can't be used"):
        fedray.run(scenario(), data=TWO, model=lambda: torch.jit.script(nn.Linear(4, 2)))


def test_a_function_that_returns_one_object_gives_no_identical_members() -> None:
    one = nn.Linear(4, 2)
    assert "make a new module in every call" in refusal(TWO, lambda: one)
    assert "make a new module in every call" in refusal(TWO, lambda: nn.Sequential(one)), "nor one that is wrapped"


def test_first_values_are_drawn_by_address() -> None:
    trained, numbers = nn.Linear(4, 2), np.random.default_rng(0)

    def from_numpy() -> nn.Module:
        made = nn.Linear(4, 2)
        made.weight.data = torch.from_numpy(numbers.normal(size=(2, 4))).float()
        return made

    assert "drawn outside torch" in refusal(TWO, from_numpy)
    assert "all 5 models begin as one" in refusal(TWO, lambda: copy.deepcopy(trained))
    alone = {"clients": {"number": 4}, "method": {"name": "fedavg"}}
    build_study(read_scenario(alone), UserObjects(data=TWO, model=lambda: copy.deepcopy(trained)))  # K = 1: a start


def test_a_frozen_part_may_be_shared() -> None:
    body = nn.Linear(4, 3).requires_grad_(False)
    study = build_study(
        read_scenario({"clients": {"number": 4}}),
        UserObjects(data=TWO, model=lambda: nn.Sequential(body, nn.Linear(3, 2))),
    )
    assert study.net.layout.d == 8


class Adapter(nn.Module):
    """A low-rank adapter whose `up` begins at 0, as LoRA's; `down` is drawn, and is frozen or a buffer."""

    down: Tensor

    def __init__(self, buffer: bool) -> None:
        nn.Module.__init__(self)
        down = torch.randn(3, 4)
        if buffer:
            self.register_buffer("down", down)
        else:
            self.down = nn.Parameter(down, requires_grad=False)
        self.up = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down.T @ self.up.T


def test_models_that_differ_in_what_is_frozen_began_as_one_without_a_word() -> None:
    """Frozen values are those of one call in all models."""
    assert "all 5 models begin as one" in refusal(TWO, lambda: Adapter(buffer=False))
    alone = {"clients": {"number": 4}, "method": {"name": "fedavg"}}
    build_study(read_scenario(alone), UserObjects(data=TWO, model=lambda: Adapter(buffer=False)))  # one model: no line


def test_each_model_has_a_buffer_of_its_own_that_no_client_changes() -> None:
    keys = {"rounds": 2, "clients": {"number": 4}, "method": {"models": 2}, "runtime": "inline", "report": False}
    runs = [fedray.run(keys | {"rounds": n}, data=TWO, model=lambda: Adapter(buffer=True)) for n in (1, 3)]
    short, long = (run.models for run in runs)
    assert not torch.equal(long[0]["down"], long[1]["down"])
    assert [torch.equal(a["down"], b["down"]) for a, b in zip(short, long, strict=True)] == [True, True]
    assert [torch.equal(a["up"], b["up"]) for a, b in zip(short, long, strict=True)] == [False, False]


def test_a_registered_network_is_tried_like_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_OWN", dict(names._OWN))
    monkeypatch.setattr(catalogue, "_BUILDERS", dict(catalogue._BUILDERS))
    one = nn.Linear(4, 2)
    fedray.register("model", "always_one", lambda _input_shape, _outputs: one)
    assert "make a new module in every call" in refusal(TWO, None, name="always_one")


def network(part: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), part)


def test_scores_that_depend_on_the_pieces_of_the_test_set_were_printed_in_silence() -> None:
    """One line says it; the answers of such a network for one row do depend on the others."""
    with pytest.warns(ScenarioWarning, match="depends on the rows beside it") as said:
        run = fedray.run(scenario({"rounds": 1}), model=lambda: network(Apply(lambda x: x - x.mean(0))))
    lines = [str(one.message) for one in said if "depends on the rows" in str(one.message)]
    assert len(lines) == 1 and len(lines[0].splitlines()) == 1
    x = np.random.default_rng(0).integers(0, 17, (4, 1, 8, 8)).astype(np.uint8)
    assert not np.allclose(run.predict(x).mean[:2], run.predict(x[:2]).mean)
