"""A sweep from its file to its directory: what `fedray tune` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects
from fedray.core import files
from fedray.core.errors import BadInput, FedrayError
from fedray.core.user_modules import import_modules
from fedray.runtime.environment import prepare_process
from fedray.scenario import yaml_text
from fedray.simulation.rounds import draw_first_state
from fedray.simulation.study import Study
from fedray.storage import directory
from fedray.training.choice import choose_engine
from fedray.tuning import optuna_study as stores
from fedray.tuning.objectives import check_producible
from fedray.tuning.results import summary_line, write_results
from fedray.tuning.search import Say, SearchState, limit_of, make_workers, run_search
from fedray.tuning.sweep_file import Sweep, read_sweep

__all__ = ["summary_line", "run_sweep"]
COPY = "sweep.yaml"
MOST_TOGETHER = 8
OPEN = ("trials", "jobs", "together")  # what may change between the parts of a sweep


def run_sweep(
    source: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    trials: int | None = None,
    resume: bool = False,
    storage: str | None = None,
    address: str | None = None,
    modules: tuple[str, ...] = (),
    say: Say = print,
) -> dict[str, Any]:
    """Runs a sweep (a file or its keys) into a directory, or goes on with one, and returns its summary.

    Args:
        trials: how many in all, instead of the file's. resume: go on where the directory stands.
        storage: an Optuna storage URL; default: a journal file in `out`.
        address: of an existing Ray cluster. modules: your own code, for every worker. say: is told a line a trial.

    Raises:
        BadInput: the sweep or the directory cannot be used. FedrayError: no trial came to its end."""
    prepare_process()
    sweep, folder, own = read_sweep(source), Path(out), UserObjects(modules=modules)
    import_modules(modules)
    first = build_study(base := sweep.scenario({}), own)
    check_producible(sweep.objectives, first.classes, base.data.name)
    limit, points = limit_of(sweep, trials)
    journal = folder.absolute() / stores.JOURNAL
    stores.check_vacant(storage, sweep.name, resume)  # before anything is written
    _take(sweep, folder, resume, journal if storage is None else None)
    with directory.lock_run_directory(folder):
        stores.mend_journal(journal)
        place = stores.StudyLocation(
            storage or str(journal), sweep.name, sweep.pruner, base.rounds // base.method.models
        )
        study = stores.start_study(sweep, place, resume)
        together = together_of(sweep, first, limit, points)
        course = SearchState(sweep, folder.absolute(), study, place, own, limit, points, say, together)
        try:
            with make_workers(sweep.jobs, base, address) as submit:
                run_search(course, submit)
        except KeyboardInterrupt:
            raise FedrayError(f"interrupted; `fedray tune ... --out {out} --resume` goes on") from None
        return write_results(course)


def together_of(sweep: Sweep, study: Study, limit: int, points: list[dict[str, Any]] | None) -> int:
    """How many trials each process trains side by side, while that keeps all `jobs` at work: what the file says, else
    one where earlier trials decide later ones; in a grid or at random as many as fill a block of lanes, at most 8."""
    ignored = {f"predict.{name}" for name in sweep.inference}
    kept = [repr([(key, value) for key, value in point.items() if key not in ignored]) for point in points or ()]
    most = -(-(len(set(kept[:limit])) or limit) // sweep.jobs)
    if study.client_timeout is not None:  # kept by the main thread; trials side by side have threads of their own
        return 1
    if sweep.together is not None:
        return min(sweep.together, most)
    if sweep.sampler.name not in ("grid", "random") or sweep.pruner.name != "none":
        return 1
    phase = study.method.phase
    jobs = len(phase.schedule(0, draw_first_state(study, phase)).client)
    width = choose_engine(study.net, example=study.example).width
    return max(1, min(width // max(1, jobs), most, MOST_TOGETHER))


def _take(sweep: Sweep, folder: Path, resume: bool, journal: Path | None) -> None:
    """Makes the sweep's directory, or checks that it holds this very sweep."""
    copy = folder / COPY
    if copy.is_file():
        if not resume:
            raise BadInput(f"--out {folder} holds a sweep: choose another directory, or add --resume to go on")
        if _fixed(yaml_text.load_yaml(copy)) != _fixed(sweep.source):
            raise BadInput(f"--out {folder} holds another sweep (see its {COPY}): choose another directory")
        if journal is not None and not journal.is_file():
            raise BadInput(f"{journal} is missing: give the --storage that the sweep began with")
        return
    if folder.exists() and (not folder.is_dir() or any(p.name != ".lock" for p in folder.iterdir())):
        raise BadInput(f"--out {folder} holds other files: choose another directory")
    try:
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder} cannot be made ({error.strerror}): choose another directory") from None
    if journal is not None:
        journal.touch()
    files.write_atomically(copy, yaml_text.write_yaml(dict(sweep.source)).encode())


def _fixed(source: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key not in OPEN}
