"""Where a method is another one: two scenarios with the same models, and a change that parts them."""

from typing import Any, NamedTuple

import pytest
import torch
from modules import Residual
from small import scenario, train
from torch import Tensor, nn

from fedray.scenario.nested import merge_keys
from fedray.simulation.stacking import read_part
from fedray.simulation.study import Progress, Study

Keys = dict[str, Any]
CNN: Keys = {"model": {"name": "cnn", "channels": [3, 4], "hidden": [8]}, "rounds": 2}
FULL: Keys = {"local": {"batch_size": "full"}}
IID: Keys = {"data": {"partition": {"name": "iid"}}}
BATCH_NORM: Keys = {"model": {"norm": "batch"}, **FULL, **IID}
UNIFORM: Keys = {"server": {"weighting": "uniform"}}
TOP_K: Keys = {"compress": {"kind": "topk", "ratio": 0.3, "error_feedback": True}}
SOME: Keys = {"participation": {"per_round": 3}, **TOP_K}
MOMENTUM: Keys = {"server": {"optimizer": "momentum", "lr": 0.5}}
SKEWED: Keys = {"data": {"partition": {"name": "dirichlet", "alpha": 0.3}}}
TIERS: Keys = {"clients": {"tiers": {"a": {"share": 0.5, "uplink": 2e5}, "b": {"share": 0.5}}}}
GROUPS: Keys = {**TIERS, "server": {"coefficients": "equal_groups"}}
ADAM: Keys = {"server": {"optimizer": "adam", "lr": 0.05}}
ALONE: Keys = {"clients": {"number": 1}}
CUBIC: Keys = {
    "data": {"name": "cubic", "limit": None, "partition": None}, "rounds": 2, "local": {"lr": 0.01, "epochs": 2},
}  # fmt: skip
DISJOINT: Keys = {"data": {"partition": {"name": "classes", "classes": 1}}, "clients": {"number": 10}}
POOLED: Keys = {"data": {"clients": 6, "partition": {"name": "iid"}}, **ALONE}
WHOLE: Keys = {
    "clients": {
        "number": None,
        "tiers": {"a": {"number": 2, "width": 1.0}, "b": {"number": 4, "seconds_per_step": 1.5}},
    }
}
ONE_TIER: Keys = {"clients": {"number": 6, "tiers": {"all": {"number": 6}}}}
TIER: Keys = {"seconds_per_step": 0.01, "uplink": 1e6}  # else SHEFL's tiers have speeds of their own
ONE_EACH: Keys = {**TIER, "models_per_round": 1}
WEAK: Keys = {"clients": {"tiers": {"hpc": {**TIER, "number": 0}, "lpc": {**ONE_EACH, "number": 6}}}}
PAIR: Keys = {"clients": {"tiers": {"hpc": {**TIER, "number": 3}, "lpc": {**ONE_EACH, "number": 3}}}}
ALL: Keys = {"clients": {"tiers": {"hpc": {"models_per_round": "all"}}}, "server": {"coefficients": "equal_groups"}}
WHOLE_UPLOADS: Keys = {"compress": {"kind": "topk", "ratio": 1.0}}
MANY: Keys = {
    "clients": {"tiers": {"strong": {"share": 0.5, "models_per_round": "all"}, "weak": {"share": 0.5}}},
    "local": {"epochs": None, "steps": 5},
    "participation": {"fraction": 0.5},
    "server": {"weighting": "examples"},
    **TOP_K,
}
TERMS: Keys = {"local": {"momentum": 0.5, "weight_decay": 0.01}}
FEW: Keys = {"rounds": 2, "data": {"limit": 90}, "clients": {"number": 3}}
FEDDF: Keys = {"inputs": "noise", "validation": 0.0}
LISTED: Keys = {"server_data": 0.2, "validation": 0.0, "distil_steps": 10}
NETWORKS: Keys = {"networks": [{"name": "mlp", "hidden": [8]}]}


def of(name: str, **options: Any) -> Keys:
    return {"method": {"name": name, **options}}


AVERAGE = of("fedavg")
FURTHER = ("ifca", "fedem", "moon", "fedsam", "ditto")  # pass over their samples once more, at the limit too


