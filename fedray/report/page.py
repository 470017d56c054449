"""Makes the HTML page of a report, and shows a run in a notebook."""

import base64
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

import fedray
from fedray.core import errors as wording
from fedray.files.plain import write_user_file
from fedray.report import clients, compare, curves, pictures
from fedray.report.read import CONTEXT, Best, ReadRun, Table, find_headline, list_score_notes, mark_score, read_run

# ---------------------------------------------------------------------------------------------------------------------
# The headline numbers of a run, as cards at the top of its page.

CARD_SCORES = (
    *("accuracy", "accuracy_average", "accuracy_mean", "accuracy_max", "personal_accuracy"),
    *("rmse", "rmse_mean", "personal_rmse", "nll", "ece", "crps", "coverage_95"),
    *("conformal_coverage", "conformal_coverage_client_worst", "conformal_size", "conformal_width"),
)


class Card(NamedTuple):
    """A card that shows one headline number.

    Attributes:
        label: The name of the number.
        value: The number with its unit.
        sub: The line below the number, which may be empty.
    """

    label: str
    value: str
    sub: str = ""


def make_cards(run: ReadRun) -> list[Card]:
    """Makes the cards of the headline numbers, with mean and standard deviation over the replicates and folds.

    Example:
        >>> score = {"accuracy": {"mean": 0.9, "sd": 0.01, "n": 3}}
        >>> run = ReadRun("one", {}, "", {}, {"metrics": score}, {}, None, None, {})
        >>> make_cards(run)[0]
        Card(label='accuracy', value='90.0 %', sub='± 1.0 % (sd of 3)')
    """
    metrics = run.summary.get("metrics", {})
    single = run.models == 1
    shown = [name for name in CARD_SCORES if name in metrics and not (single and name.endswith(("_mean", "_max")))]
    found = []
    for name in shown:
        mean, sd, n = (metrics[name].get(key) for key in ("mean", "sd", "n"))
        text = "-" if mean is None else wording.format_number(mean, name)
        sub = "" if sd is None else f"\u00b1 {compare.format_deviation(sd, name)} (sd of {n})"
        found.append(Card(wording.name_score(name, unit=True), mark_score(text, run.summary), sub))
    slowest = f"slowest of {run.worlds}" if run.worlds > 1 else "simulated devices"
    subs = {"sim_seconds": slowest, "wall_seconds": "without start-up and report"}
    for key in wording.TOTALS:
        if (total := run.summary.get("totals", {}).get(key)) is not None:
            share = f"{wording.format_bytes(total / run.worlds)} each" if run.worlds > 1 else "all clients and rounds"
            found.append(Card(wording.name_score(key), wording.format_total(key, total), subs.get(key, share)))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The template of every page, `report.html.j2`, and the only script that the policy of the page allows.

PageTable = tuple[str, Table, str]  # heading, (header, rows), note
SCRIPTS = ("values", "numbers", "axes", "pointer", "downloads", "chart")  # files of the page's script, in their order


def fill_template(*, sections: Iterable[pictures.Section] = (), **values: Any) -> str:
    """Fills the template `report.html.j2` with values and returns the page.

    Example:
        >>> page = fill_template(title="nothing", facts=[], runs=[])
        >>> page.count("<script"), page.count("http-equiv")  # its own script and its numbers; its security policy
        (2, 1)
    """
    folder = resources.files("fedray.report")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.Undefined)
    environment.filters["pretty"] = partial(json.dumps, indent=2, ensure_ascii=False)
    environment.filters["left_aligned"] = _find_left_aligned
    environment.tests["best"] = lambda cell: isinstance(cell, Best)
    template = environment.from_string((folder / "report.html.j2").read_text(encoding="utf-8"))
    script = read_script()
    shown = [section for section in sections if section.pictures]
    numbers = {p.key: p.numbers for section in shown for p in section.pictures if p.numbers}
    own = {
        "version": fedray.__version__,
        "script": Markup(script),
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "numbers": jinja2.utils.htmlsafe_json_dumps(numbers, separators=(",", ":"), allow_nan=False),
    }
    return template.render(sections=shown, **own, **values)


