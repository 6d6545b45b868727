"""Prompts chosen for contrast: regular text comes many tokens a forward, free text few."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A button: its label and what it asks."""

    label: str
    prompt: str


EXAMPLES = (
    Example("Write code", "Write a Python function that adds two numbers."),
    Example("Make JSON", "Write a JSON object with the name, age and city of a person."),
    Example("Explain", "What is photosynthesis? Answer in two sentences."),
    Example("Write a haiku", "Write a haiku about rivers."),
)
