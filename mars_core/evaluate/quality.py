"""Tasks of lm-evaluation-harness run on a `MarsLM`, and their figures with intervals."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from ..errors import MarsError
from .adapter import MarsLM
from .figures import Figure, Outcomes, TaskFigures
from .names import Selection
from .task_files import open_task


def run_task(lm: MarsLM, name: str, selection: Selection) -> TaskFigures:
    """Answer a task's prompts, chat template applied, and grade the answers.

    Raises:
        MarsError: the task's file is missing or holds something else.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of what is meant here
    longest = selection.max_new_tokens
    with open_task(name, selection.data_dir) as task:
        results: Any = simple_evaluate(
            lm,
            tasks=[task],
            task_manager=TaskManager(include_defaults=False),
            limit=selection.limit,
            apply_chat_template=bool(lm.tokenizer.chat_template),
            gen_kwargs=None if longest is None else {"max_gen_toks": longest},
            bootstrap_iters=0,
            log_samples=True,
        )
        task_name = task.task_name
    samples = results["samples"][task_name]
    return TaskFigures(
        task=name,
        num_examples=len({sample["doc_id"] for sample in samples}),
        figures=_figures(samples),
        generation=lm.take_generation(),
    )


def _figures(samples: Sequence[dict[str, Any]]) -> list[Figure]:
    """One for each metric and filter, in lm-eval's order."""
    outcomes: dict[str, list[Outcomes]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample["doc_id"]):
        for metric in sample["metrics"]:
            name = metric if sample["filter"] == "none" else f"{metric}, {sample['filter']}"
            outcomes[name].append(_outcomes(sample[metric], name))
    return [Figure(name, tuple(of_one)) for name, of_one in outcomes.items()]


def _outcomes(value: Any, name: str) -> Outcomes:
    """One example may have several checks (IFEval's instructions)."""
    values = value if isinstance(value, list) else [value]
    if any(v not in (0, 1) for v in values):
        raise MarsError(f"{name} is {value!r} for an example; only right and wrong are counted here.")
    return tuple(bool(v) for v in values)
