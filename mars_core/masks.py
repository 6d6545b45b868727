"""The attention masks that a model's layers want, made from a window. Pure but for the model's config."""

from __future__ import annotations

from typing import Any

import torch

from .errors import MarsError
from .window import Window


class MaskKinds:
    """The masks that a model's layers want: causal, sliding-window, or both by name.

    Models of transformers take a mask of four dimensions as it is, and those whose layers differ a
    dictionary of them (5.24: `masking_utils`, `config.layer_types`).
    """

    def __init__(self, config: Any) -> None:
        layer_types = set(getattr(config, "layer_types", None) or ())
        if unknown := layer_types - {"full_attention", "sliding_attention"}:
            # a state that cannot be taken back behind a mask, or a mask that is not made here
            raise MarsError(f"This model's layers ({', '.join(sorted(unknown))}) are not supported.")
        sliding = getattr(config, "sliding_window", None)
        self.by_name = "sliding_attention" in layer_types
        self.sliding_window: int | None = sliding if self.by_name or not layer_types else None
        self.additive = config._attn_implementation == "eager"
        self.dtype: torch.dtype = getattr(config, "dtype", None) or torch.float32

    def of(self, window: Window) -> torch.Tensor | dict[str, torch.Tensor] | None:
        """What to pass as `attention_mask`; None where everything may be seen, which is fastest."""
        if not window.needs_mask and self.sliding_window is None:
            return None
        if not self.by_name:
            return self._finish(window.attention_mask(self.sliding_window))
        return {
            "full_attention": self._finish(window.attention_mask()),
            "sliding_attention": self._finish(window.attention_mask(self.sliding_window)),
        }

    def _finish(self, allowed: torch.Tensor) -> torch.Tensor:
        if not self.additive:
            return allowed
        floor = torch.finfo(self.dtype).min
        return torch.zeros_like(allowed, dtype=self.dtype).masked_fill(~allowed, floor)
