"""Traces as files: read with care, written small. The format is described in docs/trace.md."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import MarsError
from .events import StepEvent, Trace
from .settings import DecodeSettings

if TYPE_CHECKING:  # a trace is read where there is no model, and perhaps no PyTorch
    from .loaded import LoadedModel

MAX_BYTES = 16 << 20
# Objects and lists in a file, bounded before it is parsed: a few bytes of JSON take hundreds in memory. An
# answer of 8,000 tokens has about 100,000.
MAX_PARTS = 500_000
DECIMALS = 6  # microseconds; probabilities and entropies far beyond what is shown
_MAX_DIGITS = 20


def read_trace(source: str | bytes) -> Trace:
    """A trace from the text, or the bytes, of a file. Nothing in it is ever executed.

    Raises:
        MarsError: too large, no JSON, no trace, another version, or damaged; never anything else.
    """
    text = _decoded(source)
    if text.count("{") + text.count("[") > MAX_PARTS:
        raise MarsError(f"This file has more than {MAX_PARTS} parts; no trace that this program reads has.")
    try:
        data = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_whole_number,
            object_pairs_hook=_object,
        )
    except RecursionError as error:
        raise MarsError("This file is nested too deeply to be a trace.") from error
    except ValueError as error:
        raise MarsError(f"This file is no valid JSON: {error}.") from error
    return Trace.from_json(data)


def _decoded(source: str | bytes) -> str:
    # a character takes a byte or more: a long text need not be encoded to know that it is too long
    size = len(source)
    if size <= MAX_BYTES and isinstance(source, str):
        size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise MarsError(f"This file is larger than {MAX_BYTES >> 20} MB, the most that is read of a trace.")
    if isinstance(source, str):
        return source.removeprefix("\ufeff")
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MarsError("This file is no UTF-8 text, so it is not a trace.") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _whole_number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object names a field twice")
    return fields


def trace_text(trace: Trace) -> str:
    """The trace as JSON without white space, figures rounded to `DECIMALS`."""
    return json.dumps(_rounded(trace.to_json()), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def load_trace(path: Path) -> Trace:
    """A trace from a file. Raises `MarsError` where it cannot be read or is no trace."""
    try:
        with path.open("rb") as file:
            return read_trace(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise MarsError(f"{path} cannot be read ({error.strerror}).") from error


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace to a file. Raises `MarsError` where that cannot be done."""
    try:
        path.write_text(trace_text(trace) + "\n", "utf-8")
    except OSError as error:
        raise MarsError(f"{path} cannot be written ({error.strerror}). Choose another place.") from error


def model_facts(loaded: LoadedModel) -> dict[str, Any]:
    """What a trace says about where it was recorded."""
    return {
        "name": loaded.name,
        "device": str(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "attention": str(loaded.model.config.get_text_config()._attn_implementation),
        "block_size": loaded.block_size,
        "mask_token_id": loaded.mask_token_id,
        "mars_tuned": loaded.mars_tuned,
        "clock": "the forwards' own time, device synchronised, prefill apart",
    }


def record(
    loaded: LoadedModel,
    prompt: Iterable[dict[str, str]],
    prompt_ids: Sequence[int],
    settings: DecodeSettings,
    events: Iterable[StepEvent],
) -> Trace:
    """The trace of a run that just ended."""
    facts = dataclasses.asdict(settings)
    return Trace(tuple(prompt), tuple(prompt_ids), facts, model_facts(loaded), tuple(events))
