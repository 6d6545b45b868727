"""Where a model runs and in what precision."""

from __future__ import annotations

import logging
import math
import time

import torch
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from mars_core.errors import MarsError
from mars_core.grouped import use_grouped_attention
from mars_core.hugepages import to_huge_pages
from mars_core.packed import can_pack, pack_weights

logger = logging.getLogger(__name__)

DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp32": torch.float32,
    "float32": torch.float32,
    "fp16": torch.float16,
    "float16": torch.float16,
}
_SECONDS_TO_MEASURE = 0.8
_MOST_ROUNDS = 100
_PARTS = 8
_CLEARLY_FASTER = 1.15
_BYTES_TO_STREAM = 128 << 20


def pick_device(asked: str = "auto") -> tuple[torch.device, str]:
    """The device to run on and where it came from; ``auto`` is cuda, else mps, else cpu.

    Raises:
        MarsError: if `asked` is not a device, or is not in this machine.
    """
    if asked == "auto":
        device = torch.device(_best_device())
        return device, f"{device}: the best found here"
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise MarsError(f"device is {asked!r}; it must be {_choices()}.") from error
    if not _is_here(device):
        raise MarsError(f"device is {asked!r}, which is not in this machine. Here there is: {_choices()}.")
    return device, f"{device}: as asked"


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _is_here(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available() and not device.index
    return device.type == "cpu"


def _choices() -> str:
    choices = ["auto", "cpu"]
    if torch.backends.mps.is_available():
        choices.append("mps")
    choices += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return ", ".join(choices)


def pick_dtype(
    asked: str, device: torch.device, config: PretrainedConfig
) -> tuple[torch.dtype, str, tuple[str, ...]]:
    """The dtype to run in, one phrase that says why, and notices of fallbacks taken.

    Args:
        asked: ``auto`` or one of `DTYPES`. ``auto`` is bfloat16 on a GPU that has it (else float16),
            and on a CPU the faster of bfloat16 and float32, measured in under a second.
        device: what it must run on.
        config: the model's; its layer shapes are what is measured.

    Raises:
        MarsError: if `asked` is none of these.
    """
    if asked in DTYPES:
        return DTYPES[asked], f"{_name(DTYPES[asked])}: as asked", ()
    if asked != "auto":
        raise MarsError(f"dtype is {asked!r}; it must be one of auto, {', '.join(DTYPES)}.")
    if device.type == "cpu":
        dtype, why = faster_cpu_dtype(config)
        return dtype, why, ()
    if _has_bfloat16(device):
        return torch.bfloat16, "bfloat16: the default on a GPU", ()
    notice = f"{device} has no bfloat16, so the model runs in float16."
    logger.warning(notice)
    return torch.float16, f"float16: {device} has no bfloat16", (notice,)


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        # Emulated bfloat16, which old GPUs report as supported, is slower than float16.
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        torch.zeros(1, dtype=torch.bfloat16, device=device) + 1
    except (TypeError, RuntimeError):
        return False
    return True


def faster_cpu_dtype(config: PretrainedConfig) -> tuple[torch.dtype, str]:
    """The faster of bfloat16 and float32 here, for decode-like work with the model's MLP shapes.

    Rounds of the two alternate, and of each the quickest counts: what else the machine does only ever
    adds time. bfloat16, which needs half the memory, unless float32 is clearly faster, so that a busy
    machine chooses as an idle one does. Takes at most about a second.
    """
    weights = {dtype: _mlp_weights(config, dtype) for dtype in (torch.float32, torch.bfloat16)}
    quickest = dict.fromkeys(weights, math.inf)
    deadline = time.perf_counter() + _SECONDS_TO_MEASURE
    # short rounds, each on the next part of the weights: those of the round before may be in the cache
    num_weights = len(weights[torch.float32])
    length = math.ceil(num_weights / _PARTS)
    for done in range(_MOST_ROUNDS):
        # the first round also sets up threads and kernels, so it never stands alone
        if done > 1 and time.perf_counter() > deadline:
            break
        part = [(done * length + i) % num_weights for i in range(length)]
        for dtype, copies in weights.items():
            seconds = _pass_seconds([copies[i] for i in part], dtype)
            quickest[dtype] = min(quickest[dtype], seconds)
    ratio = quickest[torch.float32] / quickest[torch.bfloat16]
    if ratio > 1 / _CLEARLY_FASTER:
        return torch.bfloat16, f"bfloat16: {ratio:.1f}× as fast as float32 here, measured"
    return torch.float32, f"float32: {1 / ratio:.1f}× as fast as bfloat16 here, measured"


def _mlp_weights(config: PretrainedConfig, dtype: torch.dtype) -> list[torch.Tensor]:
    """Enough MLP matrices that they do not stay in the processor's cache, as a whole model's do not."""
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    inner = inner[0] if isinstance(inner, list) else inner
    copies = max(1, min(3 * config.num_hidden_layers, _BYTES_TO_STREAM // (4 * hidden * inner)))
    return [torch.full((inner, hidden), 0.01, dtype=dtype) for _ in range(copies)]


@torch.inference_mode()
def _pass_seconds(weights: list[torch.Tensor], dtype: torch.dtype) -> float:
    """Seconds for one row and for four rows through every weight."""
    inputs = [torch.ones(rows, weights[0].shape[1], dtype=dtype) for rows in (1, 4)]
    started = time.perf_counter()
    for rows in inputs:
        for weight in weights:
            functional.linear(rows, weight)
    return time.perf_counter() - started


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def place(model: PreTrainedModel, device: torch.device, packed: bool = False) -> tuple[PreTrainedModel, str]:
    """`model`, moved to `device`, and one phrase that says how its weights lie there.

    On a CPU: packed if asked and possible, with attention that does not copy the cache; what is left goes to
    huge pages where there are any.
    """
    if device.type != "cpu":
        return model.to(device), "as loaded"  # type: ignore[arg-type]
    layout = "row-major, as loaded"
    if packed and can_pack(model.dtype):
        # before the move to one mapping of huge pages, which could not be freed piece by piece
        layout = f"packed for this processor ({pack_weights(model)} layers)"
    if packed and use_grouped_attention(model):
        layout += ", attention by groups"
    moved = to_huge_pages(model)
    logger.info("weights %s; %d MB on huge pages", layout, moved >> 20)
    return model, layout


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read next tells the truth."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
