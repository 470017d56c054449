"""Networks that go wrong: where they are made, in the forward and backward pass, in training or only in evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from own_case import Case, count_calls, good_model
from torch import Tensor, nn

Change = Callable[[Any, Tensor], Any]


class Mine(nn.Module):
    """A perceptron whose outputs are changed before they are returned."""

    def __init__(self, change: Change) -> None:
        nn.Module.__init__(self)
        self.layers, self.change, self.calls = good_model(), change, 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.change(self, self.layers(x))


def answering(change: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Mine(lambda _, out: change(out))


def in_training(change: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Mine(lambda module, out: change(out) if module.training else out)


def in_evaluation(change: Callable[[Tensor], Any], rows: int = 9) -> Callable[[], nn.Module]:
    """Returns a factory of networks with wrong outputs in evaluation, if there are at least `rows` inputs."""
    return lambda: Mine(lambda module, out: change(out) if not module.training and len(out) >= rows else out)


def after(calls: int, change: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Mine(lambda module, out: change(out) if module.calls > calls else out)


def fail(_out: Tensor) -> Any:
    raise ValueError("my layer\nis broken")


class _Backward(torch.autograd.Function):
    """Fails where its gradient is asked for."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, *_grad: Any) -> Any:
        raise ValueError("no gradient here")


def fail_backward(out: Tensor) -> Any:
    result: Any = _Backward.apply(out)
    return result


def made_of(change: Callable[[nn.Module], Any]) -> Callable[[], Any]:
    """Returns a factory that applies a change to the good network. What the change returns replaces the network."""

    def make() -> Any:
        module = good_model()
        found = change(module)
        return module if found is None else found

    return make


def filled(value: float) -> Callable[[], Any]:
    def fill(module: nn.Module) -> None:
        with torch.no_grad():
            next(module.parameters()).fill_(value)

    return made_of(fill)


