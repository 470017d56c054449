"""Run loggers: send the metrics of each evaluated round to a tool you already use. Off by default.

A logger is one function of the round and its metrics; each tool is imported when its logger is made, never before.

Example:
    >>> logged = []
    >>> log: Logger = lambda round, metrics: logged.append((round, metrics["accuracy"]))
    >>> log(10, {"accuracy": 0.9})
    >>> logged
    [(10, 0.9)]
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.core.text import show_line
from fedray.files.plain import expand_user_path

Logger = Callable[[int, Mapping[str, float]], None]


def tensorboard(dir: str | Path) -> Logger:
    """Scalars as TensorBoard event files.

    Args:
        dir: where the event files go; `tensorboard --logdir` reads it.
    """
    _import_tool("tensorboard", "tensorboard")
    writer = _import_tool("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(dir))

    def log(round: int, metrics: Mapping[str, float]) -> None:
        for name, value in _finite_numbers(metrics).items():
            writer.add_scalar(name, value, round)
        writer.flush()  # a run that is killed keeps what it logged

    return log


def wandb(project: str, dir: str | Path | None = None, name: str | None = None) -> Logger:
    """A run of Weights & Biases; its own environment variables say whether it is online.

    Args:
        project: the project the run belongs to.
        dir: where its local files go.
        name: of the run; a random one without.
    """
    where = None if dir is None else str(dir)
    run = _import_tool("wandb", "wandb").init(project=project, dir=where, name=name, reinit="create_new")

    def log(round: int, metrics: Mapping[str, float]) -> None:
        run.log(_finite_numbers(metrics), step=round)

    return log


def mlflow(uri: str, experiment: str = "fedray", name: str | None = None) -> Logger:
    """A run of MLflow.

    Args:
        uri: of the tracking server, or a local store such as `sqlite:///runs.db`.
        experiment: made if there is none of this name.
        name: of the run; a random one without.
    """
    client = _import_tool("mlflow", "mlflow").MlflowClient(tracking_uri=uri)
    known = client.get_experiment_by_name(experiment)
    where = client.create_experiment(experiment) if known is None else known.experiment_id
    run = client.create_run(where, run_name=name).info.run_id

    def log(round: int, metrics: Mapping[str, float]) -> None:
        for key, value in _finite_numbers(metrics).items():
            client.log_metric(run, key, value, step=round)

    return log


def look_on(what: str, do: Callable[..., object], tell: Callable[[str], object]) -> Callable[..., None]:
    """The function, for what only looks on a run: where it fails that is told, and it is not called again.

    Args:
        what: looks on, for the line.
        do: the function.
        tell: says a line.

    Example:
        >>> look = look_on("a gauge", lambda value: 1 / value, print)
        >>> look(0), look(0)
        a gauge failed (ZeroDivisionError: division by zero): the run goes on without it
        (None, None)
    """
    works = True

    def call(*given: object) -> None:
        nonlocal works
        try:
            if works:
                do(*given)
        except Exception as error:  # tools raise many kinds
            works = False
            tell(_say_failed(what, error))

    return call


def _say_failed(what: str, error: Exception) -> str:
    return f"{what} failed ({show_line(f'{type(error).__name__}: {error}')}): the run goes on without it"


def tell_user(line: str) -> None:
    """Warns of what failed beside a run."""
    warn_user(line, FedrayWarning)


def build_loggers(names: Iterable[str], out: Path, tell: Callable[[str], object] = tell_user) -> list[Logger]:
    """The loggers a user asks for by name; one that fails later ends no run.

    Args:
        names: `tensorboard`, `wandb` or `mlflow`, each with `:VALUE` for another directory, project or URI; the
            scenario's `loggers`.
        out: the run directory; files go below it, and runs are named after it.
        tell: says a line about a logger that fails.

    Raises:
        BadInput: a name is unknown, or its package is not installed.
    """
    make: dict[str, Callable[[str], Logger]] = {
        "tensorboard": lambda value: tensorboard(expand_user_path("logger", value) if value else out / "tensorboard"),
        "wandb": lambda value: wandb(value or "fedray", dir=out, name=out.name),
        "mlflow": lambda value: mlflow(value or f"sqlite:///{out / 'mlflow.db'}", name=out.name),
    }
    pairs = [name.partition(":")[::2] for name in names]
    for kind, _ in pairs:
        if kind not in make:
            raise BadInput(f"logger = {kind!r} is unknown: use one of {', '.join(make)}")
    made: list[tuple[str, Logger]] = []
    for kind, value in pairs:
        try:
            made.append((kind, make[kind](value)))
        except BadInput:
            raise
        except Exception as error:  # its server is away, say: a run that goes on does so without it
            tell(_say_failed(f"loggers: {kind}", error))
    return [look_on(f"loggers: {kind}", log, tell) for kind, log in made]


def _import_tool(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(f"logger = {extra!r} needs a package: pip install 'fedray[{extra}]'") from None


def _finite_numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Finite numbers only: lists (one number a member) and NaN are left out."""
    plain = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    return {name: value for name, value in plain.items() if math.isfinite(value)}
