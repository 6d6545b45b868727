"""The cursor cache: slot s of a row holds the keys and values of that row's position s.

Every row has a cursor of its own, kept by the engine as a number. A forward writes a row's window from
its cursor on; committing advances that row's cursor alone; what lies behind the cursor is written over
by the next forward and no mask lets anything attend to it meanwhile. So nothing is ever cropped, copied
back or read from token values.

Everything here that depends on transformers' cache interface (`Cache`, `CacheLayerMixin`, moved within
5.x) is in this file; written against 5.24.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

logger = logging.getLogger(__name__)

GROWTH = 256  # slots are allocated in multiples of this

Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The default allocator. Zeros, not garbage: a masked key still meets 0 × value, and 0 × NaN is NaN."""
    return torch.zeros(shape, dtype=dtype, device=device)


class _Aim:
    """The size of the cache, and where the next forward writes: what all layers share with it.

    Layers that knew their cache would make a circle, which keeps the tensors of a cache that was let go until
    the garbage collector comes.
    """

    rows: slice | torch.Tensor = slice(0, 0)
    row_index: torch.Tensor | None = None
    slots: torch.Tensor | slice = slice(0, 0)
    num_slots: int = 0

    def __init__(self, num_rows: int, capacity: int, allocate: Allocate) -> None:
        self.num_rows, self.capacity, self.allocate = num_rows, capacity, allocate


