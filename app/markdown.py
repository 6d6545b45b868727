"""A model's Markdown -> HTML that is safe to show.

Raw HTML in the text is not HTML here: it shows character by character. What the renderer makes is then
cleaned once more by an allow-list, so that a fault in the renderer would lose formatting, not safety.
Nothing a model writes makes `to_html` fail: what cannot be rendered shows as it was written.
"""

from __future__ import annotations

import html
import logging
import re
import unicodedata
from functools import cache, lru_cache
from xml.etree.ElementTree import tostring

import nh3
from latex2mathml.converter import convert_to_element
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.texmath import texmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

_log = logging.getLogger(__name__)

# Some lexers take quadratic time: 16,000 characters can cost ten seconds, 3,000 never more than a fraction.
_LONGEST_HIGHLIGHTED = 3_000
# A table of empty cells grows a hundredfold; a page with much more than this no longer scrolls.
_LONGEST_HTML = 500_000

_MATHML = set(
    "math mrow mi mn mo ms mtext mspace msup msub msubsup mfrac msqrt mroot mover munder munderover mtable "
    "mtr mtd mstyle mpadded mphantom menclose merror".split()
)
_TAGS = _MATHML | set(
    "p br hr h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong s a table thead tbody tr th td "
    "span".split()
)
_MATH_ATTRIBUTES = set(
    "display mathvariant stretchy fence form lspace rspace linethickness columnalign width height".split()
)
# What carries text takes its direction from its own first letter, as the browser finds it; what holds such
# blocks cannot (a browser then skips their text), and is told: its markers and columns stand on that side.
_TEXT_BLOCKS = set("p h1 h2 h3 h4 h5 h6 li blockquote td th".split())
_HOLDERS = set("ul ol li blockquote table".split())
_ATTRIBUTES: dict[str, set[str]] = (
    {tag: _MATH_ATTRIBUTES for tag in _MATHML}
    | {tag: {"dir"} for tag in _TEXT_BLOCKS | _HOLDERS}
    | {
        "a": {"href", "title", "target"},
        "ol": {"start", "dir"},
        "span": {"class"},
        "code": {"class"},
        "pre": {"dir"},
    }
)
_HIGHLIGHT_CLASSES = set(STANDARD_TYPES.values()) - {""}
_LANGUAGE_CLASS = re.compile(r"language-[\w+#.-]+")
# Under 100 to the right, under 10 to the left: a formula must not be moved over, or far off, its neighbours.
_LENGTHS = {"width", "height", "lspace", "rspace", "linethickness"}
_SMALL_LENGTH = re.compile(r"([+-]?\d?|\+?\d\d)(\.\d*)?([a-z]{2})?")


@lru_cache(maxsize=256)
def to_html(text: str) -> str:
    """Markdown with tables, highlighted code and LaTeX (as MathML) -> sanitised HTML; never raises.

    Images are left as links' text: showing an answer must not fetch anything from anywhere. The conversation
    renders every answer anew at each turn, hence the cache.
    """
    text = _without_lone_surrogates(text)
    try:
        rendered = _parser().render(text)
        if len(rendered) <= _LONGEST_HTML:
            return _cleaner().clean(rendered)
        _log.warning("an answer's HTML would be %d characters long: shown as it was written", len(rendered))
    except Exception:  # whatever a model wrote; an unformatted answer is better than none
        _log.exception("an answer could not be rendered: shown as it was written")
    return f'<pre dir="auto">{html.escape(text)}</pre>'


def _without_lone_surrogates(text: str) -> str:
    """Half of a character pair cannot be encoded, and so could not even be sent to the page."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# --- the allow-list ---------------------------------------------------------------------------------------


@cache
def _cleaner() -> nh3.Cleaner:
    return nh3.Cleaner(
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        attribute_filter=_filter_attribute,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


@cache
def _math_cleaner() -> nh3.Cleaner:
    return nh3.Cleaner(tags=_MATHML, attributes=_ATTRIBUTES, attribute_filter=_filter_attribute)


def _filter_attribute(tag: str, attribute: str, value: str) -> str | None:
    """Only classes that code needs: with the page's own, an answer could pose as a part of the page."""
    if attribute == "class":
        return " ".join(name for name in value.split() if _is_class_of_code(tag, name)) or None
    if attribute in _LENGTHS:
        return value if _SMALL_LENGTH.fullmatch(value) else None
    return value