def _find_left_aligned(rows: Sequence[Sequence[str | Best]]) -> list[bool]:
    """Returns for each column of a table whether it is aligned left.

    The first column is aligned left, and so is a column in which no text begins with a number.
    """
    columns = enumerate(zip(*rows, strict=True))
    return [not i or not any(re.match(r"[+-]?(\d|inf)", str(text)) for text in column) for i, column in columns]


def read_script() -> str:
    """Reads the script that every page has, and joins its files to one function."""
    folder = resources.files("fedray.report") / "script"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(['"use strict";', "(() => {", *parts, "})();", ""])


# ---------------------------------------------------------------------------------------------------------------------
# The content of the page: sections of figures, cards of headline numbers, tables.

Draw = Callable[[ReadRun], Figure | None]
MEAN_NOTE = (
    "Mean \u00b1 standard deviation over the replicates and folds of each run, at its own end. Shaded: the best run, "
    "and those that are not known to be worse; none where no run is known to be."
)
COST_NOTE = "Means over the n replicates and folds of a run, its wall time divided by their number."
PAIR_NOTE = (
    "Each run minus the first one, over the seeds that both have: same rows, clients and first models, unless a note "
    "above says otherwise. Student's 95 % interval over the seeds, at the last round of the shortest run (at equal "
    "virtual time where a run has no rounds; a method with phases at its own end). Blue or shaded: zero lies outside."
)
BUDGET_NOTE = (
    "The first score stands there also at each cost that differs between the runs: where a seed had cost what the "
    "cheapest run did in all. It is read between the evaluations around that, whose shares of it stand in the last "
    "columns. A run is not compared where none is near enough: one from 90 % on, or one on either side, the later of "
    "which cost at most twice the other."
)
CONFUSION_NOTE = f"Up to {clients.MOST_WRITTEN_CLASSES} classes: numbers, in percent of the row; 0 is left empty."
SECONDS_NOTE = "A round lasts as long as its slowest counted client; without rounds it is a server step."
ASSIGNMENT_NOTE = "Faint: the job did not finish. Empty: the client took no part. Who never did has no row."
TIERS_NOTE = "A dot is a client; line: the mean of the tier."
LOSS_NOTE = (
    "Mean of the jobs that counted, weighted by their samples. A job's loss is the mean over its steps, so that the "
    "model is still learning while it is measured."
)
OWN_NOTE = "Each client answers with its own weights or models where it has some, else with the answer that all share."
DRIFT_NOTE = (
    "Drift of data, measured without labels: how much the models disagree on the client's data (the entropy of their "
    "mean answer minus the mean of their entropies; in a regression the variance of their means), as its distance from "
    "the mean of all clients in standard deviations. The scores of all replicates are in drift.parquet. It is not the "
    "drift of local training that SCAFFOLD corrects."
)
SETS_NOTE = (
    "On the client's test rows, of replicate 0, with its own weights or models where it has some. The promise is about "
    "all clients together: one client's coverage may be below."
)
SECTIONS: dict[str, dict[Draw, str]] = {
    "What it reached": {
        curves.figure_rounds: "The best round is chosen on the test data: it is a mark, not a result to report.",
        compare.figure_bytes: "Bytes of all clients so far, in both directions.",
        compare.figure_seconds: SECONDS_NOTE,
        curves.figure_scores: "Scores of the ensemble's answer on the test data.",
        curves.figure_losses: LOSS_NOTE,
    },
    "How sure it is": {
        clients.figure_calibration: "Bars that end on the dashed line are calibrated.",
        clients.figure_confusion: CONFUSION_NOTE,
        clients.figure_classes: "Line: Wilson's 95 % interval for the test samples of the class.",
        clients.figure_ood: "The answers of replicate 0 to inputs that no class is for (`evaluate.ood`).",
        clients.figure_predictive: "Interval: mean \u00b1 1.96 standard deviations.",
        clients.figure_pit: "A hump in the middle: intervals too wide; high ends: too narrow.",
        clients.figure_coverage: "Share of the targets inside the central interval of each level.",
        clients.figure_disagreement: "Percent of the samples. An ensemble gains from members that differ.",
        clients.figure_loss_plane: "The plane through three members; colour: ln of the training loss there.",
    },
    "The stack": {
        clients.figure_confusions: "Each row is a class: where its samples go.",
        clients.figure_folds: "Accuracy on the test data; the sub model has never seen what it leaves out.",
        clients.figure_meta: "Blue speaks for the answer, red against it.",
    },
    "Who trained what": {
        clients.figure_graph: "Larger and darker: held and trained a model more often.",
        clients.figure_visits: "Line: the share that an endless walk would spend there.",
        curves.figure_assignment: ASSIGNMENT_NOTE,
        curves.figure_gantt: "Dashed: half of the clients are done.",
        curves.figure_flights: "The last jobs of the first replicate whose uploads were used.",
        curves.figure_staleness: "The last bar also holds what came later.",
        curves.figure_traffic: "Uploads that counted; downloads of all clients that were reached, late ones too.",
    },
    "The clients": {
        clients.figure_data: "",
        clients.figure_weights: "Each column adds up to 100 %.",
        clients.figure_clients: OWN_NOTE,
        clients.figure_tier_rounds: "Mean of the clients whose scores were recorded (`evaluate.clients`).",
        clients.figure_tiers: TIERS_NOTE,
        clients.figure_conformal: SETS_NOTE,
        clients.figure_drift: DRIFT_NOTE,
    },
}


