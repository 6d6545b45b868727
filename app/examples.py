"""Prompts chosen for contrast: regular text comes many tokens a forward, free text few."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A button: its label and what it asks."""

    label: str
    prompt: str


EXAMPLES = (
    Example("Count to 30", "Count from 1 to 30, separated by commas."),
    Example("Make JSON", "Give me a JSON object describing a book: title, author, year, genres."),
    Example("Write code", "Write a Python class for a bank account with deposit and withdraw."),
    Example("Tell a story", "Write a short story about a fox who learns to swim."),
)
