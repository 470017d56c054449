"""What stands on the page: sections of figures, cards of headline numbers, the template.

Example:
    >>> half, wide = (Picture("", "", Markup(""), place) for place in ("half", "wide"))
    >>> [picture.place for picture in pair_figures([half, half, wide, half])]
    ['half', 'half', 'wide', 'alone']
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib import resources
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

import fedray
from fedray.core.text import show_line
from fedray.report import clients, compare, curves, drift, gantt, jobs, predictions, random_walk, stacking, style
from fedray.report.cards import make_cards
from fedray.report.read import ReadRun

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"
)  # what no page may hold, whoever wrote the names


class Picture(NamedTuple):
    """A drawn figure.

    Attributes:
        title: stands above it.
        note: the sentence below it; may be empty.
        svg: the figure itself.
        place: CSS class: `wide` (across the page), `half`, or `alone` (a half without a neighbour).
        small: the same figure for a phone, where it can be drawn narrow.
    """

    title: str
    note: str
    svg: Markup
    place: str
    small: Markup | None = None


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        title: its heading.
        pictures: in their order.
    """

    title: str
    pictures: list[Picture]


Draw = Callable[[ReadRun], Figure | None]
MEAN_NOTE = "Mean \u00b1 standard deviation over the replicates and folds; shaded: best, or too close to tell."
COST_NOTE = "n replicates and folds; bytes are the mean of one, virtual time is that of the slowest one."
BAND_NOTE = "Line: mean of the replicates and folds; band: one standard deviation."
SECTIONS: tuple[tuple[str, tuple[tuple[Draw, str], ...]], ...] = (
    (
        "What it reached",
        (
            (curves.figure_rounds, ""),
            (curves.figure_bytes, "Bytes of all clients so far, in both directions."),
            (curves.figure_seconds, "A round lasts as long as its slowest counted client."),
            (curves.figure_scores, "Scores of the ensemble's answer on the test data."),
        ),
    ),
    (
        "How sure it is",
        (
            (predictions.figure_calibration, "Bars that end on the dashed line are calibrated."),
            (predictions.figure_confusion, ""),
            (predictions.figure_predictive, "Interval: mean \u00b1 1.96 standard deviations."),
            (predictions.figure_pit, "A hump in the middle: intervals too wide; high ends: too narrow."),
            (predictions.figure_coverage, "Share of the targets inside the central interval of each level."),
            (predictions.figure_sharpness, "Below the dashed line: predictions wider than the errors."),
            (predictions.figure_disagreement, "An ensemble gains from members that differ."),
            (predictions.figure_loss_plane, "The plane through three members; colour: the loss of the weights there."),
        ),
    ),
    (
        "The stack",
        (
            (stacking.figure_confusions, "Each row is a class: where its samples go."),
            (stacking.figure_folds, "Accuracy on the test data; the sub model has never seen what it leaves out."),
            (stacking.figure_meta, "Blue speaks for the answer, red against it."),
        ),
    ),
    (
        "Who trained what",
        (
            (random_walk.figure_graph, "Larger and darker: held and trained a model more often."),
            (random_walk.figure_visits, "Line: the share that an endless walk would spend there."),
            (jobs.figure_assignment, "Faint: the job did not finish. Empty: the client took no part."),
            (jobs.figure_participation, ""),
            (gantt.figure_gantt, "Dashed: half of the clients are done."),
            (jobs.figure_traffic, "Uploads that counted; downloads of all clients that were reached, late ones too."),
        ),
    ),
    (
        "The clients",
        (
            (clients.figure_data, ""),
            (clients.figure_weights, "Each column adds up to 100 %."),
            (clients.figure_client_accuracy, "Each client answers with its own weights over the models."),
            (clients.figure_client_rmse, "Bars: with the client's own weights or models. Dots: all models alike."),
            (drift.figure_drift, "Disagreement of the models on the client's data; the scores are in drift.parquet."),
        ),
    ),
)


def render_one(run: ReadRun) -> str:
    """The page of one run."""
    notes = [f"Pictures of jobs and clients show replicate 0 of {run.worlds}."] if run.worlds > 1 else []
    with style.use_figure_style():
        sections = [
            Section(title, pair_figures(_draw_section(run, draws, f"s{i}", notes)))
            for i, (title, draws) in enumerate(SECTIONS)
        ]
    if not run.summary:
        notes.append("The run has no summary.json: it was interrupted, and this is what it had recorded.")
    return fill_template(
        title=run.name,
        facts=list_run_facts(run),
        notes=notes,
        cards=make_cards(run),
        sections=[section for section in sections if section.pictures],
        runs=[run],
    )