Drawing = tuple[str, Callable[[], Figure | None], str]  # of a picture: its name, what draws it, the sentence below it


def render_one(run: ReadRun) -> str:
    """Renders the page of one run."""
    notes = []
    if run.worlds > 1:
        first = "Pictures without bands, and the sentences beside them, are of the first replicate and fold"
        notes.append(f"{first}, unless an axis names a mean.")
    with pictures.use_figure_style():
        sections = []
        for title, draws in SECTIONS.items():
            each = [(draw.__name__.removeprefix("figure_"), partial(draw, run), note) for draw, note in draws.items()]
            sections.append(make_section(title, each, notes))
    notes += list_score_notes(run.summary)
    if not run.summary:
        notes.append("The run has no summary.json: it was interrupted, and this is what it had recorded.")
    return fill_template(
        title=run.name, facts=list_run_facts(run), notes=notes, cards=make_cards(run), sections=sections, runs=[run]
    )


def render_many(runs: list[ReadRun], title: str = "", tables: Sequence[PageTable] = ()) -> str:
    """Renders the page that compares several runs.

    The first run is the baseline of all others. If `title` is empty, the title tells the number of runs.
    """
    keys = [[key, *values] for key, values in compare.find_differences(runs)]
    notes, pairs = compare.list_caveats(runs), compare.compare_at_all_budgets(runs)
    with pictures.use_figure_style():
        sections = [_compare_metric(runs, metric, notes) for metric in ("accuracy", "rmse")]
    return fill_template(
        title=title or f"{len(runs)} runs compared",
        facts=[("runs", ", ".join(run.name for run in runs))],
        notes=notes,
        tables=[
            *tables,
            ("Differences, seed by seed", compare.make_difference_table(runs, pairs), f"{PAIR_NOTE} {BUDGET_NOTE}"),
            ("Final metrics", compare.make_comparison_table(runs), MEAN_NOTE),
            ("What one seed cost", compare.make_cost_table(runs), COST_NOTE),
        ],
        later_tables=[("What the scenarios set differently", (["key", *(run.name for run in runs)], keys), "")],
        sections=sections,
        runs=runs,
    )


