"""Digests of what a study trains: data, network, and the user's own code with the values that this code uses."""

from __future__ import annotations

import hashlib

from torch import nn

from fedray.assembly.registry import UserObjects, functions_of, list_own_code, list_own_names
from fedray.data import catalogue
from fedray.data.shards import hash_shards, sum_up
from fedray.own_code.read_values import hash_values, write_object
from fedray.own_code.source_code import hash_source, is_own_module
from fedray.own_code.user_code import hash_files
from fedray.scenario import names
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study

Digests = dict[str, dict[str, str]]  # part -> what of it -> digest


def describe_study(scenario: Scenario, own: UserObjects, study: Study) -> Digests:
    """Returns digests of everything beside the scenario's keys that decides the results of a study.

    Args:
        scenario: the scenario of the study.
        own: the user's Python objects.
        study: the study that was made from scenario and objects.

    Returns:
        By part:
        - `data`, `network`: a digest of each property that can change.
        - `source`: a digest of each of the user's functions and classes, as "loss mine: smooth"; empty if there is no
          source.
        - `files`: a digest of each of the user's modules that these functions and classes need.
        - `values`: a digest of each value that they use, as "loss mine: weights"; values of callbacks are left out,
          because a callback may write what it reads.
        - `names`: the file that registered each of the user's names, as "method mine".
    """
    name, code = scenario.data.name, list_own_code(scenario, own)
    is_read = own.data is not None or names.is_own("data", name) or catalogue.find_source(name).where is not None
    source, values = dict[str, str](), dict[str, str]()
    for (kind, called), thing in code.items():
        functions, made = functions_of(thing), dict[str, str]()
        if kind == "model":
            classes = dict.fromkeys(type(part) for part in study.net.module.modules())
            functions += [part for part in classes if is_own_module(part.__module__)]
            made["constants"] = _hash(" ".join(_list_constants(study.net.module)))
        elif kind == "augmentation":  # one of torchvision says itself what it was made with
            made["what it was made with"] = _hash(write_object(thing))
        source |= {f"{kind} {called}: {key}": digest for key, digest in hash_source(*functions).items()}
        if kind != "callback":
            read = hash_values(*functions) | made
            values |= {f"{kind} {called}: {key}": digest for key, digest in read.items()}
    if augment := own.named().get("augment"):
        source["augmentations: their order"] = _hash(repr(augment))
    layout, own_network = study.net.layout, any(kind == "model" for kind, _ in code)
    shapes = f"{layout.names} {layout.shapes} {layout.trainable} {layout.counters}"
    return {
        "data": hash_shards(study.shards, study.folds.tolist(), exact=is_read),
        "network": {
            "layers": _hash(shapes),
            "objective": study.net.objective,
            "outputs": str(study.net.outputs),
            **({"modules": _hash(write_object(study.net.module))} if own_network else {}),
        },
        "source": source,
        "files": hash_files(own.modules, code.values()),
        "values": values,
        "names": {
            f"{kind} {name}": names.list_origins()[kind, name].file for kind, name in list_own_names(scenario, own)
        },
    }


def _list_constants(module: nn.Module) -> list[str]:
    """Lists the tensors of a module that are not trained, each with a digest of its values."""
    frozen = [(name, value) for name, value in module.named_parameters() if not value.requires_grad]
    kept = {name for name, _ in module.state_dict().items()}
    fixed = [(n, b) for n, b in module.named_buffers() if n not in kept or not (b.is_floating_point() or b.ndim == 0)]
    return [f"{name} {sum_up(value.detach().cpu().double().numpy())}" for name, value in [*frozen, *fixed]]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
