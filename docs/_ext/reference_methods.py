"""The pages of the methods: one for each file of `fedray/methods/`, from its docstring and its specifications.

`python docs/_ext/reference_methods.py` writes the methods of each family into the README.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import yaml
from md_pieces import begin_sentence, cut_docstring, write_table
from reference_keys import write_options

from fedray.core.options import MethodSpec
from fedray.methods import METHOD_SPECS, METHODS
from fedray.scenario.rows import explain_rounds

REFERENCE = Path(__file__).parents[1] / "reference"
README = REFERENCE.parents[1] / "README.md"
MODELS = {"any": "any number K", "one": "one", "clients": "one for each of the N clients"}
NOTATION = (REFERENCE / "methods_notation.md").read_text().strip()


def module_of(name: str) -> str:
    """Returns the file of a method, without `.py`."""
    return METHODS[name].__module__.rpartition(".")[2]


def read_algorithm(name: str) -> str:
    """Returns the formulas of a method.

    Raises:
        KeyError: The method has no formulas.
    """
    return cut_docstring(import_module(METHODS[name].__module__).__doc__ or "")[f"Formulas of {name}"]


def write_method(name: str, title: str) -> str:
    """Returns the section of a method: its formulas, its own keys, what it sets, and what it combines with."""
    spec = METHOD_SPECS[name]
    parts = [f"(method-{name})=\n## {title}", begin_sentence(spec.text), read_algorithm(name)]
    if spec.options:
        parts += ["**Its own keys**, in the section `method`:", write_options("method", name, spec.options)]
    if spec.defaults:
        text = yaml.safe_dump(dict(spec.defaults), sort_keys=False, default_flow_style=None, width=100).strip()
        parts += ["**What it sets** where a scenario sets nothing:", f"```yaml\n{text}\n```"]
    parts += ["**What it combines with:**", write_table(["", ""], _facts(spec))]
    parts.append(f"In Python: {{py:func}}`fedray.methods.{name}`.")
    return "\n\n".join(parts)


def _facts(spec: MethodSpec) -> list[list[str]]:
    yes, needs_rounds = {True: "yes", False: "no"}, explain_rounds(spec)
    return [
        ["models", MODELS[spec.models]],
        ["`schedule.kind`", "its own" if "schedules" in spec.fixed else "any"],
        *([f"`server.{key}`", yes[key not in spec.fixed]] for key in ("robust", "optimizer", "coefficients")),
        ["`local.private`", yes[spec.splits]],
        *([] if spec.sparse else [["`compress.kind`", "`dense` or `int8`"]]),
        ["`participation.mode` without rounds", f"no: the method {needs_rounds}" if needs_rounds else "yes"],
        ["state of a client", spec.private or "none"],
        ["what predicts for known clients", _find_answer(spec)],
    ]


def _find_answer(spec: MethodSpec) -> str:
    """Returns what predicts for the clients of a run, in words."""
    if spec.fits or spec.parts or not spec.trains:
        return "the same as for new clients"
    if spec.all_models and spec.own_models:
        return "all models, with each client's own weights"
    if spec.own_models:
        return "each client's own models"
    several = "" if spec.models == "any" or spec.samples else ", if there are several"
    return f"the models, weighed by `predict.gamma`{several}"


def write_pages() -> dict[str, str]:
    """Returns every page of the methods by its path below `docs/reference/generated`."""
    pages = {}
    files: dict[str, list[str]] = {}
    for name in METHOD_SPECS:
        files.setdefault(module_of(name), []).append(name)
    for file, names in files.items():
        text = cut_docstring(import_module(f"fedray.methods.{file}").__doc__ or "")
        title = ", ".join(f"`{name}`" for name in names)
        alone = len(names) == 1
        parts = [f"# {title}", text[""], *(write_method(name, "Algorithm" if alone else f"`{name}`") for name in names)]
        parts += [f"## Deviations\n\n{text['Deviations']}"] if "Deviations" in text else []
        parts += [f"## Note\n\n{text['Note']}"] if "Note" in text else []
        parts += [f"## Example\n\n```python\n{text['Example']}\n```"] if "Example" in text else []
        pages[f"methods/{file}.md"] = "\n\n".join(parts) + "\n"
    toctree = "```{toctree}\n:hidden:\n\n" + "\n".join(files) + "\n```"
    intro = "Each method is composed in one file of `fedray/methods/`. Deviations say where it differs from its paper."
    index = ["# Methods", intro, _write_all(), NOTATION, toctree]
    return {**pages, "methods/index.md": "\n\n".join(index) + "\n"}


def _families() -> dict[str, list[str]]:
    """Returns the methods of each family, in the order of the specifications."""
    found: dict[str, list[str]] = {}
    for name, spec in METHOD_SPECS.items():
        found.setdefault(spec.family, []).append(name)
    return found


def _write_all() -> str:
    """Returns the table of all methods, family by family, and the meaning of its columns."""
    head = ["method", "what it does", "K", "`server.robust`", "`server.optimizer`", "private client state"]
    numbers, yes, rows = {"any": "any", "one": "1", "clients": "N"}, {True: "yes", False: "no"}, []
    for family, names in _families().items():
        rows.append([f"**{family}**", *[""] * 5])
        for name in names:
            spec = METHOD_SPECS[name]
            about = [
                numbers[spec.models],
                yes["robust" not in spec.fixed],
                yes["optimizer" not in spec.fixed],
                spec.private or "none",
            ]
            rows.append([f"{{ref}}`{name} <method-{name}>`", spec.text, *about])
    meaning = (
        "K is the number of models (`method.models`), and N the number of clients. Where the table says yes, "
        "`server.robust` may replace the mean at the server, and `server.optimizer` may make the server's step. "
        "*Private client state* is what a client keeps from one round to the next."
    )
    return f"{write_table(head, rows)}\n\n{meaning}"


def write_readme(text: str) -> str:
    """Returns the README with the names of all methods, family by family.

    Args:
        text: The README as it is.
    """
    rows = [[family, ", ".join(f"`{name}`" for name in names)] for family, names in _families().items()]
    before, title, after = text.partition("## Methods\n\n")
    return before + title + write_table(["family", "`method.name`"], rows) + "\n\n" + after.partition("\n\n")[2]


if __name__ == "__main__":
    README.write_text(write_readme(README.read_text()))