def call_number(number: int, make: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a factory that makes good networks first, and calls `make` from one call on."""
    calls = count_calls()

    def factory() -> Any:
        calls.append(1)
        return make() if len(calls) >= number else good_model()

    return factory


def freeze(module: nn.Module) -> None:
    module.requires_grad_(False)


def by_numpy() -> nn.Module:
    module = good_model()
    with torch.no_grad():
        next(module.parameters()).add_(random.random())
    return module


def broken() -> Any:
    raise ValueError("no weights\nfound")


def needs_size(size: int) -> nn.Module:
    return nn.Linear(size, 3)


class Unused(nn.Module):
    """A parameter that its outputs do not depend on."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layers, self.spare = good_model(), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


class Forgetful(nn.Module):
    """A constructor that does not call that of `nn.Module`."""

    def __init__(self) -> None:
        self.layer = nn.Linear(4, 3)


class Empty(nn.Module):
    """A module without `forward`."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layer = nn.Linear(4, 3)


class Normed(nn.Module):
    """Batch statistics, which no single row has."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


def in_place(out: Tensor) -> Tensor:
    return out.mul_(1.5)


def branching(out: Tensor) -> Tensor:
    return out * 2 if bool(out.sum() > 0) else out


SHARED = good_model()
ONE = {"method": {"models": 1, "name": "fedavg"}}
ODD = {"local": {"batch_size": 47}}
SKIP = {"on_client_error": "skip"}
_model = partial(Case, "model")
MODELS = [
    _model("returns None", lambda: None, "returned None"),
    _model("returns a tuple", lambda: (good_model(), 3), "returned a tuple"),
    _model("returns a class", lambda: nn.Linear, "returned the class"),
    _model("returns text", lambda: "mlp", "returned a str"),
    _model("returns a function", lambda: good_model, "returned a function"),
    _model("raises", broken, "ValueError: no weights found", {}, True),
    _model("raises in the second call", call_number(2, broken), "ValueError: no weights", {}, True),
    _model("raises in the fifth call", call_number(5, broken), "ValueError: no weights", {}, True),
    _model("raises in the tenth call", call_number(10, broken), "ValueError: no weights", {}, True),
    _model("returns None in the fifth call", call_number(5, lambda: None), "None"),
    _model("returns None in the tenth call", call_number(10, lambda: None), "None"),
    _model("changes its layers", call_number(6, lambda: nn.Linear(4, 3)), "two different networks"),
    _model("forgets to initialize", Forgetful, "AttributeError", {}, True),
    _model("has no forward", Empty, "NotImplementedError"),
    _model("wants an argument", needs_size, "needs_size|argument"),
    _model("is frozen", made_of(freeze), "no trainable parameter"),
    _model("has no parameters", lambda: nn.Tanh(), "no trainable parameter"),
    _model("is lazy", lambda: nn.LazyLinear(3), "uninitialized parameter"),
    _model("is complex", lambda: nn.Linear(4, 3, dtype=torch.complex64), "complex"),
    _model("is shared", lambda: SHARED, "an earlier call returned"),
    _model("draws outside torch", by_numpy, "drawn outside torch"),
    _model("begins with NaN", filled(np.nan), "NaN"),
    _model("begins with infinity", filled(np.inf), "infinite"),
    _model("begins too large", filled(1e20), None),
    _model("always begins alike", filled(0.0), None),
    _model("has too many classes", lambda: nn.Linear(4, 7), "return 3 numbers for each row"),
    _model("has too few classes", lambda: nn.Linear(4, 2), "return 3 numbers for each row"),
    _model("takes other inputs", lambda: nn.Linear(9, 3), "cannot read the data"),
    _model("answers None", answering(lambda _: None), "puts out None"),
    _model("answers a tuple", answering(lambda out: (out, out)), "puts out a tuple"),
    _model("answers a list", answering(lambda out: [out]), "puts out a list"),
    _model("answers a dict", answering(lambda out: {"logits": out}), "puts out a dict"),
    _model("answers an array", answering(lambda out: out.detach().numpy()), "puts out a|cannot read"),
    _model("answers a mean", answering(lambda out: out.mean()), "puts out shape"),
    _model("answers one row", answering(lambda out: out[:1]), "puts out"),
    _model("answers without rows", answering(lambda out: out.argmax(1)), "puts out"),
    _model("answers three axes", answering(lambda out: out[:, None]), "puts out shape"),
    _model("answers probabilities", answering(lambda out: out.softmax(1)), "softmax"),
    _model("answers whole numbers", answering(lambda out: out.round().long()), "int64"),
    _model("answers in double", answering(lambda out: out.double()), None),
    _model("answers detached", answering(lambda out: out.detach()), "grad"),
    _model("answers NaN", answering(lambda out: out * np.nan), "NaN"),
    _model("answers infinity", answering(lambda out: out + np.inf), "infinite"),
    _model("fails in forward", answering(fail), "ValueError: my layer is broken"),
    _model("fails in backward", answering(fail_backward), "ValueError: no gradient here", {}, True),
    _model("fails in training", in_training(fail), "ValueError: my layer is broken", {}, True),
    _model("fails in evaluation", in_evaluation(fail), "ValueError: my layer is broken", {}, True),
    _model("fails in evaluation, skipped", in_evaluation(fail), "ValueError: my layer is broken", SKIP, True),
    _model("fails later", after(9, fail), "ValueError: my layer is broken", {}, True),
    _model("NaN in training", in_training(lambda out: out * np.nan), "NaN"),
    _model("NaN in evaluation", in_evaluation(lambda out: out * np.nan), "NaN"),
    _model("infinity in evaluation", in_evaluation(lambda out: out + np.inf), "infinite"),
    _model("None in training", in_training(lambda _: None), "None"),
    _model("None in evaluation", in_evaluation(lambda _: None), "None"),
    _model("a tuple in training", in_training(lambda out: (out, out)), "tuple"),
    _model("a tuple in evaluation", in_evaluation(lambda out: (out, out)), "tuple"),
    _model("other classes in training", in_training(lambda out: out[:, :2]), "2"),
    _model("other classes in evaluation", in_evaluation(lambda out: out[:, :2]), "2"),
    _model("fewer rows in evaluation", in_evaluation(lambda out: out[:-1]), "rows|shape"),
    _model("fewer rows in training", in_training(lambda out: out[:1]), "rows|shape"),
    _model("probabilities in evaluation", in_evaluation(lambda out: out.softmax(1)), None),
    _model("batch statistics of one row", Normed, None, ODD),
    _model("is double", lambda: good_model().double(), "parameters of type float64"),
    _model("is half", lambda: good_model().half(), "parameters of type float16"),
    # what works
    _model("good", good_model),
    _model("a class of its own", lambda: Mine(lambda _, out: out)),
    _model("in place", answering(in_place)),
    _model("branches on data", answering(branching)),
    _model("has a spare parameter", Unused),
    _model("has batch statistics", Normed),
    _model("begins at zero alone", filled(0.0), None, ONE),
    _model("has a counter", made_of(lambda m: m.register_buffer("seen", torch.tensor(0)))),
]  # fmt: skip
