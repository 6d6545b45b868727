"""What a forward costs on this device by how many positions it is fed: measured, to weigh drafts by."""

from __future__ import annotations

import bisect
import hashlib
import json
import logging
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
CONTEXTS = (32, 768)
_ROUNDS = 5
_MOST_SECONDS = 6.0  # after the second round: on a busy machine, or a slow one, those must do
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
        at_context = [_line(self.lengths, row, length) for row in self.seconds]
        # no context below the smallest one measured is cheaper by more than noise
        return _line(self.contexts, at_context, max(num_cached, self.contexts[0]))

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
    quickest counts, since what else the machine does only ever adds time."""
    contexts = tuple(c for c in CONTEXTS if c + LENGTHS[-1] <= loaded.context_length) or (1,)
    lengths = tuple(n for n in LENGTHS if contexts[0] + n <= loaded.context_length)
    forward = Forward(loaded)
    forward.cache.reserve(1, contexts[-1] + lengths[-1])
    quickest = {(context, length): math.inf for context in contexts for length in lengths}
    # the first round sets up kernels and threads, and the cache's memory
    start = time.perf_counter()
    for done in tqdm(range(_ROUNDS), desc="measuring forwards", leave=False, delay=2):
        if done >= 2 and time.perf_counter() - start > _MOST_SECONDS:
            break
        for context, length in quickest:
            quickest[context, length] = min(quickest[context, length], _seconds(forward, context, length))
    seconds = tuple(tuple(_rising([quickest[c, n] for n in lengths])) for c in contexts)
    return ForwardCosts(lengths, contexts, seconds)


def _seconds(forward: Forward, context: int, length: int) -> float:
    loaded = forward.loaded
    token = min(set(range(loaded.num_embeddings)) - set(loaded.suppressed_token_ids), default=0)
    window = RowWindow([token], context, [token] * (length - 1), [0] * length)
    suppressed = torch.tensor(loaded.suppressed_token_ids, dtype=torch.long, device=loaded.device)
    start = time.perf_counter()
    predict(forward.logits([0], [window]), [None], suppressed, 3)
    synchronize(loaded.device)
    return time.perf_counter() - start


def _rising(values: Sequence[float]) -> list[float]:
    """No longer window is cheaper than a shorter one, whatever noise says."""
    highest, rising = 0.0, []
    for value in values:
        highest = max(highest, value)
        rising.append(highest)
    return rising


def known_costs(loaded: LoadedModel) -> ForwardCosts:
    """What was measured before for such a model on this device; measured and noted down if nothing was.

    So the same machine makes the same choices in every run. Deleting the file has it measured anew.
    """
    path = cache_dir() / "costs" / f"{_key(loaded)}.json"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s); forwards are measured anew.", path, error)
    costs = measure_costs(loaded)
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
    whole.write_text(text, "utf-8")
    os.replace(whole, path)


def _read(path: Path) -> ForwardCosts:
    raw = json.loads(path.read_text("utf-8"))
    if raw["format"] != _FORMAT:
        raise ValueError(f"format {raw['format']!r}")
    costs = ForwardCosts(
        tuple(int(n) for n in raw["lengths"]),
        tuple(int(n) for n in raw["contexts"]),
        tuple(tuple(float(s) for s in row) for row in raw["seconds"]),
    )
    sound = all(len(row) == len(costs.lengths) and all(0 < s < 1e4 for s in row) for row in costs.seconds)
    if not sound or not costs.lengths or len(costs.seconds) != len(costs.contexts):
        raise ValueError("it is damaged")
    return costs


def _key(loaded: LoadedModel) -> str:
    """A name for everything that decides what a forward costs: shapes, precision, device, PyTorch."""
    on_gpu = loaded.device.type == "cuda"
    facts: dict[str, Any] = {
        "config": loaded.model.config.get_text_config().to_dict(),
        "device": torch.cuda.get_device_name(loaded.device) if on_gpu else platform.processor(),
        "machine": platform.node(),
        "dtype": str(loaded.dtype),
        "layout": loaded.origins.get("weights_layout", ""),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
