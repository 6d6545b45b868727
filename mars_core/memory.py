"""How much memory the cache may take, and how much a request needs at most."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import psutil
import torch

from .cache import in_steps
from .loaded import LoadedModel
from .row import Row
from .settings import LiveValues

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# Half of what is free: while it grows, the cache has its old and its new tensors side by side.
_SHARE = 0.5


def bytes_per_slot(loaded: LoadedModel) -> int | None:
    """Bytes of keys and values of one position in all layers; None where the config does not tell."""
    config: Any = loaded.model.config.get_text_config()
    try:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * int(config.num_hidden_layers) * int(heads) * int(size) * loaded.dtype.itemsize
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


def twice(work: Callable[[], _Result], forget: Callable[[], bool], device: torch.device) -> _Result:
    """Do this; if there is no memory for it, forget something and try again.

    Args:
        work: is whole again from its start.
        forget: gives memory back; returns whether there was anything.
        device: where.
    """
    try:
        return work()
    except (torch.OutOfMemoryError, MemoryError):
        if not forget():
            raise
    # behind the except clause: the failed try's tensors are gone with its traceback
    logger.warning("Out of memory: forgot the cached prefixes, trying again.")
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return work()


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
        slots = in_steps(max(num_slots, default=0)) + 1  # and one for scratch
        return len(num_slots) * slots * (self._slot or 0)

    def affordable(self, row: Row, rows: Sequence[Row]) -> LiveValues:
        """A row's live values. B turned up since the row was let in makes windows longer than was counted
        with: then it is counted with from now on, or, without the room for it, stays as it was.

        Args:
            row: the row.
            rows: all that share the cache, this one included.
        """
        live, counted = row.live.read(), row.settings
        if live.block_size <= counted.block_size or not live.verify or live.layout == "linear":
            return live  # any other window ends where the answer does
        row.settings = replace(counted, block_size=live.block_size)
        if self.fits([other.most_slots for other in rows]):
            return live
        row.settings = counted
        return replace(live, block_size=counted.block_size)
