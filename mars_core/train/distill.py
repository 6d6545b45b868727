"""Self-distillation: the base model answers prompts, so that training on the answers keeps its ways.

The output is a file of JSON lines that only ever grows. Each prompt has a key; what is in the file already is
not asked again, so a run that was ended goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from ..engine import Engine
from ..errors import MarsError
from ..loaded import LoadedModel
from ..prompts import chat_prompt_ids
from ..row import Request
from ..settings import DecodeSettings
from .reading import Findings, json_lines

Mode = Literal["greedy", "sampled"]

# What counts as a loop; see `is_degenerate`.
LOOP_PERIOD = 64
LOOP_TIMES = 3
LOOP_TOKENS = 24
NGRAM = 8
MAX_REPEATED_SHARE = 0.4


@dataclass(frozen=True)
class DistillSettings:
    """How prompts are answered.

    Attributes:
        sampled_share: share of the prompts whose answer is sampled; the others' is greedy. Which, is a
            function of seed and prompt.
        temperature, top_p: of the sampled answers.
        seed: of the choice and of the sampling.
        max_new_tokens: a longer answer is cut there, and marked as not finished.
        batch_size: prompts answered at once.
    """

    sampled_share: float = 0.5
    temperature: float = 0.7
    top_p: float = 0.9
    seed: int = 0
    max_new_tokens: int = 256
    batch_size: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.sampled_share <= 1:
            raise MarsError(f"sampled_share is {self.sampled_share!r}; allowed is 0 to 1.")
        if self.batch_size < 1:
            raise MarsError(f"batch_size is {self.batch_size!r}; allowed is 1 or more.")
        if self.sampled_share > 0 and self.temperature <= 0:
            raise MarsError("temperature is 0: to have greedy answers only, set sampled_share to 0.")
        self.decoding("greedy", "")  # what is wrong in the others is said before a model is loaded
        self.decoding("sampled", "")

    def mode_of(self, key: str) -> Mode:
        """Whether the prompt of this key has a greedy or a sampled answer."""
        return "sampled" if _fraction(f"{self.seed} {key}") < self.sampled_share else "greedy"

    def decoding(self, mode: Mode, key: str) -> DecodeSettings:
        """Settings of the engine for one prompt; the sampling's seed is the prompt's own."""
        shared: dict[str, Any] = dict(
            mode="ar", block_size=1, max_new_tokens=self.max_new_tokens, num_alternatives=0
        )
        if mode == "greedy":
            return DecodeSettings(**shared)
        seed = int(_fraction(f"{self.seed} sampling {key}") * 2**53)
        return DecodeSettings(**shared, temperature=self.temperature, top_p=self.top_p, seed=seed)


@dataclass(frozen=True)
class Prompt:
    """What is asked, and what its file says of it (`source`, `licence`), which the answer carries on."""

    key: str
    text: str
    origin: dict[str, Any]


@dataclass
class _Answer:
    prompt: Prompt
    mode: Mode
    ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finished: bool = False

    def line(self) -> dict[str, Any]:
        """The output's line; a response that is not worth learning is null, with the reason."""
        text = "".join(self.pieces).removesuffix("\ufffd")
        dropped = "empty" if not text.strip() else "loop" if is_degenerate(self.ids) else None
        line = {
            "key": self.prompt.key,
            "prompt": self.prompt.text,
            "response": None if dropped else text,
            **self.prompt.origin,
            "mode": self.mode,
            "finished": self.finished,
            "tokens": len(self.ids),
        }
        return line | {"dropped": dropped} if dropped else line


def distill(
    loaded: LoadedModel, prompts: Sequence[Prompt], out: Path, settings: DistillSettings
) -> Counter[str]:
    """Answer what `out` has no answer to yet, and append it there, a line as soon as it is whole.

    Returns:
        counts: answered, finished, loops and empty answers dropped, prompts too long, tokens, and those that
        stood there already.

    Raises:
        MarsError: `out` holds something else.
        KeyboardInterrupt: as it came; all whole answers are in the file.
    """
    done = answered_keys(out)
    todo = [prompt for prompt in prompts if prompt.key not in done]
    counts = Counter({"there already": len(prompts) - len(todo)})
    with (
        out.open("a", encoding="utf-8") as file,
        tqdm(total=len(todo), desc="Answering", unit="prompt", dynamic_ncols=True) as bar,
    ):
        for answer in _answers(loaded, todo, settings, counts, bar):
            line = answer.line()
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            bar.update()
            counts["answered"] += 1
            counts["finished"] += answer.finished
            if "dropped" in line:
                counts[f"dropped: {line['dropped']}"] += 1
    return counts


