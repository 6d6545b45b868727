"""Training data as it comes: files of JSON lines or a Hub data set -> conversations.

A line is an object with ``messages`` (chat) or with ``prompt`` and ``response``. Whatever else it holds is
left alone, but for ``finished``: false says that the last answer was cut off at a length limit.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import MarsError
from ..prompts import Message, check_messages, is_blank

logger = logging.getLogger(__name__)

BadLines = Literal["skip", "refuse"]
BAD_LINES: tuple[BadLines, ...] = get_args(BadLines)
_SHOWN = 10  # bad lines that are named one by one; the others are counted


@dataclass(frozen=True)
class Conversation:
    """A conversation to learn from; its last message is an answer.

    Attributes:
        messages: as in `mars_core.prompts`, system message first if there is one.
        name: where it came from, ``FILE:LINE``.
        finished: False where the last answer was cut off, so that no end of turn belongs behind it.
    """

    messages: tuple[Message, ...]
    name: str
    finished: bool = True

    @property
    def prompt(self) -> str:
        """The first question, by which training and held-out data are kept apart."""
        return next((m["content"] for m in self.messages if m["role"] == "user"), "")


@dataclass
class Findings:
    """What was met while reading and is not trained on: counts by reason, and the bad lines' names."""

    bad_lines: Literal["skip", "refuse"] = "skip"
    bad: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def report_bad(self, name: str, reason: str) -> None:
        """Note a bad line, or refuse it.

        Raises:
            MarsError: under ``refuse``, with the line's name and what is wrong with it.
        """
        if self.bad_lines == "refuse":
            raise MarsError(f"{name}: {reason} Repair the line, or pass --bad-lines skip.")
        self.bad.append(name)
        self.counts["bad lines"] += 1
        if len(self.bad) <= _SHOWN:
            logger.warning("%s is skipped: %s", name, reason)
        elif len(self.bad) == _SHOWN + 1:
            logger.warning("More bad lines are skipped and only counted.")


def read_conversations(sources: Iterable[str], findings: Findings) -> Iterator[Conversation]:
    """The conversations of files (JSON lines) and Hub data sets (``owner/name`` or ``owner/name:split``).

    What cannot be learned from is noted in `findings`: bad lines, and lines without an answer.

    Raises:
        MarsError: a source is neither a file nor a data set that can be loaded; or a bad line that is to
            be refused.
    """
    for source in sources:
        for name, entry in _entries(source, findings):
            try:
                conversation = conversation_of(entry, name)
            except MarsError as error:
                findings.report_bad(name, str(error))
                continue
            if conversation is None:
                findings.counts["without an answer"] += 1
            else:
                yield conversation


def conversation_of(entry: Any, name: str) -> Conversation | None:
    """A line's conversation, up to its last answer; None if it holds no answer.

    Raises:
        MarsError: the line is none; says why.
    """
    if not isinstance(entry, dict):
        raise MarsError("it is not a JSON object.")
    finished = entry.get("finished", True)
    if not isinstance(finished, bool):
        raise MarsError(f"finished is {finished!r}; it must be true or false.")
    messages = _messages_of(entry)
    num_messages = len(messages)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        return None
    for message in messages:
        if message["role"] != "system" and is_blank(message["content"]):
            raise MarsError(f"a message of the {message['role']} is empty.")
    _check_order(messages)
    return Conversation(tuple(messages), name, finished or len(messages) < num_messages)


def _messages_of(entry: dict[str, Any]) -> list[Message]:
    if "messages" in entry:
        given = entry["messages"]
        if not isinstance(given, list) or not all(isinstance(message, dict) for message in given):
            raise MarsError("messages must be a list of objects with role and content.")
        messages = [{key: message.get(key) for key in ("role", "content")} for message in given]
    elif "prompt" in entry:
        messages = [{"role": "user", "content": entry["prompt"]}]
        if entry.get("response") is not None:
            messages.append({"role": "assistant", "content": entry["response"]})
    else:
        raise MarsError("it has neither messages nor prompt and response.")
    check_messages(messages)  # type: ignore[arg-type]  # that the contents are text is checked there
    return messages  # type: ignore[return-value]


def _check_order(messages: list[Message]) -> None:
    """A system message stands first, and an answer has something to answer."""
    roles = [message["role"] for message in messages]
    if "system" in roles[1:]:
        raise MarsError("a system message may only come first.")
    turns = roles[1:] if roles[0] == "system" else roles
    if turns[0] == "assistant" or ("assistant", "assistant") in zip(turns, turns[1:], strict=False):
        raise MarsError("an answer has no question before it.")


def _entries(source: str, findings: Findings) -> Iterator[tuple[str, Any]]:
    path = Path(source).expanduser()
    if path.is_file():
        return json_lines(path, findings)
    if path.exists():
        raise MarsError(
            f"{source} is a directory. Give a file of JSON lines, or a Hub data set (owner/name)."
        )
    name, _, split = source.partition(":")
    if name.count("/") != 1 or name.startswith((".", "~", "/")) or path.suffix in (".json", ".jsonl"):
        raise MarsError(f"There is no file {source}. Check the path, or give a Hub data set (owner/name).")
    return _hub_rows(name, split or "train")


def json_lines(path: Path, findings: Findings) -> Iterator[tuple[str, Any]]:
    """(name, content) of each line of a file that is not empty; what is no JSON is noted in `findings`.

    Raises:
        MarsError: the file cannot be read; or a bad line that is to be refused.
    """
    try:
        # as bytes: only \n ends a line, and what is not UTF-8 is one bad line, not a bad file
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                name = f"{path}:{number}"
                try:
                    entry = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    findings.report_bad(name, f"it is not JSON in UTF-8 ({error}).")
                else:
                    yield name, entry
    except OSError as error:
        raise MarsError(f"{path} cannot be read: {error}.") from error


def _hub_rows(name: str, split: str) -> Iterator[tuple[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MarsError(
            f"{name} is no file here, and Hub data sets need the package datasets. Run `pip install "
            "datasets`, or give a file of JSON lines."
        ) from error
    try:
        rows = load_dataset(name, split=split)
    except Exception as error:  # a dozen types, of four packages
        raise MarsError(
            f"The data set {name} (split {split}) cannot be loaded: {error}. Check the spelling (owner/name "
            "or owner/name:split) and the network."
        ) from error
    for number, row in enumerate(rows, start=1):
        yield f"{name}:{number}", row
