"""Dropout of the small CNN, and answers in which it stays on: what is dropped belongs to the row and the model."""

from typing import Any

import numpy as np
import pytest
import torch
from modules import load_module
from small import scenario
from torch import nn

import fedray
from fedray.core import rng
from fedray.models.net import dropping, find_dropout, key_rows
from fedray.models.nets import build_net
from fedray.runtime.session import Inline

CNN: dict[str, Any] = {"model": None, "rounds": 2, "method": {"models": 2}}
DROPS: dict[str, Any] = {"name": "cnn", "channels": [2, 4], "hidden": [6], "dropout": 0.5}
AT_TEST = {"predict": {"dropout_at_test": True}}


def run_cnn(*changes: dict[str, Any], **model: Any) -> fedray.Run:
    return fedray.run(scenario(CNN, {"model": DROPS | model}, *changes))


def test_dropout_changes_no_parameter_and_without_it_there_are_no_such_layers() -> None:
    plain, dropped = (build_net("cnn", (1, 28, 28), 10, "cross_entropy", dropout=p) for p in (0.0, 0.5))
    assert not find_dropout(plain.module)
    assert [type(part) for part in find_dropout(dropped.module)] == [nn.Dropout2d, nn.Dropout]
    assert torch.equal(plain.init(3), dropped.init(3))


def test_masks_keep_the_mean_and_drop_whole_channels() -> None:
    module, rows = nn.Sequential(nn.Dropout2d(0.25)).eval(), 4000
    with dropping(module, key_rows(rng.keys(0, "test"), torch.arange(rows)[:, None])):
        out = module(torch.ones(rows, 3, 2, 2))
    assert bool((out == out[..., :1, :1]).all())
    assert sorted(out.unique().tolist()) == pytest.approx([0, 4 / 3])
    assert out[..., 0, 0].mean(0).tolist() == pytest.approx([1] * 3, abs=0.05)  # six standard errors
    assert torch.equal(module(torch.ones(1, 3, 2, 2)), torch.ones(1, 3, 2, 2))  # the layers are as before


def test_answers_with_dropout_train_the_same_models_and_do_not_depend_on_the_cut_of_the_rows() -> None:
    plain, dropped = run_cnn(), run_cnn(AT_TEST)
    assert plain.summary["model_hash"] == dropped.summary["model_hash"]
    x, y = (a.numpy() for a in dropped.study.shards.test(0))
    whole, exact = dropped.predict(x).mean, plain.predict(x).mean
    assert np.abs(whole - exact).max() > 0.01
    assert (whole.argmax(1) == y).mean() == dropped.summary["metrics"]["accuracy"]["mean"]  # as in its rounds
    order = np.random.default_rng(0).permutation(len(x))
    pieces = [dropped.predict(x[part]).mean for part in np.array_split(order, 7)]
    assert np.abs(np.concatenate(pieces) - whole[order]).max() < 1e-6
    same = dropped.predict(np.repeat(x[:1], 3, axis=0)).mean
    assert np.abs(same - whole[0]).max() < 1e-6


def test_models_have_masks_of_their_own_and_the_mean_over_them_is_the_answer_without() -> None:
    """Of a last layer alone: it is linear in what is dropped, so that masks change no expectation."""

    def only_drops() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))

    study = fedray.run(scenario({"model": None, "rounds": 1}, AT_TEST), model=only_drops).study
    worker, models = Inline(study).worker, 400
    x, row = study.shards.test(0)[0][:5], study.net.init(0)
    each = worker.forward(row.expand(models, -1), torch.zeros(models, 0), 0, x)
    assert not torch.equal(each[0], each[1])
    want = load_module(study.net, row)(study.shards.scaling.normalize(x[None], torch.tensor([0]))[0])
    assert (each.mean(0) - want).abs().max() < 5 * (each.std(0) / models**0.5).max()
