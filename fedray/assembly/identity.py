"""What a study trains, as digests: its data, its network, and the user's own code."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections import Counter
from typing import Any

from torch import nn

from fedray.assembly.registry import UserObjects, find_own, functions_of, list_own_names, list_training_code
from fedray.core.types import Net
from fedray.data import catalogue
from fedray.data.own_partition import is_partitioner
from fedray.data.shards import hash_shards, sum_up
from fedray.models.nets import model_maker
from fedray.own_code.read_values import hash_bytecode, hash_values
from fedray.own_code.source_code import hash_called, hash_code, hash_module_file, list_nested, name_callable
from fedray.own_code.user_modules import hash_modules
from fedray.scenario import names
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study

Digests = dict[str, dict[str, str]]  # part -> what of it -> digest
_RULES = ("method", "partition", "selection", "schedule")  # kinds of which a study has one, known by their code
KNOWN_CODE = ("torch", "torchvision", "fedray")  # packages whose code a version names


def describe_study(scenario: Scenario, own: UserObjects, study: Study) -> Digests:
    """Digests of what decides the results of a study beside the keys of its scenario.

    Args:
        scenario: the study's.
        own: the user's Python objects.
        study: made from both.

    Returns:
        For `data`, `network` and `method` a digest of each thing that can change; of fedray's own methods nothing. For
        `modules` a digest of each file that was imported for the run, and for `names` the file that registered each of
        the user's names it uses.
    """
    name = scenario.data.name
    is_read = own.data is not None or names.is_own("data", name) or catalogue.find_source(name).where is not None
    return {
        "data": hash_shards(study.shards, study.folds.tolist(), exact=is_read),
        "network": {**_describe_layout(study.net), **_describe_own_network(scenario, own, study)},
        **{kind: _describe_rule(find_own(kind, scenario, own)) for kind in _RULES},
        "training": _describe_own_training(scenario, own),
        "modules": hash_modules(own.modules),
        "names": {
            f"{kind} {name}": names.list_origins()[kind, name].file for kind, name in list_own_names(scenario, own)
        },
    }


def _describe_rule(thing: Any) -> dict[str, str]:
    """Digests of a user's rule; a partitioner of flwr_datasets is known by its rows, which are the data's part."""
    return {} if thing is None or is_partitioner(thing) else {**_describe_code(thing), **_describe_called([thing])}


def _describe_layout(net: Net) -> dict[str, str]:
    """Names and shapes of the numbers of a model, and what they are trained for."""
    layout = net.layout
    shapes = f"{layout.names} {layout.shapes} {layout.trainable} {layout.counters}"
    return {"layers": _hash(shapes), "objective": net.objective, "outputs": str(net.outputs)}


def _describe_own_network(scenario: Scenario, own: UserObjects, study: Study) -> dict[str, str]:
    """What tells apart a user's own networks of equal layout; empty for those of fedray."""
    name = scenario.model.name
    if own.model is None and not names.is_own("model", name):
        return {}
    make = own.model or model_maker(name, study.input_shape, study.net.outputs, **scenario.model.options)
    module, found = study.net.module, _describe_code(make)
    kinds = {type(part) for part in module.modules()}
    foreign = sorted((kind for kind in kinds if kind.__module__.split(".")[0] not in KNOWN_CODE), key=name_callable)
    classes = [hash_code(kind) or "" for kind in foreign]
    return {
        **found,
        "modules": _hash(_write_object(module)),
        "code of its modules": _hash(" ".join(classes)) if all(classes) else "",
        "constants": _hash(" ".join(_list_constants(module))),
        **_describe_called([make, *foreign]),
    }


def _list_constants(module: nn.Module) -> list[str]:
    """The tensors of a module that nobody trains, each summed up."""
    frozen = [(name, value) for name, value in module.named_parameters() if not value.requires_grad]
    kept = {name for name, _ in module.state_dict().items()}
    fixed = [(n, b) for n, b in module.named_buffers() if n not in kept or not (b.is_floating_point() or b.ndim == 0)]
    return [f"{name} {sum_up(value.detach().cpu().double().numpy())}" for name, value in [*frozen, *fixed]]


def _describe_code(thing: Any) -> dict[str, str]:
    """The name of a user's function and its code; the digest is empty where there is no source."""
    return {"name": name_callable(thing).rpartition(".")[2], "code": hash_code(thing) or ""}


def _describe_called(things: list[Any]) -> dict[str, str]:
    """The functions that a user's functions and classes call, and the files that these stand in."""
    called = [hash_called(thing) for thing in things]
    files = sorted({digest for thing in things if (digest := hash_module_file(thing)) is not None})
    return {
        "code that it uses": _hash(" ".join(called)) if all(called) else "",
        "its file": _hash(" ".join(files)) if files else "",
        **_describe_read(things),
    }


def _describe_read(things: list[Any]) -> dict[str, str]:
    """The values that a user's functions and classes read, by name, and the bytecode of those without a source."""
    values: dict[str, list[str]] = {}
    for thing in things:
        for name, digest in hash_values(thing).items():
            values.setdefault(f"value {name}", []).append(digest)
    found = {key: "" if "" in each else _hash(" ".join(each)) for key, each in values.items()}
    bytecode = [digest for thing in things if (digest := hash_bytecode(thing))]
    if bytecode:
        found["bytecode"] = f"{bytecode[0].partition(' ')[0]} {_hash(' '.join(bytecode))}"
    return found


def _describe_own_training(scenario: Scenario, own: UserObjects) -> dict[str, str]:
    """Digests of a user's code in training and evaluation; of the second thing of a name, the name says that it is."""
    augment = own.named().get("augment")
    found = {} if augment is None else {"augmentations in this order": _hash(repr(augment))}
    count: Counter[tuple[str, str]] = Counter()
    for kind, name, thing in list_training_code(scenario, own):
        count[kind, name] += 1
        number = count[kind, name]
        found |= _describe_training(kind, name if number == 1 else f"{name} {number}", thing)
    return found


def _describe_training(kind: str, name: str, thing: Any) -> dict[str, str]:
    """Digests of a user's code of a kind; what a callback reads, it may have written too."""
    found, functions = {f"{kind} {name}": _hash_rule(thing)}, functions_of(thing)
    if kind == "augmentation" and not inspect.isroutine(thing):
        found[f"made {kind} {name}"] = _hash_made(thing)
        functions += [part for part in list_nested(thing)[1:] if not _is_known(part)]
    if kind == "callback":
        return found
    read = _describe_read(functions)
    return {**found, **{f"{key} of {kind} {name}": digest for key, digest in read.items()}}


def _hash_made(thing: Any) -> str:
    """A digest of what a transform and its parts were made with.

    One of torchvision says it itself, and of a user's own code and fields count.
    """
    own = [hash_code(part) or "" for part in list_nested(thing)[1:] if not _is_known(part)]
    return _hash(" ".join([_write_object(thing), *own]))


def _is_known(thing: Any) -> bool:
    """Whether a function or an object is of a package whose code a version names."""
    return name_callable(thing).split(".")[0] in KNOWN_CODE


def _hash_rule(thing: Any) -> str:
    """A digest of the code of a loss, an optimizer, a metric or a callback; empty where a part is not to be had."""
    parts = [digest for one in functions_of(thing) for digest in (hash_code(one), hash_called(one))]
    return _hash(" ".join(map(str, parts))) if all(parts) else ""


def _write_object(thing: Any) -> str:
    """What an object says of itself, without its place in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
