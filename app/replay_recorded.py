"""The recorded runs that come with the page: what it shows where there is no model."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from mars_core import MarsError, Trace
from mars_core.traces import load_trace

from .replay_steps import how_decoded, recorded_facts
from .token_view import ASSETS

logger = logging.getLogger(__name__)

RECORDED = ASSETS / "recorded"
_LONGEST_TITLE = 120


@dataclass(frozen=True)
class RecordedRun:
    """One of them: its file's name without the ending, and its trace."""

    name: str
    trace: Trace

    def card(self) -> dict[str, str]:
        """What the chooser shows of it."""
        figures = self.trace.statistics()
        question = recorded_facts(self.trace)["question"].strip().split("\n")[0] or self.name
        title = question if len(question) <= _LONGEST_TITLE else f"{question[:_LONGEST_TITLE]} …"
        return {
            "name": self.name,
            "title": title,
            "how": how_decoded(self.trace),
            "figures": f"{figures.num_tokens} tokens, {figures.tokens_per_forward:.2f} a forward",
        }


def recorded_runs(folder: Path = RECORDED) -> list[RecordedRun]:
    """All runs of a folder, by name. One that cannot be read is left out and logged."""
    runs = []
    for path in sorted(folder.glob("*.json")):
        try:
            runs.append(RecordedRun(path.stem, load_trace(path)))
        except MarsError as error:
            logger.warning("The recorded run %s is left out: %s", path.name, error)
    return runs
