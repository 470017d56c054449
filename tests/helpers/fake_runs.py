"""Realistic run directories, written without training anything."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

TIERS = ("hpc", "lpc")


def write_run(
    out: Path, *, regression: bool = False, replicates: int = 1, clients: int = 50, models: int = 5, rounds: int = 60,
    per_round: int | None = None, classes: int = 10, pictures: bool = True, lift: float = 0.0,
) -> Path:  # fmt: skip
    """Writes a run directory as a run with two tiers leaves it. The first fifth of the clients trains all models."""
    rng = np.random.default_rng([clients, models, replicates, int(regression)])
    out.mkdir(parents=True)
    name = "rmse" if regression else "accuracy"
    tables = [_jobs(rng, r, clients, models, rounds=rounds, per_round=per_round or clients) for r in range(replicates)]
    jobs = pa.concat_tables(tables)
    table = _rounds(rng, jobs, name, replicates, models=models, rounds=rounds, lift=lift)
    for label, rows in (("clients", jobs), ("rounds", table)):
        (out / f"{label}.parquet").mkdir()
        pq.write_table(rows, out / f"{label}.parquet" / f"part-{rounds:09d}.parquet")
    scenario = {
        "seed": 7,
        "rounds": rounds,
        "replicates": replicates,
        "method": {"name": "shefl", "models": models},
        "data": {"name": "cubic" if regression else "fashion_mnist", "partition": {"kind": "dirichlet", "alpha": 0.6}},
        "model": {"name": "mlp" if regression else "cnn"},
        "clients": {
            "number": clients,
            "tiers": {"hpc": {"share": 0.2, "models_per_round": None}, "lpc": {"share": 0.8}},
        },
        "local": {"lr": 0.01 + lift, "epochs": 2, "batch_size": 16},
    }
    (out / "scenario.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False))
    (out / "summary.json").write_text(json.dumps(_summary(table, scenario)))
    manifest = {
        "versions": {"fedray": "0.1.0", "torch": "2.8.0", "numpy": "2.3.2", "ray": None},
        "host": {"machine": "x86_64", "system": "Linux", "python": "3.11.7"},
        "git_commit": "0" * 40,
        "engine": {"name": "fused", "width": 32, "why": "a small convolutional network under SGD"},
        "self_test": "lanes do not change their neighbours",
        "timings": {"train": 31.2, "evaluate": 4.1},
    }
    (out / "manifest.json").write_text(json.dumps(manifest))
    if pictures:
        drawn = _regression_pictures(rng) if regression else _pictures(rng, clients, models, classes)
        np.savez(out / "pictures.npz", **drawn)
    return out


def _jobs(
    rng: np.random.Generator, replicate: int, clients: int, models: int, *, rounds: int, per_round: int
) -> pa.Table:
    strong = max(clients // 5, 1)
    slow = np.exp(rng.normal(0, 0.35, clients))
    places: list[tuple[int, int, int]] = []
    age = {}
    for t in range(rounds):
        who = np.sort(rng.choice(clients, per_round, replace=False))
        if t % models == 0:
            age = {i: rng.permutation(models) for i in range(clients)}
        for i in who.tolist():
            places += [(t + 1, i, k) for k in (range(models) if i < strong else [int(age[i][t % models])])]
    n, (when, client, model) = len(places), np.array(places).T
    samples = 40 + 17 * (client % 13)
    steps = 2 * -(-samples // 16)
    lost = rng.random(n) < 0.01
    seconds = steps * np.where(client < strong, 0.01, 0.06) * slow[client] + np.where(client < strong, 0.1, 0.7)
    loss = 2.2 * np.exp(-when / 15) + 0.2 + rng.normal(0, 0.03, n)
    return pa.table(
        {
            "replicate": np.full(n, replicate),
            "fold": np.zeros(n, np.int64),
            "round": when,
            "client": client,
            "model": model,
            "tier": np.where(client < strong, *TIERS),
            "samples": samples,
            "steps": np.where(lost, 0, steps),
            "loss": pa.array(loss, mask=lost),
            "up_bytes": np.where(client < strong, 42_000, 21_000),
            "down_bytes": np.full(n, 210_000),
            "sim_seconds": seconds,
            "status": np.where(lost, "no data", "ok"),
        }
    )


def _rounds(
    rng: np.random.Generator, jobs: pa.Table, name: str, replicates: int, *, models: int, rounds: int, lift: float
) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for r in range(replicates):
        mine = jobs.filter(pa.compute.equal(jobs["replicate"], r)).to_pandas().groupby("round")
        up, down, slowest = mine["up_bytes"].sum(), mine["down_bytes"].sum(), mine["sim_seconds"].max()
        speed = rng.normal(9, 0.6)
        for t in range(rounds + 1):
            grown = 1 - np.exp(-t / speed)
            member = np.array([grown * (0.79 + 0.012 * k) + 0.1 * (1 - grown) for k in range(models)])
            member = np.clip(member + rng.normal(0, 0.012, models), 0, 1)
            best = min(member.mean() + 0.06 * grown + lift, 1.0) + rng.normal(0, 0.003)
            if name == "rmse":
                member, best = 6 * (1 - 0.8 * member), 6 * (1 - 0.8 * best)
            row = {"replicate": r, "fold": 0, "round": t, "sim_seconds": float(slowest[slowest.index <= t].sum())}
            row |= {"wall_seconds": 0.5 * t, "up_bytes": int(up[up.index <= t].sum())}
            row |= {"down_bytes": int(down[down.index <= t].sum()), name: float(best)}
            row |= {f"{name}_min": member.min(), f"{name}_mean": member.mean(), f"{name}_max": member.max()}
            row |= {"nll": 2.3 * (1 - grown) + 0.35, f"member_{name}": member.tolist()}
            if name == "rmse":
                row |= {"crps": 2 * (1 - grown) + 0.7, "coverage_95": 0.6 + 0.33 * grown, "sharpness": 2 - grown}
            else:
                row |= {"brier": 0.9 * (1 - grown) + 0.15, "ece": 0.03 + 0.05 * np.exp(-t)}
                row |= {"entropy": 2.3 - 1.9 * grown, "disagreement": 0.12 + 0.7 * (1 - grown)}
                row["personal_accuracy"] = min(best + 0.03 * grown, 1.0)
            rows.append(row)
    return pa.Table.from_pylist(rows)


def _summary(table: pa.Table, scenario: dict[str, Any]) -> dict[str, Any]:
    last = table.to_pandas().query(f"round == {scenario['rounds']}")
    scores = last.select_dtypes("float").drop(columns=["sim_seconds", "wall_seconds"])
    spread = scores.std() if len(last) > 1 else dict.fromkeys(scores)
    metrics = {name: {"mean": scores[name].mean(), "sd": spread[name], "n": len(last)} for name in scores}
    totals: dict[str, float] = {key: int(last[key].sum()) for key in ("up_bytes", "down_bytes")}
    totals |= {"sim_seconds": last["sim_seconds"].max(), "wall_seconds": 35.3}
    head = {"method": "shefl", "data": scenario["data"]["name"], "rounds": scenario["rounds"], "seed": scenario["seed"]}
    return {**head, "metrics": metrics, "totals": totals, "model_hash": "ab" * 32, "state_hash": "cd" * 32}


def _pictures(rng: np.random.Generator, clients: int, models: int, classes: int) -> dict[str, Any]:
    garments = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
    confusion = np.eye(classes) * 880 + rng.integers(0, 12, (classes, classes))
    confusion[6 % classes, 0] = 170
    shares = rng.dirichlet(np.full(classes, 0.6), clients)
    sizes = 40 + 17 * (np.arange(clients) % 13)
    edges = (np.arange(15) + 0.5) / 15
    accuracy = np.clip(edges + 0.07 * np.sin(3 * edges) + rng.normal(0, 0.01, 15), 0, 1)
    z = rng.normal(0, 0.9, clients)
    z[[min(7, clients - 1), min(23, clients - 1)]] = 3.4, 2.6
    losses = rng.gamma(2.0, 0.4, (clients, models))
    alpha = np.exp(-losses / 0.5)
    apart = 0.06 * np.arange(models) + rng.uniform(0, 0.05, models)
    x, y = np.meshgrid(np.linspace(-3, 9, 40), np.linspace(-3, 7, 40))
    points = np.array([[0.0, 0.0], [6.0, 0.0], [2.5, 4.6]])
    wells = [np.exp(-((x - a) ** 2 + (y - b) ** 2) / 3) for a, b in points]
    return {
        "confusion": np.round(confusion).astype(np.int64),
        "calibration": np.stack([edges, accuracy, np.round(30 * np.exp(4 * edges))], axis=1),
        "label_counts": np.round(shares * sizes[:, None]).astype(np.int64),
        "class_names": np.array(garments if classes == 10 else [str(i) for i in range(classes)]),
        "client_scores": z,
        "client_accuracy": np.clip(rng.beta(18, 3, clients), 0, 1),
        "alpha": alpha / alpha.sum(axis=1, keepdims=True),
        "disagreement": np.abs(np.subtract.outer(apart, apart)),
        "loss_plane": 2.4 - 2.1 * np.max(wells, axis=0),
        "loss_plane_points": points,
        "loss_plane_extent": np.array([-3.0, 9.0, -3.0, 7.0]),
    }


def _regression_pictures(rng: np.random.Generator) -> dict[str, Any]:
    x = np.sort(rng.uniform(-6, 6, 160))
    sd = 3 + 4 * np.maximum(np.abs(x) - 3.5, 0) ** 1.5
    y = np.where(np.abs(x) < 4, x**3 + rng.normal(0, 3, 160), np.nan)
    levels = np.array([0.5, 0.8, 0.9, 0.95])
    return {
        "predictive": np.stack([x, y, 0.96 * x**3, sd], axis=1),
        "pit": np.array([0.07, 0.09, 0.11, 0.12, 0.12, 0.13, 0.12, 0.1, 0.08, 0.06]),
        "coverage": np.stack([levels, levels - np.array([0.06, 0.05, 0.04, 0.02])], axis=1),
        "client_scores": rng.normal(0, 0.6, 10),
        "client_rmse": 3.0 + rng.gamma(2.0, 0.5, 10),
        "client_rmse_equal": 4.0 + rng.gamma(2.0, 0.5, 10),
    }
