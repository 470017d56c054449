"""Every key with every method: a key acts, or it is refused or named; no cell of the matrix is silent.

`python tools/key_matrix.py [METHOD ...]` runs each cell and prints those that changed nothing and said nothing. (Of
3,476 cells 1,102 were silent when it was first run.)
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from small import of_method

import fedray
from fedray.core.errors import BadInput, FedrayError, ScenarioWarning
from fedray.methods import METHOD_SPECS
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import expand, flatten, merge_keys
from fedray.scenario.rows import find_idle_keys
from fedray.scenario.schema import section_fields, section_types

NEVER = (  # they say where, when or how visibly something is computed, and change no result
    "runtime", "report", "loggers", "checkpoint.", "evaluate.", "clients.per_actor", "clients.actors", "clients.device",
    "client_timeout", "on_client_error", "data.root", "table", "published", "lanes", "own", "stop",
)  # fmt: skip
CLOSE = {  # they act, but not in two rounds of this size, or only on what `Run.predict` answers to one client
    "predict.gamma": "predict(client=...)",
    "clients.availability": "a virtual day",
    "clients.tf32": "a GPU",
    "participation.deadline": "a slow client",
    "participation.max_staleness": "uploads that come late",
    "participation.staleness": "uploads that come late",
    "participation.staleness_a": "uploads that come late",
    "participation.staleness_b": "uploads that come late",
    "server.trim": "more uploads of a model than trimmed values",
    "server.byzantine": "more uploads of a model than bad ones",
}
ROOMY = ("stacking", "dsvgd")  # their few clients have more rows than data.partition.min_rows
MEAN = ("fedcross",)  # one mean model answers, whose predictions are not averaged
VALUES: dict[str, list[dict[str, Any]]] = {  # a key -> the keys that set it to another value, and what goes with it
    "seed": [{"seed": 5}],
    "rounds": [{"rounds": 1}],
    "replicates": [{"replicates": 2}],
    "vary": [{"vary": "init"}, {"vary": "init", "replicates": 2}],
    "method.models": [{"method.models": 3}],
    "data.fold": [{"data.fold": 1}],
    "data.test_clients": [{"data.test_clients": 1}],
    "data.standardize": [{"data.standardize": False}],
    "data.scale": [{"data.scale": "unit"}],
    "data.hold_out": [{"data.hold_out": 0.2}],
    "data.limit": [{"data.limit": 100}],
    "data.partition.name": [{"data.partition": {"name": "shards"}}],
    "data.partition.alpha": [{"data.partition.alpha": 0.3}],
    "data.partition.flipped": [{"data.partition.flipped": 0.5}],
    "data.partition.min_rows": [{"data.partition.min_rows": 9, "data.partition.alpha": 0.1}],
    "data.partition.rotation": [{"data.partition.rotation": 4}],
    "data.partition.feature_noise": [{"data.partition.feature_noise": 1.0}],
    "data.partition.permute_labels": [{"data.partition.permute_labels": 2}],
    "data.partition.copies": [{"data.partition.copies": True, "data.partition.permute_labels": 2}],
    "model.objective": [{"model.objective": "gaussian_nll"}, {"model.objective": "mse"}],
    "model.hidden": [{"model.hidden": [5]}],
    "model.activation": [{"model.activation": "tanh"}],
    "model.weight_sd": [{"model.weight_sd": 0.5}],
    "clients.number": [{"clients.number": 5}],
    "clients.availability": [{"clients.availability": "diurnal"}],
    "clients.profile": [{"clients.profile": "phones"}],
    "clients.tiers": [
        {f"clients.tiers.a.{key}": value}
        for key, value in {
            "seconds_per_step": 0.5,
            "seconds_per_sample": 0.5,
            "spread": 1.0,
            "uplink": 1e3,
            "downlink": 1e3,
            "latency": 3.0,
            "side_by_side": True,
            "models_per_round": "all",
            "width": 0.5,
            "epochs": 3,
            "steps": 3,
        }.items()
    ],
    "clients.tf32": [{"clients.tf32": True}],
    "participation.per_round": [{"participation.per_round": 3}],
    "participation.fraction": [{"participation.fraction": 0.5}],
    "participation.selection.name": [
        {"participation.selection.name": "fair"},
        *(
            {"participation.selection.name": name, "participation.per_round": 3}
            for name in ("fair", "examples", "oort")
        ),
    ],
    "participation.overcommit": [
        {"participation.overcommit": 1.5},
        {"participation.overcommit": 1.5, "participation.per_round": 3},
    ],
    "participation.partial": [{"participation.partial": 1.0}],
    "participation.dropout": [{"participation.dropout": 0.5}],
    "participation.deadline": [{"participation.deadline": 0.01}],
    "participation.mode": [{"participation.mode": mode, "participation.goal": 2} for mode in ("buffered",)]
    + [{"participation.mode": mode} for mode in ("semi", "async")],
    "participation.concurrency": [
        {"participation.concurrency": 2},
        {"participation.concurrency": 2, "participation.mode": "async"},
    ],
    "participation.goal": [
        {"participation.goal": 2},
        {"participation.goal": 2, "participation.mode": "buffered"},
    ],
    "participation.tick": [{"participation.tick": 99.0}, {"participation.tick": 99.0, "participation.mode": "semi"}],
    "participation.alpha": [{"participation.alpha": 0.1}, {"participation.alpha": 0.1, "participation.mode": "async"}],
    "participation.staleness": [
        {"participation.staleness": "constant"},
        {"participation.staleness": "constant", "participation.mode": "async"},
    ],
    "participation.staleness_a": [
        {"participation.staleness_a": 2.0},
        {"participation.staleness_a": 2.0, "participation.mode": "async"},
    ],
    "participation.staleness_b": [
        {"participation.staleness_b": 0.0},
        {"participation.staleness_b": 0.0, "participation.mode": "async"},
        {"participation.staleness_b": 0.0, "participation.mode": "async", "participation.staleness": "hinge"},
    ],
    "schedule.kind": [{"schedule.kind": kind} for kind in ("random", "balanced", "adaptive")],
    "schedule.rows": [
        {"schedule.rows": "stratum"},
        {"schedule.rows": "stratum", "participation.fraction": 0.5},
    ],
    "local.optimizer": [{"local.optimizer": "adam"}, {"local.optimizer": "sgd"}],
    "local.lr": [{"local.lr": 0.02}, {"local.lr": 0.02, "local.lr_grid": [0.01, 0.1], "data.hold_out": 0.2}],
    "local.lr_grid": [{"local.lr_grid": [0.003, 0.03], "data.hold_out": 0.2}],  # not the rate of `base_of`
    "local.lr_decay": [{"local.lr_decay": 0.5, "local.lr_decay_every": 1}],
    "local.lr_decay_every": [{"local.lr_decay_every": 1}, {"local.lr_decay_every": 1, "local.lr_decay": 0.5}],
    "local.momentum": [
        {"local.momentum": 0.5},
        {"local.momentum": 0.5, "local.optimizer": "adam"},
        {"local.momentum": 0.5, "local.optimizer": "sgd"},
    ],
    "local.weight_decay": [{"local.weight_decay": 0.1}],
    "local.batch_size": [{"local.batch_size": 4}],
    "local.epochs": [{"local.epochs": 2}],
    "local.steps": [{"local.steps": 3}],
    "local.pull": [{"local.pull": 1.0}],
    "local.augment": [{"local.augment": ["crop"]}],
    "local.private": [{"local.private": ["1"]}],
    "local.schedule.kind": [{"local.schedule.kind": kind} for kind in ("cosine", "linear")],
    "local.schedule.rounds": [
        {"local.schedule.rounds": 3},
        {"local.schedule.rounds": 3, "local.schedule.kind": "cosine"},
    ],
    "local.schedule.restart": [
        {"local.schedule.restart": True},
        {"local.schedule.restart": True, "local.schedule.kind": "cosine", "local.schedule.rounds": 1},
    ],
    "local.schedule.floor": [
        {"local.schedule.floor": 0.5},
        {"local.schedule.floor": 0.5, "local.schedule.kind": "linear"},
    ],
    "local.schedule.warmup": [{"local.schedule.warmup": 3}],
    "local.schedule.at": [
        {"local.schedule.at": [1]},
        {"local.schedule": {"kind": "step", "at": [1]}},
    ],
    "local.schedule.gamma": [
        {"local.schedule.gamma": 0.5},
        {"local.schedule.gamma": 0.5, "local.schedule.kind": "step", "local.schedule.at": [1]},
    ],
    "compress.kind": [{"compress.kind": kind} for kind in ("topk", "randomk", "int8")],
    "compress.ratio": [{"compress.ratio": 0.5}, {"compress.ratio": 0.5, "compress.kind": "topk"}],
    "compress.resource_ratio": [
        {"compress.resource_ratio": 1.5},
        {"compress.resource_ratio": 1.5, "compress.kind": "topk"},
    ],
    "compress.error_feedback": [
        {"compress.error_feedback": True},
        {"compress.error_feedback": True, "compress.kind": "topk"},
    ],
    "compress.adaptive": [{"compress.adaptive": True}, {"compress.adaptive": True, "compress.kind": "topk"}],
    "server.coefficients": [{"server.coefficients": "equal_groups"}],
    "server.weighting": [{"server.weighting": "examples"}, {"server.weighting": "uniform"}],
    "server.optimizer": [{"server.optimizer": "adam"}],
    "server.lr": [{"server.lr": 0.5}, {"server.lr": 0.5, "server.optimizer": "momentum"}],
    "local.last_batch": [{"local.last_batch": rule, "local.batch_size": 7} for rule in ("drop", "merge")],
    "local.nesterov": [{"local.nesterov": True}, {"local.nesterov": True, "local.momentum": 0.9}],
    "server.schedule.kind": [
        {"server.schedule.kind": "cosine"},
        {"server.schedule.kind": "cosine", "server.optimizer": "momentum"},
    ],
    **{
        f"server.schedule.{key}": [
            {f"server.schedule.{key}": value},
            {"server.optimizer": "momentum", "server.schedule": {"kind": kind, **more, key: value}},
        ]
        for key, value, kind, more in (
            ("rounds", 3, "cosine", {}),
            ("restart", True, "cosine", {"rounds": 1}),
            ("floor", 0.5, "linear", {}),
            ("warmup", 3, "constant", {}),
            ("at", [1], "step", {}),
            ("gamma", 0.5, "step", {"at": [1]}),
        )
    },
    "participation.max_staleness": [
        {"participation.max_staleness": 1},
        {"participation.max_staleness": 1, "participation.mode": "async"},
    ],
    "server.tau": [{"server.tau": 0.1}, {"server.tau": 0.1, "server.optimizer": "yogi"}],
    "server.momentum": [{"server.momentum": 0.2}, {"server.momentum": 0.2, "server.optimizer": "momentum"}],
    "server.robust": [{"server.robust": "median"}],
    "server.seconds_per_step": [{"server.seconds_per_step": 1.0}],
    "server.seconds_per_sample": [{"server.seconds_per_sample": 1.0}],
    "server.trim": [{"server.trim": 2}, {"server.trim": 2, "server.robust": "trimmed_mean"}],
    "server.byzantine": [{"server.byzantine": 2}, {"server.byzantine": 0, "server.robust": "krum"}],
    "predict.average": [{"predict.average": "logits"}],
    "predict.conformal.alpha": [{"predict.conformal.alpha": 0.3, "data.hold_out": 0.3}],
    "predict.conformal.score": [{"predict.conformal.score": "aps", "data.hold_out": 0.3}],
    "predict.conformal.quantile": [{"predict.conformal.quantile": "qq", "data.hold_out": 0.3}],
    "predict.conformal.penalty": [
        {"predict.conformal.penalty": 0.5, "predict.conformal.score": "raps", "data.hold_out": 0.3}
    ],
    "predict.conformal.k_reg": [
        {
            "predict.conformal.k_reg": 4,
            "predict.conformal.score": "raps",
            "data.hold_out": 0.3,
            "predict.conformal.penalty": 0.5,
        },
    ],
    "predict.gamma": [{"predict.gamma": 0.1}],
    "predict.noise": [{"predict.noise": "residual"}],
    "predict.dropout_at_test": [
        {"predict.dropout_at_test": True},
        {"predict.dropout_at_test": True, "model": {"name": "cnn", "dropout": 0.5}},
    ],
    "graph.kind": [{"graph.kind": "complete"}],
    "graph.transition": [{"graph.transition": "lazy"}],
    "graph.probability": [{"graph.probability": 0.5}],
    "graph.neighbours": [{"graph.neighbours": 2}],
    "graph.node_failure": [{"graph.node_failure": 0.5}],
    "graph.edge_failure": [{"graph.edge_failure": 0.5}],
}
FILES = ("clients.trace", "model.weights", "graph.edges", "graph.failures")  # need a file; tests of their own
CODE = ("local.loss", "callbacks")  # need a user's own code; tests of their own
OPTIONS: dict[str, list[Any]] = {
    "mu": [0.5], "alpha": [0.5], "sampling": ["omc"], "samples": [3], "beta": ["target", "residual", 0.5],
    "residuals": ["mean"],
    "sampler": ["dirichlet"], "temperature": [2.0], "server_data": [0.3], "distil_epochs": [1], "distil_lr": [0.1],
    "distil_batch": [4], "lambda": [2.0], "shared_layers": [2], "bases": [[{"name": "linear"}]], "folds": ["within"],
    "fold_number": [3], "meta": ["mlp", "average"], "meta_rounds": [1], "meta_lr": [0.5], "meta_optimizer": ["sgd"],
    "learner": [{"max_leaf_nodes": 3}], "draw": ["weights"],
    "networks": [[{"name": "linear"}]],
    "inputs": ["noise"], "input_rows": [50], "validation": [0.3], "teacher": ["confidence"], "distil_steps": [3],
    "patience": [1], "aggregator": ["client_weights", "voting"], "proxy": [0.3], "width": [3], "meta_batch": [2],
    "features": ["all", "side_by_side"], "meta_data": ["pooled"],
    "meta_steps": [2], "precisions": ["evidence"], "rho": [0.5], "body_epochs": [2], "scaler": [True],
    "burn_in": [1], "mixing": [0.5], "zeta": [3.0], "personal_steps": [2], "fisher": ["empirical"], "fisher_rows": [3],
    "damping": [0.3], "precision": [3.0], "prior": [0.5], "solver": ["descent"], "solver_steps": [7],
    "solver_lr": [0.3], "bandwidth": [0.2], "factor_steps": [3], "decay": ["none"],
    "cycles": [2], "samples_per_cycle": [3], "exploration": [0.1], "beta_epochs": [2], "beta_lr": [0.1],
    "beta_batch": [7], "penalty": [1.0], "dual_step": [0.5], "server_step": [0.7], "beta1": [0.5], "beta2": [0.9],
    "blocks": [1], "partner": ["most_similar"], "answer": ["ensemble"],
}  # fmt: skip
BESIDE: dict[str, dict[str, Any]] = {
    "meta_batch": {"method.proxy": 0.4},
    "samples": {"local.epochs": 6},
    "temperature": {"local.epochs": 12},
}  # what an option needs on so few rows
TIERED = ("clients.tiers", "server.coefficients", "compress.adaptive", "compress.resource_ratio")


def find_missing_rows() -> set[str]:
    """Returns the keys of scenarios that have no row in the matrix, and its options that no method has."""
    keys = {
        f"{section}.{key}".lstrip(".")
        for section in section_types()
        if "*" not in section and section.partition(".")[0] not in ("evaluate", "checkpoint")
        for key in section_fields(section)
        if f"{section}.{key}".lstrip(".") not in section_types()
    }
    named = {key for key in keys if key.endswith((".name", ".object"))} - {"data.partition.name"}
    covered = {key for key in VALUES if key in keys} | set(FILES) | set(CODE)
    known = {option for spec in METHOD_SPECS.values() for option in spec.options}
    return {key for key in keys - covered - named if not key.startswith(NEVER)} | (OPTIONS.keys() - known)


def base_of(method: str, tiered: bool) -> dict[str, Any]:
    """Returns a small scenario that sets only keys that the method reads."""
    given = {key: value for key, value in flatten(of_method(method)).items() if key in WRITTEN}
    number = {"stacking": 4, "random_walk": 5, "dsvgd": 3}.get(method, 10)  # few, so that two models meet at a client
    rounds = {"bayesian_linear": 0, "random_walk": 6, "dsvgd": 4}.get(method, 2)
    tree = expand({**given, "rounds": rounds, "clients.number": number})
    small: dict[str, Any] = {"report": False, "runtime": "inline"}
    if tree["data"]["name"] == "digits":
        small["data.limit"] = 120
        if not METHOD_SPECS[method].pooled:
            small["data.partition"] = {"name": "dirichlet", "alpha": 1.0}
    if method == "depthfl":
        small["model.hidden"] = [8, 6]  # two blocks
    if tiered:
        small |= {"clients.tiers.a": {"share": 0.3, "uplink": 2e6}, "clients.tiers.b": {"share": 0.7}}
    tree = merge_keys(tree, expand(small))
    tree = {**tree, "method": {"name": method, **tree.get("method", {})}}
    idle = {
        one.key for one in find_idle_keys(tree, read_scenario(tree, explicit=False))
    }  # of references, and of learners
    return expand({key: value for key, value in flatten(tree).items() if key not in idle})


WRITTEN = (
    "data.name",
    "method.name",
    "method.server_data",
    "method.distil_steps",
    "method.meta_rounds",
    "method.factor_steps",
    "model.name",
    "model.norm",
    "local.lr",
    "local.batch_size",
    "local.epochs",
)


def outcome(tree: dict[str, Any], out: Path) -> Any:
    """Runs a scenario. Returns its results without measured times, and its warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ScenarioWarning)
        run = fedray.run(tree, out=out)
    table = [{k: v for k, v in row.items() if k != "wall_seconds"} for row in run.rounds.to_pylist()]
    hashes = run.summary["model_hash"], run.summary["state_hash"]
    seconds = run.clients["sim_seconds"].to_pylist()
    return repr(
        (hashes, table, seconds, [str(one.message) for one in said if issubclass(one.category, ScenarioWarning)])
    )


