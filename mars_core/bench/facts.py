"""Where and when figures were taken."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import transformers

from ..loaded import LoadedModel


def facts_of(loaded: LoadedModel) -> dict[str, Any]:
    """Model, machine, versions, date and command, as plain values."""
    on_gpu = loaded.device.type == "cuda"
    return {
        "model": loaded.name,
        "block_size": loaded.block_size,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "weights_layout": loaded.origins.get("weights_layout"),
        "attention": loaded.origins.get("attention"),
        "device": str(loaded.device),
        "hardware": torch.cuda.get_device_name(loaded.device) if on_gpu else cpu_name(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": _num_cores(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "mars_core", *sys.argv[1:]]),
    }


def cpu_name() -> str:
    """The processor's model name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _num_cores() -> int | None:
    """Logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
