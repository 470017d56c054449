"""Compression of uploads: exactly the k largest, as many bytes as were promised, and nothing lost for good."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedray.components.compression import (
    RESIDUAL,
    dense,
    error_feedback,
    find_largest,
    int8,
    keep_by_bandwidth,
    keep_by_tier,
    random_k,
    top_k,
)
from fedray.core import rng
from fedray.core.method import Compress
from fedray.core.types import IntArray, Layout, Tier, Uploads

PLAIN = Layout(("weight", "bias"), ((7, 5), (7,)), trainable=42)
BUFFERED = Layout(("weight", "bias", "mean", "var"), ((6, 4), (6,), (6,), (6,)), trainable=30, counters=("batches",))
LAYOUTS = [PLAIN, BUFFERED]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "buffers"])


def uploads(delta: Tensor, own: dict[str, Tensor] | None = None) -> Uploads:
    """Job j is client j with model 0, of the second tier."""
    jobs = np.arange(len(delta))
    none, key = 0 * jobs, rng.keys(0, "batches", 0, jobs, 0)
    return Uploads(delta, jobs, none, none, 1 + none, 1 + none, own=own or {}, key=key)


def one_tensor(d: int) -> Layout:
    return Layout(("w",), ((d,),), d)


def constant(k: int) -> Callable[[IntArray, IntArray], IntArray]:
    return lambda client, _tier: np.full(len(client), k)


def gaussian(layout: Layout, jobs: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(jobs, layout.d)).astype(np.float32))


def brute(row: np.ndarray, k: int) -> np.ndarray:
    """The k largest magnitudes by sorting; ties go to the lower index."""
    mask = np.zeros(len(row), dtype=bool)
    mask[np.lexsort((np.arange(len(row)), -np.abs(row)))[:k]] = True
    return mask


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 45))
def test_the_k_largest_by_magnitude_ties_to_the_lower_index(values: list[int], k: int) -> None:
    row = torch.tensor(values, dtype=torch.float32)
    assert find_largest(row, k).numpy().tolist() == brute(row.numpy(), k).tolist()


@settings(max_examples=25)
@given(
    d=st.integers((1 << 16) + 1, (1 << 16) + 5000),
    k=st.one_of(st.integers(1, 40), st.integers(1, 1 << 16)),
    levels=st.sampled_from([1, 2, 5, 1000, 1 << 30]),
    seed=st.integers(0, 99),
)
def test_the_k_largest_of_a_long_row(d: int, k: int, levels: int, seed: int) -> None:
    """Above 65 536 entries a strided sample guesses a threshold; the choice stays exact, whatever it guesses."""
    row = np.random.default_rng(seed).integers(-levels, levels + 1, size=d).astype(np.float32)
    assert (find_largest(torch.from_numpy(row), k).numpy() == brute(row, k)).all()


@pytest.mark.parametrize("on_the_stride", [0.0, 1.0, 9.0])
@pytest.mark.parametrize("k", [1, 4097, 60_000])
def test_the_k_largest_where_the_sample_misleads(on_the_stride: float, k: int) -> None:
    row = np.random.default_rng(0).normal(size=70_000).astype(np.float32)
    row[:: 70_000 // 4096] *= on_the_stride
    assert (find_largest(torch.from_numpy(row), k).numpy() == brute(row, k)).all()


@every_layout
def test_sent_entries_are_k_exactly_and_buffers_whole(layout: Layout) -> None:
    delta = torch.ones(3, layout.d)  # nothing but ties
    delta[1] = gaussian(layout, 1)[0]
    sent = top_k(layout, lambda _client, _tier: np.array([1, 7, layout.trainable])).apply(uploads(delta)).delta
    assert (sent[:, : layout.trainable] != 0).sum(1).tolist() == [1, 7, layout.trainable]
    assert torch.equal(sent[:, layout.trainable :], delta[:, layout.trainable :])
    assert torch.equal(sent[2], delta[2])
    assert sent[0, 0] == 1


@pytest.mark.parametrize("models", [1, 5])
@pytest.mark.parametrize("r", [None, 1.0, 3.0, 5.0, 100.0])
def test_the_entries_that_are_kept_are_those_of_exact_arithmetic(models: int, r: float | None) -> None:
    """The m models of a client have r times the budget of one model, never more than everything.

    `0.29 * 100` is 28.999999999999996 in floats, and 29 entries are kept.
    """
    tiers, who = [Tier(f"of {m} models", 1, models_per_round=m) for m in (1, 2, None)], np.arange(3)
    for d in range(10, 401, 10):
        for percent in range(1, 101):
            shares = [Fraction(percent, 100) * (Fraction(r) / m if r and m else 1) for m in (None, 2, models)]
            kept = keep_by_tier(one_tensor(d), tiers, models, percent / 100, r)(who, who)
            assert kept.tolist() == [max(1, int(min(Fraction(1), share) * d)) for share in shares], (d, percent)


def test_adaptive_keep_follows_the_bandwidth() -> None:
    """And is the plain one where all bandwidths are equal."""
    layout, who = one_tensor(1000), np.arange(5)
    uplink = np.array([1e6, 2e6, 4e6, 1e3, 1e9])
    keep = keep_by_bandwidth(layout, constant(100), lambda client: uplink[client], mean=2e6)
    assert keep(who, who).tolist() == [50, 100, 200, 1, 1000]
    equal = keep_by_bandwidth(layout, constant(100), lambda client: np.full(len(client), 0.3), mean=0.3)
    assert equal(who, who).tolist() == [100] * 5


def whole_part(layout: Layout, row: Tensor) -> bytes:
    """Buffers and counters, which are sent as they are."""
    counters = np.zeros(len(layout.counters), dtype="<i8").tobytes()
    return row[layout.trainable :].numpy().astype("<f4").tobytes() + counters


def promised(compress: Compress) -> int:
    return int(compress.bytes(np.array([0]), np.array([1]))[0])


@every_layout
def test_top_k_bytes_known_before_are_those_of_the_message(layout: Layout) -> None:
    """The smallest of: values and indices, values and a bitmap, all values."""
    forms = set()
    for k in range(1, layout.trainable + 1):
        compress = top_k(layout, constant(k))
        row = compress.apply(uploads(gaussian(layout, 1, seed=k))).delta[0]
        body = row[: layout.trainable].numpy()
        values, bitmap = body[body != 0].astype("<f4").tobytes(), np.packbits(body != 0).tobytes()
        indices = np.flatnonzero(body).astype("<u4").tobytes()
        message = min((values + indices, values + bitmap, body.astype("<f4").tobytes()), key=len)
        forms.add((len(message) - 4 * k) / k == 4)
        assert promised(compress) == len(message) + len(whole_part(layout, row))
    assert forms == {True, False}  # indices for a few, a bitmap or everything for many


@every_layout
def test_random_k_sends_values_and_an_address(layout: Layout) -> None:
    """The receiver finds the places from the job's address alone."""
    k, delta = 9, gaussian(layout, 1)
    compress = random_k(layout, constant(k))
    sent = compress.apply(uploads(delta)).delta[0]
    places = sent[: layout.trainable] != 0
    again = compress.apply(uploads(torch.ones_like(delta))).delta[0, : layout.trainable] != 0
    assert torch.equal(places, again)
    message = sent[: layout.trainable][places].numpy().tobytes() + np.uint64(0).tobytes()
    assert promised(compress) == len(message) + len(whole_part(layout, sent))
    assert torch.equal(sent[layout.trainable :], delta[0, layout.trainable :])  # buffers are not scaled


