"""What the Explore tab shows of a sweep beside charts: how far it is, and the table. And what is clicked."""

from __future__ import annotations

from typing import Any

from mars_core.bench.sweep.figures import DEFINITIONS, PointFigures
from mars_core.bench.sweep.result import SweepResult
from mars_core.bench.sweep.run import Progress

from .explore_form import duration
from .token_view import FeedHTML, script

COLUMNS = (
    ("setting", ""),
    ("tok/fwd", DEFINITIONS["tokens_per_forward"]),
    ("tok/s", "decode speed, median over prompts"),
    ("×\u00a0AR", DEFINITIONS["speedup"]),
    ("agreement", DEFINITIONS["agreement"]),
    ("AR's choices", DEFINITIONS["ar_choices"]),
    ("same text", "prompts whose whole text is AR's, token for token"),
    ("ln\u00a0p a token", DEFINITIONS["log_likelihood"]),
    ("tokens", "committed, and in how many forwards"),
)


class SweepProgress(FeedHTML):
    """A bar with the time to go, and one line of words. Its value is a message of this module."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(js_on_load=script("explore.css", "common.js", "explore_progress.js"), **kwargs)


class SweepTable(FeedHTML):
    """A row for each setting, and what is clicked, here or in a chart of the tab.

    Events: ``select`` (data: ``threshold, metric, block_size, verify`` of the setting chosen).
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(js_on_load=script("explore.css", "common.js", "explore_table.js"), **kwargs)


def waiting(num_settings: int, num_prompts: int) -> dict[str, Any]:
    """A sweep has begun."""
    words = f"Warming up: {num_settings} settings, {num_prompts} prompts …"
    return {"state": "running", "share": 0.0, "words": words, "prompt": ""}


def under_way(progress: Progress, prompt: str, num_prompts: int) -> dict[str, Any]:
    """Where it is."""
    left = "" if progress.eta_s is None else f" · about {duration(progress.eta_s)} to go"
    words = (
        f"Answer {min(progress.num_done + 1, progress.num_answers)} of {progress.num_answers}{left} · "
        f"{progress.point.name} · prompt {progress.prompt + 1} of {num_prompts}:"
    )
    return {"state": "running", "share": round(progress.share, 4), "words": words, "prompt": prompt[:200]}


def at_rest(result: SweepResult, seconds: float, trouble: str = "") -> dict[str, Any]:
    """It has ended, or was stopped, or failed."""
    num_answers, total = len(result.answers), len(result.prompts) * len(result.plan.points())
    if result.finished:
        words = f"Done: {total} answers in {duration(seconds)}."
    else:
        words = f"Stopped: {num_answers} of {total} answers are kept. {_counted(result)}"
    state = "done" if result.finished else "stopped"
    share = num_answers / total if total else 0.0
    return {"state": state, "share": share, "words": f"{trouble} {words}".strip(), "prompt": ""}


def hung(seconds: float) -> dict[str, Any]:
    """It was told to stop, and has not."""
    words = f"Stopped. Its last forward takes more than {duration(seconds)}; the table stays as it is."
    return {"state": "stopped", "share": 0.0, "words": words, "prompt": ""}


def _counted(result: SweepResult) -> str:
    if result.num_complete:
        plural = "s" * (result.num_complete != 1)
        return f"The figures are of the {result.num_complete} prompt{plural} that every setting has answered."
    return "No prompt was answered by every setting: each row is of what there is." if result.answers else ""


def fault(words: str) -> dict[str, Any]:
    """It cannot even begin."""
    return {"state": "fault", "share": 0.0, "words": words, "prompt": ""}


def table(result: SweepResult) -> dict[str, Any]:
    """The table's message."""
    return {
        "columns": [{"name": name, "meaning": meaning} for name, meaning in COLUMNS],
        "rows": [{"cells": _cells(row), "choice": _choice(row)} for row in result.figures],
        "note": _note(result),
    }


def _cells(row: PointFigures) -> list[str]:
    return [
        row.point.name,
        f"{row.tokens_per_forward:.2f}",
        "–" if row.tokens_per_s is None else f"{row.tokens_per_s.median:.1f}",
        "–" if row.speedup is None else f"{row.speedup.median:.2f}",
        "–" if row.agreement is None else f"{row.agreement:.0%}",
        f"{row.ar_choices:.1%}",
        "–" if row.same_text is None else f"{row.same_text} of {row.num_prompts}",
        f"{row.log_likelihood:.3f}",
        f"{row.num_tokens} in {row.num_forwards}",
    ]


def _choice(row: PointFigures) -> dict[str, Any] | None:
    """What the row's button sets; the reference is no τ."""
    point = row.point
    if point.is_ar:
        return None
    return {
        "threshold": point.threshold,
        "metric": point.metric,
        "block_size": point.block_size,
        "verify": point.verify,
    }


def _note(result: SweepResult) -> str:
    """Where the figures come from, in one line."""
    facts, rows = result.facts, result.figures
    num_prompts = min((row.num_prompts for row in rows), default=0)
    where = [str(facts[name]) for name in ("model", "dtype", "device", "hardware") if facts.get(name)]
    shared = sum(row.num_shared for row in rows)
    note = (
        f"n = {num_prompts} prompt{'s' * (num_prompts != 1)}, greedy, at most {result.plan.max_new_tokens} "
        f"new tokens · {' · '.join(where)} · lines at points: 95 % (speed-up: quartiles)"
    )
    return note + (f" · {shared} forwards shared with other requests are not in the speeds" if shared else "")