class Limit(NamedTuple):
    """Two scenarios, and what both have beside the small scenario."""

    one: Keys  # a method with options with which it is another one
    other: Keys
    both: Keys
    apart: Keys | None = None  # with these it is no longer the other one; None: nothing is said of it
    atol: float = 0.0  # how far numbers may be from each other; 0: bits, bytes and seconds are equal
    network: Any = None  # of both, where it is none of the scenario
    costs: bool = True  # whether bytes and seconds are equal, too; the methods of `FURTHER` take longer


def each(name: str, one: Keys, other: Keys, changes: dict[str, Keys], **more: Any) -> dict[str, Limit]:
    """The same limit under several changes."""
    return {f"{name}, {kind}": Limit(one, other, change, **more) for kind, change in changes.items()}


KINDS = {"mlp": {}, "cnn": CNN}
SERVED = {**KINDS, "server momentum": MOMENTUM}
LIMITS: dict[str, Limit] = {
    **each("FedProx without its term", of("fedprox", mu=0.0), AVERAGE, KINDS, apart=of("fedprox", mu=0.5)),
    **each(
        "Fed-ensemble of one model", of("fed_ensemble", models=1), AVERAGE,
        {kind: {**UNIFORM, "schedule": {"kind": kind}} for kind in ("permutation", "random", "balanced", "adaptive")}
        | {"cnn": {**UNIFORM, **CNN}},
    ),
    **each(
        "weights by example of equal clients", {**AVERAGE, "server": {"weighting": "examples"}}, {**AVERAGE, **UNIFORM},
        {kind: {**IID, **change, "clients": {"number": 8}} for kind, change in KINDS.items()}, apart=SKEWED, atol=1e-5,
    ),
    "FedExP of one client": Limit(of("fedexp"), AVERAGE, ALONE),
    "FedExP of a large eps": Limit(
        of("fedexp", eps=1e6), AVERAGE, DISJOINT,
        apart=of("fedexp", eps=1e-9), atol=1e-6,
    ),
    "FedNova of equal steps": Limit(
        of("fednova"), AVERAGE, {"local": {"epochs": None, "steps": 7, "momentum": 0.5}},
        apart={"local": {"epochs": 2, "steps": None}}, atol=1e-6,
    ),
    "q-FFL of q = 0": Limit(of("qffl", q=0), {**AVERAGE, **UNIFORM}, SKEWED, apart=of("qffl", q=1), atol=1e-6),
    **each("FedPA's burn-in", of("fedpa", burn_in=4), AVERAGE, SERVED, apart=of("fedpa", burn_in=1)),
    **each(
        "FedPA of a last iterate", of("fedpa", samples=1, mixing=0.9), AVERAGE,
        {kind: {**change, "local": {"epochs": None, "steps": 10}} for kind, change in SERVED.items()},
        apart=of("fedpa", samples=1, mixing=0.0),  # the mean of the iterates
    ),
    "an ensemble of FedPA's last iterates": Limit(
        of("fedpa", models=2, samples=1, mixing=0.8), of("fed_ensemble", models=2), MANY,
        apart=of("fedpa", samples=2, mixing=0.0),
    ),
    "FedPA's burn-in of server steps": Limit(
        of("fedpa", burn_in=12), AVERAGE, {"participation": {"mode": "async", "concurrency": 3}, "rounds": 12},
        apart=of("fedpa", burn_in=6),
    ),
    **each(
        "IFCA of one model", of("ifca", models=1), {**AVERAGE, **UNIFORM},
        {"plain": {}, "some clients": {**SOME, "server": {"optimizer": "momentum"}}},
    ),
    **each(
        "FedEM of one component", of("fedem", models=1), AVERAGE,
        {**KINDS, "some clients": {**SOME, "server": {"optimizer": "adam"}}},
    ),
    **each(
        "FedDF without steps", of("feddf", **FEDDF, distil_steps=0), AVERAGE,
        {
            "two replicates": {"replicates": 2, "rounds": 2},
            "some clients": {**SOME, "participation": {"per_round": 4}},
            "tiers": GROUPS, "a server optimizer": ADAM, "batch statistics": BATCH_NORM,
            "without rounds": {"participation": {"mode": "buffered", "goal": 3}},
        },
        apart=of("feddf", **FEDDF, distil_steps=5),
    ),
    **each(
        "FedDF of one listed network", {**of("feddf", **LISTED, **NETWORKS), "model": {"name": None, "hidden": None}},
        of("feddf", **LISTED),
        {
            "two replicates": {"replicates": 2}, "K = 2": of("feddf", models=2), "some clients": SOME,
            "tiers": {**GROUPS, **of("feddf", teacher="confidence")},
            "a server optimizer": {**ADAM, "participation": {"dropout": 0.5}},
        },
    ),
    "Split-Mix of one network": Limit(of("split_mix", models=1), AVERAGE, ONE_TIER),
    "Split-Mix of a network a device": Limit(
        of("split_mix", models=4), of("fed_ensemble", models=4), {**ONE_TIER, **UNIFORM}
    ),
    **{
        name: limit
        for method in ("heterofl", "fedrolex")
        for models in (1, 2)
        for name, limit in each(
            f"{method} of whole widths, K = {models}", of(method, models=models), of("fed_ensemble", models=models),
            {kind: {**WHOLE, **UNIFORM, **change} for kind, change in {**KINDS, "batch norm": BATCH_NORM}.items()},
        ).items()
    },
    "MOON without its term": Limit(
        of("moon", mu=0.0), AVERAGE, {**FEW, **TERMS}, apart=of("moon", mu=5.0), network=Residual
    ),
    "FedSAM of radius 0": Limit(
        of("fedsam", rho=0.0), AVERAGE, {**FEW, **TERMS}, apart=of("fedsam", rho=0.5), network=Residual
    ),
    "FedPer with nothing private": Limit(of("fedper"), AVERAGE, {**FEW, "local": {"private": []}}),
    "LG-FedAvg as a key": Limit(
        of("lg_fedavg", shared_layers=1), {**AVERAGE, "local": {"private": ["1"]}}, FEW,
        apart=of("lg_fedavg", shared_layers=2),
    ),
    "LG-FedAvg that shares every layer": Limit(of("lg_fedavg", shared_layers=2), AVERAGE, FEW),
    "the global model of Ditto": Limit(of("ditto"), {**AVERAGE, **UNIFORM}, FEW),
    "FedCross of one model": Limit(of("fedcross", models=1), {**AVERAGE, **UNIFORM}, FEW),
    "FedCross of models that keep all": Limit(
        of("fedcross", models=4, alpha=1), {**of("fed_ensemble", models=4), **UNIFORM}, {},
        apart=of("fedcross", models=4, alpha=0.9),
    ),
    **each(
        "SHEFL of weak clients", {**of("shefl", models=3), **WHOLE_UPLOADS}, of("fed_ensemble", models=3),
        {"all": WEAK, "some": {**WEAK, "participation": {"per_round": 3}}},
    ),
    "SHEFL of one model and a pull": Limit(
        {**of("shefl", models=1, mu=0.5), **WHOLE_UPLOADS}, {**of("fedprox", mu=0.5), **UNIFORM}, WEAK,
        apart=of("shefl", mu=0.0),
    ),
    "SHEFL with FedDyn's pull": Limit(
        of("shefl", models=3, alpha=0.1),
        {**of("feddyn_ensemble", models=3, alpha=0.1), "compress": {"kind": "topk"}, **ALL}, PAIR,
        apart=of("shefl", mu=1.0),
    ),
    "a server momentum of 0": Limit(
        {"server": {"optimizer": "momentum", "momentum": 0.0, "lr": 1.0}}, {}, of("fed_ensemble", models=2)
    ),
    "PVI's default damping": Limit(
        of("pvi"), of("pvi", damping=1 / 6), {"local": {"lr": 0.01}, "rounds": 2}, apart=of("pvi", damping=0.1)
    ),
    "IVON-ADMM's default server step": Limit(
        of("ivon_admm"), of("ivon_admm", server_step=1 / (1 + 0.2 * 6)), {"local": {"lr": 1e-4}, "rounds": 2},
        apart=of("ivon_admm", server_step=0.4),
    ),
    "the mean of FedAG": Limit(of("fedag"), AVERAGE, CUBIC, costs=False),
    "training on the pooled rows": Limit({**CUBIC, **of("centralized")}, merge_keys({**CUBIC, **AVERAGE}, POOLED), {}),
    "FedFisher of a damping that dwarfs": Limit(
        of("fedfisher", damping=1e6), AVERAGE, {"rounds": 1, "local": {"momentum": 0.5}},
        apart=of("fedfisher", damping=1e-6), atol=1e-6,
    ),
    "a walk that keeps every entry": Limit(
        {**of("random_walk", models=3), "compress": {"kind": "topk", "ratio": 1.0}}, of("random_walk", models=3), {},
        apart={"compress": {"kind": "topk", "ratio": 0.1}}, costs=False,
    ),
}  # fmt: skip


