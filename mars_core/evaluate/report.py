"""An evaluation as Markdown tables and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .agreement import Agreement
from .answers import Generation
from .figures import Figure, TaskFigures
from .intervals import Interval
from .likelihood import Likelihood, comparable, compare

FORMAT, VERSION = "mars-evaluation", 1
INTERVALS = (
    "In brackets: 95 % intervals. Shares of examples: Wilson. Shares of instructions, likelihoods and "
    "differences (paired): bootstrap over examples, 10,000 rounds."
)


@dataclass
class ModelReport:
    """What was found of one model under one way of decoding; parts that were not asked for are empty.

    Attributes:
        decoding: in words, such as ``mars, τ = 0.95, B = 4``.
        num_shortened: answers that the context left less room for than the task allows.
        data_counts: what was read for the likelihood, and what was left out.
    """

    model: str
    decoding: str
    facts: dict[str, Any]
    settings: dict[str, Any]
    tasks: list[TaskFigures] = field(default_factory=list)
    num_shortened: int = 0
    likelihood: Likelihood | None = None
    data_counts: dict[str, int] = field(default_factory=dict)
    agreement: Agreement | None = None


def as_json(ours: ModelReport, base: ModelReport | None) -> dict[str, Any]:
    """Everything; plain values only."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **ours.facts,
        "ours": _model_json(ours),
        "against": None if base is None else _model_json(base),
        "differences": [] if base is None else _differences_json(ours, base),
    }


def _model_json(report: ModelReport) -> dict[str, Any]:
    return {
        "model": report.model,
        "decoding": report.decoding,
        "settings": report.settings,
        "tasks": [_task_json(task) for task in report.tasks],
        "num_shortened": report.num_shortened,
        "likelihood": _likelihood_json(report),
        "agreement": None if report.agreement is None else _agreement_json(report.agreement),
    }


def _task_json(task: TaskFigures) -> dict[str, Any]:
    return {
        "task": task.task,
        "num_examples": task.num_examples,
        "metrics": {
            figure.metric: {
                "value": figure.value,
                "interval": figure.interval(),
                "num_checks": figure.num_checks,
                "outcomes": [[int(passed) for passed in of_one] for of_one in figure.outcomes],
            }
            for figure in task.figures
        },
        "generation": _generation_json(task.generation),
    }


def _generation_json(generation: Generation) -> dict[str, Any]:
    return {**dataclasses.asdict(generation), "tokens_per_forward": generation.tokens_per_forward}


def _likelihood_json(report: ModelReport) -> dict[str, Any] | None:
    found = report.likelihood
    if found is None:
        return None
    return {
        "nll_per_token": found.per_token,
        "interval": found.interval(),
        "perplexity": found.perplexity,
        "num_examples": len(found.nll),
        "num_tokens": sum(found.num_tokens),
        "nll_of_examples": found.nll,
        "tokens_of_examples": found.num_tokens,
        "data": report.data_counts,
    }


def _agreement_json(found: Agreement) -> dict[str, Any]:
    return {
        **dataclasses.asdict(found),
        "equal": found.num_equal / found.num_prompts,
        "median_first_difference": found.median_first_difference,
        "generation": _generation_json(found.generation),
        "ar_generation": _generation_json(found.ar_generation),
    }


def _differences_json(ours: ModelReport, base: ModelReport) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    theirs = _by_name(base)
    for (task, metric), figure in _by_name(ours).items():
        value, interval = figure.difference(theirs[task, metric])
        found.append({"task": task, "metric": metric, "difference": value, "interval": interval})
    if ours.likelihood and base.likelihood and comparable(ours.likelihood, base.likelihood):
        relative = compare(ours.likelihood, base.likelihood)
        found.append({"task": "likelihood", "metric": "nll, relative", **dataclasses.asdict(relative)})
    return found


def _by_name(report: ModelReport) -> dict[tuple[str, str], Figure]:
    """(task, metric) -> figure."""
    return {(task.task, figure.metric): figure for task in report.tasks for figure in task.figures}