class CursorLayer(CacheLayerMixin):
    """One layer's keys and values, each [rows, heads, capacity + 1, head size]; the last slot is scratch."""

    is_sliding = False

    def __init__(self, aim: _Aim) -> None:
        super().__init__()
        self.aim = aim
        self.keys: torch.Tensor
        self.values: torch.Tensor

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate at the sizes of the first keys and values seen."""
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = like.shape
        shape = (self.aim.num_rows, heads, self.aim.capacity + 1, size)
        return self.aim.allocate(shape, like.dtype, like.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the window, [R, heads, W, head size]; return all that the window may attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, store: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        aim = self.aim
        if isinstance(aim.slots, slice):
            store[aim.rows, :, aim.slots] = states
        else:
            store[aim.row_index, :, aim.slots] = states.transpose(1, 2)
        return store[aim.rows, :, : aim.num_slots]

    def resized(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Keys and values at the cache's new size, with what is there; None before the first forward."""
        if not self.is_initialized:
            return None
        return self._resized(self.keys), self._resized(self.values)

    def _resized(self, old: torch.Tensor) -> torch.Tensor:
        new = self._allocate(old)
        rows, slots = min(old.shape[0], new.shape[0]), min(old.shape[2], new.shape[2]) - 1
        new[:rows, :, :slots] = old[:rows, :, :slots]
        return new

    def move_row(self, source: int, target: int, num_slots: int) -> None:
        """Copy a row's first slots over another row's."""
        if self.is_initialized:
            for store in (self.keys, self.values):
                store[target, :, :num_slots] = store[source, :, :num_slots]

    def erase_row(self, row: int) -> None:
        """Zero a row."""
        if self.is_initialized:
            for store in (self.keys, self.values):
                store[row].zero_()

    def read_row(self, row: int, num_slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of a row's first slots, each [heads, num_slots, head size]."""
        return self.keys[row, :, :num_slots].clone(), self.values[row, :, :num_slots].clone()

    def write_row(self, row: int, states: tuple[torch.Tensor, torch.Tensor], num_slots: int) -> None:
        """The inverse, for the first `num_slots` of what was read."""
        for store, kept in zip((self.keys, self.values), states, strict=True):
            store[row, :, :num_slots] = kept[:, :num_slots]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(slots that take part, offset of the first)."""
        return self.aim.num_slots, 0

    def get_seq_length(self) -> int:
        """Slots before the window; where rows differ the models must not ask, they get positions and mask."""
        return self.aim.num_slots

    def get_max_length(self) -> int:
        return self.aim.capacity


class CursorCache(Cache):
    """Keys and values of several rows that advance independently.

    Args:
        num_rows: rows to hold at first; grows as asked.
        capacity: slots of each row at first; grows as asked, in multiples of `GROWTH`.
        allocate: makes a zeroed tensor from shape, dtype and device.
    """

    def __init__(self, num_rows: int = 1, capacity: int = GROWTH, allocate: Allocate = zeros) -> None:
        aim = self.aim = _Aim(num_rows, capacity, allocate)
        # rows, and slots of each, that will never be needed more of, where that is known
        self.ceiling: tuple[int, int] | None = None
        super().__init__(layer_class_to_replicate=lambda: CursorLayer(aim))  # type: ignore[arg-type]

    @property
    def num_rows(self) -> int:
        """Rows there is room for."""
        return self.aim.num_rows

    @property
    def capacity(self) -> int:
        """Slots of each row."""
        return self.aim.capacity

    @property
    def allocate(self) -> Allocate:
        """What makes its tensors."""
        return self.aim.allocate

    @property
    def scratch_slot(self) -> int:
        """The slot that padding is written to and nothing attends to."""
        return self.capacity

    @property
    def bytes_per_slot(self) -> int:
        """Of one position in all layers; 0 before the first forward."""
        layers = [layer for layer in self.layers if isinstance(layer, CursorLayer) and layer.is_initialized]
        stores = [store for layer in layers for store in (layer.keys, layer.values)]
        return sum(store.shape[1] * store.shape[3] * store.dtype.itemsize for store in stores)

    def reserve(self, num_rows: int, num_slots: int) -> None:
        """Make room for this many rows and slots; what is cached stays, unless beyond the ceiling."""
        if num_rows <= self.num_rows and num_slots <= self.capacity:
            return
        rows, capacity = max(self.num_rows, num_rows), self.capacity
        if num_slots > capacity:
            # half as much again, so that a growing row copies a bounded number of times
            capacity = max(num_slots, capacity * 3 // 2)
        if self.ceiling is not None:
            # neither rows that were many nor one that was long make the other side's growth dearer
            most_rows, most_slots = self.ceiling
            rows, capacity = min(rows, max(num_rows, most_rows)), min(capacity, max(num_slots, most_slots))
        self._resize(rows, in_steps(capacity))

    def shrink(self, num_rows: int, num_slots: int) -> None:
        """Give memory back where this many rows and slots take at most a quarter of what there is."""
        rows, slots = max(num_rows, 1), in_steps(max(num_slots, 1))
        if 4 * rows * slots > self.num_rows * self.capacity:
            return
        try:
            self._resize(rows, slots)
        except Exception as error:  # old and new at once were too much: it stays as large as it is
            logger.warning("The cache could not give memory back: %s", error)

    def _resize(self, num_rows: int, capacity: int) -> None:
        before = self.num_rows, self.capacity
        self.aim.num_rows, self.aim.capacity = num_rows, capacity
        try:
            grown = [layer.resized() for layer in self.layers]  # type: ignore[union-attr]
        except Exception:
            # out of memory: what is cached stays as it was, for the rows that need no more
            self.aim.num_rows, self.aim.capacity = before
            raise
        for layer, tensors in zip(self.layers, grown, strict=True):
            if tensors is not None:
                layer.keys, layer.values = tensors  # type: ignore[union-attr]

    def point(
        self, rows: Sequence[int], slots: torch.Tensor, num_slots: int, first_slot: int | None = None
    ) -> None:
        """Say where the next forward's keys and values go.

        Args:
            rows: cache row of each window row.
            slots: [R, W], slot of each window position.
            num_slots: how many leading slots the forward may attend to.
            first_slot: of a lone row, where its window begins; so that it ends with `num_slots` if None.
        """
        aim = self.aim
        first, count, width = rows[0], len(rows), slots.shape[1]
        consecutive = list(rows) == list(range(first, first + count))
        aim.num_slots = num_slots
        if count == 1:
            # a lone row has no padding: its slots follow one another
            start = num_slots - width if first_slot is None else first_slot
            aim.rows, aim.slots = slice(first, first + 1), slice(start, start + width)
            return
        index = torch.tensor(list(rows), device=slots.device)
        aim.rows = slice(first, first + count) if consecutive else index
        aim.row_index, aim.slots = index[:, None], slots

    def move_row(self, source: int, target: int, num_slots: int) -> None:
        """Copy the first `num_slots` slots of one row over another."""
        for layer in self.layers:
            layer.move_row(source, target, num_slots)  # type: ignore[union-attr]

    def read_row(self, row: int, num_slots: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies of a row's first slots, for each layer its keys and values."""
        return [layer.read_row(row, num_slots) for layer in self.layers]  # type: ignore[union-attr]

    def write_row(
        self, row: int, states: Sequence[tuple[torch.Tensor, torch.Tensor]], num_slots: int
    ) -> None:
        """Write the first slots of what `read_row` returned. There must be room, and a forward before."""
        for layer, kept in zip(self.layers, states, strict=True):
            layer.write_row(row, kept, num_slots)  # type: ignore[union-attr]

    def erase_row(self, row: int) -> None:
        """Zero a row that may hold NaN: even where no mask lets it be seen, 0 × NaN is NaN."""
        for layer in self.layers:
            layer.erase_row(row)  # type: ignore[union-attr]


def in_steps(num_slots: int) -> int:
    """The capacity that this many slots are given."""
    return -(-num_slots // GROWTH) * GROWTH