def trained(network: Any, *changes: Keys) -> tuple[Study, Progress]:
    """The study and where it ends."""
    return train(scenario(*changes), **({} if network is None else {"model": network}))[:2]


def models_of(study: Study, done: Progress) -> Tensor:
    """The models, of the first network where there are several."""
    return (read_part(done.state, study.parts[0]) if study.parts else done.state).models


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())
def test_at_its_limit_a_method_is_another_one(limit: Limit) -> None:
    (one, found), (other, wanted) = (trained(limit.network, limit.both, keys) for keys in (limit.one, limit.other))
    a, b = models_of(one, found), models_of(other, wanted)
    if limit.atol:
        torch.testing.assert_close(a, b, rtol=limit.atol, atol=limit.atol)
    else:
        assert torch.equal(a, b)
        assert one.parts or torch.equal(found.state.counters, wanted.state.counters)
        if limit.costs:
            assert found.up_bytes.tolist() == wanted.up_bytes.tolist()
            assert found.down_bytes.tolist() == wanted.down_bytes.tolist()
            if one.method.name in FURTHER:
                assert (found.sim_seconds > wanted.sim_seconds).all()
            else:
                assert found.sim_seconds.tolist() == wanted.sim_seconds.tolist()
    if limit.apart is not None:
        shared = {key: value for key, value in limit.apart.items() if key not in ("method", "compress")}
        (one, found), (other, wanted) = (
            trained(limit.network, limit.both, limit.one, limit.apart),
            trained(limit.network, limit.both, limit.other, shared),
        )
        assert (models_of(one, found) - models_of(other, wanted)).abs().max() > (1e-3 if limit.atol else 0.0)