def markdown(ours: ModelReport, base: ModelReport | None) -> str:
    """The tables."""
    reports = [ours] if base is None else [ours, base]
    parts = []
    if ours.tasks:
        parts += [_tasks(reports), _generations(reports)]
    if ours.likelihood:
        parts.append(_likelihoods(reports))
    if ours.agreement:
        parts.append(_agreement(ours, ours.agreement))
    return "\n\n".join([*parts, *_notes(reports), INTERVALS])


def _tasks(reports: Sequence[ModelReport]) -> str:
    header = ["task", "metric", "examples", *(f"{r.model} ({r.decoding})" for r in reports)]
    ours, *others = map(_by_name, reports)
    if others:
        header.append("difference")
    rows = []
    for (task, metric), figure in ours.items():
        row = [task, metric, str(len(figure.outcomes)), _share(figure)]
        for theirs in others:
            base = theirs[task, metric]
            row += [_share(base), _points(*figure.difference(base))]
        rows.append(row)
    return _table(header, rows)


def _generations(reports: Sequence[ModelReport]) -> str:
    header = ["task", "model", "tok/fwd", "tokens", "forwards", "cut at the limit"]
    rows = [
        [
            task.task,
            f"{report.model} ({report.decoding})",
            f"{task.generation.tokens_per_forward:.3f}",
            str(task.generation.num_tokens),
            str(task.generation.num_forwards),
            f"{task.generation.num_cut} of {task.generation.num_answers}",
        ]
        for report in reports
        for task in report.tasks
    ]
    return _table(header, rows)


def _likelihoods(reports: Sequence[ModelReport]) -> str:
    header = ["model", "−ln p a token", "perplexity", "examples", "tokens", "relative to the last"]
    last = reports[-1].likelihood
    rows = []
    for report in reports:
        found = report.likelihood
        if found is None:
            continue
        relative = "–" if last is None or found is last else _relative(found, last)
        nll = f"{found.per_token:.4f} {_range(found.interval(), '.4f')}"
        counts = [str(len(found.nll)), str(sum(found.num_tokens))]
        rows.append([report.model, nll, f"{found.perplexity:.3f}", *counts, relative])
    return _table(header, rows)


def _relative(found: Likelihood, base: Likelihood) -> str:
    if not comparable(found, base):
        return "not comparable: other tokens"
    comparison = compare(found, base)
    return f"{comparison.difference:+.2%} {_range(comparison.interval, '+.2%')}"


def _agreement(report: ModelReport, found: Agreement) -> str:
    middle = found.median_first_difference
    difference = found.nll - found.ar_nll
    rows = [
        ["answers equal to AR's", f"{found.num_equal / found.num_prompts:.1%} "
         f"{_range(found.equal_interval, '.1%')} of {found.num_prompts}"],
        ["first difference, median", "–" if middle is None else f"token {middle + 1:g}"],
        ["−ln p a token under AR", f"{found.nll:.4f}, AR's own {found.ar_nll:.4f}, difference "
         f"{difference:+.4f} {_range(found.nll_difference, '+.4f')}"],
        ["tok/fwd", f"{found.generation.tokens_per_forward:.3f}"],
    ]  # fmt: skip
    return _table([f"{report.model} ({report.decoding})", "against its own one-token decoding"], rows)


def _notes(reports: Sequence[ModelReport]) -> list[str]:
    return [
        f"{report.model} ({report.decoding}): {report.num_shortened} answers had less room in the context "
        "than the task allows."
        for report in reports
        if report.num_shortened
    ]


def _share(figure: Figure) -> str:
    return f"{figure.value:.1%} {_range(figure.interval(), '.1%')}"


def _points(value: float, interval: Interval) -> str:
    return f"{value:+.1%} {_range(interval, '+.1%')}"


def _range(interval: Interval, form: str) -> str:
    return f"({interval[0]:{form}} … {interval[1]:{form}})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
