"""Joining a cluster: what is wrong with it is one line within seconds, not minutes of Ray's own."""

from __future__ import annotations

import os
import time

import pytest
import ray
from ray._private import services
from ray.exceptions import AuthenticationError

from fedray.core.errors import BadInput
from fedray.runtime import environment
from fedray.runtime.ray import connection

DEAD = "127.0.0.1:1"  # nobody listens there


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray of others, and none is joined."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", list)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _folder: None)
    monkeypatch.setattr(ray, "init", lambda **_options: pytest.fail("Ray itself would try for minutes"))


def test_a_machine_without_ray_has_no_cluster_to_find() -> None:
    with pytest.raises(BadInput, match=r"--address auto: no Ray runs on this machine: start one"):
        connection.join_cluster("auto")


def test_a_stale_note_of_a_cluster_took_three_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's note of where this machine belongs stays when its head node is gone."""
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _folder: DEAD)
    began = time.monotonic()
    with pytest.raises(BadInput, match=r"--address auto: this machine belongs to \S+:1, where nobody answers"):
        connection.join_cluster("auto")
    assert time.monotonic() - began < 90


def test_an_address_where_nobody_answers_is_named_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=f"--address {DEAD}: nobody answers there: start Ray there"):
        connection.join_cluster(DEAD)
    monkeypatch.setenv("RAY_ADDRESS", DEAD)
    with pytest.raises(BadInput, match=f"RAY_ADDRESS = {DEAD}: nobody answers"):
        connection.join_cluster(DEAD)


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "auto"])
def test_a_cluster_that_wants_a_token_was_said_not_to_run(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor are there lines of Ray's C++ code before the one line."""

    def refuse(address: str) -> None:
        os.write(2, b"gcs_client.cc:210: Failed to get cluster ID")
        raise AuthenticationError(f"InvalidAuthToken of {address}")

    monkeypatch.setattr(services, "find_bootstrap_address", lambda _folder: "10.0.0.1:6379")
    monkeypatch.setattr(environment, "answers", lambda _address, _seconds: True)
    monkeypatch.setattr(connection, "GcsClient", refuse)
    match = f"--address {address}: this cluster wants a token, .*: set RAY_AUTH_MODE=token, and copy"
    with pytest.raises(BadInput, match=match):
        connection.join_cluster(address)
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"