@every_layout
def test_int8_is_one_byte_a_parameter_and_a_scale_a_tensor(layout: Layout) -> None:
    delta = gaussian(layout, 4)
    delta[1] = 0
    delta[2] *= 1e-12
    sent = int8(layout).apply(uploads(delta)).delta
    start, size = 0, 0
    for name, view in layout.views(delta).items():
        end = start + layout.sizes[layout.names.index(name)]
        if end <= layout.trainable:
            scale = view.flatten(1).abs().amax(1, keepdim=True) / 127
            assert bool(((sent - delta)[:, start:end].abs() <= scale * 0.5001).all()), "error is half a step at most"
            code = torch.where(scale > 0, sent[:, start:end] / scale, 0)
            assert torch.allclose(code, code.round(), atol=1e-4)
            assert code.abs().max() <= 127.001
            size += end - start + 4
        else:
            assert torch.equal(sent[:, start:end], delta[:, start:end])
        start = end
    assert promised(int8(layout)) == size + len(whole_part(layout, delta[0]))


def divide_as_cuda(x: Tensor, by: Tensor | float) -> Tensor:
    """By a number: times its reciprocal, which may cost the last bit."""
    return torch.true_divide(x, by) if isinstance(by, Tensor) else x * (1.0 / torch.tensor(by, dtype=x.dtype))


