"""Sphinx's settings for the documentation site. CONTRIBUTING.md says how to build it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "aiodist"
author = "the aiodist authors"
copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "commands",
    "repository",
]
exclude_patterns = ["_build", "_ext"]

# Pages are Markdown. A page that begins with a kernel's name is a notebook, and is executed by each build.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "auto"
nb_execution_timeout = 60
nb_execution_raise_on_error = True
nb_execution_show_tb = True

# The reference is what the docstrings say. `name` in a docstring is code.
default_role = "code"
smartquotes = False  # quotes in docstrings are of code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
# These are big, and only the signatures of what uses them are shown.
autodoc_mock_imports = [name for name in ("torch",) if find_spec(name) is None]

html_theme = "furo"
html_title = "aiodist"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"font-stack": "system-ui, sans-serif"},
    "navigation_with_keys": True,
}
