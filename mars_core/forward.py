"""One forward: windows in, logits out. The only place that calls the model while decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .cache import Allocate, CursorCache
from .grouped import NAME, SLOT_STEP
from .hugepages import HugeZeros
from .loaded import LoadedModel
from .masks import MaskKinds
from .window import RowWindow, build_window


class Forward:
    """The model with its cursor cache.

    Args:
        loaded: the model.
        allocate: makes the cache's zeroed tensors; on huge pages where there are any, if None.
    """

    def __init__(self, loaded: LoadedModel, allocate: Allocate | None = None) -> None:
        self.loaded = loaded
        self.cache = CursorCache(allocate=allocate or HugeZeros())
        config = loaded.model.config.get_text_config()
        self._masks = MaskKinds(config)
        self._slot_step = SLOT_STEP if config._attn_implementation == NAME else 1

    def forget(self) -> None:
        """A new cache, as empty and small as at first."""
        self.cache = CursorCache(allocate=self.cache.allocate)

    def logits(self, places: Sequence[int], windows: Sequence[RowWindow]) -> torch.Tensor:
        """Feed each window to the cache row at its place; logits [R, K, V] of the last K columns, K the most
        that any row reads (at least 1). The cache must have the room (`CursorCache.reserve`)."""
        loaded = self.loaded
        window = build_window(
            windows, loaded.mask_token_id, self.cache.scratch_slot, loaded.device, self._slot_step
        )
        self.cache.point(places, window.slots, window.num_slots, windows[0].start)
        options: dict[str, Any] = {}
        if self._slot_step > 1:
            ends = (-(-row.end // self._slot_step) * self._slot_step for row in windows)
            options["row_ends"] = [min(end, window.num_slots) for end in ends]
        return loaded.model(
            input_ids=window.input_ids,
            position_ids=window.position_ids,
            attention_mask=self._masks.of(window),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=window.logits_to_keep,
            **options,
        ).logits
