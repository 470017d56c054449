"""The template of every page, `report.html.j2`, and the one script that its policy lets run.

Example:
    >>> page = fill_template(title="nothing", facts=[], runs=[])
    >>> page.count("<script"), page.count("http-equiv")  # the page's own script and its numbers; its security policy
    (2, 1)
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

import fedray
from fedray.report.pictures import Section
from fedray.report.sheets import lay_out

SCRIPTS = ("values", "numbers", "axes", "pointer", "downloads", "chart")  # files of the page's script, in their order
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"
)  # what no page may hold, whoever wrote the names


def fill_template(*, sections: Iterable[Section] = (), **values: Any) -> str:
    """The page: the template `report.html.j2`, filled with values.

    The page's own script is the only one that a browser runs: the policy of the page names its digest.

    Args:
        sections: of pictures; those without any are left out.
        values: of the template.
    """
    folder = resources.files("fedray.report")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.Undefined)
    environment.filters["pretty"] = _indent_json
    environment.filters["layout"] = lambda table: lay_out(*table)
    template = environment.from_string((folder / "report.html.j2").read_text(encoding="utf-8"))
    script = read_script()
    shown = [section for section in sections if section.pictures]
    own = {
        "version": fedray.__version__,
        "script": Markup(script),
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "numbers": _pack_json({p.key: p.numbers for section in shown for p in section.pictures if p.numbers}),
    }
    return _UNPRINTABLE.sub("\ufffd", template.render(sections=shown, **own, **values))


def read_script() -> str:
    """The script of every page: its files as one function."""
    folder = resources.files("fedray.report") / "script"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(['"use strict";', "(() => {", *parts, "})();", ""])


def _pack_json(value: Any) -> Markup:
    """JSON that may stand in a script element: nothing in it ends the element, or begins another one."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _indent_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
