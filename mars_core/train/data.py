"""Conversations -> examples to train on and examples held out, with a count of all that was left out.

Everything is a function of the files and the seed. Training and held-out examples never share a first
question.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..errors import MarsError
from .examples import Example
from .reading import BadLines, Conversation, Findings, read_conversations
from .rendering import Encoded, encode

Overlong = Literal["boundary", "answer", "drop"]
OVERLONG: tuple[Overlong, ...] = get_args(Overlong)


@dataclass(frozen=True)
class DataSettings:
    """What is read and how.

    Attributes:
        sources: files of JSON lines or Hub data sets to train on.
        held_out_sources: likewise, to evaluate on; questions in them are taken out of the training data.
        held_out: with no `held_out_sources`, at least this many examples are set aside.
        max_length: most tokens of an example.
        overlong: a longer one is cut behind its last answer that fits (`boundary`; dropped if there is
            none), within an answer (`answer`; no end of turn is learned there), or dropped (`drop`).
        bad_lines: `skip` or `refuse`.
        seed: of the choice of held-out examples.
    """

    sources: tuple[str, ...]
    held_out_sources: tuple[str, ...] = ()
    held_out: int = 64
    max_length: int = 512
    overlong: Overlong = "boundary"
    bad_lines: BadLines = "skip"
    seed: int = 0


@dataclass(frozen=True)
class TrainingData:
    """Examples, and a count of what was read and left out, by what it is."""

    train: list[Example]
    held_out: list[Example]
    counts: dict[str, int]


def load_data(
    settings: DataSettings, tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int]
) -> TrainingData:
    """Read, encode, cut and split.

    Raises:
        MarsError: a source that cannot be read, a bad line that is to be refused, or nothing left to
            train on.
    """
    findings = Findings(settings.bad_lines)
    train = _unique(read_conversations(settings.sources, findings), findings.counts)
    if settings.held_out_sources:
        held_out = _unique(read_conversations(settings.held_out_sources, findings), findings.counts)
        train = _without_questions_of(train, held_out, findings.counts)
    else:
        train, held_out = split(train, settings.held_out, settings.seed)
    examples = [_examples(part, settings, tokenizer, stop_ids, findings) for part in (train, held_out)]
    if not examples[0]:
        raise MarsError(
            f"Nothing to train on is left of {', '.join(settings.sources)}: {_listed(findings.counts)}. Give "
            "more data, a smaller held_out or a greater max_length."
        )
    labels = [sum(sum(example.loss_mask) for example in part) for part in examples]
    counts = {
        "training examples": len(examples[0]),
        "training label tokens": labels[0],
        "held-out examples": len(examples[1]),
        "held-out label tokens": labels[1],
        **{what: number for what, number in findings.counts.items() if number},
    }
    return TrainingData(examples[0], examples[1], counts)


def split(
    conversations: list[Conversation], held_out: int, seed: int
) -> tuple[list[Conversation], list[Conversation]]:
    """(training, held-out) conversations; at least `held_out` of them are held out, if there are so many.

    Those that share their first question go to the same side. Which are held out depends on questions and
    seed alone, not on the order or on what else is read, so that adding data moves few.
    """
    by_question: dict[str, list[Conversation]] = {}
    for conversation in conversations:
        by_question.setdefault(question_key(conversation), []).append(conversation)
    chosen: set[str] = set()
    num_chosen = 0
    for key in sorted(by_question, key=lambda key: _digest(f"{seed} {key}")):
        if num_chosen >= held_out:
            break
        chosen.add(key)
        num_chosen += len(by_question[key])
    sides: tuple[list[Conversation], list[Conversation]] = ([], [])
    for conversation in conversations:
        sides[question_key(conversation) in chosen].append(conversation)
    return sides


def question_key(conversation: Conversation) -> str:
    """The first question, but for case and white space."""
    return " ".join(conversation.prompt.split()).casefold()


def cut(encoded: Encoded, max_length: int, overlong: Overlong) -> Encoded | None:
    """`encoded` in at most `max_length` tokens; None where nothing to learn would be left."""
    if len(encoded.ids) <= max_length:
        return encoded
    if overlong == "drop":
        return None
    ends = [end for end in encoded.ends if end <= max_length]
    length = max_length if overlong == "answer" else max(ends, default=0)
    mask = encoded.mask[:length]
    return Encoded(encoded.ids[:length], mask, ends, encoded.num_unlearned) if any(mask) else None


def _unique(conversations: Iterable[Conversation], counts: Counter[str]) -> list[Conversation]:
    seen: set[bytes] = set()
    kept = []
    for conversation in conversations:
        key = _digest(repr((conversation.messages, conversation.finished)))
        if key in seen:
            counts["duplicates"] += 1
        else:
            seen.add(key)
            kept.append(conversation)
    return kept


def _without_questions_of(
    train: list[Conversation], held_out: list[Conversation], counts: Counter[str]
) -> list[Conversation]:
    questions = {question_key(conversation) for conversation in held_out}
    kept = [conversation for conversation in train if question_key(conversation) not in questions]
    counts["held-out questions in the training data"] += len(train) - len(kept)
    return kept


def _examples(
    conversations: list[Conversation],
    settings: DataSettings,
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: frozenset[int],
    findings: Findings,
) -> list[Example]:
    made = (
        _example(conversation, settings, tokenizer, stop_ids, findings)
        for conversation in tqdm(conversations, "Encoding", delay=2, leave=False)
    )
    return [example for example in made if example is not None]


def _example(
    conversation: Conversation,
    settings: DataSettings,
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: frozenset[int],
    findings: Findings,
) -> Example | None:
    try:
        whole = encode(tokenizer, conversation, stop_ids)
    except MarsError as error:
        findings.report_bad(conversation.name, str(error))
        return None
    findings.counts["answers that the template rewrites"] += whole.num_unlearned
    encoded = cut(whole, settings.max_length, settings.overlong)
    if encoded is None:
        findings.counts["too long, dropped"] += 1
        return None
    findings.counts["too long, cut"] += encoded is not whole
    return Example(tuple(encoded.ids), tuple(encoded.mask), conversation.name)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "it was empty"


def prompt_ids(example: Example) -> tuple[int, ...]:
    """Ids of the prompt of an example's first answer."""
    return example.input_ids[: example.loss_mask.index(True)]
