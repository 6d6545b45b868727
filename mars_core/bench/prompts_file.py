"""Prompts from a file of JSON lines, as Spec-Bench has them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..errors import MarsError
from ..prompts import chat_prompt_ids


@dataclass(frozen=True)
class Prompt:
    """The first turn of a conversation, its category if it names one, and where it stands."""

    text: str
    category: str | None
    where: str


def read_prompts(path: Path) -> list[Prompt]:
    """One prompt a line. Raises `MarsError`, naming the line, for what is no prompt."""
    if not path.is_file():
        raise MarsError(f"There is no file {path}.")
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise MarsError(f"{path} is not UTF-8 text: {error}.") from error
    prompts = [
        prompt_of(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise MarsError(f"{path} holds no prompts.")
    return prompts


def prompt_of(line: str, where: str) -> Prompt:
    try:
        data = json.loads(line)
        text = data["turns"][0] if "turns" in data else data["prompt"]
        if not isinstance(text, str):
            raise TypeError("a prompt is text")
        category = data.get("category")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise MarsError(f"{where}: give a JSON object with `turns` or `prompt`.") from error
    return Prompt(text, None if category is None else str(category), where)


def choose(prompts: Sequence[Prompt], limit: int | None, seed: int | None) -> list[Prompt]:
    """The first `limit` prompts; with a seed, as many drawn at random and evenly over the categories.

    In the order of the file. Raises `MarsError` for a limit below 1.
    """
    if limit is None:
        return list(prompts)
    if limit < 1:
        raise MarsError(f"limit is {limit}; allowed is a whole number, 1 or more.")
    if seed is None:
        return list(prompts[:limit])
    numbers = _by_turns(prompts, random.Random(seed))[:limit]
    return [prompts[number] for number in sorted(numbers)]


def _by_turns(prompts: Sequence[Prompt], random_: random.Random) -> list[int]:
    """All places, shuffled inside each category, one of each category by turns."""
    by_category: dict[str | None, list[int]] = {}
    for number in random_.sample(range(len(prompts)), len(prompts)):
        by_category.setdefault(prompts[number].category, []).append(number)
    longest = max(map(len, by_category.values()))
    return [
        numbers[turn] for turn in range(longest) for numbers in by_category.values() if turn < len(numbers)
    ]


def encode(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Ids of each, ready for the answer. Raises `MarsError`, naming the line."""
    ids = []
    for prompt in prompts:
        try:
            ids.append(chat_prompt_ids(tokenizer, [{"role": "user", "content": prompt.text}]))
        except MarsError as error:
            raise MarsError(f"{prompt.where}: {error}") from error
    return ids
