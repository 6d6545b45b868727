"""The cursor cache: growth keeps contents, rows move, a failed growth leaves it usable."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from mars_core.cache import GROWTH, CursorCache, zeros
from mars_core.hugepages import HugeZeros

HEADS, SIZE = 2, 3


def write(cache: CursorCache, rows: list[int], slots: list[list[int]], fill: float, layer: int = 0) -> None:
    """Write this value at these slots, and point at all that is behind them."""
    num_slots = max(max(row) for row in slots) + 1
    cache.reserve(max(rows) + 1, num_slots)
    cache.point(rows, torch.tensor(slots), num_slots)
    states = torch.full((len(rows), HEADS, len(slots[0]), SIZE), fill)
    keys, values = cache.update(states, states + 0.5, layer)
    assert keys.shape == values.shape == (len(rows), HEADS, num_slots, SIZE)


def stored(cache: CursorCache, row: int, num_slots: int, layer: int = 0) -> list[float]:
    keys, values = cache.layers[layer].keys, cache.layers[layer].values
    assert torch.equal(values[row, :, :num_slots], keys[row, :, :num_slots] + 0.5)
    return keys[row, 0, :num_slots, 0].tolist()


def test_what_is_written_comes_back_in_its_slot():
    cache = CursorCache()
    write(cache, [0], [[0, 1]], 1.0)
    write(cache, [0], [[2]], 2.0)
    assert stored(cache, 0, 3) == [1, 1, 2]


def test_rows_are_written_at_their_own_slots_in_any_order_of_rows():
    cache = CursorCache(num_rows=3)
    write(cache, [0, 1, 2], [[0], [0], [0]], 1.0)
    write(cache, [0], [[1]], 2.0)
    write(cache, [2, 0], [[1], [2]], 5.0)
    assert stored(cache, 0, 3) == [1, 2, 5] and stored(cache, 2, 2) == [1, 5]
    assert stored(cache, 1, 1) == [1] and not cache.layers[0].keys[1, :, 1:3].any()


def test_growth_in_rows_and_slots_keeps_what_is_there():
    cache = CursorCache(num_rows=1)
    write(cache, [0], [[0, 1, 2]], 7.0)
    cache.reserve(3, GROWTH + 1)
    assert cache.num_rows == 3 and cache.capacity >= GROWTH + 1 and cache.capacity % GROWTH == 0
    assert stored(cache, 0, 3) == [7, 7, 7]
    assert cache.layers[0].keys.shape[2] == cache.capacity + 1


def test_the_scratch_slots_contents_never_become_a_real_slot():
    cache = CursorCache(num_rows=2)
    write(cache, [0, 1], [[0], [0]], 1.0)
    cache.layers[0].keys[:, :, cache.scratch_slot] = torch.nan
    cache.reserve(2, GROWTH + 1)
    assert not cache.layers[0].keys.isnan().any()


def test_a_moved_row_takes_its_contents_along():
    cache = CursorCache(num_rows=2)
    write(cache, [0, 1], [[0, 1], [0, 1]], 1.0)
    write(cache, [1], [[0, 1]], 4.0)
    cache.move_row(1, 0, 2)
    assert stored(cache, 0, 2) == [4, 4]


def test_an_erased_row_is_zero_and_the_others_stay():
    cache = CursorCache(num_rows=2)
    write(cache, [0, 1], [[0], [0]], torch.nan)
    write(cache, [1], [[0]], 2.0)
    cache.erase_row(0)
    assert not cache.layers[0].keys[0].any() and stored(cache, 1, 1) == [2]


def test_moving_and_erasing_before_the_first_forward_do_nothing():
    cache = CursorCache(num_rows=2)
    cache.move_row(1, 0, 5)
    cache.erase_row(0)


@pytest.mark.parametrize("num_rows, num_slots", [(2, 1), (1, GROWTH + 1)])
@pytest.mark.parametrize("failing_allocation", [0, 1, 2, 3])
def test_a_failed_growth_leaves_all_as_it_was(num_rows, num_slots, failing_allocation):
    left = [100]

    def allocate(*request):
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("no room")
        return zeros(*request)

    cache = CursorCache(allocate=allocate)
    write(cache, [0], [[0, 1]], 3.0, layer=0)
    write(cache, [0], [[0, 1]], 3.0, layer=1)
    before = cache.num_rows, cache.capacity
    left[0] = failing_allocation
    with pytest.raises(MemoryError):
        cache.reserve(num_rows, num_slots)
    assert (cache.num_rows, cache.capacity) == before
    left[0] = 100
    write(cache, [0], [[2]], 4.0, layer=0)
    write(cache, [0], [[2]], 4.0, layer=1)
    assert stored(cache, 0, 3, 0) == stored(cache, 0, 3, 1) == [3, 3, 4]


def test_tensors_carved_out_of_one_mapping_are_zero_and_apart():
    allocate = HugeZeros(block_bytes=2**21)
    made = [allocate((2, 3, 50, 8), torch.float32, torch.device("cpu")) for _ in range(40)]
    assert all(not tensor.any() for tensor in made)
    for number, tensor in enumerate(made):
        tensor.fill_(number)
    assert all((tensor == number).all() for number, tensor in enumerate(made))
    assert allocate((2**20,), torch.bfloat16, torch.device("cpu")).numel() == 2**20


# --- the ceiling ---


def test_growth_ahead_of_need_ends_at_the_ceiling():
    free, bounded = CursorCache(), CursorCache()
    bounded.ceiling = 1, 5 * GROWTH - 20
    for cache in (free, bounded):
        cache.reserve(1, 4 * GROWTH)
        cache.reserve(1, 4 * GROWTH + 1)
    assert free.capacity == 6 * GROWTH and bounded.capacity == 5 * GROWTH


def test_growth_of_one_side_lets_go_of_what_the_other_has_too_much():
    cache = CursorCache(num_rows=4)
    write(cache, [0, 1, 2, 3], [[0, 1]] * 4, 3.0)
    cache.ceiling = 2, 3 * GROWTH
    cache.reserve(1, 3 * GROWTH)
    assert (cache.num_rows, cache.capacity) == (2, 3 * GROWTH)
    cache.ceiling = 5, GROWTH
    cache.reserve(5, 1)
    assert (cache.num_rows, cache.capacity) == (5, GROWTH)
    assert [stored(cache, row, 2) for row in (0, 1)] == [[3, 3]] * 2
    assert not cache.layers[0].keys[2:].any()


def test_what_is_asked_for_is_given_whatever_the_ceiling():
    cache = CursorCache()
    cache.ceiling = 1, GROWTH
    cache.reserve(3, GROWTH + 1)
    assert (cache.num_rows, cache.capacity) == (3, 2 * GROWTH)


# --- giving back ---


def test_shrinking_keeps_the_rows_and_slots_that_are_in_use():
    cache = CursorCache(num_rows=8, capacity=2 * GROWTH)
    write(cache, [0, 1], [[0, 1, 2], [0, 1, 2]], 2.0)
    write(cache, [1], [[2]], 5.0)
    cache.shrink(2, 3)
    assert (cache.num_rows, cache.capacity) == (2, GROWTH)
    assert cache.layers[0].keys.shape == (2, HEADS, GROWTH + 1, SIZE)
    assert stored(cache, 0, 3) == [2, 2, 2] and stored(cache, 1, 3) == [2, 2, 5]
    write(cache, [0], [[3]], 6.0)
    assert stored(cache, 0, 4) == [2, 2, 2, 6]


@pytest.mark.parametrize(
    "rows, slots, shrinks", [(2, GROWTH, True), (3, GROWTH, False), (1, 2 * GROWTH, True)]
)
def test_it_shrinks_to_a_quarter_or_less_or_not_at_all(rows, slots, shrinks):
    cache = CursorCache(num_rows=8, capacity=GROWTH)
    cache.shrink(rows, slots)
    assert (cache.num_rows, cache.capacity) == ((rows, slots) if shrinks else (8, GROWTH))


def test_an_empty_cache_keeps_one_row_of_one_step():
    cache = CursorCache(num_rows=8, capacity=4 * GROWTH)
    write(cache, [0], [[0]], 1.0)
    cache.shrink(0, 0)
    assert (cache.num_rows, cache.capacity) == (1, GROWTH)


def test_the_scratch_slot_of_a_larger_cache_is_no_slot_of_the_smaller():
    cache = CursorCache(num_rows=8, capacity=2 * GROWTH)
    write(cache, [0], [list(range(GROWTH + 5))], 1.0)
    cache.shrink(1, 1)
    assert not cache.layers[0].keys[0, :, cache.scratch_slot].any()


def test_a_shrink_that_fails_leaves_all_as_it_was():
    left = [2]

    def allocate(*request):
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("no room")
        return zeros(*request)

    cache = CursorCache(num_rows=8, allocate=allocate)
    write(cache, [0], [[0, 1]], 3.0)
    cache.shrink(1, 2)
    assert cache.num_rows == 8 and stored(cache, 0, 2) == [3, 3]


def test_a_cache_that_is_let_go_frees_its_tensors_at_once():
    cache = CursorCache()
    write(cache, [0], [[0]], 1.0)
    keys = weakref.ref(cache.layers[0].keys)
    gc.disable()
    try:
        del cache
        assert keys() is None
    finally:
        gc.enable()


# --- reading and writing rows ---


def test_a_row_that_was_read_can_be_written_elsewhere_in_part():
    cache = CursorCache(num_rows=3)
    for layer in (0, 1):
        write(cache, [0], [[0, 1]], 4.0 + layer, layer)
        write(cache, [0], [[2]], 6.0 + layer, layer)
    kept = cache.read_row(0, 3)
    assert [tensor.shape for pair in kept for tensor in pair] == [(HEADS, 3, SIZE)] * 4
    cache.erase_row(0)
    cache.write_row(2, kept, 2)
    cache.write_row(1, kept, 3)
    assert stored(cache, 2, 2, 0) == [4, 4] and not cache.layers[0].keys[2, :, 2].any()
    assert stored(cache, 1, 3, 1) == [5, 5, 7] and not cache.layers[1].keys[0].any()


def test_a_slot_takes_what_all_layers_keep_of_a_position():
    cache = CursorCache()
    assert cache.bytes_per_slot == 0
    for layer in (0, 1, 2):
        write(cache, [0], [[0]], 1.0, layer)
    assert cache.bytes_per_slot == 3 * 2 * HEADS * SIZE * 4
    assert sum(tensor.nbytes for pair in cache.read_row(0, 7) for tensor in pair) == 7 * cache.bytes_per_slot
