"""What goes together: methods and schedules, on both runtimes, resumed; and what the README says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference_methods import write_readme
from small import NEEDS, copy_run, of_method, rows, scenario

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.evaluation.answers import own_test_rows
from fedray.methods import METHOD_SPECS, METHODS
from fedray.scenario.loader import read_scenario

ONE_CLIENT = ("centralized", "deep_ensemble", "bayesian_linear")
SCHEDULES = ("permutation", "random", "balanced", "adaptive")
OPTIONS: dict[str, dict[str, Any]] = {"ditto": {"lambda": [0.1, 1.0]}, "lg_fedavg": {"shared_layers": 1}}
README = (Path(__file__).parents[2] / "README.md").read_text()


def combined(method: str, kind: str = "permutation", /, **changes: Any) -> dict[str, Any]:
    """Several models where the method has them, half of the clients a round, held-out rows, sparse uploads."""
    several = {"models": 2} if METHOD_SPECS[method].models == "any" else {}
    served = method != "random_walk"
    with_server = {"schedule": {"kind": kind}, "participation": {"fraction": 0.5}} if served else {}
    sparse: dict[str, Any] = {"kind": "topk", "ratio": 0.5, "error_feedback": served}
    if method == "dsvgd":  # one client a round, whose uploads are whole
        with_server, sparse = {}, {}
    elif not METHOD_SPECS[method].sparse:
        sparse = {"kind": "int8", "error_feedback": True}
    return of_method(
        method,
        {"method": {**several, **OPTIONS.get(method, {})}, "rounds": 2, **with_server},
        {"data": {"hold_out": 0.2}, "checkpoint": {"every": 1}},
        {"compress": sparse},
        changes,
    )


def hashes(run: fedray.Run) -> tuple[str, str, Any]:
    return run.summary["model_hash"], run.summary["state_hash"], run.summary["metrics"]


SERVED = sorted(set(METHODS) - {"random_walk"})
KINDS = ("fedavg", "scaffold", "fed_ensemble")  # of methods: stateless, private state, several models
IN_TURN = [(method, SCHEDULES[turn % 4]) for turn, method in enumerate(SERVED)]
EACH_WITH_EACH = [(method, kind) for method in KINDS for kind in SCHEDULES]
SCHEDULED = sorted({*IN_TURN, *EACH_WITH_EACH, ("random_walk", "permutation")})


@pytest.mark.parametrize(("method", "kind"), SCHEDULED)
def test_methods_resume_under_schedules(method: str, kind: str, tmp_path: Path) -> None:
    """Finite, and after a crash the same models, private state and scores.

    Methods and schedules meet in the plan alone. So each method has one schedule, and one method of each kind has all.
    """
    run = fedray.run(combined(method, kind), out=tmp_path / "run")
    assert all(bool(torch.isfinite(value).all()) for model in run.models for value in model.values())
    assert hashes(fedray.resume(copy_run(run, tmp_path / "copy", 1))) == hashes(run)


BASES = [{"name": "mlp", "hidden": [6]}, {"name": "mlp", "hidden": [4], "models": 2}]
NO_MODEL: dict[str, Any] = {"name": None, "hidden": None}
SETS: dict[str, Any] = {"predict": {"conformal": {"alpha": 0.5}}}
VARIANTS: dict[str, dict[str, Any]] = {  # parts of methods that their defaults do not reach, by method
    "fedag omc": {"method": {"sampling": "omc", "samples": 3}},
    "fedbe dirichlet": {"method": {"sampler": "dirichlet", "samples": 3}},
    "feddf noise": {"method": {"inputs": "noise", "teacher": "confidence", "input_rows": 50}},
    "feddf networks": {"method": {"networks": [BASES[0], {"name": "linear"}]}, "model": NO_MODEL},
    "shefl proximal": {"method": {"mu": 0.1}},
    "shefl corrected": {"method": {"alpha": 0.1}},
    "stacking bases": {"method": {"bases": BASES}, "model": NO_MODEL},
    "stacking within": {"method": {"bases": BASES, "folds": "within", "meta": "mlp"}, "model": NO_MODEL},
    "stacking classifiers": {
        "method": {"bases": [BASES[0], {"name": "sklearn/decision_tree", "max_depth": 3}]}, "model": NO_MODEL,
    },
    "adaboost_f weights": {"method": {"draw": "weights"}},
    **{f"fens {kind}": {"method": {"aggregator": kind}} for kind in ("class_weights", "client_weights", "voting")},
    "beta_predbayes product": {"method": {"beta": 1, "server_data": 0}},
    "random_walk failures": {"graph": {"kind": "watts_strogatz", "node_failure": 0.2, "edge_failure": 0.1}},
}  # fmt: skip


# Ray takes seconds to start its actors; by default other tests have the parts of which these methods are made.


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(METHODS), *VARIANTS])
@pytest.mark.usefixtures("cluster")
def test_every_method_has_the_bits_of_one_process_in_two_actors(name: str, tmp_path: Path) -> None:
    """Models, private vectors, every table, and the sets of known clients, who are asked where they live.

    With error feedback jobs run where their client lives; without it actors take chunks of them as they finish.
    """
    method, change = name.split()[0], VARIANTS.get(name, {})
    kept: dict[str, Any] = {"compress": {"error_feedback": False}} if change else {}
    tree = combined(method, evaluate={"personal": True, "clients": "all"}, **SETS, **kept, **change)
    actors: dict[str, Any] = {"runtime": "ray", "clients__actors": 1 if method in ONE_CLIENT else 2}
    ray, inline = fedray.run(tree, out=tmp_path / "ray", **actors), fedray.run(tree, out=tmp_path / "inline")
    assert hashes(ray) == hashes(inline)
    for table in ("rounds", "clients", "client_scores"):
        assert rows(getattr(ray, table)) == rows(getattr(inline, table)), table


CLASSIFIERS = sorted(set(METHODS) - {"deep_ensemble", "bayesian_linear"})


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_known_clients_are_answered_as_they_were_scored(method: str) -> None:
    """Whatever answers (models, samples, teachers, a client's own): `predict(client=i)` scores what was reported."""
    gamma = {} if METHOD_SPECS[method].parts else {"predict": {"gamma": 0.1}}  # a stack answers all clients alike
    run = fedray.run(combined(method, "random", evaluate={"personal": True}, **gamma))
    study, right = run.study, []
    x, y = (part.numpy() for part in study.split("test", 0))
    ask = own_test_rows(study, 0)
    for client in range(study.clients.number):
        asked = ask(client)
        said = run.predict(x[asked.rows], client=client).mean.argmax(-1)
        right.append(((said == y[asked.rows]) * asked.weight).sum())
    last = run.rounds.to_pylist()[-1]
    assert np.mean(right) == pytest.approx(last["personal_accuracy"])
    assert min(right) == pytest.approx(last["personal_worst"])
    everybody = run.predict(x).mean
    assert -np.log(everybody[np.arange(len(y)), y]).mean() == pytest.approx(last["nll"], rel=1e-6)


CHANGES: dict[str, dict[str, Any]] = {
    "several models": {"method": {"models": 3}},
    "robust": {"server": {"robust": "median", "coefficients": "fedavg"}},
    "optimizer": {"server": {"optimizer": "yogi"}},
}


EVERYTHING: dict[str, Any] = {
    "participation": {"per_round": 2, "selection": "oort", "overcommit": 2, "dropout": 0.1, "deadline": 9.0},
    "compress": {"kind": "topk", "ratio": 0.5, "error_feedback": True},
    "clients": {"number": 6, "tiers": {"fast": {"share": 0.5}, "slow": {"share": 0.5, "seconds_per_step": 1.0}}},
}


@pytest.mark.parametrize("method", sorted(METHOD_SPECS.keys() - {"scaffold"}))  # which has all of this, with plain SGD
def test_the_page_on_what_combines_names_every_exception(method: str) -> None:
    """All ways to draw, to compress and to schedule at once are what a method combines with, or the page names it."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "combine_methods.md").read_text()
    table = page.partition("## Exceptions")[2].partition("\n## ")[0]
    exceptions = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.rpartition(" | ")[0])}
    random: dict[str, Any] = {"schedule": {"kind": "random"}}
    changes = {"any": {**random, "method": {"models": 2}}, "clients": random, "one": {}}[METHOD_SPECS[method].models]
    keys = scenario({"method": {"name": method}}, NEEDS.get(method, {}), changes, EVERYTHING)
    try:
        build_study(read_scenario(keys))
        assert method not in exceptions
    except BadInput as refused:
        assert method in exceptions, refused


def test_the_readme_names_all_methods() -> None:
    """`python docs/_ext/reference_methods.py` writes it."""
    assert write_readme(README) == README


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("method", METHOD_SPECS)
def test_a_method_combines_with_what_its_specification_says(method: str, change: str) -> None:
    """What is allowed builds, what is not is one line."""
    spec = METHOD_SPECS[method]
    allowed = {"several models": spec.models == "any", "robust": spec.robust, "optimizer": spec.optimizer}
    tree = of_method(method, CHANGES[change])
    if allowed[change]:
        assert build_study(read_scenario(tree)).method.name == method
        return
    with pytest.raises(BadInput, match=r"one model|server") as wrong:
        build_study(read_scenario(tree))
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("method", METHOD_SPECS)
def test_a_method_keeps_private_state_where_its_specification_says_so(method: str) -> None:
    phase = build_study(
        read_scenario(of_method(method, {"method": OPTIONS.get(method, {}), "data": {"hold_out": 0.2}}))
    ).method.phase
    private = METHOD_SPECS[method].private
    assert bool(phase.own) == bool(private and ", if " not in private)
