"""Transformers' continuous batching, where it runs.

Written against transformers 5.24 (`generation/continuous_batching`). Its manager is started once for a batch
size and takes one group of prompts after the other, as a server would. Prefix sharing is off, for the prompts
of a benchmark come again; so is the change to another attention kernel, for the other methods do not have it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from ..loaded import LoadedModel
from .baselines import padding_id, stop_ids_for_generate
from .model_clock import ModelClock
from .outcome import Outcome

PAGE_TOKENS = 256  # of the paged cache; transformers' default
MOST_TOKENS_A_FORWARD = 2048  # prompts of a group are read in forwards of this many tokens
_LOGGER = logging.getLogger("ContinuousBatchingLogger")


class CannotRun(Exception):
    """A method that does not work on this device or with this model; its message says why."""


class ContinuousBatching:
    """A running manager.

    Args:
        longest_prompt: tokens of the longest prompt that will come.
        group_size: prompts that will come at once.
        on_exit: what stops the manager in the end is put there.

    Raises:
        CannotRun: it does not start here.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        longest_prompt: int,
        group_size: int,
        max_new_tokens: int,
        ignore_eos: bool,
        on_exit: ExitStack,
    ) -> None:
        self.loaded = loaded
        generation = GenerationConfig(
            do_sample=False,
            eos_token_id=stop_ids_for_generate(loaded, ignore_eos),
            pad_token_id=padding_id(loaded),
        )
        batching = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=group_size * math.ceil((longest_prompt + max_new_tokens) / PAGE_TOKENS) + 1,
            max_batch_tokens=MOST_TOKENS_A_FORWARD,
            allow_block_sharing=False,
            auto_switch_to_flash=False,
        )
        try:
            self.manager: Any = loaded.model.init_continuous_batching(  # type: ignore[operator]
                generation_config=generation, continuous_batching_config=batching
            )
            self.manager.warmup()
            self.manager.start()
        except Exception as error:
            raise CannotRun(_reason(error)) from error
        on_exit.callback(self._stop)

    def __call__(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Outcome:
        """Answer a group of prompts, all of which are there at once.

        Raises:
            CannotRun: a request failed, or its thread ended.
        """
        with ModelClock(self.loaded.model) as clock:
            begin = time.perf_counter()
            asked = self.manager.add_requests(
                [list(prompt) for prompt in prompts], max_new_tokens=max_new_tokens, record_timestamps=True
            )
            answers = self._answers(len(asked))
            wall_s = time.perf_counter() - begin
        rows = [answers[request_id] for request_id in asked]
        prefilled = max(row.timestamps[0] for row in rows)
        num_decode_forwards = clock.num_calls(prefilled)
        return Outcome(
            tokens=tuple(tuple(row.generated_tokens) for row in rows),
            wall_s=wall_s,
            prefill_s=prefilled - begin,
            num_prefill_tokens=sum(moment <= prefilled for row in rows for moment in row.timestamps),
            num_decode_forwards=num_decode_forwards,
            num_row_forwards=sum(len(row.generated_tokens) for row in rows),
            model_s=clock.seconds(prefilled, num_decode_forwards),
        )

    def _answers(self, count: int) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        while len(answers) < count:
            answer = self.manager.get_result(timeout=1)
            if answer is None and not self.manager.is_running():
                raise CannotRun(_reason(self.manager.background_thread_status.fatal_error))
            if answer is not None and answer.error is not None:
                raise CannotRun(str(answer.error))
            if answer is not None and answer.is_finished():
                answers[answer.request_id] = answer
        return answers

    def _stop(self) -> None:
        level = _LOGGER.level
        _LOGGER.setLevel(logging.ERROR)
        try:
            self.manager.stop(block=True, timeout=10, hard_stop=True)
            self.manager.destroy()
        finally:
            _LOGGER.setLevel(level)


def _reason(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None else "its thread ended without a reason"
