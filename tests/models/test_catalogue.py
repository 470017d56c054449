"""Networks: what every one of the catalogue does, what users add, and where they begin."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from modules import load_module
from safetensors.torch import load_file
from small import scenario
from torch import Tensor, nn
from torch.func import functional_call

import fedray
from fedray.models.net import compute_raw_outputs, net_of, state_dict
from fedray.models.nets import MODEL_NAMES, build_net

IMAGES = [(1, 28, 28), (3, 32, 32), (1, 8, 8)]
SMALL: dict[str, dict[str, Any]] = {"densenet": {"blocks": (1, 2, 1, 1), "growth": 8}, "mobilenet_v2": {"width": 0.25}}
CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    *[(name, shape, {}) for name in ("linear", "mlp", "cnn") for shape in IMAGES],
    ("cnn", (1, 28, 28), {"channels": [10, 20], "hidden": [120, 84]}),
    ("rbf", (1,), {}),
    ("rbf", (2,), {"features": 7, "bias": True}),
    ("lstm", (20,), {"hidden": 16}),
    ("vgg11", (1, 28, 28), {"norm": "none"}),
    ("vgg11", (3, 32, 32), {}),
    ("resnet8", (3, 32, 32), {"norm": "group"}),
    ("resnet18", (3, 32, 32), {"width": 0.25}),
    ("resnet18", (1, 8, 8), {"norm": "group", "width": 0.25}),
    ("resnet34", (1, 8, 8), {"width": 0.25}),
    *[
        (name, (1, 28, 28), {"norm": norm, **SMALL.get(name, {})})
        for name in ("densenet", "mobilenet_v2", "shufflenet_v2")
        for norm in ("batch", "group")
    ],
]


def batch(name: str, shape: tuple[int, ...], size: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if name == "lstm":
        return torch.randint(0, 10, (size, *shape), generator=generator)
    return torch.randn(size, *shape, generator=generator)


@pytest.mark.parametrize(("name", "shape", "options"), CASES)
def test_a_network_maps_a_batch_to_outputs_and_its_row_loads_back(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    net = build_net(name, shape, 10, "cross_entropy", **options)
    row, x = net.init(3), batch(name, shape)
    assert row.shape == (net.layout.d,)
    assert row.dtype == torch.float32

    module = load_module(net, row)
    with torch.no_grad():
        outputs = module(x)
        again = functional_call(copy.deepcopy(net.module).eval(), net.layout.views(row), (x,))
    assert outputs.shape == (2, 10) and outputs.isfinite().all()
    assert torch.equal(outputs, again)

    trainable = [p for p in net.module.parameters() if p.requires_grad]
    assert net.layout.trainable == sum(p.numel() for p in trainable)
    assert torch.equal(
        row[: net.layout.trainable], nn.utils.parameters_to_vector(load_module(net, row).parameters()).detach()
    )


@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_state_dict_is_a_plain_torch_one(name: str, norm: str) -> None:
    net = build_net(name, (1, 8, 8), 4, "cross_entropy", norm=norm)
    counters = torch.arange(len(net.layout.counters)) + 1
    state = state_dict(net, net.init(1), counters)
    copied = load_module(net, net.init(1), counters)  # strict: no key is missing, none unexpected
    assert all(torch.equal(value, state[key]) for key, value in copied.state_dict().items())
    assert (len(net.layout.counters) > 0) == (norm == "batch")
    assert (net.layout.d > net.layout.trainable) == (norm == "batch")  # running mean and variance


@pytest.mark.parametrize("name", ["mlp", "cnn", "shufflenet_v2"])
def test_initialisation_is_a_function_of_its_address_alone(name: str) -> None:
    net = build_net(name, (1, 8, 8), 3, "cross_entropy")
    before, first = torch.random.get_rng_state(), net.init(5)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    assert torch.equal(first, build_net(name, (1, 8, 8), 3, "cross_entropy").init(5))
    assert not torch.equal(first, net.init(6))


def test_known_parameter_counts() -> None:
    assert build_net("cnn", (1, 28, 28), 10, "cross_entropy").layout.d == 21_840
    mcmahan = build_net("cnn", (1, 28, 28), 10, "cross_entropy", channels=[32, 64], hidden=[512], padding=2)
    assert mcmahan.layout.d == 1_663_370  # McMahan et al. 2017, section 3
    assert build_net("resnet18", (3, 32, 32), 10, "cross_entropy").layout.trainable == 11_173_962
    assert build_net("mlp", (13,), 1, "half_mse").layout.d == 13 * 50 + 50 + 50 + 1


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 64, 64)])
def test_the_width_of_a_resnet_scales_all_its_channels(shape: tuple[int, ...]) -> None:
    whole = build_net("resnet18", shape, 10, "cross_entropy").module.state_dict()
    half = build_net("resnet18", shape, 10, "cross_entropy", width=0.5).module.state_dict()
    assert list(whole) == list(half)
    fixed = {3, 10, 1, 7}  # the image's channels, the classes and the sides of kernels
    for name in whole:
        scaled = [side if side in fixed else side // 2 for side in whole[name].shape]
        assert list(half[name].shape) == scaled, name


def test_large_images_keep_the_original_stem() -> None:
    torchvision = pytest.importorskip("torchvision")
    net = build_net("resnet18", (3, 64, 64), 1000, "cross_entropy")
    ours, theirs = net.module.state_dict(), torchvision.models.resnet18(weights=None).state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    grey = build_net("resnet18", (1, 64, 64), 10, "cross_entropy").module
    assert grey.get_parameter("conv1.weight").shape == (64, 1, 7, 7)


def test_rbf_features_are_gaussian_bumps_on_fixed_shared_centers() -> None:
    net = build_net("rbf", (1,), 1, "half_mse", seed=4)
    features, centers = net.module.get_submodule("0"), net.module.get_buffer("0.centers")
    assert net.layout.d == net.layout.trainable == 100  # weights only: no bias, and the centers are constants
    assert centers.shape == (100, 1)
    assert centers.min() >= -1
    assert centers.max() < 1
    x = torch.linspace(-1, 1, 9)[:, None]
    expected = torch.exp(-((x - centers[:, 0]) ** 2) / (2 * 0.08**2))
    torch.testing.assert_close(features(x), expected)
    row = net.init(0)
    torch.testing.assert_close(load_module(net, row)(x)[:, 0], expected @ row)
    nets = (build_net("rbf", (1,), 1, "half_mse", seed=seed).module for seed in (4, 5))
    same, other = (module.get_buffer("0.centers") for module in nets)
    assert torch.equal(centers, same)
    assert not torch.equal(centers, other)


def test_weight_sd_sets_the_initial_distribution() -> None:
    rows = torch.stack([build_net("rbf", (1,), 1, "half_mse", weight_sd=0.3).init(k) for k in range(100)])
    assert rows.std() == pytest.approx(0.3, rel=0.05)
    assert rows.mean() == pytest.approx(0.0, abs=0.02)


def test_lstm_reads_the_order_of_the_text() -> None:
    net = build_net("lstm", (6,), 11, "cross_entropy", hidden=8)
    lstm, wide = (one.module.get_submodule("lstm") for one in (net, build_net("lstm", (80,), 80, "cross_entropy")))
    assert isinstance(lstm, nn.LSTM) and isinstance(wide, nn.LSTM)
    assert (lstm.num_layers, wide.hidden_size) == (2, 256)
    module, tokens = load_module(net, net.init(0)), torch.arange(6)[None]
    assert not torch.equal(module(tokens), module(tokens.flip(1)))


def test_every_builtin_is_tested() -> None:
    assert {name for name, _, _ in CASES} == set(MODEL_NAMES)


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_gradients_flow_to_the_parameters_of_a_network_with_batch_normalization() -> None:
    """A row holds running statistics too, through which torch has no gradient."""
    net, x = net_of(normalized, "normalized", "cross_entropy", 3), torch.randn(6, 4, generator=torch.manual_seed(0))
    row = net.init(0)
    leaf = row.clone().requires_grad_()
    (found,) = torch.autograd.grad(compute_raw_outputs(net, leaf[None], x).square().sum(), leaf)
    plain = normalized().eval()
    plain.load_state_dict(state_dict(net, row))
    wanted = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
    torch.testing.assert_close(found[: net.layout.trainable], torch.cat([each.flatten() for each in wanted]))
    assert not found[net.layout.trainable :].any()


class Body(nn.Module):
    """A network with a body that may be frozen, weights that are tied, and a constant."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.body, self.mixing, self.head = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.again = self.mixing
        self.register_buffer("table", torch.arange(8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.again(self.mixing(self.body(x.flatten(1)).relu()).tanh()).relu())
        return out


@pytest.fixture
def trained(tmp_path: Path) -> dict[str, Tensor]:
    """What somebody else has trained."""
    torch.manual_seed(3)
    torch.save(Body().state_dict(), tmp_path / "weights.pt")
    found: dict[str, Tensor] = torch.load(tmp_path / "weights.pt", weights_only=True)
    return found


@pytest.mark.parametrize("frozen", [False, True])
def test_a_run_begins_with_pretrained_weights_and_exports_all(
    frozen: bool, trained: dict[str, Tensor], tmp_path: Path
) -> None:
    def network() -> nn.Module:
        module = Body()
        module.load_state_dict(trained)
        module.body.requires_grad_(not frozen)
        return module

    keys: dict[str, Any] = scenario({"method": {"name": "fedavg"}})
    start = fedray.run({**keys, "rounds": 0}, model=network)
    for name, value in start.models[0].items():
        assert torch.equal(value, trained[name]), name
    run = fedray.run({**keys, "rounds": 2}, model=network)
    (file,) = run.export(tmp_path / "export")
    exported = load_file(file)
    assert exported.keys() == trained.keys()
    again = fedray.run({**keys, "rounds": 0}, model=network, model__weights=str(file))
    assert all(torch.equal(value, exported[name]) for name, value in again.models[0].items())
    module = Body()
    module.load_state_dict(exported)
    assert torch.equal(module.body.weight, trained["body.weight"]) is frozen
    assert not torch.equal(module.head.weight, trained["head.weight"])
    assert torch.equal(exported["again.weight"], exported["mixing.weight"])
    x = torch.rand(5, 1, 8, 8)
    shown = run.predict((16 * x).round().to(torch.uint8).numpy())
    assert shown.probabilities is not None
    d = sum(p.numel() for p in network().parameters() if p.requires_grad)
    assert set(run.clients["up_bytes"].to_pylist()) == {4 * d}
