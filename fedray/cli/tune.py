"""The command `fedray tune`.

Example:
    >>> tune_command.name
    'tune'
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from fedray.cli import options
from fedray.core.user_modules import import_modules


@click.command(name="tune")
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("--trials", type=int, help="How many trials in all (default: as SWEEP says).")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the sweep (default: runs/SWEEP).")
@click.option("--resume", is_flag=True, help="Continue an interrupted sweep; finished trials are kept.")
@click.option("--storage", metavar="URL", help="Where Optuna keeps the trials (default: a file in the directory).")
@options.address
@options.modules
def tune_command(
    sweep: Path,
    *,
    trials: int | None,
    out: Path | None,
    resume: bool,
    storage: str | None,
    address: str | None,
    modules: tuple[str, ...],
) -> None:
    """Search for the best values of a scenario's keys with Optuna, as in `fedray tune tune/quick.yaml`."""
    import_modules(modules)
    from fedray.tuning.results import describe_summary
    from fedray.tuning.tune import run_sweep

    folder = out or Path("runs") / sweep.stem
    summary = run_sweep(
        sweep,
        folder,
        trials=trials,
        resume=resume,
        storage=storage,
        address=address,
        modules=modules,
        say=partial(click.echo, err=True),
    )
    click.echo(describe_summary(summary))
    for winner in summary["winners"][:1]:
        click.echo(f"best: trial {winner['number']}, " + ", ".join(f"{k} {v:.4g}" for k, v in winner["values"].items()))
    click.echo(f"{folder / 'best.yaml'}\n{folder / 'report.html'}")
