"""Settings of the documentation site. `sphinx-build -W docs docs/_build/html` builds it, without a network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the extensions beside this file

import rlkit

project = "rlkit"
author = "the authors of rlkit"
version = release = rlkit.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.githubpages",  # writes .nojekyll, without which a host of static pages may leave out _static
    "sphinx.ext.napoleon",
    "myst_nb",
    "docstrings",
    "pages",
]
exclude_patterns = ["_build"]

autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Fields", "params_style")]

myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are stored with their outputs

html_theme = "furo"
html_title = "rlkit"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = False  # most of it is generated
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
