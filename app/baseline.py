"""What one token a forward costs here, measured: the denominator of the page's speed-up."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque

from mars_core import DecodeSettings, Engine, Request, StepEvent

MIN_SAMPLES = 8
WARM_UP = 2  # the first forwards after a load pay for things that later ones do not


class OneTokenBaseline:
    """Seconds of the one-token forwards of this process: those at start, and any a visitor's run makes."""

    def __init__(self, max_samples: int = 256) -> None:
        self._seconds: deque[float] = deque(maxlen=max_samples)
        self._lock = threading.Lock()

    def add(self, event: StepEvent) -> None:
        """Count a forward if it is one: no masks, no prompt in it, nobody else's rows in it."""
        if event.one_token and not event.prefill and event.num_rows == 1 and event.committed:
            with self._lock:
                self._seconds.append(event.seconds)

    def seconds_per_token(self) -> float | None:
        """The median; None until there are enough to trust."""
        with self._lock:
            return statistics.median(self._seconds) if len(self._seconds) >= MIN_SAMPLES else None

    def speedup(self, tokens_per_s: float) -> float | None:
        """Decode speed over one-token speed; None while either is unknown."""
        seconds = self.seconds_per_token()
        return tokens_per_s * seconds if seconds and tokens_per_s else None

    def measure(self, engine: Engine, budget_s: float = 10.0) -> None:
        """Decode a few tokens one at a time, for at most about `budget_s` seconds."""
        settings = DecodeSettings(mode="ar", max_new_tokens=16 + WARM_UP, ignore_eos=True)
        prompt_ids = [token for token in range(64, 96) if token < engine.num_embeddings]
        deadline = time.perf_counter() + budget_s
        for event in engine.stream(Request(prompt_ids, settings)):
            if event.index > WARM_UP:
                self.add(event)
            if time.perf_counter() > deadline:
                return