def _is_class_of_code(tag: str, name: str) -> bool:
    if tag == "code":
        return bool(_LANGUAGE_CLASS.fullmatch(name))
    return name in _HIGHLIGHT_CLASSES


# --- the parser -------------------------------------------------------------------------------------------


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _highlight})
    parser.enable(["table", "strikethrough"]).disable(["image", "entity"])
    parser.use(texmath_plugin, delimiters="brackets")
    parser.use(dollarmath_plugin, allow_space=False, allow_digits=False, double_inline=True)
    for rule, display in _MATH_RULES.items():
        parser.add_render_rule(rule, _math_rule(display))
    parser.core.ruler.push("direction", _set_directions)
    return parser


def _highlight(code: str, language: str, _attributes: str) -> str:
    """Code as spans with classes; "" leaves it to the parser, which escapes it."""
    if len(code) > _LONGEST_HIGHLIGHTED:
        return ""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return highlight(code, lexer, HtmlFormatter(nowrap=True))


# --- right-to-left ----------------------------------------------------------------------------------------


def _set_directions(state: StateCore) -> None:
    """Give every block its own direction, so that an Arabic answer starts at the right."""
    undecided: list[Token] = []  # the holders around this token whose first letter has not come yet
    for token in state.tokens:
        if token.nesting == 1 and token.tag in _TEXT_BLOCKS:
            token.attrSet("dir", "auto")
        if token.nesting == 1 and token.tag in _HOLDERS:
            undecided.append(token)
        elif token.nesting == -1 and token.tag in _HOLDERS:
            undecided = [holder for holder in undecided if holder.level < token.level]
        elif token.type == "inline" and undecided:
            undecided = _decide(undecided, _first_direction(token.content))


def _decide(holders: list[Token], direction: str | None) -> list[Token]:
    """Tell the holders; those still undecided."""
    if direction is None:
        return holders
    if direction == "rtl":
        for holder in holders:
            holder.attrSet("dir", "rtl")
    return []


def _first_direction(text: str) -> str | None:
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return None


# --- formulas ---------------------------------------------------------------------------------------------

# Rules of the two plug-ins, and whether each stands in a line of its own.
_MATH_RULES = {
    "math_inline": "inline",
    "math_single": "inline",
    "math_inline_double": "block",
    "math_block": "block",
    "math_block_label": "block",
    "math_block_eqno": "block",
}
# A few macros that call one another fill the memory.
_DEFINES_MACRO = re.compile(r"\\(?:[a-z]*command|[a-z]?def|let|DeclareMathOperator)(?![A-Za-z])")
_ENTITY = re.compile(r"&#x[0-9A-Fa-f]+;")
# Stands for the # of a model's own "&#", so that only the converter's entities are taken for entities.
_OWN_HASH = "\ue000"


def _math_rule(display: str):
    def render(self, tokens, index, options, env) -> str:
        return _math(tokens[index].content, display)

    return render


def _math(source: str, display: str) -> str:
    """One <math> element, balanced and clean by itself, whatever the source; or the source as code."""
    try:
        formula = _math_cleaner().clean(_mathml(source.strip(), display))
        if _is_one_formula(formula):
            return formula
    except Exception:  # whatever a model wrote; its source is then the best picture of it
        pass
    return f"<code>{html.escape(source)}</code>"


def _mathml(source: str, display: str) -> str:
    """The converter's own string is not used: it leaves < and & of \\text{…} unescaped."""
    if _DEFINES_MACRO.search(source):
        raise ValueError("a formula that defines macros")
    formula = convert_to_element(source.replace("&#", "&" + _OWN_HASH), display=display)
    for element in formula.iter():
        element.text = _plain(element.text)
        element.tail = _plain(element.tail)
    return tostring(formula, encoding="unicode", short_empty_elements=False)


def _plain(text: str | None) -> str | None:
    """A node's text as the characters it means: the converter writes its symbols as entities."""
    if not text:
        return text
    text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
    if "&#" in text:
        raise ValueError("a symbol that the converter does not know")
    return text.replace(_OWN_HASH, "#")


def _is_one_formula(text: str) -> bool:
    return text.startswith("<math") and text.endswith("</math>") and text.count("<math") == 1
