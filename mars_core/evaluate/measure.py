"""All that is asked about one model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..bench.facts import facts_of
from ..bench.prompts_file import choose, encode, read_prompts
from ..errors import MarsError
from ..loaded import LoadedModel
from ..settings import DecodeSettings, one_token_mode
from ..train.data import DataSettings
from .agreement import Agreement, agreement
from .answer_log import AnswerLog, belongings
from .likelihood import held_out_examples, likelihood
from .names import Selection, data_file
from .needs import prepare_graders, stay_offline
from .report import ModelReport

AGREEMENT_TOKENS = 128


@dataclass(frozen=True)
class Plan:
    """What is measured; a part that is empty is left out.

    Attributes:
        tasks: names.
        selection: of their examples, and of the prompts for `agreement`.
        data: chats whose likelihood is measured.
        agreement: a file of prompts.
        batch_size: prompts answered at once.

    Raises:
        MarsError: nothing is asked for, or a file is missing.
    """

    tasks: tuple[str, ...]
    selection: Selection
    data: DataSettings
    agreement: Path | None
    batch_size: int

    def __post_init__(self) -> None:
        if not (self.tasks or self.data.sources or self.agreement):
            raise MarsError("Nothing is asked for. Give --tasks, --likelihood or --agreement.")
        for task in self.tasks:
            data_file(task, self.selection.data_dir)
        if self.agreement:
            read_prompts(self.agreement)


def measure(
    plan: Plan, loaded: LoadedModel, settings: DecodeSettings, answers: Path | None = None
) -> ModelReport:
    """Measure one model under one way of decoding.

    Args:
        answers: a file that keeps the tasks' answers.

    Raises:
        MarsError: a file is missing or holds something else.
    """
    report = ModelReport(
        model=loaded.name,
        decoding=in_words(settings),
        facts=facts_of(loaded),
        settings=dataclasses.asdict(settings),
    )
    if plan.data.sources:
        examples, report.data_counts = held_out_examples(loaded, plan.data)
        report.likelihood = likelihood(loaded, examples[: plan.selection.limit])
    if plan.agreement:
        report.agreement = _agreement(plan, plan.agreement, loaded, settings)
    if plan.tasks:
        with _log(answers, loaded, settings) as log:
            _run_tasks(plan, loaded, settings, log, report)
    return report


def in_words(settings: DecodeSettings) -> str:
    """Example: ``mars + verify, τ = 1, B = 4``."""
    if one_token_mode(settings.mode, settings.threshold, settings.metric, settings.verify):
        return "ar"
    name = "mars + verify" if settings.verify else "mars"
    metric = "" if settings.metric == "probability" else f" ({settings.metric})"
    drafts = "" if settings.proposer == "masks" else f", drafts: {settings.proposer}"
    return f"{name}, τ = {settings.threshold:g}{metric}, B = {settings.block_size}{drafts}"


def _agreement(plan: Plan, path: Path, loaded: LoadedModel, settings: DecodeSettings) -> Agreement:
    assert loaded.tokenizer is not None
    prompts = encode(choose(read_prompts(path), plan.selection.limit, None), loaded.tokenizer)
    most = plan.selection.max_new_tokens or AGREEMENT_TOKENS
    return agreement(loaded, prompts, dataclasses.replace(settings, max_new_tokens=most), plan.batch_size)


def _run_tasks(
    plan: Plan, loaded: LoadedModel, settings: DecodeSettings, log: AnswerLog | None, report: ModelReport
) -> None:
    stay_offline()
    prepare_graders()
    from .adapter import MarsLM
    from .quality import run_task

    lm = MarsLM(loaded, settings, plan.batch_size, log)
    report.tasks = [run_task(lm, name, plan.selection) for name in plan.tasks]
    report.num_shortened = lm.num_shortened


@contextmanager
def _log(path: Path | None, loaded: LoadedModel, settings: DecodeSettings) -> Iterator[AnswerLog | None]:
    if path is None:
        yield None
        return
    log = AnswerLog(path, belongings(loaded, settings))
    try:
        yield log
    finally:
        log.close()