@every_layout
@pytest.mark.parametrize("device", ["stand-in", pytest.param("cuda", marks=needs_gpu)])
def test_what_may_be_compressed_on_a_gpu_has_the_bits_of_the_cpu_there(
    device: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta = gaussian(layout, 300)
    delta[:9] = delta[:9].round()  # ties
    for compress in (dense(layout), top_k(layout, constant(9)), int8(layout)):
        assert compress.on_device
        expected = compress.apply(uploads(delta)).delta
        if device == "cuda":
            found = compress.apply(uploads(delta.cuda())).delta.cpu()
        else:
            with monkeypatch.context() as patched:
                patched.setattr(Tensor, "__truediv__", divide_as_cuda)
                found = compress.apply(uploads(delta)).delta
        assert torch.equal(found, expected)


def test_random_k_is_unbiased_and_keeps_k() -> None:
    """Over 4000 addresses the mean of what arrives is the delta, within 5 standard errors."""
    layout, k, draws = one_tensor(8), 3, 4000
    delta = torch.tensor([-2.0, -1.0, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0])
    sent = random_k(layout, constant(k)).apply(uploads(delta.repeat(draws, 1))).delta
    assert ((sent != 0).sum(1) == k).all()
    error = delta.abs() * (8 / k - 1) ** 0.5 / draws**0.5  # sd of a kept-or-not times d / k
    assert bool(((sent.mean(0) - delta).abs() < 5 * error).all())
    biased = random_k(layout, constant(k), unbiased=False).apply(uploads(delta.repeat(draws, 1))).delta
    assert torch.allclose(biased * (8 / k), sent)


KINDS: dict[str, Callable[[Layout], Compress]] = {
    "topk": lambda layout: top_k(layout, constant(4)),
    "randomk": lambda layout: random_k(layout, constant(4), unbiased=False),
    "int8": int8,
}


@pytest.mark.parametrize("kind", KINDS)
@every_layout
def test_sent_and_kept_add_up_to_all_deltas(layout: Layout, kind: str) -> None:
    """Integer deltas, so that float32 sums are exact; int8's products round."""
    compress = error_feedback(KINDS[kind](layout))
    assert promised(compress) == promised(KINDS[kind](layout))  # it costs no bytes
    numbers = np.random.default_rng(0)
    kept = torch.zeros(3, layout.d)
    total, arrived = torch.zeros(3, layout.d), torch.zeros(3, layout.d)
    for _ in range(12):
        delta = torch.from_numpy(numbers.integers(-50, 51, size=(3, layout.d)).astype(np.float32))
        sent = compress.apply(uploads(delta, own={RESIDUAL: kept}))
        assert torch.equal(sent.delta, KINDS[kind](layout).apply(uploads(delta + kept)).delta)
        total, arrived, kept = total + delta, arrived + sent.delta, sent.own[RESIDUAL]
        torch.testing.assert_close(arrived + kept, total, rtol=0, atol=1e-3 if kind == "int8" else 0)
        assert not kept[:, layout.trainable :].any(), "buffers are sent whole: nothing of them is kept"


@pytest.mark.parametrize("kind", KINDS)
def test_the_compression_of_a_job_does_not_depend_on_other_jobs(kind: str) -> None:
    everyone, compress = uploads(gaussian(PLAIN, 6)), KINDS[kind](PLAIN)
    together = compress.apply(everyone).delta
    for j in range(6):
        columns = {name: getattr(everyone, name)[[j]] for name in ("delta", "client", "model", "tier", "key")}
        assert torch.equal(compress.apply(everyone._replace(**columns)).delta[0], together[j])
