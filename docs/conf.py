"""Sphinx settings; warnings are errors (`make docs`)."""

import re
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import imagesize
from docutils import nodes
from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import neada

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
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
autodoc_default_options = {"members": True}
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
    "capture_repr": (),  # pages show what is printed, nothing else
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
        table = resolve_name(self.arguments[0])
        rows = [f"| `{name}` | {text} |" for name, text in table.items()]
        return self.parse_text_to_nodes("\n".join(["| name | what it is |", "|---|---|", *rows]))


# Classes for `site.css`, which makes tables and figures fit for narrow windows.


def mark_nodes(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Cells of a word are `short`, those of many words `long`; figures of panels are `panels`."""
    for entry in doctree.findall(nodes.entry):
        length = len(entry.astext())
        entry["classes"] += ["short"] * (length <= 14) + ["long"] * (length > 60)
    for image in doctree.findall(nodes.image):
        file = Path(app.srcdir, image["uri"])
        if file.exists() and has_panels(file, dots_per_inch=150 if file.suffix == ".png" else 96):
            image["classes"].append("panels")


def mark_gallery(app: Sphinx, name: str, template: str, context: dict[str, Any], *_: Any) -> None:
    """The same for the figures of the gallery, which have no node, and no paragraph either."""

    def marked(match: re.Match[str]) -> str:
        file = Path(app.srcdir, "gallery", "images", match["name"])
        image = match[0].replace("sphx-glr-single-img", "sphx-glr-single-img panels")
        return f"<p>{image if has_panels(file, dots_per_inch=100) else match[0]}</p>"

    pattern = r'<img src="\S*/(?P<name>[^"/]+)"[^>]*class *= *"sphx-glr-single-img"[^>]*/>'
    context["body"] = re.sub(pattern, marked, context.get("body", ""))


def has_panels(file: Path, dots_per_inch: int) -> bool:
    """Whether a figure is wider than one panel usually is."""
    width, _ = imagesize.get(file)
    return bool(width > 7 * dots_per_inch)


def name_arrays(app: Sphinx, value: Any, is_bound: bool) -> None:
    """`ArrayLike` instead of all that it stands for."""
    found = getattr(value, "__annotations__", {})
    found.update({name: "ArrayLike" for name, kind in found.items() if kind == ArrayLike})


def begin_with_comment(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Napoleon takes words before a colon in the first line of an attribute for its type."""
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> None:
    """Make the directive known, and what is changed on the way to a page."""
    app.add_directive("names", NamesDirective)
    app.connect("autodoc-before-process-signature", name_arrays)
    app.connect("autodoc-process-docstring", begin_with_comment, priority=400)
    app.connect("doctree-resolved", mark_nodes)
    app.connect("html-page-context", mark_gallery)
