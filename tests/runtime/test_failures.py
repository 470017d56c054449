"""A client that raises, diverges or hangs: named, or left out as if it had never taken part, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from faulty import NATURAL, POISONED, marked_images, model_of
from on_ray import hashes
from small import of_method, rows, scenario
from torch import Tensor, nn

import fedray
from fedray.core.errors import Diverged, FedrayError, FedrayWarning, Lost
from fedray.core.method import Method
from fedray.core.types import IntArray, Plan, State, Stats
from fedray.data.types import Split, regression
from fedray.methods import METHODS
from fedray.methods.setting import Setting
from fedray.runtime import exchange as failures
from fedray.runtime.worker import Worker

ROUNDS = (1, 2)
SKIP: dict[str, Any] = {"on_client_error": "skip"}


@pytest.mark.parametrize("skip", [True, False])
def test_a_full_gpu_is_no_fault_of_a_client(skip: bool) -> None:
    """It was called a failure of the client, to be corrected or skipped; with skipping nobody would have trained."""

    def train(_index: IntArray) -> tuple[Stats, Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.")

    with pytest.raises(FedrayError, match=r"memory of the GPU is full \(CUDA .*2.00 GiB\): raise clients.tiers"):
        failures.try_jobs(train, "client {}".format, skip, np.arange(4))


def test_batch_normalization_trains_where_no_last_batch_has_one_row() -> None:
    """Of Dirichlet clients one has a row left over; the error of the default names the key that helps."""
    skewed = {"name": "dirichlet", "alpha": 0.1, "min_rows": 2}
    keys = scenario(
        {"method": {"name": "fedavg"}, "model": {"norm": "batch"}, "data": {"partition": skewed}},
        {"local": {"batch_size": 4, "epochs": 1}, "participation": {"fraction": 1}},
    )
    with pytest.raises(FedrayError, match="batch normalization cannot train on one row: set local.last_batch to drop"):
        fedray.run(keys)
    dropped, merged = (fedray.run(keys, local__last_batch=last) for last in ("drop", "merge"))
    assert dropped.clients["steps"].to_pylist() == merged.clients["steps"].to_pylist()
    assert dropped.summary["model_hash"] != merged.summary["model_hash"]


def without(name: str, client: int, rounds: tuple[int, ...]) -> Callable[[Setting], Method]:
    """A method in which a client has no job in some rounds."""

    def compose(setting: Setting) -> Method:
        method = METHODS[name](setting)
        phase = method.phase

        def schedule(t: int, state: State | None) -> Plan:
            plan = phase.schedule(t, state)
            return plan.take(plan.client != client) if t in rounds else plan

        return replace(method, phase=replace(phase, schedule=schedule))

    return compose


def poisoned(monkeypatch: pytest.MonkeyPatch, raises: Exception | None, rounds: tuple[int, ...] = ROUNDS) -> None:
    """The blocks that hold a job of the poisoned client raise, or hand out NaN for it, in some rounds."""
    block = Worker._train_block

    def poison(self: Worker, t: int, real: Any, *more: Any) -> Any:
        there = real.plan.client == POISONED
        if t in rounds and there.any() and raises is not None:
            raise type(raises)(*raises.args)
        uploads, loss = block(self, t, real, *more)
        if t in rounds:
            uploads.delta[torch.from_numpy(there)] = torch.nan
        return uploads, loss

    monkeypatch.setattr(Worker, "_train_block", poison)


FEEDBACK = {"compress": {"kind": "topk", "ratio": 0.1, "error_feedback": True}}
ERROR = ValueError("poison")
SKIPPED = {  # method, change, and what the poisoned client does: it raises, or hands out NaN
    "shefl": ("shefl", FEEDBACK, None),
    "feddyn NaN": ("feddyn", {}, None),
    "scaffold": ("scaffold", {"method": {"models": 1}}, ERROR),
    "ditto": ("ditto", {}, ERROR),
    "median": ("fedavg", {"server": {"robust": "median"}}, ERROR),
}


@pytest.mark.parametrize(("name", "change", "raises"), SKIPPED.values(), ids=SKIPPED)
def test_a_skipped_client_is_one_that_never_took_part(
    name: str, change: dict[str, Any], raises: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models, server state and every private vector, and the rows of all the others."""
    want = fedray.run(of_method(name, change), method=without(name, POISONED, ROUNDS))
    poisoned(monkeypatch, raises)
    with pytest.warns(FedrayWarning):
        done = fedray.run(of_method(name, change, SKIP))
    assert hashes(done) == hashes(want)
    others = [row for row in rows(done.clients) if row["status"] != "failed"]
    assert [row | {"sim_seconds": 0} for row in others] == [row | {"sim_seconds": 0} for row in rows(want.clients)]
    assert done.rounds["up_bytes"].to_pylist() == want.rounds["up_bytes"].to_pylist()
    failed = [row for row in rows(done.clients) if row["status"] == "failed"]
    assert {row["round"] for row in failed} == {t + 1 for t in ROUNDS}
    assert done.summary["failed_jobs"] == len(failed) > 0
    for row in failed:
        assert (row["client"], row["up_bytes"], row["steps"]) == (POISONED, 0, 0)
        assert row["down_bytes"] == others[0]["down_bytes"] > 0, "failed jobs were charged no download"
        assert row["loss"] is None
        assert ("ValueError: poison" if raises else "training diverged") in row["error"]
        assert "Traceback" in row["error"]
    assert all(row["error"] is None for row in others)