def _change(default: Any) -> Any:
    """Returns a different value of an option without values in `OPTIONS`: a flag or a number."""
    assert isinstance(default, bool | int | float), "give it values in OPTIONS"
    return not default if isinstance(default, bool) else default + 1 if isinstance(default, int) else default / 2


def cells_of(method: str) -> list[dict[str, Any]]:
    """Returns the keys and values that are set in each cell of a method. The key to be tried comes first."""
    options = [
        {f"method.{key}": value, **BESIDE.get(key, {})}
        for key in METHOD_SPECS[method].options
        for value in OPTIONS.get(key) or [_change(METHOD_SPECS[method].options[key].default)]
    ]
    return [*(cell for cells in VALUES.values() for cell in cells), *options]


def find_silent_cells(method: str, folder: Path) -> list[dict[str, Any]]:
    """Returns the cells of a method in which a key has no effect and no message names it."""
    silent, plain = [], dict[str, Any]()

    def result(tree: dict[str, Any]) -> Any:
        key = repr(tree)
        if key not in plain:
            try:
                plain[key] = outcome(tree, folder / str(len(plain)))
            except FedrayError as error:
                plain[key] = error
        return plain[key]

    assert not isinstance(result(base_of(method, tiered=False)), FedrayError)  # else every cell would be refused
    for cell in cells_of(method):
        first = next(iter(cell))
        base = base_of(method, first.startswith(TIERED))
        beside = {key: value for key, value in cell.items() if key != first}
        default = merge_keys(base, expand(beside))
        changed = merge_keys(default, expand({first: cell[first]}))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ScenarioWarning)
                resolved = read_scenario(changed) == read_scenario(default)
        except BadInput:
            continue  # refused
        if resolved:
            continue  # the value is the default
        after = result(changed)
        if (
            not isinstance(after, FedrayError)
            and after == result(default)
            and first not in CLOSE
            and not (first == "data.partition.min_rows" and method in ROOMY)
            and not (first == "predict.average" and method in MEAN)
        ):
            silent.append(cell)
    return silent


def main(methods: list[str]) -> None:
    """Prints the silent cells; ends with status 1 where there is one."""
    silent = 0
    for method in methods or METHOD_SPECS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = find_silent_cells(method, Path(folder))
        print(f"{method} [{time.monotonic() - began:.0f} s]: {len(found)} silent", *found, sep="\n    ", flush=True)
        silent += len(found)
    sys.exit(bool(silent))


if __name__ == "__main__":
    main(sys.argv[1:])
