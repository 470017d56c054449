"""Exported models, asked with nothing but torch and `models.json`, say what the run says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from small import scenario
from torch import Tensor, nn

import fedray
from fedray.core.errors import FedrayError, FedrayWarning
from fedray.experiments.export import Program
from fedray.methods import Answer, Method, Setting, federated


def read_export(run: fedray.Run, folder: Path) -> tuple[list[dict[str, Tensor]], dict[str, Any]]:
    return [load_file(path) for path in run.export(folder)], json.loads((folder / "models.json").read_text())


def ask(network: nn.Module, weights: dict[str, Tensor], x: np.ndarray, numbers: dict[str, Any]) -> np.ndarray:
    network.load_state_dict(weights)
    inputs = (x - np.array(numbers["shift"])) / np.array(numbers["scale"])
    with torch.no_grad():
        found: np.ndarray = network(torch.tensor(inputs, dtype=torch.float32)).numpy()
    return found


def test_plain_torch_answers_images_as_the_run_does(tmp_path: Path) -> None:
    run = fedray.run(scenario({"rounds": 2, "model": {"name": "mlp", "hidden": [7]}}), out=tmp_path / "run")
    weights, about = read_export(run, tmp_path / "models")
    images = run.study.split("test", 0)[0].numpy()
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 10))
    assert about["network"] == str(network)
    assert about["inputs"] == {"kind": "images", "shape": [1, 8, 8]}
    assert about["outputs"] == {"loss": "cross_entropy", "classes": list(run.class_names)}
    shares = [1 / len(weights)] * len(weights)
    assert about["answer"] == {
        "models": "exported",
        "average": "probabilities",
        "weights": {"replicate-0-fold-0": pytest.approx(shares)},
    }
    logits = [torch.tensor(ask(network, one, images, about["standardization"]["0"])) for one in weights]
    answer = torch.stack(logits).softmax(-1).mean(0)
    np.testing.assert_allclose(answer, run.predict(images).mean, atol=1e-5)


def test_plain_torch_answers_with_the_weights_of_an_own_answer_for_everybody_and_for_tiers(tmp_path: Path) -> None:
    everybody = np.array([[6.0, 1.0, 3.0], [0.0, 1.0, 1.0]])
    tiers = np.array([[[6.0, 2.0, 0.0], [0.0, 0.0, 5.0]], [[0.0, 1.0, 0.0], [0.0, 2.0, 2.0]]])

    def skewed(setting: Setting) -> Method:
        return Method("skewed", federated(setting), lambda state: Answer(state, setting.models, everybody, tiers=tiers))

    keys = scenario({"rounds": 3, "replicates": 2, "model": {"name": "linear"}, "predict": {"average": "logits"}})
    keys["clients"] = {"number": 4, "tiers": {"strong": {"share": 0.5}, "weak": {"share": 0.5}}}
    run = fedray.run(keys | {"method": {"models": 3}}, method=skewed, out=tmp_path / "run")
    weights, about = read_export(run, tmp_path / "models")
    assert about["answer"]["average"] == "logits"
    images = run.study.split("test", 0)[0].numpy()
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network.load_state_dict(weights[0])
    for replicate in range(2):
        shares = about["answer"]["weights"][f"replicate-{replicate}-fold-0"]
        each = [ask(network, one, images, about["standardization"]["0"]) for one in weights[3 * replicate :][:3]]
        answer = torch.tensor(np.tensordot(shares, each, axes=1)).softmax(-1)
        np.testing.assert_allclose(answer, run.predict(images, replicate=replicate).mean, atol=1e-5)
        for tier, client in (("strong", 0), ("weak", 3)):
            shares = about["answer"]["tiers"][tier][f"replicate-{replicate}-fold-0"]
            answer = torch.tensor(np.tensordot(shares, each, axes=1)).softmax(-1)
            said = run.predict(images, client=client, replicate=replicate).mean
            np.testing.assert_allclose(answer, said, atol=1e-5)
    paths = run.export(tmp_path, "pt2")  # programs have the weights inside, and the models of weight 0 are none
    assert [path.stem[len("replicate-0-fold-0-") :] for path in paths[4:]] == ["model-1", "model-2", "ensemble"]
    for replicate, path in enumerate((paths[3], paths[6])):
        expected = run.predict(images, replicate=replicate).mean
        np.testing.assert_allclose(ask_program(path, images.astype(np.float32)), expected, atol=1e-5)


def test_an_export_says_where_other_models_answer(tmp_path: Path) -> None:
    run = fedray.run(scenario({"rounds": 1}), method="fedag", out=tmp_path / "run")
    with pytest.warns(FedrayWarning, match="fedag predicts with other models"):
        assert read_export(run, tmp_path / "models")[1]["answer"] == {"models": "others"}


def test_the_file_beside_a_stack_did_not_say_what_is_averaged(tmp_path: Path) -> None:
    networks = [{"name": "mlp", "hidden": [4]}, {"name": "linear", "answers": False}, {"name": "linear"}]
    method = {"name": "feddf", "models": 1, "networks": networks, "distil_steps": 2}
    keys = {"rounds": 1, "clients": 3, "method": method, "data": {"limit": 90}, "runtime": "inline", "report": False}
    run = fedray.run(keys)
    (path,) = run.export(tmp_path)
    about = json.loads((tmp_path / "models.json").read_text())
    assert about["answer"] == {"models": "exported", "average": "probabilities", "bases": [0.5, 0.0, 0.5]}
    one, numbers = load_file(path), about["standardization"]["0"]
    images = run.study.split("test", 0)[0][:5]
    x = ((images - torch.tensor(numbers["shift"])) / torch.tensor(numbers["scale"])).flatten(1)
    layers = [[f"bases.{i}.0.{j}" for j in each] for i, each in enumerate(((1, 3), (1,), (1,)))]
    says = []
    for names in layers:
        y = x
        for place, name in enumerate(names):
            y = torch.nn.functional.linear(y.relu() if place else y, one[f"{name}.weight"], one[f"{name}.bias"])
        says.append(y.softmax(-1))
    answer = sum(weight * each for weight, each in zip(about["answer"]["bases"], says, strict=True))
    np.testing.assert_allclose(answer, run.predict(images.numpy()).mean, atol=1e-5)


def ask_program(path: Path, rows: np.ndarray) -> np.ndarray:
    if path.suffix == ".pt2":
        return np.asarray(torch.export.load(path).module()(torch.from_numpy(rows)))
    return np.asarray(onnxruntime.InferenceSession(path).run(None, {"inputs": rows})[0])


class Lengthy(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:  # an exporter takes `len` for a fixed number
        return torch.as_tensor(super().forward(x.reshape(len(x), -1)))  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore:.*read as categories")
def test_plain_torch_and_a_program_answer_a_table_as_the_run_does(tmp_path: Path) -> None:
    """Names, the values of categories, what stands for a missing number, a far origin, and the scale of targets."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"time": 1.7e12 + draw.normal(0, 100, 90), "age": draw.normal(60, 9, 90)})
    table["ward"], table["days"] = draw.choice(["b", "a"], 90), 1000 + 3 * table["age"]
    table.loc[3, "age"] = table.loc[4, "time"] = np.nan
    keys = scenario({"rounds": 1, "clients": {"number": 3}})
    keys |= {"method": "fedavg", "data": {"partition": "iid"}, "model": {"objective": "gaussian_nll"}}
    given: dict[str, Any] = {"model": lambda: Lengthy(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))}
    run = fedray.run(keys, data=table, data__target="days", data__missing="mean", out=tmp_path / "run", **given)
    (weights,), about = read_export(run, tmp_path / "models")
    inputs, numbers = about["inputs"], about["standardization"]["0"]
    columns = {"time": None, "age": None, "ward": ["a", "b"], "days": []}
    assert (inputs["columns"], about["outputs"]["classes"]) == (columns, None)
    assert inputs["names"] == ["time", "age", "ward=a", "ward=b"]
    rows = np.stack([table["time"], table["age"], table["ward"] == "a", table["ward"] == "b"], axis=1).astype(float)
    found = run.predict(rows)
    np.testing.assert_array_equal(run.predict(table).mean, found.mean)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    said = ask(network, weights, np.where(np.isnan(rows), inputs["missing"], rows), numbers)[:, :1]
    np.testing.assert_allclose(said * numbers["target_scale"] + numbers["target_shift"], found.mean, rtol=1e-5)
    for kind in ("onnx", "pt2"):
        *models, ensemble = run.export(tmp_path, kind)
        for path, expected in zip([*models, ensemble], [*found.members, found.mean], strict=True):
            np.testing.assert_allclose(ask_program(path, rows), expected, rtol=1e-5)
            assert str(Path(fedray.__file__).parent).encode() not in path.read_bytes()


def test_a_stack_is_one_program_and_trees_are_none(tmp_path: Path) -> None:
    small = {"rounds": 1, "clients": 3, "data": {"limit": 90}, "runtime": "inline", "report": False}
    run = fedray.run(small, method={"name": "stacking", "bases": [{"name": "linear"}], "meta_rounds": 1})
    images = run.study.split("test", 0)[0].float()
    (path,) = run.export(tmp_path, "pt2")
    np.testing.assert_allclose(ask_program(path, images.numpy()), run.predict(images).mean, atol=1e-5)
    with pytest.raises(fedray.BadInput, match="torch does not export trees .*: use Run.predict"):
        fedray.run(small, method="adaboost_f").export(tmp_path / "trees", "pt2")
    assert not list((tmp_path / "trees").glob("*.pt2"))


def test_a_program_that_answers_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fedray.run(scenario({"rounds": 1}), out=tmp_path / "run")
    monkeypatch.setattr(Program, "forward", lambda program, x: program.networks[0](x).softmax(-1))  # not standardized
    with pytest.raises(FedrayError, match="model-0.pt2 would differ from Run.predict by 0.*: use Run.predict"):
        run.export(tmp_path, "pt2")
    assert not list(tmp_path.glob("*.pt2"))