def test_where_everybody_fails_the_models_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("nobody can")

    monkeypatch.setattr(Worker, "_train_block", fail)
    with pytest.warns(FedrayWarning):
        done = fedray.run(scenario(SKIP, {"evaluate": {"every": 4}}))
    first, last = done.rounds.to_pylist()
    assert (first["accuracy"], first["nll"]) == (last["accuracy"], last["nll"])
    assert last["up_bytes"] == 0
    assert set(done.clients["status"].to_pylist()) == {"failed"}


@pytest.mark.parametrize(
    ("bad", "atom"), [(set(), 1), ({0}, 1), ({7}, 1), ({3, 4}, 1), (set(range(8)), 1), ({4}, 3)], ids=str
)
def test_a_failing_block_is_cut_until_only_the_failing_jobs_are_left(bad: set[int], atom: int) -> None:
    """Jobs that need each other, `atom` in a row, fail together and are tried together."""
    tried: list[list[int]] = []

    def work(index: IntArray) -> tuple[Stats, Tensor]:
        tried.append(index.tolist())
        if bad & set(index.tolist()):
            raise ValueError("bad")
        return {}, torch.zeros(len(index))

    size = 8 if atom == 1 else 9
    done, errors = failures.try_jobs(work, str, True, np.arange(size), atom=atom)
    failed = [job for job in range(size) if bad & set(range(job // atom * atom, job // atom * atom + atom))]
    assert sorted(errors) == failed and all("bad" in text for text in errors.values())
    assert sorted(job for part in done for job in part.jobs.tolist()) == sorted(set(range(size)) - set(failed))
    assert sum(map(len, tried)) <= (size * 4 if bad else size)
    assert all(len(jobs) % atom == 0 and jobs[0] % atom == 0 for jobs in tried)
    if bad:
        with pytest.raises(FedrayError, match=f"^{failed[0]} failed: ValueError"):
            failures.try_jobs(work, str, False, np.arange(size), atom=atom)


def test_what_works_in_halves_has_not_failed_and_divergence_is_not_tried_again() -> None:
    faults = iter([OSError("the disk was away"), None, None, Diverged("training diverged at client 3")])

    def work(index: IntArray) -> tuple[Stats, Tensor]:
        if fault := next(faults, None):
            raise fault
        return {}, torch.zeros(len(index))

    assert failures.try_jobs(work, str, False, np.arange(4))[1] == {}
    with pytest.raises(Diverged):
        failures.try_jobs(work, str, False, np.arange(4))


@pytest.mark.parametrize("how", ["raises", "NaN", "hangs"])
def test_a_users_own_model_that_fails_on_one_client(how: str) -> None:
    data = marked_images()
    keys = {**NATURAL, **SKIP, "runtime": "inline", **({"client_timeout": 1.0} if how == "hangs" else {})}
    with pytest.warns(FedrayWarning):
        done = fedray.run(keys, data=data, model=model_of(how, data))
    failed = [row["client"] for row in rows(done.clients) if row["status"] == "failed"]
    assert failed == [POISONED]


def test_a_job_that_always_ends_its_actor_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> Any:
        raise Lost("gone")

    monkeypatch.setattr(Worker, "train", die)
    with pytest.raises(FedrayError, match="client actors died 20 times over round 1: have they enough memory"):
        fedray.run(scenario({"method": {"name": "feddyn"}}))


class Fragile(nn.Linear):
    """Raises where it sees the inputs of one client."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x[:, 0] > 1).any()):
            raise ValueError("an odd input")
        return super().forward(x)


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_client_that_cannot_be_scored_spoils_nobody_elses_scores(method: str) -> None:
    """Its own rows are no part of the residual variance, and it has no score of its own."""
    x, group = np.random.default_rng(0).normal(size=(72, 3)), np.arange(72) % 6
    y, x[:, 0] = x @ [1.0, 2.0, 3.0], x[:, 0] + 20 * (group == POISONED)
    data = regression("odd", Split(x, y, group), Split(x[group == 0], y[group == 0]))
    keys = {**NATURAL, **SKIP, "method": method, "predict": {"noise": "residual"}, "runtime": "inline"}
    with pytest.warns(FedrayWarning):
        done = fedray.run(keys, data=data, model=lambda: Fragile(3, 1))
    assert {"nll", "coverage_95"} <= {name for name, value in rows(done.rounds)[-1].items() if np.isfinite(value or 0)}
