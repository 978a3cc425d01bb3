"""Sphinx settings; warnings are errors (`make docs`)."""

import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import neada
from neada.tables import resolve

sys.path.insert(0, str(Path(__file__).parent))  # for gallery_warnings

project = "neada"
author = "The neada developers"
release = version = neada.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # so that formulas show without a network
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": False}
default_role = "code"

# An example that raises or warns fails the build.
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("matplotlib", "gallery_warnings.as_errors"),
    "reset_modules_order": "both",
    "image_srcset": ["2x"],
    "notebook_extensions": set(),
    "write_computation_times": False,
    "show_signature": False,
}

html_theme = "furo"
html_title = f"neada {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]


class NamesDirective(SphinxDirective):
    """`{names} module:TABLE`: the names in a table, each with its words."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The table, as the parser of the page makes it."""
        table = resolve(self.arguments[0])
        words = {name: getattr(entry, "description", entry) for name, entry in table.items()}
        rows = [f"| `{name}` | {text} |" for name, text in words.items()]
        return self.parse_text_to_nodes("\n".join(["| name | what it is |", "|---|---|", *rows]))


def setup(app: Sphinx) -> None:
    """Make the directive known."""
    app.add_directive("names", NamesDirective)
