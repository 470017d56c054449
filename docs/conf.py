"""How Sphinx builds the site: `python -m sphinx -W -b html docs docs/_build/html` (see CONTRIBUTING.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]  # our extensions, and this checkout before any installed fedray
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])  # for the notebooks
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # `!fedray` there
os.environ.setdefault("OMP_NUM_THREADS", "1")

from inventories import make_mapping  # noqa: E402

from fedray import __version__  # noqa: E402

project = "fedray"
author = "the authors of fedray"
copyright = "the authors of fedray, Apache-2.0"
version = release = __version__

extensions = [
    "fedray_site",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
]
exclude_patterns = [
    "_build",
    "_ext",
    "_static",
    "reference/*_intro.md",
    "reference/*_notation.md",
    "**/.ipynb_checkpoints",
]
language = "en"
smartquotes = False  # quotes and dashes stay as they are typed

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4

autodoc_typehints = "description"  # types stand beside what an argument means
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the fields of a tuple are documented once
default_role = "code"  # docstrings are plain text with `code`
maximum_signature_line_length = 80
intersphinx_mapping = make_mapping(HERE / "_build" / "inventories")  # nothing is fetched

nb_execution_mode = "cache"  # notebooks run at the first build, and again when their code changes
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_in_temp = True

html_theme = "furo"
html_title = f"fedray {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_theme_options = {
    "source_repository": "https://github.com/fedray/fedray/",
    "source_branch": "main",
    "source_directory": "docs/",
}
pygments_style, pygments_dark_style = "friendly", "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