def _answers(
    loaded: LoadedModel,
    prompts: Sequence[Prompt],
    settings: DistillSettings,
    counts: Counter[str],
    bar: tqdm[Any],
) -> Iterator[_Answer]:
    """Whole answers as they come. A pool of `batch_size` requests shares the engine's forwards; one that
    ends makes room for the next."""
    engine = Engine(loaded)
    waiting = iter(prompts)
    pool: dict[Any, _Answer] = {}
    while True:
        while len(pool) < settings.batch_size and (prompt := next(waiting, None)) is not None:
            mode = settings.mode_of(prompt.key)
            try:
                stream = engine.stream(_request(loaded, prompt, settings.decoding(mode, prompt.key)))
            except MarsError:
                counts["too long for the context"] += 1
                bar.update()
            else:
                pool[stream] = _Answer(prompt, mode)
        if not pool:
            return
        for stream in list(pool):
            answer, event = pool[stream], next(stream)
            answer.ids += [choice.id for choice in event.committed]
            answer.pieces.append(event.text)
            counts["tokens"] += len(event.committed)
            if event.finish_reason is not None:
                answer.finished = event.finish_reason == "eos"
                del pool[stream]
                yield answer
        tokens_per_s = counts["tokens"] / (bar.format_dict["elapsed"] or 1)
        bar.set_postfix_str(f"{tokens_per_s:.0f} tok/s", refresh=False)


def _request(loaded: LoadedModel, prompt: Prompt, decoding: DecodeSettings) -> Request:
    assert loaded.tokenizer is not None
    return Request(chat_prompt_ids(loaded.tokenizer, [{"role": "user", "content": prompt.text}]), decoding)


def read_prompts(sources: Iterable[Path], findings: Findings) -> list[Prompt]:
    """The `prompt` of each line, each text once.

    Raises:
        MarsError: a file that cannot be read, or a bad line that is to be refused.
    """
    prompts: dict[str, Prompt] = {}
    for path in sources:
        for name, entry in json_lines(path, findings):
            text = entry.get("prompt") if isinstance(entry, dict) else None
            if not _is_prompt(text):
                findings.report_bad(name, "it has no prompt that is text.")
                continue
            assert isinstance(text, str)
            origin = {key: entry[key] for key in ("source", "licence") if key in entry}
            key = _key(text)
            findings.counts["duplicates"] += key in prompts
            prompts.setdefault(key, Prompt(key, text, origin))
    return list(prompts.values())


def _is_prompt(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip()) and not any("\ud800" <= c <= "\udfff" for c in text)


def answered_keys(out: Path) -> set[str]:
    """Keys of the prompts that `out` has lines for. A last line that was not written whole is cut off.

    Raises:
        MarsError: the file holds something that this program did not write.
    """
    if not out.exists():
        return set()
    try:
        with out.open("r+b") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            file.truncate(whole)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise MarsError(f"{out} cannot be written: {error}.") from error
    keys = set()
    for number, line in enumerate(content[:whole].split(b"\n")[:-1], start=1):
        try:
            keys.add(json.loads(line)["key"])
        except (ValueError, TypeError, KeyError) as error:
            raise MarsError(
                f"{out}:{number} is no line of a self-distillation ({error!r}). Give another "
                "file, or repair this one."
            ) from error
    return keys


def is_degenerate(ids: Sequence[int]) -> bool:
    """True for an answer that goes round in circles.

    Either the same piece of at most `LOOP_PERIOD` tokens stands `LOOP_TIMES` times in a row or more, over
    `LOOP_TOKENS` tokens or more; or more than `MAX_REPEATED_SHARE` of its `NGRAM`-grams stood in it before
    (loops that count on: "Step 12: the same. Step 13: the same.").
    """
    tokens = np.asarray(ids)
    return any(_loops(tokens, period) for period in range(1, LOOP_PERIOD + 1)) or _repeated_share(ids) > (
        MAX_REPEATED_SHARE
    )


def _loops(tokens: np.ndarray, period: int) -> bool:
    needed = max(LOOP_TOKENS, LOOP_TIMES * period) - period  # tokens equal to the one a period before
    if len(tokens) < needed + period:
        return False
    differ = np.flatnonzero(tokens[period:] != tokens[:-period])
    edges = np.concatenate(([-1], differ, [len(tokens) - period]))
    return bool(np.diff(edges).max() - 1 >= needed)


def _repeated_share(ids: Sequence[int]) -> float:
    grams = [tuple(ids[start : start + NGRAM]) for start in range(len(ids) - NGRAM + 1)]
    # of a few grams, a few repeated ones say nothing
    return 1 - len(set(grams)) / len(grams) if len(grams) >= LOOP_TOKENS else 0.0


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fraction(text: str) -> float:
    """A number in [0, 1) that this text always has."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
