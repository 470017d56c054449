"""Scenarios: what is read, what is refused and how, and the round trip through YAML."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.core.errors import BadInput
from fedray.core.options import REQUIRED, ReadOptions, gpu_share, real, whole
from fedray.methods import METHOD_SPECS
from fedray.scenario import names
from fedray.scenario import nested as yaml_text
from fedray.scenario.loader import dump_scenario, read_cells, read_scenario, tier_table, to_plain, with_defaults
from fedray.scenario.names import MODEL_SPECS
from fedray.scenario.nested import merge_keys, parse_yaml
from fedray.scenario.options import SECTIONS
from fedray.scenario.sections import CLIENT_KINDS, DATA_SPECS, PARTITION_SPECS

RICH: dict[str, Any] = {
    "seed": 7,
    "rounds": 30,
    "runtime": "inline",
    "method": {"name": "shefl", "models": 4, "mu": 0.01},
    "data": {"name": "digits", "partition": {"name": "dirichlet", "alpha": 0.6}, "hold_out": 0.1},
    "model": {"name": "cnn", "channels": [10, 20], "hidden": [50, 50]},
    "clients": {
        "number": 20,
        "tiers": {
            "hpc": {"number": 5, "models_per_round": "all", "num_gpus": 0.25, "resources": {"node:10.0.0.1": 0.1}},
            "lpc": {"share": 1.0, "uplink": 1e5},
        },
    },
    "participation": {"per_round": 8, "overcommit": 1.3, "dropout": 0.1, "deadline": 60},
    "local": {"lr": 0.05, "steps": 10, "batch_size": "full"},
    "compress": {"ratio": 0.02, "error_feedback": True},
    "server": {"optimizer": "adam"},
    "predict": {"gamma": 0.3},
    "evaluate": {"every": 2, "stop_at": {"metric": "accuracy", "value": 0.9}},
    "loggers": ["tensorboard"],
    "table": [
        {"name": "fedavg", "overrides": {"method.name": "fedavg"}, "published": {"accuracy": 89.78}},
        {"name": "epochs", "overrides": {"local": {"epochs": 2}, "clients.tiers.hpc.number": 3}},
        {"name": "one-tier", "overrides": {"clients.tiers": {"hpc": None, "lpc": None, "phone": {"share": 1}}}},
    ],
    "published": {"accuracy": 90.14, "round": 3.3},
}


def test_billion_laughs_is_refused_before_it_is_built() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(BadInput, match="too many values") as caught:
        read_scenario("\n".join(lines))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 700


def test_a_method_brings_its_defaults_and_given_keys_win() -> None:
    assert read_scenario("method: {name: fedprox}").method.options == {"mu": 0.01}
    assert read_scenario("method: {name: fedprox}").method.models == 1
    fedag = read_scenario("method: {name: fedag}")
    assert (fedag.local.batch_size, fedag.local.epochs, fedag.rounds, fedag.clients.number) == (1, 40, 5, 10)
    assert read_scenario("method: {name: fedag}\nlocal: {steps: 3}").local.epochs is None
    shefl = read_scenario("method: {name: shefl}")
    assert [(t.name, t.number, t.models_per_round) for t in tier_table(shefl, 100)] == [
        ("hpc", 50, None),
        ("lpc", 50, 1),
    ]
    assert (shefl.compress.kind, shefl.compress.ratio, shefl.compress.resource_ratio) == ("topk", 0.1, None)
    assert read_scenario("method: {name: shefl}\ncompress: {ratio: 0.02}").compress.ratio == 0.02
    assert read_scenario("method: {name: bayesian_linear}").model.name == "linear"
    assert read_scenario("method: {name: bayesian_linear}\nmodel: {name: mlp}").model.options["hidden"] == [50]


WITH_DATA = [(method, data) for method in METHOD_SPECS for data in ("digits", "uci/energy")]
WITH_DATA += [("fed_ensemble", data) for data in DATA_SPECS if data not in ("digits", "uci/NAME")]
WITH_DATA += [(method, "synthetic") for method in METHOD_SPECS if method != "fed_ensemble"]  # it deals its own rows


@pytest.mark.parametrize(("method", "data"), WITH_DATA)
def test_every_method_and_every_data_set_has_working_defaults(method: str, data: str) -> None:
    """Each method with classes and with numbers, each data set with one method; `synthetic` with all."""
    given = {"path": "a.csv", "target": "y", "sets": ["digits", "mnist"]}
    options = DATA_SPECS[data].options if data in DATA_SPECS else {}
    extra = {key: given[key] for key, option in options.items() if option.default is REQUIRED}
    s = read_scenario({"method": {"name": method}, "data": {"name": data, **extra}})
    assert read_scenario(dump_scenario(s)) == s


def test_the_default_of_every_option_is_one_of_its_values() -> None:
    for kind in names.KINDS.values():
        for spec in kind.specs.values():
            for default, check, _, _, sections in spec.options.values():
                more = (SECTIONS,) if sections else ()
                assert default is None or default is REQUIRED or check(default, *more) == default


def test_options_are_those_of_the_functions_they_are_for() -> None:
    import inspect

    from fedray.data import deal, partition, shifts, types
    from fedray.data import store as dataset
    from fedray.models import nets as catalogue

    def keywords(function: Any, skip: int) -> dict[str, Any]:
        return {p.name: p.default for p in list(inspect.signature(function).parameters.values())[skip:]}

    for name, model in MODEL_SPECS.items():
        taken = keywords(catalogue.BUILDERS[name], 2)
        assert set(model.options) == set(taken), name
        for key, (default, *_) in model.options.items():
            assert (list(default) == list(taken[key])) if isinstance(default, list) else default == taken[key]
    for name, dealt in PARTITION_SPECS.items():
        if name not in deal.OPEN:
            law = keywords(partition.LAWS[name], 2) if name in partition.LAWS else {}
            known = {*keywords(partition.PARTITIONS[name], 3), *law, *["column"] * (name in partition.BY_COLUMN)}
            assert known - {"column", "skew"} <= dealt.options.keys() - CLIENT_KINDS.keys() <= known, name
    assert CLIENT_KINDS.keys() == {*shifts.LabelNoise._fields, *shifts.Shifts._fields}
    for name, data in DATA_SPECS.items():
        if name != "uci/NAME":
            source = dataset.find_source(name)
            more = ReadOptions if source.own else types.Population if name == "synthetic" else None
            taken = keywords(source.load, 1) | (more._field_defaults if more else {})
            assert set(data.options) - {"limit"} <= set(taken) | ({"features"} if name == "table" else set()), name
    for name in MODEL_SPECS:
        assert name in catalogue.MODEL_NAMES
    assert set(PARTITION_SPECS) == {*partition.PARTITIONS, *deal.OPEN}


def test_the_clients_of_a_toy_follow_clients_number() -> None:
    for keys in ({"clients": {"number": 7}}, {"data": {"clients": 7}}):
        s = read_scenario({**keys, "data": {"name": "sine", **keys.get("data", {})}})
        assert (s.clients.number, s.data.options["clients"]) == (7, 7)
    assert read_scenario({"data": {"name": "cubic"}}).data.options["clients"] == 10
    assert read_scenario({"data": {"name": "synthetic"}, "clients": {"number": 10**6}}).clients.number == 10**6


def test_overrides_are_yaml_scalars_and_lists() -> None:
    said = ["rounds=3", "method.name=fed_ensemble", "local.lr=1e-3", "model.hidden=[4, 5]", "predict.gamma=.inf"]
    s = read_scenario(
        {"rounds": 9, "local": {"steps": 4}}, [*said, "local.epochs=2", "clients.number=1e6", "data.name=uci/energy"]
    )
    assert (s.rounds, s.local.lr, s.model.options["hidden"], s.clients.number) == (3, 0.001, [4, 5], 10**6)
    assert (s.local.epochs, s.local.steps, s.data.name) == (2, None, "uci/energy")
    assert read_scenario(RICH, ["evaluate.stop_at="]).evaluate.stop_at is None
    assert read_scenario("rounds:\nlocal: {lr: }\n") == read_scenario({})  # a key without a value has its default
    assert read_scenario({}, ["method=fedprox", "method.mu=0.1"]).method.options == {"mu": 0.1}  # beside its name
    assert read_scenario({}, {"local": {"lr": 0.5}, "local.steps": 2, "seed": np.int64(4)}).local.lr == 0.5
    assert read_scenario({"method": {"name": "shefl"}}, ["clients.tiers.hpc.number=5"]) == read_scenario(
        {"method": {"name": "shefl"}, "clients": {"tiers": {"hpc": {"number": 5}}}}
    )


def test_source_may_be_a_path_text_or_dict(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(dump_scenario(read_scenario(RICH)), encoding="utf-8")
    assert read_scenario(file) == read_scenario(str(file)) == read_scenario(file.read_text()) == read_scenario(RICH)
    before = copy.deepcopy(RICH)
    read_scenario(RICH, ["rounds=1", "clients.tiers.hpc.number=2"])
    assert before == RICH


def test_a_scenario_survives_its_yaml() -> None:
    s = read_scenario(RICH)
    assert read_scenario(dump_scenario(s)) == s and dump_scenario(read_scenario(dump_scenario(s))) == dump_scenario(s)
    assert read_scenario(to_plain(s)) == s
    assert list(to_plain(s)) == list(to_plain(read_scenario({})))
    odd = {"1e-3": "yes", "no": "1_0", "x": "0x1f", "é": "line\nbreak\x85", "t": "2001-01-01", "n": "null", "f": 1e-7}
    assert read_scenario(dump_scenario(replace(s, published=odd))).published == odd


def test_cells_are_complete_scenarios() -> None:
    fedavg, epochs, one = read_cells(read_scenario(RICH))
    assert (fedavg.name, fedavg.scenario.method.models, fedavg.scenario.published) == ("fedavg", 1, {"accuracy": 89.78})
    assert fedavg.scenario.compress.kind == "dense"  # shefl's own default goes with shefl
    assert fedavg.scenario.compress.ratio == 0.02  # what the file says stays
    assert fedavg.scenario.local.steps == 10 and fedavg.scenario.clients.tiers["hpc"].number == 5
    assert (epochs.scenario.local.epochs, epochs.scenario.local.steps) == (2, None)
    assert [t.number for t in tier_table(epochs.scenario, 20)] == [3, 17]
    assert [t.name for t in tier_table(one.scenario, 20)] == ["phone"]
    assert read_cells(read_scenario(dump_scenario(read_scenario(RICH)))) == read_cells(read_scenario(RICH))
    base = read_scenario({"rounds": 2})
    assert [cell.name for cell in read_cells(base)] == ["base"] and read_cells(base)[0].scenario == base


def test_tiers_add_up() -> None:
    third = {"share": 1 / 3}
    s = read_scenario({"clients": {"number": 100, "tiers": {"a": third, "b": third, "c": third}}})
    assert [t.number for t in tier_table(s, 100)] == [34, 33, 33]
    assert [(t.name, t.number) for t in tier_table(read_scenario({}), 7)] == [("client", 7)]
    mixed = read_scenario(
        {"clients": {"number": 11, "tiers": {"a": {"number": 4}, "b": {"share": 0.5}, "c": {}, "d": {}}}}
    )
    assert [t.number for t in tier_table(mixed, 11)] == [4, 3, 2, 2]
    assert read_scenario({"clients": {"tiers": {"a": {"number": 4}, "b": {"number": 3}}}}).clients.number == 7
    natural = read_scenario({"data": {"name": "femnist"}, "participation": {"per_round": 200}})
    assert natural.clients.number is None
    with pytest.raises(BadInput):
        tier_table(natural, 105)
    file = {"clients": {"number": 10, "tiers": {"a": {"number": 4}, "b": {"number": 6}}}}
    alone = {"clients": {"tiers": {"a": None, "b": None, "c": {"number": 10}}}}
    assert [t.name for t in tier_table(read_scenario(merge_keys(file, alone)), 10)] == ["c"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=6), st.integers(1, 10**9))
def test_shares_give_whole_clients_within_one_of_their_quota(weights: list[float], number: int) -> None:
    shares = [w / sum(weights) for w in weights]
    s = read_scenario({"clients": {"number": number, "tiers": {f"t{i}": {"share": w} for i, w in enumerate(shares)}}})
    counts = [tier.number for tier in tier_table(s, number)]
    assert sum(counts) == number
    assert all(abs(n - share * number) < 1.001 for n, share in zip(counts, shares, strict=True))


@pytest.mark.parametrize(
    ("base", "over", "section"),
    [
        ({"model": {"hidden": [64]}}, {"model": {"name": "linear"}}, "model"),
        ({"model": {"hidden": [64]}}, {"model.name": "linear"}, "model"),
        ({"method": {"models": 7}}, {"method.name": "fedavg"}, "method"),
        ({"method": {"name": "fedprox", "mu": 0.5}}, {"method.name": "fedavg"}, "method"),
        ({"data": {"limit": 100}}, {"data": {"name": "sine"}}, "data"),
    ],
)
def test_a_section_whose_name_changes_starts_from_the_defaults_of_that_name(
    base: dict[str, Any], over: dict[str, Any], section: str
) -> None:
    """Also where the base left its name to the default: an option of the old name used to stay and be refused."""
    fresh = read_scenario({}, over)
    assert getattr(read_scenario(base, over), section) == getattr(fresh, section)
    resolved = read_scenario(
        dump_scenario(read_scenario({"method": {"name": "fedprox"}})), ["method.name=fed_ensemble"]
    )
    assert resolved.method.models == 5
    kept = read_scenario({"method": {"models": 7}}, {"method": {"name": "shefl"}})
    assert kept.method.models == 7  # of an ensemble where another ensemble takes its place
    file = {"data": {"name": "mnist", "scale": "unit", "test_clients": 3, "partition": "iid"}}
    kept = read_scenario(file, {"data": {"name": "fashion_mnist"}})
    assert (kept.data.scale, kept.data.test_clients) == ("unit", 3)
    cell = {"name": "a", "overrides": {"data": {"name": "fashion_mnist", "test_clients": None}}}
    assert read_cells(read_scenario({**file, "table": [cell]}))[0].scenario.data.test_clients is None
    for name in ("leaf", "hf", "folder"):  # all rows of other clients are trained on
        assert with_defaults({"data": {"name": name, "path": "x", "test_clients": 3}})["data"]["test_fraction"] == 0


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"method": "fedavg"}, {"method": {"name": "fedavg"}}),
        ({"data": "mnist", "model": "cnn"}, {"data": {"name": "mnist"}, "model": {"name": "cnn"}}),
        ({"clients": 50}, {"clients": {"number": 50}}),
        ({"data": {"partition": "iid"}}, {"data": {"partition": {"name": "iid"}}}),
    ],
)
def test_a_name_alone_is_its_section_wherever_it_is_written(short: dict[str, Any], long: dict[str, Any]) -> None:
    """In a dict, in YAML, as an override, on the command line, and in a cell of a table."""
    wanted = read_scenario(long)
    assert read_scenario(short) == read_scenario({}, short) == read_scenario(yaml_text.write_yaml(short)) == wanted
    typed = [f"{key}={yaml_text.write_yaml(value).strip().removesuffix('...')}" for key, value in short.items()]
    assert read_scenario({}, typed) == wanted
    cell = read_cells(read_scenario({"table": [{"name": "a", "overrides": short}]}))[0].scenario
    assert cell == wanted


def test_a_resolved_scenario_of_before_has_a_key_of_a_quantile_that_is_gone() -> None:
    """Runs of before are opened; what was trained with the quantile itself is refused in one line."""
    now = read_scenario({"data": {"hold_out": 0.2}, "predict": {"conformal": {}}})
    before = to_plain(now)
    before["predict"]["conformal"]["relative_error"] = 0.01
    assert read_scenario(before) == now
    before["predict"]["conformal"]["quantile"] = "sketch"
    with pytest.raises(BadInput, match=r"predict\.conformal\..*"):
        read_scenario(before)


# -- YAML of somebody else: whatever it holds, it is a value or one line


def test_plain_values_are_what_they_were() -> None:
    found = parse_yaml("[1_000, 1e-3, .inf, ~, TRUE, 0x10, 2001-01-01, !!str 1, !!float 1]")
    assert found == [1000, 0.001, float("inf"), None, True, "0x10", "2001-01-01", "1", 1.0]


def test_a_number_with_an_exponent_passes_as_text() -> None:
    tree: dict[str, Any] = yaml.safe_load(
        "{rounds: 1e1, clients: {tiers: {weak: {uplink: 12.5e6}}}, local: {lr: 1e-3}}"
    )
    assert tree["clients"]["tiers"]["weak"]["uplink"] == "12.5e6", "YAML 1.1 reads it as text"
    scenario = read_scenario(tree)
    assert (scenario.rounds, scenario.clients.tiers["weak"].uplink, scenario.local.lr) == (10, 12.5e6, 1e-3)
    assert (real("[0, inf)")("1.5E+3"), whole(0, 10**4)(".5e3"), gpu_share("5e-1")) == (1500.0, 500, 0.5)
