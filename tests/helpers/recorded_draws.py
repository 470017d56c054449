"""The addresses of the generators that code asks for, in order."""

from __future__ import annotations

from typing import Any

import pytest

from fedray.core import rng


def record_streams(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A list to which every call of `rng.stream` adds its address."""
    addresses, stream = list[tuple[Any, ...]](), rng.stream

    def record(*address: Any) -> Any:
        addresses.append(address)
        return stream(*address)

    monkeypatch.setattr(rng, "stream", record)
    return addresses
