"""What a forward costs on this device by how many positions it is fed: measured, to weigh drafts by."""

from __future__ import annotations

import bisect
import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .acceptance import predict
from .default_model import cache_dir
from .devices import synchronize
from .forward import Forward
from .loaded import LoadedModel
from .window import RowWindow

logger = logging.getLogger(__name__)

LENGTHS = (1, 2, 4, 8, 16, 32, 64)
LONG = (128, 256)  # where many rows share a forward, and one of so many positions takes no time
CONTEXTS = (32, 768)
_ROUNDS = 5
_MOST_SECONDS = 6.0  # then, on a busy machine or a slow one, what was measured so far must do
_FORMAT = 1


@dataclass(frozen=True)
class ForwardCosts:
    """Seconds of a forward for one row, by window length and by how many positions are cached.

    Attributes:
        lengths: window lengths, ascending.
        contexts: numbers of cached positions, ascending; one at least.
        seconds: for each context, for each length.
    """

    lengths: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def of(self, length: float, num_cached: int = 0) -> float:
        """Seconds, by straight lines between what was measured and on past its ends.

        A forward for several rows is asked for as one of all their positions: what decides is how many
        positions the weights are multiplied with.
        """
        return self.line(num_cached)(length)

    def line(self, num_cached: int) -> Callable[[float], float]:
        """Seconds by length at one number of cached positions, for asking often."""
        # no context below the smallest one measured is cheaper by more than noise
        context = max(num_cached, self.contexts[0])
        columns = (_line(self.contexts, column, context) for column in zip(*self.seconds, strict=True))
        # beyond the contexts measured the lines of two lengths may cross
        return partial(_line, self.lengths, tuple(accumulate(columns, max)))

    def __str__(self) -> str:
        """For people: milliseconds at the smallest context."""
        pairs = zip(self.lengths, self.seconds[0], strict=True)
        return ", ".join(f"{length}: {1000 * seconds:.1f} ms" for length, seconds in pairs)


