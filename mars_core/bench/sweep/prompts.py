"""What a sweep asks: a few prompts that come with it, or the user's own, one a line or as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ...errors import MarsError
from ...loaded import LoadedModel
from ...prompts import is_blank
from ..prompts_file import Prompt, encode
from ..prompts_file import prompt_of as prompt_of
from .grid import SweepPrompt

BUILT_IN = (
    "Write a Python function that returns the first n prime numbers.",
    "Recite the alphabet, one letter a line.",
    "List the seven days of the week as a JSON array of objects with a name and a number.",
    "What causes the seasons on Earth? Explain it in three sentences.",
    "A train travels 60 km in 45 minutes. What is its speed in km/h? Show each step.",
    "Write a short poem about a lighthouse in winter.",
    "Translate into French: The library opens at nine and closes at five.",
    "Give me five unusual names for a small bakery, each with one sentence on why it fits.",
)
MAX_CHARACTERS = 8000  # of one prompt


def built_in(limit: int | None = None) -> list[Prompt]:
    """The prompts that come with it, or the first of them."""
    return [
        Prompt(text, None, f"built-in prompt {number}") for number, text in enumerate(BUILT_IN[:limit], 1)
    ]


def read_lines(path: Path) -> str:
    """The text of a file of prompts. Raises `MarsError` where there is none."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise MarsError(
            f"The prompts {path} cannot be read ({error}). Give a file, or 'built-in'."
        ) from error
    except UnicodeDecodeError as error:
        raise MarsError(f"{path} is not UTF-8 text: {error}.") from error


def parse_prompts(
    text: str, where: str, most: int | None = None, longest: int = MAX_CHARACTERS
) -> list[Prompt]:
    """One prompt a line; blank lines are left out.

    Where the first of them is a JSON object with `prompt` or `turns`, all must be.

    Args:
        where: what the text is called in messages. Example: ``the box`` -> "the box, line 3: …".
        most: prompts allowed.
        longest: characters allowed in each.

    Raises:
        MarsError: there is none, there are too many, or one is too long or no prompt; names the line.
    """
    lines = [(f"{where}, line {n}", line) for n, line in enumerate(text.split("\n"), 1) if not is_blank(line)]
    if not lines:
        raise MarsError(f"There is no prompt in {where}: write one a line.")
    if most is not None and len(lines) > most:
        raise MarsError(f"There are {len(lines)} prompts in {where}; allowed are {most}. Leave some out.")
    as_json = _is_prompt_object(lines[0][1])
    prompts = [_from_json(line, at) if as_json else Prompt(line.strip(), None, at) for at, line in lines]
    for prompt in prompts:
        _check(prompt, longest)
    return prompts


def _is_prompt_object(line: str) -> bool:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and bool(data.keys() & {"prompt", "turns"})


def _from_json(line: str, at: str) -> Prompt:
    try:
        return prompt_of(line, at)
    except RecursionError as error:
        raise MarsError(f"{at}: that is nested too deeply for a prompt.") from error


def _check(prompt: Prompt, longest: int) -> None:
    if is_blank(prompt.text):
        raise MarsError(f"{prompt.where}: the prompt is empty.")
    if len(prompt.text) > longest:
        raise MarsError(
            f"{prompt.where}: the prompt has {len(prompt.text)} characters; allowed are {longest}. "
            "Shorten it."
        )


def ready(prompts: Sequence[Prompt], loaded: LoadedModel, max_new_tokens: int) -> list[SweepPrompt]:
    """With their ids.

    Raises:
        MarsError: the model has no tokenizer, or a prompt does not fit its context; names the line.
    """
    if loaded.tokenizer is None:
        raise MarsError("This model has no tokenizer, so it cannot read prompts.")
    room = loaded.context_length - max_new_tokens
    found = []
    for prompt, ids in zip(prompts, encode(prompts, loaded.tokenizer), strict=True):
        if len(ids) > room:
            raise MarsError(
                f"{prompt.where}: the prompt has {len(ids)} tokens, and beside {max_new_tokens} new ones the "
                f"model's context has room for {max(room, 0)}. Shorten it."
            )
        found.append(SweepPrompt(prompt.text, tuple(ids)))
    return found
