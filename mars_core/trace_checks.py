"""What each field of a saved trace may hold. Files come from anywhere: what is drawn must be what it claims.

`docs/trace.schema.json` says the same for other programs; the tests hold the two together.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

LARGEST = 2**53  # up to here every whole number is exact in any program that reads JSON
LARGEST_FACT = 2**63 - 1  # a seed may be as large
# characters of a text, by the name of its field
MAX_CHARACTERS = {"label": 1000, "text": 20_000, "error": 2000, "role": 20, "content": 1_000_000}
MAX_ITEMS = {"committed": 1024, "candidates": 1024, "alternatives": 32}
MAX_EVENTS = 20_000
MAX_MESSAGES = 1000
MAX_PROMPT_IDS = 262_144
MAX_FACTS, MAX_FACT_NAME, MAX_FACT_TEXT, MAX_FACT_ITEMS = 64, 64, 2000, 256
# figures that have bounds of their own; a softmax in floating point may exceed 1 by a little
BOUNDS = {
    "probability": (0.0, 1.001),
    "seconds": (0.0, LARGEST),
    "elapsed": (0.0, LARGEST),
    "threshold": (0.0, LARGEST),
}
TIME_PATTERN = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$"
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_SHOWN = 60
# what reading damaged data may raise
DAMAGE = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
_Item = TypeVar("_Item")


def now() -> str:
    """This second in UTC, as traces write it."""
    return datetime.now(timezone.utc).strftime(_TIME_FORMAT)


def checked(item: _Item) -> _Item:
    """The dataclass as it is. Raises ValueError where a field does not hold what it is declared to hold."""
    cls: Any = type(item)
    for name, kind in _kinds(cls).items():
        if not _fits(name, kind, getattr(item, name)):
            raise ValueError(f"{name} is {shown(getattr(item, name))}")
    return item


@cache
def _kinds(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fits(name: str, kind: Any, value: Any) -> bool:
    if kind in (bool, NoneType):
        return isinstance(value, kind)
    if kind is int:
        return is_count(value)
    if kind is float:
        return is_figure(value) and _in_bounds(name, value)
    if kind is str:
        return is_text(value, MAX_CHARACTERS[name])
    if get_origin(kind) is tuple:
        return isinstance(value, tuple)
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    return any(_fits(name, part, value) for part in get_args(kind))


def is_count(value: Any) -> bool:
    """A whole number from 0; ``True`` is none, though Python says so."""
    return type(value) is int and 0 <= value <= LARGEST


def is_figure(value: Any) -> bool:
    """A finite number; neither NaN nor infinity passes a comparison."""
    return type(value) in (int, float) and abs(value) <= LARGEST


def _in_bounds(name: str, value: float) -> bool:
    low, high = BOUNDS.get(name, (-LARGEST, LARGEST))
    return low <= value <= high


def is_text(value: Any, longest: int) -> bool:
    """A string of at most so many characters, none of them half a one (a lone surrogate, which JSON can
    spell and nothing can write)."""
    return isinstance(value, str) and len(value) <= longest and not _SURROGATE.search(value)


def fields(name: str, value: Any) -> dict[str, Any]:
    """A copy of a JSON object. Raises ValueError where it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {shown(value)}")
    return dict(value)


def items(name: str, value: Any, most: int) -> list[Any]:
    """`value` as a list. Raises ValueError where it is none, or too long."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} is {shown(value)}")
    if len(value) > most:
        raise ValueError(f"{name} has {len(value)} items; at most {most} are read")
    return list(value)


def message(item: Any) -> dict[str, str]:
    """A message of the prompt. Raises one of `DAMAGE` for anything else."""
    if not isinstance(item, dict) or set(item) != {"role", "content"}:
        raise ValueError(f"a message is {shown(item)}")
    for key, value in item.items():
        if not is_text(value, MAX_CHARACTERS[key]):
            raise ValueError(f"the {key} of a message is {shown(value)}")
    return dict(item)


def token_id(value: Any) -> int:
    """An id of the prompt. Raises ValueError for anything else."""
    if not is_count(value):
        raise ValueError(f"a prompt id is {shown(value)}")
    return int(value)


def time(value: Any) -> str:
    """A second in UTC such as ``2026-04-07T12:30:00Z``. Raises ValueError for anything else."""
    if not (isinstance(value, str) and re.match(TIME_PATTERN, value)):
        raise ValueError(f"recorded is {shown(value)}")
    datetime.strptime(value, _TIME_FORMAT)
    return value


def facts(name: str, value: Any) -> dict[str, Any]:
    """A flat JSON object: names, and for each a text, a number, a truth value, null or a list of texts and
    numbers. Raises ValueError for anything else."""
    found = fields(name, value)
    if len(found) > MAX_FACTS:
        raise ValueError(f"{name} has {len(found)} entries; at most {MAX_FACTS} are read")
    for key, fact in found.items():
        if not (is_text(key, MAX_FACT_NAME) and _is_fact(fact)):
            raise ValueError(f"{shown(key)} of {name} is {shown(fact)}")
    return found


def _is_fact(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= MAX_FACT_ITEMS and all(map(_is_plain_fact, value))
    return value is None or isinstance(value, bool) or _is_plain_fact(value)


def _is_plain_fact(value: Any) -> bool:
    if type(value) is int:
        return abs(value) <= LARGEST_FACT
    return is_figure(value) or is_text(value, MAX_FACT_TEXT)


def shown(value: Any) -> str:
    """`value` for a message, cut where it is long; not all that JSON can hold has a text."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too large"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} …"