def _line(places: Sequence[int], values: Sequence[float], x: float) -> float:
    if len(places) == 1:
        return values[0]
    right = min(max(bisect.bisect_left(places, x), 1), len(places) - 1)
    (x0, x1), (y0, y1) = places[right - 1 : right + 1], values[right - 1 : right + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@torch.inference_mode()
def measure_costs(loaded: LoadedModel) -> ForwardCosts:
    """Measure, in a few seconds on a small model; rounds take turns through all lengths, and of each the
    quickest counts, since what else the machine does only ever adds time.

    Where even one round takes too long, or there is no memory for longer windows, shorter ones must do; the
    cost of longer ones is estimated from theirs.
    """
    lengths: tuple[int, ...] = LENGTHS + LONG if loaded.device.type == "cuda" else LENGTHS
    contexts = tuple(c for c in CONTEXTS if c + lengths[-1] <= loaded.context_length) or (1,)
    lengths = tuple(n for n in lengths if contexts[0] + n <= loaded.context_length) or (1,)
    forward, token = Forward(loaded), _harmless_token(loaded)
    forward.cache.reserve(1, contexts[-1] + lengths[-1])
    _seconds(forward, token, contexts[0], 1)  # sets up kernels and threads, and the cache's memory
    quickest: dict[int, list[float]] = {}  # by length, for each context
    start = time.perf_counter()
    places = [(number, length) for number in range(_ROUNDS) for length in lengths]
    for number, length in tqdm(places, desc="measuring forwards", leave=False, delay=2):
        if (number or length not in lengths[:2]) and time.perf_counter() - start > _MOST_SECONDS:
            break
        try:
            taken = [_seconds(forward, token, context, length) for context in contexts]
        except torch.OutOfMemoryError:
            if length in lengths[:2]:
                raise
            break
        quickest[length] = list(map(min, taken, quickest.get(length, taken)))
    lengths = tuple(length for length in lengths if length in quickest)
    return ForwardCosts(
        lengths, contexts, _rising(list(zip(*(quickest[length] for length in lengths), strict=True)))
    )


def _harmless_token(loaded: LoadedModel) -> int:
    suppressed = set(loaded.suppressed_token_ids)
    return next((token for token in range(loaded.num_embeddings) if token not in suppressed), 0)


def _seconds(forward: Forward, token: int, context: int, length: int) -> float:
    loaded = forward.loaded
    window = RowWindow([token], context, [token] * (length - 1), [0] * length)
    suppressed = torch.tensor(loaded.suppressed_token_ids, dtype=torch.long, device=loaded.device)
    start = time.perf_counter()
    predict(forward.logits([0], [window]), [None], suppressed, 3)
    synchronize(loaded.device)
    return time.perf_counter() - start


def _rising(seconds: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """No longer window is cheaper than a shorter one, and none with more cached, whatever noise says: a
    line on past what was measured could fall below nothing."""
    rows: list[tuple[float, ...]] = []
    for row in seconds:
        rising = accumulate(row, max)
        rows.append(tuple(map(max, rising, rows[-1])) if rows else tuple(rising))
    return tuple(rows)


def known_costs(loaded: LoadedModel) -> ForwardCosts:
    """What was measured before for such a model on this device; measured and noted down if nothing was.

    So the same machine makes the same choices in every run. Deleting the file has it measured anew. What was
    cut short is not noted: the machine was busy then, or the next start takes as long again.
    """
    try:
        path = cache_dir() / "costs" / f"{_key(loaded)}.json"
    except RuntimeError as error:  # no home directory, which a container may well lack
        logger.warning("The measured cost of forwards cannot be noted: %s Set MARS_CACHE_DIR.", error)
        return measure_costs(loaded)
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        logger.warning("%s cannot be read (%s); forwards are measured anew.", path, error)
    start = time.perf_counter()
    costs = measure_costs(loaded)
    if time.perf_counter() - start > _MOST_SECONDS:
        logger.info("cost of a forward by window length: %s; too slowly measured to be noted", costs)
        return costs
    try:
        _write(path, json.dumps({"format": _FORMAT, **asdict(costs)}))
        logger.info("cost of a forward by window length: %s; noted in %s", costs, path)
    except OSError as error:
        logger.warning("The measured cost of forwards cannot be noted in %s: %s", path, error)
    return costs


def _write(path: Path, text: str) -> None:
    """Whole or not at all: another process may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(f".{os.getpid()}")
    try:
        whole.write_text(text, "utf-8")
        os.replace(whole, path)
    finally:
        whole.unlink(missing_ok=True)


def _read(path: Path) -> ForwardCosts:
    raw = json.loads(path.read_text("utf-8"))
    if raw["format"] != _FORMAT:
        raise ValueError(f"format {raw['format']!r}")
    costs = ForwardCosts(
        tuple(int(n) for n in raw["lengths"]),
        tuple(int(n) for n in raw["contexts"]),
        tuple(tuple(float(s) for s in row) for row in raw["seconds"]),
    )
    if not _sound(costs):
        raise ValueError("it is damaged")
    return costs


def _sound(costs: ForwardCosts) -> bool:
    """True where every length and context has its time, and each grows as it should."""
    lengths, contexts, seconds = costs.lengths, costs.contexts, costs.seconds
    if not lengths or not contexts or len(seconds) != len(contexts):
        return False
    if any(len(row) != len(lengths) for row in seconds):
        return False
    places_grow = all(a < b for places in (lengths, contexts) for a, b in pairwise((0, *places)))
    return places_grow and all(0 < s < 1e4 for row in seconds for s in row) and _rising(seconds) == seconds


def _key(loaded: LoadedModel) -> str:
    """A name for everything that decides what a forward costs: shapes, precision, device, PyTorch."""
    on_gpu = loaded.device.type == "cuda"
    config = loaded.model.config.get_text_config().to_dict()
    config.pop("_name_or_path", None)  # where the files lie decides nothing
    facts: dict[str, Any] = {
        "config": config,
        "device": torch.cuda.get_device_name(loaded.device) if on_gpu else platform.processor(),
        "machine": platform.node(),
        "dtype": str(loaded.dtype),
        "attention": loaded.origins.get("attention", ""),
        "layout": loaded.origins.get("weights_layout", ""),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
