"""What a forward is fed: token ids, positions, cache slots and the attention mask. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RowWindow:
    """One row's part of a forward: ``tokens, drafts, group 0, group 1, …``.

    Attributes:
        tokens: real tokens that are not cached yet, in order; the last of them is c.
        start: position of the first token, which is also its cache slot: the row's cursor.
        drafts: predictions of the forward before that are to be verified.
        groups: how many masks continue after c and after each draft, 1 + len(drafts) numbers; a group's
            masks see what it continues and each other, and no other group. Empty where nothing is read
            (a prompt chunk that more of the prompt follows).
    """

    tokens: Sequence[int]
    start: int
    drafts: Sequence[int] = ()
    groups: Sequence[int] = ()

    @property
    def length(self) -> int:
        return len(self.tokens) + len(self.drafts) + sum(self.groups)

    @property
    def end(self) -> int:
        """One past its last cache slot."""
        return self.start + self.length

    @property
    def num_predictions(self) -> int:
        """How many of the last columns are read: c, each draft, each mask."""
        return 1 + len(self.drafts) + sum(self.groups) if self.groups else 0

    def group(self, number: int) -> slice:
        """Where a group's masks stand among the predictions."""
        first = 1 + len(self.drafts) + sum(self.groups[:number])
        return slice(first, first + self.groups[number])

    def layout(self) -> list[tuple[int, int, int]]:
        """(position, last slot of the line it continues, first slot of its group) of each column.

        Tokens and drafts are a line of their own: they continue up to themselves.
        """
        line = range(self.start, self.start + len(self.tokens) + len(self.drafts))
        columns = [(slot, slot, slot) for slot in line]
        c, slot = self.start + len(self.tokens) - 1, line.stop
        for number, num_masks in enumerate(self.groups):
            columns += [(c + number + mask, c + number, slot) for mask in range(1, num_masks + 1)]
            slot += num_masks
        return columns


@dataclass(frozen=True, slots=True)
class Window:
    """All rows' windows as tensors, aligned at the right, so that what is read stands in the last columns.

    Attributes:
        input_ids: [R, W].
        position_ids: [R, W].
        slots: [R, W], where each position's keys and values go. Padding goes to the scratch slot, which
            nothing ever attends to.
        line: [R, W], the last slot of the line that a column continues: it may attend up to there.
        group: [R, W], the first slot of its group: it may attend from there to itself. Padding sees slot
            0 alone (a row of the mask without a True is NaN on some devices).
        num_slots: slots that take part: past the last real position of any row.
        needs_mask: False where every position may attend to every slot that takes part.
        logits_to_keep: columns that are read; at least 1.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    line: torch.Tensor
    group: torch.Tensor
    num_slots: int
    needs_mask: bool
    logits_to_keep: int

    def attention_mask(self, sliding_window: int | None = None) -> torch.Tensor:
        """Boolean [R, 1, W, num_slots], True = may attend: the line a column continues, and its group.

        With a sliding window of w positions a query also sees none further back than w − 1.
        """
        slot = torch.arange(self.num_slots, device=self.line.device)
        line, group, own = (t[:, None, :, None] for t in (self.line, self.group, self.slots))
        on_line, in_group = slot <= line, (slot >= group) & (slot <= own)
        if sliding_window is not None:
            # how far back a slot lies: on the line slot and position are the same, in a group they run
            # side by side
            on_line &= slot > self.position_ids[:, None, :, None] - sliding_window
            in_group &= slot > own - sliding_window
        return on_line | in_group


def build_window(
    rows: Sequence[RowWindow],
    mask_token_id: int,
    scratch_slot: int,
    device: torch.device,
    slot_step: int = 1,
) -> Window:
    """Lay the rows' windows side by side. The slots that take part are a multiple of `slot_step`, where there
    are so many before the scratch slot.

    Example, two rows, M = mask, · = padding::

        tokens [7], start 5, groups [2]                7 M M      positions 5 6 7
        tokens [3], start 9, draft [4], groups [1, 1]  3 4 M M    positions 9 10 10 11

    the second of which is wider, so that the first is ``· 7 M M``.
    """
    width = max(row.length for row in rows)
    ids, positions, slots, lines, groups = [], [], [], [], []
    for row in rows:
        padding = width - row.length
        layout = row.layout()
        ids.append([mask_token_id] * padding + [*row.tokens, *row.drafts] + [mask_token_id] * sum(row.groups))
        positions.append([0] * padding + [position for position, _, _ in layout])
        slots.append([scratch_slot] * padding + list(range(row.start, row.end)))
        lines.append([0] * padding + [line for _, line, _ in layout])
        # no slot lies between the one behind scratch and scratch: padding has no group
        groups.append([scratch_slot + 1] * padding + [group for _, _, group in layout])
    columns = (torch.tensor(values, device=device) for values in (ids, positions, slots, lines, groups))
    input_ids, position_ids, slot_ids, line, group = columns
    end = max(row.end for row in rows)
    num_slots = min(-(-end // slot_step) * slot_step, scratch_slot)
    return Window(
        input_ids=input_ids,
        position_ids=position_ids,
        slots=slot_ids,
        line=line,
        group=group,
        num_slots=num_slots,
        needs_mask=input_ids.shape != (1, 1) or num_slots > end,
        logits_to_keep=max(1, *(row.num_predictions for row in rows)) if rows else 1,
    )
