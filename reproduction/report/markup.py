"""HTML in which text is escaped by construction: every element is made here."""

import html
import re
from collections.abc import Iterable

__all__ = ["Markup", "element", "join", "raw_element"]

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_VOID = frozenset({"img", "input", "meta"})


class Markup(str):
    """Text that is HTML already; any other `str` is escaped where it meets one of these."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An element; children that are no `Markup`, and all values of attributes, are escaped.

    Args:
        tag: Its name.
        children: What is in it, in order; None is left out.
        attributes: By name, with `_` for `-` (one at the end is dropped, for Python's own words).
            True gives an attribute without a value; False and None leave it out.

    Example:
        >>> element("p", "a < b", element("b", class_="x"), id='"')
        '<p id="&quot;">a &lt; b<b class="x"></b></p>'
    """
    opening = tag
    for key, value in attributes.items():
        name = key.rstrip("_").replace("_", "-")
        _check_names(name)
        if value is True:
            opening += f" {name}"
        elif value is not None and value is not False:
            opening += f' {name}="{html.escape(str(value))}"'
    _check_names(tag)
    if tag in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(children)}</{tag}>")


def join(children: Iterable[object], between: str = "") -> Markup:
    """Several children as one; those that are no `Markup` are escaped, None is left out."""
    parts = (
        child if isinstance(child, Markup) else html.escape(str(child))
        for child in children
        if child is not None
    )
    return Markup(html.escape(between).join(parts))


def raw_element(tag: str, text: str) -> Markup:
    """A style sheet or a script, whose text HTML does not escape; only for files of this package.

    Raises:
        ValueError: The text would end the element.
    """
    if "</" in text or "<!--" in text:
        raise ValueError(f"the text of a {tag} may not hold '</' or '<!--'")
    _check_names(tag)
    return Markup(f"<{tag}>{text}</{tag}>")


def _check_names(*names: str) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an element or attribute")
