"""A model's Markdown -> HTML that is safe to show.

Raw HTML in the text is not HTML here: it shows character by character. What the renderer makes is then
cleaned once more by an allow-list, so that a fault in the renderer would lose formatting, not safety.
"""

from __future__ import annotations

import html
from functools import cache

import nh3
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.texmath import texmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

_MATHML = set(
    "math mrow mi mn mo ms mtext mspace msup msub msubsup mfrac msqrt mroot mover munder munderover mtable "
    "mtr mtd mstyle mpadded mphantom menclose merror".split()
)
_TAGS = _MATHML | set(
    "p br hr h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong s a table thead tbody tr th td div "
    "span".split()
)
_MATH_ATTRIBUTES = set(
    "display mathvariant stretchy fence form lspace rspace linethickness columnalign width height".split()
)
_ATTRIBUTES: dict[str, set[str]] = {tag: _MATH_ATTRIBUTES for tag in _MATHML} | {
    "a": {"href", "title", "target"},
    "ol": {"start"},
    "span": {"class"},
    "div": {"class"},
    "code": {"class"},
}


def to_html(text: str) -> str:
    """Markdown with tables, highlighted code and LaTeX (as MathML) -> sanitised HTML.

    Images are left as links' text: showing an answer must not fetch anything from anywhere.
    """
    return nh3.clean(
        _parser().render(text),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _highlight})
    parser.enable(["table", "strikethrough"]).disable(["image", "entity"])
    parser.use(texmath_plugin, delimiters="brackets")
    parser.use(dollarmath_plugin, allow_space=False, allow_digits=False, double_inline=True)
    for rule, display in _MATH_RULES.items():
        parser.add_render_rule(rule, _math_rule(display))
    return parser


# Rules of the two plug-ins, and whether each stands in a line of its own.
_MATH_RULES = {
    "math_inline": "inline",
    "math_single": "inline",
    "math_inline_double": "block",
    "math_block": "block",
    "math_block_label": "block",
    "math_block_eqno": "block",
}


def _math_rule(display: str):
    def render(self, tokens, index, options, env) -> str:
        return _math(tokens[index].content, display)

    return render


def _math(source: str, display: str) -> str:
    try:
        return convert(source.strip(), display=display)
    except Exception:  # whatever a model wrote; its source is then the best picture of it
        return f"<code>{html.escape(source)}</code>"


def _highlight(code: str, language: str, _attributes: str) -> str:
    """Code as spans with classes; "" leaves it to the parser, which escapes it."""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return highlight(code, lexer, HtmlFormatter(nowrap=True))
