"""Computes random numbers from an *address*: the tuple (seed, purpose, round, client, model).

The same address gives the same random numbers on any machine. Results depend neither on the order of execution nor on
the process that trains a client. `stream(seed, "batches", round, client, model)` returns a NumPy generator (Philox) for
one address. `keys` computes a 64-bit *key* for each of many addresses at once. `bits` and `uniform` compute random
numbers from keys (splitmix64, Steele, Lea and Flood 2014). Keys are cheap, whereas creating a generator takes longer
than training a small client.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, splitmix64's increment
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # splitmix64's multipliers
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def _mix(z: Keys) -> Keys:
    """Applies the finalizer of splitmix64, a bijection of 64 bits, in place."""
    z ^= z >> _S30
    z *= _A
    z ^= z >> _S27
    z *= _B
    z ^= z >> _S31
    return z


@lru_cache(maxsize=512)
def _word(part: str) -> int:
    return int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "little")


def keys(seed: ArrayLike, purpose: str, *address: ArrayLike) -> Keys:
    """Returns the 64-bit keys of an array of addresses.

    Args:
        seed: One seed, or an array of seeds.
        purpose: Purpose of the random numbers. Random numbers for different purposes are independent.
        address: The other parts of the addresses, such as round and client, as integers or arrays. NumPy broadcasts
            `seed` and these parts against each other.

    Example:
        >>> keys(0, "batches", 3, [1, 2]).shape
        (2,)
        >>> bool(keys(0, "batches", 3, [1, 2])[1] == keys(0, "batches", 3, 2))
        True
    """
    with np.errstate(over="ignore"):
        key = np.asarray(seed, dtype=np.int64).astype(np.uint64) ^ np.uint64(_word(purpose))
        key = _mix(np.array(key + _GOLDEN, dtype=np.uint64, ndmin=1))
        for part in address:
            key = fresh(key, part)
    scalar = np.ndim(seed) == 0 and all(np.ndim(part) == 0 for part in address)
    return key[0] if scalar else key


def fresh(key: ArrayLike, part: ArrayLike) -> Keys:
    """Appends a part to the addresses of keys: `fresh(keys(..., a), b)` equals `keys(..., a, b)`."""
    with np.errstate(over="ignore"):
        word = np.asarray(part, dtype=np.int64).astype(np.uint64)
        return _mix((np.asarray(key, dtype=np.uint64) ^ word) * _GOLDEN + word + _GOLDEN)


def bits(key: ArrayLike, n: int) -> Keys:
    """Returns the first n random 64-bit integers of each key, `[..., n]`. Integer i depends only on the key and i."""
    base = np.asarray(key, dtype=np.uint64)[..., None]
    with np.errstate(over="ignore"):
        return _mix(base + np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN)


def uniform(key: ArrayLike, n: int) -> NDArray[np.float64]:
    """Returns the first n uniform random numbers in [0, 1) of each key, `[..., n]`."""
    return (bits(key, n) >> _S11).astype(np.float64) * 2.0**-53


def normal(key: ArrayLike, n: int) -> NDArray[np.float64]:
    """Returns the first n standard normal random numbers of each key, `[..., n]` (Box and Muller 1958)."""
    u = uniform(key, 2 * ((n + 1) // 2))
    half = u.shape[-1] // 2
    radius, angle = np.sqrt(-2.0 * np.log1p(-u[..., :half])), 2.0 * np.pi * u[..., half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)[..., :n]


def permutations(key: ArrayLike, n: int) -> NDArray[np.int64]:
    """Returns a random permutation of 0 to n - 1 for each key, `[..., n]`."""
    return np.argsort(bits(key, n), axis=-1, kind="stable")


def stream(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """Returns a NumPy generator for one address.

    Example:
        >>> bool(stream(0, "partition", 1).integers(100) == stream(0, "partition", 1).integers(100))
        True
    """
    return np.random.Generator(np.random.Philox(key=int(keys(seed, purpose, *address))))


@contextmanager
def torch_scope(key: int, device: Any = None) -> Iterator[None]:
    """Returns a context that seeds torch's global generator with `key`, and restores the old state at its end.

    Dropout, constructors of modules, and other code that draws from the global generator run in this context. If
    `device` is a CUDA device, its generator is seeded, too.
    """
    import torch

    cuda = [device] if device is not None and torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.set_rng_state(torch.Generator().manual_seed(key & (2**63 - 1)).get_state())
        if cuda:
            torch.cuda.set_rng_state(torch.Generator(device).manual_seed(key & (2**63 - 1)).get_state(), device)
        yield


@contextmanager
def watch_generators() -> Iterator[Callable[[], bool]]:
    """Returns a context with a function that tells whether code in the context has drawn from a global generator.

    At its end the context restores the states of all generators.

    Example:
        >>> with watch_generators() as have_changed:
        ...     have_changed(), random.random() < 1.0, have_changed()
        (False, True, True)
    """
    import torch

    with _keeping_generators() as before:

        def have_changed() -> bool:
            drawn: Any = np.random.get_state()
            same = all(np.array_equal(a, b) for a, b in zip(drawn, before[1], strict=True))
            return not (same and random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[2]))

        yield have_changed


@contextmanager
def generators_scope() -> Iterator[Callable[[int], None]]:
    """Returns a context with a function that takes a key and seeds the global generators of torch, NumPy and Python.

    At its end the context restores the states of all generators. A user's code runs in this context, because the code
    may draw from any of these generators. torch and NumPy use the same kind of generator (MT19937). So that their
    numbers differ, each of the two is seeded with a different 32-bit half of the key.

    Example:
        >>> with generators_scope() as start:
        ...     start(7)
        ...     one = random.random(), np.random.rand()
        ...     start(7)
        ...     (random.random(), np.random.rand()) == one
        True
    """
    import torch

    def start(key: int) -> None:
        torch.default_generator.manual_seed(key & (2**63 - 1))
        np.random.seed(key >> 32)
        random.seed(key)

    with _keeping_generators():
        yield start


@contextmanager
def _keeping_generators() -> Iterator[tuple[Any, Any, Any]]:
    """Returns a context that at its end restores the states of Python's, NumPy's and torch's global generators."""
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield before
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
