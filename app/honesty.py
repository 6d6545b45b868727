"""Where the page's numbers come from, in words."""

from __future__ import annotations

from mars_core import LoadedModel
from mars_core.costs import ForwardCosts

CLOCK = "clock: the forwards' own time, device synchronised, prefill apart"


def dtype_name(loaded: LoadedModel) -> str:
    """float32, bfloat16, …"""
    return str(loaded.dtype).removeprefix("torch.")


def attention_name(loaded: LoadedModel) -> str:
    """The attention kernel in use."""
    return str(loaded.model.config.get_text_config()._attn_implementation)


def honesty_line(loaded: LoadedModel, costs: ForwardCosts | None = None) -> str:
    """How the figures were measured: a first line that always shows, and lines that show on demand.

    Device and dtype; then model and attention kernel, what the clock covers, and what a forward was measured
    to cost. B in force is shown beside it.
    """
    lines = [
        f"Compute time on {loaded.device}, {dtype_name(loaded)}. How it is measured",
        f"Model: {loaded.name}, with {attention_name(loaded)} attention.",
        f"{CLOCK[0].upper()}{CLOCK[1:]}.",
    ]
    if costs is not None:
        shown = ", ".join(f"{length}: {_milliseconds(costs.of(length))} ms" for length in (1, 4, 16))
        lines.append(f"A forward by the positions it is fed, measured at start: {shown}.")
    return "\n".join(lines)


def _milliseconds(seconds: float) -> str:
    """Three digits or, of a thousand and more, all."""
    return f"{1000 * seconds:,.0f}" if seconds >= 0.9995 else f"{1000 * seconds:.3g}"
