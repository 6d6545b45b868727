"""Text in a picture: how many columns it takes, which way it runs, and what of it XML can hold."""

from __future__ import annotations

import html
import re
import unicodedata

# Scripts whose letters join or stack, and characters that join what stands before or after them: what is cut
# there is drawn wrongly. The same ones that the token view knows (assets/token_text.js), with marks by class.
_JOINING = re.compile(
    "[\u0590-\u0fff\u1000-\u109f\u1780-\u18af\ufb1d-\ufdff\ufe70-\ufefc\u200d\ufe0e\ufe0f"
    "\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]"
)
_ZERO_WIDTH_CLASSES = {"Mn", "Me", "Cf"}
_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_RIGHT_TO_LEFT = {"R", "AL"}
# Characters that XML 1.0 has no way to write, not even as references: noncharacters and half surrogates
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# The "Control Pictures" block: each control character's letters as one sign
_PICTURE_OF = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}
_PLAIN = re.compile("[ -~]*")


def num_columns(text: str, before: str = "") -> int:
    """Columns of a fixed-width font that `text` takes; wide characters (CJK, emoji) take two, marks none.

    Args:
        before: what stands before it on the line; what follows a joiner belongs to the sign before.
    """
    columns, last = 0, before[-1:]
    for character in text:
        columns += _columns_of(character, last)
        last = character
    return columns


def _columns_of(character: str, last: str) -> int:
    if " " <= character <= "~":
        return 1
    if character == _EMOJI_STYLE:  # makes a sign out of the letter before it, which then is wide
        return int(bool(last) and unicodedata.east_asian_width(last) not in "WF")
    if last == _JOINER or "\U0001f3fb" <= character <= "\U0001f3ff":
        return 0
    if unicodedata.category(character) in _ZERO_WIDTH_CLASSES:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def is_plain(text: str) -> bool:
    """Only characters that every fixed-width font has at one width."""
    return _PLAIN.fullmatch(text) is not None


def is_joining(text: str) -> bool:
    """It holds letters or signs that must be drawn together with their neighbours."""
    return bool(_JOINING.search(text)) or any(unicodedata.combining(character) for character in text)


def direction(text: str) -> str:
    """``rtl`` or ``ltr`` by the first letter that has a direction; "" where none has."""
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in _RIGHT_TO_LEFT:
            return "rtl"
        if kind == "L":
            return "ltr"
    return ""


def printable(text: str) -> str:
    """Control characters as their pictures (␍, ␛): they have no other look."""
    return text.translate(_PICTURE_OF)


def xml_text(text: str) -> str:
    """`text` for content or attributes of XML 1.0; what that cannot hold becomes its picture or U+FFFD."""
    possible = _NOT_XML.sub(lambda match: _PICTURE_OF.get(ord(match[0]), "\ufffd"), text)
    return html.escape(possible).replace("\r", "&#13;")
