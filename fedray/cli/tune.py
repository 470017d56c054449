"""The command `fedray tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedray.cli import options
from fedray.files.plain import confirm_writable
from fedray.own_code.user_code import import_modules


@click.command(name="tune")
@click.argument("sweep", shell_complete=options.complete_file)
@click.option("--trials", type=int, help="How many trials in all (default: as SWEEP says).")
@click.option("--out", **options.as_path, help="Directory of the sweep (default: runs/SWEEP).")
@click.option("--resume", is_flag=True, help="Continue an interrupted sweep; finished trials are kept.")
@click.option("--storage", metavar="URL", help="Where Optuna keeps the trials (default: a file in the directory).")
@options.no_report
@options.address
@options.wait_for
@options.modules
@options.loudness
def tune_command(
    sweep: str,
    *,
    trials: int | None,
    out: Path | None,
    resume: bool,
    storage: str | None,
    no_report: bool,
    address: str | None,
    wait_for: dict[str, float] | None,
    modules: tuple[str, ...],
) -> None:
    """Search for the best values of a scenario's keys with Optuna, as in `fedray tune tune/quick.yaml`."""
    from fedray.scenario.loader import refuse_scenario
    from fedray.scenario.shipped import find_scenario_file
    from fedray.scenario.yaml_text import load_yaml
    from fedray.tuning.places import refuse_taken_sweep

    path = find_scenario_file(sweep, "sweep")
    folder = out or Path("runs") / path.stem
    refuse_scenario(str(path), load_yaml(path))
    refuse_taken_sweep(folder, resume=resume)
    confirm_writable("--out", folder)
    import_modules(modules)
    from fedray.tuning.tune import describe_summary, run_sweep

    summary = run_sweep(
        path,
        folder,
        trials=trials,
        resume=resume,
        storage=storage,
        address=address,
        wait_for=wait_for,
        modules=modules,
        report=not no_report,
        say=options.say_line,
    )
    click.echo(describe_summary(summary))
    _show_result(summary, folder, drawn=not no_report)


def _show_result(summary: dict[str, Any], folder: Path, *, drawn: bool) -> None:
    """The best trial, and the files that hold it."""
    for winner in summary["winners"][:1]:
        what = summary.get("first_winner", "best")
        click.echo(
            f"{what}: trial {winner['number']}, " + ", ".join(f"{k} {v:.4g}" for k, v in winner["values"].items())
        )
    click.echo(str(folder / "best.yaml"))
    if drawn:
        click.echo(str(folder / "report.html"))
