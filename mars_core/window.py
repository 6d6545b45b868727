"""What a forward is fed: token ids, positions, cache slots and the attention mask. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RowWindow:
    """One row's part of a forward.

    Attributes:
        tokens: real tokens that are not cached yet, in order.
        num_masks: mask tokens after them.
        start: position of the first token, which is also its cache slot: the row's cursor.
        num_predictions: how many of the last positions are read (0 for a prompt chunk that more of the
            prompt follows).
    """

    tokens: Sequence[int]
    num_masks: int
    start: int
    num_predictions: int

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_masks

    @property
    def end(self) -> int:
        """One past its last position."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Window:
    """All rows' windows as tensors, aligned at the right, so that what is read stands in the last columns.

    Attributes:
        input_ids: [R, W].
        position_ids: [R, W].
        slots: [R, W], where each position's keys and values go. Padding goes to `scratch_slot`, which
            nothing ever attends to.
        visible: [R, W], the last slot each position may attend to. Slot s of a row holds position s, so
            this is its own position; padding sees slot 0 alone (a row of the mask without a True is NaN
            on some devices).
        num_slots: slots that take part: one past the last real position of any row.
        logits_to_keep: columns that are read; at least 1.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    visible: torch.Tensor
    num_slots: int
    logits_to_keep: int

    @property
    def needs_mask(self) -> bool:
        """False where every position may attend to every slot that takes part."""
        return self.input_ids.shape != (1, 1)

    def attention_mask(self, sliding_window: int | None = None) -> torch.Tensor:
        """Boolean [R, 1, W, num_slots], True = may attend: causal, by slot.

        With a sliding window of w positions a query also sees none further back than w − 1.
        """
        slot = torch.arange(self.num_slots, device=self.visible.device)
        visible = self.visible[:, None, :, None]
        allowed = slot <= visible
        return allowed if sliding_window is None else allowed & (slot > visible - sliding_window)


def build_window(
    rows: Sequence[RowWindow], mask_token_id: int, scratch_slot: int, device: torch.device
) -> Window:
    """Lay the rows' windows side by side.

    Example, two rows, M = mask, · = padding::

        tokens [7], 2 masks, start 5     7 M M     positions 5 6 7
        tokens [3], 0 masks, start 9     · · 3     positions 0 0 9
    """
    width = max(row.length for row in rows)
    ids, positions, slots = [], [], []
    for row in rows:
        padding = width - row.length
        real = list(range(row.start, row.end))
        ids.append([mask_token_id] * padding + list(row.tokens) + [mask_token_id] * row.num_masks)
        positions.append([0] * padding + real)
        slots.append([scratch_slot] * padding + real)
    position_ids = torch.tensor(positions, device=device)
    return Window(
        input_ids=torch.tensor(ids, device=device),
        position_ids=position_ids,
        slots=torch.tensor(slots, device=device),
        visible=position_ids,
        num_slots=max(row.end for row in rows),
        logits_to_keep=max(1, *(row.num_predictions for row in rows)) if rows else 1,
    )
