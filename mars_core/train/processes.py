"""The processes that `accelerate launch` or torchrun started, before PyTorch knows of them."""

from __future__ import annotations

import os


def num_processes() -> int:
    """How many there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """True for the one that writes and talks."""
    return os.environ.get("RANK", "0") == "0"
