"""The part of the site that is made from the code: a Sphinx extension.

Before Sphinx reads the pages it writes `docs/reference/generated/`; after a build of HTML it writes `llms.txt`. It
stands here and not in the package because nothing but the site reads it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from reference import save_reference
from sphinx.application import Sphinx

ABOUT = (
    "> fedray simulates ensemble federated learning: K models that are trained over N clients, on one laptop or on a",
    "> Ray cluster. Scenarios are YAML files or Python mappings; results are Parquet tables and a report.",
)


def write_llms(app: Sphinx) -> str:
    """Writes `llms.txt` (llmstxt.org): every page with its first sentence, and a link to its Markdown source."""
    env, lines = app.env, ["# fedray", "", *ABOUT]
    kinds: dict[str, list[str]] = {"Tutorials": [], "How-to guides": [], "Reference": [], "Explanation": []}
    names = {"tutorials": "Tutorials", "how-to": "How-to guides", "cluster": "How-to guides", "reference": "Reference"}
    for page in sorted(env.found_docs - {"index"}):
        line = f"- [{env.titles[page].astext()}](_sources/{page}.md.txt){_first_sentence(app, page)}"
        kinds[names.get(page.partition("/")[0], "Explanation")].append(line)
    for kind, entries in kinds.items():
        lines += ["", f"## {kind}", "", *entries]
    return "\n".join(lines) + "\n"


def _first_sentence(app: Sphinx, page: str) -> str:
    tree = app.env.get_doctree(page)
    found = next((one for one in tree.findall(nodes.paragraph) if isinstance(one.parent, nodes.section)), None)
    text = " ".join(found.astext().split()) if found is not None else ""
    first = re.split(r"(?<!Alg)(?<!Algs)(?<! al)\. (?=[A-Z`])", text)[0].rstrip(".:")
    return f": {first}." if text else ""


def _after(app: Sphinx, failure: Exception | None) -> None:
    if failure is None and app.builder.name == "html":
        (Path(app.outdir) / "llms.txt").write_text(write_llms(app))


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the extension. Sphinx calls this function."""
    app.connect("config-inited", lambda _app, _config: save_reference())
    app.connect("build-finished", _after)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
