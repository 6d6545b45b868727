"""What a forward is fed: alignment, positions, and a mask without a row of nothing."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from mars_core.window import RowWindow, Window, build_window

SCRATCH, MASK = 256, 259
row_windows = st.builds(
    lambda tokens, masks, start: RowWindow([7] * tokens, start, groups=[masks]),
    st.integers(1, 5),
    st.integers(0, 7),
    st.integers(0, 20),
)


def build(*rows: RowWindow) -> Window:
    return build_window(rows, MASK, SCRATCH, torch.device("cpu"))


def test_rows_are_aligned_at_the_right():
    window = build(RowWindow([7], 5, groups=[2]), RowWindow([3], 9, groups=[0]))
    assert window.input_ids.tolist() == [[7, MASK, MASK], [MASK, MASK, 3]]
    assert window.position_ids.tolist() == [[5, 6, 7], [0, 0, 9]]
    assert window.slots.tolist() == [[5, 6, 7], [SCRATCH, SCRATCH, 9]]
    assert (window.num_slots, window.logits_to_keep) == (10, 3)


def test_a_row_that_predicts_nothing_still_keeps_one_column():
    assert build(RowWindow([1, 2], 0)).logits_to_keep == 1


def test_only_a_single_position_of_a_single_row_needs_no_mask():
    assert not build(RowWindow([7], 5, groups=[0])).needs_mask
    assert build(RowWindow([7], 5, groups=[1])).needs_mask
    assert build(RowWindow([7], 5, groups=[0]), RowWindow([7], 5, groups=[0])).needs_mask


def test_a_single_position_sees_everything_up_to_itself():
    assert build(RowWindow([7], 5, groups=[0])).attention_mask().all()


@given(st.lists(row_windows, min_size=1, max_size=4), st.sampled_from([None, 1, 2, 5]))
def test_every_query_sees_itself_and_nothing_later_or_out_of_its_sliding_window(rows, sliding):
    window = build(*rows)
    mask = window.attention_mask(sliding)[:, 0]
    assert mask.shape == (*window.input_ids.shape, window.num_slots)
    assert mask.any(-1).all()  # a query that sees nothing is NaN on some devices
    for index, row in enumerate(rows):
        for offset, position in enumerate(range(row.start, row.end), window.input_ids.shape[1] - row.length):
            seen = mask[index, offset].nonzero().flatten().tolist()
            first = 0 if sliding is None else max(0, position - sliding + 1)
            assert seen == list(range(first, position + 1))


@given(st.lists(row_windows, min_size=1, max_size=4))
def test_padding_writes_to_the_scratch_slot_alone_and_nothing_sees_that(rows):
    window = build(*rows)
    assert window.num_slots <= SCRATCH
    for index, row in enumerate(rows):
        padding = window.input_ids.shape[1] - row.length
        assert set(window.slots[index, :padding].tolist()) <= {SCRATCH}
        assert window.slots[index, padding:].tolist() == list(range(row.start, row.end))


def test_masks_after_every_draft_see_what_they_continue_and_their_own_group():
    row = RowWindow([1, 2], 4, drafts=[3], groups=[2, 1])
    window = build(row)
    assert window.input_ids.tolist() == [[1, 2, 3, MASK, MASK, MASK]]
    assert window.position_ids.tolist() == [[4, 5, 6, 6, 7, 7]]
    assert window.slots.tolist() == [[4, 5, 6, 7, 8, 9]]
    assert (row.num_predictions, row.group(0), row.group(1)) == (5, slice(2, 4), slice(4, 5))
    seen = [query.nonzero().flatten().tolist() for query in window.attention_mask()[0, 0]]
    prefix = [0, 1, 2, 3]
    assert seen == [
        [*prefix, 4],
        [*prefix, 4, 5],
        [*prefix, 4, 5, 6],
        [*prefix, 4, 5, 7],  # the first group continues after the last token
        [*prefix, 4, 5, 7, 8],
        [*prefix, 4, 5, 6, 9],  # the second after the draft
    ]


def test_a_sliding_window_reaches_as_far_back_from_a_group_as_from_the_line():
    window = build(RowWindow([1], 10, drafts=[2], groups=[1, 1]))
    seen = [query.nonzero().flatten().tolist() for query in window.attention_mask(3)[0, 0]]
    assert seen == [[8, 9, 10], [9, 10, 11], [9, 10, 12], [10, 11, 13]]


def test_slots_that_are_there_to_fill_up_are_seen_by_nobody():
    rows = [RowWindow([7], 5, groups=[0])]
    window = build_window(rows, MASK, SCRATCH, torch.device("cpu"), slot_step=8)
    assert window.num_slots == 8 and window.needs_mask
    assert window.attention_mask().tolist() == [[[[True] * 6 + [False] * 2]]]
    full = build_window([RowWindow([7], 7, groups=[0])], MASK, SCRATCH, torch.device("cpu"), slot_step=8)
    assert full.num_slots == 8 and not full.needs_mask
    last = build_window([RowWindow([7], 254, groups=[0])], MASK, 255, torch.device("cpu"), slot_step=8)
    assert last.num_slots == 255, "never past the last slot"
