"""Which cluster is meant: what was typed, then RAY_ADDRESS, then one that is started here; and what is none."""

from __future__ import annotations

import pytest

from fedray.core.errors import BadInput
from fedray.runtime.environment import find_address


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        (None, None, None),
        (None, "", None),
        (None, "10.0.0.1:6379", "10.0.0.1:6379"),
        ("auto", "10.0.0.1:6379", "auto"),
        ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379"),
        ("local", "10.0.0.1:6379", None),
        (None, "local", None),
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


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://head:10001", "this is Ray Client.*run fedray on a machine of the cluster with --address auto"),
        ("http://127.0.0.1:8265", "this is a dashboard.*give HOST:PORT"),
        ("head", "give HOST:PORT of the head node, or auto"),
        (":6379", "give HOST:PORT"),
    ],
)
def test_what_is_no_address_of_a_head_node_is_one_line(
    address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(BadInput, match=f"--address {address}: {said}"):
        find_address("ray", address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(BadInput, match=f"RAY_ADDRESS = {address}: {said}"):
        find_address("ray", None)