def _compare_metric(runs: list[ReadRun], metric: str, notes: list[str]) -> pictures.Section:
    """Makes the section that compares runs by a metric, or by the clients' personal predictions."""
    drawn = find_headline(runs) if metric == runs[0].metric else metric
    draws: list[Drawing] = [
        (f"{metric}-over-{what}", partial(compare.overlay_curves, runs, drawn, what), "")
        for what in ("rounds", "bytes", "seconds")
    ]
    if metric == runs[0].metric:
        draws.insert(1, ("differences", partial(compare.figure_differences, runs), PAIR_NOTE))
    if metric == "accuracy":
        draws.append(("clients-sorted", partial(compare.figure_clients, runs), "Pictures of replicate 0."))
    return make_section(f"{'Accuracy' if metric == 'accuracy' else 'RMSE'}, run by run", draws, notes)


def list_run_facts(run: ReadRun) -> list[tuple[str, str]]:
    """Lists facts about a run, as pairs of a name and a value."""
    scenario: dict[str, Any] = {**run.scenario, **run.summary}
    names = {}
    for key in ("method", "data", "model"):
        value = scenario.get(key) or ""
        names[key] = value.get("object") or value.get("name", "") if isinstance(value, dict) else value
    number = run.client_keys.get("number")
    tiers = f" in {len(run.tiers)} tiers ({', '.join(run.tiers)})" if len(run.tiers) > 1 else ""
    found = {
        **names,
        "clients": f"{number}{tiers}" if number else "",
        "models": run.models,
        "rounds": str(scenario.get("rounds", "")),
        "seed": str(scenario.get("seed", "")),
        "replicates \u00d7 folds": run.worlds if run.worlds > 1 else "",
    }
    return [(key, str(value)) for key, value in found.items() if value]


def make_section(title: str, draws: Iterable[Drawing], notes: list[str]) -> pictures.Section:
    """Draws the pictures of a section.

    Args:
        title: The heading of the section.
        draws: For each picture its name, the function that draws it (or returns None), and the sentence below it.
        notes: The notes of the page. If the numbers of a picture cannot be drawn, a note is added.
    """
    found = [picture for name, draw, text in draws for picture in _try_to_draw(name, draw, text, notes)]
    return pictures.Section(title, found)


def _try_to_draw(name: str, draw: Callable[[], Figure | None], text: str, notes: list[str]) -> list[pictures.Picture]:
    """Draws a picture, if there is one. If its numbers cannot be drawn, adds a note to the page instead."""
    try:
        with pictures.ignore_odd_numbers():
            if (figure := draw()) is None:
                return []
            text = f"{text} {curves.BAND_NOTE}".strip() if has_band(figure) else text
            return [pictures.draw_picture(figure, text, name.replace("_", "-"))]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = name.replace("_", " ").replace("-", " ")
        notes.append(
            f"The picture of {what} is left out: its numbers cannot be drawn ({wording.show_line(error, 120)})."
        )
        return []


# ---------------------------------------------------------------------------------------------------------------------
# One self-contained HTML file that shows a run, or compares several, made from the files of run directories.
# The page loads nothing from the network. Figures are inline SVG, follow the light or dark colors of the page, and can
# be printed. The page's own script shows values, hides lines, draws logarithmic axes and offers downloads; without the
# script the page shows the same figures.


def write_report(run_dirs: list[Path], out: Path, *, title: str = "", tables: Sequence[PageTable] = ()) -> None:
    """Writes the report of one run directory, or the comparison of several run directories, to `out`.

    Args:
        run_dirs: One or more run directories. The report of an interrupted run shows the recorded rounds.
        out: The HTML file to write. Its directory is made if needed.
        title: The title of a comparison. If it is empty, the title tells the number of runs.
        tables: Tables to show before the tables of a comparison. Each table is (heading, (header, rows), note).

    Raises:
        BadInput: A file of a run is missing, or `out` cannot be written. An earlier report stays unchanged.
        Unwritable: The disk is full or has a fault.
    """
    if out.is_dir():  # reported before minutes of drawing
        raise wording.BadInput(f"--out {out} cannot be written: it is a directory: name a file")
    runs = [read_run(folder, name) for folder, name in zip(run_dirs, _short_names(run_dirs), strict=True)]
    page = render_one(runs[0]) if len(runs) == 1 and not tables else render_many(runs, title, tables)
    write_user_file(out, page.encode())


