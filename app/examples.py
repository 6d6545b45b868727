"""Prompts chosen for contrast: regular text comes many tokens a forward, free text few."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A button: its label and what it asks."""

    label: str
    prompt: str


EXAMPLES = (
    Example("Recite a list", "List the months of the year, one per line, and the number of days in each."),
    Example("Write code", "Write a Python function that checks whether a number is prime."),
    Example("Make JSON", "Give me a JSON object describing a book: title, author, year, genres."),
    Example("Write a poem", "Write a short poem about the sea at night."),
)
