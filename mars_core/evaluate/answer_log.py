"""Answers kept in a file, so that an evaluation that was ended goes on where it stopped.

JSON lines: first what the answers belong to, then an answer a line. The file only ever grows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from ..errors import MarsError
from ..loaded import LoadedModel
from ..settings import DecodeSettings
from .answers import Answer
from .scoring import Scored, score

FORMAT, VERSION = "mars-answers", 1
_DRIFT = 0.05  # nats; other kernels for the same weights change less, other weights more
_PROBE_LENGTH, _PROBE_MASKS = 24, 4


def answer_key(context: str, limits: Any) -> str:
    """What tells one answer from another: the prompt and how it was to end."""
    return hashlib.sha256(json.dumps([context, limits], sort_keys=True).encode()).hexdigest()[:24]


def belongings(loaded: LoadedModel, settings: DecodeSettings) -> dict[str, Any]:
    """What answers of this model under these settings belong to, as plain values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": loaded.name,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "device": loaded.device.type,
        "settings": json.loads(json.dumps(dataclasses.asdict(settings))),
        "probe": _probe(loaded),
    }


def _probe(loaded: LoadedModel) -> list[float]:
    """Log-probabilities of some tokens, masks among what they follow: other weights would say others."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(loaded.num_embeddings, (_PROBE_LENGTH,), generator=generator).tolist()
    ids[-_PROBE_MASKS - 1 : -1] = [loaded.mask_token_id] * _PROBE_MASKS
    mask = (False,) + (True,) * (_PROBE_LENGTH - 1)
    return list(score(loaded, [Scored(tuple(ids), mask)])[0].log_probabilities)


class AnswerLog:
    """The file, read once and then added to.

    Args:
        path: made if there is none; a last line that was not written whole is cut off.
        belongs_to: of `belongings`.

    Raises:
        MarsError: the file holds something else, or what another model or other settings gave.
    """

    def __init__(self, path: Path, belongs_to: dict[str, Any]) -> None:
        self.path = path
        self._answers: dict[str, Answer] = {}
        try:
            lines = _whole_lines(path)
            if lines:
                self._read(lines, belongs_to)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise MarsError(f"{path} cannot be written: {error}. Give another with --answers.") from error
        if not lines:
            self._write(belongs_to)

    def _read(self, lines: list[bytes], belongs_to: dict[str, Any]) -> None:
        try:
            header, *entries = [json.loads(line) for line in lines]
            others = [name for name in belongs_to if not _same(name, header[name], belongs_to[name])]
            for entry in entries:
                answer = Answer(**entry["answer"])
                self._answers[entry["key"]] = dataclasses.replace(answer, ids=tuple(answer.ids))
        except (ValueError, KeyError, TypeError) as error:
            raise MarsError(f"{self.path} is no file of answers ({error!r}). Give another.") from error
        if others:
            raise MarsError(
                f"{self.path} holds answers of {header['model']} that differ from what is asked for in "
                f"{', '.join(others)}. Give another file with --answers, or delete this one."
            )

    def get(self, key: str) -> Answer | None:
        """The answer, if it was given before."""
        return self._answers.get(key)

    def add(self, key: str, answer: Answer) -> None:
        """Keep an answer."""
        self._answers[key] = answer
        self._write({"key": key, "answer": dataclasses.asdict(answer)})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _whole_lines(path: Path) -> list[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return []
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        file.truncate(whole)
    return content[:whole].split(b"\n")[:-1]


def _same(name: str, found: Any, wanted: Any) -> bool:
    if name != "probe":
        return found == wanted
    drift = sum(abs(a - b) for a, b in zip(found, wanted, strict=True)) / len(wanted)
    return drift <= _DRIFT