def _short_names(run_dirs: list[Path]) -> list[str]:
    """Returns a short name for each run: the last parts of its path, as many as are needed to distinguish the runs.

    Example:
        >>> _short_names([Path("/runs/a/seed-1"), Path("/runs/b/seed-1")])
        ['a/seed-1', 'b/seed-1']
    """
    paths = [folder.resolve() for folder in run_dirs]
    for depth in range(1, 4):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({place})" for place, path in enumerate(paths, 1)]


# ---------------------------------------------------------------------------------------------------------------------
# The HTML for a notebook: tables of scores, and a curve as inline SVG.

# The colors of the figures follow the dark or light theme of JupyterLab, if it sets one.
_COLORS = (
    "--ink:var(--jp-content-font-color1,#1b2530);--muted:var(--jp-content-font-color2,#55616d);"
    "--grid:var(--jp-border-color2,#d7dde3);--card:var(--jp-layout-color1,#ffffff)"
)


def show_run(run: ReadRun, error: Exception | None) -> str:
    r"""Shows a run as HTML, with a description, scores, totals and the headline curve.

    `error` is the error that ended the run. None means that the run is finished or still goes on.

    Example:
        >>> score = {"accuracy": {"mean": 0.9, "sd": 0.01, "n": 3}}
        >>> html = show_run(ReadRun("one", {}, "", {}, {"metrics": score, "rounds": 5}, {}, None, None, {}), None)
        >>> "90.0 \u00b1 1.0 %" in html, "<svg" in html, "<script" in html
        (True, False, False)
    """
    facts = ", ".join(f"{key} {value}" for key, value in list_run_facts(run))
    parts = [f"<div style='max-width:760px'><p><b>{escape(run.name)}</b>: {escape(facts)}</p>"]
    if error is not None:
        parts.append(f"<p><b>Not finished.</b> {escape(str(error))}</p>")
    parts.append(_table(["", "mean \u00b1 sd", "n"], _list_scores(run)))
    parts += [f"<p>{escape(line)}</p>" for line in list_score_notes(run.summary)]
    with pictures.use_figure_style(), pictures.ignore_odd_numbers():
        figure = curves.figure_rounds(run)
        if figure is not None:
            key = zlib.crc32(f"{run.name} {run.scenario_text} {run.summary.get('model_hash')}".encode())
            parts.append(f"<div style='{_COLORS}'>{pictures.to_svg(figure, f'run{key}')}</div>")
    if figure is not None:
        parts.append(f"<p>{escape(curves.BAND_NOTE)}</p>" if run.worlds > 1 else "")
    return "".join(parts) + "</div>"


