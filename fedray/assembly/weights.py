"""Starts the models of a study from given weights: those of a run, or of a safetensors file (`model.weights`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import Layout, Net
from fedray.files.bounded import STATE_FILE, find_checkpoints, read_sealed
from fedray.files.plain import expand_user_path
from fedray.models.net import whole_state_dict


def hash_layers(layout: Layout) -> str:
    """Returns a digest of the names and shapes of a network's tensors."""
    text = f"{layout.names} {layout.shapes} {layout.trainable} {layout.counters}"
    return hashlib.sha256(text.encode()).hexdigest()


def read_weights(weights: str, net: Net) -> Tensor:
    """Reads the models from which training starts, `[worlds, K, d]`.

    Counters of batches (`num_batches_tracked`) start at 0 in any case.

    Args:
        weights: a run directory, whose newest models are read, or a safetensors file with the state dict of one model.
        net: the network.

    Raises:
        BadInput: there are no such models, or they do not fit the network.
    """
    path, key = expand_user_path("model.weights", weights), f"model.weights = {weights}"
    remedy = "give the directory of a run, or a .safetensors file"
    if path.is_dir():
        rounds = find_checkpoints(path / "checkpoints")
        if not rounds:
            raise BadInput(f"{key} holds no checkpoint of a run: {remedy}")
        if read_sealed(path / "identity.json")["network"]["layers"] != hash_layers(net.layout):
            raise BadInput(f"{key}: the networks of this run have other layers than {net.name}: give model as there")
        worlds = int(read_sealed(path / "manifest.json")["study"]["worlds"])
        models = _load(path / "checkpoints" / f"round-{rounds[-1]:06d}" / STATE_FILE, key, remedy)["models"]
        return models.float().view(worlds, -1, net.layout.d)
    found, wanted = _load(path, key, remedy), whole_state_dict(net, torch.zeros(net.layout.d))
    for name in sorted(found.keys() | wanted.keys()):
        shapes = [list(each[name].shape) if name in each else "no such tensor" for each in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise BadInput(f"{key}: {name} is {shapes[0]}, but in {net.name} it is {shapes[1]}: {remedy} of {net.name}")
        fixed = name not in (*net.layout.names, *net.layout.counters)
        if fixed and not torch.equal(found[name].to(wanted[name]), wanted[name]):
            raise BadInput(f"{key}: {name} is not trained and differs from that of {net.name}: load it in your network")
    return torch.cat([found[name].reshape(-1).float() for name in net.layout.names]).view(1, 1, -1)


def _load(file: Path, key: str, remedy: str) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError, FedrayError) as error:
        raise BadInput(f"{key} cannot be read ({error}): {remedy}") from None


def start_from(net: Net, weights: str, seeds: Sequence[int], models: int) -> Net:
    """Returns the network, whose first models are those that `weights` names.

    Replicate r starts from replicate r of a run, in turn. If there is one model, all K start from it.

    Args:
        net: the network.
        weights: as in `read_weights`.
        seeds: the seed of each world's first models.
        models: number of models, K.

    Raises:
        BadInput: `weights` has neither one model nor K models.
    """
    rows = read_weights(weights, net)
    if rows.shape[1] not in (1, models):
        raise BadInput(
            f"model.weights = {weights} has {rows.shape[1]} models, but method.models is {models}: give a run of "
            "as many, or one"
        )
    given = {
        int(rng.keys(seed, "init", k)): rows[w % len(rows), k % rows.shape[1]]
        for w, seed in enumerate(seeds)
        for k in range(models)
    }
    return replace(net, init=lambda key: given[int(key)].clone() if int(key) in given else net.init(key))
