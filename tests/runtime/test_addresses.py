"""Which cluster is meant: what was typed, then RAY_ADDRESS, then one that is started here."""

from __future__ import annotations

import pytest

from fedray.core.errors import BadInput
from fedray.runtime.environment import find_address


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        (None, None, None),
        (None, "10.0.0.1:6379", "10.0.0.1:6379"),
        ("auto", "10.0.0.1:6379", "auto"),
        ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379"),
        ("local", "10.0.0.1:6379", None),
        ("[::1]:6379", None, "[::1]:6379"),
    ],
)
def test_what_is_typed_comes_before_rays_variable(
    given: str | None, variable: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert find_address("ray", given) == found


def test_what_runs_here_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """RAY_ADDRESS is there for whoever uses Ray, in a submitted job always; an address that was typed is refused."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert find_address("inline", None) is None
    with pytest.raises(BadInput, match="--address auto, but runtime = inline"):
        find_address("inline", "auto")