def render_many(runs: list[ReadRun]) -> str:
    """The page that compares several runs."""
    notes = compare.list_caveats(runs)
    with style.use_figure_style():
        sections = []
        for metric in ("accuracy", "rmse"):
            draws: list[tuple[str, Callable[[], Figure | None], str]] = [
                (f"{metric} over {what}", partial(compare.overlay_curves, runs, metric, what), BAND_NOTE)
                for what in ("rounds", "bytes", "seconds")
            ]
            if metric == "accuracy":
                draws.append(("the clients", partial(compare.figure_clients, runs), "Pictures of replicate 0."))
            else:
                text = "Whiskers: 95 % interval of the variance."
                draws.append(("bias and variance", partial(compare.figure_decomposition, runs), text))
            found = [
                picture
                for i, (name, draw, text) in enumerate(draws)
                for picture in _try_to_draw(name, draw, text, f"c{metric}{i}", notes)
            ]
            title = {"accuracy": "Accuracy, run by run", "rmse": "RMSE, run by run"}[metric]
            sections.append(Section(title, pair_figures(found)))
    return fill_template(
        title=f"{len(runs)} runs compared",
        facts=[("runs", ", ".join(run.name for run in runs))],
        notes=notes,
        tables=[
            ("Final metrics", compare.make_comparison_table(runs), MEAN_NOTE),
            ("What was paid", compare.make_cost_table(runs), COST_NOTE),
        ],
        differences=compare.find_differences(runs),
        sections=[section for section in sections if section.pictures],
        runs=runs,
    )


def list_run_facts(run: ReadRun) -> list[tuple[str, str]]:
    """What was run, in a few words."""
    summary, scenario = run.summary, run.scenario
    found = [("method", summary.get("method") or _find_name(scenario, "method"))]
    found.append(("data", summary.get("data") or _find_name(scenario, "data")))
    found.append(("model", _find_name(scenario, "model")))
    clients = scenario.get("clients")
    number = clients.get("number") if isinstance(clients, dict) else None
    tiers = f" in {len(run.tiers)} tiers ({', '.join(run.tiers)})" if len(run.tiers) > 1 else ""
    found.append(("clients", f"{number}{tiers}" if number else ""))
    found.append(("models", str(run.models)))
    found.append(("rounds", str(summary.get("rounds", scenario.get("rounds", "")))))
    found.append(("seed", str(summary.get("seed", scenario.get("seed", "")))))
    found.append(("replicates \u00d7 folds", str(run.worlds) if run.worlds > 1 else ""))
    return [(key, str(value)) for key, value in found if value]


def _draw_section(run: ReadRun, draws: Iterable[tuple[Draw, str]], prefix: str, notes: list[str]) -> Iterable[Picture]:
    """Draws the figures of a section; one whose numbers cannot be drawn gets a note in its place."""
    several = {curves.figure_rounds, curves.figure_bytes, curves.figure_seconds, curves.figure_scores}
    for i, (draw, note) in enumerate(draws):
        text = f"{note} {BAND_NOTE}".strip() if draw in several and run.worlds > 1 else note
        name = draw.__name__.removeprefix("figure_").replace("_", " ")
        yield from _try_to_draw(name, partial(draw, run), text, f"{prefix}{i}", notes)


def _try_to_draw(
    name: str, draw: Callable[[], Figure | None], text: str, prefix: str, notes: list[str]
) -> list[Picture]:
    """The picture, if there is one; where its numbers cannot be drawn, the page gets a note that says so."""
    try:
        with style.ignore_odd_numbers():
            return list(draw_pictures([(draw(), text)], prefix))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        notes.append(f"The picture of {name} is left out: its numbers cannot be drawn ({show_line(error, 120)}).")
        return []


def draw_pictures(figures: Iterable[tuple[Figure | None, str]], prefix: str) -> Iterable[Picture]:
    """Draws figures; those that are None are left out.

    Args:
        figures: each with the note below it.
        prefix: the ids of their SVG begin with it.
    """
    for i, (figure, note) in enumerate(figures):
        if figure is not None:
            place = "wide" if float(figure.get_figwidth()) > style.NARROW else "half"
            svg = style.to_svg(figure, f"{prefix}-{i}")
            small = None
            if place == "wide" and _has_only_curves(figure):
                figure.set_size_inches(style.NARROW, 4.0)
                small = Markup(style.to_svg(figure, f"{prefix}-{i}-small"))
            yield Picture(str(figure.get_label()), note, Markup(svg), place, small)


def _has_only_curves(figure: Figure) -> bool:
    """Whether the figure can be drawn narrow: maps and charts of many clients cannot, a phone scrolls them."""
    axes = figure.axes
    return len(axes) == 1 and bool(axes[0].lines) and not axes[0].patches and not axes[0].images


def pair_figures(pictures: Iterable[Picture]) -> list[Picture]:
    """Halves that follow each other share a line; one that is left over stands alone."""
    paired: list[Picture] = []
    waiting = False  # for a neighbour
    for picture in pictures:
        half = picture.place == "half"
        if waiting and not half:
            paired[-1] = paired[-1]._replace(place="alone")
        waiting = half and not waiting
        paired.append(picture)
    if waiting:
        paired[-1] = paired[-1]._replace(place="alone")
    return paired


def fill_template(**values: Any) -> str:
    """The page: the template `report.html.j2`, filled with values."""
    folder = resources.files("fedray.report")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.Undefined)
    environment.filters["pretty"] = _indent_json
    template = environment.from_string((folder / "report.html.j2").read_text(encoding="utf-8"))
    return _UNPRINTABLE.sub("\ufffd", template.render(version=fedray.__version__, **values))


def _indent_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _find_name(scenario: dict[str, Any], key: str) -> str:
    value = scenario.get(key)
    return str(value.get("object") or value.get("name", "")) if isinstance(value, dict) else str(value or "")
