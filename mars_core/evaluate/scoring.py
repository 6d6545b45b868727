"""How likely the model holds given tokens: plain forwards, no cache, no masks.

The right shift as everywhere: the logits at position i say how likely the token at i + 1 is. The softmax is
over all ids, those that decoding never commits too: what is scored is the model, so that two models compare
which rule out different ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from tqdm import tqdm

from ..errors import MarsError
from ..loaded import LoadedModel

TOKENS_PER_BATCH = 2048  # bounds the logits, [tokens, vocabulary]
_POSITIONS_AT_ONCE = 256  # of a row, in fp32


@dataclass(frozen=True)
class Scored:
    """A text, and which of its tokens are asked about.

    Attributes:
        ids: [L] token ids.
        mask: [L] True where the token's likelihood is asked for; never at 0, which nothing predicts.
    """

    ids: tuple[int, ...]
    mask: tuple[bool, ...]

    @property
    def first(self) -> int:
        """The first position asked about."""
        return self.mask.index(True)


@dataclass(frozen=True)
class Scores:
    """Of the tokens asked about, in order.

    Attributes:
        log_probabilities: in nats, given all that stands before.
        greedy: True where the token is the likeliest of those that decoding may commit.
    """

    log_probabilities: tuple[float, ...]
    greedy: tuple[bool, ...]


def behind(prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> Scored:
    """All of a continuation is asked about."""
    mask = (False,) * len(prompt_ids) + (True,) * len(continuation_ids)
    return Scored((*prompt_ids, *continuation_ids), mask)


@torch.inference_mode()
def score(
    loaded: LoadedModel, texts: Sequence[Scored], tokens_per_batch: int = TOKENS_PER_BATCH
) -> list[Scores]:
    """Score each text; texts of about one length share a forward, of at most so many positions.

    Raises:
        MarsError: nothing is asked about in a text, or its first token is, or the context does not hold it.
        ArithmeticError: the model returned NaN.
    """
    for number, text in enumerate(texts):
        _check(text, f"text {number + 1}", loaded)
    scores: dict[int, Scores] = {}
    with tqdm(total=len(texts), desc="Scoring", unit="text", delay=2, dynamic_ncols=True) as bar:
        for group in _groups(texts, tokens_per_batch):
            scores.update(zip(group, _score_group(loaded, [texts[i] for i in group]), strict=True))
            bar.update(len(group))
    return [scores[number] for number in range(len(texts))]


def _check(text: Scored, name: str, loaded: LoadedModel) -> None:
    if not any(text.mask) or text.mask[0] or len(text.mask) != len(text.ids):
        raise MarsError(f"{name}: ask about one token at least, and never about the first.")
    # the last token is asked about and need not be fed
    if len(text.ids) - 1 > loaded.context_length:
        raise MarsError(
            f"{name} has {len(text.ids)} tokens, and the model's context holds {loaded.context_length}. "
            "Shorten it."
        )


def _groups(texts: Sequence[Scored], tokens_per_batch: int) -> Iterator[list[int]]:
    """Longest first, so that what is too much for the memory is so at once."""
    group: list[int] = []
    for number in sorted(range(len(texts)), key=lambda i: -len(texts[i].ids)):
        if group and (len(group) + 1) * len(texts[group[0]].ids) > tokens_per_batch:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _score_group(loaded: LoadedModel, texts: Sequence[Scored]) -> list[Scores]:
    width = max(len(text.ids) for text in texts) - 1
    first = min(text.first for text in texts)
    # what stands behind a row's end is seen by nothing before it, so it needs no mask
    rows = [list(text.ids[:width]) + [0] * (width - len(text.ids)) for text in texts]
    ids = torch.tensor(rows, device=loaded.device)
    logits = loaded.model(input_ids=ids, use_cache=False, logits_to_keep=width - first + 1).logits
    suppressed = torch.tensor(loaded.suppressed_token_ids, dtype=torch.long, device=loaded.device)
    figures = [_of_row(row, text, first, suppressed) for row, text in zip(logits, texts, strict=True)]
    packed = torch.cat(figures, -1).tolist()  # one transfer for all rows
    if any(map(isnan, packed[0])):
        raise ArithmeticError("The model returned values that are not numbers (NaN).")
    scores, done = [], 0
    for figure in figures:
        end = done + figure.shape[1]
        scores.append(Scores(tuple(packed[0][done:end]), tuple(map(bool, packed[1][done:end]))))
        done = end
    return scores


def _of_row(logits: torch.Tensor, text: Scored, first: int, suppressed: torch.Tensor) -> torch.Tensor:
    """[2, asked about]: log-probability, and 1 where greedy; logits [K, V] start at position `first` - 1."""
    asked = [position for position, wanted in enumerate(text.mask) if wanted]
    places = torch.tensor([position - first for position in asked], device=logits.device)
    targets = torch.tensor([text.ids[position] for position in asked], device=logits.device)
    parts = []
    for place, target in zip(
        places.split(_POSITIONS_AT_ONCE), targets.split(_POSITIONS_AT_ONCE), strict=True
    ):
        chosen = logits[place].float()
        likelihood = chosen.gather(1, target[:, None])[:, 0] - chosen.logsumexp(-1)
        likeliest = chosen.index_fill_(-1, suppressed, -torch.inf).argmax(-1)
        parts.append(torch.stack([likelihood, (likeliest == target).float()]))
    return torch.cat(parts, -1)
