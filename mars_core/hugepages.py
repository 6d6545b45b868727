"""Weights on huge pages, and a malloc that keeps big blocks: less time lost to page faults on Linux CPUs.

A decode forward streams every weight from memory, so with 4 KiB pages address translation costs
as much as arithmetic; and glibc gives each big temporary back to the kernel, which zeroes it anew at
every forward.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import sys
from itertools import accumulate
from pathlib import Path

import torch
from torch import nn

logger = logging.getLogger(__name__)

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_HUGE_PAGE = 2 << 20
_ALIGNMENT = 64
# Numbers of <malloc.h>; mallopt takes C ints.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_KEEP_BYTES = 1 << 30
_PAD_BYTES = 64 << 20


def available() -> bool:
    """True where the kernel gives huge pages to whoever asks with madvise."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    try:
        return "[never]" not in _ENABLED.read_text(encoding="ascii")
    except OSError:
        return False


def empty(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor on huge pages; `torch.empty` where there are none or it is small.

    The memory is freed with the last tensor that views it.
    """
    count = torch.Size(shape).numel()
    region = _map(count * dtype.itemsize)
    if region is None:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(region[0], dtype=dtype, count=count, offset=region[1]).view(shape)


def _map(size: int) -> tuple[mmap.mmap, int] | None:
    """A mapping and the offset in it from which `size` bytes lie on huge pages; None if that cannot be."""
    if size < _HUGE_PAGE or not available():
        return None
    try:
        # One page more, so that an aligned start can be chosen: mmap aligns to small pages only.
        region = mmap.mmap(-1, size + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        region.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        logger.info("No huge pages (%s); using ordinary memory", error)
        return None
    address = torch.frombuffer(region, dtype=torch.uint8).data_ptr()
    return region, -address % _HUGE_PAGE


class HugeZeros:
    """Zeroed tensors carved out of large huge-page mappings, for a cache that makes many small ones.

    A mapping is given back when the last tensor in it is gone. Elsewhere than on a CPU with huge pages it
    makes ordinary zeros.
    """

    def __init__(self, block_bytes: int = 2**25) -> None:
        self.block_bytes = block_bytes
        self._block: torch.Tensor | None = None
        self._used = 0

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if device.type != "cpu" or not available():
            return torch.zeros(shape, dtype=dtype, device=device)
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._block is None or self._used + num_bytes > self._block.numel():
            # a new block: no part of one is ever handed out twice
            self._block, self._used = empty((max(num_bytes, self.block_bytes),), torch.uint8), 0
        piece = self._block[self._used : self._used + num_bytes].view(dtype).view(shape)
        self._used += -(-num_bytes // 64) * 64
        return piece.zero_()


def to_huge_pages(model: nn.Module) -> int:
    """Move the CPU parameters of `model` to huge pages, tied ones together; returns the bytes moved.

    They lie in one mapping, since most matrices of a small model are smaller than one huge page, but
    each keeps a storage of its own, as saving the model expects.
    """
    # `parameters()` lists a tied parameter once, and assigning `data` keeps the object, so ties hold.
    parameters = [p for p in model.parameters() if p.device.type == "cpu" and p.numel()]
    ends = list(accumulate(-(-p.numel() * p.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for p in parameters))
    mapped = _map(ends[-1]) if ends else None
    if mapped is None:
        return 0
    region, offset = mapped
    for parameter, start in zip(parameters, [0, *ends], strict=False):
        moved = torch.frombuffer(
            region, dtype=parameter.dtype, count=parameter.numel(), offset=offset + start
        ).view(parameter.shape)
        parameter.data = moved.copy_(parameter.data)
    return ends[-1]


def tame_malloc() -> bool:
    """Make glibc keep the memory of big temporaries instead of giving it back after each forward.

    Changes the whole process, so the program's entry calls it, never an import. Returns whether
    it was done: False where the C library is not glibc.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _KEEP_BYTES), (_M_TOP_PAD, _PAD_BYTES))
    return all([mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings])
