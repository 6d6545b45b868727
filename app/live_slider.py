"""Sliders that act on what is running, and what a browser sends of them while they move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from .without_stub import WithoutStub


class FreeSlider(gr.Slider, metaclass=WithoutStub):
    """A slider whose position reaches its listeners as the browser sends it.

    Gradio refuses what is outside of the ends that the slider has on the server, and the event with it. For
    a slider whose ends change with another setting that is wrong: what the browser sends may be of the ends
    before, and a session that the server has forgotten (it was restarted, or many came after it) has the
    ends of the beginning. The listeners check.
    """

    is_template = True  # the browser draws it as what it is: a slider

    def preprocess(self, payload: Any) -> Any:  # type: ignore[override]
        return payload


def position(value: Any, low: float, high: float) -> float | None:
    """The value as a position of a slider with these ends; None for what is none: a number box that was
    emptied, or in which the first digits were typed, or ends that have changed since."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value if low <= value <= high else None


def on_turn(slider: gr.Slider, turn: Callable[..., None], inputs: Sequence[Any], **options: Any) -> None:
    """Call `turn` with the raw values of `inputs` wherever the slider comes to stand, the newest place only.

    While it is dragged or typed in, and when it is let go: a number beyond the ends is drawn back to them
    only then.
    """
    gr.on(
        [slider.input, slider.release],  # type: ignore[attr-defined]
        turn,
        list(inputs),
        None,
        preprocess=False,
        **options | {"trigger_mode": "always_last"},
    )