# Layers that stay with the clients


def constant() -> nn.Module:
    """A network whose first parameters are always the same, so that N models and one model begin alike."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 10))
    for part in net.parameters():
        part.data = torch.linspace(-0.3, 0.4, part.numel()).view_as(part).cos()
    return net


def test_with_everything_private_nothing_is_sent_and_each_client_trains_alone() -> None:
    """Each client's model is its model of `local_only`, up to the order of the rows in its one batch."""
    _, alone, _ = train(scenario(FEW, FULL, of("local_only")), model=constant)
    keys = scenario(FEW, FULL, of("fedper"), {"local": {"private": ["*"]}})
    (_, kept, runtime), (_, start, _) = (train({**keys, "rounds": rounds}, model=constant) for rounds in (2, 0))
    assert kept.up_bytes.tolist() == [0] and torch.equal(kept.state.models, start.state.models)
    torch.testing.assert_close(runtime.private()["layers/rows"], alone.state.models, rtol=1e-4, atol=1e-5)


def test_normalization_layers_stay_with_the_clients_of_fedbn() -> None:
    """With their running statistics: what that means is tested for any layers that stay."""
    study, *_ = train(scenario(FEW, of("fedbn"), {"model": {"norm": "batch"}, "rounds": 0}))
    layers = [name for name, part in study.net.module.named_modules() if isinstance(part, nn.BatchNorm1d)]
    assert len(layers) == 1 and study.method.phase.stays == tuple(layers)


def test_fedrep_trains_its_body_where_a_tenth_of_the_steps_is_less_than_one() -> None:
    keys = scenario(FEW, of("fedrep"), {"local": {"epochs": None, "steps": 2}})
    (study, before, _), (_, after, _) = (train({**keys, "rounds": rounds}) for rounds in (0, 1))
    body = ~torch.from_numpy(study.net.layout.mask(("3",)))
    assert bool((before.state.models != after.state.models)[:, body].any())
