"""What one method did with one group of prompts: all figures are computed from this."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .places import Places


class RunnerUp(NamedTuple):
    """The second likeliest token at a position of one-token decoding, and the logit it is behind by."""

    id: int
    gap: float


@dataclass(frozen=True)
class Outcome:
    """One call that answers a group of prompts.

    The prefill ends at the moment when every row of the group has its first token. What rows that were ready
    earlier have committed until then belongs to the prefill, tokens and time both, whatever the method.

    Attributes:
        tokens: each row's committed tokens, the end-of-sequence token included and nothing behind it.
        wall_s: seconds of the whole call.
        prefill_s: seconds from the call to the end of the prefill.
        num_prefill_tokens: tokens that all rows together had then.
        num_decode_forwards: forwards after it, each for any number of rows; None where nobody can tell.
        num_row_forwards: forwards that a row took part in until its end, the prefill as one, summed over
            rows; None where nobody can tell.
        model_s: seconds after the prefill spent inside the model; None where they cannot be told.
        places: how predictions fared by their place in the window (ours only).
        runners_up: for each row and token (ours, one token a forward, only).
    """

    tokens: tuple[tuple[int, ...], ...]
    wall_s: float
    prefill_s: float
    num_prefill_tokens: int
    num_decode_forwards: int | None
    num_row_forwards: int | None
    model_s: float | None = None
    places: Places = field(default_factory=Places)
    runners_up: tuple[tuple[RunnerUp, ...], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Committed tokens of all rows."""
        return sum(len(row) for row in self.tokens)

    @property
    def decode_s(self) -> float:
        """Seconds from the end of the prefill to the end of the call."""
        return self.wall_s - self.prefill_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens committed after the prefill over the seconds after it; None where there were none."""
        num_decoded = self.num_tokens - self.num_prefill_tokens
        return num_decoded / self.decode_s if num_decoded > 0 and self.decode_s > 0 else None

    @property
    def whole_tokens_per_s(self) -> float:
        """All tokens over the seconds of the whole call."""
        return self.num_tokens / self.wall_s

    @property
    def s_per_forward(self) -> float | None:
        """Seconds of decoding a forward, all of the work between forwards included."""
        return self.decode_s / self.num_decode_forwards if self.num_decode_forwards else None

    @property
    def outside_model(self) -> float | None:
        """Share of the decoding time that was not spent inside the model."""
        if self.model_s is None or self.decode_s <= 0:
            return None
        return 1 - self.model_s / self.decode_s
