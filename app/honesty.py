"""Where the page's numbers come from, in one line and as data."""

from __future__ import annotations

from typing import Any

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
    """Model, device, dtype, attention kernel, what the clock covers, and what a forward was measured to cost;
    B in force is shown beside it."""
    parts = [
        loaded.name,
        f"{loaded.device}, {dtype_name(loaded)}, {attention_name(loaded)} attention",
        CLOCK,
    ]
    if costs is not None:
        shown = ", ".join(f"{length}: {1000 * costs.of(length):.3g} ms" for length in (1, 4, 16))
        parts.append(f"a forward by its positions, measured at start: {shown}")
    return " · ".join(parts)


def model_facts(loaded: LoadedModel) -> dict[str, Any]:
    """What a saved trace says about where it was recorded."""
    return {
        "name": loaded.name,
        "device": str(loaded.device),
        "dtype": dtype_name(loaded),
        "attention": attention_name(loaded),
        "block_size": loaded.block_size,
        "mask_token_id": loaded.mask_token_id,
        "mars_tuned": loaded.mars_tuned,
        "clock": CLOCK,
    }