def _list_scores(run: ReadRun) -> list[list[str]]:
    """Lists the rows of the table of scores. A row has a name, the mean with its deviation, and the number of values.

    If the run was interrupted, the table has the scores of the last evaluated round.
    """
    rows = []
    metrics, known = run.summary.get("metrics", {}), compare.list_compared_metrics([run])
    for name in (name for name in known if name in metrics):
        rows.append(
            [wording.name_score(name, unit=True), compare.format_cell(run, name), str(metrics[name].get("n", ""))]
        )
    if not metrics:
        for name in known:
            curve = run.curve(name)
            if curve is not None:
                text = f"{wording.format_number(float(curve.mean[-1]), name)} after round {curve.round[-1]:.0f}"
                rows.append([wording.name_score(name, unit=True), text, str(len(curve.values))])
    totals = run.summary.get("totals", {})
    rows += [
        [wording.name_score(key), wording.format_total(key, totals[key]), ""]
        for key in wording.TOTALS
        if totals.get(key) is not None
    ]
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    left = " style='text-align:left'"
    cells = "".join(f"<th{left}>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td{left}>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


# ---------------------------------------------------------------------------------------------------------------------
# Single pictures of the report for notebooks, which are the same figures in colors that do not depend on the page.


def list_draws(run: ReadRun) -> dict[str, Callable[[], Figure | None]]:
    """Returns by name the functions that draw single pictures: the pictures of the report, and one for each score."""
    drawn = {draw.__name__.removeprefix("figure_"): partial(draw, run) for draws in SECTIONS.values() for draw in draws}
    short = {run.metric: "rounds", "time": "seconds"}
    scores = [name for name in run.rounds if name not in CONTEXT and np.isfinite(run.rounds[name]).any()]
    plain = {name: partial(compare.overlay_curves, [run], name, "rounds") for name in scores}
    return {**plain, **{name: drawn[of] for name, of in short.items()}, **drawn}


def draw_plot(run: ReadRun, name: str | None = None) -> Figure:
    """Draws one picture of a run.

    `name` is `accuracy`, `calibration`, `drift`, `clients`, `time` ..., or any score of `rounds.parquet`. None means
    the headline score, `accuracy` or `rmse`.

    Raises:
        BadInput: There is no picture of this name.
        FedrayError: The run has no numbers for the picture.

    Example:
        >>> rounds = {"round": np.array([0.0, 5.0]), "nll": np.array([2.0, 1.0])}
        >>> rounds["replicate"] = rounds["fold"] = np.zeros(2)
        >>> run = ReadRun("one", {}, "", {}, {}, rounds, None, None, {})
        >>> draw_plot(run, "nll").axes[0].get_ylabel()
        'NLL (nats)'
    """
    return draw_named(list_draws(run), name or run.metric, "run")


def draw_named(draws: Mapping[str, Callable[[], Figure | None]], name: str, of: str) -> Figure:
    """Draws the picture `name`. `draws` has a function for each known name, and `of` is "run" or "sweep".

    Raises:
        BadInput: There is no picture of this name.
        FedrayError: There are no numbers for the picture.
    """
    known = ", ".join(sorted(draws))
    if name not in draws:
        remedy = wording.suggest_nearest(name, draws, "choose one of those")
        raise wording.BadInput(f"plot {wording.quote_value(name)}: there is no such picture: {remedy} ({known})")
    figure = draw_alone(draws[name])
    if figure is None:
        others = ", ".join(sorted(draws.keys() - {name}))
        raise wording.FedrayError(f"plot {name}: this {of} has no numbers for it: choose another of {others}")
    return figure


def has_band(figure: Figure) -> bool:
    """Returns whether a figure shows how far replicates and folds differ."""
    return any(one.get_gid() == curves.WORLDS_BAND for axes in figure.axes for one in axes.collections)


def draw_alone(draw: Callable[[], Figure | None]) -> Figure | None:
    """Draws a figure of the report for use without the page, with a title and light colors.

    The function `draw` makes the figure, or returns None.
    """
    with pictures.use_figure_style(), pictures.ignore_odd_numbers():
        figure = draw()
        if figure is not None:
            figure.set_facecolor(pictures.PAPER)
            figure.suptitle(str(figure.get_label()), fontsize=10.5, x=0.01, ha="left", wrap=True)
            if has_band(figure):
                figure.supxlabel(curves.BAND_NOTE, fontsize=8, x=0.01, ha="left", color=pictures.MUTED, wrap=True)
            figure.draw_without_rendering()  # makes all ticks, in this style
    # by default, a notebook shows only figures that `pyplot` has made
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell and not any(Figure in one.type_printers for one in shell.display_formatter.formatters.values()):
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})  # type: ignore[no-untyped-call]  # without types
    return figure
