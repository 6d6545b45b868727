"""How much memory the cache may take, and how much a request needs at most."""

from __future__ import annotations

from typing import Any

import psutil
import torch

from .loaded import LoadedModel

# Half of what is free: while it grows, the cache has its old and its new tensors side by side.
_SHARE = 0.5


def bytes_per_slot(loaded: LoadedModel) -> int | None:
    """Bytes of keys and values of one position in all layers; None where the config does not tell."""
    config: Any = loaded.model.config.get_text_config()
    try:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * config.num_hidden_layers * heads * size * loaded.dtype.itemsize
    except (AttributeError, TypeError):
        return None


def cache_budget(device: torch.device) -> int:
    """Bytes that the cache may take on this device, by what is free now."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    elif device.type == "mps":
        free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    else:
        free = psutil.virtual_memory().available
    return int(_SHARE * free)


class CacheBudget:
    """Decides whether rows fit. All rows of the cache are as long as the longest may become.

    Args:
        loaded: the model.
        limit: bytes; what is free on the device decides if None.
    """

    def __init__(self, loaded: LoadedModel, limit: int | None = None) -> None:
        self._slot = bytes_per_slot(loaded)
        self.limit = cache_budget(loaded.device) if limit is None else limit

    def fits(self, num_slots: list[int]) -> bool:
        """True if rows of at most so many slots each may be in the cache together."""
        return self.bytes(num_slots) <= self.limit

    def bytes(self, num_slots: list[int]) -> int:
        """What these rows take at most; 0 where the model does not tell."""
        return len(num_slots) * max(num_slots, default=0) * (self._slot or 0)
