"""What one token a forward costs here, measured: the denominator of the page's speed-up."""

from __future__ import annotations

import statistics
import threading
from collections import deque

from mars_core import StepEvent

MIN_SAMPLES = 8
MAX_SAMPLES = 64


class OneTokenBaseline:
    """Seconds of the latest one-token forwards that answers on this page took (τ at its exact end).

    Only those: a figure taken apart, on an idle machine, would be compared with answers that share it with
    a browser drawing them. Until somebody has turned τ to its exact end there is no speed-up to show.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._lock = threading.Lock()

    def add(self, event: StepEvent) -> None:
        """Count a forward if it is one: no masks, no prompt in it, nobody else's rows in it."""
        one_token = event.one_token and event.window_length == 1
        if one_token and not event.prefill and event.num_rows == 1 and event.committed:
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
